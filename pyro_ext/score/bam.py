"""Batch and match (``BaM``); see :mod:`ppl_ext.score_matching.matching`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.matching import BaMShell, bam_moments
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import GaussianMatching
from pyro_ext.score.guide_engine import GuideEngine


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
    return Moments(*bam_moments(torch, _triangular, *moments, theta, score, weight))


def _triangular(rows: Float[Tensor, "n D"]) -> Float[Tensor, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = torch.linalg.qr(rows, mode="r").R
    return upper.T * torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper)


class BaM(BaMShell, GaussianMatching, GuideEngine):
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
    >>> engine = px.BaM(model, seed=0)
    >>> result = engine.run(50, y)
    >>> draws = engine.get_samples(1000)
    >>> print(f"{engine.guide.median()['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    def _weight(self, size: int) -> float:
        return float(self._regularization_at(self.num_steps_taken, size))

    def _matched(
        self,
        moments: Moments,
        theta: Float[Tensor, "S D"],
        score: Float[Tensor, "S D"],
        step: int,
    ) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.numel()))
