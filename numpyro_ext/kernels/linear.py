"""Linear kernel about the particle mean, k(x, y) = 1 + (x - c)' W (y - c) / D."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from numpyro_ext.errors import ArgumentError
from numpyro_ext.kernels.base import Kernel, KernelState, centre


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Kernel):
    """Linear kernel, which matches moments (Liu and Wang 2018, "SVGD as moment matching").

    c is the particle mean and W a diagonal metric; both are constants of a step. At a fixed
    point the mean score is zero and the mean of score times deviation is minus the identity:
    the Stein equations for mean and covariance hold exactly. On a Gaussian target with more
    particles than dimensions these are the target's mean and covariance. Added to a radial
    kernel it repairs the spread that such a kernel loses.

    Parameters
    ----------
    metric : "variance", None or Array, default "variance"
        Diagonal of W: the inverse of the particles' variances, which makes the kernel the
        same in any units of the coordinates; None for the identity; or D fixed numbers.
    """

    metric: str | Array | None = "variance"

    def __post_init__(self) -> None:
        if isinstance(self.metric, str) and self.metric != "variance":
            raise ArgumentError(
                f'Expected the metric "variance", None, or a vector of D weights, found '
                f"{self.metric!r}."
            )

    def _features(self, particles: Array) -> tuple[Array, Array]:
        """Centred particles z - c and W (z - c) / D, each of shape (P, D)."""
        dim = particles.shape[1]
        centred = centre(particles)
        if self.metric is None:
            return centred, centred / dim
        if isinstance(self.metric, str):
            variance = (centred**2).mean(axis=0)
            # Where all particles agree the deviations are zero, and any weight will do.
            usable = variance > 4.0 * jnp.finfo(variance.dtype).tiny
            return centred, centred / (dim * jnp.where(usable, variance, 1.0))
        weights = jnp.asarray(self.metric, centred.dtype)
        if weights.shape != (dim,):
            raise ArgumentError(
                f"Expected a metric of shape ({dim},), one weight for each flat coordinate, "
                f"found {weights.shape}."
            )
        return centred, centred * weights / dim

    def direction(
        self, state: KernelState, particles: Array, scores: Array
    ) -> tuple[Array, KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        num, dim = particles.shape
        centred, weighted = self._features(particles)
        # Associate the product so that the middle matrix is the smaller of (D, D) and (P, P).
        if dim <= num:
            drift = weighted @ (centred.T @ scores)
        else:
            drift = (weighted @ centred.T) @ scores
        # grad_{z_j} k(z_j, z_i) = W (z_i - c) / D, the same for every j.
        return scores.mean(axis=0) + drift / num + weighted, state

    def gram(self, state: KernelState, particles: Array) -> Array:
        """Kernel values at all pairs of particles, shape (P, P)."""
        centred, weighted = self._features(particles)
        return 1.0 + centred @ weighted.T
