"""What the tests of Pyro's kernels share: particles, and the direction by its definition."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def cloud(num: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64):
    """Particles with unequal scales, and scores that are neither symmetric nor centred."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.5, 2.0, dim, dtype=torch.float64)
    particles = torch.randn(num, dim, generator=generator, dtype=torch.float64) * scales
    scores = torch.rand(num, dim, generator=generator, dtype=torch.float64) ** 3 + 0.3
    return particles.to(dtype), scores.to(dtype)


def loop_direction(value, particles, scores):
    """phi by its definition: a double loop, with autograd for the gradient in z_j."""
    directions = []
    for to in particles:
        total = torch.zeros_like(to)
        for source, score in zip(particles, scores, strict=True):
            moving = source.clone().requires_grad_()
            kernel = value(moving, to)
            (slope,) = torch.autograd.grad(kernel, moving)
            total = total + kernel.detach() * score + slope
        directions.append(total / len(particles))
    return torch.stack(directions)


def largest_tensor(function, *args) -> int:
    """Entries of the largest tensor that a call makes."""
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    with Sizes():
        function(*args)
    return max(sizes)
