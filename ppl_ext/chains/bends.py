"""Coordinates in which curved ridges are straight and funnels are even, fitted to draws.

A triangular map, as in Y. Marzouk, T. Moselhy, M. Parno and A. Spantini, "Sampling via measure
transport" (2016), with few terms: of some coordinates a quadratic in others is taken off, and they
are divided by a width that depends on others. Its inverse and its Jacobian are closed forms, so
that densities on either side are exact, however wrong the terms are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.start.paths import Evaluate

#: Nats by which terms have to make a coordinate's logarithmic density larger, on average over the
#: draws, and together for each term: a quarter of a nat makes no weight uneven.
GAIN, GAIN_PER_TERM = 0.05, 5.0
#: Standard errors from 0 from which on a term is kept.
CERTAIN = 3.0
#: Standard deviations beyond which widths no longer change.
FARTHEST = 6.0
#: Interquartile ranges from the median beyond which draws are not looked at.
OUTLYING = 10.0
#: Rounds in which centres and widths are fitted in turn, and the largest change of a log width for
#: a standard deviation in one.
ROUNDS, MOST_CHANGE = 6, 1.0

Draws = Float[np.ndarray, "S D"]


@dataclass(frozen=True)
class Bend:
    """A map from positions x to straight ones w, and back.

    With u = (x - center) / scale, w is ``(u - constants - linear u - squares u^2) exp(-slopes h)``,
    where h is u, less far out. Rows of the matrices are 0 but for the coordinates ``bent``, of
    which each depends on others that are not bent or come before it.

    Attributes
    ----------
    center, scale, constants : array (D,)
    linear, squares, slopes : array (D, D)
    bent : tuple of int
    """

    center: Float[np.ndarray, " D"]
    scale: Float[np.ndarray, " D"]
    constants: Float[np.ndarray, " D"]
    linear: Float[np.ndarray, "D D"]
    squares: Float[np.ndarray, "D D"]
    slopes: Float[np.ndarray, "D D"]
    bent: tuple[int, ...]

    def straight(self, positions: Draws) -> tuple[Draws, Float[np.ndarray, " S"]]:
        """Straight positions (S, D), and the logarithm of the map's determinant (S,)."""
        u = (positions - self.center) / self.scale
        log_widths = _shortened(u) @ self.slopes.T
        rest = u - self.constants - u @ self.linear.T - np.square(u) @ self.squares.T
        return rest * np.exp(-log_widths), -log_widths.sum(1) - np.log(self.scale).sum()

    def curved(self, straight: Draws) -> Draws:
        """The positions (S, D) of which straight ones are."""
        u = straight.copy()
        for j in self.bent:
            others = self.linear[j].nonzero()[0]
            near = u[:, others]
            u[:, j] *= np.exp(_shortened(near) @ self.slopes[j, others])
            u[:, j] += near @ self.linear[j, others] + np.square(near) @ self.squares[j, others]
            u[:, j] += self.constants[j]
        return self.center + self.scale * u

    def _derivatives(
        self, positions: Draws
    ) -> tuple[Float[np.ndarray, "S D D"], Draws, Float[np.ndarray, " S"]]:
        """Of straight positions by positions; and the log determinant's gradient and value."""
        u = (positions - self.center) / self.scale
        short = 1.0 - np.square(np.tanh(u / FARTHEST))
        widths = np.exp(-(_shortened(u) @ self.slopes.T))
        straight, log_determinant = self.straight(positions)
        moved = np.eye(len(self.center)) - self.linear - 2.0 * self.squares * u[:, None]
        changed = straight[:, :, None] * self.slopes * short[:, None]
        gradient = -self.slopes.sum(0) * short / self.scale
        return (widths[:, :, None] * moved - changed) / self.scale, gradient, log_determinant

    def straightened(self, chains: Chains) -> Chains:
        """Chains as they are in straight coordinates."""
        matrices, gradient, log_determinant = self._derivatives(chains.positions)
        scores = np.linalg.solve(
            matrices.transpose(0, 2, 1), (chains.scores - gradient)[:, :, None]
        )[:, :, 0]
        straight = self.straight(chains.positions)[0]
        return Chains(straight, chains.values - log_determinant, scores)

    def density(self, evaluate: Evaluate) -> Evaluate:
        """A density as one of straight positions, with its scores."""

        def straight(
            positions: Draws,
        ) -> tuple[Float[np.ndarray, " S"], Draws]:
            found = self.straightened(Chains.at(self.curved(positions), evaluate))
            return found.values, found.scores

        return straight

    def restored(self, before: Chains, straight: Chains, after: Chains) -> Chains:
        """Chains after a trajectory in straight coordinates: those that stayed are as before."""
        moved = (after.positions != straight.positions).any(1)
        positions = self.curved(after.positions)
        matrices, gradient, log_determinant = self._derivatives(positions)
        scores = np.einsum("sji,sj->si", matrices, after.scores) + gradient
        return before.where(moved, Chains(positions, after.values + log_determinant, scores))


def _shortened(u: Draws) -> Draws:
    found: Draws = FARTHEST * np.tanh(u / FARTHEST)
    return found


@np.errstate(all="ignore")
def fitted_bend(draws: Draws, counts: Float[np.ndarray, " S"] | None = None) -> Bend | None:
    """The bend that weighted draws ask for; None where they are well without one.

    Parameters
    ----------
    draws : array (S, D)
    counts : array (S,), optional
        How many draws each of them stands for. Default: one.
    """
    counts = np.ones(len(draws)) if counts is None else counts
    dim = draws.shape[1]
    low, center, high = _quantiles(draws, counts)
    scale = (high - low) / 1.349  # of a Normal
    if not (scale > 0.0).all():
        return None
    u = (draws - center) / scale
    near = (np.abs(u).max(1) < OUTLYING * 1.349) & (counts > 0.0)
    u, counts = u[near], counts[near]
    if counts.sum() <= 4 * dim:
        return None
    left, terms = list(range(dim)), dict[int, _Terms]()
    hopeful = [j for j in left if _bent(u, counts, j, [i for i in left if i != j])]
    while hopeful and len(left) > 1:
        every = [_bent(u, counts, j, [i for i in left if i != j]) for j in hopeful]
        kept = [(each.gain, j) for each, j in zip(every, hopeful, strict=True) if each is not None]
        if not kept:
            break
        best = max(kept)[1]
        terms[best] = every[hopeful.index(best)]  # type: ignore[assignment]
        left.remove(best)
        hopeful = [j for _, j in kept if j != best]
    if not terms:
        return None
    matrices = np.zeros((3, dim, dim))
    constants = np.zeros(dim)
    for j, own in terms.items():
        constants[j] = own.constant
        for matrix, row in zip(matrices, (own.linear, own.squares, own.slopes), strict=True):
            matrix[j, own.others] = row
    # Each one depends on those that are left when it is taken: the last one is bent first.
    return Bend(center, scale, constants, *matrices, tuple(reversed(terms)))


@dataclass(frozen=True)
class _Terms:
    gain: float
    others: list[int]
    constant: float
    linear: Float[np.ndarray, " K"]
    squares: Float[np.ndarray, " K"]
    slopes: Float[np.ndarray, " K"]


def _bent(
    u: Draws, counts: Float[np.ndarray, " S"], j: int, others: list[int]
) -> _Terms | None:
    """Terms of a coordinate in others; None where they do not pay."""
    number, near, count = counts.sum(), u[:, others], len(others)
    features = np.concatenate([np.ones((len(u), 1)), near, np.square(near)], axis=1)
    widths = np.concatenate([np.ones((len(u), 1)), _shortened(near)], axis=1)
    straight = _regression(features[:, : count + 1], u[:, j], counts)[0]
    rest = u[:, j] - features[:, : count + 1] @ straight
    before = 0.5 * np.log(counts @ np.square(rest) / number)
    keeps = np.ones(2 * count + 1, bool)
    changes = np.ones(count + 1, bool)
    for is_last in (False, True):
        slopes = np.zeros(count + 1)
        for _ in range(ROUNDS):
            weights = counts * np.exp(-2.0 * widths @ slopes)
            mean = np.zeros(len(keeps))
            mean[keeps], errors = _regression(features[:, keeps], u[:, j], weights)
            squares = np.square(u[:, j] - features @ mean)
            slopes, slope_errors = _log_widths(widths, squares, counts, slopes, changes)
        if not is_last:
            least = np.sqrt(max(CERTAIN**2, 2.0 * GAIN * number))
            certain = np.abs(mean) > least * errors
            keeps[count + 1 :] = certain[count + 1 :]
            changes[1:] = np.abs(slopes[1:]) > least * slope_errors[1:]
    logs = widths @ slopes
    after = counts @ (logs + 0.5 * squares * np.exp(-2.0 * logs)) / number - 0.5
    gain, terms = float(before - after), int(keeps[count + 1 :].sum() + changes[1:].sum())
    if not terms or not gain > max(GAIN, GAIN_PER_TERM * terms / number):
        return None
    # The width where all others are 0 belongs to the scale of the mixture that is fitted.
    return _Terms(
        gain, others, float(mean[0]), mean[1 : count + 1], mean[count + 1 :], slopes[1:]
    )


def _regression(
    features: Float[np.ndarray, "S K"],
    target: Float[np.ndarray, " S"],
    weights: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Coefficients, and their standard errors where weights are inverse variances."""
    precision = features.T @ (weights[:, None] * features)
    precision += 1e-6 * np.diag(np.diag(precision)) + 1e-12 * np.eye(len(precision))
    inverse = np.linalg.inv(precision)
    return inverse @ (features.T @ (weights * target)), np.sqrt(np.diag(inverse))


def _log_widths(
    features: Float[np.ndarray, "S K"],
    squares: Float[np.ndarray, " S"],
    counts: Float[np.ndarray, " S"],
    slopes: Float[np.ndarray, " K"],
    changes: Bool[np.ndarray, " K"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """One step of Fisher scoring of log widths of Normals with these squared residuals."""
    if not slopes.any():
        slopes = slopes.copy()
        slopes[0] = 0.5 * np.log(counts @ squares / counts.sum())
    own = features[:, changes]
    ratios = squares * np.exp(-2.0 * features @ slopes)
    information = 2.0 * own.T @ (counts[:, None] * own)
    information += 1e-6 * np.diag(np.diag(information)) + 1e-12 * np.eye(len(information))
    inverse = np.linalg.inv(information)
    found = slopes * changes
    step = inverse @ (own.T @ (counts * (ratios - 1.0)))
    found[changes] += np.clip(step, -MOST_CHANGE, MOST_CHANGE)
    errors = np.full(len(slopes), np.inf)
    errors[changes] = np.sqrt(np.diag(inverse))
    return found, errors


def _quantiles(
    draws: Draws, counts: Float[np.ndarray, " S"]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """Quartiles of weighted draws by coordinate."""
    order = np.argsort(draws, axis=0)
    below = np.cumsum(counts[order], axis=0) / counts.sum()
    ordered = np.take_along_axis(draws, order, axis=0)
    rows = [np.minimum((below < p).sum(0), len(draws) - 1) for p in (0.25, 0.5, 0.75)]
    return tuple(ordered[row, np.arange(draws.shape[1])] for row in rows)  # type: ignore[return-value]
