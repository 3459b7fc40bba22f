"""What every closed form of the proximal step has: a state, and one update of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.score.regression.pairs import antithetic
from ppl_ext.score import DECAY, TRUST

State = TypeVar("State")


class Draws(NamedTuple):
    """Points (S, D) of an iteration, with the guide's log density (S,) and score (S, D) there."""

    theta: jax.Array
    log_prob: jax.Array
    score: jax.Array


class ClosedForm(ABC, Generic[State]):
    """Closed-form proximal score matching for guides of one covariance structure.

    Methods are pure and can be jitted; states are trees of arrays.

    Parameters
    ----------
    density : FlatDensity
        The guide's.
    decay : float
        Exponent of the running averages; see :mod:`numpyro_ext.score.regression.pairs`.
    trust : float
        Limit c > 1 on how far one update changes the precision.
    """

    def __init__(self, density: FlatDensity, decay: float = DECAY, trust: float = TRUST) -> None:
        self.density: Any = density
        self.decay = decay
        self.trust = trust

    @abstractmethod
    def initial(self, parameters: Parameters) -> State:
        """No observations yet."""

    @staticmethod
    def group(guide: Any) -> int:
        """Of how many draws an iteration must have a multiple: pairs, unless overridden."""
        return 2

    def unsuited(self, parameters: Parameters) -> str | None:
        """Why this form cannot fit this guide, with what to use instead; None if it can."""
        return None

    def draw(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        """Points (num, D) of an iteration: mirrored pairs about the guide's mean by default.

        ``num`` is a multiple of :meth:`group`.
        """
        draws = self.density.sample(parameters, rng_key, num // 2)
        return antithetic(draws, self.density.mean(parameters))

    def evaluated_draw(self, parameters: Parameters, rng_key: jax.Array, num: int) -> Draws:
        """The points of :meth:`draw`, with what the guide is there."""
        theta = self.draw(parameters, rng_key, num)
        return Draws(theta, *self.density.log_prob_and_score(parameters, theta))

    def weights(self, parameters: Parameters, num: int) -> jax.Array:
        """Weights (num,), of sum 1, with which the points of :meth:`draw` stand for the guide."""
        return jnp.full(num, 1.0 / num, jnp.result_type(*jax.tree.leaves(parameters)))

    @abstractmethod
    def update(
        self,
        state: State,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[State, Parameters]:
        """Take in one iteration's scores and move the guide.

        Parameters
        ----------
        state : pytree
        parameters : dict of arrays
            Unconstrained parameters of the present guide, which drew ``theta``.
        theta, score : arrays (2 K, D)
            Points of :meth:`draw` and the target's scores there.
        total : int
            Iterations of the whole run; 0 when that is not known.
        log_density : array (2 K,), optional
            The target's log density there, up to a constant. Only mixtures use it.
        """
