"""The run of an engine: when it calls back, saves and shows how it goes.

One rule for both packages. A run is taken in pieces, which end where something is due: a callback
every ``callback_every`` steps, by default a hundredth of the run, and after the last; a checkpoint
every ``checkpoint_every`` steps, by default a tenth of the run, and when the run ends, also by a
callback, by a step that is not finite or fails, or by Ctrl-C; and where the run is looked at for
its best state, see :mod:`ppl_ext.running.best`, or to see whether it has settled, which ends it,
see
:mod:`ppl_ext.running.settling`. Steps are counted from the engine's first, so that a run
that was resumed saves and calls back where the uninterrupted one would have. Where both are due
the state is saved first. How a run is cut does not change its result.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from ppl_ext.errors import ArgumentError, NonFiniteError, RankLostError
from ppl_ext.options import check_count, described, is_count
from ppl_ext.process import between_steps, interruptible
from ppl_ext.running.best import LEAST_APART, LOOKS, Watch
from ppl_ext.running.piece import Piece, joined
from ppl_ext.running.settling import SettlingWatch

#: Steps of a piece at most.
LARGEST_PIECE = 4096
#: Steps that can be counted.
MOST_STEPS = 2**31 - 1
#: Seconds that a piece should take, so that the bar moves and Ctrl-C is raised soon.
PIECE_SECONDS = 0.2


class Cadence(NamedTuple):
    """After which steps a run calls back, saves and is looked at; 0 where it never does.

    Parameters
    ----------
    first, last : int
        Steps taken before the run, and at its end.
    callback_every, checkpoint_every, look_every : int
    """

    first: int
    last: int
    callback_every: int
    checkpoint_every: int
    look_every: int = 0

    @classmethod
    def of(
        cls,
        first: int,
        num_steps: int,
        calls_back: tuple[Any, int | None],
        saves: tuple[Any, int | None],
    ) -> Cadence:
        """The cadence of a run, by default calling back each hundredth and saving each tenth.

        A callback and a checkpoint come with their intervals, and are None where there are none.

        Raises
        ------
        ArgumentError
            An interval is no positive whole number.
        """
        (callback, callback_every), (checkpoint, checkpoint_every) = calls_back, saves
        check_count("callback_every", callback_every, optional=True)
        check_count("checkpoint_every", checkpoint_every, optional=True)
        callback_every = callback_every or max(1, math.ceil(num_steps / 100))
        checkpoint_every = checkpoint_every or max(1, math.ceil(num_steps / 10))
        return cls(
            first,
            first + num_steps,
            0 if callback is None else callback_every,
            0 if checkpoint is None else checkpoint_every,
            max(LEAST_APART, math.ceil(num_steps / LOOKS)),
        )

    def boundary(self, position: int) -> int:
        """The next step after ``position`` where something is due."""
        due = [(position // each + 1) * each for each in self[2:] if each]
        return min([self.last, *due])

    def calls_back(self, position: int, ends: bool = False) -> bool:
        """Whether a callback is due after so many steps, which may be the last."""
        return self.callback_every > 0 and (
            ends or position == self.last or position % self.callback_every == 0
        )

    def looks(self, position: int) -> bool:
        """Whether the state after so many steps may be the best."""
        return position == self.last or position % self.look_every == 0

    def saves(self, position: int, ends: bool = False) -> bool:
        """Whether a checkpoint is due after so many steps, which may be the last."""
        return self.checkpoint_every > 0 and (
            ends or position == self.last or position % self.checkpoint_every == 0
        )


def check_num_steps(num_steps: Any, place: str) -> None:
    """See that a number of steps is one, that can be counted, and no argument in its ``place``.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if not is_count(num_steps, least=0):
        raise ArgumentError(
            f"Expected num_steps to be an int >= 0 and {place}, found {described(num_steps)}."
        )
    if num_steps > MOST_STEPS:
        raise ArgumentError(
            f"Expected num_steps <= {MOST_STEPS}, found {num_steps}: steps are counted in 32 bits. "
            "Take a large number of steps in several runs, or end a run by its callback."
        )


def check_callback(callback: Any) -> None:
    """See that a callback can be called with a step, the engine or its state, and figures.

    Raises
    ------
    ArgumentError
        It cannot.
    """
    if callback is None:
        return
    if callable(callback):
        try:
            inspect.signature(callback).bind(0, None, {})
        except ValueError:  # a signature that Python does not know
            return
        except TypeError:
            pass
        else:
            return
    raise ArgumentError(
        "Expected callback to be a function of three arguments, callback(step, engine or state, "
        f"figures), found {described(callback)}."
    )


def take_steps(
    name: str,
    cadence: Cadence,
    take: Callable[[int], Piece],
    *,
    state: Callable[[], tuple[int, Any]],
    watch: Watch,
    until: SettlingWatch | None,
    save: Callable[[], None],
    call_back: Callable[[int, Mapping[str, float]], bool | None],
    progress_bar: bool,
    shown: Callable[[], Mapping[str, str]] | None = None,
) -> Piece:
    """Take the steps of a run, piece by piece.

    Parameters
    ----------
    name : str
        The engine's, for the bar.
    cadence : Cadence
    take : callable
        Takes so many steps, or fewer. Where it raises, the state is that after the last whole
        step (in Pyro) or the last whole call (in NumPyro).
    state : callable
        Steps taken so far, and the state where the engine does not hold it itself.
    watch : Watch
    until : SettlingWatch, optional
        What ends the run before its last step.
    save : callable
        Saves the present state.
    call_back : callable
        Given the number of steps taken so far and the figures of the last; True ends the run.
    progress_bar : bool
    shown : callable, optional
        What the bar shows besides, such as rows and epochs.

    Returns
    -------
    Piece
        All steps of the run.

    Raises
    ------
    BaseException
        Any that comes up in a step, a callback or from Ctrl-C. It says where the state is: in the
        engine, or in its attribute ``state``. Where a step was stopped, or by Ctrl-C wherever it
        came, it is saved as well.
    """
    with between_steps(), handing_over(state, save if cadence.checkpoint_every else None):
        pieces: list[Piece] = []
        position, size = cadence.first, 1
        # Where there are no steps a state is saved all the same.
        saved = False
        watch.start(position)
        with tqdm(total=cadence.last - position, desc=name, disable=not progress_bar) as bar:
            while position < cadence.last:
                boundary = cadence.boundary(position)
                if until is not None:
                    boundary = min(boundary, until.next_look(position))
                count = min(size, boundary - position)
                started = time.perf_counter()
                try:
                    piece = take(count)
                except BaseException as error:
                    if isinstance(error, NonFiniteError):
                        error.best = watch.end()
                    # What other processes hold is lost with them.
                    if cadence.checkpoint_every and not isinstance(
                        error, KeyboardInterrupt | RankLostError
                    ):
                        save()
                    raise
                elapsed = time.perf_counter() - started
                count = len(piece.losses)
                position += count
                pieces.append(piece)
                watch.take(piece)
                ends = until is not None and until.look(
                    position, piece.skipped, last=position == cadence.last
                )
                if cadence.looks(position) or ends:
                    watch.look(position)
                if count == size and elapsed < PIECE_SECONDS / 2:
                    size = min(2 * size, LARGEST_PIECE)
                # The first step takes what it takes to compile, which says nothing of the next.
                elif elapsed > 2 * PIECE_SECONDS and position > cadence.first + 1:
                    size = max(1, size // 2)
                if progress_bar:
                    told = {each: f"{value:.4g}" for each, value in piece.latest().items()}
                    told |= {} if shown is None else shown()
                    if piece.skipped:
                        told["skipped"] = str(piece.skipped)
                    if until is not None:
                        told["settling"] = str(until.found)
                    bar.set_postfix(told, refresh=False)
                    bar.update(count)
                if saved := cadence.saves(position, ends):
                    save()
                # A user's function may take long: Ctrl-C does not wait for its end.
                with interruptible():
                    stops = cadence.calls_back(position, ends) and call_back(
                        position, piece.latest()
                    )
                if stops or ends:
                    break
        if cadence.checkpoint_every and not saved:
            save()
        return joined(pieces)


@contextmanager
def handing_over(
    state: Callable[[], tuple[int, Any]], save: Callable[[], None] | None = None
) -> Iterator[None]:
    """Context in which an exception says where the state is that a run has reached."""
    try:
        yield
    except BaseException as error:
        _hand_over(error, *state())
        # Ctrl-C comes in a step or between two.
        if save is not None and isinstance(error, KeyboardInterrupt):
            save()
        raise


def _hand_over(error: BaseException, steps: int, state: Any) -> None:
    """Let the exception that ends a run say where the state is that it has reached."""
    if isinstance(error, NonFiniteError | RankLostError):
        return
    where = "engine" if state is None else "exception's attribute `state`"
    go_on = "run" if state is None else "run(..., init_state=error.state)"
    error.add_note(f"The {where} holds the state after step {steps}; {go_on} goes on from it.")
    if state is not None:
        error.state = state  # type: ignore[attr-defined]
