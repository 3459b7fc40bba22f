"""The kernels of :mod:`ppl_ext.kernels` on arrays of JAX.

The contributors' page says what a new kernel needs, and where it is exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import jax
from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels.arrays import ARRAYS
from ppl_ext.kernels import (
    additive,
    base,
    default,
    dilation,
    graphical,
    imq,
    linear,
    preconditioned,
    random_feature,
    rbf,
    semi_exact,
)
from ppl_ext.kernels import bandwidth as rules
from ppl_ext.kernels.base import KernelState
from ppl_ext.kernels.rules import ProductMetric

Metric: TypeAlias = "str | Array | Callable[[Array], Array] | ProductMetric | None"


class Kernel(base.Kernel):
    arrays = ARRAYS

    def __add__(self, other: Kernel) -> Sum:
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, factor: float) -> Scaled:
        return Scaled(self, float(factor)) if isinstance(factor, (int, float)) else NotImplemented

    __rmul__ = __mul__


class Sum(base.Sum, Kernel): ...


class Scaled(base.Scaled, Kernel): ...


class RBF(rbf.RBF, Kernel): ...


class IMQ(imq.IMQ, Kernel): ...


class Linear(linear.Linear, Kernel): ...


class Additive(additive.Additive, Kernel): ...


class Dilation(dilation.Dilation, Kernel): ...


class SemiExact(semi_exact.SemiExact, Kernel):
    """A kernel whose Stein equations of mean and covariance hold exactly at a fixed point.

    Half the kernel, projected on both sides to what is not affine on the particles, and half
    ``Linear()``; in more than five dimensions the kernel counts 5 / D times that. With P > D + 1
    particles the mean of the scores is then zero at a fixed point, and the mean of score times
    deviation minus the identity, whatever the kernel: on a Normal target, its mean and covariance.
    A step costs a QR decomposition of (P + D, D) more than the kernel's own. The equations are
    those of the scores that the kernel is given: scores of minibatches are right in the mean.

    Parameters
    ----------
    kernel : Kernel
        What decides on everything but mean and covariance, such as skewness and marginals.
    ridge : float, optional
        Added to the particles' variances, in units of these, where the affine part is taken off.
        Default: none for P > D + 1, where the equations hold exactly, and 0.1 for fewer
        particles, with which every function on the particles is affine.

    Raises
    ------
    ArgumentError
        The kernel is none of this package, or the ridge is not positive and finite.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> kernel = nx.SemiExact(nx.RBF())
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.3), kernel, num_particles=20)
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> draws = engine.get_samples(result.state)
    >>> print(f"{draws['mean'].mean():.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    linear = Linear


class Preconditioned(preconditioned.Preconditioned, Kernel): ...


class Graphical(graphical.Graphical, Kernel):
    default = RBF

    @staticmethod
    def _with_columns(total: Array, at: Any, values: Array) -> Array:
        return total.at[:, at].set(values)


class RandomFeature(random_feature.RandomFeature, Kernel):
    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        frequencies_key, offsets_key = jax.random.split(jax.random.PRNGKey(self.seed))
        shape, dtype = (self.num_features, particles.shape[1]), particles.dtype
        return {
            "frequencies": jax.random.normal(frequencies_key, shape, dtype),
            "offsets": 2.0 * math.pi * jax.random.uniform(offsets_key, shape[:1], dtype),
        }


class ByParticleCount(default.ByParticleCount, Kernel): ...


mixture = Sum.mixture


def default_kernel() -> Kernel:
    """The kernel of particle engines, unless told otherwise; see :mod:`ppl_ext.kernels.default`.

    Of P particles in D dimensions it is :func:`hierarchical_kernel` where 4 P > D^2 and D > 1,
    ``RBF()`` where 10 P <= D, and otherwise half ``IMQ("dimension", metric="variance")`` and half
    ``Linear()``. The first has no Gram matrix: engines that need one have defaults of their own.
    """
    some = mixture([IMQ("dimension", metric="variance"), Linear()])
    return replace(hierarchical_kernel(), some=some)


def hierarchical_kernel() -> ByParticleCount:
    """A kernel for scales that depend on one another, as in hierarchical models.

    A quarter each of ``RBF("wide", metric="variance")`` and ``Additive(4.0)``, half of
    ``Linear()``, and 0.15 of ``Dilation()``; with a tenth as many particles as dimensions or fewer
    ``RBF()``. It is part of :func:`default_kernel`. Only engines that need the direction alone take
    it, such as ``SVGD`` and ``SVGDVR``. Chosen on targets of ``python -m benchmarks semi-exact``,
    with seeds that are not in its records.
    """
    kernels = [RBF("wide", metric="variance"), Additive(4.0), Linear()]
    several = mixture(kernels, [0.25, 0.25, 0.5]) + 0.15 * Dilation()
    return ByParticleCount(several, several, RBF())


Bandwidth: TypeAlias = str | float | Callable[[Array], Array | float]


def bandwidth(rule: Bandwidth, particles: Float[Array, "P D"]) -> Float[Array, " ..."]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D), a squared distance.

    It is a scalar, or has shape (D,) for ``"pyro"`` and for callables that return a vector.
    """
    return rules.bandwidth(ARRAYS, rule, particles)
