"""Both packages behind one face, so that a test of one idea is one text.

The fixture ``backend`` (in ``conftest.py``) runs a test once for each package. What a test says in
NumPy goes in by :meth:`array` and comes out by :meth:`numpy`; models of both hosts have one name in
``tests.models``. What only one room needs stands in that room's own support module.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tests.models import zoo


@dataclass
class Fit:
    """An engine that has run: draws by site and losses as NumPy arrays, and the host's objects."""

    engine: Any
    state: Any
    losses: np.ndarray
    samples: dict[str, np.ndarray]


class Backend:
    """What both backends share."""

    name: str
    #: The package's public face, and models of its host under their common names.
    public: Any
    models: Any
    #: What a model that is written once for both hosts needs: the host, its distributions, its
    #: handlers, and the functions that torch and jax.numpy have alike.
    host: Any
    dist: Any
    handlers: Any
    xp: Any
    #: Where ``grad``, ``jacrev`` and ``vmap`` are.
    transforms: Any

    @property
    def is_pyro(self) -> bool:
        """Whether engines hold their state and random numbers come from a generator."""
        return self.name == "pyro"

    @property
    def autoguide(self) -> Any:
        """The host's guides."""
        return importlib.import_module(f"{self.name}.infer.autoguide")

    def room(self, name: str) -> Any:
        """A module of the package, such as "kernels"."""
        return importlib.import_module(f"{self.public.__name__}.{name}")

    def array(self, value: Any, dtype: Any = None) -> Any:
        """The framework's array, floats in its default precision unless told otherwise."""
        raise NotImplementedError

    def numpy(self, value: Any) -> np.ndarray:
        """A NumPy array of the framework's."""
        raise NotImplementedError

    def key(self, seed: int = 0) -> Any:
        """A random generator, or a random key."""
        raise NotImplementedError

    def arrays(self, values: Any) -> Any:
        """The framework's arrays of those in a dictionary or a tuple."""
        if isinstance(values, Mapping):
            return {name: self.array(value) for name, value in values.items()}
        return tuple(map(self.array, values))

    def target(
        self,
        model: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Log density of a model, and its data."""
        keys = () if self.is_pyro else (self.key(),)
        target = self.public.LogDensity(model, *keys, args, kwargs, **options)
        return target, target.bind(*args, **(kwargs or {}))

    def fit(
        self,
        engine: str,
        model: Any,
        *options: Any,
        steps: int,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        draws: int | None = None,
        **named: Any,
    ) -> Fit:
        """Make the engine of this public name, run it and draw."""
        seeds = {"seed": seed} if self.is_pyro else {}
        made = getattr(self.public, engine)(model, *options, **seeds, **named)
        keys = () if self.is_pyro else (self.key(seed),)
        run = made.run(*keys, steps, *args, progress_bar=False, **(kwargs or {}))
        state = None if self.is_pyro else run.state
        samples = made.get_samples(*(() if self.is_pyro else (state,)), num_samples=draws)
        return Fit(
            made,
            state,
            np.asarray(run.losses),
            {name: self.numpy(value) for name, value in samples.items()},
        )


class PyroBackend(Backend):
    """``pyro_ext`` on torch."""

    name = "pyro"

    def __init__(self) -> None:
        import pyro
        import torch

        import pyro_ext as public
        from tests.models import pyro_models as models

        self.public, self.models = public, models
        self.host, self.dist, self.xp = pyro, pyro.distributions, torch
        self.handlers, self.transforms = pyro.poutine, torch.func

    def array(self, value: Any, dtype: Any = None) -> Any:
        import torch

        array = np.asarray(value)
        if dtype is None and array.dtype.kind == "f":
            return torch.as_tensor(array, dtype=torch.get_default_dtype())
        return torch.as_tensor(array, dtype=None if dtype is None else getattr(torch, dtype))

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value.detach() if hasattr(value, "detach") else value)

    def key(self, seed: int = 0) -> Any:
        import torch

        return torch.Generator().manual_seed(seed)

    def compiled(self, function: Any) -> Any:
        """The function itself: torch runs it as it is."""
        return function

    def adam(self, rate: float) -> Any:
        """The host's Adam."""
        from pyro.optim import Adam

        return Adam({"lr": rate})


class NumPyroBackend(Backend):
    """``numpyro_ext`` on JAX."""

    name = "numpyro"

    def __init__(self) -> None:
        import jax.numpy
        import numpyro

        import numpyro_ext as public
        from tests.models import numpyro_models as models

        self.public, self.models = public, models
        self.host, self.dist, self.xp = numpyro, numpyro.distributions, jax.numpy
        self.handlers, self.transforms = numpyro.handlers, jax

    def array(self, value: Any, dtype: Any = None) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(value, dtype)

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)

    def key(self, seed: int = 0) -> Any:
        import jax

        return jax.random.key(seed)

    def compiled(self, function: Any) -> Any:
        """The function as one compiled program, where JAX would compile each operation."""
        import jax

        return jax.jit(function)

    def adam(self, rate: float) -> Any:
        """The host's Adam."""
        from numpyro.optim import Adam

        return Adam(rate)


PACKAGES = ("pyro", "numpyro")


def use_float64() -> None:
    """Float64 in whichever frameworks are installed, for the test module that says so at import."""
    with contextlib.suppress(ImportError):
        import jax

        jax.config.update("jax_enable_x64", True)
    with contextlib.suppress(ImportError):
        import torch

        torch.set_default_dtype(torch.float64)


@cache
def backend_of(package: str) -> Any:
    """The backend of a package: "pyro" or "numpyro"."""
    return {"pyro": PyroBackend, "numpyro": NumPyroBackend}[package]()


def from_zoo(backend: Any, name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model of the zoo, its arguments and its options."""
    return (
        backend.models.build(name),
        backend.models.arguments(name),
        dict(zoo.ZOO[name].options),
    )
