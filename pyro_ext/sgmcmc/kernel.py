"""What the stochastic gradient MCMC kernels share: host verbs around one step of a dynamics.

A subclass fills in one hook, and may fill in two others:

``_move(dynamics, z, score, noise, step_size, warmup)``
    Positions after a step, and the dynamics' tensors.
``_init_dynamics(num_chains)``
    What the dynamics carries beside the positions, a dictionary of tensors (C, ...).
``_after_steps(state)``
    The state once the steps of a draw have been taken.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from jaxtyping import Bool, Float, Int
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.utils import _pytree as pytree

from ppl_ext.engines.judgement import Judgement
from ppl_ext.errors import ArgumentError
from ppl_ext.networks.random_module import watched
from ppl_ext.options import describe
from ppl_ext.sgmcmc import schedules
from ppl_ext.sgmcmc.energies import Energies
from ppl_ext.sgmcmc.heat import heat_by_site, scores_each
from ppl_ext.sgmcmc.kernels import Step, StochasticGradientShell
from ppl_ext.target.bounds import look_of
from ppl_ext.target.log_density import warn_of_nothing
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.replay import out_of_bounds_at
from pyro_ext.gradients import Full, GradientEstimator, default_estimator
from pyro_ext.sharding import Sharding
from pyro_ext.start import GUIDE_FORM, is_guide, started


class KernelState(NamedTuple):
    """State of C chains that are run as one.

    Parameters
    ----------
    z : tensor (C, D)
        Positions in unconstrained space.
    step : int
        Steps taken.
    dynamics : dict of str to tensor (C, ...)
        What the dynamics carries, such as the momentum; of ``MCLMC`` its ``Dynamics``.
    estimator : dict
        State of the score estimator.
    step_size : float
        Step size of the last step.
    potential_energy : tensor (C,)
        Estimate of the negative log density before the last step, from its rows.
    cycle : int
        Cycle of the step size that the draw belongs to, from 0; always 0 without cycles.
    diverging : bool tensor (C,)
        Whether a step since the last draw was not finite; such steps are not taken. Or whether it
        began where the density is not.
    num_diverging : int tensor (C,)
        Number of steps that were not finite.
    replicas : dict
        ``z`` (C, R - 1, D), positions of replicas at higher temperatures, and what their exchanges
        keep; empty without.
    """

    z: Float[Tensor, "C D"]
    step: int
    dynamics: Any
    estimator: dict[str, Any]
    step_size: float
    potential_energy: Float[Tensor, " C"]
    cycle: int
    diverging: Bool[Tensor, " C"]
    num_diverging: Int[Tensor, " C"]
    replicas: dict[str, Any]


class StochasticGradientKernel(StochasticGradientShell, MCMCKernel):
    estimator_class = GradientEstimator
    _sharding_class = Sharding
    _host = "Pyro"
    _is_guide = staticmethod(is_guide)
    _guide_form = GUIDE_FORM

    #: Draws come out in the supports of their sites: there is nothing for ``MCMC`` to transform.
    transforms: Mapping[str, Any] = {}
    #: What the last run said of its draws; None before.
    judgement: Judgement | None = None
    #: Whoever takes no warm-up takes draws on their way, which are not warned of.
    _warns_after_warmup = True

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | schedules.Schedule,
        *,
        evaluation: str = "graph",
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, step_size, **options)
        self._target_options |= {"evaluation": evaluation, "dtype": dtype}
        self._data: Any = None
        self._of_draws: tuple[str, ...] = ()
        self._state: KernelState | None = None
        self._start: Mapping[str, Tensor] | None = None
        self._pending: Mapping[str, Any] | None = None
        self._warmup_draws = 0
        self._draws = 0
        self._figures: dict[str, list[Any]] = {}
        self._site_heat: Float[np.ndarray, "C sites"] | None = None

    # -- hooks -------------------------------------------------------------------------------

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        """Tensors (C, ...) that the dynamics carries beside the positions."""
        return {}

    @abstractmethod
    def _move(
        self, dynamics: dict[str, Tensor], z: Tensor, step: Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Positions (C, D) after one step, and the dynamics' tensors."""

    def _init_replicas(self, z: Tensor) -> dict[str, Any]:
        """Replicas of chains at z (C, D); see :class:`KernelState`."""
        return {}

    def _after_steps(self, state: KernelState) -> KernelState:
        """The state once the steps of a draw have been taken."""
        return state

    # -- host verbs --------------------------------------------------------------------------

    @property
    def state(self) -> KernelState:
        """The state of the chains."""
        self.target  # noqa: B018 - tells what to do when there is none yet
        assert self._state is not None
        return self._state

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Check the model with these arguments, and start one chain.

        Raises
        ------
        ModelCheckError
            The model cannot be sampled.
        ArgumentError
            The arguments do not fit the model, or hold one batch alone.
        """
        self.setup_chains(1, warmup_steps, *args, **kwargs)

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """As :meth:`setup`, for chains that are run as one."""
        if self.sharding is not None:
            asked = digest_of_arguments([type(self).__name__, num_chains, warmup_steps])
            self.sharding.agree(
                {"arguments": digest_of_arguments((args, kwargs)), "options of the run": asked}
            )
        target = self._target_of(args, kwargs)
        self._data = data = target.bind(*args, **kwargs)
        estimator = default_estimator(target) if self._estimator is None else self._estimator
        self._check_not_one_batch(estimator, "pyro.plate")
        # Chains that share rows share their noise, and would agree without having found anything.
        single = num_chains * self.num_replicas == 1
        self._score_estimator = estimator if single else estimator.with_own_rows(target)
        self._generator = torch.Generator()
        # By the global generator, so that pyro.set_rng_seed decides on a run.
        seed = torch.randint(2**62, (1,))
        if self.sharding is not None:
            seed = self.sharding.of_first(seed)
            torch.set_rng_state(self.sharding.of_first(torch.get_rng_state()))
        self._generator.manual_seed(int(seed))
        schedules.check_first_step_size(self.step_size(0))
        self._warmup_draws, self._draws, self._figures = warmup_steps, 0, {"divergences": []}
        self._figures["potential_energy"], self._site_heat, self.judgement = [], None, None
        self._of_draws = ()
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._restore(pending, num_chains)
            return
        z = self._initial_positions(num_chains, data)
        self._state = KernelState(
            z=z,
            step=0,
            dynamics=self._init_dynamics(num_chains),
            estimator=self._score_estimator.init(target, data, self._generator),
            step_size=float(self.step_size(0)),
            potential_energy=torch.zeros(num_chains, dtype=target.dtype, device=target.device),
            cycle=0,
            diverging=torch.zeros(num_chains, dtype=torch.bool, device=target.device),
            num_diverging=torch.zeros(num_chains, dtype=torch.int64, device=target.device),
            replicas=self._init_replicas(z),
        )

    def _target_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LogDensity:
        """The target, made anew unless the model computes the same of arguments of this form."""
        signature = _signature(args, kwargs)
        known = self._signature == signature and self._target is not None
        if not known or not self._target.follows(self._target.bind(*args, **kwargs)):
            # MCMC switches validation off, which is where a model's faults get good messages.
            with pyro.validation_enabled(True), watched() as modules:
                self._target = LogDensity(self.model, args, dict(kwargs), **self._target_options)
            self._is_network = bool(modules)
            warn_of_nothing(self._target)
            self._signature = signature
        return self._target

    def _initial_positions(self, num_chains: int, data: Data) -> Tensor:
        target, layout = self.target, self.target.layout
        if self._start is None:
            found = started(target, self._generator, data, self.start)
            own = target if found is None else target.with_start(found)
            return own.initial_positions(num_chains, self._generator, data).detach().clone()
        start, self._start = self._start, None
        shapes = {name: tuple(value.shape) for name, value in start.items()}
        single = dict(layout.shapes)
        lead = {name: (num_chains, *layout.shapes[name]) for name in layout.names}
        if shapes not in (lead, single if num_chains == 1 else lead):
            raise ArgumentError(
                "Expected initial_params to hold unconstrained values, in MCMC with a leading "
                f"axis of chains, of shapes {single}, found {shapes}."
            )
        joined = layout.join({name: start[name].to(target.dtype) for name in layout.names})
        return joined.reshape(num_chains, layout.dim).detach().clone().to(target.device)

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The first chain's position, as draws are: latent sites in their supports."""
        return self._constrained()

    @initial_params.setter
    def initial_params(self, params: Mapping[str, Tensor]) -> None:
        """Latent sites in unconstrained space to start from."""
        self._start = params

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The next draw of the first chain: latent sites in their supports.

        The chain goes on from the kernel's own state; ``params`` is what the last draw was.
        """
        self.draw()
        return self._constrained()

    def draw(self) -> KernelState:
        """The state at the next draw of all chains."""
        state = self.state
        count = self._steps_to_next_draw(state.step)
        state = state._replace(
            cycle=self._cycle(state.step), diverging=torch.zeros_like(state.diverging)
        )
        with torch.no_grad():
            for _ in range(count):
                state = self._advance(state)
            state = self._after_steps(state)
        self._state = state
        if self._draws == self._warmup_draws and self._noisy:
            self._site_heat = self._measured_heat(state)
        if self._draws >= self._warmup_draws:
            self._record(state, self._draws - self._warmup_draws)
        self._draws += 1
        return state

    def _record(self, state: KernelState, number: int) -> None:
        if bool(state.diverging.any()):
            self._figures["divergences"].append((number, state.diverging.clone()))
        self._figures.setdefault("step_size", []).append(state.step_size)
        self._figures.setdefault("cycle", []).append(state.cycle)
        self._figures["potential_energy"].append(state.potential_energy)

    def judge(self) -> Judgement:
        """What the chains of the last run say of their draws.

        How far chains lie apart is of a run by :class:`pyro_ext.sgmcmc.MCMC` alone: the host's
        has them one after another.
        """
        none = np.zeros((1, len(self.target.layout.names)))
        heat = none if self._site_heat is None else self._site_heat
        return self._judgement(Energies.of(self._energies(), self._noisy), heat, self._of_draws)

    @property
    def _noisy(self) -> bool:
        return not isinstance(self._score_estimator, Full)

    def _measured_heat(self, state: KernelState) -> Float[np.ndarray, "C sites"]:
        """``heat_by_site`` where the chains are, by scores of other rows.

        Its random numbers are its own, so that chains go on as without it.
        """
        # From the run's seed, so that a run says the same of itself each time.
        generator = torch.Generator().manual_seed(self._generator.initial_seed())
        z, number = self._positions(state), scores_each(len(state.z))
        scores, before = [], copy.deepcopy(state.estimator)
        with torch.no_grad():
            for _ in range(number):
                estimate, before = self._score_estimator.estimate(
                    self.target, before, z, self._data, generator
                )
                scores.append(estimate.score[:: self.num_replicas])
            # Less the first: of what is nearly alike the sums of squares would cancel.
            off = torch.stack(scores) - scores[0]
            heat = self._heat(state.dynamics, state.step_size)
            slices = self.target.layout.slices
            found = heat_by_site(off.sum(0), off.square().sum(0), number, heat, slices)
        return torch.stack(found, -1).double().cpu().numpy()

    def _energies(self) -> Float[np.ndarray, "C S"]:
        """Energies of the draws after the warm-up that an exploring step does not go before."""
        energies, cycles = self._figures["potential_energy"], self._figures["cycle"]
        if not energies:
            return np.zeros((1, 0))
        # The first draw of a cycle comes after steps that explore.
        same = np.diff(cycles, prepend=cycles[0]) == 0
        return torch.stack(energies, 1).double().cpu().numpy()[:, same]

    def look_at(self, positions: Float[Tensor, "S C D"]) -> None:
        """Keep what the draws of all chains, flat and unconstrained, say against them."""
        rows = self._looked_at(positions.shape[1], len(positions))
        z = positions[rows].transpose(0, 1).double().cpu().numpy()
        look = look_of(out_of_bounds_at, self.target, self._data)
        self._of_draws = self._doubts(z, look)

    def cleanup(self) -> None:
        """Say at the end of a run what speaks against its draws; ``MCMC`` calls it."""
        state = self._state
        if state is None or self.judgement is not None:  # Pyro's own MCMC calls it twice.
            return
        broken, steps = int(state.num_diverging.sum()), state.step * len(state.num_diverging)
        self._warn_of_divergences(broken, steps)
        if not broken:
            marked = sum(int(chains.sum()) for _, chains in self._figures.get("divergences", []))
            schedules.warn_of_draws_without_density(type(self).__name__, marked)
        if self._figures.get("potential_energy"):
            self.judgement = self.judge()
            if self._warmup_draws or not self._warns_after_warmup:
                self.judgement.warn()

    def _warn_of_divergences(self, number: int, steps: int) -> None:
        schedules.warn_of_broken_steps(type(self).__name__, number, steps)

    def diagnostics(self, chain: int = 0) -> dict[str, Any]:
        """Figures of the draws of a chain after the warm-up.

        Returns
        -------
        dict
            ``divergences``: numbers of the draws before which a step was not finite, and so was not
            taken, or began where the density is not finite;
            ``step_size``, ``cycle`` and ``potential_energy``, the negative log density, of each
            draw.
        """
        figures = dict(self._figures)
        broken = [number for number, where in figures.get("divergences", []) if where[chain]]
        energies = [float(each[chain]) for each in figures.get("potential_energy", [])]
        return {**figures, "divergences": broken, "potential_energy": energies}

    def logging(self) -> OrderedDict[str, str]:
        """Step size, and steps that were not finite, for the progress bar."""
        state = self.state
        shown = OrderedDict([("step size", f"{state.step_size:.2e}")])
        if broken := int(state.num_diverging.sum()):
            shown["steps not finite"] = str(broken)
        return shown

    def values(self, z: Float[Tensor, "P D"]) -> dict[str, Tensor]:
        """Latent sites in their supports at positions."""
        return self.target.constrain(z, self._data)

    def _constrained(self) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.values(self.state.z[:1]).items()}

    # -- saving ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next draw needs, as tensors and plain values for ``torch.save``."""
        return {
            "kernel": type(self).__name__,
            "sites": dict(self.target.layout.shapes),
            "estimator": self._settings(),
            # SAGA writes into its table, and so would change what is saved.
            "state": copy.deepcopy(self.state._asdict()),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict` when ``MCMC.run`` is called next.

        Such a run continues the saved one to the last bit. Give it no warm-up.

        Raises
        ------
        ArgumentError
            The state is that of another kernel; from ``MCMC.run``, of another model, estimator or
            number of chains.
        """
        if not isinstance(state, Mapping) or state.get("kernel") != type(self).__name__:
            found = state.get("kernel") if isinstance(state, Mapping) else type(state).__name__
            raise ArgumentError(f"Expected a state of {type(self).__name__}, found {found}.")
        self._pending = state

    def _settings(self) -> str:
        """What a state depends on besides the sites and the chains."""
        return describe(self._score_estimator)

    def _restore(self, saved: Mapping[str, Any], num_chains: int) -> None:
        expected = {
            "sites": dict(self.target.layout.shapes),
            "estimator": self._settings(),
            "chains": num_chains,
        }
        found = {
            "sites": saved["sites"],
            "estimator": saved["estimator"],
            "chains": len(saved["state"]["z"]),
        }
        if found != expected:
            raise ArgumentError(f"Expected a saved state of {expected}, found {found}.")
        # The saved state stays as it is, so that another run may go on from it.
        self._state = KernelState(**copy.deepcopy(saved["state"]))
        self._generator.set_state(saved["generator"])

    # -- one step ----------------------------------------------------------------------------

    def _advance(self, state: KernelState) -> KernelState:
        target = self.target
        z, num_chains = self._positions(state), len(state.z)
        estimate, estimator = self._score_estimator.estimate(
            target, state.estimator, z, self._data, self._generator
        )
        noise = torch.randn(z.shape, generator=self._generator, dtype=z.dtype)
        temperature = torch.as_tensor(self._temperature(state.step), dtype=z.dtype)
        # By chain and replica, since replicas have temperatures of their own.
        noise.view(num_chains, -1, target.dim).mul_(temperature.sqrt())
        step_size = float(self.step_size(state.step))
        warmup = self._draws < self._warmup_draws
        step = Step(estimate.score, noise.to(z.device), step_size, warmup)
        moved, dynamics = self._move(state.dynamics, z, step)
        # The sum is not finite where a part is not.
        total = (moved.sum(-1) + estimate.score.sum(-1)).view(num_chains, -1).sum(-1)
        for tensor in dynamics.values():
            total = total + tensor.sum(-1)
        energies = -estimate.log_density(target.likelihood_temperature)[:: self.num_replicas]
        diverging, num_diverging = state.diverging, state.num_diverging
        # One look at the device for both.
        if not bool(torch.isfinite(total.sum() + energies.sum())):
            broken = ~torch.isfinite(total)
            # Replicas of a chain stay where they are together.
            moved = torch.where(broken.repeat_interleave(self.num_replicas)[:, None], z, moved)
            dynamics = {
                name: torch.where(broken[:, None], state.dynamics[name], tensor)
                for name, tensor in dynamics.items()
            }
            # Where the density is not finite a score may be, and leads back, but a draw is not.
            diverging = diverging | broken | ~torch.isfinite(energies)
            num_diverging = num_diverging + broken
        return self._with_positions(state, moved)._replace(
            step=state.step + 1,
            dynamics=dynamics,
            estimator=estimator,
            step_size=step_size,
            potential_energy=energies,
            diverging=diverging,
            num_diverging=num_diverging,
        )

    def _positions(self, state: KernelState) -> Float[Tensor, "P D"]:
        """Positions of all replicas of all chains, the replicas of a chain side by side."""
        if not state.replicas:
            return state.z
        return torch.cat([state.z[:, None], state.replicas["z"]], 1).flatten(0, 1)

    def _with_positions(self, state: KernelState, z: Float[Tensor, "P D"]) -> KernelState:
        if not state.replicas:
            return state._replace(z=z)
        by_chain = z.unflatten(0, (-1, self.num_replicas))
        replicas = state.replicas | {"z": by_chain[:, 1:]}
        return state._replace(z=by_chain[:, 0], replicas=replicas)


def _signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a target depends on: shapes and types of tensors, and all other values."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    forms = tuple(
        (tuple(leaf.shape), str(leaf.dtype), str(getattr(leaf, "device", "")))
        if hasattr(leaf, "shape")
        else repr(leaf)
        for leaf in leaves
    )
    return str(spec), forms
