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
from ppl_ext.guides.mixture import MixtureGuide
from ppl_ext.guides.planar_flow import PlanarGuide
from ppl_ext.options import refuse
from ppl_ext.score_matching.options import (
    LEARNING_RATE,
    STEPS,
    GradientSteps,
    ProximalSolver,
    Regression,
    SolverName,
    as_solver,
    kind_of,
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

    @staticmethod
    def _usual(density: Any) -> Any:
        """The options of a guide's kind."""
        guide = density.guide
        mixture = guide.covariance if isinstance(guide, MixtureGuide) else None
        is_flow = isinstance(guide, PlanarGuide)
        return STEPS[kind_of(density.covariance_structure, mixture, is_flow)]


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

    Each package's ``ProximalScoreVI`` has the whole text.
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
