"""Microcanonical Langevin Monte Carlo."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ppl_ext.engines.judgement import Judgement
from ppl_ext.microcanonical.dynamics import Evaluate
from ppl_ext.microcanonical.functions import Eager
from ppl_ext.microcanonical.kernel import MCLMCShell
from pyro_ext.gradients import Full
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel


class Fused(Eager):
    """The same with operations that need no arrays in between."""

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        # Of one long row without an array in between; of several that is slower.
        return torch.dot(one[0], other[0])[None] if len(one) == 1 else super().dot(one, other)

    def combined(self, first: Tensor, one: Tensor, second: Tensor, other: Tensor) -> Tensor:
        return (first[:, None] * one).addcmul_(second[:, None], other)

    def moved(self, position: Tensor, length: Tensor, scale: Tensor, direction: Tensor) -> Tensor:
        return torch.addcmul(position, length * scale, direction)


FUNCTIONS = Fused(torch)


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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     scale = pyro.sample("scale", dist.HalfNormal(2.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, scale), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.MCLMC(model)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=500, num_chains=8)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    >>> print(kernel.judgement.doubtful)
    False
    """

    _full = Full
    _warns_after_warmup = False

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up to tune in.
        """
        resumed = self._pending is not None
        if not resumed:
            self._check_tuned("warmup_steps", warmup_steps)
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)
        self._moves_of_chains = moves = self._moves(FUNCTIONS, self.target.epsilon)
        if resumed:
            return
        z = self.state.z
        with torch.no_grad():
            evaluate, estimators = self._evaluation(self.state.estimator)
            noise, spare = (self._normal(z, number) for number in (moves.whole, moves.spare))
            dynamics = moves.first(z, noise, spare, warmup_steps * self.num_steps, evaluate)
        self._state = self.state._replace(
            dynamics=dynamics, estimator=estimators[-1], step_size=float(dynamics.step.value)
        )

    def _settings(self) -> str:
        return f"{super()._settings()}, adjusted={self.adjusted}, num_steps={self.num_steps}"

    def _move(self, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError  # A move is more than a step; see _advance.

    def _normal(self, z: Tensor, number: int) -> Tensor:
        shape = (len(z), number)
        return torch.randn(shape, generator=self._generator, dtype=z.dtype).to(z.device)

    def _evaluation(self, before: dict[str, Any]) -> tuple[Evaluate, list[dict[str, Any]]]:
        """Scores of the rows that follow on a state of the estimator, and the states after them."""
        data, states, rows = self._data, list[dict[str, Any]](), self._generator
        seed = 0
        if self.noisy:
            # Rows have a generator of their own, so that they can be drawn again.
            rows = torch.Generator()
            seed = int(torch.randint(2**62, (1,), generator=self._generator))

        def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
            own = before
            if self.noisy:
                # The same rows at every evaluation of a move, as its energy error is that of one
                # density.
                rows.manual_seed(seed)
                own = copy.deepcopy(before)
            found, after = self._score_estimator.estimate(self.target, own, z, data, rows)
            states.append(after)
            return found.log_density(self.target.likelihood_temperature), found.score

        return evaluate, states

    def _advance(self, state: KernelState) -> KernelState:
        z, moves, total = state.z, self._moves_of_chains, self._warmup_draws * self.num_steps
        evaluate, estimators = self._evaluation(state.estimator)
        uniform = torch.rand(len(z) + 1, generator=self._generator, dtype=z.dtype).to(z.device)
        z, dynamics, diverged = moves.move(
            state.dynamics,
            z,
            state.step,
            total,
            partial(self._normal, z, moves.whole),
            uniform[1:].log(),
            uniform[0],
            evaluate,
        )
        if state.step < total:
            diverged = torch.zeros_like(diverged)  # How the warm-up finds what is too long.
        return state._replace(
            z=z,
            step=state.step + 1,
            dynamics=dynamics,
            estimator=estimators[-1],
            step_size=float(dynamics.step.value),
            potential_energy=dynamics.energy,
            diverging=state.diverging | diverged,
            num_diverging=state.num_diverging + diverged,
        )

    def judge(self) -> Judgement:
        """What the chains of the last run say of their draws."""
        state = self.state
        dynamics = state.dynamics
        return self._judged(
            dynamics.squares.double().cpu().numpy(),
            float(dynamics.moves),
            state.num_diverging.cpu().numpy(),
            self._energies(),
            float(dynamics.step.value / dynamics.length),
            self._site_heat,
            self._of_draws,
        )
