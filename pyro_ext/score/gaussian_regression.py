"""Closed-form proximal score matching for Normal guides: recursive regression of noisy scores.

For a Normal q with mean m and precision P the score, grad log q(theta) = P (m - theta), is linear
in (P m, P). The proximal score-matching objective is then a linear least-squares problem: the
(noisy) scores of the target are regressed on the points where they were taken. Running moments
take the place of an optimiser and average the noise out; there is no learning rate.

*Pairs.* Draws come in antithetic pairs, m + d and m - d, evaluated on the same minibatch. Half
the difference of the two scores has the noise that the pair shares removed, so the slope P is
regressed on differences alone,

    V = E[d d^T],   C = E[e d^T],   R = E[e e^T],   e = (score(m + d) - score(m - d)) / 2,

and the mean on the pairs' centres. Running averages have weights r_t = (t + 1)^-p, and n is the
number of pairs that they are worth, 1 / (sum of squared weights).

*Steps that know the noise.* In coordinates whitened by L, where Sigma = inverse P = L L^T is the
present covariance, the residual R - C V^-1 C^T, over 1 - D / n, is the covariance of the noise.
In its eigenbasis row i of the slope has noise variance r_i / n in each entry, so that

- each row is pulled towards the present precision, the identity, by rho_i = D r_i / n:
  B_i = (rho_i I_i - C_i) (V + rho_i I)^-1, which keeps the noise in B below one half at any
  level and vanishes as n grows;
- the two estimates B_ij and B_ji of one entry of the symmetric precision are averaged with
  weights 1 / r_i and 1 / r_j;
- eigenvalues of the result are limited to at most c, and to no less than
  1 / (1 + (c - 1) / (1 + D r / 3)): a guide that widens faster than the noise lets it see would
  soon rest on its last few draws, as wide draws outweigh the earlier ones, and would run away;
- the mean moves by m+ - m = E[theta] - m + Sigma+ E[score], each row over 1 + rho_i, and by at
  most one unit of Mahalanobis distance.

The fixed point has E_q[score] = 0 and -E_q[grad score] = P, which by Stein's identity is where
the evidence lower bound is stationary. Without noise it is reached exactly for a Normal target,
once there are D + 5 pairs.

A *block* is a set of coordinates with a covariance of its own: one for a full guide; coordinates
one by one for a diagonal guide, with vectors in place of matrices; rows and columns of each
matrix for a matrix-normal guide, whose two factors are regressed in turn on the columns and the
rows that the other has whitened. Functions are pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_ext.guides.flat_density import Moments

#: Exponent p of the running averages' weights (t + 1)^-p.
DECAY = 0.9
#: Limit c on how far one update changes the precision, as a factor in every direction.
TRUST = 1.25
#: Pairs seen before the first update, beyond the number of regressors.
SPARE_PAIRS = 5
# The share of the noise (in units of D r) that a guide may outrun when it widens.
_HASTE = 3.0


class BlockMoments(NamedTuple):
    """Running moments V, C and R of a block: (n, n) each, or (n,) for coordinates one by one.

    ``covariance`` is E[d d^T], ``cross_covariance`` E[e d^T] and ``score_covariance`` E[e e^T],
    with d half the difference of a pair's points and e that of its scores.
    """

    covariance: Tensor
    cross_covariance: Tensor
    score_covariance: Tensor


class Regression(NamedTuple):
    """What was seen so far.

    ``squared_weights`` is the sum of the squared weights of the pairs in the running averages;
    ``mean_theta`` and ``mean_score``, (D,), are averages over the pairs' centres.
    """

    num_updates: int
    num_pairs: int
    squared_weights: float
    mean_theta: Tensor
    mean_score: Tensor
    blocks: tuple[BlockMoments, ...]


def antithetic(theta: Tensor, mean: Tensor) -> Tensor:
    """Draws (K, D) and their mirror images about the mean, (2 K, D): row k and row K + k pair."""
    return torch.cat([theta, 2.0 * mean - theta])


def initial_regression(scale: Tensor) -> Regression:
    """No observations yet.

    Parameters
    ----------
    scale : tensor (D, D) or (D,)
        The guide's scale, as in :class:`~pyro_ext.guides.flat_density.Moments`; its shape
        decides between the full and the diagonal form.
    """
    block = BlockMoments(*(torch.zeros_like(scale) for _ in range(3)))
    zeros = scale.new_zeros(scale.shape[-1])
    return Regression(0, 0, 0.0, zeros, zeros.clone(), (block,))


def saved_regression(regression: Regression) -> dict[str, Any]:
    """A regression as plain containers, for a file."""
    blocks = [tuple(block) for block in regression.blocks]
    return {**regression._asdict(), "blocks": blocks}


def restored_regression(state: dict[str, Any]) -> Regression:
    """Inverse of :func:`saved_regression`."""
    blocks = tuple(BlockMoments(*block) for block in state["blocks"])
    return Regression(**{**state, "blocks": blocks})


def observe(
    regression: Regression, theta: Tensor, score: Tensor, decay: float = DECAY
) -> Regression:
    """Add scores (2 K, D) taken at the points theta (2 K, D) of :func:`antithetic`.

    The weight of iteration t is (t + 1)^-decay, shared by its K pairs.
    """
    (block,) = regression.blocks
    difference, score_difference = _halves(theta), _halves(score)
    if block.covariance.ndim == 2:
        seen = BlockMoments(
            difference.T @ difference,
            score_difference.T @ difference,
            score_difference.T @ score_difference,
        )
    else:
        seen = BlockMoments(
            difference.square().sum(0),
            (score_difference * difference).sum(0),
            score_difference.square().sum(0),
        )
    return advanced(regression, theta, score, (seen,), decay)


def advanced(
    regression: Regression,
    theta: Tensor,
    score: Tensor,
    seen: tuple[BlockMoments, ...],
    decay: float,
) -> Regression:
    """The running averages with one iteration more, whose moments ``seen`` are sums over pairs."""
    weight = (regression.num_updates + 1.0) ** -decay
    pairs = len(theta) // 2

    def average(old: Tensor, new: Tensor) -> Tensor:
        return old + weight * (new - old)

    return Regression(
        regression.num_updates + 1,
        regression.num_pairs + pairs,
        (1.0 - weight) ** 2 * regression.squared_weights + weight**2 / pairs,
        average(regression.mean_theta, theta.mean(0)),
        average(regression.mean_score, score.mean(0)),
        tuple(
            BlockMoments(*(average(old, new / pairs) for old, new in zip(block, sums, strict=True)))
            for block, sums in zip(regression.blocks, seen, strict=True)
        ),
    )


def is_warm(regression: Regression) -> bool:
    """Whether enough pairs were seen for an update: regressors and a few to know the noise."""
    block = regression.blocks[0].covariance
    regressors = len(block) if block.ndim == 2 else 1
    return regression.num_pairs >= regressors + SPARE_PAIRS


def updated_moments(regression: Regression, moments: Moments, trust: float = TRUST) -> Moments:
    """Moments of the next guide, from the running moments and the present guide's.

    Parameters
    ----------
    regression : Regression
    moments : Moments
        Mean (D,) and scale, (D, D) lower triangular or (D,), of the present guide.
    trust : float
        The constant c > 1 of the trust region.
    """
    (block,) = regression.blocks
    number = 1.0 / regression.squared_weights
    if block.covariance.ndim == 2:
        return _updated_full(regression, block, moments, number, trust)
    return _updated_diagonal(regression, block, moments, number, trust)


class Step(NamedTuple):
    """What a whitened regression tells: next to the present guide, whose covariance is I.

    ``covariance`` (n, n) is the next guide's, ``pull`` (n,) is rho and ``basis`` (n, n) has the
    eigenvectors of the noise in its columns.
    """

    covariance: Tensor
    pull: Tensor
    basis: Tensor


def whitened_step(block: BlockMoments, number: float, trust: float) -> Step:
    """Regression of one block in coordinates where the present covariance is the identity.

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
    spread = spread.clamp_min(precision.eps * spread[-1])
    along = block.cross_covariance @ axes
    residual = block.score_covariance - (along / spread) @ along.T
    noise, basis = torch.linalg.eigh(0.5 * (residual + residual.T))
    noise = noise.clamp_min(0.0) / _free_share(dim, number)
    pull = (dim * noise / number).unsqueeze(-1)
    turned = basis.T @ axes
    slope = ((pull * turned - basis.T @ along) / (spread + pull)) @ turned.T
    # The more certain of the two estimates of an entry counts more; without noise, both alike.
    floor = 1e-6 * noise.max() + precision.tiny
    weight = (floor / (noise + floor)).unsqueeze(-1)
    weighted = weight * slope
    eigenvalues, vectors = torch.linalg.eigh((weighted + weighted.T) / (weight + weight.T))
    along_vectors = (vectors.square() * noise.unsqueeze(-1)).sum(0)
    eigenvalues = _limited(eigenvalues, dim * along_vectors, trust)
    vectors = basis @ vectors
    return Step((vectors / eigenvalues) @ vectors.T, pull.squeeze(-1), basis)


def limited_move(move: Tensor) -> Tensor:
    """A whitened move shortened to at most one unit."""
    return move / torch.linalg.vector_norm(move).clamp_min(1.0)


def _halves(values: Tensor) -> Tensor:
    half = len(values) // 2
    return 0.5 * (values[:half] - values[half:])


def _free_share(regressors: int, number: float) -> float:
    """Share of the pairs' freedom that the regression leaves to the residual."""
    return max(1.0 - regressors / number, 1.0 / number)


def _limited(precision: Tensor, noise: Tensor, trust: float) -> Tensor:
    widest = 1.0 / (1.0 + (trust - 1.0) / (1.0 + noise / _HASTE))
    return torch.maximum(precision, widest).clamp_max(trust)


def _updated_full(
    regression: Regression, block: BlockMoments, moments: Moments, number: float, trust: float
) -> Moments:
    mean, scale_tril = moments

    def unscale(columns: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(scale_tril, columns, upper=False)

    # Whitened by L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L.
    whitened = BlockMoments(
        unscale(unscale(block.covariance).T),
        unscale((scale_tril.T @ block.cross_covariance).T).T,
        scale_tril.T @ block.score_covariance @ scale_tril,
    )
    step = whitened_step(whitened, number, trust)
    offset = unscale((regression.mean_theta - mean).unsqueeze(-1)).squeeze(-1)
    move = offset + step.covariance @ (scale_tril.T @ regression.mean_score)
    move = limited_move(step.basis @ ((step.basis.T @ move) / (1.0 + step.pull)))
    # A product of lower triangular factors is lower triangular: no factorisation of Sigma.
    factor = torch.linalg.cholesky(step.covariance)
    return Moments(mean + scale_tril @ move, scale_tril @ factor)


def _updated_diagonal(
    regression: Regression, block: BlockMoments, moments: Moments, number: float, trust: float
) -> Moments:
    mean, scale = moments
    # Whitened; the cross-covariance of scale * score and theta / scale is that of the two.
    spread = block.covariance / scale.square()
    cross = block.cross_covariance
    residual = block.score_covariance * scale.square() - cross.square() / spread
    noise = residual.clamp_min(0.0) / _free_share(1, number)
    pull = noise / number
    precision = _limited((pull - cross) / (spread + pull), noise, trust)
    move = (regression.mean_theta - mean) / scale + scale * regression.mean_score / precision
    # Each coordinate is a regression of its own, so its move is limited on its own.
    move = (move / (1.0 + pull)).clamp(-1.0, 1.0)
    return Moments(mean + scale * move, scale / precision.sqrt())
