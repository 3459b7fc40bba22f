"""Laplace approximation of programs with Gauss-Newton curvature (``LaplaceGGN``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from numpyro_ext.curvature import Curvature, GaussNewton, Structure, row_structure
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.draws import standard_normal
from numpyro_ext.engine import EngineState, Plan, key_of_draws
from numpyro_ext.laplace.gaussian import Precision, precision_of
from numpyro_ext.laplace.likelihood import LikelihoodCurvature
from numpyro_ext.laplace.prior import ConditionalPrior
from numpyro_ext.programs import concretely
from numpyro_ext.stein import DirectionEngine
from ppl_ext.curvature import as_curvature
from ppl_ext.errors import ArgumentError
from ppl_ext.laplace import sites_of_gaussian
from ppl_ext.options import check_count, check_names, describe

#: Draws that ``get_samples`` returns unless told otherwise.
DRAWS = 1000


@dataclass(frozen=True)
class LaplacePlan(Plan):
    """As :class:`~numpyro_ext.engine.Plan`, with what is found once about the curvature."""

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
        NumPyro model, used as it is. Its likelihood is made of observed sample sites.
    optim : optimizer
        NumPyro or optax optimizer, such as ``numpyro.optim.Adam(0.01)``.
    curvature : GaussNewton or {"full", "diag", "kfac", "low_rank"}
        Curvature of the likelihood and the prior; see :class:`~numpyro_ext.GaussNewton`. Its
        ``sites``, such as those of a network's last layer, have a Gaussian, and all others are
        fixed at the mode. Nothing of D x D numbers is formed but for ``"full"``. With ``"kfac"``
        the prior of a matrix site joins its Kronecker factors exactly where its curvature is the
        same for the whole site, or differs by rows and by columns; see
        :func:`~numpyro_ext.laplace.precision_of`. Negative curvature of the prior is set to 0.
    hyperparameters : sequence of str, optional
        Latent sites, such as the scale of the noise and that of the weights' prior, that have no
        Gaussian. While the others are led to their mode, these are led to the maximum of the
        marginal likelihood by Laplace's method, in unconstrained space and times their own prior.
        They change during the run, by the same optimizer.
    hyperparameters_every : int
        Steps that one gradient of the log determinant, which takes the curvature over all rows,
        serves.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: a site is not latent, nothing is left for the
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
    >>> engine = LaplaceGGN(model, optax.adam(0.01), curvature="kfac")  # doctest: +SKIP
    >>> result = engine.run(jax.random.key(0), 2000, x, y)  # doctest: +SKIP
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 500)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
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
        self._fitted: _Fitted | None = None

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> LaplacePlan:
        estimator = super()._plan(target, rng_key, data).estimator
        with concretely():
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

    def mode(self, state: EngineState) -> dict[str, Array]:
        """The mode so far: latent site to its value, constrained."""
        found = self.target.constrain(self.particles(state), self.data)
        return {name: value[0] for name, value in found.items()}

    def _get_params(self, plan: LaplacePlan, state: EngineState, data: Data) -> dict[str, Any]:
        return {"mode": self.particles(state)[0]}

    def _start(self, plan: LaplacePlan, rng_key: Array, data: Data) -> Array:
        start = super()._start(plan, rng_key, data)
        if self.hyperparameters and not isinstance(start, jax.core.Tracer):
            # In a compiled step it could only be told as a step that is not finite.
            plan.posterior.precision_at(start[0], data)
        return start

    def _init_direction(self, plan: LaplacePlan, particles: Array) -> dict[str, Array]:
        if not self.hyperparameters:
            return {}
        return {
            "correction": jnp.zeros(len(plan.posterior.held), particles.dtype),
            # The first step finds one.
            "steps_served": jnp.asarray(self.hyperparameters_every, jnp.int32),
        }

    def _step(
        self, plan: LaplacePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        if self.hyperparameters:
            posterior, position = plan.posterior, self.particles(state)[0]
            before = state.algorithm.direction
            due = before["steps_served"] >= self.hyperparameters_every
            correction = lax.cond(
                due,
                lambda: -0.5 * posterior.slope_of_log_determinant(position, data),
                lambda: before["correction"],
            )
            direction = {
                "correction": correction,
                "steps_served": jnp.where(due, 1, before["steps_served"] + 1),
            }
            state = state._replace(algorithm=state.algorithm._replace(direction=direction))
        return super()._step(plan, state, data)

    def _direction(
        self,
        plan: LaplacePlan,
        state: dict[str, Array],
        particles: Array,
        scores: Array,
        step: Array,
    ) -> tuple[Array, dict[str, Array]]:
        if self.hyperparameters:
            scores = scores.at[:, plan.posterior.held].add(state["correction"])
        return scores, state

    # -- the Gaussian -------------------------------------------------------------------------

    def fit_curvature(self, state: EngineState, *args: Any, **kwargs: Any) -> Precision:
        """Take the curvature at the mode, over all rows, and keep it for draws of this state.

        Draws and the marginal likelihood call it by themselves. It is needed by itself only where
        the last arguments that the engine saw were a batch: then with the arguments of all rows.

        Parameters
        ----------
        state : EngineState
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
        self._check_state(state)
        if args or kwargs:
            self._bound, _ = self._bind_again(self._require_bound(), args, kwargs)
        data, posterior = self.data, self.plan.posterior
        self.target.require_all_rows(
            data, "Call fit_curvature(state, *args) with the arguments of all rows."
        )
        position = self.particles(state)[0]
        precision = posterior.precision_at(position, data)
        self._fitted = _Fitted(posterior, np.asarray(position), data, precision)
        return precision

    def log_marginal_likelihood(self, state: EngineState) -> Array:
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
        data, precision = self._fit(state)
        target = self.target
        dim = len(self.plan.posterior.coordinates)
        value = target.full_log_density(self.particles(state), data)[0]
        return value + 0.5 * dim * math.log(2.0 * math.pi) - 0.5 * precision.log_determinant()

    def _draw(
        self,
        plan: LaplacePlan,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        number = DRAWS if num_samples is None else num_samples
        check_count("num_samples", number)
        _, precision = self._fit(state)
        key = key_of_draws(state) if rng_key is None else rng_key
        draws: Array = plan.posterior.draws(precision, self.particles(state)[0], key, number)
        return draws

    def arviz_attributes(self) -> dict[str, Any]:
        """What ``to_arviz`` says of the draws."""
        return {"sample_kind": "independent draws"}

    def _fit(self, state: EngineState) -> tuple[Data, Precision]:
        """All rows and the precision that are kept for a state, or those of the last arguments."""
        self._check_state(state)
        known = self._fitted
        if known is not None and known.posterior is self.plan.posterior:
            # A batch does not put an end to what all rows have said.
            serves = known.data is self.data or bool(self.target.partial_plates(self.data))
            if serves and np.array_equal(known.position, self.particles(state)[0]):
                return known.data, known.precision
        precision = self.fit_curvature(state)
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
    held : array of int
        The K coordinates of the hyperparameters.
    precision : callable
        Position (D,) and data to the precision, the curvature that it is made of, where it is
        positive definite, bool (D',), and whether its log determinant is finite.
    draws : callable
        Precision, mode (D,), key and number n to draws (n, D).
    """

    target: LogDensity
    coordinates: Coordinates
    prior: ConditionalPrior
    likelihood: LikelihoodCurvature
    held: np.ndarray
    precision: Callable[[Array, Data], tuple[Precision, Curvature, Array, Array]]
    draws: Callable[[Precision, Array, Array, int], Array]

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
        uniform = np.random.default_rng(0).uniform(-1.0, 1.0, target.dim)
        position = jnp.asarray(uniform, target.dtype)
        factors: list[str] = []

        def look(position: Array) -> None:
            factors.extend(target.likelihood_factors(position, data, target.first_rows()))

        jax.eval_shape(look, position)
        if factors:
            raise ArgumentError(
                f"Expected a likelihood of observed sample sites, found the factors {factors}: a "
                "factor has no distribution whose Fisher information could give its curvature. "
                "Write them as numpyro.sample(..., obs=...), or use the host's "
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

        def precision(position: Array, data: Data) -> tuple[Precision, Curvature, Array, Array]:
            curvature = _curvature(prior, likelihood, position, data)
            found = precision_of(curvature)
            return found, curvature, found.definite(), jnp.isfinite(found.log_determinant())

        def draws(precision: Precision, mode: Array, key: Array, number: int) -> Array:
            noise = standard_normal(key, (number, len(coordinates)), mode.dtype)
            moves = precision.draws(noise)
            return jnp.broadcast_to(mode, (number, len(mode))).at[:, coordinates.numbers].add(moves)

        return cls(
            target,
            coordinates,
            prior,
            likelihood,
            Coordinates(target, hyperparameters).numbers,
            jax.jit(precision),
            jax.jit(draws, static_argnums=3),
        )

    def precision_at(self, position: Array, data: Data) -> Precision:
        """The precision at a position (D,), found to be positive definite."""
        precision, curvature, definite, finite = self.precision(position, data)
        if bool(finite) and bool(definite.all()):
            return precision
        raise self.singular(curvature, np.asarray(definite))

    def slope_of_log_determinant(self, position: Array, data: Data) -> Array:
        """d log det H / d hyperparameters at a position (D,), shape (K,)."""

        def log_determinant(values: Array) -> Array:
            moved = position.at[self.held].set(values)
            curvature = _curvature(self.prior, self.likelihood, moved, data)
            return precision_of(curvature).log_determinant()

        # Few inputs: forward derivatives, which keep nothing of the sweep over the rows.
        return jax.jacfwd(log_determinant)(position[self.held])

    def singular(self, curvature: Curvature, definite: np.ndarray) -> ArgumentError:
        """The error for a curvature that is no precision, with the sites at fault."""
        slices = self.coordinates.slices
        if not bool(jnp.isfinite(curvature.diagonals()).all()):
            return ArgumentError(
                "Expected a finite curvature at the mode, found one that is not. Look at the mode: "
                "a scale may have run to 0, or the run may not have converged."
            )
        fault = ~definite
        if curvature.matrix is not None:
            matrix = np.asarray(curvature.dense()[0], np.float64)
            scale = np.sqrt(np.where(np.diagonal(matrix) > 0.0, np.diagonal(matrix), 1.0))
            direction = np.abs(np.linalg.eigh(matrix / np.outer(scale, scale))[1][:, 0])
            fault = direction > 0.3 * direction.max()
        names = [name for name, where in slices.items() if fault[where].any()]
        return ArgumentError(
            "Expected a positive definite curvature at the mode, found a singular one: nothing in "
            f"the data or the prior bounds latent site {', '.join(map(repr, names))} in some "
            "direction. Give it a proper prior, or leave it out of the curvature's sites."
        )


class _Fitted(NamedTuple):
    """A precision that is kept for draws, of a mode (D,) and all rows."""

    posterior: _Posterior
    position: np.ndarray
    data: Data
    precision: Precision


def _curvature(
    prior: ConditionalPrior, likelihood: LikelihoodCurvature, position: Array, data: Data
) -> Curvature:
    """H at a position (D,), of one position."""
    # One key, so that the curvature of a state is the same whenever it is taken.
    first, second = prior.at(position, data), likelihood.at(position, data, random.PRNGKey(0))
    matrices = [part.matrix for part in (first, second) if part.matrix is not None]
    return Curvature(
        first.diagonal + second.diagonal,
        sum(matrices[1:], start=matrices[0]) if matrices else None,
        second.rows,
        second.blocks,
    )
