"""Log density of a program of either host, with NumPy arrays on the outside."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import host_of
from benchmarks.trust.judge import inside

Floats = NDArray[np.float64]

#: The package of this project for a host.
PACKAGES = {"numpyro": "numpyro_ext", "pyro": "pyro_ext"}


@contextlib.contextmanager
def precision(backend: str, *, double: bool) -> Iterator[None]:
    """The default precision of a host, meanwhile."""
    if backend == "numpyro":
        import jax

        with jax.enable_x64(double):
            yield
        return
    import torch

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def as_numpy(value: Any) -> NDArray[Any]:
    """A NumPy array of a host's."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


class Target:
    """A model with its arguments.

    Attributes
    ----------
    dim : int
    evaluations : int
        Positions at which a log density or score was asked for.
    """

    def __init__(
        self,
        backend: str,
        model: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        package = importlib.import_module(PACKAGES[backend])
        self._array = host_of(backend).array
        keys: tuple[Any, ...] = ()
        if backend == "numpyro":
            import jax

            keys = (jax.random.key(seed),)
        self.target = package.LogDensity(model, *keys, args, kwargs)
        self.data = self.target.bind(*args, **(kwargs or {}))
        self.dim: int = self.target.dim

    def value_and_score(self, z: Floats) -> tuple[Floats, Floats]:
        """Log densities (n,) and scores (n, D) at unconstrained positions (n, D)."""
        found = self.target.score(self._array(z), self.data)
        value = as_numpy(found.log_prior + found.log_likelihood)
        return value.astype(np.float64), as_numpy(found.score).astype(np.float64)

    def unconstrain(self, draws: Mapping[str, NDArray[Any]]) -> Floats:
        """Unconstrained positions (n, D) of draws by site."""
        values = {name: self._array(draws[name]) for name in self.target.layout.names}
        return as_numpy(self.target.unconstrain(values, self.data)).astype(np.float64)

    def constrain(self, z: Floats) -> dict[str, NDArray[Any]]:
        """Draws by site of unconstrained positions (n, D)."""
        found = self.target.constrain(self._array(z), self.data)
        return {name: as_numpy(value) for name, value in found.items()}

    def unconstrained_columns(self, draws: Mapping[str, NDArray[Any]]) -> dict[str, Floats]:
        """Unconstrained coordinates of draws, each (n,), as ``site`` or ``site[1]``.

        A draw that rounding has put on the edge of its support, where there is no unconstrained
        number, gets the farthest of the others.
        """
        z, layout = self.unconstrain(draws), self.target.layout
        columns = {}
        for name in layout.names:
            for number, column in enumerate(z[:, layout.slices[name]].T, start=1):
                label = f"{name}[{number}]" if layout.shapes[name] else name
                columns[label] = inside(column)
        return columns
