"""What the stochastic gradient MCMC kernels share: host verbs around one step of a dynamics.

A subclass fills in one hook, and may fill in two others, all traceable and without side effects:

``_move(dynamics, z, score, noise, step_size, step, warmup)``
    Positions after a step, and the dynamics' arrays.
``_init_dynamics(num_chains, dim, dtype)``
    What the dynamics carries beside the positions, arrays of shape (C, ...).
``_after_steps(state, data, single)``
    The state once the steps of a draw have been taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, Int
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.replay import out_of_bounds_at
from numpyro_ext.gradients import Full, GradientEstimator, default_estimator
from numpyro_ext.programs import concretely
from numpyro_ext.sharding import Sharding
from numpyro_ext.start import GIVEN, is_given, started, without_engine
from ppl_ext.engines.judgement import Judgement
from ppl_ext.errors import ArgumentError
from ppl_ext.networks.random_module import watched
from ppl_ext.sgmcmc.energies import Energies
from ppl_ext.sgmcmc.heat import LET_PASS, heat_by_site, scores_each
from ppl_ext.sgmcmc.kernels import Cycles, Step, StochasticGradientShell
from ppl_ext.sgmcmc.schedules import check_first_step_size, warn_of_first_broken_step
from ppl_ext.target.bounds import look_of
from ppl_ext.target.log_density import warn_of_nothing


class KernelState(NamedTuple):
    """State of a chain, or of C chains that are run as one.

    Parameters
    ----------
    z : dict of str to array
        Latent sites in unconstrained space.
    step : int array
        Steps taken.
    num_warmup : int array
        Draws of the warm-up.
    dynamics : pytree
        What the dynamics carries, such as the momentum.
    estimator : pytree
        State of the score estimator.
    step_size : array () or (C,)
        Step size of the last step.
    potential_energy : array () or (C,)
        Estimate of the negative log density before the last step, from its rows.
    cycle : int array () or (C,)
        Cycle of the step size that the draw belongs to, from 0; always 0 without cycles.
    diverging : bool array () or (C,)
        Whether a step since the last draw was not finite; such steps are not taken. Or whether it
        began where the density is not.
    num_diverging : int array () or (C,)
        Number of steps that were not finite.
    energies : Energies
        Sums over the potential energies of the draws after the warm-up.
    heat : array (sites,) or (C, sites)
        What the noise of minibatches adds to the variance of each site, relative to it; 0 during
        the warm-up and for exact scores.
    replicas : dict
        ``z`` (C, R - 1, D), positions of replicas at higher temperatures, and what their exchanges
        keep; empty without.
    rng_key : array
        Key, or C keys.
    """

    z: dict[str, Array]
    step: Int[Array, "*C"]
    num_warmup: Int[Array, "*C"]
    dynamics: Any
    estimator: Any
    step_size: Float[Array, "*C"]
    potential_energy: Float[Array, "*C"]
    cycle: Int[Array, "*C"]
    diverging: Bool[Array, "*C"]
    num_diverging: Int[Array, "*C"]
    energies: Energies
    heat: Float[Array, "*C sites"]
    replicas: dict[str, Any]
    rng_key: Array


class StochasticGradientKernel(StochasticGradientShell, MCMCKernel):
    estimator_class = GradientEstimator
    _host = "NumPyro"
    _is_guide = staticmethod(is_given)
    _guide_form = GIVEN
    _sharding_class = Sharding

    #: What was said of these chains.
    _told: frozenset[str] = frozenset()

    # -- hooks --------------------------------------------------------------------------------

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        """Arrays (C, ...) that the dynamics carries beside the positions."""
        return ()

    @abstractmethod
    def _move(self, dynamics: Any, z: Array, step: Step) -> tuple[Array, Any]:
        """Positions (C, D) after one step, and the dynamics' arrays."""

    def _init_replicas(self, z: Array, data: Data, key: Array) -> dict[str, Any]:
        """Replicas of chains at z (C, D); see :class:`KernelState`."""
        return {}

    def _after_steps(self, state: KernelState, data: Data, single: bool) -> KernelState:
        """The state once the steps of a draw have been taken."""
        return state

    # -- host verbs ---------------------------------------------------------------------------

    @property
    def sample_field(self) -> str:
        """Field of the state that holds the draw."""
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that ``MCMC`` collects unless told otherwise."""
        return ("z", "diverging", "cycle") if isinstance(self, Cycles) else ("z", "diverging")

    def _estimator_for(self, num_chains: int) -> GradientEstimator:
        """The score estimator for so many chains that are run as one."""
        target = self.target
        found = default_estimator(target) if self._estimator is None else self._estimator
        return found if num_chains == 1 else found.with_own_rows(target)

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Mapping[str, Any] | None,
        model_args: tuple[Any, ...],
        model_kwargs: Mapping[str, Any] | None,
    ) -> KernelState:
        """State before the first step.

        Parameters
        ----------
        rng_key : array
            One key, or C keys for chains that are run as one.
        num_warmup : int
            Draws of the warm-up.
        init_params : mapping of str to array, optional
            Latent sites in unconstrained space to start from, with a leading axis of chains when
            there are several keys. Default: drawn by the init strategy.
        model_args, model_kwargs
            Arguments of the model.

        Raises
        ------
        ModelCheckError
            The model cannot be sampled.
        ArgumentError
            The arguments or ``init_params`` do not fit the model, or hold one batch alone.
        """
        self._told = frozenset()
        single = is_prng_key(rng_key)
        keys = rng_key[None] if single else rng_key
        num_chains = keys.shape[0]
        if self.sharding is not None:
            self.sharding.check_positions(num_chains, "num_chains of chain_method='vectorized'")
        # Keys may be traced (chains in parallel); what is learnt about the model must not be.
        with concretely():
            check_first_step_size(self.step_size(0))
            self._set_up(model_args, dict(model_kwargs or {}))
        target = self.target
        data = target.bind(*model_args, **dict(model_kwargs or {}))
        if self._estimator is None:
            self._check_not_one_batch(
                self._estimator_for(1),
                "numpyro.plate",
                " If you call kernel.sample with new batches yourself, say estimator=Full().",
            )
        # Keys for the positions (C,), for the estimator (one), and for the chains (C,).
        three = jax.vmap(lambda key: random.split(key, 3))(keys)
        position_keys, estimator_key, chain_keys = three[:, 0], three[0, 1], three[:, 2]
        if init_params is None:
            z = self._first_positions(position_keys, data)
        else:
            z = self._flat(self._check_initial(init_params, num_chains, single), num_chains)
        positions = num_chains * self.num_replicas
        estimator = self._estimator_for(positions)
        chains = () if single else (num_chains,)
        return KernelState(
            z=self._sites(z, single),
            step=jnp.zeros((), jnp.int32),
            num_warmup=jnp.asarray(num_warmup, jnp.int32),
            dynamics=self._init_dynamics(num_chains, target.dim, target.dtype),
            estimator=estimator.init(target, data, estimator_key, positions),
            step_size=jnp.full(chains, self.step_size(jnp.zeros((), jnp.int32)), target.dtype),
            potential_energy=jnp.zeros(chains, target.dtype),
            cycle=jnp.zeros(chains, jnp.int32),
            diverging=jnp.zeros(chains, bool),
            num_diverging=jnp.zeros(chains, jnp.int32),
            energies=Energies.none(jnp.zeros(chains, target.dtype)),
            heat=jnp.zeros((*chains, len(target.layout.names)), target.dtype),
            replicas=self._init_replicas(z, data, random.fold_in(estimator_key, 1)),
            rng_key=chain_keys[0] if single else chain_keys,
        )

    def _first_positions(self, keys: Array, data: Data) -> Float[Array, "C D"]:
        """Where chains with these keys start."""
        target = self.target
        if self.start is not None:
            found = started(target, keys[0], data, without_engine(self.start))
            if found is not None:
                # A single position is the start's mean. Chains that the host runs one after another
                # would all begin there, so two are drawn at least.
                number = max(2, len(keys))
                z = target.with_start(found).initial_positions(number, keys[0], data)
                return z[: len(keys)]
        return jnp.concatenate(
            [target.initial_positions(1, keys[c], data) for c in range(len(keys))]
        )

    def sample(
        self, state: KernelState, model_args: tuple[Any, ...], model_kwargs: Mapping[str, Any]
    ) -> KernelState:
        """The state at the next draw."""
        data = self.target.bind(*model_args, **dict(model_kwargs or {}))
        single = is_prng_key(state.rng_key)
        # A number of Python where it is always the same, and else an array, as for cycles.
        count = self._steps_to_next_draw(state.step)
        cycle = state.cycle
        state = state._replace(
            cycle=jnp.broadcast_to(self._cycle(state.step), cycle.shape),
            diverging=jnp.zeros_like(state.diverging),
        )
        if isinstance(count, int) and count == 1:
            state = self._advance(state, data, single)
        else:
            state = lax.fori_loop(
                0, count, lambda _, state: self._advance(state, data, single), state
            )
        before = state.energies
        counts = (state.cycle == cycle) & (before.seen >= state.num_warmup)
        noisy = not isinstance(self._estimator_for(1), Full)
        # An energy that does not count may be infinite, and zero times that is not a number.
        energy = jnp.where(counts, state.potential_energy, before.last)
        energies = before.after(energy, state.num_warmup, counts, noisy)
        first, heat = jnp.any(before.seen == state.num_warmup), state.heat
        if noisy:
            measured = partial(self._measured_heat, state, data, single)
            heat = lax.cond(first, measured, lambda: state.heat)
        state = state._replace(energies=energies, heat=heat)
        if self.sharding is None:
            # A draw waits for the host only where there is something to tell; under vmap, which
            # computes both branches, at each draw.
            dim = self.target.dim
            broken = state.diverging.any()
            hot = first & jnp.any(heat > LET_PASS)
            # Whoever takes no warm-up takes draws on their way, or of targets that change.
            doubtful = hot | (energies.beyond(dim) & ~before.beyond(dim)).any()
            doubtful &= jnp.any(state.num_warmup > 0)
            told = broken, doubtful, state.step, energies, heat
            lax.cond(broken | doubtful, lambda: jax.debug.callback(self._tell, *told), lambda: None)
        return self._after_steps(state, data, single)

    def _measured_heat(self, state: KernelState, data: Data, single: bool) -> Array:
        """``heat_by_site`` where the chains are, by scores of other rows."""
        num_chains = 1 if single else len(state.rng_key)
        z, every = self._positions(state, num_chains), self.num_replicas
        estimator, number = self._estimator_for(len(z)), scores_each(num_chains)

        def score(before: Any) -> tuple[Array, Any]:
            estimate, after = estimator.estimate(self.target, before, z, data)
            # What goes round a loop keeps its types.
            after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before)
            return estimate.score[::every], after

        def add(_: int, sums: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
            total, squares, before = sums
            found, after = score(before)
            return total + found - first, squares + (found - first) ** 2, after

        first, following = score(state.estimator)
        zeros = jnp.zeros_like(first)
        total, squares, _ = lax.fori_loop(1, number, add, (zeros, zeros, following))
        heat = self._heat(state.dynamics, jnp.ravel(state.step_size)[0])
        slices = self.target.layout.slices
        found = jnp.stack(heat_by_site(total, squares, number, heat, slices), -1)
        return found[0] if single else found

    def _tell(
        self, broken: bool, doubtful: bool, step: int, energies: Energies, heat: Array
    ) -> None:
        """Say once what speaks against draws: the host's ``MCMC`` asks its kernel for nothing."""
        if broken and "broken" not in self._told:
            self._told |= {"broken"}
            warn_of_first_broken_step(type(self).__name__, int(step))
        if doubtful:
            found = self._judgement(energies, heat)
            # Figures change from draw to draw: a doubt is new where there are more than before.
            doubts = f"{len(found.reasons)} doubts"
            if doubts not in self._told:
                self._told |= {doubts}
                found.warn()

    def judge(self, mcmc: Any) -> Judgement:
        """What the chains of a run say of its draws.

        Parameters
        ----------
        mcmc : numpyro.infer.MCMC
            Whose kernel this is, after ``run``.
        """
        state = mcmc.last_state
        return self._judgement(state.energies, state.heat, self._of_draws(mcmc))

    def _of_draws(self, mcmc: Any) -> tuple[str, ...]:
        """What the draws of a run say against its chains."""
        if mcmc.postprocess_fn is not None:  # They are what the user made of them.
            return ()
        draws = mcmc.get_samples(group_by_chain=True)
        names = self.target.layout.names
        num_chains, number = draws[names[0]].shape[:2]
        rows = self._looked_at(num_chains, number)
        if not len(rows):
            return ()
        data = self.target.bind(*mcmc._args, **mcmc._kwargs).on_device()
        sites = {name: draws[name][:, rows].reshape(-1, *draws[name].shape[2:]) for name in names}
        z = np.asarray(self.target.unconstrain(sites, data), np.float64)
        look = look_of(out_of_bounds_at, self.target, data)
        return self._doubts(z.reshape(num_chains, len(rows), -1), look)

    def postprocess_fn(
        self, model_args: tuple[Any, ...], model_kwargs: Mapping[str, Any] | None
    ) -> Callable[[dict[str, Array]], dict[str, Array]]:
        """Function from unconstrained sites to sites in their supports, and deterministic ones."""
        target = self.target
        data = target.bind(*model_args, **dict(model_kwargs or {})).on_device()

        def constrain(z: dict[str, Array]) -> dict[str, Array]:
            position = target.layout.join(z)
            values = target.constrain(position[None], data)
            computed = target.deterministic(position, data)
            return computed | {name: value[0] for name, value in values.items()}

        return constrain

    def get_diagnostics_str(self, state: KernelState) -> str:
        """Step size, and steps that were not finite, for the progress bar."""
        text = f"step size {float(state.step_size):.2e}"
        broken = int(state.num_diverging)
        return f"{text}, {broken} steps not finite" if broken else text

    # -- one step -----------------------------------------------------------------------------

    def _advance(self, state: KernelState, data: Data, single: bool) -> KernelState:
        target = self.target
        keys = state.rng_key[None] if single else state.rng_key
        num_chains = keys.shape[0]
        z = self._positions(state, num_chains)
        estimate, estimator = self._estimator_for(len(z)).estimate(target, state.estimator, z, data)
        # One key for the next step and one for this one's noise, of each chain.
        both = jax.vmap(random.split)(keys)
        shape = (self.num_replicas, target.dim)
        noise = jax.vmap(lambda key: random.normal(key, shape, z.dtype))(both[:, 1])
        noise = noise * jnp.sqrt(jnp.asarray(self._temperature(state.step), z.dtype))
        step_size = jnp.asarray(self.step_size(state.step), z.dtype)
        warmup = state.step < state.num_warmup
        step = Step(estimate.score, noise.reshape(z.shape), step_size, warmup)
        moved, dynamics = self._move(state.dynamics, z, step)
        # The sum is not finite where a part is not.
        total = (moved + estimate.score).reshape(num_chains, -1).sum(-1)
        finite = jnp.isfinite(total)
        for leaf in jax.tree.leaves(dynamics):
            finite &= jnp.isfinite(leaf.sum(-1))
        chains = () if single else (num_chains,)
        broken = (~finite).reshape(chains)
        # Replicas of a chain stay where they are together.
        taken = jnp.repeat(finite, self.num_replicas)[:, None]
        energies = -estimate.log_density(target.likelihood_temperature)
        of_draws = energies[:: self.num_replicas].reshape(chains)
        # Where values overflow a score may be finite, and leads back, but a draw is not.
        nowhere = ~jnp.isfinite(of_draws)
        state = self._with_positions(state, jnp.where(taken, moved, z), single)
        return state._replace(
            step=state.step + 1,
            dynamics=jax.tree.map(
                lambda new, old: jnp.where(finite[:, None], new, old), dynamics, state.dynamics
            ),
            estimator=jax.tree.map(
                lambda new, old: jnp.asarray(new, old.dtype), estimator, state.estimator
            ),
            step_size=jnp.broadcast_to(step_size, chains),
            potential_energy=of_draws,
            diverging=state.diverging | broken | nowhere,
            num_diverging=state.num_diverging + broken,
            rng_key=both[0, 0] if single else both[:, 0],
        )

    # -- set up -------------------------------------------------------------------------------

    def _set_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        data = Data(args, kwargs)
        signature = data.signature()
        if (
            self._target is not None
            and not self._target.held
            and self._signature == signature
            and self._target.follows(data)
        ):
            return
        options = {"engine": type(self).__name__, **self._target_options}
        with watched() as modules:
            self._target = LogDensity(self._model, random.key(0), args, kwargs, **options)
        self._is_network = bool(modules)
        warn_of_nothing(self._target)
        self._signature = signature

    def _check_initial(
        self, init_params: Mapping[str, Any], num_chains: int, single: bool
    ) -> dict[str, Array]:
        layout = self.target.layout
        lead = () if single else (num_chains,)
        expected = {name: lead + layout.shapes[name] for name in layout.names}
        given = init_params if isinstance(init_params, Mapping) else {}
        found = {name: jnp.shape(value) for name, value in given.items()}
        if found != expected:
            raise ArgumentError(
                f"Expected init_params to hold unconstrained values of shapes {expected}, found "
                f"{found or type(init_params).__name__}."
            )
        return {name: jnp.asarray(init_params[name], self.target.dtype) for name in layout.names}

    def _positions(self, state: KernelState, num_chains: int) -> Float[Array, "P D"]:
        """Positions of all replicas of all chains, the replicas of a chain side by side."""
        z = self._flat(state.z, num_chains)
        if not state.replicas:
            return z
        return jnp.concatenate([z[:, None], state.replicas["z"]], 1).reshape(-1, z.shape[1])

    def _with_positions(
        self, state: KernelState, z: Float[Array, "P D"], single: bool
    ) -> KernelState:
        by_chain = z.reshape(-1, self.num_replicas, z.shape[1])
        state = state._replace(z=self._sites(by_chain[:, 0], single))
        if not state.replicas:
            return state
        return state._replace(replicas=state.replicas | {"z": by_chain[:, 1:]})

    def _flat(self, sites: Mapping[str, Array], num_chains: int) -> Array:
        return self.target.layout.join(sites).reshape(num_chains, self.target.dim)

    def _sites(self, z: Array, single: bool) -> dict[str, Array]:
        return self.target.layout.split(z[0] if single else z)
