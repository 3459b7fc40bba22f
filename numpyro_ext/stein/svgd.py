"""Stein variational gradient descent (``SVGD``).

Moves P particles along phi(z_i) = 1/P sum_j [k(z_j, z_i) s(z_j) + grad_{z_j} k(z_j, z_i)], the
direction in which their distribution approaches the target fastest (Liu and Wang 2016,
https://arxiv.org/abs/1608.04471, Algorithm 1). Particles live in unconstrained space and the scores
s include every transform's Jacobian, so the answer depends neither on how the model splits its
latents into sites nor on their supports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpyro.contrib.einstein.stein_kernels import SteinKernel

from numpyro_ext.kernels import Kernel, as_kernel
from numpyro_ext.stein.particles import Annealing, ParticleEngine


class SVGD(ParticleEngine):
    """Stein variational gradient descent.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer
        NumPyro or optax optimizer.
    kernel : Kernel or numpyro SteinKernel, optional
        Default: :func:`~numpyro_ext.kernels.default_kernel`.
    num_particles : int, default 32
        Number P of particles. One particle is a MAP estimate in unconstrained space.
    annealing : callable, optional
        Maps the number of steps taken, a traced integer from 0, to the factor gamma of the
        scores. Values below 1 let the particles spread; end at 1.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is minus the mean log density of the particles before the step, an estimate where
    the score is one. ``info["force_norm"]`` is the root mean square over particles of |phi|.

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
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.3), num_particles=20)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> draws = engine.get_samples(result.state)
    >>> print(f"{draws['mean'].mean():.1f} {draws['mean'].std(ddof=1):.1f}")
    2.0 0.5
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        kernel: Kernel | SteinKernel | None = None,
        num_particles: int = 32,
        *,
        annealing: Annealing | None = None,
        **options: Any,
    ) -> None:
        self._set_kernel(as_kernel(kernel), annealing)
        super().__init__(model, optim, num_particles, **options)
