"""Closed forms of the flat log density and the score for the hosts' Normal guides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_ext.guides.arrays import LOG_TWO_PI
from ppl_ext.guides.flat_density import FlatDensityShell, Moments
from ppl_ext.start.start import Start

#: Length of a column of a low-rank factor for which a start knows no direction.
LEAST_COLUMN = 0.1


def log_density(xp: Any, scale_tril: Any, standard: Any) -> Any:
    """Log density (...,) of a Normal at points in its standard coordinates (..., D).

    ``xp`` is the module of the arrays' functions, and ``scale_tril`` a Cholesky factor (D, D).
    """
    constant = xp.log(scale_tril.diagonal()).sum() + 0.5 * len(scale_tril) * LOG_TWO_PI
    return -0.5 * (standard**2).sum(-1) - constant


def with_scale(density: Any, parameters: Any, scale: float) -> Any:
    """New parameters of a guide with a low-rank factor W, with this deviation everywhere."""
    loc, _, factor = density.parts(parameters)
    # What W adds to the variance is taken from the diagonal.
    share = density.arrays.inverse_root(1.0 + (factor**2).sum(-1))
    return density.set_parts(loc, scale * share, factor)


def as_moments(density: Any, parameters: Any, mean: Any, scale: Any) -> Moments:
    """Moments of NumPy's as arrays of a Normal guide's type."""
    like = density.mean(parameters)
    return Moments(*(density.arrays.as_array(each, like) for each in (mean, scale)))


class DiagonalFormulas(FlatDensityShell):
    """``AutoDiagonalNormal``: closed forms in O(D) memory per draw."""

    mean: Callable[..., Any]

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        loc, scale = self.moments(parameters)
        square = (((theta - loc) / scale) ** 2).sum(-1)
        return -0.5 * (square + self.dim * LOG_TWO_PI) - self.arrays.xp.log(scale).sum()

    def score(self, parameters: Any, theta: Any) -> Any:
        loc, scale = self.moments(parameters)
        return (loc - theta) / scale**2

    def largest_gradient(self, parameters: Any, theta: Any, score: Any, reach: Any) -> Any:
        """Bound on the entries of ``mean_square_residual``'s gradient, and on the residuals.

        For targets between ``score`` and the scores of the present guide, at these parameters and
        all others whose entries differ by ``reach`` at most. Infinite or NaN where something is
        not finite, or not known.

        Parameters
        ----------
        parameters : dict of arrays
        theta, score : arrays (S, D)
        reach : float
        """
        raise NotImplementedError

    def set_scale(self, parameters: Any, scale: float) -> Any:
        mean = self.mean(parameters)
        return self.set_moments(parameters, Moments(mean, self.arrays.xp.full_like(mean, scale)))

    def set_start(self, parameters: Any, start: Start) -> Any:
        found = start.mean, start.modes[0].conditional_deviations
        return self.set_moments(parameters, as_moments(self, parameters, *found))


class FullFormulas(FlatDensityShell):
    """``AutoMultivariateNormal``: closed forms by two triangular solves."""

    mean: Callable[..., Any]

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        loc, scale_tril = self.moments(parameters)
        standard = self.arrays.solve_lower(scale_tril, theta - loc)
        return log_density(self.arrays.xp, scale_tril, standard)

    def score(self, parameters: Any, theta: Any) -> Any:
        return self._standard_and_score(*self.moments(parameters), theta)[1]

    def log_prob_and_score(self, parameters: Any, theta: Any) -> tuple[Any, Any]:
        loc, scale_tril = self.moments(parameters)
        standard, score = self._standard_and_score(loc, scale_tril, theta)
        return log_density(self.arrays.xp, scale_tril, standard), score

    def _standard_and_score(self, loc: Any, scale_tril: Any, theta: Any) -> tuple[Any, Any]:
        standard = self.arrays.solve_lower(scale_tril, loc - theta)
        return standard, self.arrays.solve_lower(scale_tril, standard, transpose=True)

    def set_scale(self, parameters: Any, scale: float) -> Any:
        mean = self.mean(parameters)
        deviations = self.arrays.xp.diag(self.arrays.xp.full_like(mean, scale))
        return self.set_moments(parameters, Moments(mean, deviations))

    def set_start(self, parameters: Any, start: Start) -> Any:
        found = start.mean, start.modes[0].root
        return self.set_moments(parameters, as_moments(self, parameters, *found))


class LowRankFormulas(FlatDensityShell):
    """``AutoLowRankMultivariateNormal``: closed forms by Woodbury's identity.

    The covariance is S (I + W W^T) S with S = diag(scale) and W = ``cov_factor`` (D, r), so only
    r x r systems are solved.
    """

    set_parts: Callable[..., Any]

    def parts(self, parameters: Any) -> tuple[Any, Any, Any]:
        """The mean, the diagonal of S, and W."""
        raise NotImplementedError

    set_scale = with_scale

    def set_start(self, parameters: Any, start: Start) -> Any:
        loc, _, factor = self.parts(parameters)
        scale, found = start.modes[0].low_rank(factor.shape[-1])
        # Columns that are zero would stay zero: the score depends on W through W W^T.
        present = np.asarray(self.arrays.detached(factor))
        lengths = np.linalg.norm(present, axis=0)
        # One that the guide itself has at zero stays there, as it does without a start.
        small = LEAST_COLUMN * present / np.where(lengths > 0.0, lengths, 1.0)
        found = np.where(found.any(axis=0), found, small)
        arrays = (self.arrays.as_array(each, loc) for each in (start.mean, scale, found))
        return self.set_parts(*arrays)

    def _capacitance(self, factor: Any) -> Any:
        """Cholesky factor of I + W^T W, (r, r)."""
        identity = self.arrays.identity(factor.shape[-1], factor)
        return self.arrays.xp.linalg.cholesky(identity + factor.T @ factor)

    def _solved(self, parameters: Any, theta: Any) -> tuple[Any, Any, Any]:
        """Of z = S^{-1} (theta - loc): z - W c and c, where c = (I + W^T W)^{-1} W^T z; and the
        Cholesky factor of I + W^T W."""
        loc, scale, factor = self.parts(parameters)
        standard, capacitance = (theta - loc) / scale, self._capacitance(factor)
        inner = self.arrays.solve_lower(capacitance, standard @ factor)
        inner = self.arrays.solve_lower(capacitance, inner, transpose=True)
        return standard - inner @ factor.T, inner, capacitance

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        _, scale, _ = self.parts(parameters)
        left, inner, capacitance = self._solved(parameters, theta)
        # z^T (I + W W^T)^{-1} z as a sum: |z|^2 less what W explains cancels where W is large.
        square = (left**2).sum(-1) + (inner**2).sum(-1)
        log = self.arrays.xp.log
        log_determinant = log(scale).sum() + log(capacitance.diagonal()).sum()
        return -0.5 * (square + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Any, theta: Any) -> Any:
        _, scale, _ = self.parts(parameters)
        left, _, _ = self._solved(parameters, theta)
        return -left / scale

    def moments(self, parameters: Any) -> Moments:
        loc, scale, factor = self.parts(parameters)
        scaled = scale[:, None] * factor
        covariance = scaled @ scaled.T + self.arrays.xp.diag(scale**2)
        return Moments(loc, self.arrays.xp.linalg.cholesky(covariance))
