"""Minibatch scores: the engine draws the rows of a step, for all particles or for each its own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from jaxtyping import Float, Int

from ppl_ext.errors import ArgumentError
from ppl_ext.gradients.estimator import GradientEstimator, ScoreEstimate, share_of_rows
from ppl_ext.gradients.full_data import FullData, batches_of
from ppl_ext.options import check_choice

Sampling = Literal["reshuffle", "replacement", "cyclic"]
SAMPLING: tuple[str, ...] = get_args(Sampling)


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    """Scores of a minibatch of each subsampled plate, of the size that the model declares.

    Parameters
    ----------
    sampling : {"reshuffle", "replacement", "cyclic"}
        ``"reshuffle"``: a random permutation of the rows is cut into batches, and drawn anew
        when fewer rows than a batch are left; those rows wait for the next permutation, so that
        every batch is a simple random sample and the score unbiased. ``"replacement"``: rows are
        drawn independently. ``"cyclic"``: rows come in the order of the data, again and again,
        without a gap at its end; right on average over a whole number of rounds only, and biased
        within one where the data are sorted.
    own_rows : bool
        Draw rows for each position apart, as independent chains need them. Particles of one fit
        share theirs, which costs less.

    Raises
    ------
    ArgumentError
        ``sampling`` is none of these, or ``"cyclic"`` with rows of each position's own. From
        ``init``: the model has no subsampled plate whose rows it looks up.

    Examples
    --------
    >>> Minibatch("cyclic").sampling
    'cyclic'
    """

    sampling: Sampling = "reshuffle"
    own_rows: bool = False

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLING)
        if self.own_rows and self.sampling == "cyclic":
            raise ArgumentError(
                "Expected sampling 'reshuffle' or 'replacement' where each position draws rows of "
                "its own, as chains do, found 'cyclic', which takes the same rows for all."
            )

    def _check_plates(self, target: Any) -> None:
        if not target.plates and not target.observed_sites:
            raise ArgumentError(
                "Expected a model with observed sites, of whose rows minibatches are drawn, found "
                "none: its density is in one piece, as that of a Stan program is, and cannot be "
                "divided by rows. Use Full(), the exact score."
            )
        if not target.plates:
            found = "batches that are passed as arguments" if target.batch_arguments else "none"
            raise ArgumentError(
                "Expected a model that looks up the rows of a subsampled plate by its indices, "
                "'with plate(name, N, subsample_size=B) as i: ... y[i]', so that minibatches can "
                f"be drawn, found {found}. Use Full(), which evaluates the arguments as they are, "
                "and pass batches as arguments if you want minibatches."
            )

    @abstractmethod
    def draw(self, *args: Any) -> tuple[dict[str, Int[Any, "*P B"]], Any]:
        """Row indices of the next minibatch of each plate, and the next state.

        Of shape (B,), or (P, B) where each position has its own.
        """

    def estimate(
        self, target: Any, state: Any, z: Float[Any, "P D"], data: Any, *generator: Any
    ) -> tuple[ScoreEstimate, Any]:
        """Score at positions (P, D) of the next batch, and the next state."""
        indices, state = self.draw(target, state, *generator, len(z))
        return ScoreEstimate._make((*target.score(z, data, indices), indices)), state

    def with_own_rows(self, target: Any) -> Any:
        """The same sampling, with rows drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: Any) -> float:
        """Share of the rows in one batch, over all plates."""
        return share_of_rows(target.plates)


@dataclass(frozen=True)
class BatchArguments(GradientEstimator):
    """Score of one of the given batches, in an order that is drawn anew for every round.

    Each package's ``BatchArguments`` has the whole text.
    """

    batches: FullData = field(compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        # An iterable may be good for one pass only.
        object.__setattr__(self, "batches", list(batches_of(self.batches, self._num_rows)))

    @abstractmethod
    def draw(self, *args: Any) -> tuple[Int[Any, "*P"], Any]:
        """Number of the next batch, or (P,) of them, and the next state."""

    @abstractmethod
    def score(self, target: Any, chosen: Int[Any, "*P"], z: Float[Any, "P D"], data: Any) -> Any:
        """Score at positions (P, D) of the batch ``chosen``, or of (P,) batches."""

    def estimate(
        self, target: Any, state: Any, z: Float[Any, "P D"], data: Any, *generator: Any
    ) -> tuple[ScoreEstimate, Any]:
        """Score at positions (P, D) of the next batch, and the next state."""
        chosen, state = self.draw(state, *generator, len(z))
        return ScoreEstimate._make((*self.score(target, chosen, z, data), None)), state

    def needs_new_arguments(self, target: Any) -> bool:
        """Never: it has the batches."""
        return False

    def with_own_rows(self, target: Any) -> Any:
        """The same batches, drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: Any) -> float:
        """Share of the rows in one batch."""
        return self._num_rows(next(iter(self.batches))) / self._all_rows

    @cached_property
    def _all_rows(self) -> int:
        """Rows of all batches, which are looked through once."""
        return sum(map(self._num_rows, self.batches))
