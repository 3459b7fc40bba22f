"""Proximal score-matching variational inference (``ProximalScoreVI``).

What it is stands in :mod:`ppl_ext.score_matching.proximal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.score.gradient_steps import GradientSolver
from numpyro_ext.score.guide_engine import (
    GuideEngine,
    GuidePlan,
    divided_optimizer,
    host_optimizer,
)
from numpyro_ext.score.regression import CLOSED_FORMS, RegressionSolver, structure_of
from ppl_ext.score_matching.options import GradientSteps, ProximalSolver, Regression
from ppl_ext.score_matching.proximal import ProximalShell


@dataclass(frozen=True)
class ProximalPlan(GuidePlan):
    """What ``ProximalScoreVI`` decides when it meets the model's arguments.

    Parameters
    ----------
    solver : GradientSteps or Regression
        With the defaults of the guide.
    executor : GradientSolver or RegressionSolver
        What carries it out.
    """

    # The solver prints these two.
    num_samples: int = field(repr=False, compare=False)
    clip_norm: float | None = field(repr=False, compare=False)
    solver: ProximalSolver
    executor: GradientSolver | RegressionSolver = field(repr=False, compare=False)


class ProximalScoreVI(ProximalShell, GuideEngine):
    """Proximal score-matching variational inference.

    Each iteration t of T draws theta from the present guide q_t, evaluates the (minibatch) score
    s of the target there once, and then lowers

        alpha_t |grad log q - grad log q_t|^2 + |grad log q - s|^2

    averaged over the draws, in the guide's parameters, by optimizer steps
    (``solver=GradientSteps(...)``) or, for Normal guides, in closed form
    (``solver=Regression(...)``).

    Parameters
    ----------
    model : callable
        The host's model, used as it is.
    guide : AutoContinuous
        An autoguide of the model that has a log density over the flat unconstrained vector:
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``
        (closed-form scores), ``AutoMatrixNormal``, ``AutoGaussianMixture``, ``AutoPlanarFlow`` and
        the like; or the class, which is then called with the model. In Pyro the guide object
        holds the fit at any time, so that ``guide.median()``, ``guide.quantiles()``,
        ``Predictive(model, guide=guide)`` and ``SVI`` work with it, and it starts from the values
        that it has. In NumPyro ``run(...).params`` are the guide's parameters for
        ``guide.sample_posterior``, ``guide.median``, ``Predictive`` and
        ``SVI.init(..., init_params=...)``.
    solver : {"gradient", "regression"}, GradientSteps or Regression, optional
        :class:`~ppl_ext.score_matching.options.GradientSteps` is the paper's,
        :class:`~ppl_ext.score_matching.options.Regression` the closed form; the names stand for
        their defaults. Default: the closed form for the guides that have one, which are
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal`` of a
        rank below the number of latents, ``AutoLayerLowRankNormal``, ``AutoMatrixNormal`` and
        ``AutoGaussianMixture`` with full covariances; gradient steps for all others.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, for
        Normal guides. Default: the guide's own. Networks want a small one, such as 0.01.
    total_steps : int, optional
        T when steps are taken one by one. ``run`` sets T to the steps taken so far plus its own,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. Steps
        taken after a run has ended are outside it and have this T again, not the run's. While T
        is unknown, t/T is taken as 0: the default optimizer keeps its first learning rate, and
        the paper's proximal weight is 0.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of
    log p (tempered as the target is, from the minibatch) and of log q at the draws. With the
    closed form for mixtures, all three are weighted as the components that drew.
    Latents inside a subsampled plate are refused, as these guides cannot hold them.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.

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
    >>> guide = numpyro.infer.autoguide.AutoMultivariateNormal(model)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> print(f"{guide.median(result.params)['mean']:.1f}")
    2.0
    """

    _structure = staticmethod(structure_of)
    _by_gradient = staticmethod(GradientSolver.plan)

    @staticmethod
    def _by_regression(
        options: Regression, structure: str, density: FlatDensity
    ) -> RegressionSolver:
        return RegressionSolver.plan(options, CLOSED_FORMS[structure], density)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> ProximalPlan:
        found = super()._plan(target, rng_key, data)
        executor = self._executor(found.density, found.density.initial_parameters())
        decided = self._carried_out_by(executor)
        if isinstance(executor.options, GradientSteps):
            optim = host_optimizer(executor.options.optim)
            decided["optim"] = divided_optimizer(optim, found.density, target.layout)
        decided["keeps_state"] = executor.in_place
        return ProximalPlan(**{**vars(found), **decided})

    def _init_algorithm(self, plan: ProximalPlan, start: Parameters, data: Data) -> Any:
        return plan.executor.initial(self, plan, start)

    def _step(
        self, plan: ProximalPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        return plan.executor.update(self, plan, state, data)
