"""Batch and match (``BaM``): proximal score matching of a full Normal guide, in closed form.

After D. Cai, C. Modi, L. Pillaud-Vivien, C. Margossian, R. Gower, D. Blei, L. Saul, "Batch and
match: black-box variational inference with a score-based divergence" (ICML 2024), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.gradients import GradientEstimator
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import GaussianMatching

Regularization = str | float | Callable[[int], float]


def bam_update(moments: Moments, theta: Tensor, score: Tensor, weight: float) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    The objective is the mean over draws of |grad log q - s|^2 in the norm of Cov(q), plus
    (2 / weight) KL(present, q). Its minimum solves ``Sigma U Sigma + Sigma = V`` with

        U = weight * Cov(s) + r * mean(s) mean(s)^T,
        V = Sigma_t + weight * Cov(theta) + r * (mu_t - mean(theta)) (mu_t - mean(theta))^T,

    r = weight / (1 + weight), where means and covariances are those of the draws. With V = L L^T
    and singular values d_i of a root of U times L, the solution is L S L^T, where S has the same
    right singular vectors and eigenvalues ``2 / (1 + sqrt(1 + 4 d_i^2))``. All of it is done on
    roots, so that the covariance is positive definite whatever the scores.

    Parameters
    ----------
    moments : Moments
        Mean (D,) and Cholesky factor (D, D) of the present guide.
    theta, score : tensors (S, D)
        Draws from it, and the scores of the target there.
    weight : float
        The paper's lambda_t: weight of the scores against the present guide.
    """
    mean, scale = moments
    number = len(theta)
    share = weight / (1.0 + weight)
    theta_mean, score_mean = theta.mean(0), score.mean(0)
    spread, pull = (weight / number) ** 0.5, (share / number) ** 0.5
    # The mean is added to every row, where the deviations from it add up to zero: one row more
    # than draws would have a singular value that is zero but for rounding, which is not small
    # against 1 when scores are large.
    rows = spread * (theta - theta_mean) + pull * (mean - theta_mean)
    root = _triangular(torch.cat([scale.T, rows]))
    rows = spread * (score - score_mean) + pull * score_mean
    _, singular, directions = torch.linalg.svd(rows @ root, full_matrices=False)
    shrunk = (2.0 / (1.0 + (1.0 + 4.0 * singular.square()).sqrt())).sqrt()
    # The root of S is the identity but for these directions.
    root = root - ((root @ directions.T) * (1.0 - shrunk)) @ directions
    scale = _triangular(root.T)
    new_mean = (1.0 - share) * mean + share * (scale @ (scale.T @ score_mean) + theta_mean)
    return Moments(new_mean, scale)


def _triangular(rows: Tensor) -> Tensor:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R (n, D)."""
    upper = torch.linalg.qr(rows, mode="r").R
    return upper.T * torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper)


class BaM(GaussianMatching):
    """Batch and match: closed-form proximal updates of a full Normal guide.

    Each step draws a batch from the guide q_t and takes the Normal q that minimises

        mean |grad log q - s|^2 in the norm of Cov(q)  +  (2 / lambda_t) KL(q_t, q)

    over the batch, where s is the target's score.

    Exact for Normal posteriors, and settles on others if lambda_t falls. It needs exact scores:
    noise, as of minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`). Noise looks like curvature and shrinks the
    covariance: on a correlated Normal in five dimensions it ends at a few hundredths of the
    target's with :class:`~pyro_ext.gradients.noisy.Noisy` of level 1.

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
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``. The
        guide object holds the fit at any time.
    num_samples : int
        Draws S per step. More make a step better, not only less random; the paper takes 8 to 32
        on posteriors of about ten dimensions.
    regularization : "decaying", float or callable
        lambda_t, the paper's learning rate: the larger, the further a step goes. "decaying" is
        S D / (t + 1), with which the paper fits all posteriors and other targets that are not
        Normal; a constant, such as the S D that it uses for Normal targets; or a function of
        the step t = 0, 1, ....
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, and ``rejected``, which is 1 for a step
    whose covariance was singular to rounding, so that the guide stayed as it was.

    References
    ----------
    D. Cai et al., "Batch and match: black-box variational inference with a score-based
    divergence", ICML 2024: Algorithm 1; schedules in sections 5.1 and 5.2.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any = None,
        num_samples: int = 8,
        regularization: Regularization = "decaying",
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
        super().__init__(
            model,
            guide,
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
        number = isinstance(regularization, int | float) and regularization > 0
        if not (number or callable(regularization) or regularization == "decaying"):
            raise ArgumentError(
                "Expected regularization to be 'decaying', a number > 0 or a function of the step, "
                f"found {regularization!r}."
            )
        self.regularization = regularization

    def _weight(self, size: int) -> float:
        if self.regularization == "decaying":
            return size / (self.num_steps_taken + 1)
        if callable(self.regularization):
            return float(self.regularization(self.num_steps_taken))
        return float(self.regularization)

    def _matched(self, moments: Moments, theta: Tensor, score: Tensor) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.numel()))
