"""Minibatch scores with reduced variance: differences to what is known of an anchor or of rows.

Options, checks and the bookkeeping of rows are here. The scores are made by the ``estimate`` of
each package's classes of these names, with :func:`~ppl_ext.gradients.estimator.corrected`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from jaxtyping import Float

from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError
from ppl_ext.gradients.estimator import GradientEstimator, corrected, share_of_rows
from ppl_ext.gradients.full_data import Batch, FullData, batches_of, check_rows, rows_of
from ppl_ext.gradients.minibatch import Sampling
from ppl_ext.options import check_count
from ppl_ext.target.scores import Score


def check_no_local_latents(target: Any, name: str) -> None:
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


class _Anchored(ABC):
    """Part of those that compare with an anchor, where the score over all rows is known."""

    # Of the estimator that this is a part of.
    _num_rows: ClassVar[Callable[..., int]]
    _exact_score: ClassVar[Callable[..., Any]]
    _place: ClassVar[Callable[..., Any]]
    #: The host's estimator that draws rows.
    _minibatches: ClassVar[Any]
    sampling: Sampling
    own_rows: bool

    def _minibatch(self) -> Any:
        return self._minibatches(self.sampling, self.own_rows)

    def _by_differences(
        self, target: Any, rows: Any, z: Any, anchor: Any, exact: Any, data: Any, *generator: Any
    ) -> tuple[Any, Any]:
        """s_B(z) - s_B(a) + s(a), and what draws the next rows B.

        The rows are the same at both positions, so that their noise cancels near the anchor. Where
        all rows come as batches, B is the arguments.
        """
        indices = None
        if not self._batches():
            indices, rows = self._minibatch().draw(target, rows, *generator, len(z))
        here, there = (target.score(each, data, indices) for each in (z, anchor))
        return corrected(here, there, Score(*exact), indices), rows

    @abstractmethod
    def _batches(self) -> tuple[Batch, ...] | Passes:
        """Arguments that hold all rows; none where the model looks its rows up."""

    def _check(self, target: Any, data: Any) -> None:
        check_no_local_latents(target, type(self).__name__)
        check_rows(target, data, self._batches(), self._num_rows)

    def memory_of(self, data: Any) -> Any:
        """All rows: those of the arguments, or those that were given with the estimator."""
        batches = self._batches()
        if isinstance(batches, Passes):
            first = batches.seen(self._place)
            return first.args, {**data.kwargs, **first.kwargs}
        return (batches or data.args), data.kwargs

    def _score_of_all_rows(self, target: Any, z: Float[Any, "P D"], data: Any) -> Any:
        """Score over all rows, by the model's own plate or from all batches."""
        batches = self._batches()
        if isinstance(batches, Passes):
            return target.over(batches).full_score(z, data)
        if batches:
            return self._exact_score(target, z, batches, data.kwargs)
        return target.full_score(z, data)


@dataclass(frozen=True)
class SVRG(_Anchored, GradientEstimator):
    """Stochastic variance reduced gradient.

    Every ``anchor_every`` steps the present positions become anchors, and the exact scores there
    are computed by a sweep over all rows. With s_B the score of a minibatch B, shared by all
    positions, the estimate at position z with anchor a is

        s_B(z) - s_B(a) + s(a),

    which is as unbiased as s_B is, and the less noisy the nearer z is to its anchor. What does not
    depend on the rows, such as the prior of the weights, is the same in s_B and s and therefore
    exact.

    Parameters
    ----------
    anchor_every : int
        Steps from one anchor to the next.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See ``Minibatch``.
    full_data : tuple or iterable of tuples, optional
        For models whose batches are their arguments: the arguments with all rows, such as
        ``(x, y)``, or those of each batch; together they hold each row once. A list is kept, and
        a ``DataLoader`` or the like is passed over for every anchor. Steps take the batch that
        they are given, of the size that the model's plate says, for the minibatch B.
    own_rows : bool
        See ``Minibatch``.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the model has latents inside a subsampled plate;
        it subsamples no plate itself, and there is no ``full_data``; or both.

    References
    ----------
    R. Johnson and T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013; for Stein variational gradient descent see ``SVGDVR``.
    https://proceedings.neurips.cc/paper/2013/hash/ac1dd209cbcc5e5d1c6e28598e8cbbe8-Abstract.html

    Examples
    --------
    A new anchor each 200 steps:

    >>> SVRG(200).anchor_every
    200
    """

    anchor_every: int
    sampling: Sampling = "reshuffle"
    full_data: FullData | None = field(default=None, compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        check_count("anchor_every", self.anchor_every)
        self._minibatch()
        if self.full_data is not None:
            object.__setattr__(self, "full_data", rows_of(self.full_data, self._num_rows))

    def _batches(self) -> tuple[Batch, ...] | Passes:
        full_data: Any = self.full_data
        if isinstance(full_data, Passes):
            return full_data
        return () if full_data is None else tuple(full_data)

    def with_own_rows(self, target: Any) -> Any:
        """The same, with minibatches drawn for each position apart.

        Raises
        ------
        ArgumentError
            The minibatches are the model's arguments, one for all positions.
        """
        if self.full_data is not None:
            return super().with_own_rows(target)
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: Any) -> float:
        """Two minibatches, and the share of a sweep."""
        plates = target.plates if self.full_data is None else target.batch_plates
        return 2.0 * share_of_rows(plates) + 1.0 / self.anchor_every


@dataclass(frozen=True)
class ControlVariate(_Anchored, GradientEstimator):
    """Differences to the scores at a fixed position, found before: a mode, or a guide's centre.

    Each package's ``ControlVariate`` has the whole text.
    """

    #: The host's estimator that draws batches.
    _batch_arguments: ClassVar[Any]

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
            batches = list(batches_of(self.batches, self._num_rows))
            object.__setattr__(self, "batches", batches)
            self._given()

    def _batches(self) -> tuple[Batch, ...]:
        return () if self.batches is None else tuple(self.batches)

    def _given(self) -> Any:
        return self._batch_arguments(self.batches, self.own_rows)

    def _rows(self) -> Any:
        return self._minibatch() if self.batches is None else self._given()

    def _estimated(
        self, target: Any, state: Any, z: Any, anchor: Any, data: Any, *generator: Any
    ) -> tuple[Any, Any]:
        """The estimate by the next batch at positions and at the anchor, and the next state."""
        rows, exact = state["minibatch"], state["exact"]
        if self.batches is None:
            score, rows = self._by_differences(target, rows, z, anchor, exact, data, *generator)
        else:
            given = self._given()
            chosen, rows = given.draw(rows, *generator, len(z))
            here, there = (given.score(target, chosen, each, data) for each in (z, anchor))
            score = corrected(here, there, Score(*exact), None)
        return score, {**state, "minibatch": rows}

    def _check_finite(self, finite: bool) -> None:
        if not finite:
            raise ArgumentError(
                "Expected an anchor with a finite score, found one that is not. Take a position "
                "inside the supports of all sites, such as a mode."
            )

    def needs_new_arguments(self, target: Any) -> bool:
        """Never: it has the batches."""
        return False

    def with_own_rows(self, target: Any) -> Any:
        """The same anchor, with minibatches drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: Any) -> float:
        """Two minibatches; the sweep at the anchor is not counted."""
        return 2.0 * float(self._rows().evaluations_per_step(target))


@dataclass(frozen=True)
class SAGA(GradientEstimator):
    """Score with a table that holds, for every row and position, the row's latest gradient.

    With g_n the gradient of row n's log likelihood and t_n the table's entry, the estimate from a
    minibatch B of N rows is

        grad log prior + (N / |B|) sum_B (g_n - t_n) + sum_n t_n,

    which is unbiased where the rows of B are drawn without regard to those of earlier steps; then
    t_n becomes g_n for the rows of B. The first step fills the table by a sweep over all rows, so
    that it is exact. Unlike ``SVRG`` there is no other sweep, and the table takes N P D numbers.
    In Pyro rows are evaluated one after another, which is slow.

    Parameters
    ----------
    sampling : {"replacement", "reshuffle", "cyclic"}
        See ``Minibatch``. Only ``"replacement"`` is unbiased while positions move. The others draw
        the rows that this round has not seen yet, whose entries are the oldest of the table:
        differences are then too large, and the score overshoots along the way that positions
        take, the more the faster they move. At rest their rows are spread more evenly.
    max_bytes : int
        A larger table is refused, when the number of positions is known: in Pyro at the first
        step.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the model does not subsample exactly one plate
        itself, or has latents inside it. From ``init``, in Pyro ``estimate``: the table would be
        too large.

    References
    ----------
    A. Defazio, F. Bach and S. Lacoste-Julien, "SAGA: A fast incremental gradient method with
    support for non-strongly convex composite objectives", NeurIPS 2014,
    https://arxiv.org/abs/1407.0202.

    Examples
    --------
    >>> SAGA(max_bytes=2**20).sampling
    'replacement'
    """

    #: The host's estimator that draws rows.
    _minibatches: ClassVar[Any]

    sampling: Sampling = "replacement"
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)
        self._minibatch()

    def _minibatch(self) -> Any:
        return self._minibatches(self.sampling)

    def _rows_at_first(self, target: Any, *args: Any) -> Any:
        """State of the minibatches of a model that was seen to fit."""
        check_no_local_latents(target, type(self).__name__)
        state = self._minibatch().init(target, *args)
        if len(target.plates) != 1:
            raise ArgumentError(
                f"Expected one subsampled plate with SAGA, found {sorted(target.plates)}. Use "
                "SVRG, which takes several."
            )
        return state

    def memory_of(self, data: Any) -> Any:
        """The arguments, whose rows the table has."""
        return data.args, data.kwargs

    def evaluations_per_step(self, target: Any) -> float:
        """That of a minibatch; the first step's sweep is not counted."""
        return share_of_rows(target.plates)


def changes_of_table(
    xp: Any, gradient: Float[Any, "B P D"], known: Float[Any, "B P D"], total: Any, number: int
) -> tuple[Float[Any, "P D"], Float[Any, "B P D"], Float[Any, "B P D"]]:
    """Gradient of the log likelihood by rows B, their entries in the table, and how these change.

    It is (N / |B|) sum_B (g_n - t_n) + sum_n t_n, with the ``known`` entries as they were before
    this step.
    """
    change = gradient - known
    likelihood = number * change.mean(0) + total
    # A step that is not finite is skipped, and the next ones need the sum: it would never be
    # finite again with such a gradient in it. The row keeps its entry.
    sound = xp.isfinite(gradient)
    return likelihood, xp.where(sound, gradient, known), xp.where(sound, change, 0.0)


def table_shape(
    target: Any, num_positions: int, itemsize: int, max_bytes: int
) -> tuple[int, int, int]:
    """Shape (N, P, D) of SAGA's table, of numbers of so many bytes.

    Raises
    ------
    ArgumentError
        It would be too large.
    """
    (plate,) = target.plates.values()
    shape = (plate.size, num_positions, target.dim)
    needed = math.prod(shape) * itemsize
    if needed > max_bytes:
        raise ArgumentError(
            f"Expected a table of at most max_bytes={max_bytes} bytes, found {needed}: {shape[0]} "
            f"rows times {shape[1]} positions times {shape[2]} latent dimensions. Use SVRG, which "
            "has no table, or raise max_bytes."
        )
    return shape
