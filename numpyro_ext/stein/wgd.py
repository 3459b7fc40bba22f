"""Repulsive ensembles in weight space (``WGD``), a discretized Wasserstein gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels import RBF, Kernel, KernelState, as_kernel
from numpyro_ext.stein.particles import KernelPlan, ParticleEngine
from ppl_ext.stein.particles import check_translation_invariant, without_neighbours


class WGD(ParticleEngine):
    """Repulsive deep ensembles: each particle follows its score and leaves the others.

    The direction is phi(z_i) = s(z_i) - sum_j grad_{z_i} k(z_i, z_j) / sum_j k(z_i, z_j), the score
    of the target minus that of a kernel density estimate of the particles (D'Angelo and Fortuin
    2021, "Repulsive deep ensembles are Bayesian", https://arxiv.org/abs/2106.11642, equation 14).
    Unlike SVGD, particles do not share their scores.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer
        NumPyro or optax optimizer.
    kernel : Kernel, optional
        A function of z_i - z_j: ``RBF``, ``IMQ``, or sums and multiples of them; default
        ``RBF()``, the Gaussian kernel with the median rule of the paper.
    num_particles : int, default 32
        Number P of particles.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The kernel is not a function of the difference of its arguments.

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
    >>> engine = nx.WGD(model, numpyro.optim.Adam(0.1), num_particles=20)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> print(f"{engine.get_samples(result.state)['mean'].mean():.0f}")
    2
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        kernel: Kernel | None = None,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        self._set_kernel(RBF() if kernel is None else as_kernel(kernel))
        super().__init__(model, optim, num_particles, **options)
        check_translation_invariant(self.kernel)

    def _direction(
        self,
        plan: KernelPlan,
        state: KernelState,
        particles: Float[Array, "P D"],
        scores: Float[Array, "P D"],
    ) -> tuple[Float[Array, "P D"], KernelState]:
        return without_neighbours(plan.kernel, state, particles, scores)
