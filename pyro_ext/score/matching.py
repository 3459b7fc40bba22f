"""``GSM`` and ``BaM``: closed-form updates of a full Normal guide from exact scores.

See :mod:`ppl_ext.score_matching.matching`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from ppl_ext.score_matching import matching as shared
from ppl_ext.score_matching.regression.overflow import LENIENCE
from pyro_ext.density import Data
from pyro_ext.descent import all_finite
from pyro_ext.engine import Update
from pyro_ext.gradients import Full
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from pyro_ext.score.overflow import judged


def first_state(engine: Any, plan: GuidePlan, data: Data) -> GuideState:
    """The state before the first step."""
    # Mean square of the scores seen, whitened by the guide; 0 before there are any.
    state: GuideState = GuideEngine._initialize(engine, plan, data)
    return state._replace(method=0.0)


def step(engine: Any, plan: GuidePlan, state: GuideState, data: Data) -> Update:
    """One step."""
    density, parameters = plan.density, plan.parameters
    with torch.no_grad():
        theta = density.sample(parameters, engine._generator, plan.num_samples)
        log_prob, present = density.log_prob_and_score(parameters, theta)
        log_q = log_prob.mean()
    found = engine._score(theta, data)
    log_p = found.log_density(plan.target.likelihood_temperature).mean()
    loss = float((present - found.score).square().sum(-1).mean())
    info = {"log_p": float(log_p), "log_q": float(log_q), "pull": math.nan, "rejected": 0.0}
    finite = math.isfinite(loss) and math.isfinite(info["log_p"])
    if finite:
        with torch.no_grad():
            moments = density.moments(parameters)
            whitened = found.score @ moments.scale
            # Of scores in units of the guide, which does not depend on how coordinates are scaled.
            latest = float(whitened.square().sum(-1).mean())
            info["pull"] = float(shared.pull(whitened))
            sound, score_square = _screened(state.method, latest)
            moments = engine._matched(moments, theta, found.score, engine.num_steps_taken)
            matched = density.set_moments(parameters, moments)
        state = state._replace(method=score_square)
        if sound and all_finite(matched):
            engine._write(plan, matched)
        else:
            info["rejected"] = 1.0
    return Update(loss, info, finite, state)


def _screened(seen: float, latest: float) -> tuple[bool, float]:
    """Whether the latest scores do not come from an overflow, and the next value of ``seen``.

    Both arguments are mean squares of scores whitened by the guide: a running average of those
    before, 0 where there are none, and that of the latest.
    """
    verdict = judged(seen, latest)
    after = seen + shared.RECENT * (latest - seen) if seen > 0.0 else latest
    return not verdict.wild, verdict.choose(lambda: LENIENCE * seen, lambda: latest, lambda: after)


def gsm_update(
    moments: Moments, theta: Float[Tensor, "S D"], score: Float[Tensor, "S D"]
) -> Moments:
    """Moments of the next guide, from the scores of the target at draws from the present one.

    With NaN for a scale when the covariance is not positive definite. That cannot happen in exact
    arithmetic; in floating point the covariance is a difference.
    """
    mean, covariance = shared.gsm_moments(*moments, theta, score)
    # As little as keeps a covariance that is singular to rounding positive definite, in units of
    # each coordinate: scales may differ by orders of magnitude.
    scale = covariance.diagonal().sqrt()
    jitter = torch.finfo(mean.dtype).eps * torch.eye(len(mean)).to(mean)
    factor, failed = torch.linalg.cholesky_ex(covariance / scale / scale[:, None] + jitter)
    if failed:
        factor = torch.full_like(factor, torch.nan)
    return Moments(mean, scale[:, None] * factor)


class GSM(shared.MatchingShell, GuideEngine):
    """Gaussian score matching: closed-form updates of a full Normal guide.

    Each step draws from the guide q_t and moves it to the Normal q that is nearest to q_t in
    KL(q_t, q) among those with grad log q = s at a draw, where s is the target's score; over the
    draws of a step the updates of mean and covariance are averaged. There is no learning rate.

    Exact for Normal posteriors. For others it does not settle: as the fit goes on matching the
    latest draws, it keeps moving around the best Normal. It needs exact scores: noise, as of
    minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`): on a correlated Normal in five dimensions
    nine tenths of the covariance are lost to ``Noisy`` scores of level 1.

    Far from the posterior all scores are large and nearly equal. They shrink the covariance along
    them and thereby the steps: on a Normal in three dimensions with correlations of 0.9, from 20
    standard deviations away, 6 to 17 are left after 1,000 steps. Start near.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``, which is
        then ``engine.guide``. The guide object holds the fit at any time.
    num_samples : int
        Draws S per step. The paper finds little gain beyond 2.
    **options
        Options of every engine but ``init_strategy``; see :class:`~pyro_ext.engine.Engine`. The
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, ``pull``, the square of the length of the
    target's mean score in units of the guide, and ``rejected``, which is 1 for a step
    whose covariance was not positive definite, so that the guide stayed as it was.

    References
    ----------
    C. Modi et al., "Variational inference with Gaussian score matching", NeurIPS 2023,
    https://arxiv.org/abs/2307.07849.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.GSM(model, seed=0)
    >>> result = engine.run(50, y)
    >>> draws = engine.get_samples(1000)
    >>> print(f"{engine.guide.median()['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    _normal_guide, _exact = AutoMultivariateNormal, Full
    _initialize, _update = first_state, step

    def _matched(self, moments: Moments, theta: Tensor, score: Tensor, step: int) -> Moments:
        return gsm_update(moments, theta, score)


def bam_update(
    moments: Moments,
    theta: Float[Tensor, "S D"],
    score: Float[Tensor, "S D"],
    weight: float,
) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    ``moments`` are those of the present guide, which drew ``theta``; ``score`` is the target's
    there, and ``weight`` the paper's lambda_t: weight of the scores against the present guide.
    """
    return Moments(*shared.bam_moments(torch, _triangular, *moments, theta, score, weight))


def _triangular(rows: Float[Tensor, "n D"]) -> Float[Tensor, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = torch.linalg.qr(rows, mode="r").R
    # QR leaves the signs of rows open; a Cholesky factor has a positive diagonal.
    return upper.T * torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper)


class BaM(shared.MatchingShell, GuideEngine):
    """Batch and match: closed-form proximal updates of a full Normal guide.

    Each step draws a batch from the guide q_t and takes the Normal q that minimises

        mean |grad log q - s|^2 in the norm of Cov(q)  +  (2 / lambda_t) KL(q_t, q)

    over the batch, where s is the target's score.

    Exact for Normal posteriors, and settles on others if lambda_t falls. It needs exact scores:
    noise, as of minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`). Noise looks like curvature and shrinks the
    covariance: on a correlated Normal in five dimensions it ends at a few hundredths of the
    target's with ``Noisy`` scores of level 1.

    Far from the posterior all scores are large and nearly equal. They shrink the covariance along
    them and thereby the steps, which a falling lambda_t can then end: on a Normal in three
    dimensions with correlations of 0.9, from 20 standard deviations away, more than 16 are left
    after 1,000 steps, where a constant lambda of S D takes fewer than 100. Start near, or with a
    constant.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``, which is
        then ``engine.guide``. The guide object holds the fit at any time.
    num_samples : int
        Draws S per step. More make a step better, not only less random; the paper takes 8 to 32
        on posteriors of about ten dimensions.
    regularization : "decaying", float or callable
        lambda_t, the paper's learning rate: the larger, the further a step goes. "decaying" is
        S D / (t + 1), with which the paper fits all posteriors and other targets that are not
        Normal; a constant, such as the S D that it uses for Normal targets; or a function of
        the step t = 0, 1, ...
    **options
        Options of every engine but ``init_strategy``; see :class:`~pyro_ext.engine.Engine`. The
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, ``pull``, the square of the length of the
    target's mean score in units of the guide, and ``rejected``, which is 1 for a step
    whose covariance was singular to rounding, so that the guide stayed as it was.

    References
    ----------
    D. Cai et al., "Batch and match: black-box variational inference with a score-based
    divergence", ICML 2024, https://arxiv.org/abs/2402.14758: Algorithm 1; schedules in sections
    5.1 and 5.2.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.BaM(model, seed=0)
    >>> result = engine.run(50, y)
    >>> draws = engine.get_samples(1000)
    >>> print(f"{engine.guide.median()['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    _normal_guide, _exact = AutoMultivariateNormal, Full
    _initialize, _update = first_state, step

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any = None,
        num_samples: int = 8,
        regularization: shared.Regularization = "decaying",
        **options: Any,
    ) -> None:
        super().__init__(model, guide, num_samples, **options)
        self.regularization = shared.checked_regularization(regularization)

    def _weight(self, size: int) -> float:
        return float(shared.regularization_at(self.regularization, self.num_steps_taken, size))

    def _matched(self, moments: Moments, theta: Tensor, score: Tensor, step: int) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.numel()))
