"""Samplers of both packages on given noise, and targets whose draws are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_ext.implicit.samplers import Context, Sampler

#: Radius of the ring and its width, the weight of the left of two modes, and their deviations.
RADIUS, WIDTH, LEFT = 2.0, 0.3, 0.3
DEVIATIONS = np.array([[0.5, 1.0], [0.7, 0.7]])


def functions_of(backend: Any) -> Any:
    """The array functions of a package."""
    arrays = backend.room("guides.arrays")
    return arrays.TensorFunctions if backend.is_pyro else arrays.JaxFunctions


def normals(number: int = 8, dim: int = 2) -> dict[str, np.ndarray]:
    """Normals with correlations, two of which have no weight."""
    rng = np.random.default_rng(5)
    weights = rng.uniform(0.5, 1.0, size=number) * (np.arange(number) < number - 2)
    factors = np.tril(0.3 * rng.normal(size=(number, dim, dim))) + np.eye(dim)
    means = 2.0 * rng.normal(size=(number, dim))
    return {"weights": weights / weights.sum(), "means": means, "factors": factors}


def drawn(
    backend: Any,
    sampler: Sampler,
    parameters: dict[str, Any],
    noise: dict[str, np.ndarray],
    score: Callable[[Any], Any],
    dim: int = 2,
) -> Any:
    """Draws of a sampler whose scores are a function of positions."""
    context = Context(
        functions_of(backend),
        backend.arrays(normals(dim=dim)),
        lambda memory, z: (score(z), memory),
        None,
    )
    return sampler.draw(context, parameters, backend.arrays(noise))[0]


def numbers(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Standard Normal numbers of these shapes."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def banana(backend: Any) -> Callable[[], None]:
    """a ~ N(0, 1), b ~ N(a^2 / 2, 1/2)."""

    def model() -> None:
        a = backend.host.sample("a", backend.dist.Normal(0.0, 1.0))
        backend.host.sample("b", backend.dist.Normal(0.5 * a**2, 0.5))

    return model


def ring(backend: Any) -> Callable[[], None]:
    """Radius N(2, 0.3), any angle."""

    def model() -> None:
        flat = backend.dist.Normal(backend.array(np.zeros(2)), 1e3).to_event(1)
        z = backend.host.sample("z", flat)
        radius = backend.xp.sqrt((z**2).sum(-1) + 1e-12)
        backend.host.factor("ring", -0.5 * ((radius - RADIUS) / WIDTH) ** 2)

    return model


def two_modes(backend: Any) -> Callable[[], None]:
    """Two Normals, at (-3, 0) and (3, 0)."""
    if backend.is_pyro:
        from torch import logsumexp
    else:
        from jax.nn import logsumexp
    dist = backend.dist

    def model() -> None:
        flat = dist.Normal(backend.array(np.zeros(2)), 1e3).to_event(1)
        z = backend.host.sample("z", flat)
        means = backend.array(np.array([[-3.0, 0.0], [3.0, 0.0]]))
        parts = dist.Normal(means, backend.array(DEVIATIONS)).log_prob(z).sum(-1)
        shares = backend.array(np.log([LEFT, 1.0 - LEFT]))
        backend.host.factor("modes", logsumexp(parts + shares, -1))

    return model


def exact_draws(name: str, number: int, seed: int = 0) -> np.ndarray:
    """Exact draws (number, 2)."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, number))
    if name == "banana":
        return np.stack([first, 0.5 * first**2 + 0.5 * second], 1)
    if name == "ring":
        # The density of the radius is r times that of the Normal: some are refused.
        grid = np.linspace(0.0, RADIUS + 10 * WIDTH, 20_001)
        mass = np.cumsum(grid * np.exp(-0.5 * ((grid - RADIUS) / WIDTH) ** 2))
        radius = np.interp(rng.uniform(size=number), mass / mass[-1], grid)
        angle = rng.uniform(0.0, 2 * np.pi, size=number)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    right = (rng.uniform(size=number) > LEFT).astype(int)
    means = np.array([[-3.0, 0.0], [3.0, 0.0]])[right]
    return means + DEVIATIONS[right] * np.stack([first, second], 1)


MODELS = {"banana": banana, "ring": ring, "two modes": two_modes}
