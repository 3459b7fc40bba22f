"""Closed-form updates of a full Normal guide from exact scores, without arrays' libraries.

A step draws from the guide, evaluates the scores of the target at the draws, and replaces mean
and covariance by a function of these. Nothing is averaged over steps, so noise in the scores
goes straight into the fit; but steps with scores that come from an overflow are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`.

*Gaussian score matching* (``GSM``). The guide is moved as little as possible, in Kullback-Leibler
divergence, such that its score equals the target's at a draw. For a Normal guide that has a closed
form; over several draws the updates are averaged. After C. Modi, C. Margossian, Y. Yao, R. Gower,
D. Blei, L. Saul, "Variational inference with Gaussian score matching" (NeurIPS 2023,
https://arxiv.org/abs/2307.07849), Theorem 1 and Algorithm 1.

*Batch and match* (``BaM``), proximal score matching. The objective of one step is the mean over
draws of |grad log q - s|^2 in the norm of Cov(q), plus (2 / weight) KL(present, q). Its minimum
solves ``Sigma U Sigma + Sigma = V`` with

    U = weight * Cov(s) + r * mean(s) mean(s)^T,
    V = Sigma_t + weight * Cov(theta) + r * (mu_t - mean(theta)) (mu_t - mean(theta))^T,

r = weight / (1 + weight), where means and covariances are those of the draws. With V = L L^T
and singular values d_i of a root of U times L, the solution is L S L^T, where S has the same
right singular vectors and eigenvalues ``2 / (1 + sqrt(1 + 4 d_i^2))``. All of it is done on
roots, so that the covariance is positive definite whatever the scores. After D. Cai, C. Modi,
L. Pillaud-Vivien, C. Margossian, R. Gower, D. Blei, L. Saul, "Batch and match: black-box
variational inference with a score-based divergence" (ICML 2024, https://arxiv.org/abs/2402.14758),
Algorithm 1.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.engines.descent import warn_of_noise
from ppl_ext.errors import ArgumentError, ConvergenceWarning
from ppl_ext.options import refuse
from ppl_ext.running.piece import Piece

#: Weight of the latest step in the mean square of the scores.
RECENT = 0.1

#: Steps by which the end of a run is judged, and the pull above which its guide is displaced.
WINDOW, DISPLACED = 50, 0.5

Regularization = str | float | Callable[[Any], Any]


def pull(whitened: Float[Any, "S D"]) -> Any:
    """Square of the length of the target's mean score under the guide, whitened by it.

    Free of bias, from the scores s at draws, as L^T s; NaN for one draw. A guide at the target
    has a mean score near 0. Where all scores are nearly equal, as far from the target, the matches
    shrink the guide until it is about 1.
    """
    number = len(whitened)
    mean = whitened.mean(0)
    spread = ((whitened - mean) ** 2).sum(-1).mean()
    # |mean|^2 has the variance of a mean too much, which is spread / (S - 1) without bias, since
    # spread divides by S.
    return (mean * mean).sum() - spread / (number - 1) if number > 1 else spread * math.nan


def gsm_moments(
    mean: Float[Any, " D"],
    scale: Float[Any, "D D"],
    theta: Float[Any, "S D"],
    score: Float[Any, "S D"],
) -> tuple[Float[Any, " D"], Float[Any, "D D"]]:
    """Mean and covariance of the next guide of ``GSM``: the mean of each draw's own update.

    The update for one draw minimises KL(present, new) among the Normals whose score at the draw
    is the target's. ``scale`` is the Cholesky factor of the present covariance.
    """
    # Shapes: offset, pulled, epsilon, move (S, D); square, inner, rho, along (S,).
    covariance = scale @ scale.T
    offset = mean - theta
    pulled = score @ covariance
    square, inner = (score * pulled).sum(-1), (offset * score).sum(-1)
    # rho (1 + rho) = s' Sigma s + ((mu - theta)' s)^2, with names as in Algorithm 1.
    rho = 0.5 * (1.0 + 4.0 * (square + inner * inner)) ** 0.5 - 0.5
    # epsilon = Sigma s - mu + theta; the move is [I - (mu - theta) s' / (1 + rho + (mu - theta)'
    # s)] epsilon / (1 + rho).
    epsilon = pulled - offset
    along = (score * epsilon).sum(-1) / (1.0 + rho + inner)
    move = (epsilon - offset * along[:, None]) / (1.0 + rho)[:, None]
    moved = offset + move
    # Of each draw an update of rank two, (mu - theta) (mu - theta)' before less that after.
    covariance = covariance + (offset.T @ offset - moved.T @ moved) / len(theta)
    return mean + move.mean(0), 0.5 * (covariance + covariance.T)


def bam_moments(
    xp: Any,
    triangular: Callable[[Any], Any],
    mean: Float[Any, " D"],
    scale: Float[Any, "D D"],
    theta: Float[Any, "S D"],
    score: Float[Any, "S D"],
    weight: Any,
) -> tuple[Float[Any, " D"], Float[Any, "D D"]]:
    """Mean and Cholesky factor of the next guide of ``BaM``, the minimum of one step's objective.

    ``scale`` is the factor of the present covariance. ``xp`` is the host's module of arrays, and
    ``triangular`` gives a lower triangular L of positive diagonal with L L^T = R^T R.
    """
    number, share = len(theta), weight / (1.0 + weight)
    theta_mean, score_mean = theta.mean(0), score.mean(0)
    spread, pull = (weight / number) ** 0.5, (share / number) ** 0.5
    # The mean is added to every row, where the deviations from it add up to zero: one row more
    # than draws would have a singular value that is zero but for rounding, which is not small
    # against 1 when scores are large.
    rows = spread * (theta - theta_mean) + pull * (mean - theta_mean)
    # L with L L^T = V.
    root = triangular(xp.concatenate([scale.T, rows]))
    rows = spread * (score - score_mean) + pull * score_mean
    # U is the square of these rows, so that the squares of the singular values are the eigenvalues
    # of L^T U L: at most S of them are not zero, and no (D, D) eigenproblem is solved.
    _, singular, directions = xp.linalg.svd(rows @ root, full_matrices=False)
    # The root of S, since root times its transpose is L S L^T.
    shrunk = xp.sqrt(2.0 / (1.0 + xp.sqrt(1.0 + 4.0 * singular * singular)))
    # The root of S is the identity but for these directions.
    root = root - ((root @ directions.T) * (1.0 - shrunk)) @ directions
    scale = triangular(root.T)
    new_mean = (1.0 - share) * mean + share * (scale @ (scale.T @ score_mean) + theta_mean)
    return new_mean, scale


@documents_subclasses
class MatchingShell(ABC):
    """Part of the engines that update a full Normal guide in closed form.

    A subclass fills in ``_matched``. A covariance that is not positive definite is not taken: the
    guide stays as it was in that step, and ``info["rejected"]`` is 1; so is one from scores that
    are beyond all that was seen.

    Parameters
    ----------
    model : callable
        The host's model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``.
    num_samples : int
        Draws S per step.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.
    """

    _gentler: ClassVar[str] = "Use double precision, or write latents in units of their own scale"
    #: The host's guide, and its estimator of exact scores.
    _normal_guide: ClassVar[type]
    _exact: ClassVar[type]

    def __init__(
        self, model: Callable[..., Any], guide: Any = None, num_samples: int = 2, **options: Any
    ) -> None:
        guide = self._normal_guide if guide is None else guide
        guide_class = guide if isinstance(guide, type) else type(guide)
        if not issubclass(guide_class, self._normal_guide):
            raise ArgumentError(
                f"Expected AutoMultivariateNormal, the only guide that {type(self).__name__} can "
                f"update in closed form, found {guide_class.__name__}. Leave the guide out, or use "
                "ProximalScoreVI, which takes every guide with a flat log density."
            )
        refuse(type(self), options, "optim", "clip_norm", "initial_scale", "total_steps")
        super().__init__(model, guide, None, num_samples, **options)  # type: ignore[call-arg]

    def _plan(self, target: Any, random: Any, data: Any) -> Any:
        plan = super()._plan(target, random, data)  # type: ignore[misc]
        if not self._is_exact(plan):
            warn_of_noise(
                self,
                plan,
                "Its update follows their noise instead of averaging it, and the covariance comes "
                "out wrong.",
            )
        return plan

    @abstractmethod
    def _matched(self, moments: Any, theta: Any, score: Any, step: Any) -> Any:
        """New moments from the present ones and the scores (S, D) of the target at draws theta.

        Not finite where the update gives no positive definite covariance. ``step`` counts the
        steps taken.
        """

    def _is_exact(self, plan: Any) -> bool:
        exact = isinstance(plan.estimator, self._exact)
        return exact and plan.estimator.evaluations_per_step(plan.target) == 1.0

    def _look_at_end(self, plan: Any, piece: Piece) -> None:
        pulls = np.asarray(piece.info.get("pull", ()), np.float64)[-WINDOW:]
        if len(pulls) < WINDOW or not self._is_exact(plan) or not np.isfinite(pulls).all():
            return
        level = float(pulls.mean())
        # Five standard errors of a mean over the window, so that noise of the draws does not warn.
        if level > DISPLACED and level > 5.0 * float(pulls.std()) / WINDOW**0.5:
            warnings.warn(
                f"Expected the guide of {type(self).__name__} to end at the target, found that "
                f"its scores still pull the guide away by {level**0.5:.2g} of its own widths, in "
                "one direction. Far from the target the guide shrinks, and with it the steps: mean "
                "and scale are not yet the target's. Begin nearer, or use BaM with a constant "
                "regularization, such as num_samples times the number of latents, or "
                "ProximalScoreVI.",
                ConvergenceWarning,
                stacklevel=4,
            )


def checked_regularization(found: Any) -> Regularization:
    """What ``BaM`` was given as lambda_t.

    Raises
    ------
    ArgumentError
        It is neither "decaying" nor a number above zero nor a function.
    """
    number = isinstance(found, int | float) and found > 0
    if not (number or callable(found) or found == "decaying"):
        raise ArgumentError(
            "Expected regularization to be 'decaying', a number > 0 or a function of the step, "
            f"found {found!r}."
        )
    return cast(Regularization, found)


def regularization_at(given: Regularization, step: Any, size: int) -> Any:
    """lambda_t of a step, for S D numbers."""
    if given == "decaying":
        return size / (step + 1)
    return given(step) if callable(given) else given
