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

from pyro.infer.svgd import SteinKernel

from pyro_ext.kernels import Kernel, as_kernel
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein.particles import Annealing, ParticleEngine


class SVGD(ParticleEngine):
    """Stein variational gradient descent.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        Such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of tensors to a torch
        optimizer.
    kernel : Kernel or pyro.infer.svgd.SteinKernel, optional
        Default: :func:`~pyro_ext.kernels.default_kernel`.
    num_particles : int, default 32
        Number P of particles. One particle is a MAP estimate in unconstrained space.
    annealing : callable, optional
        Maps the number of steps taken, from 0, to the factor gamma of the scores. Values below
        1 let the particles spread; end at 1.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Notes
    -----
    The loss is minus the mean log density of the particles before the step, an estimate where
    the score is one. ``info["force_norm"]`` is the root mean square over particles of |phi|.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.3}), num_particles=20, seed=0)
    >>> result = engine.run(100, y)
    >>> draws = engine.get_samples()
    >>> print(f"{draws['mean'].mean():.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike,
        kernel: Kernel | SteinKernel | None = None,
        num_particles: int = 32,
        *,
        annealing: Annealing | None = None,
        **options: Any,
    ) -> None:
        self._set_kernel(as_kernel(kernel), annealing)
        super().__init__(model, optim, num_particles, **options)
