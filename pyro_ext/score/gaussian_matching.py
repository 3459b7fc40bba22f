"""What ``GSM`` and ``BaM`` share: closed-form updates of a full Normal guide from exact scores.

A step draws from the guide, evaluates the scores of the target at the draws, and replaces mean
and covariance by a function of these. Nothing is averaged over steps, so noise in the scores
goes straight into the fit; but steps with scores that come from an overflow are left out, see
:mod:`pyro_ext.score.overflow`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Generator, Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.regression.overflow import LENIENCE
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Update
from pyro_ext.gradients import Full, GradientEstimator
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, all_finite
from pyro_ext.score.overflow import judged

#: Weight of the latest step in the mean square of the scores.
RECENT = 0.1


class GaussianMatching(GuideEngine):
    """Base of the engines that update a full Normal guide in closed form.

    A subclass fills in ``_matched``. A covariance that is not positive definite is not taken: the
    guide stays as it was in that step, and ``info["rejected"]`` is 1; so is one from scores that
    are beyond all that was seen.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``.
    num_samples : int
        Draws S per step.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any = None,
        num_samples: int = 2,
        *,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        evaluation: str = "graph",
        on_nonfinite: str = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        guide = AutoMultivariateNormal if guide is None else guide
        guide_class = guide if isinstance(guide, type) else type(guide)
        if not issubclass(guide_class, AutoMultivariateNormal):
            raise ArgumentError(
                f"Expected AutoMultivariateNormal, the only guide that {type(self).__name__} can "
                f"update in closed form, found {guide_class.__name__}. Leave the guide out, or use "
                "ProximalScoreVI, which takes every guide with a flat log density."
            )
        super().__init__(
            model,
            guide,
            None,
            num_samples,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            evaluation=evaluation,
            on_nonfinite=on_nonfinite,
            seed=seed,
            dtype=dtype,
        )

    @abstractmethod
    def _matched(self, moments: Moments, theta: Tensor, score: Tensor) -> Moments:
        """New moments from the present ones and the scores (S, D) of the target at draws theta.

        Not finite where the update gives no positive definite covariance.
        """

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> GuidePlan:
        plan = super()._plan(target, generator, data)
        estimator = plan.estimator
        if not isinstance(estimator, Full) or estimator.evaluations_per_step(target) != 1.0:
            self._warn_of_noise(
                plan,
                "Its update follows their noise instead of averaging it, and the covariance comes "
                "out wrong.",
            )
        return plan

    def _initialize(self, plan: GuidePlan, data: Data) -> None:
        super()._initialize(plan, data)
        # Mean square of the scores seen, whitened by the guide; 0 before there are any.
        self._score_square = 0.0

    def _update(self, plan: GuidePlan, data: Data) -> Update:
        density = plan.density
        with torch.no_grad():
            theta = density.sample(self._parameters, self._generator, plan.num_samples)
            log_prob, present = density.log_prob_and_score(self._parameters, theta)
            log_q = log_prob.mean()
        found = self._score(theta, data)
        log_p = found.log_density(plan.target.likelihood_temperature).mean()
        loss = float((present - found.score).square().sum(-1).mean())
        info = {"log_p": float(log_p), "log_q": float(log_q), "rejected": 0.0}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite:
            with torch.no_grad():
                moments = density.moments(self._parameters)
                sound = self._screened(float((found.score @ moments.scale).square().sum(-1).mean()))
                moments = self._matched(moments, theta, found.score)
                parameters = density.set_moments(self._parameters, moments)
            if sound and all_finite(parameters):
                self._write(parameters)
            else:
                info["rejected"] = 1.0
        return Update(loss, info, finite)

    def _algorithm_state(self) -> dict[str, Any]:
        return {**super()._algorithm_state(), "score_square": self._score_square}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._score_square = state["score_square"]

    def _screened(self, latest: float) -> bool:
        """Whether scores of this mean square do not come from an overflow; counts them in."""
        seen = self._score_square
        verdict = judged(seen, latest)
        after = seen + RECENT * (latest - seen) if seen > 0.0 else latest
        self._score_square = verdict.choose(LENIENCE * seen, latest, after)
        return not verdict.wild
