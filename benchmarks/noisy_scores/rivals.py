"""Rivals of the closed form, in JAX: one step each, on mirrored pairs of scores given to them.

A rival knows nothing of the target but scores at m + L z and m - L z for standard normal z, where
N(m, L L^T) is its guide. All rates fall to zero along a half cosine over the run, but for BaM's,
whose schedule is its paper's, and the harmonic ones of natural gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.linalg import solve_triangular

from numpyro_ext.descent import adam_step
from numpyro_ext.guides.flat_density import FlatDensity, Moments, Parameters
from numpyro_ext.score.matching import bam_update, gsm_update
from numpyro_ext.score.objective import proximal_gradient
from ppl_ext.score_matching.options import STEPS
from ppl_ext.score_matching.proximal import blended_target
from ppl_ext.score_matching.regression.diagonal import schedule

_ADAM = optax.scale_by_adam()

#: Seven rates of steps whose natural size is one, and seven of Adam.
STEP_RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
ADAM_RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
#: The cold start is the diagonal closed form's at so many coordinates: from temperature 0.01.
COLD_COORDINATES = 100


#: The harmonic rate is this over t in the end: one is the rate of a plain average of all that was
#: seen, of which the first is the worst.
HARMONIC = 2.0


class Now(NamedTuple):
    """Where a run stands: its iteration t of T, and the first rate."""

    iteration: Array
    total: Array
    rate: Array

    @property
    def progress(self) -> Array:
        """Fraction of the run that is done."""
        return self.iteration / self.total

    @property
    def falling(self) -> Array:
        """The rate of this iteration, on a half cosine."""
        return self.rate * 0.5 * (1.0 + jnp.cos(jnp.pi * self.progress))

    @property
    def harmonic(self) -> Array:
        """The rate of this iteration where it falls as 1 / t."""
        return HARMONIC / (self.iteration + HARMONIC / self.rate)

    @property
    def temperature(self) -> Array:
        """Of the entropy, with a cold start."""
        return schedule(self.iteration, self.total, COLD_COORDINATES).temperature


class Rival(ABC):
    """A way of fitting a full-covariance Normal by pairs of scores.

    Attributes
    ----------
    name : str
    rates : tuple of float
        What the oracle chooses from.
    pairs : int
        Pairs of scores of an iteration.
    """

    name: str
    rates: tuple[float, ...] = STEP_RATES
    pairs = 1

    def __init__(self, density: FlatDensity, parameters: Parameters) -> None:
        self.density, self.parameters = density, parameters

    @abstractmethod
    def start(self, moments: Moments) -> Any:
        """State of a run that starts at a guide."""

    @abstractmethod
    def moments(self, state: Any) -> Moments:
        """Mean (D,) and lower triangular scale (D, D) of the guide."""

    @abstractmethod
    def step(self, state: Any, standard: Array, theta: Array, score: Array, now: Now) -> Any:
        """The next state.

        ``standard`` (K, D) are the pairs' standard normals, ``theta`` (2 K, D) the points, those
        with a minus behind all with a plus, and ``score`` (2 K, D) the scores there.
        """


class NaturalState(NamedTuple):
    """Mean (D,), upper triangular U (D, D) of the precision U U^T, and the averaged score (D,)."""

    mean: Array
    root: Array
    momentum: Array


class NaturalGradient(Rival):
    """Natural-gradient variational inference: iVON, with a full covariance.

    Y. Shen et al., "Variational Learning is Effective for Large Deep Networks" (ICML 2024,
    https://arxiv.org/abs/2402.17641), Algorithm 1, whose curvature is a vector h; here it is the
    precision P, as in W. Lin, M. Schmidt and M. E. Khan, "Handling the Positive-Definite
    Constraint in the Bayesian Learning Rule" (ICML 2020, https://arxiv.org/abs/2002.10060). With
    the curvature H that a pair shows by Stein's identity and G = H - P,

        P+ = P + r G + r^2 G P^-1 G / 2   and   m+ = m + r P+^-1 g,

    where g is the score averaged with the paper's beta_1 = 0.9 and corrected for its start. The
    last term of P+ keeps it positive definite at any r. The two rates of the paper are one.
    """

    name = "natural gradient"
    BETA = 0.9

    @staticmethod
    def rate(now: Now) -> Array:
        """The rate r of an iteration."""
        return now.falling

    def start(self, moments: Moments) -> NaturalState:
        inverse = solve_triangular(moments.scale, jnp.eye(len(moments.mean)), lower=True)
        return NaturalState(moments.mean, inverse.T, jnp.zeros_like(moments.mean))

    def moments(self, state: NaturalState) -> Moments:
        inverse = solve_triangular(state.root, jnp.eye(len(state.mean)))
        return Moments(state.mean, inverse.T)

    def step(
        self, state: NaturalState, standard: Array, theta: Array, score: Array, now: Now
    ) -> NaturalState:
        rate, root = self.rate(now), state.root
        half, centre = 0.5 * (score[0] - score[1]), 0.5 * (score[0] + score[1])
        # P d = U z, as d = U^-T z.
        seen = jnp.outer(half, root @ standard[0])
        change = -0.5 * (seen + seen.T) - root @ root.T
        # 2 P+ = U U^T + (U + r G U^-T) (U + r G U^-T)^T, on roots so that no rounding spoils it.
        moved = root + rate * solve_triangular(root, change).T
        following = upper_root(jnp.concatenate([root.T, moved.T]) / 2.0**0.5)
        momentum = self.BETA * state.momentum + (1.0 - self.BETA) * centre
        debiased = momentum / (1.0 - self.BETA ** (now.iteration + 1.0))
        move = solve_triangular(following.T, solve_triangular(following, debiased), lower=True)
        return NaturalState(state.mean + rate * move, following, momentum)


class HarmonicNaturalGradient(NaturalGradient):
    """The same with rates that fall as 1 / t, as those of averages do."""

    name = "natural gradient, 1/t"

    @staticmethod
    def rate(now: Now) -> Array:
        return now.harmonic


def upper_root(rows: Array) -> Array:
    """Upper triangular U (D, D) of positive diagonal with U U^T = R^T R, for rows R (n, D)."""
    upper = jnp.linalg.qr(rows[:, ::-1], mode="r")
    upper = upper * jnp.where(jnp.diagonal(upper) < 0.0, -1.0, 1.0)[:, None]
    return upper[::-1, ::-1].T


class AdamState(NamedTuple):
    """The guide's unconstrained parameters, and Adam's state."""

    parameters: Parameters
    optimizer: Any


class _ByAdam(Rival):
    rates = ADAM_RATES

    def start(self, moments: Moments) -> AdamState:
        parameters = self.density.set_moments(self.parameters, moments)
        return AdamState(parameters, _ADAM.init(parameters))

    def moments(self, state: AdamState) -> Moments:
        return self.density.moments(state.parameters)


class ADVI(_ByAdam):
    """Adam on the reparameterised evidence lower bound, with the parameters of the host's guide."""

    name = "ADVI"
    cold = False

    def step(
        self, state: AdamState, standard: Array, theta: Array, score: Array, now: Now
    ) -> AdamState:
        temperature = now.temperature if self.cold else 1.0

        def loss(parameters: Parameters) -> Array:
            mean, scale = self.density.moments(parameters)
            offset = standard @ scale.T
            points = jnp.concatenate([mean + offset, mean - offset])
            entropy = jnp.log(jnp.diagonal(scale)).sum()
            return -(score * points).sum() / len(points) - temperature * entropy

        gradient = jax.grad(loss)(state.parameters)
        return AdamState(*adam_step(state.parameters, gradient, state.optimizer, now.falling))


class ColdADVI(ADVI):
    """The same, whose entropy has a temperature that rises to one over the first half."""

    name = "ADVI, cold start"
    cold = True


class GradientForm(_ByAdam):
    """The gradient solver of ``ProximalScoreVI``, the paper's form, on a mirrored pair of draws.

    M. Kim, https://arxiv.org/abs/2602.05873, Algorithm 1, with the paper's weight t/T of the
    proximal term, and two inner steps, the solver's default.
    """

    name = "gradient form"
    INNER_STEPS = STEPS["flexible"].num_inner_steps or 1

    def step(
        self, state: AdamState, standard: Array, theta: Array, score: Array, now: Now
    ) -> AdamState:
        present = self.density.score(state.parameters, theta)
        weight = now.progress
        target = blended_target(score, present, weight)

        def inner(_: Array, carry: AdamState) -> AdamState:
            _, gradient = proximal_gradient(self.density, carry.parameters, theta, target, weight)
            return AdamState(*adam_step(carry.parameters, gradient, carry.optimizer, now.falling))

        return jax.lax.fori_loop(0, self.INNER_STEPS, inner, state)


class _ByMoments(Rival):
    def start(self, moments: Moments) -> Moments:
        return moments

    def moments(self, state: Moments) -> Moments:
        return state


def _kept(state: Moments, following: Moments) -> Moments:
    """The next guide, or the present one where the next is not finite."""
    finite = jnp.isfinite(following.scale).all() & jnp.isfinite(following.mean).all()
    return jax.tree.map(lambda old, new: jnp.where(finite, new, old), state, following)


class GSM(_ByMoments):
    """Gaussian score matching, whose step of mean and covariance is taken by a share.

    A share of one is the method of C. Modi et al., https://arxiv.org/abs/2307.07849, which has no
    rate. Smaller ones average, which is more than its authors give it.
    """

    name = "GSM"
    rates = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)

    def step(
        self, state: Moments, standard: Array, theta: Array, score: Array, now: Now
    ) -> Moments:
        share, (mean, scale) = now.falling, state
        matched = gsm_update(state, theta, score)
        covariance = (1.0 - share) * scale @ scale.T + share * matched.scale @ matched.scale.T
        following = Moments(mean + share * (matched.mean - mean), jnp.linalg.cholesky(covariance))
        return _kept(state, following)


class BaM(_ByMoments):
    """Batch and match on four pairs, with a multiple of the schedule S D / (t + 1) of its paper.

    D. Cai et al., https://arxiv.org/abs/2402.14758.
    """

    name = "BaM"
    rates = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
    pairs = 4

    def step(
        self, state: Moments, standard: Array, theta: Array, score: Array, now: Now
    ) -> Moments:
        weight = now.rate * theta.size / (now.iteration + 1.0)
        return _kept(state, bam_update(state, theta, score, weight))


RIVALS: tuple[type[Rival], ...] = (
    NaturalGradient,
    HarmonicNaturalGradient,
    ADVI,
    ColdADVI,
    GSM,
    BaM,
    GradientForm,
)
