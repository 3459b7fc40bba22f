"""Microcanonical Langevin Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.util import is_prng_key

from numpyro_ext.density import Data
from numpyro_ext.gradients import Full
from numpyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from ppl_ext.engines.judgement import Judgement
from ppl_ext.microcanonical.chains import Microcanonical
from ppl_ext.microcanonical.dynamics import Evaluate
from ppl_ext.microcanonical.functions import Functions
from ppl_ext.microcanonical.kernel import MCLMCShell
from ppl_ext.sgmcmc.energies import Energies

#: Moves after the warm-up at which the energy's variance is looked at in a run.
LOOKED_AT = (1, 100, 1_000, 10_000)


class Traced(Functions):
    """What moves need of JAX."""

    xp = jnp

    def cond(
        self, truth: Any, then: Callable[..., Any], other: Callable[..., Any], *of: Any
    ) -> Any:
        return lax.cond(truth, then, other, *of)

    def loop(self, count: Any, body: Callable[[Any], Any], value: Any) -> Any:
        return lax.fori_loop(0, jnp.asarray(count, jnp.int32), lambda _, value: body(value), value)

    def put(self, records: Any, place: Any, value: Any) -> Any:
        return lax.dynamic_update_index_in_dim(records, value, place, 0)


FUNCTIONS = Traced()


class MCLMC(MCLMCShell, StochasticGradientKernel):
    """Microcanonical Langevin Monte Carlo: chains of constant speed that the score turns.

    A chain has a position z and a direction u of length 1. A step of length ε turns the direction
    by the score for half the step, moves z along it, turns it again and adds a little noise, so
    that the direction is forgotten over a length L. It costs one evaluation of the score over all
    rows. There is nothing to set. The warm-up finds, over all chains together, ε by the variance
    of the energy's error, a scale for each coordinate, and L by autocorrelations. So run several
    chains as one: in NumPyro by ``MCMC(..., chain_method="vectorized")``, in Pyro by
    ``pyro_ext.MCMC``.

    Steps are not accepted or refused, which makes them fast in many dimensions, such as the
    weights of networks, and leaves a bias of the order of ε². On Normals, at the default,
    variances are some 4 % too large in ten dimensions and more, and up to 10 % in one or two; a
    quarter of ``energy_variance`` makes ε shorter by a fifth and the bias smaller by a third. With
    ``adjusted=True`` a move is a trajectory of some steps that is accepted or not, without bias.

    With ``estimator=Minibatch()`` a step sees the rows of a minibatch. Noise that is alike in all
    directions turns a chain as the noise that is added does, and makes no error. Noise that is not
    makes draws too wide where it is large. So coordinates with more noise than the mean get a
    smaller scale. In the warm-up a step has two scores of the same rows, whose energy's error
    tunes ε, and the noise bounds ε as well: by what it may add to a variance, ``heat``. Start
    where the mass is, as from a fit or a ``DeepEnsemble``: far away noise rules the steps. A
    twentieth of the later steps has two scores as well, for the judgement.

    Parameters
    ----------
    model : callable
        The host's model, used as it is. Its plates may subsample; without an ``estimator`` all
        rows are seen at each step.
    adjusted : bool
        Whether moves are accepted or not.
    num_steps : int
        Moves that a draw takes: steps, or adjusted trajectories.
    energy_variance : float
        Variance of the energy's error in a step, in nats squared and for each dimension, that ε is
        tuned to. Adjusted moves are tuned to an acceptance of 0.9 instead.
    step_size, length : float, optional
        ε and L, both or neither, as distances in unconstrained space. Where they are given nothing
        is tuned.
    estimator : GradientEstimator, optional
        How scores are computed. Default: of all rows. Not with ``adjusted``.
    heat : float
        Bound on what the noise of minibatches adds to a variance, relative to the posterior's, in
        the directions that have most of the noise: on Normals variances grew by 0.4 of it there.
        ε, and how fast chains forget where they were, is in proportion to it. Of a network, where
        a few directions such as the last bias have most of the noise, 4 is not too much.
    **options
        ``start``, ``init_strategy``, ``likelihood_temperature``, ``data_chunk``, ``sharding`` and,
        in Pyro, ``evaluation`` and ``dtype``; see
        :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``MCMC.run``, there is no warm-up to tune in.

    Warns
    -----
    DivergenceWarning
        Steps have diverged; they are not taken.
    DoubtfulFitWarning
        In Pyro, at the end of a run, where :meth:`judge` finds the draws doubtful. NumPyro's
        ``MCMC`` has no end that a kernel hears of: there, where the energy's variance is too
        large.

    References
    ----------
    J. Robnik, G. B. De Luca, E. Silverstein and U. Seljak, "Microcanonical Hamiltonian Monte
    Carlo", JMLR 2023, https://arxiv.org/abs/2212.08549; J. Robnik and U. Seljak, "Fluctuation
    without dissipation: microcanonical Langevin Monte Carlo", https://arxiv.org/abs/2303.18221; J.
    Robnik, R. Cohn-Gordon and U. Seljak, "Metropolis adjusted microcanonical Hamiltonian Monte
    Carlo", https://arxiv.org/abs/2503.01707; E. Sommer and others, "Microcanonical Langevin
    ensembles: advancing the sampling of Bayesian neural networks", ICLR 2025,
    https://arxiv.org/abs/2502.06335; E. Sommer and others, "Can microcanonical Langevin dynamics
    leverage mini-batch gradient noise?", https://arxiv.org/abs/2602.06500, where the noise's
    anisotropy is found to be what biases draws. The bound by it is this project's.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, scale), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> kernel = nx.MCLMC(model)
    >>> mcmc = MCMC(
    ...     kernel, num_warmup=500, num_samples=500, num_chains=8, chain_method="vectorized"
    ... )
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    >>> print(kernel.judge(mcmc).doubtful)
    False
    """

    _full = Full

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that ``MCMC`` collects unless told otherwise."""
        return ("z", "diverging", "potential_energy")

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Mapping[str, Any] | None,
        model_args: tuple[Any, ...],
        model_kwargs: Mapping[str, Any] | None,
    ) -> KernelState:
        """State before the first move; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up to tune in.
        """
        self._check_tuned("num_warmup", num_warmup)
        state = super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        self._check_not_one_batch(self._estimator, "numpyro.plate")
        single = is_prng_key(rng_key)
        keys = state.rng_key[None] if single else state.rng_key
        keys, own, spare = jnp.moveaxis(jax.vmap(lambda key: random.split(key, 3))(keys), 1, 0)
        data = self.target.bind(*model_args, **dict(model_kwargs or {}))
        moves, z = self._own_moves(), self._flat(state.z, len(keys))
        evaluate, estimators = self._evaluation(data, state.estimator)
        noise, spare = _normal(own, moves.whole, z.dtype), _normal(spare, moves.spare, z.dtype)
        dynamics = moves.first(z, noise, spare, num_warmup * self.num_steps, evaluate)
        return state._replace(
            dynamics=dynamics,
            estimator=estimators[-1],
            step_size=jnp.broadcast_to(dynamics.step.value, state.step_size.shape),
            rng_key=keys[0] if single else keys,
        )

    def sample(
        self, state: KernelState, model_args: tuple[Any, ...], model_kwargs: Mapping[str, Any]
    ) -> KernelState:
        after = super().sample(state, model_args, model_kwargs)
        if self.sharding is not None:
            return after
        squares, now, pace = after.dynamics.squares, after.dynamics.moves, _pace(after.dynamics)
        due = jnp.zeros((), bool)
        for number in LOOKED_AT:
            due |= (state.dynamics.moves < number) & (now >= number)
        lax.cond(due, lambda: jax.debug.callback(self._look, due, squares, now, pace), lambda: None)
        return after

    def _look(self, due: Any, squares: Any, moves: Any, pace: Any) -> None:
        # Where chains are mapped over, both branches of the condition are run.
        if due:
            self._warn_of_variance(np.asarray(squares, float), float(moves), float(pace))

    def _tell(
        self, broken: bool, doubtful: bool, step: int, energies: Energies, heat: Array
    ) -> None:
        # Adjusted moves that diverge are refused as others are.
        if broken and "broken" not in self._told and not self.adjusted:
            self._told |= {"broken"}
            self._warn_of_divergences(1)
        super()._tell(False, doubtful, step, energies, heat)

    def judge(self, mcmc: Any) -> Judgement:
        """What the chains of a run say of its draws; see the base class."""
        state = mcmc.last_state
        energies = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
        moves = float(np.max(state.dynamics.moves))
        return self._judged(
            np.ravel(np.asarray(state.dynamics.squares, float)),
            moves,
            np.ravel(np.asarray(state.num_diverging)),
            np.asarray(energies, float),
            float(np.min(_pace(state.dynamics))),
            np.asarray(state.heat, float) if self.noisy else None,
            self._of_draws(mcmc),
        )

    def _own_moves(self) -> Microcanonical:
        return self._moves(FUNCTIONS, self.target.epsilon)

    def _evaluation(self, data: Data, before: Any) -> tuple[Evaluate, list[Any]]:
        """Scores of the rows that follow on a state of the estimator, and the states after them."""
        states: list[Any] = []

        def evaluate(z: Array) -> tuple[Array, Array]:
            found, after = self._estimator_for(len(z)).estimate(self.target, before, z, data)
            states.append(jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before))
            return found.log_density(self.target.likelihood_temperature), found.score

        return evaluate, states

    def _move(self, *_: Any) -> tuple[Array, Any]:
        raise NotImplementedError  # A move is more than a step; see _advance.

    def _advance(self, state: KernelState, data: Data, single: bool) -> KernelState:
        keys = state.rng_key[None] if single else state.rng_key
        following, noise, uniform = jnp.moveaxis(
            jax.vmap(lambda key: random.split(key, 3))(keys), 1, 0
        )
        moves, z = self._own_moves(), self._flat(state.z, len(keys))
        # Two of each chain: one for its acceptance, and the first chain's for the steps of all.
        shares = jax.vmap(lambda key: random.uniform(key, (2,), z.dtype))(uniform)
        total = state.num_warmup * self.num_steps
        evaluate, estimators = self._evaluation(data, state.estimator)
        z, dynamics, diverged = moves.move(
            state.dynamics,
            z,
            state.step,
            total,
            lambda: _normal(noise, moves.whole, z.dtype),
            jnp.log(shares[:, 0]),
            shares[0, 1],
            evaluate,
        )
        chains = () if single else (len(keys),)
        # Moves that diverge in the warm-up are how it finds what is too long.
        diverged = (diverged & (state.step >= total)).reshape(chains)
        return state._replace(
            z=self._sites(z, single),
            step=state.step + 1,
            dynamics=dynamics,
            # Of noisy scores the last is that of the step, outside of all conditions.
            estimator=estimators[-1] if self.noisy else state.estimator,
            step_size=jnp.broadcast_to(dynamics.step.value, chains),
            potential_energy=dynamics.energy.reshape(chains),
            diverging=state.diverging | diverged,
            num_diverging=state.num_diverging + diverged,
            rng_key=following[0] if single else following,
        )


def _pace(dynamics: Any) -> Array:
    """Step length by the length after which a direction is forgotten."""
    return dynamics.step.value / dynamics.length


def _normal(keys: Array, number: int, dtype: Any) -> Array:
    return jax.vmap(lambda key: random.normal(key, (number,), dtype))(keys)
