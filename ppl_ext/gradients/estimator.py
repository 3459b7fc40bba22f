"""What an engine may ask of a score estimator, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float, Int

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.target.scores import tempered


class ScoreEstimate(NamedTuple):
    """Score and value of the target at P positions, and the rows that they come from.

    Parameters
    ----------
    score : array (P, D)
        Estimate of the gradient of log prior + log likelihood / temperature.
    log_prior, log_likelihood : array (P,)
        The two parts, not tempered.
    indices : dict of str to array or None
        Rows of each subsampled plate that the estimate has seen, (rows,) or, where each position
        has its own, (P, rows); None for all rows.
    """

    score: Float[Any, "P D"]
    log_prior: Float[Any, " P"]
    log_likelihood: Float[Any, " P"]
    indices: dict[str, Int[Any, "*P rows"]] | None

    def log_density(self, temperature: float = 1.0) -> Float[Any, " P"]:
        """Log prior + log likelihood / temperature."""
        return tempered(self.log_prior, self.log_likelihood, temperature)


def corrected(
    here: Any, there: Any, exact: Any, indices: dict[str, Int[Any, "*P rows"]] | None
) -> ScoreEstimate:
    """The scores of a batch at positions, less the noise that they share with those at an anchor.

    Parameters
    ----------
    here, there : Score
        Of the batch, at the positions and at the anchor.
    exact : Score
        Of all rows, at the anchor.
    """
    return ScoreEstimate(
        # The prior is the same in ``there`` and ``exact`` and cancels; that of ``here`` is exact.
        here.score - there.score + exact.score,
        here.log_prior,
        here.log_likelihood - there.log_likelihood + exact.log_likelihood,
        indices,
    )


def share_of_rows(plates: Mapping[str, Any]) -> float:
    """The share of all rows that one batch of these plates holds."""
    share = 1.0
    for plate in plates.values():
        # The rows of several plates are drawn independently, so their shares multiply.
        share *= plate.subsample_size / plate.size
    return share


@documents_subclasses
class GradientEstimator(ABC):
    """An unbiased estimator of the target's score.

    The object holds settings only. What changes from step to step is a state, which the engine
    keeps and saves, so that one estimator object can serve several engines.

    Examples
    --------
    >>> isinstance(SVRG(100), GradientEstimator)
    True
    """

    #: What estimators of the same host are instances of.
    _base: ClassVar[type]
    #: Counts the rows of a batch, and gives the exact score from several.
    _num_rows: ClassVar[Callable[..., int]]
    _exact_score: ClassVar[Callable[..., Any]]
    #: Makes an array of a loader one of the package's.
    _place: ClassVar[Callable[..., Any]]

    @abstractmethod
    def init(self, *args: Any) -> Any:
        """State before the first step.

        Raises
        ------
        ArgumentError
            The estimator does not fit the model.
        """

    @abstractmethod
    def estimate(self, *args: Any) -> tuple[ScoreEstimate, Any]:
        """Score at positions z (P, D), and the next state."""

    @property
    def position_axes(self) -> tuple[tuple[str, int], ...] | None:
        """Entries of a state with something for each position, each with the axis of positions.

        None where that is not known, as of estimators of one's own.
        """
        return None

    def needs_new_arguments(self, target: Any) -> bool:
        """Whether every step wants another batch as the model's arguments."""
        return bool(target.batch_arguments)

    def with_own_rows(self, target: Any) -> Any:
        """The same estimator with rows drawn for each position apart.

        Particles of one fit share their rows; chains that are to be independent must not.

        Raises
        ------
        ArgumentError
            The estimator draws one set of rows for all.
        """
        raise ArgumentError(
            f"Expected an estimator that can draw rows for each chain, such as Minibatch() or "
            f"SVRG(...), found {type(self).__name__}, which draws one set of rows for all. Run the "
            "chains one after another, or use another estimator."
        )

    def memory_of(self, data: Any) -> Any:
        """The arguments that the state knows something of, such as scores at an anchor.

        A state is of no use with others. None where it knows of none, but at most in which order
        rows are drawn.
        """
        return None

    @abstractmethod
    def evaluations_per_step(self, target: Any) -> float:
        """Cost of one estimate per position, in full-data gradients (B/N for a minibatch)."""


@dataclass(frozen=True)
class Full(GradientEstimator):
    """The exact score over all rows of the model's plates, by a chunked sweep.

    When batches are passed as arguments, the batch that was passed is all there is, and its
    score is as noisy as the batch.

    Examples
    --------
    >>> Full()
    Full()
    """

    def init(self, *args: Any) -> Any:
        """No state."""
        return {}

    def estimate(
        self, target: Any, state: Any, z: Float[Any, "P D"], data: Any, *generator: Any
    ) -> tuple[ScoreEstimate, Any]:
        """Score at positions (P, D) over every row."""
        return ScoreEstimate._make((*target.full_score(z, data), None)), state

    def with_own_rows(self, target: Any) -> Any:
        """The estimator itself: every position sees every row."""
        return self

    def evaluations_per_step(self, target: Any) -> float:
        """One full-data gradient; for batches as arguments, the share of rows they hold."""
        return share_of_rows(target.batch_plates)
