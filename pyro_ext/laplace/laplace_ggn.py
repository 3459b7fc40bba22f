"""Laplace approximation of programs with Gauss-Newton curvature (``LaplaceGGN``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ppl_ext.arguments import entry
from ppl_ext.batches.passes import rows_of_loader
from ppl_ext.engines.base import draws_asked
from ppl_ext.engines.judgement import Drawn
from ppl_ext.laplace.laplace_ggn import (
    GaussianDensity,
    LaplaceShell,
    PosteriorShell,
    as_numpy,
)
from pyro_ext.curvature import Curvature, GaussNewton, ProgramCurvature
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.curvature.prior import prior_curvature_of_one
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.handlers import global_generator
from pyro_ext.engine import Plan, on_host
from pyro_ext.laplace.gaussian import Algebra, Precision, precision_of
from pyro_ext.stein import ParticleEngine
from pyro_ext.stein.particles import DirectionState


@dataclass(frozen=True)
class LaplacePlan(Plan):
    """As :class:`~pyro_ext.engine.Plan`, with what is found once about the curvature."""

    posterior: _Posterior = field(repr=False, compare=False)


class LaplaceGGN(LaplaceShell, ParticleEngine):
    """A Gaussian at the mode, whose precision is the Gauss-Newton matrix and the prior's curvature.

    Steps are those of a maximum a posteriori estimate. The first call for draws or for the marginal
    likelihood after them takes the curvature H of minus the log density there, over all rows
    whatever the estimator of the steps was, and the approximation is N(mode, H^-1). Mode and
    Gaussian are those in unconstrained space: of the density with the Jacobians of constrained
    sites. Other than the Hessian of the hosts' ``AutoLaplaceApproximation`` the Gauss-Newton matrix
    is never indefinite, needs no second derivatives of the program, and has structures for many
    dimensions.

    Parameters
    ----------
    model : callable
        The host's model, used as it is. Its likelihood is made of observed sample sites.
    optim : optimizer
        Of the kind that ``SVGD`` takes: Pyro's or a callable from tensors to a torch optimizer;
        in NumPyro the host's or one of optax.
    curvature : GaussNewton or {"full", "diag", "kfac", "low_rank"}, optional
        Curvature of the likelihood and the prior; see
        :class:`~ppl_ext.curvature.program_curvature.GaussNewton`. Default: ``"full"`` up to 5,000
        coordinates, and up to 10,000 where the Jacobian of all rows has 25 million numbers or
        fewer; ``"kfac"`` above. Its ``sites``, such as those of a network's last layer, have
        a Gaussian, and all others are fixed at the mode. A D x D matrix is formed for ``"full"``
        alone. With ``"kfac"`` the prior of a matrix site joins its Kronecker factors exactly
        where its curvature is the same for the whole site, or differs by rows and by columns; see
        ``laplace.precision_of``. Negative curvature of the prior is set to 0.
    hyperparameters : sequence of str, optional
        Latent sites with a point estimate in place of a Gaussian, such as the scale of the noise
        and that of the weights' prior. It maximises Laplace's approximation of the marginal
        likelihood times their prior, in unconstrained space. The same optimizer moves them during
        the run, while it moves the other sites to their mode.
    hyperparameters_every : int
        Steps from one gradient of the log determinant to the next. Each takes the curvature over
        all rows.
    **options
        Options of every engine; see the package's ``engine.Engine``.

    Raises
    ------
    ArgumentError
        An option is out of range. When the engine meets the model's arguments: a site is not
        latent, nothing is left for the Gaussian, or the likelihood has factors; with
        ``hyperparameters`` also where the curvature at the start is singular. From ``get_samples``
        and ``log_marginal_likelihood``: the curvature is singular, or the last arguments were a
        batch.

    Notes
    -----
    The loss is minus the log density at the mode so far, before the step, an estimate where the
    score is one. ``info["force_norm"]`` is the length of the gradient that the optimizer follows.

    The gradient in the hyperparameters is that of the marginal likelihood at the present mode; how
    the mode moves with them is followed by the steps, and what that does to the curvature is left
    out, as in Immer et al. (2021). That part is zero where the model is linear.

    ``elbo``, ``psis_khat`` and ``ksd`` take the engine: they judge the Gaussian, with the other
    sites at the mode.

    With ``"full"`` the variance of a linearised output at a row of training is at most that of the
    row's Normal noise, since the matrix holds the row itself. The other structures approximate the
    matrix, and the bound does not hold for them: with Kronecker factors of a network of 2,594
    weights, in double precision, the largest standard deviation was 1.07 times the noise's with
    priors scaled by their inputs, and 4.2 times with priors of scale 1.

    Draws of all the weights of a network, put through the network itself, predict worse than its
    mode: the Gauss-Newton matrix is that of the network made linear at the mode.
    ``predictive_distribution(model, engine, ..., linearize=True)`` predicts with that. With
    ``curvature=GaussNewton(sites=...)`` of the last layer the outputs are linear in what is drawn.

    References
    ----------
    D. J. C. MacKay, "A practical Bayesian framework for backpropagation networks", 1992,
    https://doi.org/10.1162/neco.1992.4.3.448; H. Ritter, A. Botev and D. Barber, "A scalable
    Laplace approximation for neural networks", 2018, https://openreview.net/forum?id=Skdvd2xAZ; A.
    Immer, M. Bauer, V. Fortuin, G. Raetsch and M. E. Khan, "Scalable marginal likelihood estimation
    for model selection in deep learning", 2021, https://arxiv.org/abs/2104.04975; E. Daxberger et
    al., "Laplace redux", 2021, https://arxiv.org/abs/2106.14806.

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
    >>> engine = px.LaplaceGGN(model, pyro.optim.Adam({"lr": 0.1}), seed=0)
    >>> result = engine.run(200, y)
    >>> print(f"{engine.mode()['mean']:.1f} {engine.get_samples(1000)['mean'].std():.1f}")
    2.0 0.5
    >>> print(f"{engine.log_marginal_likelihood():.1f}")
    -7.7
    """

    # The search for the mode has one particle.
    _sees_all = False

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> LaplacePlan:
        estimator = super()._plan(target, generator, data).estimator
        posterior = _Posterior.of(target, data, self.curvature, self.hyperparameters)
        return LaplacePlan(target, estimator, posterior)

    # -- the mode -----------------------------------------------------------------------------

    def mode(self) -> dict[str, Tensor]:
        with torch.no_grad():
            found = self.target.constrain(self.particles, self.data)
        return {name: value[0] for name, value in found.items()}

    def _initialize(self, plan: LaplacePlan, data: Data) -> DirectionState:
        state = super()._initialize(plan, data)
        # A curvature that has no factor is told before the first step, not in the midst of a run.
        if self.hyperparameters:
            plan.posterior.precision_at(state.particles[0].detach(), data)
        return state

    def _init_direction(self, plan: LaplacePlan, particles: Tensor) -> dict[str, Any]:
        # What the log determinant adds to the hyperparameters' score; the first step finds one.
        nothing = torch.zeros_like(particles[0, plan.posterior.held])
        return {"correction": nothing, "steps_served": self.hyperparameters_every}

    def _direction(
        self, plan: LaplacePlan, state: dict[str, Any], particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        if not self.hyperparameters:
            return scores, state
        posterior, correction, served = plan.posterior, state["correction"], state["steps_served"]
        if served >= self.hyperparameters_every:
            slope = posterior.slope_of_log_determinant(particles[0], self.data)
            correction, served = -0.5 * slope, 0
        # The scores are the estimator's, and are left as they are.
        scores = scores.clone()
        scores[:, posterior.held] += correction
        return scores, {"correction": correction, "steps_served": served + 1}

    def _positions(self, plan: LaplacePlan, state: DirectionState) -> Tensor:
        # The mode: its curvature would be a pass over all rows at every look.
        return state.particles

    # -- the Gaussian -------------------------------------------------------------------------

    @entry
    def fit_curvature(
        self, *args: Any, batches: Iterable[Any] | None = None, **kwargs: Any
    ) -> Precision:
        some, named, passes = rows_of_loader(batches, args, kwargs, placing(self.dtype))
        if some or named:
            self.setup(*(some or ()), **(named or {}))
        return self._curvature_at(self.particles[0], passes)

    def log_marginal_likelihood(self) -> Float[Tensor, ""]:
        data, precision = self._fit(self.particles[0])
        with torch.no_grad():
            value = self._target_of_fit().full_log_density(self.particles, data)[0]
        return self._evidence(value, precision)

    def _draw(self, plan: LaplacePlan, state: DirectionState, num_samples: int | None) -> Tensor:
        number = draws_asked(num_samples)
        mode = state.particles.detach().clone()
        _, precision = self._fit(mode[0])
        return plan.posterior.draws(precision, mode[0], self._draws, number)

    def _to_judge(self, plan: LaplacePlan, state: DirectionState, number: int) -> Drawn:
        density, parameters = self._approximation_at(state.particles[0].detach().clone())
        z = density.sample(parameters, self._draws, number)
        where = as_numpy(plan.posterior.coordinates.numbers)
        return Drawn(on_host(z), on_host(density.log_prob(parameters, z)), where)

    def approximation(self) -> tuple[GaussianDensity, Any]:
        """The Gaussian as a density with its parameters, for ``elbo``, ``psis_khat`` and ``ksd``.

        Raises
        ------
        ArgumentError
            The curvature is singular, or the last arguments were a batch.
        """
        return self._approximation_at(self.particles[0].detach().clone())


class _Posterior(PosteriorShell):
    _coordinates, _program, _algebra = Coordinates, ProgramCurvature, Algebra
    _prior_of_one = staticmethod(prior_curvature_of_one)

    @classmethod
    def of(
        cls,
        target: LogDensity,
        data: Data,
        options: GaussNewton | None,
        hyperparameters: tuple[str, ...],
    ) -> _Posterior:
        def outputs() -> dict[str, Any]:
            anywhere = torch.zeros(target.dim, dtype=target.dtype, device=target.device)
            return target.outputs(anywhere, data, target.first_rows())

        return cls(target, *cls._parts(target, data, options, hyperparameters, outputs))

    def draws(
        self, precision: Precision, mode: Tensor, generator: Generator, number: int
    ) -> Float[Tensor, "number D"]:
        """Draws of the Gaussian; coordinates of other sites are at the mode (D,)."""
        where = self.coordinates.numbers
        noise = torch.randn(number, len(where), generator=generator, dtype=mode.dtype)
        draws = mode.repeat(number, 1)
        draws[:, where] += precision.draws(noise.to(mode.device))
        return draws

    def at(self, position: Tensor, data: Data) -> Curvature:
        """H at a position (D,), of one position."""
        likelihood = self.likelihood.of_all_rows(self.target, position, data)
        return self.prior(position, data).plus(likelihood)

    def precision_at(self, position: Tensor, data: Data) -> Precision:
        # One seed, so that the curvature of a state is the same whenever it is taken.
        with global_generator(0), torch.no_grad():
            curvature = self.at(position, data)
            precision = precision_of(curvature)
            finite = bool(torch.isfinite(precision.log_determinant()))
            definite = precision.definite()
            if finite and bool(definite.all()):
                return precision
            raise self.singular(curvature, as_numpy(definite))

    def slope_of_log_determinant(self, position: Tensor, data: Data) -> Tensor:
        with torch.enable_grad():
            values = position[self.held].detach().requires_grad_()
            moved = position.detach().index_copy(0, self.held, values)
            log_determinant = precision_of(self.at(moved, data)).log_determinant()
            # Hyperparameters that H does not depend on have no slope.
            (slope,) = torch.autograd.grad(log_determinant, values, materialize_grads=True)
        return slope
