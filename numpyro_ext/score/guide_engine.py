"""What the engines that fit a guide share (``GuideEngine``).

The guide is any with a flat log density (:mod:`numpyro_ext.guides.flat_density`). The base sets
it up, draws from it, and knows how far a run has come. A subclass fills in ``_step`` and
``_init_algorithm``, which gives the state before the first step from the guide's parameters: a
:class:`GuideState`, or another named tuple that has ``parameters``. What it decides about the
guide it adds to the :class:`GuidePlan`, in ``_plan``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float
from numpyro.infer.autoguide import AutoGuide

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Layout
from numpyro_ext.descent import ADAM, adam_step
from numpyro_ext.draws import key_or, same_normal
from numpyro_ext.engine import Engine, EngineState, Plan, key_of_draws
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
    has_own_start,
)
from numpyro_ext.guides.normal import LONG
from numpyro_ext.optim import as_optimizer
from numpyro_ext.programs import Program
from ppl_ext.engines.base import draws_asked
from ppl_ext.engines.guide_engine import GuideShell
from ppl_ext.engines.judgement import Drawn
from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import LEARNING_RATE, REST, match_sites

#: Axis of the host guides' parameters along which the coordinates of the flat vector run, by name
#: without the guide's prefix; rows of a low-rank factor belong to coordinates.
AXES = {"loc": -1, "scale": -1, "cov_factor": -2}


class GuideState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    optimizer : pytree
        State of the optimizer; None where the engine has none.
    """

    parameters: Parameters
    optimizer: Any


@dataclass(frozen=True)
class GuidePlan(Plan):
    """What an engine that fits a guide decides when it meets the model's arguments.

    Parameters
    ----------
    rng_key : array
        Key with which the guide was set up.
    density : FlatDensity
        The guide as a density over the flat unconstrained vector.
    optim : optimizer or None
        The one given, with a mapping's optimizers divided among the guide's parameters.
    num_samples : int
        Draws S per step.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the length of the gradient.
    """

    rng_key: Array = field(repr=False, compare=False)
    density: FlatDensity = field(repr=False, compare=False)
    optim: Any = field(repr=False, compare=False)
    num_samples: int
    learning_rate: float
    clip_norm: float | None


class GuideEngine(GuideShell, Engine):
    _host_guide = AutoGuide
    _check_flat_density = staticmethod(check_has_flat_density)
    _positions_option = "num_samples"

    @staticmethod
    def _host_optimizer(optim: Any) -> Any:
        return host_optimizer(optim)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> GuidePlan:
        found = super()._plan(target, rng_key, data)
        # Initial values, which take long to draw for long guides, are only asked for where a run
        # is not given a start.
        density = self._set_up(target, rng_key, data, drawn=target.dim <= LONG)
        return GuidePlan(
            target,
            found.estimator,
            rng_key,
            density,
            divided_optimizer(self.optim, density, target.layout),
            self.num_samples or 1,
            LEARNING_RATE,
            self.clip_norm,
        )

    def _has_own_start(self) -> bool:
        return has_own_start(self.guide)

    def _set_up(
        self, target: LogDensity, rng_key: Array, data: Data, *, drawn: bool
    ) -> FlatDensity:
        """The guide's density, set up on the model, with initial values that are drawn or not."""
        options: Any = {"layout": target.layout, "drawn": drawn}
        return flat_density(self.guide, rng_key, data.args, data.kwargs, **options)

    def _start(self, plan: GuidePlan, rng_key: Array, data: Data) -> Parameters:
        density, target = plan.density, plan.target
        drawn = target.dim <= LONG or target.start is None
        # The density of the plan has the initial values of the plan's key, or none where the guide
        # is long.
        if rng_key is not plan.rng_key or (drawn and target.dim > LONG):
            # The host draws the initial parameters when it sets the guide up.
            density = self._set_up(target, rng_key, data, drawn=drawn)
        if target.dim > LONG:
            # Their memory is wanted for the steps.
            target.forget_programs()
        parameters = density.initial_parameters()
        if target.start is not None:
            parameters = density.set_start(parameters, target.start.start)
        if self.initial_scale is not None:
            parameters = density.set_scale(parameters, self.initial_scale)
        return parameters

    def _num_positions(self, plan: GuidePlan) -> int:
        return plan.num_samples

    def _get_params(self, plan: GuidePlan, state: EngineState, data: Data) -> dict[str, Any]:
        return plan.density.write_back(state.algorithm.parameters)

    def _draw(
        self,
        plan: GuidePlan,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        draw = _compiled_draws(plan.density, draws_asked(num_samples), rng_key is None)
        return draw(state, key_or(rng_key, state.rng_key))

    def _to_judge(self, plan: GuidePlan, state: EngineState, number: int) -> Drawn:
        noise: Any = state.rng_key
        if plan.density.takes_noise:
            # Numbers of the host's in place of a key, which spares the compilation of a generator.
            noise = same_normal((number, plan.target.dim), plan.target.dtype)
        drawn = _compiled_draws(plan.density, number, False, True)(state, noise)
        z, log_q = (np.asarray(each) for each in self._whole(drawn))
        return Drawn(z, log_q)

    # -- the fit ------------------------------------------------------------------------------

    def sample_statistics(
        self, state: EngineState, positions: Float[Array, "S D"]
    ) -> dict[str, Array]:
        """Log density of the guide at flat positions, for ``to_arviz``."""
        return {"log_q": self.density.log_prob(state.algorithm.parameters, positions)}


class SiteOptimizers:
    """An optimizer for each group of latent sites.

    The parameters of a guide are divided along the coordinates that they belong to, and each
    optimizer updates its parts.

    Parameters
    ----------
    optimizers : mapping
        From patterns of site names (as in ``fnmatch``: ``"*.bias"``, ``"head.*"``) to NumPyro or
        optax optimizers. A site belongs to the first pattern that it matches. ``"*"`` takes the
        rest, and the parameters that belong to no site. A value of None is the default optimizer.

    Raises
    ------
    ArgumentError
        A value is no optimizer; or, in :meth:`divided`, a site matches no pattern, or a pattern no
        site.
    """

    def __init__(self, optimizers: Mapping[str, Any]) -> None:
        self._optimizers = {
            pattern: None if optim is None else as_optimizer(optim, may_hold=len(optimizers) > 1)
            for pattern, optim in optimizers.items()
        }
        #: For each parameter its axis, and the first and last entry of each part with its pattern.
        self._parts: dict[str, tuple[int, list[tuple[int, int, str]]]] = {}

    def divided(self, parameters: Parameters, layout: Layout, prefix: str) -> SiteOptimizers:
        """The same, knowing which entries of the guide's parameters belong to which optimizer."""
        patterns = tuple(self._optimizers)
        owners = match_sites(patterns, layout.slices)
        by_coordinate = np.concatenate(
            [np.full(s.stop - s.start, patterns.index(owners[n])) for n, s in layout.slices.items()]
        )
        divided, rest = SiteOptimizers(self._optimizers), []
        for name, value in parameters.items():
            where = _coordinates_of(name.removeprefix(f"{prefix}_"), np.shape(value), layout.dim)
            if where is None:
                rest.append(name)
                continue
            axis, coordinates = where
            of_entry = by_coordinate[coordinates]
            # Where the owner changes from one entry to the next, and both ends.
            ends = [0, *(np.flatnonzero(np.diff(of_entry)) + 1).tolist(), len(of_entry)]
            divided._parts[name] = (
                axis,
                [
                    (start, stop, patterns[of_entry[start]])
                    for start, stop in itertools.pairwise(ends)
                ],
            )
        if rest and REST not in patterns:
            raise ArgumentError(
                f"Expected an optimizer for the guide's parameters {rest}, which belong to no "
                f"single site, found the patterns {list(patterns)} alone. Add '*'."
            )
        return divided

    def _split(self, values: Parameters) -> dict[str, dict[str, Array]]:
        """What each optimizer updates: its parts of a parameter joined, as a network has many."""
        split: dict[str, dict[str, Array]] = {pattern: {} for pattern in self._optimizers}
        for name, value in values.items():
            if name not in self._parts:
                split[REST][name] = value
                continue
            axis, parts = self._parts[name]
            for pattern in dict.fromkeys(owner for _, _, owner in parts):
                pieces = [
                    lax.slice_in_dim(value, start, stop, axis=axis % value.ndim)
                    for start, stop, owner in parts
                    if owner == pattern
                ]
                split[pattern][name] = jnp.concatenate(pieces, axis)
        return {pattern: joined for pattern, joined in split.items() if joined}

    def init(self, parameters: Parameters) -> dict[str, Any]:
        """State of all optimizers, with the parameters, which must not share its memory."""
        state = {}
        for pattern, pieces in self._split(parameters).items():
            optim = self._optimizers[pattern]
            state[pattern] = (pieces, ADAM.init(pieces)) if optim is None else optim.init(pieces)
        return state

    def update_at(
        self,
        gradient: Parameters,
        state: dict[str, Any],
        value: Float[Array, ""],
        rate: Float[Array, ""],
    ) -> dict[str, Any]:
        """The state after one step; ``rate`` is the default optimizer's."""
        updated = {}
        for pattern, pieces in self._split(gradient).items():
            optim = self._optimizers[pattern]
            if optim is None:
                parameters, moments = state[pattern]
                updated[pattern] = adam_step(parameters, pieces, moments, rate)
            else:
                updated[pattern] = optim.update(pieces, state[pattern], value)
        return updated

    def get_params(self, state: dict[str, Any]) -> Parameters:
        """The parameters in a state."""
        found = {}
        for pattern, entry in state.items():
            optim = self._optimizers[pattern]
            found[pattern] = entry[0] if optim is None else optim.get_params(entry)
        # Those of no site, and the first joined parts, in whose place come whole ones.
        parameters = dict(found.get(REST, {}))
        for name, (axis, parts) in self._parts.items():
            ends, pieces = dict.fromkeys(found, 0), []
            for start, stop, owner in parts:
                # An optimizer holds its parts joined, in the order in which they lie in the
                # parameter.
                value, begin = found[owner][name], ends[owner]
                ends[owner] = begin + stop - start
                pieces.append(lax.slice_in_dim(value, begin, ends[owner], axis=axis % value.ndim))
            parameters[name] = jnp.concatenate(pieces, axis)
        return parameters


def host_optimizer(optim: Any) -> Any:
    """What an engine uses of an optimizer that was given: one of the host's, or one for each site.

    Raises
    ------
    ArgumentError
        It is no optimizer, nor a mapping to some.
    """
    if isinstance(optim, Mapping):
        return SiteOptimizers(optim)
    return None if optim is None else as_optimizer(optim)


def divided_optimizer(optim: Any, density: FlatDensity, layout: Layout) -> Any:
    """The same, with those of sites divided among a guide's parameters."""
    if not isinstance(optim, SiteOptimizers):
        return optim
    return optim.divided(density.initial_parameters(), layout, density.guide.prefix)


def _coordinates_of(name: str, shape: tuple[int, ...], dim: int) -> tuple[int, np.ndarray] | None:
    """Axis of a guide's parameter, and the coordinate that each entry along it belongs to."""
    if name == "scale_tril" and shape[-1:] == (dim * (dim + 1) // 2,):
        # The host's vector: the rows below the diagonal, then the diagonal.
        return -1, np.concatenate([np.tril_indices(dim, -1)[0], np.arange(dim)])
    if name == "scale_tril" and shape[-2:] == (dim, dim):
        return -2, np.arange(dim)
    axis = AXES.get(name)
    if axis is not None and shape[axis:][:1] == (dim,):
        return axis, np.arange(dim)
    return None


# A few programs are kept: an engine draws again and again, and many numbers of draws are one.
@lru_cache(maxsize=8)
def _compiled_draws(
    density: FlatDensity, number: int, of_state: bool, with_density: bool = False
) -> Program:
    def draw(state: EngineState, rng_key: Array) -> Any:
        key, parameters = key_of_draws(state) if of_state else rng_key, state.algorithm.parameters
        drawn = density.sample(parameters, key, number)
        return (drawn, density.log_prob(parameters, drawn)) if with_density else drawn

    return Program(draw, rarely=True)
