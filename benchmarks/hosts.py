"""A host as programs of benchmarks see it, so that one program serves both.

The hosts' statements and distributions have the same names; arrays and their functions differ in
little. A program takes a :class:`Host` first, and is otherwise written as any program of the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

#: Names of the hosts.
BACKENDS = ("numpyro", "pyro")


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes
    ----------
    name : {"pyro", "numpyro"}
    sample, factor, plate, deterministic : callable
        The host's statements.
    dist : module
        Its distributions.
    xp : module
        Functions of arrays, of those that torch and ``jax.numpy`` have alike.
    log_sum_exp : callable
        Over the last axis.
    relu : callable
    array : callable
        The host's array of a NumPy one; floats get the host's default precision.
    """

    name: str
    sample: Callable[..., Any]
    factor: Callable[..., Any]
    plate: Callable[..., Any]
    deterministic: Callable[..., Any]
    dist: Any
    xp: Any
    log_sum_exp: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    array: Callable[[Any], Any]

    def flat(self, name: str, size: int) -> Any:
        """A latent vector without a density of its own; a factor brings that."""
        unit = self.dist.Normal(self.array(np.zeros(size)), 1.0)
        return self.sample(name, unit.to_event(1).mask(False))

    def floats(self, values: Any) -> Any:
        """Data as an array of floats in the host's default precision."""
        return self.array(np.asarray(values, float))

    def improper(self, name: str, support: str, *length: int) -> Any:
        """A latent number or vector without a stated prior: its density is one on its support."""
        of_host = getattr(self.dist.constraints, support)
        if self.name == "pyro":
            from benchmarks.posteriordb.programs.pyro.flat import Flat

            return self.sample(name, Flat(of_host, *length))
        return self.sample(name, self.dist.ImproperUniform(of_host, (), length))


@cache
def host_of(backend: str) -> Host:
    """The host of this name; the other is not imported.

    Raises
    ------
    ValueError
        There is no host of that name.
    """
    if backend == "numpyro":
        return _numpyro()
    if backend == "pyro":
        return _pyro()
    raise ValueError(f"Expected one of {', '.join(BACKENDS)}, found {backend!r}.")


def fitted(
    backend: str,
    program: Callable[..., Any],
    /,
    *args: Any,
    seed: int,
    by: str = "fit",
    **options: Any,
) -> Any:
    """What `fit`, or `fit_many`, of a package makes of a host's program, in silence."""
    fit = getattr(importlib.import_module(f"{backend}_ext"), by)
    options["progress_bar"] = False
    if backend == "pyro":
        return fit(program, *args, seed=seed, **options)
    import jax

    return fit(jax.random.key(seed), program, *args, **options)


def falling_adam(backend: str, rate: float | None, steps: int) -> Any:
    """Adam of a host's engines, whose rate falls to 0 along a cosine over so many steps."""
    if backend == "numpyro":
        import optax

        return optax.adam(optax.cosine_decay_schedule(rate, steps))
    import torch
    from pyro.optim import CosineAnnealingLR

    settings = {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "T_max": steps}
    return CosineAnnealingLR(settings)


def _numpyro() -> Host:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def array(value: Any) -> Any:
        found = np.asarray(value)
        return jnp.asarray(found, float if found.dtype.kind == "f" else None)

    return Host(
        "numpyro",
        numpyro.sample,
        numpyro.factor,
        numpyro.plate,
        numpyro.deterministic,
        dist,
        jnp,
        partial(jax.nn.logsumexp, axis=-1),
        jax.nn.relu,
        array,
    )


def _pyro() -> Host:
    import pyro
    import pyro.distributions as dist
    import torch

    def array(value: Any) -> Any:
        found = np.asarray(value)
        dtype = torch.get_default_dtype() if found.dtype.kind == "f" else None
        return torch.as_tensor(found, dtype=dtype)

    return Host(
        "pyro",
        pyro.sample,
        pyro.factor,
        pyro.plate,
        pyro.deterministic,
        dist,
        torch,
        partial(torch.logsumexp, dim=-1),
        torch.relu,
        array,
    )
