"""Minibatch scores with reduced variance: differences to an anchor where the score is exact."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from pyro_ext.density import Data, LogDensity, Score
from pyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
    corrected,
)
from pyro_ext.gradients.full import Full
from pyro_ext.gradients.full_data import (
    FullData,
    batches_of,
    check_rows,
    score_of_all_rows,
)
from pyro_ext.gradients.minibatch import Minibatch


@dataclass(frozen=True)
class SVRG(GradientEstimator):
    """Stochastic variance reduced gradient.

    Every ``anchor_every`` steps the present positions become anchors, and the exact scores there
    are computed by a sweep over all rows. With s_B the score of a minibatch B, shared by all
    positions, the estimate at position z with anchor a is

        s_B(z) - s_B(a) + s(a),

    which is unbiased, and the less noisy the nearer z is to its anchor. What does not depend on
    the rows, such as the prior of the weights, is the same in s_B and s and therefore exact.

    Parameters
    ----------
    anchor_every : int
        Steps from one anchor to the next.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See :class:`~pyro_ext.gradients.Minibatch`.
    full_data : tuple or iterable of tuples, optional
        For models whose batches are their arguments: the arguments with all rows, such as
        ``(x, y)``, or those of each batch; together they hold each row once. Steps take the batch
        that they are given, of the size that the model's plate says, for the minibatch B.
    own_rows : bool
        See :class:`~pyro_ext.gradients.Minibatch`.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the model has latents inside a subsampled plate;
        it subsamples no plate itself, and there is no ``full_data``; or both.

    References
    ----------
    R. Johnson and T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013; for Stein variational gradient descent see ``SVGDVR``.
    """

    anchor_every: int
    sampling: str = "reshuffle"
    full_data: FullData | None = field(default=None, compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        check_count("anchor_every", self.anchor_every)
        self._minibatch()
        if self.full_data is not None:
            # An iterable may be good for one pass only.
            object.__setattr__(self, "full_data", list(batches_of(self.full_data)))

    def _batches(self) -> tuple[tuple[Any, ...], ...]:
        return () if self.full_data is None else tuple(self.full_data)

    def _minibatch(self) -> Minibatch:
        return Minibatch(self.sampling, self.own_rows)

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        check_no_local_latents(target, type(self).__name__)
        check_rows(target, data, self._batches())
        # The first step sets an anchor.
        return {
            "minibatch": (
                self._minibatch().init(target, data, generator) if self.full_data is None else {}
            ),
            "anchor": None,
            "exact": None,
            "since": self.anchor_every,
        }

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        anchor, exact, since = state["anchor"], state["exact"], state["since"]
        if since >= self.anchor_every:
            # Copies: memory of positions and scores may be used again by the caller.
            anchor, since = z.detach().clone(), 0
            found = score_of_all_rows(target, z, data, self._batches())
            exact = found.score.clone(), found.log_prior.clone(), found.log_likelihood.clone()
        indices, minibatch = None, state["minibatch"]
        if self.full_data is None:
            indices, minibatch = self._minibatch().draw(target, minibatch, generator, len(z))
        here = target.score(z, data, indices)
        there = target.score(anchor, data, indices)
        score = corrected(here, there, Score(*exact), indices)
        following = {"minibatch": minibatch, "anchor": anchor, "exact": exact, "since": since + 1}
        return score, following

    def with_own_rows(self, target: LogDensity) -> GradientEstimator:
        """The same, with minibatches drawn for each position apart.

        Raises
        ------
        ArgumentError
            The minibatches are the model's arguments, one for all positions.
        """
        if self.full_data is not None:
            return super().with_own_rows(target)
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        if self.full_data is not None:
            return 2.0 * Full().evaluations_per_step(target) + 1.0 / self.anchor_every
        return 2.0 * self._minibatch().evaluations_per_step(target) + 1.0 / self.anchor_every


def check_no_local_latents(target: LogDensity, name: str) -> None:
    """See that no latent lives inside a subsampled plate.

    Raises
    ------
    ArgumentError
        One does: it is moved by the scores of its own row alone, which a step mostly does not
        draw, so that there is no noise of other rows to reduce.
    """
    if target.local_sites:
        raise ArgumentError(
            f"Expected no latent inside a subsampled plate with {name}, found "
            f"{sorted(target.local_sites)}: their gradients come from their own rows alone, which "
            "most minibatches do not hold. Use Minibatch() or Full()."
        )
