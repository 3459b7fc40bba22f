"""Proximal score-matching variational inference without arrays: ``ProximalScoreVI``.

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, before the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", https://arxiv.org/abs/2602.05873, equations 7-9 and Algorithm 1. The closed-form solver
for Normal guides is this project's; see ``ppl_ext.score_matching.regression``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.engines.guide_engine import GuideShell
from ppl_ext.errors import ArgumentError
from ppl_ext.options import refuse
from ppl_ext.score_matching.options import (
    LEARNING_RATE,
    GradientSteps,
    ProximalSolver,
    Regression,
    SolverName,
    as_solver,
)


def blended_target(
    score: Float[Any, "S D"], present_score: Float[Any, "S D"], weight: Any
) -> Float[Any, "S D"]:
    """The one regression target that stands for both terms of the proximal objective.

    With b = (s + alpha g_t) / (1 + alpha),
    ``alpha |g - g_t|^2 + |g - s|^2 = (1 + alpha) |g - b|^2 + a constant``,
    so that the inner steps need a single array of scores.

    Parameters
    ----------
    score, present_score : arrays (S, D)
        Score s of the target, and g_t of the present guide, at the same points.
    weight : float
        Proximal weight alpha.
    """
    return (score + weight * present_score) / (1.0 + weight)


@documents_subclasses
@dataclass(frozen=True)
class GradientExecutor:
    """Carries out :class:`~ppl_ext.score_matching.options.GradientSteps`.

    Parameters
    ----------
    options : GradientSteps
        With the defaults of the guide.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    """

    options: GradientSteps
    learning_rate: float


@documents_subclasses
@dataclass(frozen=True)
class RegressionExecutor:
    """Carries out :class:`~ppl_ext.score_matching.options.Regression`.

    Parameters
    ----------
    options : Regression
        With the defaults of the guide.
    form : ClosedForm
        Of the guide.
    """

    options: Regression
    form: Any = field(repr=False, compare=False)
    learning_rate = LEARNING_RATE

    @classmethod
    def plan(cls, options: Regression, form: Any, density: Any) -> Self:
        """The solver for a guide, by the class of its closed form."""
        options = options.resolved(form.group(density.guide))
        return cls(options, form(density, options.decay, options.trust))


class ProximalShell(GuideShell):
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
    """

    #: The host's :func:`structure_of` a guide, and what carries either solver out.
    _structure: ClassVar[Any]
    _by_gradient: ClassVar[Any]
    _by_regression: ClassVar[Any]

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        solver: SolverName | ProximalSolver | None = None,
        *,
        initial_scale: float | None = None,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        refuse(type(self), options, "optim", "num_samples", "clip_norm")
        super().__init__(
            model, guide, initial_scale=initial_scale, total_steps=total_steps, **options
        )
        self.solver = solver
        # Checked at once.
        chosen = self._chosen_solver()
        if isinstance(chosen, GradientSteps):
            self._host_optimizer(chosen.optim)

    def _search_share(self, plan: Any) -> float:
        form = getattr(plan.executor, "form", None)
        return 0.0 if form is None else form.search_share(plan.target.dim)

    def _chosen_solver(self) -> ProximalSolver:
        closed = self._structure(self.guide) is not None
        return as_solver(self.solver, type(self.guide).__name__, closed)

    def _executor(self, density: Any, parameters: Any) -> Any:
        """What carries the solver out that was chosen, for a guide and its initial parameters."""
        options, structure = self._chosen_solver(), self._structure(self.guide)
        if isinstance(options, Regression) and structure is not None:
            executor = self._by_regression(options, structure, density)
            # The guide's shape is known only now.
            reason = executor.form.unsuited(parameters)
            if reason is None:
                return executor
            if self.solver is not None:
                raise ArgumentError(reason)
            options = GradientSteps()
        return self._by_gradient(options, density)

    @staticmethod
    def _carried_out_by(executor: Any) -> dict[str, Any]:
        """What a plan says of its executor, by field."""
        return {
            "num_samples": executor.options.num_samples,
            "learning_rate": executor.learning_rate,
            "clip_norm": getattr(executor.options, "clip_norm", None),
            "solver": executor.options,
            "executor": executor,
        }

    def _settings(self) -> dict[str, str]:
        # Before all that follows from it; the plan says more of it.
        settings = super()._settings()
        solver = type(self._chosen_solver()).__name__
        return {"guide": settings["guide"], "solver": solver, **settings}
