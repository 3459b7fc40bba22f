"""Gaussian score matching (``GSM``); see :mod:`ppl_ext.score_matching.matching`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.matching import GSMShell, gsm_moments
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import GaussianMatching
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


class GSM(GSMShell, GaussianMatching, GuideEngine):
    """Examples
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

    def _matched(
        self,
        moments: Moments,
        theta: Float[Tensor, "S D"],
        score: Float[Tensor, "S D"],
        step: int,
    ) -> Moments:
        return gsm_update(moments, theta, score)
