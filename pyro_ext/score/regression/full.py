"""Closed form for full-covariance Normal guides: recursive regression of noisy scores.

The method is told in :mod:`ppl_ext.regression.full`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ppl_ext.regression.full import HASTE, SPARE_PAIRS
from ppl_ext.regression.overflow import LENIENCE
from ppl_ext.score import DECAY, TRUST
from pyro_ext.guides.flat_density import Moments, Parameters
from pyro_ext.guides.normal import log_density
from pyro_ext.score.overflow import judged
from pyro_ext.score.regression.base import ClosedForm, Draws
from pyro_ext.score.regression.pairs import (
    Count,
    advanced,
    next_mean_weight,
    next_weight,
)


class BlockMoments(NamedTuple):
    """Running moments V, C and R of a block of n coordinates with a covariance: (n, n) each.

    ``covariance`` is E[d d^T], ``cross_covariance`` E[e d^T] and ``score_covariance`` E[e e^T],
    with d half the difference of a pair's points and e that of its scores.
    """

    covariance: Tensor
    cross_covariance: Tensor
    score_covariance: Tensor


class FullRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score``, (D,), are averages over the pairs' centres.
    """

    seen: Count
    mean_theta: Tensor
    mean_score: Tensor
    block: BlockMoments


def initial_regression(mean: Tensor) -> FullRegression:
    """No observations yet; zeros like the guide's mean (D,)."""
    block = BlockMoments(*(mean.new_zeros(len(mean), len(mean)) for _ in range(3)))
    return FullRegression(Count(), torch.zeros_like(mean), torch.zeros_like(mean), block)


def observe(
    regression: FullRegression,
    theta: Tensor,
    score: Tensor,
    decay: float = DECAY,
    total: int = 0,
) -> FullRegression:
    """Add scores (2 K, D) taken at the mirrored points theta (2 K, D).

    ``total`` is the number of iterations of the whole run, 0 when that is not known.
    """
    # Twice d and e: factors cost least where a product takes them.
    d, e = (torch.sub(*values.chunk(2)) for values in (theta, score))
    pairs, columns = len(d), e.T
    weight = next_weight(regression.seen, decay)
    mean_weight = next_mean_weight(regression.seen, decay, total)

    def added(before: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The running average with the latest of left right / 4."""
        return torch.addmm(before, left, right, beta=1.0 - weight, alpha=0.25 * weight / pairs)

    block = regression.block
    return FullRegression(
        advanced(regression.seen, pairs, weight),
        torch.lerp(regression.mean_theta, theta.mean(0), mean_weight),
        torch.lerp(regression.mean_score, score.mean(0), mean_weight),
        BlockMoments(
            added(block.covariance, d.T, d),
            added(block.cross_covariance, columns, d),
            added(block.score_covariance, columns, e),
        ),
    )


def screened(
    before: FullRegression, after: FullRegression, scale_tril: Tensor, score: Tensor
) -> tuple[FullRegression, bool]:
    """The next state without scores that come from an overflow, and whether it rests on the pairs.

    Parameters
    ----------
    before, after : FullRegression
        Without the latest pairs, and with them.
    scale_tril : tensor (D, D)
    score : tensor (2 K, D)
    """
    covariance = before.block.score_covariance
    # |e|^2 / K of K pairs, from 2 e.
    latest = float((torch.sub(*score.chunk(2)) @ scale_tril).square().sum()) / (2 * len(score))
    verdict = judged(float((scale_tril * (covariance @ scale_tril)).sum()), latest)
    if verdict.sound:
        return after, True
    lenient = before._replace(block=before.block._replace(score_covariance=LENIENCE * covariance))
    return verdict.choose(lenient, initial_regression(before.mean_theta), after), False


def is_warm(regression: FullRegression) -> bool:
    """Whether enough pairs were seen for an update: regressors and a few to know the noise."""
    return regression.seen.num_pairs >= len(regression.mean_theta) + SPARE_PAIRS


class FullForm(ClosedForm[FullRegression]):
    """The closed form for ``AutoMultivariateNormal``. O(D^2) memory, O(D^3) operations."""

    def initial(self, parameters: Parameters) -> FullRegression:
        return initial_regression(self.density.mean(parameters))

    def evaluated_draw(self, parameters: Parameters, generator: torch.Generator, num: int) -> Draws:
        # A pair's standard coordinates are known and each other's negatives.
        mean, scale_tril = self.density.moments(parameters)
        standard = self.density.noise(parameters, generator, (num // 2, len(mean)))
        move = standard @ scale_tril.T
        pull = torch.linalg.solve_triangular(scale_tril, standard, upper=False, left=False)
        log_prob = log_density(scale_tril, standard)
        return Draws(
            torch.cat([mean + move, mean - move]),
            torch.cat([log_prob, log_prob]),
            torch.cat([-pull, pull]),
        )

    def update(
        self,
        state: FullRegression,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
        log_density: Tensor | None = None,
    ) -> tuple[FullRegression, Parameters]:
        moments = self.density.moments(parameters)
        observed = observe(state, theta, score, self.decay, total)
        state, sound = screened(state, observed, moments.scale, score)
        if not (sound and is_warm(state)):
            return state, parameters
        return state, self.density.set_moments(
            parameters, updated_moments(state, moments, self.trust)
        )


def updated_moments(regression: FullRegression, moments: Moments, trust: float = TRUST) -> Moments:
    """Moments of the next guide, from the running moments and the present guide's.

    Parameters
    ----------
    regression : FullRegression
    moments : Moments
        Mean (D,) and lower triangular scale (D, D) of the present guide.
    trust : float
        The constant c > 1 of the trust region.
    """
    mean, scale_tril = moments
    block, across = regression.block, scale_tril.T
    identity = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    inverse = torch.linalg.solve_triangular(scale_tril, identity, upper=False)
    # Whitened by L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L.
    whitened = BlockMoments(
        inverse @ block.covariance @ inverse.T,
        across @ block.cross_covariance @ inverse.T,
        across @ block.score_covariance @ scale_tril,
    )
    step = whitened_step(whitened, regression.seen.worth, trust)
    move = inverse @ (regression.mean_theta - mean)
    move = torch.addmv(move, step.covariance, across @ regression.mean_score)
    move = limited_move(step.basis @ ((step.basis.T @ move) / (1.0 + step.pull)))
    # A product of lower triangular factors is lower triangular: no factorisation of Sigma.
    factor = torch.linalg.cholesky(step.covariance)
    return Moments(torch.addmv(mean, scale_tril, move), scale_tril @ factor)


class Step(NamedTuple):
    """What a whitened regression tells: next to the present guide, whose covariance is I.

    ``covariance`` (n, n) is the next guide's, ``pull`` (n,) is rho and ``basis`` (n, n) has the
    eigenvectors of the noise in its columns.
    """

    covariance: Tensor
    pull: Tensor
    basis: Tensor


def whitened_step(block: BlockMoments, number: float, trust: float) -> Step:
    """FullRegression of one block in coordinates where the present covariance is the identity.

    Parameters
    ----------
    block : BlockMoments
        Whitened moments, (n, n) each.
    number : float
        Pairs that the averages are worth.
    trust : float
    """
    dim = len(block.covariance)
    precision = torch.finfo(block.covariance.dtype)
    spread, axes = torch.linalg.eigh(block.covariance)
    spread = spread.clamp_min_(precision.eps * spread[-1])
    along = block.cross_covariance @ axes
    # Symmetric up to rounding, and only the lower triangle is read.
    residual = torch.addmm(block.score_covariance, along / spread, along.T, alpha=-1.0)
    noise, basis = torch.linalg.eigh(residual)
    noise = noise.clamp_min_(0.0).div_(free_share(dim, number))
    column = noise.unsqueeze(-1)
    pull = column * (dim / number)
    turned, along = basis.T @ axes, basis.T @ along
    slope = (pull * turned).sub_(along).div_(spread + pull) @ turned.T
    # The more certain of the two estimates of an entry counts more; without noise, both alike.
    floor = 1e-6 * noise[-1] + precision.tiny
    weight = floor / (column + floor)
    slope *= weight
    eigenvalues, vectors = torch.linalg.eigh((slope + slope.T).div_(weight + weight.T))
    eigenvalues = limited(eigenvalues, dim * (noise @ vectors.square()), trust)
    vectors = basis @ vectors
    return Step((vectors / eigenvalues) @ vectors.T, pull.squeeze(-1), basis)


def limited_move(move: Tensor) -> Tensor:
    """A whitened move shortened to at most one unit."""
    return move / torch.linalg.vector_norm(move).clamp_min(1.0)


def free_share(regressors: int, number: float) -> float:
    """Share of the pairs' freedom that the regression leaves to the residual."""
    return max(1.0 - regressors / number, 1.0 / number)


def limited(precision: Tensor, noise: Tensor, trust: float) -> Tensor:
    """A whitened precision limited to the trust region, whose lower end knows the noise."""
    # 1 / (1 + (c - 1) / (1 + noise / 3))
    outrun = noise.div(HASTE).add_(1.0)
    widest = outrun / (outrun + (trust - 1.0))
    return torch.maximum(precision, widest).clamp_max_(trust)
