"""Fits of guides without a density (``SteinDiscrepancyVI``); see :mod:`ppl_ext.implicit.engine`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ppl_ext.engines.base import draws_asked
from ppl_ext.implicit.engine import LEARNING_RATE
from ppl_ext.implicit.engine import SteinDiscrepancyVI as Shell
from ppl_ext.implicit.noise import POSITIONS, Normals, normals_of_positions, normals_of_start
from ppl_ext.implicit.objective import stein_discrepancy
from ppl_ext.implicit.samplers import Context, Network
from ppl_ext.running import state_files
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.differentiable import DifferentiableTarget
from pyro_ext.descent import check_shapes, checked_optimizer, descend, run_length
from pyro_ext.engine import Engine, Plan, Update
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import value_and_gradient
from pyro_ext.networks.modules import take_apart
from pyro_ext.optim import EngineOptimizer


class SamplerState(NamedTuple):
    """What the next step needs.

    Parameters
    ----------
    optimizer : EngineOptimizer
        It holds the sampler's parameters, and writes to them.
    normals : dict of tensors
        The noise that the sampler begins with, which stays as it is.
    """

    optimizer: EngineOptimizer
    normals: Normals


@dataclass(frozen=True)
class SamplerPlan(Plan):
    """What is decided when the engine meets the model's arguments.

    Parameters
    ----------
    networks : tuple of Network
        The sampler's modules, apart.
    differentiable : DifferentiableTarget
        The target, with scores that have derivatives.
    num_samples : int
        Draws S per step.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the length of the gradient.
    """

    networks: tuple[Network, ...] = field(repr=False, compare=False)
    differentiable: Any = field(repr=False, compare=False)
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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.SteinDiscrepancyVI(model, px.PushForward((16,)), seed=0)
    >>> result = engine.run(200, y)
    >>> print(f"{engine.get_samples()['mean'].mean():.0f}")
    2
    """

    _host_optimizer = staticmethod(checked_optimizer)

    # -- engine hooks --------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> SamplerPlan:
        found = super()._plan(target, generator, data)
        networks = tuple(Network.of(*take_apart(module)) for module in self.sampler.modules)
        options = self.num_samples, LEARNING_RATE, self.clip_norm
        differentiable = DifferentiableTarget(target)
        plan = SamplerPlan(target, found.estimator, networks, differentiable, *options)
        return self._checked(plan, data)

    def _initialize(self, plan: SamplerPlan, data: Data) -> SamplerState:
        target, sampler = plan.target, self.sampler
        shapes = sampler.parameter_shapes(target.dim)
        parameters = sampler.initial(self._noise(plan, shapes, self._generator))
        for network in plan.networks:
            parameters |= {
                # The optimizer writes into the parameters. The user's module stays as it was given.
                name: value.to(target.device, target.dtype, copy=True)
                for name, value in network.initial.items()
            }
        if target.start is None:
            positions = target.initial_positions(POSITIONS, self._generator, data).detach()
            normals = normals_of_positions(torch, positions, sampler.spread)
        else:
            normals = {
                name: torch.as_tensor(value, dtype=target.dtype, device=target.device)
                for name, value in normals_of_start(target.start.start, sampler.spread).items()
            }

        def default(tensors: list[Tensor]) -> torch.optim.Optimizer:
            return torch.optim.Adam(tensors, lr=plan.learning_rate)

        optim = default if self.optim is None else self.optim
        return SamplerState(EngineOptimizer(optim, parameters, default=default), normals)

    def _algorithm_state(self, state: SamplerState) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "optimizer": state.optimizer.state_dict(),
            "normals": dict(state.normals),
            "total_steps": run_length(self),
        }

    def _load_algorithm_state(
        self, plan: SamplerPlan, state: SamplerState, saved: dict[str, Any]
    ) -> SamplerState:
        present = {"parameters": state.optimizer.parameters, "normals": state.normals}
        for kind, tensors in present.items():
            check_shapes("sampler", kind, saved[kind], tensors)
            # From a saved NaN every further step would be NaN.
            finite = {name: torch.isfinite(value).all() for name, value in saved[kind].items()}
            state_files.check_finite(finite)
        with torch.no_grad():
            for name, value in state.optimizer.parameters.items():
                value.copy_(saved["parameters"][name])
        state.optimizer.load_state_dict(saved["optimizer"])
        return state._replace(normals=saved["normals"])

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Copy of the sampler's present parameters."""
        self.target  # noqa: B018 - tells what to do when there are none yet
        found = self._state.optimizer.parameters
        return {name: value.detach().clone() for name, value in found.items()}

    def _update(self, plan: SamplerPlan, state: SamplerState, data: Data) -> Update:
        found: Any = None

        def scores(memory: Any, z: Tensor) -> tuple[Tensor, Any]:
            return self._score(z, data, plan.differentiable).score, memory

        def discrepancy(leaves: dict[str, Tensor]) -> Tensor:
            nonlocal found
            z = self._drawn(plan, state, leaves, plan.num_samples, self._generator, scores)
            found = self._score(z, data, plan.differentiable)
            scales = z.detach().std(0, correction=0)
            return stein_discrepancy(TensorFunctions, z, found.score, scales, self.lengths)

        loss, gradient = value_and_gradient(discrepancy, state.optimizer.parameters)
        log_p = float(found.log_density(plan.target.likelihood_temperature).mean())
        value = float(loss)
        finite = math.isfinite(value) and math.isfinite(log_p)
        if finite:
            finite = descend(self, plan, state.optimizer, lambda _: (loss, gradient))
        return Update(value, {"log_p": log_p}, finite)

    def _drawn(
        self,
        plan: SamplerPlan,
        state: SamplerState,
        parameters: dict[str, Tensor],
        number: int,
        generator: Generator,
        scores: Any,
        memory: Any = None,
    ) -> Float[Tensor, "S D"]:
        context = Context(TensorFunctions, state.normals, scores, memory, plan.networks)
        shapes = self.sampler.noise_shapes(number, plan.target.dim)
        noise = self._noise(plan, shapes, generator)
        return self.sampler.draw(context, parameters, noise)[0]

    def _noise(
        self, plan: SamplerPlan, shapes: Mapping[str, tuple[int, ...]], generator: Generator
    ) -> dict[str, Tensor]:
        target = plan.target
        return {
            name: torch.randn(shape, generator=generator, dtype=target.dtype).to(target.device)
            for name, shape in shapes.items()
        }

    @torch.no_grad()
    def _draw(self, plan: SamplerPlan, state: SamplerState, num_samples: int | None) -> Tensor:
        number = draws_asked(num_samples)
        data = self.data

        # Asking for draws must not change how a run goes on.
        def scores(memory: Any, z: Tensor) -> tuple[Tensor, Any]:
            found, memory = plan.estimator.estimate(plan.target, memory, z, data, self._draws)
            return found.score, memory

        own = {name: value.detach() for name, value in state.optimizer.parameters.items()}
        return self._drawn(plan, state, own, number, self._draws, scores, self._estimator_state)
