"""Gaussian score matching (``GSM``); see :mod:`ppl_ext.score_matching.matching`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from ppl_ext.score_matching.matching import MatchingShell, gsm_moments
from pyro_ext.gradients import Full
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import first_state, step
from pyro_ext.score.guide_engine import GuideEngine


def gsm_update(
    moments: Moments, theta: Float[Tensor, "S D"], score: Float[Tensor, "S D"]
) -> Moments:
    """Moments of the next guide, from the scores of the target at draws from the present one.

    With NaN for a scale when the covariance is not positive definite. That cannot happen in exact
    arithmetic; in floating point the covariance is a difference.
    """
    mean, covariance = gsm_moments(*moments, theta, score)
    # As little as keeps a covariance that is singular to rounding positive definite.
    jitter = torch.finfo(covariance.dtype).eps * covariance.diagonal().mean()
    factor, failed = torch.linalg.cholesky_ex(covariance + jitter * torch.eye(len(mean)).to(mean))
    if failed:
        factor = torch.full_like(factor, torch.nan)
    return Moments(mean, factor)


class GSM(MatchingShell, GuideEngine):
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
