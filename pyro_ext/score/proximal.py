"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, whose graph is gone before
the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`pyro_ext.score.regression`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number, described, is_number
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Update
from pyro_ext.gradients import GradientEstimator
from pyro_ext.guides.flat_density import FlatDensity, Parameters
from pyro_ext.guides.mixture import AutoGaussianMixture
from pyro_ext.guides.normal import DiagonalNormalDensity
from pyro_ext.guides.planar_flow import AutoPlanarFlow
from pyro_ext.optim import OptimizerLike, PlannedSteps
from pyro_ext.score.guide_engine import DRAWS as DRAWS
from pyro_ext.score.guide_engine import LEARNING_RATE as LEARNING_RATE
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, all_finite
from pyro_ext.score.objective import blended_target, proximal_gradient
from pyro_ext.score.regression import (
    CLOSED_FORMS,
    DECAY,
    TRUST,
    ClosedForm,
    group_of,
    restored,
    saved,
    structure_of,
)

SOLVERS = ("gradient", "regression")


class GradientSteps(NamedTuple):
    """How the gradient solver works on a guide, unless told otherwise.

    Parameters
    ----------
    num_samples, num_inner_steps : int
        Draws and optimizer steps per iteration.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the default optimizer's gradient.
    """

    num_samples: int
    num_inner_steps: int
    learning_rate: float = LEARNING_RATE
    clip_norm: float | None = None


#: For diagonal Normals, the paper's.
STEPS_DIAGONAL = GradientSteps(1, 2)
#: For other Normals, whose correlations need more steps to follow, which in turn would fit a single
#: draw too closely; and for mixtures of them.
STEPS_NORMAL = GradientSteps(2, 20)
#: For planar flows and mixtures with low-rank covariances, which can bend to fit a few draws in a
#: few large steps, and have draws far out, whose scores would rule the optimizer's averages for
#: long.
STEPS_FLEXIBLE = GradientSteps(8, 2, 5e-3, clip_norm=1.0)
#: For all others, such as the host's flows, which break down with those.
STEPS_OTHER = GradientSteps(16, 1, 2e-3, clip_norm=1.0)

#: Coordinates of a diagonal guide that take their inner steps together.
PART_LENGTH = 2**18

ProximalWeight = str | float | Callable[[int, int], float]


@dataclass(frozen=True)
class ProximalPlan(GuidePlan):
    """What ``ProximalScoreVI`` decides when it meets the model's arguments.

    Parameters
    ----------
    solver : {"gradient", "regression"}
    closed_form : ClosedForm, optional
        Of the solver "regression".
    num_inner_steps : int, optional
        Of the solver "gradient".
    """

    solver: str
    closed_form: ClosedForm[Any] | None = field(repr=False, compare=False)
    num_inner_steps: int | None


class ProximalScoreVI(GuideEngine):
    """Proximal score-matching variational inference.

    Each iteration t of T draws theta from the present guide q_t, evaluates the (minibatch) score
    s of the target there once, and then lowers

        alpha_t |grad log q - grad log q_t|^2 + |grad log q - s|^2

    averaged over the draws, in the guide's parameters, by ``num_inner_steps`` optimizer steps
    (``solver="gradient"``) or, for Normal guides, in closed form (``solver="regression"``).

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    guide : AutoContinuous
        A Pyro autoguide of the model that has a log density over the flat unconstrained vector:
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``
        (closed-form scores), ``AutoMatrixNormal``, ``AutoGaussianMixture``, ``AutoPlanarFlow`` and
        the like; or the class, which is then called with the model. The guide object holds the fit
        at any time, so that ``guide.median()``, ``guide.quantiles()``,
        ``Predictive(model, guide=guide)`` and ``SVI`` work with it. It starts from the values that
        it has.
    optim : PyroOptim, callable or mapping, optional
        Optimizer of the inner steps, whose state goes on over the iterations; see
        :class:`~pyro_ext.optim.EngineOptimizer`. Schedulers advance once an inner step. Default:
        Adam with a learning rate that falls from 0.01 to 0 along a cosine over the run; from
        0.005 or 0.002 where ``num_samples`` is 8 or 16 by default. A rate that falls matters:
        scores are noisy.

        A mapping from patterns of site names to optimizers, such as
        ``{"*.bias": Adam({"lr": 1e-2}), "*": Adam({"lr": 1e-3})}``, gives sites rates of their
        own. A site belongs to the first pattern that it matches, ``"*"`` takes the rest, and None
        in place of an optimizer is the default. Entries of ``loc`` and ``scale``, also a
        mixture's, and rows of a Cholesky factor or of ``cov_factor`` belong to the sites of their
        coordinates; other parameters, such as a flow's, belong to ``"*"``.
    solver : {"gradient", "regression"}, optional
        "gradient" is the paper's. "regression" needs no optimizer; for ``AutoDiagonalNormal``,
        ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``, ``AutoMatrixNormal`` and
        ``AutoGaussianMixture`` with full covariances. Default: "regression" for these five, unless
        an option of the gradient solver (``optim``, ``num_inner_steps``, ``proximal``,
        ``sample_reuse``, ``clip_norm``, a ``num_samples`` that is no multiple of 2, or of 2 K for
        a mixture) is given; "gradient" otherwise.
    num_samples : int, optional
        Draws S per iteration; an even number for ``solver="regression"``, whose draws come in
        mirrored pairs, and a multiple of 2 K for a mixture, with pairs from each of its K
        components. Default: the least such number; for ``solver="gradient"`` 1 with a diagonal
        Normal, 2 with other Normals and mixtures, 8 with planar flows and mixtures with
        "low_rank" covariances, 16 with the host's flows and guides of other kinds.
    num_inner_steps : int, optional
        Optimizer steps per iteration. Default: 20 for Normals that are not diagonal and for
        mixtures with "full" or "diag" covariances, 1 for the host's flows and guides of other
        kinds, 2 for the rest.
    proximal : "linear", float or callable
        Weight alpha_t of the proximal term: t/T (the paper's), a constant, or a function of
        (t, T). ``solver="regression"`` has its own proximal term.
    sample_reuse : int
        The inner steps use the draws and scores of so many iterations, the present one and those
        just before it; 1 is the paper's. More average the noise of scores over iterations without
        another evaluation of the model, and cost two vectors of length S D each. The match is
        then taken under the mixture of the guides that drew, with no importance weights: for a
        guide that can match the target everywhere its minimum is the same, for any other it
        lags, towards where earlier guides had their mass. In the first iterations the present
        draws stand in for those that are missing.
    clip_norm : float, optional
        The gradient of an inner step, in all of the guide's parameters as one vector, is
        shortened to this length where it is longer. Default: not; with the default optimizer 1
        where ``num_samples`` is 8 or more by default.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, for
        Normal guides. Default: the guide's own. Networks want a small one, such as 0.01.
    total_steps : int, optional
        T when steps are taken with ``step``. ``run(n)`` sets T to the steps taken so far plus n,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. While T
        is unknown, and for steps after the end of a run, t/T is taken as 0: the proximal weight
        is 0 and the default optimizer's rate is its first.
    decay, trust : float
        Constants p and c of ``solver="regression"`` (a mixture has no p); see
        :mod:`pyro_ext.score.regression`.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

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

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: OptimizerLike | None = None,
        solver: str | None = None,
        num_samples: int | None = None,
        num_inner_steps: int | None = None,
        proximal: ProximalWeight = "linear",
        *,
        sample_reuse: int = 1,
        clip_norm: float | None = None,
        initial_scale: float | None = None,
        total_steps: int | None = None,
        decay: float = DECAY,
        trust: float = TRUST,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        evaluation: str = "graph",
        on_nonfinite: str = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            model,
            guide,
            optim,
            num_samples,
            clip_norm=clip_norm,
            initial_scale=initial_scale,
            total_steps=total_steps,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            evaluation=evaluation,
            on_nonfinite=on_nonfinite,
            seed=seed,
            dtype=dtype,
        )
        _check_options(solver, optim, num_inner_steps, proximal, decay, trust)
        _check_gradient_options(solver, sample_reuse, clip_norm, num_inner_steps, proximal)
        chosen = optim is not None or sample_reuse > 1 or clip_norm is not None
        chosen = chosen or num_inner_steps is not None or proximal != "linear"
        chosen = chosen or (num_samples is not None and num_samples % group_of(self.guide) != 0)
        self.solver = solver or default_solver(self.guide, gradient=chosen)
        self._solver_given = solver is not None
        self.num_inner_steps = num_inner_steps
        self.proximal = proximal
        self.sample_reuse = sample_reuse
        self.decay = float(decay)
        self.trust = float(trust)
        self._regression: Any = None
        #: Draws and scores of earlier iterations that are used again, the latest first.
        self._reused: list[tuple[Tensor, Tensor]] = []
        #: Draws and scores of the last iteration, whose memory the next one takes.
        self._theta: Tensor | None = None
        self._memory: Tensor | None = None

    # -- engine hooks --------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> ProximalPlan:
        found = super()._plan(target, generator, data)
        density, solver, form = found.density, self.solver, None
        if solver == "regression":
            form = closed_form(density)(density, self.decay, self.trust)
            # The guide's shape is known only now.
            reason = form.unsuited(density.live_parameters())
            if reason is not None and self._solver_given:
                raise ArgumentError(reason)
            if reason is not None:
                solver, form = "gradient", None
        common = target, found.estimator, density
        if form is not None:
            group = form.group(self.guide)
            check_group(self.num_samples, group)
            return ProximalPlan(
                *common, self.num_samples or group, LEARNING_RATE, None, solver, form, None
            )
        steps = default_steps(density)
        clip_norm = self.clip_norm
        if self.optim is None and clip_norm is None:
            clip_norm = steps.clip_norm
        return ProximalPlan(
            *common,
            self.num_samples or steps.num_samples,
            steps.learning_rate,
            clip_norm,
            solver,
            None,
            self.num_inner_steps or steps.num_inner_steps,
        )

    def _initialize(self, plan: ProximalPlan, data: Data) -> None:
        super()._initialize(plan, data)
        if plan.closed_form is not None:
            self._regression = plan.closed_form.initial(self._parameters)
            return
        by_parts = isinstance(plan.density, DiagonalNormalDensity) and plan.clip_norm is None
        length = PART_LENGTH if by_parts and plan.target.device.type == "cpu" else None
        self._start_optimizer(plan, length)

    def _update(self, plan: ProximalPlan, data: Data) -> Update:
        form = plan.closed_form
        if form is None:
            return self._gradient_update(plan, data)
        with torch.no_grad():
            draws = form.evaluated_draw(self._parameters, self._generator, plan.num_samples)
            weights = form.weights(self._parameters, plan.num_samples)
        found = self._score(draws.theta, data)
        score, log_p = found.score, found.log_density(plan.target.likelihood_temperature)
        loss = float(weights @ (draws.score - score).square_().sum(-1))
        info = {"log_p": float(weights @ log_p), "log_q": float(weights @ draws.log_prob)}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite:
            finite = self._regression_step(form, draws.theta, score, log_p)
        return Update(loss, info, finite)

    def _sample(self, plan: ProximalPlan) -> Tensor:
        density, number = plan.density, plan.num_samples
        if isinstance(density, DiagonalNormalDensity) and self.sample_reuse == 1:
            # Memory that is kept costs less than memory that the system gives anew.
            self._theta = density.sample(self._parameters, self._generator, number, self._theta)
            return self._theta
        return density.sample(self._parameters, self._generator, number)

    def _settings(self) -> dict[str, str]:
        settings = {"solver": self.solver, **super()._settings()}
        if self.solver == "regression":
            settings |= {"decay": repr(self.decay), "trust": repr(self.trust)}
        return settings

    def _algorithm_state(self) -> dict[str, Any]:
        reused = [list(pair) for pair in self._reused]
        return {
            **super()._algorithm_state(),
            "regression": saved(self._regression),
            "reused": reused,
        }

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._regression = restored(self._regression, state["regression"])
        self._reused = [(theta, score) for theta, score in state["reused"]]

    # -- steps ---------------------------------------------------------------------------------

    def _weight(self) -> float:
        if self.proximal == "linear":
            return self._progress()
        if not callable(self.proximal):
            return float(self.proximal)
        value = self.proximal(self.num_steps_taken, self._total or 0)
        if not is_number(value):
            raise ArgumentError(
                f"Expected proximal(t, T) to return one number, found {described(value)}."
            )
        return float(value)

    def _gradient_update(self, plan: ProximalPlan, data: Data) -> Update:
        theta = self._sample(plan)
        with plan.target.writing_into(self._memory):
            found = self._score(theta, data)
        score = found.score
        if self.sample_reuse == 1:
            self._memory = score
        log_p = float(found.log_density(plan.target.likelihood_temperature).mean())
        finite = math.isfinite(log_p)
        loss = log_q = math.nan
        if finite:
            missing = self.sample_reuse - 1 - len(self._reused)
            draws = [(theta, score)] * (1 + missing) + self._reused
            weight = self._weight()
            loss, log_q, finite = self._gradient_steps(plan, draws, weight)
            if finite and self.sample_reuse > 1:
                self._reused = [(theta, score), *self._reused][: self.sample_reuse - 1]
        return Update(loss, {"log_p": log_p, "log_q": log_q}, finite)

    @torch.no_grad()
    def _gradient_steps(
        self, plan: ProximalPlan, draws: list[tuple[Tensor, Tensor]], weight: float
    ) -> tuple[float, float, bool]:
        """Take the inner steps; return the loss, the mean of log q, and whether all was finite."""
        assert plan.num_inner_steps is not None and self._optimizer is not None
        self._set_default_rate(plan)
        planned = self._optimizer.plan(plan.num_inner_steps)
        safe = self._cannot_break(plan.density, draws, weight, planned)
        if safe and plan.clip_norm is None and self._optimizer.entrywise:
            return *self._steps_by_part(plan, draws, weight, planned), True
        density, present_draws = plan.density, draws[0][0]
        theta, score = (_joined(each) for each in zip(*draws, strict=True))
        present = density.score(self._parameters, theta)
        log_q = float(density.log_prob(self._parameters, present_draws).mean())
        residual = (present - score)[: len(present_draws)]
        loss = float(residual.square_().sum(-1).mean())
        if not math.isfinite(loss):
            return loss, log_q, False
        target = blended_target(score, present, weight)
        del draws, score, present, residual

        def objective(parameters: Parameters) -> tuple[Tensor, Parameters]:
            return proximal_gradient(density, parameters, theta, target, weight)

        finite = self._descend(plan, objective, plan.num_inner_steps, can_break=not safe)
        return loss, log_q, finite

    def _cannot_break(
        self,
        density: FlatDensity,
        draws: list[tuple[Tensor, Tensor]],
        weight: float,
        planned: PlannedSteps,
    ) -> bool:
        """Whether it is certain that the inner steps will be finite, so that none is undone."""
        if not isinstance(density, DiagonalNormalDensity) or planned.reach == math.inf:
            return False
        largest = max(
            density.largest_gradient(self._parameters, theta, score, planned.reach)
            for theta, score in dict.fromkeys(draws)
        )
        # Adam keeps squares of gradients.
        limit = 1e-4 * math.sqrt(torch.finfo(draws[0][0].dtype).max)
        return (1.0 + weight) * largest < limit

    def _steps_by_part(
        self,
        plan: ProximalPlan,
        draws: list[tuple[Tensor, Tensor]],
        weight: float,
        planned: PlannedSteps,
    ) -> tuple[float, float]:
        """All inner steps of one part of a diagonal guide after another.

        The objective is a sum over coordinates and so are the steps of the optimizer, so that a
        part can take all its steps while it is in the processor's cache; every vector is read and
        written once an iteration, and what is computed in between is never long. Returns the loss
        and the mean of log q.
        """
        density, optimizer = plan.density, self._optimizer
        assert isinstance(density, DiagonalNormalDensity) and optimizer is not None
        assert plan.num_inner_steps is not None
        number = len(draws[0][0])
        loss, log_q = 0.0, -0.5 * density.dim * math.log(2.0 * math.pi)
        for part in optimizer.parts:
            where = slice(None) if part.where is None else part.where
            theta, score = (
                _joined([entry[:, where] for entry in each]) for each in zip(*draws, strict=True)
            )
            parameters = {name: tensor.detach() for name, tensor in part.tensors.items()}
            loc, scale = density.moments(parameters)
            standard = (loc - theta).div_(scale)
            present = standard / scale
            log_q -= _sum_of_logarithms(scale)
            log_q -= 0.5 * float(standard[:number].square_().sum()) / number
            loss += float((present[:number] - score[:number]).square_().sum()) / number
            target = torch.lerp(score, present, weight / (1.0 + weight))
            for step in range(plan.num_inner_steps):
                known = (scale, present) if step == 0 else None
                _, gradient = density.residual_gradient(
                    parameters, theta, target, 1.0 + weight, known
                )
                optimizer.step_part(part, gradient, planned, step)
        optimizer.finish(planned)
        return loss, log_q

    @torch.no_grad()
    def _regression_step(
        self, form: ClosedForm[Any], theta: Tensor, score: Tensor, log_p: Tensor
    ) -> bool:
        regression, parameters = form.update(
            self._regression, self._parameters, theta, score, self._total or 0, log_p
        )
        if not all_finite(parameters):
            return False
        self._write(parameters)
        self._regression = regression
        return True


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def _sum_of_logarithms(values: Tensor) -> float:
    """Sum of the logarithms of positive numbers (D,), of products of four, which is faster."""
    quarter = len(values) // 4
    if quarter:
        first, second, third, fourth = values[: 4 * quarter].chunk(4)
        products = (first * second).mul_(third).mul_(fourth)
        low, high = (float(bound) for bound in products.aminmax())
        if 1e-30 < low and high < math.inf:
            rest = values[4 * quarter :]
            return float(products.log_().sum()) + float(rest.log().sum())
    return float(values.log().sum())


def default_solver(guide: Any, gradient: bool) -> str:
    """The solver for a guide, unless told otherwise.

    "regression" for the guides that have a closed form, where it needs fewer scores and no learning
    rate; "gradient" for all others, and where ``gradient`` says that an option of the gradient
    solver was given.
    """
    return "regression" if structure_of(guide) is not None and not gradient else "gradient"


def default_steps(density: FlatDensity) -> GradientSteps:
    """How the gradient solver works on a guide, unless told otherwise."""
    if density.covariance_structure == "diagonal":
        return STEPS_DIAGONAL
    if isinstance(density.guide, AutoGaussianMixture):
        return STEPS_FLEXIBLE if density.guide.covariance == "low_rank" else STEPS_NORMAL
    if isinstance(density.guide, AutoPlanarFlow):
        return STEPS_FLEXIBLE
    return STEPS_OTHER if density.covariance_structure is None else STEPS_NORMAL


def closed_form(density: FlatDensity) -> type[ClosedForm[Any]]:
    """The closed form for a guide.

    Raises
    ------
    ArgumentError
        It has none.
    """
    structure = structure_of(density.guide)
    if structure is None:
        raise ArgumentError(
            "Expected AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, "
            "AutoMatrixNormal or AutoGaussianMixture with full covariances for "
            f"solver='regression', found {type(density.guide).__name__}. Use solver='gradient', "
            "which takes every guide with a flat log density."
        )
    return CLOSED_FORMS[structure]


def check_group(num_samples: int | None, group: int) -> None:
    """See that draws come in mirrored pairs, one or more for each component of the guide.

    Raises
    ------
    ArgumentError
        They do not.
    """
    if num_samples is not None and num_samples % group:
        expected = "an even num_samples" if group == 2 else f"a num_samples that {group} divides"
        raise ArgumentError(
            f"Expected {expected} with solver='regression', whose draws come in mirrored pairs "
            f"from each component of the guide, found {num_samples}. Use {group}, or "
            "solver='gradient'."
        )


def _check_options(
    solver: str | None,
    optim: Any,
    num_inner_steps: int | None,
    proximal: Any,
    decay: float,
    trust: float,
) -> None:
    if solver is not None and solver not in SOLVERS:
        raise ArgumentError(f"Expected solver to be one of {SOLVERS}, found {solver!r}.")
    if solver == "regression" and optim is not None:
        raise ArgumentError(
            "Expected optim=None with solver='regression', which has no optimizer, found "
            f"{type(optim).__name__}. Leave it out, or use solver='gradient'."
        )
    check_count("num_inner_steps", num_inner_steps, optional=True)
    number = is_number(proximal) and float(proximal) >= 0
    if not (number or callable(proximal) or proximal == "linear"):
        raise ArgumentError(
            "Expected proximal to be 'linear', a number >= 0 or a function of (t, T), found "
            f"{proximal!r}."
        )
    check_number("decay", decay, most=1.0)
    check_number("trust", trust, above=1.0)
    if solver == "gradient" and (decay, trust) != (DECAY, TRUST):
        raise ArgumentError(
            "Expected no decay and no trust with solver='gradient', which has neither, found "
            f"{decay} and {trust}. Leave them out, or use solver='regression'."
        )


def _check_gradient_options(
    solver: str | None,
    sample_reuse: int,
    clip_norm: float | None,
    num_inner_steps: int | None,
    proximal: Any,
) -> None:
    check_count("sample_reuse", sample_reuse)
    if solver == "regression" and (sample_reuse > 1 or clip_norm is not None):
        raise ArgumentError(
            "Expected sample_reuse=1 and clip_norm=None with solver='regression', which averages "
            f"over all iterations and has no gradient, found sample_reuse={sample_reuse} and "
            f"clip_norm={clip_norm}. Leave them out, or use solver='gradient'."
        )
    if solver == "regression" and (num_inner_steps is not None or proximal != "linear"):
        raise ArgumentError(
            "Expected no num_inner_steps and no proximal with solver='regression', which takes one "
            f"step in closed form with its own proximal term, found {num_inner_steps} and "
            f"{proximal!r}. Leave them out, or use solver='gradient'."
        )
