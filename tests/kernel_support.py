"""What the tests of kernels share: particles, and the Stein direction by its definition."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: k(x, y) of two points, which may be complex.
Value = Callable[[Array, Array], Any]


def cloud(num: int, dim: int, seed: int = 0) -> tuple[Array, Array]:
    """Particles with unequal scales, and scores that are neither symmetric nor centred."""
    generator = np.random.default_rng(seed)
    particles = generator.normal(size=(num, dim)) * np.linspace(0.5, 2.0, dim)
    return particles, generator.random((num, dim)) ** 3 + 0.3


def gradient(kernel: Value, x: Array, y: Array) -> Array:
    """grad_x k(x, y), by complex steps, which have no rounding error to speak of."""
    step = 1e-30
    return np.array([kernel(x + 1j * step * e, y).imag / step for e in np.eye(len(x))])


def stein_direction(kernel: Value, particles: Array, scores: Array) -> tuple[Array, Array]:
    """phi and the Gram matrix by their definitions, in a double loop."""
    number = len(particles)
    gram = np.array([[kernel(x, y) for y in particles] for x in particles])
    slopes = np.array([[gradient(kernel, x, y) for y in particles] for x in particles])
    return (gram.T @ scores + slopes.sum(0)) / number, gram


def squared(x: Array, y: Array, weights: Array) -> Any:
    """(x - y)' W (x - y)."""
    return (x - y) @ weights @ (x - y)


def rbf(weights: Array, width: Any = 1.0) -> Value:
    """exp(-(x - y)' W (x - y) / h)."""
    return lambda x, y: np.exp(-squared(x, y, weights) / width)


def imq(weights: Array, width: Any = 1.0, exponent: float = -0.5) -> Value:
    """(1 + (x - y)' W (x - y) / h)^exponent."""
    return lambda x, y: (1.0 + squared(x, y, weights) / width) ** exponent


def linear(weights: Array, centre: Array) -> Value:
    """1 + (x - c)' W (y - c) / D."""
    return lambda x, y: 1.0 + (x - centre) @ weights @ (y - centre) / len(centre)


def median_width(particles: Array, weights: Array) -> float:
    """The median rule's bandwidth in a metric."""
    pairs = [squared(x, y, weights) for i, x in enumerate(particles) for y in particles[:i]]
    return float(np.median(pairs)) / math.log(len(particles) + 1)


def of_kernel(
    backend: Any, kernel: Any, particles: Array, scores: Array, dtype: str | None = None
) -> tuple[Array, Array]:
    """The first direction of a kernel and its Gram matrix, in one compiled program."""

    def both(particles: Any, scores: Any) -> Any:
        state = kernel.init(particles)
        phi, state = kernel.direction(state, particles, scores)
        return phi, kernel.gram(state, particles)

    phi, gram = backend.compiled(both)(*(backend.array(x, dtype) for x in (particles, scores)))
    return backend.numpy(phi), backend.numpy(gram)


def direction(
    backend: Any, kernel: Any, particles: Array, scores: Array, dtype: str | None = None
) -> Array:
    """The first direction of a kernel, in one compiled program."""

    def first(particles: Any, scores: Any) -> Any:
        return kernel.direction(kernel.init(particles), particles, scores)[0]

    arrays = (backend.array(x, dtype) for x in (particles, scores))
    return backend.numpy(backend.compiled(first)(*arrays))


def largest_array(backend: Any, function: Any, *args: Any) -> int:
    """Entries of the largest array that a call makes."""
    return (_largest_tensor if backend.name == "pyro" else _largest_traced)(function, *args)


def _largest_tensor(function: Any, *args: Any) -> int:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = out if isinstance(out, tuple | list) else [out]
            sizes.extend(each.numel() for each in made if isinstance(each, torch.Tensor))
            return out

    with Sizes():
        function(*args)
    return max(sizes)


def _largest_traced(function: Any, *args: Any) -> int:
    import jax

    types = re.findall(r"tensor<((?:\d+x)+)", jax.jit(function).lower(*args).as_text())
    return max(math.prod(int(n) for n in dims[:-1].split("x")) for dims in types)


def width_of(rule: str, particles: Array) -> Any:
    """The bandwidth of a named rule by its definition."""
    number, dim = particles.shape
    rows, columns = np.triu_indices(number, 1)
    apart = (particles[:, None] - particles) ** 2
    if rule in ("dimension", "wide"):
        return (2.0 if rule == "dimension" else 4.0) * dim
    if number == 1:
        return np.ones(dim) if rule == "pyro" else 1.0
    if rule == "pyro":
        # The lower of the two middle values, where their number is even.
        lower = np.sort(apart[rows, columns], axis=0)[(len(rows) - 1) // 2]
        widths, means = lower / np.log(number + 1), apart.mean((0, 1)) / np.log(number + 1)
    else:
        squared = apart.sum(-1)
        pairs, means = squared[rows, columns], squared.mean() / np.log(number + 1)
        widths = {
            "median": np.median(pairs) / np.log(number + 1),
            "blackjax": np.median(np.sqrt(pairs)) ** 2 / np.log(number),
            "dartml": np.median(squared) / np.log(number + 1),
            "numpyro": np.median(np.sqrt(squared)) ** 2 / np.log(number) + np.finfo(float).eps,
        }[rule]
    # Half of the pairs coincide: the mean instead, and one where that is zero too.
    return np.where(widths > 0.0, widths, np.where(means > 0.0, means, 1.0))
