"""Laplace approximation of programs with Gauss-Newton curvature (``LaplaceGGN``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float

from numpyro_ext.curvature import Curvature, GaussNewton, ProgramCurvature
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.curvature.prior import prior_curvature_of_one
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.draws import key_or, same_normal, standard_normal
from numpyro_ext.engine import Engine, EngineState, Plan, key_of_draws
from numpyro_ext.laplace.gaussian import Algebra, Precision, precision_of
from numpyro_ext.programs import Program, concretely
from numpyro_ext.stein import ParticleEngine
from ppl_ext.arguments import entry
from ppl_ext.batches.passes import Passes, rows_of_loader
from ppl_ext.engines.base import draws_asked
from ppl_ext.engines.judgement import Drawn
from ppl_ext.laplace.laplace_ggn import (
    GaussianDensity,
    LaplaceShell,
    PosteriorShell,
    as_numpy,
)

#: From a position (D,) and the data to the curvature of the prior.
Prior: TypeAlias = Callable[[Array, Data], Curvature]


@dataclass(frozen=True)
class LaplacePlan(Plan):
    """As :class:`~numpyro_ext.engine.Plan`, with what is found once about the curvature."""

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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> engine = nx.LaplaceGGN(model, numpyro.optim.Adam(0.1))
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{engine.mode(result.state)['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    >>> print(f"{engine.log_marginal_likelihood(result.state):.1f}")
    -7.7
    """

    _fit_call = "fit_curvature(state, *args)"
    _positions_option = None
    _sees_all = False

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> LaplacePlan:
        estimator = super()._plan(target, rng_key, data).estimator
        # Which structure the curvature has is decided by looking at values, also where a step is
        # being traced.
        with concretely():
            posterior = _Posterior.of(target, data, self.curvature, self.hyperparameters)
        return LaplacePlan(target, estimator, posterior)

    # -- the mode -----------------------------------------------------------------------------

    def mode(self, state: EngineState) -> dict[str, Array]:
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
        self, plan: LaplacePlan, state: dict[str, Array], particles: Array, scores: Array
    ) -> tuple[Array, dict[str, Array]]:
        if self.hyperparameters:
            scores = scores.at[:, plan.posterior.held].add(state["correction"])
        return scores, state

    def _positions(self, plan: LaplacePlan, state: EngineState) -> Array:
        # The mode: its curvature would be a pass over all rows at every look.
        return self.particles(state)

    # -- the Gaussian -------------------------------------------------------------------------

    @entry
    def fit_curvature(
        self, state: EngineState, *args: Any, batches: Iterable[Any] | None = None, **kwargs: Any
    ) -> Precision:
        self.check_state(state)
        some, named, passes = rows_of_loader(batches, args, kwargs, place)
        if some or named:
            self._bound, _ = self._bind_again(self._require_bound(), some or (), named or {})
        return self._curvature_at(self.particles(state)[0], passes, asked=True)

    def of_run(self, found: Any) -> tuple[Engine, Any]:
        engine, state = super().of_run(found)
        kept = self.plan.posterior.latest.kept
        # What `fit_curvature` was given for this mode counts, and not the arguments of the run.
        if engine is not self and kept is not None and kept.asked and kept.data is self.data:
            if np.array_equal(kept.mode, as_numpy(self.particles(state)[0])):
                return self, state
        return engine, state

    def log_marginal_likelihood(self, state: EngineState) -> Float[Array, ""]:
        self.check_state(state)
        data, precision = self._fit(self.particles(state)[0])
        value = self._target_of_fit().full_log_density(self.particles(state), data)[0]
        return self._evidence(value, precision)

    def _draw(
        self,
        plan: LaplacePlan,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        number = draws_asked(num_samples)
        self.check_state(state)
        mode = self.particles(state)[0]
        _, precision = self._fit(mode)
        key = key_or(rng_key, key_of_draws(state))
        return plan.posterior.draws(precision, mode, key, number)

    def _to_judge(self, plan: LaplacePlan, state: EngineState, number: int) -> Drawn:
        posterior, mode = plan.posterior, self.particles(state)[0]
        where = np.asarray(posterior.coordinates.numbers)
        noise = same_normal((number, len(where)), mode.dtype)
        z, log_q = posterior.with_density(self._fit(mode)[1], mode, noise)
        return Drawn(np.asarray(z), np.asarray(log_q), where)

    def approximation(self, state: EngineState) -> tuple[GaussianDensity, Any]:
        """The Gaussian as a density with its parameters, for ``elbo``, ``psis_khat`` and ``ksd``.

        Raises
        ------
        ArgumentError
            The curvature is singular, or the last arguments were a batch.
        """
        self.check_state(state)
        return self._approximation_at(self.particles(state)[0])


class _Factorised(NamedTuple):
    """A precision, the curvature that it is made of, where that is positive definite, bool (d,),
    and whether the log determinant is finite."""

    precision: Precision
    curvature: Curvature
    definite: Bool[Array, " d"]
    finite: Bool[Array, ""]


@dataclass(frozen=True)
class _Posterior(PosteriorShell):
    """As ``PosteriorShell``, with its compiled programs.

    Parameters
    ----------
    precision : callable
        Position (D,) and data to the precision and whether it is one.
    draws : callable
        Precision, mode (D,), key and number n to draws (n, D).
    """

    precision: Callable[[Array, Data], _Factorised]
    draws: Callable[[Precision, Array, Array, int], Array]

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
            position = jax.ShapeDtypeStruct((target.dim,), target.dtype)
            return jax.eval_shape(
                lambda z, data: target.outputs(z, data, target.first_rows()), position, data
            )

        parts = cls._parts(target, data, options, hyperparameters, outputs)
        coordinates, prior, likelihood, _ = parts

        def draws(precision: Precision, mode: Array, key: Array, number: int) -> Array:
            noise = standard_normal(key, (number, len(coordinates)), mode.dtype)
            return _moved(precision, mode, noise, coordinates)

        return cls(
            target,
            *parts,
            Program(partial(_factorised, target, prior, likelihood)),
            jax.jit(draws, static_argnums=3),
        )

    @cached_property
    def with_density(self) -> Program:
        """Precision, mode (D,) and standard normal numbers (n, d) to draws (n, D) and their log
        densities (n,)."""

        def drawn(precision: Precision, mode: Array, noise: Array) -> tuple[Array, Array]:
            z = _moved(precision, mode, noise, self.coordinates)
            return z, GaussianDensity(self).log_prob((mode, precision), z)

        return Program(drawn, rarely=True)

    def over(self, passes: Passes | None) -> _Posterior:
        other: _Posterior = super().over(passes)
        if passes is None:
            return other
        precision = Program(partial(_factorised, other.target, self.prior, self.likelihood))
        return replace(other, precision=precision)

    def precision_at(self, position: Array, data: Data) -> Precision:
        found = self.precision(position, data)
        if bool(found.finite) and bool(found.definite.all()):
            return found.precision
        raise self.singular(found.curvature, np.asarray(found.definite))

    def slope_of_log_determinant(self, position: Array, data: Data) -> Array:
        def log_determinant(values: Array) -> Array:
            moved = position.at[self.held].set(values)
            curvature = _curvature(self.target, self.prior, self.likelihood, moved, data)
            return precision_of(curvature).log_determinant()

        # Few inputs: forward derivatives, which keep nothing of the sweep over the rows.
        return jax.jacfwd(log_determinant)(position[self.held])


def _moved(precision: Precision, mode: Array, noise: Array, coordinates: Coordinates) -> Array:
    """Draws (n, D) of standard normal numbers (n, d)."""
    every = jnp.broadcast_to(mode, (len(noise), len(mode)))
    return every.at[:, coordinates.numbers].add(precision.draws(noise))


def _factorised(
    target: LogDensity, prior: Prior, likelihood: ProgramCurvature, position: Array, data: Data
) -> _Factorised:
    curvature = _curvature(target, prior, likelihood, position, data)
    found = precision_of(curvature)
    finite = jnp.isfinite(found.log_determinant())
    return _Factorised(found, curvature, found.definite(), finite)


def _curvature(
    target: LogDensity, prior: Prior, likelihood: ProgramCurvature, position: Array, data: Data
) -> Curvature:
    """H at a position (D,), of one position."""
    # One key, so that the curvature of a state is the same whenever it is taken.
    of_likelihood = likelihood.of_all_rows(target, position, data, random.PRNGKey(0))
    return prior(position, data).plus(of_likelihood)
