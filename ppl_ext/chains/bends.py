"""Coordinates in which curved ridges are straight and funnels are even, fitted to draws.

A triangular map, as in Y. Marzouk, T. Moselhy, M. Parno and A. Spantini, "Sampling via measure
transport: an introduction" (2016), with few terms: of some coordinates a quadratic in others is
taken off, and what is left is divided by a width that depends on others. The map's inverse and its
determinant are closed forms, so that densities are exact on either side, however wrong the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.start.paths import Evaluate

#: Nats by which the terms of a coordinate, and each of them by itself, have to raise its log
#: density, on average over the draws; and nats over all draws together for each term. Terms of less
#: are chance, or bend far out what is straight.
GAIN, ALL_GAIN = 0.05, 5.0
#: Standard errors from 0 that a term has to be away at least.
CERTAIN = 3.0
#: Independent draws for each number that is fitted, at least: fewer are met by any curve.
DRAWS_PER_NUMBER = 2.0
#: Standard deviations of a coordinate at which others' widths come to rest: beyond the draws that
#: they were fitted to nothing tells them.
FARTHEST = 6.0
#: Interquartile ranges from the median beyond which draws are not looked at, as of heavy tails.
OUTLYING = 10.0
#: Rounds in which centres and widths are fitted in turn, and the most that a log width changes in
#: one for a standard deviation of another coordinate.
ROUNDS, MOST_CHANGE = 6, 1.0
#: What is added to a diagonal, as a share of it, and by itself.
RIDGE, LEAST = 1e-6, 1e-12

Draws = Float[np.ndarray, "S D"]
Values = Float[np.ndarray, " S"]


@dataclass(frozen=True)
class Bend:
    """A map from positions x (S, D) to straight ones w, and back.

    With u = (x - center) / scale, w is u, and for the coordinates that are ``bent``
    ``(u - constants - linear u - squares u^2) exp(-slopes h(u))``, where h is u, less far out.

    Attributes
    ----------
    center, scale : array (D,)
    constants : array (D,)
    linear, squares, slopes : array (D, D)
        Rows of bent coordinates have numbers where those are that these depend on: such as are not
        bent, or come before them.
    bent : tuple of int
    """

    center: Float[np.ndarray, " D"]
    scale: Float[np.ndarray, " D"]
    constants: Float[np.ndarray, " D"]
    linear: Float[np.ndarray, "D D"]
    squares: Float[np.ndarray, "D D"]
    slopes: Float[np.ndarray, "D D"]
    bent: tuple[int, ...]

    @np.errstate(all="ignore")
    def straight(self, positions: Draws) -> tuple[Draws, Values]:
        """Straight positions (S, D), and the log of the determinant (S,) of the map there."""
        u = self._scaled(positions)
        log_widths = _shortened(u) @ self.slopes.T
        rest = u - self.constants - u @ self.linear.T - np.square(u) @ self.squares.T
        return rest * np.exp(-log_widths), -log_widths.sum(1) - np.log(self.scale).sum()

    @np.errstate(all="ignore")
    def curved(self, straight: Draws) -> Draws:
        """The positions (S, D) of which straight ones are."""
        u = straight.copy()
        for j in self.bent:
            # What comes later has no part in it, and may be infinite.
            others = np.flatnonzero(np.any([self.linear[j], self.squares[j], self.slopes[j]], 0))
            near = u[:, others]
            u[:, j] *= np.exp(_shortened(near) @ self.slopes[j, others])
            u[:, j] += near @ self.linear[j, others] + np.square(near) @ self.squares[j, others]
            u[:, j] += self.constants[j]
        return self.center + self.scale * u

    @np.errstate(all="ignore")
    def straightened(self, chains: Chains) -> Chains:
        """Chains in straight coordinates, with the log density and its scores there."""
        straight, log_determinant = self.straight(chains.positions)
        u = self._scaled(chains.positions)
        # Backwards through what ``curved`` does.
        scores = self.scale * (chains.scores - self._determinant_scores(u))
        for j in reversed(self.bent):
            width = np.exp(_shortened(u) @ self.slopes[j])
            slopes = self._slopes_of(u, j, straight[:, j] * width)
            scores = scores + scores[:, j : j + 1] * slopes
            scores[:, j] *= width
        return Chains(straight, chains.values - log_determinant, scores)

    @np.errstate(all="ignore")
    def restored(self, before: Chains, straight: Chains, after: Chains) -> Chains:
        """Chains after a trajectory in straight coordinates; those that stayed are as before."""
        moved = (after.positions != straight.positions).any(1) & np.isfinite(after.positions).all(1)
        positions = self.curved(after.positions)
        u, (_, log_determinant) = self._scaled(positions), self.straight(positions)
        scores = after.scores.copy()
        for j in self.bent:
            width = np.exp(_shortened(u) @ self.slopes[j])
            scores[:, j] /= width
            slopes = self._slopes_of(u, j, after.positions[:, j] * width)
            scores = scores - scores[:, j : j + 1] * slopes
        scores = scores / self.scale + self._determinant_scores(u)
        return before.where(moved, Chains(positions, after.values + log_determinant, scores))

    def density(self, evaluate: Evaluate) -> Evaluate:
        """Log densities and scores of straight positions, from those of positions."""

        def of_straight(straight: Draws) -> tuple[Values, Draws]:
            found = self.straightened(Chains.at(self.curved(straight), evaluate))
            return found.values, found.scores

        return of_straight

    def _scaled(self, positions: Draws) -> Draws:
        return (positions - self.center) / self.scale

    def _slopes_of(self, u: Draws, j: int, rest: Values) -> Draws:
        """Derivatives (S, D) of a bent coordinate by the others, its straight one held."""
        widths = rest[:, None] * self.slopes[j] * _shortening(u)
        return self.linear[j] + 2.0 * self.squares[j] * u + widths

    def _determinant_scores(self, u: Draws) -> Draws:
        """Derivatives (S, D) of the log determinant by positions."""
        return -self.slopes.sum(0) * _shortening(u) / self.scale


def _shortened(u: Draws) -> Draws:
    found: Draws = FARTHEST * np.tanh(u / FARTHEST)
    return found


def _shortening(u: Draws) -> Draws:
    found: Draws = 1.0 - np.square(np.tanh(u / FARTHEST))
    return found


@dataclass(frozen=True)
class _Terms:
    """Of one coordinate in others, and the nats for each draw that they gain."""

    gain: float
    others: list[int]
    constant: float
    linear: Float[np.ndarray, " K"]
    squares: Float[np.ndarray, " K"]
    slopes: Float[np.ndarray, " K"]


@np.errstate(all="ignore")
def fitted_bend(draws: Draws, counts: Values | None = None) -> Bend | None:
    """The bend that draws ask for; None where they are well without one.

    The coordinate that gains most is bent last, since it may depend on all others, and so on.

    Parameters
    ----------
    draws : array (S, D)
    counts : array (S,), optional
        How many draws each of them stands for. Default: one.
    """
    counts = np.ones(len(draws)) if counts is None else counts
    dim = draws.shape[1]
    quartiles = (0.25, 0.5, 0.75)
    low, center, high = np.quantile(draws, quartiles, 0, weights=counts, method="inverted_cdf")
    scale = (high - low) / (ndtri(0.75) - ndtri(0.25))
    if not (scale > 0.0).all():
        return None
    u = (draws - center) / scale
    near = (np.abs(draws - center) < OUTLYING * (high - low)).all(1)
    u, counts = u[near], counts[near]
    left, taken = list(range(dim)), dict[int, _Terms]()
    hopeful = left
    while len(left) > 1:
        every = {j: _terms(u, counts, j, [i for i in left if i != j]) for j in hopeful}
        found = {j: each for j, each in every.items() if each is not None}
        if not found:
            break
        best = max(found, key=lambda j: found[j].gain)
        taken[best] = found[best]
        left = [j for j in left if j != best]
        # With fewer others there is less to gain.
        hopeful = [j for j in found if j != best]
    if not taken:
        return None
    constants, matrices = np.zeros(dim), np.zeros((3, dim, dim))
    for j, own in taken.items():
        constants[j] = own.constant
        for matrix, row in zip(matrices, (own.linear, own.squares, own.slopes), strict=True):
            matrix[j, own.others] = row
    linear, squares, slopes = matrices
    return Bend(center, scale, constants, linear, squares, slopes, tuple(reversed(taken)))


def _terms(u: Draws, counts: Values, j: int, others: list[int]) -> _Terms | None:
    """Terms of a coordinate in others, by maximum likelihood of a Normal; None if they gain little.

    All are fitted first, and then once more those of them that are worth it.
    """
    number, near, count = counts.sum(), u[:, others], len(others)
    ones = np.ones((len(u), 1))
    of_center = np.concatenate([ones, near, np.square(near)], axis=1)
    of_width = np.concatenate([ones, _shortened(near)], axis=1)
    if number < DRAWS_PER_NUMBER * (of_center.shape[1] + of_width.shape[1]):
        return None
    line, _ = _regression(of_center[:, : count + 1], u[:, j], counts)
    before = 0.5 * np.log(counts @ np.square(u[:, j] - of_center[:, : count + 1] @ line) / number)
    least = np.sqrt(max(CERTAIN**2, 2.0 * GAIN * number))
    in_center, in_width = np.ones(2 * count + 1, bool), np.ones(count + 1, bool)
    for is_last in (False, True):
        center, slopes = np.zeros(2 * count + 1), np.zeros(count + 1)
        for _ in range(ROUNDS):
            weights = counts * np.exp(-2.0 * of_width @ slopes)
            center[in_center], errors = _regression(of_center[:, in_center], u[:, j], weights)
            squares = np.square(u[:, j] - of_center @ center)
            slopes, of_slopes = _log_widths(of_width, squares, counts, slopes, in_width)
        if not is_last:
            in_center[count + 1 :] = (np.abs(center) > least * errors)[count + 1 :]
            in_width[1:] = (np.abs(slopes) > least * of_slopes)[1:]
    logs = of_width @ slopes
    after = counts @ (logs + 0.5 * squares * np.exp(-2.0 * logs)) / number - 0.5
    gain, terms = float(before - after), int(in_center[count + 1 :].sum() + in_width[1:].sum())
    if not terms or not gain > max(GAIN, ALL_GAIN * terms / number):
        return None
    # The width where all others are 0 is for what is fitted in straight coordinates to tell.
    linear, curved = np.split(center[1:], 2)
    return _Terms(gain, others, float(center[0]), linear, curved, slopes[1:])


def _regression(
    features: Float[np.ndarray, "S K"], target: Values, weights: Values
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Coefficients, and their standard errors where weights are inverse variances."""
    inverse = _inverse(features, weights)
    found: Float[np.ndarray, " K"] = inverse @ (features.T @ (weights * target))
    return found, np.sqrt(np.diag(inverse))


def _log_widths(
    features: Float[np.ndarray, "S K"],
    squares: Values,
    counts: Values,
    slopes: Float[np.ndarray, " K"],
    chosen: Bool[np.ndarray, " K"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """A step of Fisher scoring for log widths of Normals, from squared residuals; and errors."""
    found = slopes * chosen
    if not found.any():
        found[0] = 0.5 * np.log(counts @ squares / counts.sum())
    own = features[:, chosen]
    inverse = _inverse(own, 2.0 * counts)
    excess = squares * np.exp(-2.0 * features @ found) - 1.0
    step = inverse @ (own.T @ (counts * excess))
    found[chosen] += np.clip(step, -MOST_CHANGE, MOST_CHANGE)
    errors = np.full(len(slopes), np.inf)
    errors[chosen] = np.sqrt(np.diag(inverse))
    return found, errors


def _inverse(features: Float[np.ndarray, "S K"], weights: Values) -> Float[np.ndarray, "K K"]:
    """Inverse of the weighted product of features; NaN where that is not finite."""
    product = features.T @ (weights[:, None] * features)
    if not np.isfinite(product).all():
        return np.full(product.shape, np.nan)
    product += np.diag(RIDGE * np.diag(product) + LEAST)
    return np.linalg.inv(product)
