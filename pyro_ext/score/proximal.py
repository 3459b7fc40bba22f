"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, whose graph is gone before
the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`pyro_ext.score.gaussian_regression`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from pyro_ext.engine import Engine, Update, seeded_generator
from pyro_ext.errors import ArgumentError
from pyro_ext.gradients import GradientEstimator
from pyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
)
from pyro_ext.optim import EngineOptimizer, OptimizerLike
from pyro_ext.score.gaussian_regression import (
    DECAY,
    TRUST,
    Regression,
    initial_regression,
    is_warm,
    observe,
    updated_moments,
)
from pyro_ext.target import Data

SOLVERS = ("gradient", "regression")
#: Learning rate of the default optimizer (Adam) at the start of a run.
LEARNING_RATE = 1e-2
#: Draws and inner steps per iteration of the gradient solver, unless told otherwise: for diagonal
#: guides (the paper's), and for others, whose correlations need more steps to follow, which in
#: turn would fit a single draw too closely.
SAMPLES_DIAGONAL, INNER_STEPS_DIAGONAL = 1, 2
SAMPLES, INNER_STEPS = 2, 20
#: Draws that ``get_samples`` returns unless told otherwise.
DRAWS = 1000

ProximalWeight = str | float | Callable[[int, int], float]


def blended_target(score: Tensor, present_score: Tensor, weight: float) -> Tensor:
    """The one regression target that stands for both terms of the proximal objective.

    With b = (s + alpha g_t) / (1 + alpha),
    ``alpha |g - g_t|^2 + |g - s|^2 = (1 + alpha) |g - b|^2 + a constant``,
    so that the inner steps need a single tensor of scores.

    Parameters
    ----------
    score, present_score : tensors (S, D)
        Score s of the target, and g_t of the present guide, at the same points.
    weight : float
        Proximal weight alpha.
    """
    return (score + weight * present_score) / (1.0 + weight)


def proximal_gradient(
    density: FlatDensity, parameters: Parameters, theta: Tensor, target: Tensor, weight: float
) -> tuple[Tensor, Parameters]:
    """Proximal objective (up to a constant) and its gradient in the guide's parameters.

    Equation 8 of the paper, for draws ``theta`` (S, D) held fixed, with ``target`` from
    :func:`blended_target`.
    """
    value, gradient = density.mean_square_residual(parameters, theta, target)
    factor = 1.0 + weight
    return factor * value, {name: factor * entry for name, entry in gradient.items()}


class ProximalScoreVI(Engine):
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
        (closed-form scores), ``AutoIAFNormal`` and the like; or the class, which is then called
        with the model. The guide object holds the fit at any time, so that ``guide.median()``,
        ``guide.quantiles()``, ``Predictive(model, guide=guide)`` and ``SVI`` work with it. It
        starts from the values that it has.
    optim : PyroOptim or callable, optional
        Optimizer of the inner steps, whose state goes on over the iterations; see
        :class:`~pyro_ext.optim.EngineOptimizer`. Schedulers advance once an inner step. Default:
        Adam with a learning rate that falls from 0.01 to 0 along a cosine over the run. A rate
        that falls matters: scores are noisy.
    solver : {"gradient", "regression"}
        "gradient" is the paper's. "regression" needs no optimizer; for ``AutoDiagonalNormal`` and
        ``AutoMultivariateNormal``.
    num_samples : int, optional
        Draws S per iteration. Default: 1, but 2 for ``solver="gradient"`` with another guide than
        a diagonal Normal.
    num_inner_steps : int, optional
        Optimizer steps per iteration. Default: 2 for a diagonal Normal, 20 for other guides.
    proximal : "linear", float or callable
        Weight alpha_t of the proximal term: t/T (the paper's), a constant, or a function of
        (t, T). ``solver="regression"`` has its own proximal term.
    total_steps : int, optional
        T when steps are taken with ``step``. ``run(n)`` sets T to the steps taken so far plus n,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. While T
        is unknown, and for steps after the end of a run, t/T is taken as 0: the proximal weight
        is 0 and the default optimizer's rate is its first.
    decay, trust : float
        Constants p and c of ``solver="regression"``; see
        :mod:`pyro_ext.score.gaussian_regression`.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of
    log p (tempered as the target is, from the minibatch) and of log q at the draws.
    Latents inside a subsampled plate are refused, as these guides cannot hold them.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.
    """

    allow_local_latents = False

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: OptimizerLike | None = None,
        solver: str = "gradient",
        num_samples: int | None = None,
        num_inner_steps: int | None = None,
        proximal: ProximalWeight = "linear",
        *,
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
            optim,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            evaluation=evaluation,
            on_nonfinite=on_nonfinite,
            seed=seed,
            dtype=dtype,
        )
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            guide = guide(model)
        check_has_flat_density(guide)
        _check_options(
            solver, optim, num_samples, num_inner_steps, proximal, total_steps, decay, trust
        )
        self.guide = guide
        self.solver = solver
        self.num_samples = num_samples
        self.num_inner_steps = num_inner_steps
        self.proximal = proximal
        self.total_steps = total_steps
        self.decay = decay
        self.trust = trust
        self._density: FlatDensity | None = None
        self._parameters: Parameters = {}
        self._optimizer: EngineOptimizer | None = None
        self._default_optimizer: torch.optim.Optimizer | None = None
        self._regression: Regression | None = None
        self._draws = seeded_generator(self._generator.initial_seed(), 1)

    # -- engine hooks --------------------------------------------------------------------------

    def _initialize(self, data: Data) -> None:
        seed = int(torch.randint(2**62, (), generator=self._generator))
        density = flat_density(
            self.guide,
            data.args,
            data.kwargs,
            layout=self.target.layout,
            dtype=self.target.dtype,
            seed=seed,
        )
        # The guide's own tensors: it is always the present fit, without copies.
        parameters = density.live_parameters()
        if self.solver == "regression":
            if density.covariance_structure not in ("diagonal", "full"):
                raise ArgumentError(
                    "Expected AutoDiagonalNormal or AutoMultivariateNormal for "
                    f"solver='regression', found {type(self.guide).__name__}. Use "
                    "solver='gradient', which takes every guide with a flat log density."
                )
            self._regression = initial_regression(density.moments(parameters).scale)
        else:
            self._optimizer = EngineOptimizer(self.optim or self._make_default, parameters)
        diagonal = density.covariance_structure == "diagonal"
        if self.num_samples is None:
            single = diagonal or self.solver == "regression"
            self.num_samples = SAMPLES_DIAGONAL if single else SAMPLES
        if self.num_inner_steps is None:
            self.num_inner_steps = INNER_STEPS_DIAGONAL if diagonal else INNER_STEPS
        self._density, self._parameters = density, parameters

    def _make_default(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        self._default_optimizer = torch.optim.Adam(tensors, lr=LEARNING_RATE)
        return self._default_optimizer

    def _update(self, data: Data) -> Update:
        density = self.density
        assert self.num_samples is not None
        with torch.no_grad():
            theta = density.sample(self._parameters, self._generator, self.num_samples)
            present = density.score(self._parameters, theta)
            log_q = density.log_prob(self._parameters, theta).mean()
        score, log_prior, log_likelihood = self._score(theta, data)
        log_p = (log_prior + log_likelihood / self.target.likelihood_temperature).mean()
        loss = float((present - score).square().sum(-1).mean())
        info = {"log_p": float(log_p), "log_q": float(log_q)}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite and self.solver == "regression":
            finite = self._regression_step(theta, score)
        elif finite:
            weight = self._weight()
            target = blended_target(score, present, weight)
            del score, present
            finite = self._gradient_steps(theta, target, weight)
        return Update(loss, info, finite)

    def _settings(self) -> dict[str, str]:
        optimizer = "none" if self._optimizer is None else self._optimizer.description
        guide = type(self.guide).__name__
        return {"solver": self.solver, "guide": guide, "optimizer": optimizer}

    def _algorithm_state(self) -> dict[str, Any]:
        return {
            "parameters": {
                name: value.detach().clone() for name, value in self._parameters.items()
            },
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
            "regression": None if self._regression is None else self._regression._asdict(),
            "total_steps": self._total,
            "draws": self._draws.get_state(),
        }

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        found = {name: tuple(value.shape) for name, value in state["parameters"].items()}
        expected = {name: tuple(value.shape) for name, value in self._parameters.items()}
        if found != expected:
            raise ArgumentError(
                f"The saved state belongs to another guide: expected parameters {expected}, "
                f"found {found}."
            )
        self._write(state["parameters"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        if self._regression is not None:
            self._regression = Regression(**state["regression"])
        self._draws.set_state(state["draws"])
        if self._horizon is None:
            self._horizon = state["total_steps"]

    def load(self, path: Any) -> None:
        # The saved T holds until a run sets its own.
        self._horizon = None
        super().load(path)

    load.__doc__ = Engine.load.__doc__

    def _draw(self, num_samples: int | None) -> Tensor:
        # A generator of its own: asking for draws must not change how a run goes on.
        number = DRAWS if num_samples is None else num_samples
        return self.density.sample(self._parameters, self._draws, number)

    # -- the fit -------------------------------------------------------------------------------

    @torch.no_grad()
    def sample_statistics(self, positions: Tensor) -> dict[str, Tensor]:
        """Log density of the guide at flat positions (S, D), for ``to_arviz``."""
        return {"log_q": self.density.log_prob(self._parameters, positions)}

    @property
    def density(self) -> FlatDensity:
        """The guide as a density over the flat unconstrained vector."""
        self.target  # noqa: B018 - raises before the model's arguments are known
        assert self._density is not None
        return self._density

    @property
    def parameters(self) -> Parameters:
        """Copy of the guide's present unconstrained parameters."""
        return {name: value.detach().clone() for name, value in self._parameters.items()}

    # -- steps ---------------------------------------------------------------------------------

    @property
    def _total(self) -> int | None:
        if self._horizon is None or self.num_steps_taken >= self._horizon:
            return self.total_steps
        return self._horizon

    def _progress(self) -> float:
        """Fraction t/T of the run that is done."""
        total = self._total
        return min(self.num_steps_taken / total, 1.0) if total else 0.0

    def _weight(self) -> float:
        if self.proximal == "linear":
            return self._progress()
        if callable(self.proximal):
            return float(self.proximal(self.num_steps_taken, self._total or 0))
        return float(self.proximal)

    def _gradient_steps(self, theta: Tensor, target: Tensor, weight: float) -> bool:
        assert self._optimizer is not None and self.num_inner_steps is not None
        before = self.parameters, self._optimizer.snapshot()
        if self._default_optimizer is not None:
            rate = LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * self._progress()))
            for group in self._default_optimizer.param_groups:
                group["lr"] = rate
        finite = True
        for _ in range(self.num_inner_steps):
            value, gradient = proximal_gradient(
                self.density, self._parameters, theta, target, weight
            )
            finite = math.isfinite(float(value))
            if not finite:
                break
            self._optimizer.step(gradient)
        finite = finite and _all_finite(self._parameters)
        if not finite:
            self._write(before[0])
            self._optimizer.load_state_dict(before[1])
        return finite

    @torch.no_grad()
    def _regression_step(self, theta: Tensor, score: Tensor) -> bool:
        assert self._regression is not None
        regression = observe(self._regression, theta, score, self.decay)
        if is_warm(regression):
            present = self.density.moments(self._parameters)
            moments = updated_moments(regression, present, self.trust)
            parameters = self.density.set_moments(self._parameters, moments)
            if not _all_finite(parameters):
                return False
            self._write(parameters)
        self._regression = regression
        return True

    @torch.no_grad()
    def _write(self, parameters: Parameters) -> None:
        for name, value in self._parameters.items():
            value.copy_(parameters[name])


def _all_finite(parameters: Parameters) -> bool:
    return all(bool(value.isfinite().all()) for value in parameters.values())


def _check_options(
    solver: str,
    optim: Any,
    num_samples: int | None,
    num_inner_steps: int | None,
    proximal: Any,
    total_steps: int | None,
    decay: float,
    trust: float,
) -> None:
    if solver not in SOLVERS:
        raise ArgumentError(f"Expected solver to be one of {SOLVERS}, found {solver!r}.")
    if solver == "regression" and optim is not None:
        raise ArgumentError(
            "Expected optim=None with solver='regression', which has no optimizer, found "
            f"{type(optim).__name__}. Leave it out, or use solver='gradient'."
        )
    if num_samples is not None and num_samples < 1:
        raise ArgumentError(f"Expected num_samples >= 1, found {num_samples}.")
    if num_inner_steps is not None and num_inner_steps < 1:
        raise ArgumentError(f"Expected num_inner_steps >= 1, found {num_inner_steps}.")
    if total_steps is not None and total_steps < 1:
        raise ArgumentError(f"Expected total_steps >= 1, found {total_steps}.")
    number = isinstance(proximal, (int, float)) and proximal >= 0
    if not (number or callable(proximal) or proximal == "linear"):
        raise ArgumentError(
            "Expected proximal to be 'linear', a number >= 0 or a function of (t, T), found "
            f"{proximal!r}."
        )
    if not 0 < decay <= 1:
        raise ArgumentError(f"Expected 0 < decay <= 1, found {decay}.")
    if not trust > 1:
        raise ArgumentError(f"Expected trust > 1, found {trust}.")
