"""Fits of guides without a density (``SteinDiscrepancyVI``); see :mod:`ppl_ext.implicit.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.descent import descend, start_optimizer
from numpyro_ext.draws import key_or, standard_normal
from numpyro_ext.engine import Engine, EngineState, Plan, key_of_draws
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.networks.modules import take_apart
from numpyro_ext.optim import as_optimizer
from numpyro_ext.programs import Program
from ppl_ext.engines.base import draws_asked
from ppl_ext.implicit.engine import LEARNING_RATE
from ppl_ext.implicit.engine import SteinDiscrepancyVI as Shell
from ppl_ext.implicit.noise import POSITIONS, Normals, normals_of_positions, normals_of_start
from ppl_ext.implicit.objective import stein_discrepancy
from ppl_ext.implicit.samplers import Context, Network


class SamplerState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        The sampler's.
    optimizer : pytree
        State of the optimizer.
    normals : dict of arrays
        The noise that the sampler begins with, which stays as it is.
    """

    parameters: dict[str, Array]
    optimizer: Any
    normals: Normals


@dataclass(frozen=True)
class SamplerPlan(Plan):
    """What is decided when the engine meets the model's arguments.

    Parameters
    ----------
    networks : tuple of Network
        The sampler's modules, apart.
    optim : optimizer or None
    num_samples : int
        Draws S per step.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the length of the gradient.
    """

    networks: tuple[Network, ...] = field(repr=False, compare=False)
    optim: Any = field(repr=False, compare=False)
    num_samples: int
    learning_rate: float
    clip_norm: float | None


class SteinDiscrepancyVI(Shell, Engine):
    """A guide without a density: draws of a sampler, fitted by the kernelised Stein discrepancy.

    The sampler turns noise into draws: a network, a Normal whose mean and scale are outputs of a
    network, or a few Langevin steps. The density of its draws is not known, and not asked for. A
    step of the fit draws S times, and moves the sampler's parameters down the U-statistic of the
    squared discrepancy, by its gradient through draws and scores.

    Parameters
    ----------
    model : callable
        The host's model, used as it is; it is differentiated twice.
    sampler : Sampler, optional
        ``PushForward``, ``SemiImplicit`` or ``UnrolledSGLD``. Default: ``PushForward()``.
    optim : optimizer, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's. Default: Adam with a
        learning rate that falls from 0.005 to 0 along a cosine over the run.
    num_samples : int
        Draws S per step.
    lengths : sequence of float
        Lengths of the inverse multiquadric kernels, in standard deviations of the draws.
    clip_norm : float, optional
        The gradient in all parameters, as one vector, is shortened to this length where it is
        longer. None: not.
    total_steps : int, optional
        T when steps are taken one by one; ``run`` sets its own.
    **options
        Options of every engine; see the package's ``Engine``.

    Notes
    -----
    The loss is the U-statistic: it is near zero at the end and may be below.

    The discrepancy does not see how much mass modes that lie far apart have, as little as ``ksd``
    does; and draws that come near no part of the posterior say nothing about it. Where there are
    modes, and what each weighs, comes from the start. It is also a weak judge of tails: draws far
    out are few and have long scores, so that networks stay too narrow along tails for a long time.
    ``check`` tells.

    Products of two scores enter it, so that the noise of a minibatch, which the draws share, adds
    its variance; the engine warns.

    References
    ----------
    Q. Liu, J. Lee and M. Jordan, "A kernelized Stein discrepancy for goodness-of-fit tests", ICML
    2016, https://arxiv.org/abs/1602.03253; T. Hu et al., "Stein neural sampler", 2018,
    https://arxiv.org/abs/1810.03545; Z. Cheng et al., "Kernel semi-implicit variational inference",
    ICML 2024, https://arxiv.org/abs/2405.18997.

    Raises
    ------
    ArgumentError
        An option is out of range, a module is none of the framework's or has outputs of another
        number, or the estimator keeps scores, which have no derivative.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> engine = nx.SteinDiscrepancyVI(model, nx.PushForward((16,)))
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> print(f"{engine.get_samples(result.state)['mean'].mean():.0f}")
    2
    """

    _positions_option = "num_samples"

    @staticmethod
    def _host_optimizer(optim: Any) -> Any:
        return None if optim is None else as_optimizer(optim)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> SamplerPlan:
        found = super()._plan(target, rng_key, data)
        modules = self.sampler.modules
        networks = tuple(Network.of(*take_apart(module, None, None)) for module in modules)
        options = self.num_samples, LEARNING_RATE, self.clip_norm
        plan = SamplerPlan(target, found.estimator, networks, self.optim, *options)
        return self._checked(plan, data)

    def _start(self, plan: SamplerPlan, rng_key: Array, data: Data) -> tuple[Any, Normals]:
        target, sampler = plan.target, self.sampler
        shapes = sampler.parameter_shapes(target.dim)

        def drawn(rng_key: Array) -> tuple[dict[str, Array], Array]:
            parameter_key, position_key = random.split(rng_key)
            return sampler.initial(_noise(parameter_key, shapes, target.dtype)), position_key

        parameters, position_key = Program(drawn, rarely=True)(rng_key)
        for network in plan.networks:
            parameters |= {
                name: jnp.asarray(value, target.dtype) for name, value in network.initial.items()
            }
        if target.start is None:
            positions = target.initial_positions(POSITIONS, position_key, data)
            return parameters, normals_of_positions(jnp, positions, sampler.spread)
        normals = normals_of_start(target.start.start, sampler.spread)
        return parameters, {
            name: jnp.asarray(value, target.dtype) for name, value in normals.items()
        }

    def _init_algorithm(
        self, plan: SamplerPlan, start: tuple[Any, Normals], data: Data
    ) -> SamplerState:
        parameters, normals = start
        return SamplerState(parameters, start_optimizer(plan, parameters), normals)

    def _num_positions(self, plan: SamplerPlan) -> int:
        return plan.num_samples

    def _get_params(self, plan: SamplerPlan, state: EngineState, data: Data) -> dict[str, Any]:
        return dict(state.algorithm.parameters)

    def _step(
        self, plan: SamplerPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        rng_key, key = random.split(state.rng_key)
        target = plan.target

        def value(parameters: dict[str, Array]) -> tuple[Array, Any]:
            z, memory = self._drawn(plan, state, parameters, key, plan.num_samples, data)
            found, memory = plan.estimator.estimate(target, memory, z, data)
            scales = jax.lax.stop_gradient(z.std(0))
            loss = stein_discrepancy(JaxFunctions, z, found.score, scales, self.lengths)
            log_p = found.log_density(target.likelihood_temperature).mean()
            return loss, (log_p, memory)

        differentiated = jax.value_and_grad(value, has_aux=True)
        (loss, (log_p, estimator)), gradient = differentiated(state.algorithm.parameters)
        parameters, optimizer = descend(self, plan, state, lambda parameters: (loss, gradient))
        algorithm = state.algorithm._replace(parameters=parameters, optimizer=optimizer)
        state = state._replace(algorithm=algorithm, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": log_p}

    def _drawn(
        self,
        plan: SamplerPlan,
        state: EngineState,
        parameters: dict[str, Array],
        rng_key: Array,
        number: int,
        data: Data,
    ) -> tuple[Float[Array, "S D"], Any]:
        """Draws, and what the estimator remembers then."""

        def scores(memory: Any, z: Array) -> tuple[Array, Any]:
            found, memory = plan.estimator.estimate(plan.target, memory, z, data)
            return found.score, memory

        normals = state.algorithm.normals
        context = Context(JaxFunctions, normals, scores, state.estimator, plan.networks)
        shapes = self.sampler.noise_shapes(number, plan.target.dim)
        noise = _noise(rng_key, shapes, plan.target.dtype)
        return self.sampler.draw(context, parameters, noise)

    def _draw(
        self,
        plan: SamplerPlan,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        number = draws_asked(num_samples)

        def draw(state: EngineState, key: Array, data: Data) -> Array:
            return self._drawn(plan, state, state.algorithm.parameters, key, number, data)[0]

        key = key_or(rng_key, key_of_draws(state))
        # The text of the place in a loader changes its length from state to state. With it the
        # program would be compiled again.
        state = state._replace(batches=None)
        return Program(draw, rarely=True)(state, key, self.data)


def _noise(rng_key: Array, shapes: Mapping[str, tuple[int, ...]], dtype: Any) -> dict[str, Array]:
    keys = random.split(rng_key, max(len(shapes), 1))
    return {
        name: standard_normal(key, shape, dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
