"""What a planted problem is: a program for both hosts, and exact draws of its posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import host_of

Floats = NDArray[np.float64]
Draws = dict[str, NDArray[Any]]
#: Draws, as many as asked for, from a generator.
Exact = Callable[[int, np.random.Generator], Draws]


@dataclass(frozen=True)
class Pathology:
    """A planted problem.

    Attributes
    ----------
    name : str
    kind : str
        What is hard about it, for tables.
    dim : int
        Dimensions of its unconstrained space.
    program : callable
        ``program(host, *arguments)``.
    exact : callable or None
        Exact draws of its latent sites, site -> (draws, ...); None where the posterior is not
        proper.
    arguments : tuple of array
        Data.
    smooth : bool
        Whether the density has a continuous gradient in unconstrained space, so that Stein's
        identities hold.
    same_transform : bool
        Whether both hosts have the same unconstrained space.
    single : bool
        Whether single precision can hold the right answer.
    note : str
    reach : callable or None
        The share of ascents from draws of the prior that end in the mode that is reached least, of
        those of some mass; None where nobody has counted.
    """

    name: str
    kind: str
    dim: int
    program: Callable[..., None]
    exact: Exact | None
    arguments: tuple[NDArray[Any], ...] = ()
    smooth: bool = True
    same_transform: bool = True
    single: bool = True
    note: str = ""
    reach: Callable[[], float] | None = None

    @property
    def proper(self) -> bool:
        """Whether there is a right answer."""
        return self.exact is not None

    def model(self, backend: str) -> Callable[..., None]:
        """The program of a host, which takes the data."""
        return partial(self.program, host_of(backend))

    def args(self, backend: str) -> tuple[Any, ...]:
        """The data as arrays of a host, in its default precision."""
        return tuple(host_of(backend).array(value) for value in self.arguments)

    def draws(self, number: int, seed: int = 0) -> Draws:
        """Exact draws.

        Raises
        ------
        ValueError
            The posterior is not proper.
        """
        if self.exact is None:
            raise ValueError(f"Expected a proper posterior, found {self.name}, which has no draws.")
        return self.exact(number, np.random.default_rng([23, seed]))


def gaussian_draws(
    mean: Floats, covariance: Floats, number: int, rng: np.random.Generator
) -> Floats:
    """Draws (number, D) of a Normal, by eigenvectors, so that nearly singular ones do."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Floats = mean + rng.normal(size=(number, len(mean))) @ root.T
    return found


def split(draws: Floats, **sizes: int) -> Draws:
    """Columns of draws (n, D) by site: scalars of size 0, vectors of others."""
    found: Draws = {}
    start = 0
    for name, size in sizes.items():
        stop = start + max(1, size)
        found[name] = draws[:, start:stop] if size else draws[:, start]
        start = stop
    return found
