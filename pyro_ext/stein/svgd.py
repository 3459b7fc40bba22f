"""Stein variational gradient descent (``SVGD``), and with reduced variance (``SVGDVR``).

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

from ppl_ext.gradients.minibatch import Sampling
from ppl_ext.stein.particles import check_no_estimator
from pyro_ext.density import Data
from pyro_ext.engine import Update
from pyro_ext.gradients import SVRG
from pyro_ext.gradients.full_data import FullData
from pyro_ext.kernels import Kernel, as_kernel
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein.particles import Annealing, DirectionState, ParticleEngine


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


class SVGDVR(ParticleEngine):
    """Stein variational gradient descent whose minibatch scores are corrected at anchors.

    :class:`~pyro_ext.stein.SVGD` with the estimator :class:`~pyro_ext.gradients.SVRG`. Every
    ``anchor_every`` steps the exact scores of all particles are computed by a sweep over the data;
    the steps between add the change of a minibatch's score since then. A step costs two minibatches
    and its share of the sweep, so compare with ``SVGD`` at equal gradients, not steps.

    Parameters
    ----------
    model : callable
        Pyro model that subsamples a plate and looks up its rows by the plate's indices, or
        whose batches are its arguments.
    optim : PyroOptim or callable
        Such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of tensors to a torch
        optimizer.
    kernel : Kernel or pyro.infer.svgd.SteinKernel, optional
        Default: :func:`~pyro_ext.kernels.default_kernel`.
    num_particles : int, default 32
        Number P of particles.
    annealing : callable, optional
        Maps the number of steps taken, from 0, to the factor gamma of the scores. Values below
        1 let the particles spread; end at 1.
    anchor_every : int
        Steps T from one anchor to the next. With T = N / (2 B), for batches of B of N rows, the
        sweeps cost as much as the minibatches; the paper has 8 for its networks.
    sampling : {"reshuffle", "replacement", "cyclic"}
        How batches are chosen: a new order of all rows in each pass, rows drawn with replacement,
        or the same order in each pass.
    full_data : tuple or iterable of tuples, optional
        All rows, for models whose batches are their arguments; see
        :class:`~pyro_ext.gradients.SVRG`.
    reset_optimizer : bool
        Start the optimizer's state, and any schedule that it keeps, anew at every anchor, as the
        authors' code does. Compare it then with an ``SVGD`` that is reset as often.
    **options
        Options of every engine but ``estimator``; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        An option is out of range; from ``setup``, the model subsamples no plate itself, or has
        latents inside it.

    References
    ----------
    N. Dam, T. Le, V. Huynh and D. Phung, "Stein variational gradient descent with variance
    reduction".

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> optim = pyro.optim.Adam({"lr": 0.3})
    >>> engine = px.SVGDVR(model, optim, num_particles=20, anchor_every=5, seed=0)
    >>> result = engine.run(100, y)
    >>> print(round(engine.get_samples()["mean"].mean().item()))
    2
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike,
        kernel: Kernel | SteinKernel | None = None,
        num_particles: int = 32,
        *,
        anchor_every: int,
        sampling: Sampling = "reshuffle",
        full_data: FullData | None = None,
        reset_optimizer: bool = False,
        annealing: Annealing | None = None,
        **options: Any,
    ) -> None:
        check_no_estimator(options)
        self.anchor_every = anchor_every
        self.reset_optimizer = reset_optimizer
        estimator = SVRG(anchor_every, sampling, full_data)
        self._set_kernel(as_kernel(kernel), annealing)
        super().__init__(model, optim, num_particles, estimator=estimator, **options)

    def _settings(self) -> dict[str, str]:
        return {"reset_optimizer": repr(self.reset_optimizer), **super()._settings()}

    def _update(self, plan: Any, state: DirectionState, data: Data) -> Update:
        if self.reset_optimizer and self._estimator_state["anchor_age"] >= self.anchor_every:
            state = state._replace(optimizer=self._new_optimizer(state.particles))
        return super()._update(plan, state, data)
