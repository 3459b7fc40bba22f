"""Minibatch scores with reduced variance: differences to one fixed position, such as a mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.gradients.batch_arguments import BatchArguments
from numpyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
    corrected,
)
from numpyro_ext.gradients.full_data import FullData, batches_of, check_rows, score_of_all_rows
from numpyro_ext.gradients.minibatch import Minibatch, Sampling
from numpyro_ext.gradients.svrg import check_no_local_latents
from ppl_ext.errors import ArgumentError


@dataclass(frozen=True)
class ControlVariate(GradientEstimator):
    """Differences to the scores at a fixed position, found before: a mode, or a guide's centre.

    With s_B the score of a minibatch B and a the anchor, the estimate at position z is

        s_B(z) - s_B(a) + s(a),

    which is unbiased for any anchor, and the less noisy the nearer z is to it: near a mode the
    noise is that of the curvature times the distance. The exact score s(a) takes one sweep over
    all rows, when the estimator is set up; ``SVRG`` instead moves its anchors along.

    Parameters
    ----------
    anchor : mapping of str to array
        Latent sites in their supports, without a leading axis of draws: ``AutoDelta.median``,
        ``guide.median(params)``, or the mean of an engine's draws.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See :class:`~numpyro_ext.gradients.Minibatch`.
    batches : iterable of tuples, optional
        For models whose batches are their arguments; see
        :class:`~numpyro_ext.gradients.BatchArguments`.
    own_rows : bool
        See :class:`~numpyro_ext.gradients.Minibatch`.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the anchor lacks a site or has another shape or
        no finite score; the model has latents inside a subsampled plate, or leaves no rows to
        draw.

    References
    ----------
    J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth, "Control variates for stochastic gradient
    MCMC", Statistics and Computing 2019.
    """

    anchor: Mapping[str, Any]
    sampling: Sampling = "reshuffle"
    batches: FullData | None = field(default=None, compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.anchor, Mapping):
            raise ArgumentError(
                "Expected anchor to map each latent site to its value, as guide.median() does, "
                f"found {type(self.anchor).__name__}."
            )
        self._minibatch()
        if self.batches is not None:
            # An iterable may be good for one pass only.
            object.__setattr__(self, "batches", list(batches_of(self.batches)))
            self._given()

    def _minibatch(self) -> Minibatch:
        return Minibatch(self.sampling, self.own_rows)

    def _given(self) -> BatchArguments:
        assert self.batches is not None
        return BatchArguments(self.batches, self.own_rows)

    def _batches(self) -> tuple[tuple[Any, ...], ...]:
        return () if self.batches is None else tuple(self.batches)

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the anchor (1, D) and its exact score."""
        check_no_local_latents(target, type(self).__name__)
        check_rows(target, data, self._batches())
        rows = self._minibatch() if self.batches is None else self._given()
        minibatch = rows.init(target, data, rng_key, num_positions)
        values = {name: jnp.asarray(value)[None] for name, value in self.anchor.items()}
        anchor = target.unconstrain(values, data)
        exact = score_of_all_rows(target, anchor, data, self._batches())
        return {"minibatch": minibatch, "anchor": anchor, "exact": exact}

    def check(self, state: EstimatorState) -> None:
        """See that the score at the anchor is finite."""
        if not np.isfinite(np.asarray(state["exact"].score)).all():
            raise ArgumentError(
                "Expected an anchor with a finite score, found one that is not. Take a position "
                "inside the supports of all sites, such as a mode."
            )

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D), and the next state."""
        exact = state["exact"]
        # One anchor for all, unless every position has rows of its own to compare at.
        anchor = jnp.broadcast_to(state["anchor"], z.shape) if self.own_rows else state["anchor"]
        indices = None
        if self.batches is None:
            indices, minibatch = self._minibatch().draw(target, state["minibatch"], len(z))
            here = target.score(z, data, indices)
            there = target.score(anchor, data, indices)
        else:
            given = self._given()
            chosen, minibatch = given.draw(state["minibatch"])
            here = given.score(target, chosen, z, data)
            there = given.score(target, chosen, anchor, data)
        score = corrected(here, there, exact, indices)
        return score, {**state, "minibatch": minibatch}

    def needs_new_arguments(self, target: LogDensity) -> bool:
        """Never: it has the batches."""
        return False

    def with_own_rows(self, target: LogDensity) -> ControlVariate:
        """The same anchor, with minibatches drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        """Two minibatches; the sweep at the anchor is not counted."""
        rows = self._minibatch() if self.batches is None else self._given()
        return 2.0 * rows.evaluations_per_step(target)
