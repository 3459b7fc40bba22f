"""What the engines that fit a guide share (``GuideEngine``).

The guide is any with a flat log density (:mod:`numpyro_ext.guides.flat_density`). The base sets
it up, draws from it, and knows how far a run has come. A subclass fills in ``_step`` and
``_prepare``, which gives the algorithm's state before the first step: a :class:`GuideState`, or
another named tuple that has ``parameters``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from numpyro.infer.autoguide import AutoGuide

from numpyro_ext.engine import Engine, EngineState
from numpyro_ext.errors import ArgumentError
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
)
from numpyro_ext.target import Data, LogDensity

# The default optimizer without its learning rate, which depends on the length of the run and so
# is known only when the run starts.
_ADAM = optax.scale_by_adam()
#: Learning rate of the default optimizer (Adam) at the start of a run.
LEARNING_RATE = 1e-2
#: Draws that ``get_samples`` returns unless told otherwise.
DRAWS = 1000


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


class GuideEngine(Engine):
    """Base of the engines that fit a guide with a flat log density.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoContinuous
        A NumPyro autoguide of the model, or the class, which is then called with the model.
    optim : optimizer, optional
        NumPyro or optax optimizer. Default, where the engine uses one: Adam with a learning rate
        that falls from 0.01 to 0 along a cosine over the run.
    num_samples : int, optional
        Draws S per step. None when the engine chooses by the guide, in ``_prepare``.
    total_steps : int, optional
        T when steps are taken with ``update``. ``run`` sets T to the steps taken so far plus its
        own, so that a run resumed for its remaining steps has the T of the uninterrupted one.
        Steps taken with ``update`` after a run has ended are outside it and have this T again,
        not the run's. While T is unknown, t/T is taken as 0.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.
    """

    allow_local_latents = False

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        num_samples: int | None = None,
        *,
        total_steps: int | None = None,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(
            model,
            optim,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            on_nonfinite=on_nonfinite,
        )
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            guide = guide(model)
        check_has_flat_density(guide)
        if num_samples is not None and num_samples < 1:
            raise ArgumentError(f"Expected num_samples >= 1, found {num_samples}.")
        if total_steps is not None and total_steps < 1:
            raise ArgumentError(f"Expected total_steps >= 1, found {total_steps}.")
        self.guide = guide
        self.num_samples = num_samples
        self.total_steps = total_steps
        self._density: FlatDensity | None = None

    # -- hooks of subclasses ------------------------------------------------------------------

    @abstractmethod
    def _prepare(self, density: FlatDensity, parameters: Parameters) -> Any:
        """Check the guide, now set up, and return the state before the first step."""

    # -- engine hooks -------------------------------------------------------------------------

    def _init_algorithm(self, target: LogDensity, rng_key: Array, data: Data) -> Any:
        density = flat_density(self.guide, rng_key, data.args, data.kwargs, layout=target.layout)
        state = self._prepare(density, density.initial_parameters())
        self._density = density
        return state

    def _get_params(self, target: LogDensity, state: EngineState, data: Data) -> dict[str, Any]:
        return self.density.write_back(state.algorithm.parameters)

    def _settings(self) -> dict[str, str]:
        return {"guide": type(self.guide).__name__}

    def _draw(
        self,
        target: LogDensity,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        if rng_key is None:
            # Not one of the keys that the steps will use.
            rng_key = random.fold_in(state.rng_key, 1)
        number = DRAWS if num_samples is None else num_samples
        return self.density.sample(state.algorithm.parameters, rng_key, number)

    # -- the fit ------------------------------------------------------------------------------

    def sample_statistics(self, state: EngineState, positions: Array) -> dict[str, Array]:
        """Log density of the guide at flat positions (S, D), for ``to_arviz``."""
        return {"log_q": self.density.log_prob(state.algorithm.parameters, positions)}

    @property
    def density(self) -> FlatDensity:
        """The guide as a density over the flat unconstrained vector."""
        self.target  # noqa: B018 - raises before the model's arguments are known
        assert self._density is not None
        return self._density

    # -- for the steps of subclasses ----------------------------------------------------------

    def _total(self, state: EngineState) -> Array:
        """T of the run; outside a run ``total_steps``, 0 when that is not given."""
        # A state keeps the horizon of its run when the run is over.
        return jnp.where(state.step < state.horizon, state.horizon, self.total_steps or 0)

    def _progress(self, state: EngineState) -> Array:
        """Fraction t/T of the run that is done."""
        total = self._total(state)
        dtype = jnp.result_type(float)
        fraction = state.step.astype(dtype) / jnp.maximum(total, 1).astype(dtype)
        return jnp.where(total > 0, jnp.minimum(fraction, 1.0), 0.0)

    def _start_optimizer(self, parameters: Parameters) -> Any:
        """State of the optimizer that ``_descend`` uses: the given one or the default."""
        # The host's optimizers keep the parameters in their state.
        return _ADAM.init(parameters) if self.optim is None else self.optim.init(parameters)

    def _descend(
        self,
        state: EngineState,
        objective: Callable[[Parameters], tuple[Array, Parameters]],
        num_steps: int = 1,
    ) -> tuple[Parameters, Any]:
        """Take optimizer steps down an objective, a function to a value and a gradient.

        Returns the new parameters and the new state of the optimizer.
        """
        rate = LEARNING_RATE * 0.5 * (1.0 + jnp.cos(jnp.pi * self._progress(state)))

        def inner(_: int, carry: tuple[Parameters, Any]) -> tuple[Parameters, Any]:
            parameters, optimizer = carry
            value, gradient = objective(parameters)
            if self.optim is None:
                step, optimizer = _ADAM.update(gradient, optimizer)
                return jax.tree.map(lambda x, u: x - rate * u, parameters, step), optimizer
            optimizer = self.optim.update(gradient, optimizer, value)
            return self.optim.get_params(optimizer), optimizer

        carry = (state.algorithm.parameters, state.algorithm.optimizer)
        return lax.fori_loop(0, num_steps, inner, carry)
