"""Laplace approximation of programs with Gauss-Newton curvature (``LaplaceGGN``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from ppl_ext.curvature import as_curvature
from ppl_ext.errors import ArgumentError
from ppl_ext.laplace import sites_of_gaussian
from ppl_ext.options import check_count, check_names, describe
from pyro_ext.curvature import Curvature, GaussNewton, Structure, row_structure
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.curvature.fisher import same_draws
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Plan, Update, seeded_generator
from pyro_ext.laplace.gaussian import Precision, precision_of
from pyro_ext.laplace.likelihood import LikelihoodCurvature
from pyro_ext.laplace.prior import ConditionalPrior
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein import DirectionEngine

#: Draws that ``get_samples`` returns unless told otherwise.
DRAWS = 1000


@dataclass(frozen=True)
class LaplacePlan(Plan):
    """As :class:`~pyro_ext.engine.Plan`, with what is found once about the curvature."""

    posterior: _Posterior = field(repr=False, compare=False)


class LaplaceGGN(DirectionEngine):
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
        Pyro model, used as it is. Its likelihood is made of observed sample sites.
    optim : PyroOptim or callable
        See :class:`~pyro_ext.stein.ParticleEngine`.
    curvature : GaussNewton or {"full", "diag", "kfac", "low_rank"}
        Curvature of the likelihood and the prior; see :class:`~pyro_ext.GaussNewton`. Its
        ``sites``, such as those of a network's last layer, have a Gaussian, and all others are
        fixed at the mode. Nothing of D x D numbers is formed but for ``"full"``. With ``"kfac"``
        the prior of a matrix site joins its Kronecker factors exactly where its curvature is the
        same for the whole site, or differs by rows and by columns; see
        :func:`~pyro_ext.laplace.precision_of`. Negative curvature of the prior is set to 0.
    hyperparameters : sequence of str, optional
        Latent sites, such as the scale of the noise and that of the weights' prior, that have no
        Gaussian. While the others are led to their mode, these are led to the maximum of the
        marginal likelihood by Laplace's method, in unconstrained space and times their own prior.
        They change during the run, by the same optimizer.
    hyperparameters_every : int
        Steps that one gradient of the log determinant, which takes the curvature over all rows,
        serves.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``setup``: a site is not latent, nothing is left for the
        Gaussian, or the likelihood has factors; with ``hyperparameters`` also where the curvature
        at the start is singular. From ``get_samples`` and ``log_marginal_likelihood``: the
        curvature is singular, or the last arguments were a batch.

    Notes
    -----
    The loss is minus the log density at the mode so far, before the step, an estimate where the
    score is one. ``info["force_norm"]`` is the length of the gradient that the optimizer follows.

    The gradient in the hyperparameters is that of the marginal likelihood at the present mode; how
    the mode moves with them is followed by the steps, and what that does to the curvature is left
    out, as in Immer et al. (2021). It is nothing where the model is linear.

    Draws of all the weights of a network, put through the network itself, predict worse than its
    mode: the Gauss-Newton matrix is that of the network made linear at the mode. With
    ``curvature=GaussNewton(sites=...)`` of the last layer the outputs are linear in what is drawn.

    References
    ----------
    D. J. C. MacKay, "A practical Bayesian framework for backpropagation networks", 1992; H. Ritter,
    A. Botev and D. Barber, "A scalable Laplace approximation for neural networks", 2018; A. Immer,
    M. Bauer, V. Fortuin, G. Raetsch and M. E. Khan, "Scalable marginal likelihood estimation for
    model selection in deep learning", 2021; E. Daxberger et al., "Laplace redux", 2021.

    Examples
    --------
    >>> engine = LaplaceGGN(model, pyro.optim.Adam({"lr": 0.01}), curvature="kfac")
    ... # doctest: +SKIP
    >>> engine.run(2000, x, y)  # doctest: +SKIP
    >>> draws = engine.get_samples(500)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike,
        *,
        curvature: Structure | GaussNewton = "full",
        hyperparameters: Sequence[str] | None = None,
        hyperparameters_every: int = 20,
        **options: Any,
    ) -> None:
        curvature = as_curvature(curvature)
        if curvature.every != 1:
            raise ArgumentError(
                f"Expected a curvature with every=1, found every={curvature.every}: it is taken at "
                "the mode, once. With hyperparameters give hyperparameters_every."
            )
        check_names("hyperparameters", hyperparameters, optional=True)
        if "num_particles" in options:
            raise ArgumentError(
                "Expected no num_particles, since there is one mode. For several modes run several "
                "engines, or DeepEnsemble."
            )
        check_count("hyperparameters_every", hyperparameters_every)
        super().__init__(model, optim, 1, **options)
        self.hyperparameters = tuple(hyperparameters or ())
        self.hyperparameters_every = hyperparameters_every
        self.curvature = curvature
        shared = [name for name in self.hyperparameters if name in (curvature.sites or ())]
        if shared:
            raise ArgumentError(
                f"Expected hyperparameters other than the sites of the curvature, found {shared} "
                "in both."
            )
        # So that draws do not change the steps to come.
        self._draws = seeded_generator(self._generator.initial_seed(), 1)
        self._fitted: tuple[Tensor, Data, Precision] | None = None
        self._correction = torch.zeros(0)
        self._steps_served = hyperparameters_every

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> LaplacePlan:
        estimator = super()._plan(target, generator, data).estimator
        posterior = _Posterior.of(target, data, self.curvature, self.hyperparameters)
        return LaplacePlan(target, estimator, posterior)

    def _settings(self) -> dict[str, str]:
        # Without hyperparameters the steps do not depend on the curvature, and the state of one
        # serves engines with all others.
        own = {"hyperparameters": describe(self.hyperparameters)}
        if self.hyperparameters:
            own["curvature"] = describe(self.curvature)
            own["hyperparameters_every"] = repr(self.hyperparameters_every)
        return {**own, **super()._settings()}

    # -- the mode -----------------------------------------------------------------------------

    def mode(self) -> dict[str, Tensor]:
        """The mode so far: latent site to its value, constrained."""
        with torch.no_grad():
            found = self.target.constrain(self.particles, self.data)
        return {name: value[0] for name, value in found.items()}

    def _initialize(self, plan: LaplacePlan, data: Data) -> None:
        super()._initialize(plan, data)
        if self.hyperparameters:
            assert self._particles is not None
            position = self._particles[0].detach()
            plan.posterior.precision_at(position, data)
            self._correction = torch.zeros_like(position[plan.posterior.held])

    def _update(self, plan: LaplacePlan, data: Data) -> Update:
        before = self._correction, self._steps_served
        if self.hyperparameters:
            # The first step finds one.
            if self._steps_served >= self.hyperparameters_every:
                slope = plan.posterior.slope_of_log_determinant(self.particles[0], data)
                self._correction, self._steps_served = -0.5 * slope, 0
            self._steps_served += 1
        update = super()._update(plan, data)
        if not update.finite:
            self._correction, self._steps_served = before
        return update

    def _direction(
        self, plan: LaplacePlan, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, None]:
        if self.hyperparameters:
            scores = scores.clone()
            scores[:, plan.posterior.held] += self._correction
        return scores, None

    def _algorithm_state(self) -> dict[str, Any]:
        own = {
            "correction": self._correction,
            "steps_served": self._steps_served,
            "draws": self._draws.get_state(),
        }
        return {**own, **super()._algorithm_state()}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._correction, self._steps_served = state["correction"], state["steps_served"]
        self._draws.set_state(state["draws"])

    # -- the Gaussian -------------------------------------------------------------------------

    def fit_curvature(self, *args: Any, **kwargs: Any) -> Precision:
        """Take the curvature at the mode, over all rows, and keep it for draws until the next step.

        Draws and the marginal likelihood call it by themselves. It is needed by itself only where
        the last arguments that the engine saw were a batch: then with the arguments of all rows.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the model; default those that the engine saw last.

        Returns
        -------
        Precision
            Of the D' coordinates of the Gaussian, those of ``sites`` in the order of the program.

        Raises
        ------
        ArgumentError
            The arguments are a batch; or the curvature is singular, or not finite.
        """
        if args or kwargs:
            self.setup(*args, **kwargs)
        data, position = self.data, self.particles[0]
        self.target.require_all_rows(
            data, "Call fit_curvature(*args) with the arguments of all rows."
        )
        precision = self.plan.posterior.precision_at(position, data)
        self._fitted = position, data, precision
        return precision

    def log_marginal_likelihood(self) -> Tensor:
        """Log marginal likelihood log p(y) by Laplace's method at the mode, a scalar.

        log p(y, mode) + D'/2 log 2 pi - 1/2 log det H, for the D' coordinates of the Gaussian. It
        holds where the run has converged. With ``hyperparameters`` the density of these in
        unconstrained space is a factor, so that it is log p(y, hyperparameters); with ``sites``
        that of the other sites at the mode. The likelihood is that of the program divided by the
        temperature.

        Raises
        ------
        ArgumentError
            The curvature is singular, or the last arguments were a batch.
        """
        data, precision = self._fit()
        target = self.target
        with torch.no_grad():
            value = target.full_log_density(self.particles, data)[0]
        dim = len(self.plan.posterior.coordinates)
        return value + 0.5 * dim * math.log(2.0 * math.pi) - 0.5 * precision.log_determinant()

    def _draw(self, plan: LaplacePlan, num_samples: int | None) -> Tensor:
        number = DRAWS if num_samples is None else num_samples
        check_count("num_samples", number)
        _, precision = self._fit()
        where = plan.posterior.coordinates.numbers
        mode = self.particles
        noise = torch.randn(number, len(where), generator=self._draws, dtype=mode.dtype)
        draws = mode.repeat(number, 1)
        draws[:, where] += precision.draws(noise.to(mode.device))
        return draws

    def arviz_attributes(self) -> dict[str, Any]:
        """What ``to_arviz`` says of the draws."""
        return {"sample_kind": "independent draws"}

    def _fit(self) -> tuple[Data, Precision]:
        """All rows and the precision that are kept for the present mode, or the last arguments'."""
        if self._fitted is not None:
            position, data, precision = self._fitted
            # A batch does not put an end to what all rows have said.
            serves = data is self.data or bool(self.target.partial_plates(self.data))
            if serves and torch.equal(position, self.particles[0]):
                return data, precision
        precision = self.fit_curvature()
        return self.data, precision


@dataclass(frozen=True)
class _Posterior:
    """The curvature of minus the log density in the Gaussian's coordinates, given the others.

    Parameters
    ----------
    target : LogDensity
    coordinates : Coordinates
        The D' of the Gaussian.
    prior : ConditionalPrior
    likelihood : LikelihoodCurvature
    held : tensor of int
        The K coordinates of the hyperparameters.
    """

    target: LogDensity
    coordinates: Coordinates
    prior: ConditionalPrior
    likelihood: LikelihoodCurvature
    held: Tensor

    @classmethod
    def of(
        cls,
        target: LogDensity,
        data: Data,
        options: GaussNewton,
        hyperparameters: tuple[str, ...],
    ) -> _Posterior:
        if target.parameter_sites and not target.observed_sites:
            raise ArgumentError(
                "Expected a model with observed sites, whose outputs the Gauss-Newton matrix is "
                "made of, found none: its density is in one piece, as that of a Stan program is. "
                "Use SVN, which takes its Hessian, or the host's AutoLaplaceApproximation."
            )
        chosen = sites_of_gaussian(target.layout.names, options.sites, hyperparameters)
        # Anywhere will do: rows that depend on each other do so at a position of no symmetry.
        generator = torch.Generator().manual_seed(0)
        uniform = torch.rand(target.dim, generator=generator, dtype=target.dtype)
        position = (2.0 * uniform - 1.0).to(target.device)
        factors = target.likelihood_factors(position, data, target.first_rows())
        if factors:
            raise ArgumentError(
                f"Expected a likelihood of observed sample sites, found the factors {factors}: a "
                "factor has no distribution whose Fisher information could give its curvature. "
                "Write them as pyro.sample(..., obs=...), or use the host's "
                "AutoLaplaceApproximation."
            )
        coordinates = Coordinates(target, chosen)
        prior = ConditionalPrior(target, data, coordinates, options)
        structure = row_structure(target, position, data, target.first_rows())
        likelihood = LikelihoodCurvature(target, coordinates, options, structure)
        if hyperparameters:
            drawn = likelihood.drawn_sites(position, data)
            if drawn:
                raise ArgumentError(
                    f"Expected observed distributions with known Fisher information, found {drawn} "
                    "without: with hyperparameters its derivative is needed, which draws do not "
                    "give. Add it with register_output_fisher, or leave hyperparameters out."
                )
        held = Coordinates(target, hyperparameters).numbers
        return cls(target, coordinates, prior, likelihood, held)

    def at(self, position: Tensor, data: Data) -> Curvature:
        """H at a position (D,), of one position."""
        first, second = self.prior.at(position, data), self.likelihood.at(position, data)
        matrices = [part.matrix for part in (first, second) if part.matrix is not None]
        return Curvature(
            first.diagonal + second.diagonal,
            sum(matrices[1:], start=matrices[0]) if matrices else None,
            second.rows,
            second.blocks,
        )

    def precision_at(self, position: Tensor, data: Data) -> Precision:
        """The precision at a position (D,), found to be positive definite."""
        # One seed, so that the curvature of a state is the same whenever it is taken.
        with same_draws(0), torch.no_grad():
            curvature = self.at(position, data)
            precision = precision_of(curvature)
            finite = bool(torch.isfinite(precision.log_determinant()))
            if finite and bool(precision.definite().all()):
                return precision
            raise self.singular(curvature, precision)

    def slope_of_log_determinant(self, position: Tensor, data: Data) -> Tensor:
        """d log det H / d hyperparameters at a position (D,), shape (K,)."""
        with torch.enable_grad():
            values = position[self.held].detach().requires_grad_()
            moved = position.detach().index_copy(0, self.held, values)
            log_determinant = precision_of(self.at(moved, data)).log_determinant()
            # Hyperparameters that H does not depend on have no slope.
            (slope,) = torch.autograd.grad(log_determinant, values, materialize_grads=True)
        return slope

    def singular(self, curvature: Curvature, precision: Precision) -> ArgumentError:
        """The error for a curvature that is no precision, with the sites at fault."""
        if not bool(torch.isfinite(curvature.diagonals()).all()):
            return ArgumentError(
                "Expected a finite curvature at the mode, found one that is not. Look at the mode: "
                "a scale may have run to 0, or the run may not have converged."
            )
        fault = ~precision.definite()
        if curvature.matrix is not None:
            matrix = curvature.dense()[0].double()
            diagonal = matrix.diagonal()
            scale = torch.where(diagonal > 0.0, diagonal, torch.ones_like(diagonal)).sqrt()
            direction = torch.linalg.eigh(matrix / torch.outer(scale, scale))[1][:, 0].abs()
            fault = direction > 0.3 * direction.max()
        names = [name for name, where in self.coordinates.slices.items() if fault[where].any()]
        return ArgumentError(
            "Expected a positive definite curvature at the mode, found a singular one: nothing in "
            f"the data or the prior bounds latent site {', '.join(map(repr, names))} in some "
            "direction. Give it a proper prior, or leave it out of the curvature's sites."
        )
