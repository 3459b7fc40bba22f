"""Gaussian score matching (``GSM``).

The guide is moved as little as possible, in Kullback-Leibler divergence, such that its score
equals the target's at a draw. For a Normal guide that has a closed form; over several draws the
updates are averaged. After C. Modi, C. Margossian, Y. Yao, R. Gower, D. Blei, L. Saul,
"Variational inference with Gaussian score matching" (NeurIPS 2023), Theorem 1 and Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import GaussianMatching


def gsm_update(moments: Moments, theta: Tensor, score: Tensor) -> Moments:
    """Moments of the next guide: the mean over draws of each draw's own update.

    The update for one draw minimises KL(present, new) among the Normals whose score at the draw
    is the target's.

    Parameters
    ----------
    moments : Moments
        Mean (D,) and Cholesky factor (D, D) of the present guide.
    theta, score : tensors (S, D)
        Draws from it, and the scores of the target there.

    Returns
    -------
    Moments
        With NaN for a scale when the covariance is not positive definite. That cannot happen in
        exact arithmetic; in floating point the covariance is a difference.
    """
    mean, scale = moments
    covariance = scale @ scale.T
    offset = mean - theta
    pulled = score @ covariance
    square, inner = (score * pulled).sum(-1), (offset * score).sum(-1)
    rho = 0.5 * (1.0 + 4.0 * (square + inner.square())).sqrt() - 0.5
    epsilon = pulled - offset
    along = (score * epsilon).sum(-1) / (1.0 + rho + inner)
    move = (epsilon - offset * along.unsqueeze(-1)) / (1.0 + rho).unsqueeze(-1)
    moved = offset + move
    covariance = covariance + (offset.T @ offset - moved.T @ moved) / len(theta)
    covariance = 0.5 * (covariance + covariance.T)
    # As little as keeps a covariance that is singular to rounding positive definite.
    jitter = torch.finfo(covariance.dtype).eps * covariance.diagonal().mean()
    factor, failed = torch.linalg.cholesky_ex(covariance + jitter * torch.eye(len(mean)).to(mean))
    if failed:
        factor = torch.full_like(factor, torch.nan)
    return Moments(mean + move.mean(0), factor)


class GSM(GaussianMatching):
    """Gaussian score matching: closed-form updates of a full Normal guide.

    Each step draws from the guide q_t and moves it to the Normal q that is nearest to q_t in
    KL(q_t, q) among those with grad log q = s at a draw, where s is the target's score; over the
    draws of a step the updates of mean and covariance are averaged. There is no learning rate.

    Exact for Normal posteriors. For others it does not settle: as the fit goes on matching the
    latest draws, it keeps moving around the best Normal. It needs exact scores: noise, as of
    minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`): on a correlated Normal in five dimensions
    nine tenths of the covariance are lost to :class:`~pyro_ext.gradients.noisy.Noisy` of level 1.

    Far from the posterior all scores are large and nearly equal. They shrink the covariance along
    them and thereby the steps: on a Normal in three dimensions with correlations of 0.9, from 20
    standard deviations away, 6 to 17 are left after 1,000 steps. Start near.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``. The
        guide object holds the fit at any time.
    num_samples : int
        Draws S per step. The paper finds little gain beyond 2.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, and ``rejected``, which is 1 for a step
    whose covariance was not positive definite, so that the guide stayed as it was.

    References
    ----------
    C. Modi et al., "Variational inference with Gaussian score matching", NeurIPS 2023.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.
    """

    def _matched(self, moments: Moments, theta: Tensor, score: Tensor) -> Moments:
        return gsm_update(moments, theta, score)
