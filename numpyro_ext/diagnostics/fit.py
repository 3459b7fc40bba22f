"""What the diagnostics of a fit share: its target, the data on all rows, and its draws.

Chunks of draws are drawn and evaluated by one compiled program, whose results go to host memory.

Guides that the host's ``SVI`` has fitted and chains of its ``MCMC`` are seen as an engine is.
Whichever objective fitted it (``Trace_ELBO``, ``TraceGraph_ELBO``, ``RenyiELBO``, ...), a guide is
a distribution that can be drawn from. Its draws are those of its flat density where it has one,
and the host's own otherwise, so that site-by-site and hand-written guides are taken too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jax import Array, random
from jaxtyping import Float
from numpyro.infer import MCMC, Predictive

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.replay import is_quick
from numpyro_ext.draws import key_or
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    check_same_layout,
    flat_density,
    has_flat_density,
)
from numpyro_ext.programs import Program
from numpyro_ext.sharding import Sharding
from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from ppl_ext.errors import ArgumentError, DataWarning, HeldParameterWarning
from ppl_ext.process import swapped

# Folded into a key, so that the diagnostics' draws are not those that steps or draws of the same
# key take. With JAX's default setting ``fold_in(key, 1)`` is ``split(key)[1]``: a small number
# would not do.
_STREAM = 2**31 - 2


@dataclass(frozen=True)
class FittedGuide(shared.FittedGuide):
    """A guide, its parameters, the log density that it approximates, and a key for draws."""

    rng_key: Array

    def at_draws(
        self, num_samples: int, draw_chunk: int | None, evaluate: shared.Evaluate
    ) -> tuple[Float[np.ndarray, "S ..."], ...]:
        """What a function finds at draws of the guide, chunk by chunk, in host memory.

        It is compiled once for all chunks: the last one draws as many as the others, and those
        that are too many are left out.
        """
        sizes = shared.chunk_sizes(num_samples, self.target.dim, draw_chunk)
        rarely = is_quick(num_samples, self.target, self.data)
        chunk = _compiled_chunk(self.density, self.target, evaluate, sizes[0], rarely)
        pieces = [
            [np.asarray(found) for found in chunk(self.parameters, self.data, self.rng_key, part)]
            for part in range(len(sizes))
        ]
        return tuple(np.concatenate(each)[:num_samples] for each in zip(*pieces, strict=True))


def fitted_guide(
    fit: Any,
    state: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    rng_key: Array | None,
    passes: Passes | None = None,
) -> FittedGuide:
    """The guide of an engine, or a host autoguide with the model that it was fitted to.

    Parameters
    ----------
    fit
        An engine that has fitted a guide, or an autoguide fitted by NumPyro's ``SVI``.
    state
        State or result of the engine's run; or the parameters of the autoguide, as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``.
    model : callable, optional
        The model of an autoguide.
    args, kwargs : optional
        The model's arguments, with all rows of the data. Default: those of a
        result's run, or that the engine saw last.
    passes : Passes, optional
        All rows, from a loader.
    rng_key : array, optional
        Default: a key derived from the engine's state; ``jax.random.key(0)`` for an autoguide.

    Raises
    ------
    ArgumentError
        ``fit`` is neither, ``state`` does not belong to it, its guide has no flat log density, or
        the arguments hold only some rows of a plate.
    """
    if hasattr(fit, "target"):
        shared.check_fits_a_guide(fit)
        fit, state = fit.of_run(state)
        state = state_of_engine(fit, state)
        target, data = shared.target_of_engine(fit, model, args, kwargs, passes)
        key = key_or(rng_key, state.rng_key)
        if hasattr(fit, "approximation"):
            density, parameters = fit.approximation(state)
            return FittedGuide(density, parameters, target, data, key)
        return FittedGuide(fit.density, state.algorithm.parameters, target, data, key)
    check_has_flat_density(fit)
    params = getattr(state, "params", state)
    owner = type(fit).__name__
    expected = f"Expected the parameters of {owner}, as svi.get_params(state) gives them"
    if not isinstance(params, Mapping):
        raise ArgumentError(f"{expected}, found {type(state).__name__}.")
    model = shared.checked_model(fit, model)
    target, data = target_of_model(
        model,
        args,
        kwargs,
        held=params,
        allow_local_latents=False,
        owner=owner,
        passes=passes,
    )
    density = _density(fit, target, data)
    if missing := sorted(set(density.parameter_names) - set(params)):
        raise ArgumentError(f"{expected}, found none of the name {missing} among {sorted(params)}.")
    key = key_or(rng_key)
    return FittedGuide(density, density.from_host(params), target, data, key)


def _density(guide: Any, target: LogDensity, data: Data) -> FlatDensity:
    key = random.key(0)
    if guide.prototype_trace is None:
        return flat_density(guide, key, data.args, data.kwargs, layout=target.layout)
    # Setting a guide up again would change where its next fit starts.
    check_same_layout(guide, target.layout)
    return check_has_flat_density(guide)(guide, key)


def state_of_engine(engine: Any, state: Any) -> EngineState:
    """The state of an engine's run, as :meth:`~numpyro_ext.engine.Engine.of_run` gives it.

    Raises
    ------
    ArgumentError
        It is neither, or another engine's.
    """
    if not isinstance(state, EngineState):
        raise ArgumentError(
            f"Expected the state of {type(engine).__name__} as the second argument, "
            f"engine.run(...).state or the result itself, found {type(state).__name__}. The "
            "model's arguments come after it."
        )
    engine.check_state(state)
    return state


def target_of_model(
    model: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    held: Mapping[str, Any] | None = None,
    allow_local_latents: bool = True,
    all_rows: bool = True,
    owner: str = "LogDensity",
    passes: Passes | None = None,
    sharding: Sharding | None = None,
) -> tuple[LogDensity, Data]:
    """A target for a model without an engine, with parameters of the model as in ``held``.

    Arguments that hold only some rows of a plate are refused where it has to be ``all_rows``.
    """
    args, kwargs = shared.checked_arguments(args, kwargs)
    with swapped(warnings.catch_warnings(record=True)) as caught:
        warnings.simplefilter("always")
        target = LogDensity(
            model,
            random.key(0),
            args,
            kwargs,
            allow_local_latents=allow_local_latents,
            engine=owner,
            sharding=sharding,
        )
    fitted = {name: held[name] for name in target.held if held and name in held}
    for warning in caught:
        # Parameters that SVI has fitted beside the guide are meant to be where they are.
        told = issubclass(warning.category, HeldParameterWarning) and len(fitted) > 0
        # Of predictions: sites without values get some by place, not by row.
        by_place = issubclass(warning.category, DataWarning) and not all_rows
        if not (told or by_place):
            warnings.warn(warning.message, warning.category, stacklevel=2)
    if fitted:
        target = target.with_held({**target.held, **fitted})
    return shared.bound_rows(target, args, kwargs, passes, all_rows)


# A few programs are kept, so that a diagnostic of the same fit is not compiled again.
@lru_cache(maxsize=8)
def _compiled_chunk(
    density: FlatDensity, target: LogDensity, evaluate: shared.Evaluate, num: int, rarely: bool
) -> Program:
    def chunk(parameters: Parameters, data: Data, rng_key: Array, part: int) -> tuple[Array, ...]:
        key = random.fold_in(random.fold_in(rng_key, _STREAM), part)
        theta = density.sample(parameters, key, num).astype(target.dtype)
        return evaluate(density, parameters, target, data, theta)

    return Program(chunk, rarely=rarely)


class HostFit(shared.HostFit):
    """A fitted guide with the model that it approximates.

    Parameters
    ----------
    guide : callable
        An autoguide or a hand-written guide, fitted by NumPyro's ``SVI``.
    params : mapping
        Its parameters, as ``SVI.get_params`` gives them.
    model : callable
        Its model.
    args, kwargs
        The model's arguments, with all rows of the data.
    passes : Passes, optional
        All rows, from a loader.

    Raises
    ------
    ArgumentError
        The parameters or the guide do not belong to the model, or the arguments hold only some
        rows of a plate.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        params: Any,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        passes: Passes | None = None,
    ) -> None:
        self.guide = guide
        self.fitted: FittedGuide | None = None
        if has_flat_density(guide):
            self.fitted = fitted_guide(guide, params, model, args, kwargs, None, passes)
            self.target, self._data = self.fitted.target, self.fitted.data
            return
        if not isinstance(params, Mapping):
            raise ArgumentError(
                f"Expected the guide's parameters, as svi.get_params(state) gives them, found "
                f"{type(params).__name__}."
            )
        self.target, self._data = target_of_model(model, args, kwargs, held=params, passes=passes)

    def get_samples(
        self,
        params: Mapping[str, Any],
        rng_key: Array | None = None,
        num_samples: int = shared.HOST_DRAWS,
    ) -> dict[str, Array]:
        """Draws of the latent sites, leading dimension = draws."""
        key = key_or(rng_key)
        if self.fitted is not None:
            density, target = self.fitted.density, self.target

            def draw(parameters: Parameters, key: Array, data: Data) -> dict[str, Array]:
                theta = density.sample(parameters, key, num_samples).astype(target.dtype)
                return target.constrain(theta, data)

            # One program, where JAX would compile each operation of the draws by itself.
            return Program(draw, rarely=True)(self.fitted.parameters, key, self._data)
        predictive = Predictive(self.guide, params=dict(params), num_samples=num_samples)
        drawn = predictive(key, *self._data.args, **self._data.kwargs)
        return shared.sites_of_guide(self.target.layout.names, drawn)

    def sample_statistics(
        self, params: Mapping[str, Any], positions: Float[Array, "S D"]
    ) -> dict[str, Array]:
        """Log density of the guide at flat positions (S, D), where it can be evaluated."""
        return self._log_q(positions)


#: ArviZ's names of what NumPyro's kernels report of each draw.
_NAMES = {"num_steps": "n_steps", "accept_prob": "acceptance_rate"}


class Chains(shared.Chains):
    """Draws of ``numpyro.infer.MCMC``, by any kernel of a model.

    Parameters
    ----------
    mcmc : MCMC
        After ``run``.
    args, kwargs
        The model's arguments, with all rows of the data.
    passes : Passes, optional
        All rows, from a loader.
    num_samples : int, optional
        Draws that are taken, as many of each chain, at least. Default: all.

    Raises
    ------
    ArgumentError
        There are no draws yet, or fewer; or the kernel has no model.
    """

    def __init__(
        self,
        mcmc: MCMC,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        passes: Passes | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._take(mcmc, mcmc.sampler, mcmc.last_state is not None, num_samples)
        # Not the kernel's target: the kernel may have served other data since.
        self.target, _ = target_of_model(self._kernel.model, args, kwargs, passes=passes)

    def get_samples(self, state: Any, rng_key: Any = None) -> dict[str, Array]:
        """Draws of all chains, one chain after another."""
        return self._drawn()

    def sample_statistics(self, state: Any, positions: Float[Array, "S D"]) -> dict[str, Array]:
        """What the kernel reports of each draw."""
        fields = self.mcmc.get_extra_fields()
        return {
            _NAMES.get(name, name): self._taken(values)
            for name, values in fields.items()
            # A field of another shape is not one number for each draw.
            if isinstance(values, Array) and values.shape == (self._num_draws,)
        }
