"""What a run and a sweep ask of a loader: reading ahead, places, passes. No framework."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from ppl_ext.batches.batch import as_batch
from ppl_ext.batches.codec import decoded, encoded
from ppl_ext.batches.passes import Passes
from ppl_ext.batches.prefetch import AHEAD, prefetched
from ppl_ext.batches.stream import Stream
from ppl_ext.errors import ArgumentError, ResumeWarning
from tests.batches_support import BATCH, RESUMED, ROWS, Again, ByEpoch, X, Y, of_torch

OURS = "batches"


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == OURS]


def taken(stream: Stream, number: int) -> list[np.ndarray]:
    """The first arguments of the next batches, which are taken."""
    found = []
    for _ in range(number):
        found.append(np.asarray(stream.next().args[0]))
        stream.taken()
    return found


def copied(leaf: Any) -> np.ndarray:
    return np.array(np.asarray(leaf))


def stream_of(loader: Any, saved: str | None = None, together: int = 1) -> Stream:
    stream = Stream(loader, lambda batch: batch.map(copied), saved, lambda _: together)
    stream._plates = [ROWS]
    return stream


# -- reading ahead -----------------------------------------------------------------------------


def test_items_come_in_their_order_and_an_error_after_those_before_it() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("the disk is gone")

    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        for item in prefetched(items()):
            found.append(item)
    assert found == list(range(5))
    assert not readers()


def test_it_reads_a_little_ahead_and_ends_with_its_caller() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield read[-1]

    items = prefetched(endless())
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    deadline = time.monotonic() + 5
    while len(read) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert 4 <= len(read) <= 3 + AHEAD + 1
    items.close()
    assert not readers()


def test_more_items_wait_where_the_first_says_so() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield read[-1]

    items = prefetched(endless(), lambda first: 7 + first)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(read) < 9 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(read) == 1 + 7 + 1
    items.close()


# -- several at once ---------------------------------------------------------------------------


def grouped(stream: Stream, number: int, most: int) -> list[list[np.ndarray]]:
    """The first arguments of so many batches, as they come together; they are taken."""
    found: list[list[np.ndarray]] = []
    while sum(map(len, found)) < number:
        batches = stream.several(min(most, number - sum(map(len, found))))
        found.append([np.asarray(each.args[0]) for each in batches])
        for _ in batches:
            stream.taken()
    return found


def test_batches_that_come_together_are_those_that_come_alone(monkeypatch: Any) -> None:
    """At most so many, and one of another size alone."""
    monkeypatch.setattr("ppl_ext.batches.stream._PATIENCE", 10.0)
    with stream_of(ByEpoch(size=10)) as stream:
        stream.first()
        alone = taken(stream, 17)
    with stream_of(ByEpoch(size=10), together=3) as stream:
        stream.first()
        groups = grouped(stream, 17, 100)
    assert [len(each) for each in groups] == [3, 1, 1, 3, 1, 1, 3, 1, 1, 2]
    for ours, theirs in zip([each for group in groups for each in group], alone, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_batches_are_the_same_again_until_they_are_taken(monkeypatch: Any) -> None:
    monkeypatch.setattr("ppl_ext.batches.stream._PATIENCE", 10.0)
    with stream_of(Again(), together=4) as stream:
        stream.first()
        for number in range(3):
            for _ in range(2):
                found = [each.args[0] for each in stream.several(4)]
                expected = X[number * BATCH : (number + 4) * BATCH].reshape(4, BATCH, 2)
                np.testing.assert_array_equal(found, expected)
            stream.taken()


def test_a_place_among_batches_that_came_together_is_found_again() -> None:
    with stream_of(ByEpoch(size=10)) as stream:
        stream.first()
        whole = taken(stream, 12)
    for cut in range(1, 9):
        with stream_of(ByEpoch(size=10), together=8) as stream:
            stream.first()
            left = cut
            while left:
                for _ in stream.several(8)[:left]:
                    stream.taken()
                    left -= 1
            saved = stream.saved()
        with stream_of(ByEpoch(size=10), saved, together=8) as stream:
            stream.first()
            after = [each for group in grouped(stream, 12 - cut, 8) for each in group]
        for ours, theirs in zip(after, whole[cut:], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_batches_do_not_wait_long_for_others() -> None:
    class Slow(Again):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                time.sleep(0.1)
                yield batch

    with stream_of(Slow(), together=6) as stream:
        stream.first()
        started = time.monotonic()
        assert len(stream.several(6)) <= 2
        assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("kind", ["the loader", "the form"])
def test_an_error_among_several_comes_after_those_before_it(monkeypatch: Any, kind: str) -> None:
    monkeypatch.setattr("ppl_ext.batches.stream._PATIENCE", 10.0)

    def breaks() -> Iterator[Any]:
        for number, (x, y) in enumerate(Again()):
            if number == 3 and kind == "the loader":
                raise OSError("the disk is gone")
            yield (x, y) if number < 3 else (x, y > 0)

    with stream_of(breaks(), together=8) as stream:
        stream.first()
        assert [len(each) for each in grouped(stream, 3, 8)] == [3]
        error, words = {
            "the loader": (OSError, "the disk is gone"),
            "the form": (ArgumentError, "batch 3 of epoch 0 has"),
        }[kind]
        for _ in range(2):
            with pytest.raises(error, match=words):
                stream.several(8)


# -- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("grain", "StatefulDataLoader")))
        for kind in RESUMED
    ],
)
def test_a_new_loader_goes_on_where_another_was(kind: str) -> None:
    """At every place of two epochs, and into the third."""
    if kind in ("grain", "StatefulDataLoader"):
        pytest.importorskip({"grain": "grain", "StatefulDataLoader": "torchdata"}[kind])
    with stream_of(RESUMED[kind]()) as stream:
        stream.first()
        whole = taken(stream, 15)
    for cut in range(1, 13):
        with stream_of(RESUMED[kind]()) as stream:
            stream.first()
            before = taken(stream, cut)
            saved = stream.saved()
        with stream_of(RESUMED[kind](), saved) as stream:
            stream.first()
            after = taken(stream, 15 - cut)
        for ours, theirs in zip([*before, *after], whole, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    if kind != "a list" and "order" not in kind and "ragged" not in kind and "iter" not in kind:
        assert not np.array_equal(whole[0], X[: len(whole[0])])  # it does shuffle


@pytest.mark.parametrize(
    "loader, words",
    [
        (lambda: of_torch(None), "shuffles without a generator"),
        (lambda: iter(Again()), "iterated over once only"),
        (lambda: Again(x=X[::-1].copy()), "batch 2 of epoch 0 is another than it was"),
    ],
    ids=["no generator", "one pass", "other rows"],
)
def test_where_the_order_cannot_be_known_it_is_said(loader: Any, words: str) -> None:
    first = Again() if "another" in words else loader()
    with stream_of(first) as stream:
        stream.first()
        taken(stream, 3)
        saved = stream.saved()
    with pytest.warns(ResumeWarning, match=words), stream_of(loader(), saved) as stream:
        stream.first()
        stream.next()
        assert stream._waiting[0].epoch == 1


def test_a_run_between_batches_is_saved_before_the_batch_that_failed() -> None:
    with stream_of(Again()) as stream:
        stream.first()
        taken(stream, 2)
        failed = stream.next().args[0]
        saved = stream.saved()
    with stream_of(Again(), saved) as stream:
        stream.first()
        np.testing.assert_array_equal(stream.next().args[0], failed)


def test_a_batch_keeps_its_numbers_when_the_loader_writes_over_them() -> None:
    memory = np.zeros((2, 1))

    def writes() -> Iterator[Any]:
        for number in range(4):
            memory[:] = number
            yield (memory,)

    with stream_of(writes()) as stream:
        stream.first()
        assert [each[0, 0] for each in taken(stream, 4)] == [0, 1, 2, 3]


def test_states_are_text_and_back() -> None:
    state = {
        "a": [1, 2.5, None, True, "text"],
        b"b": (b"\x00\xff", np.arange(6, dtype=np.uint8).reshape(2, 3)),
        3: {"deep": np.float64(0.1)},
    }
    found = decoded(encoded(state))
    np.testing.assert_array_equal(found[b"b"][1], state[b"b"][1])
    assert found[b"b"][0] == b"\x00\xff" and found[3] == {"deep": 0.1} and found["a"] == state["a"]
    with pytest.raises(ArgumentError, match="found _MainThread"):
        encoded({"a": threading.current_thread()})


# -- passes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 10, 48])
@pytest.mark.parametrize("rows", [7, 16, 48])
def test_a_pass_is_cut_into_batches_of_one_size(size: int, rows: int) -> None:
    found = list(Passes(Again(size=size)).of_equal_size(np.array, ROWS, rows))
    assert [each.rows for each in found] == [rows] * (ROWS // rows) + [ROWS % rows] * (
        ROWS % rows > 0
    )
    np.testing.assert_array_equal(np.concatenate([each.args[1] for each in found]), Y)


@pytest.mark.parametrize("size", [ROWS - 1, ROWS + 1])
def test_a_pass_with_other_rows_than_the_plate_is_refused(size: int) -> None:
    with pytest.raises(ArgumentError, match=f"each of the {size} rows.*found"):
        list(Passes(Again()).batches(np.array, size))
    assert not readers()


def test_processes_of_a_loader_are_not_forked_by_a_thread() -> None:
    """A fork holds the locks for ever that other threads have at that time."""

    class Forks(Again):
        num_workers = 2
        began: ClassVar[list[str]] = []

        def __iter__(self) -> Iterator[Any]:
            self.began.append(threading.current_thread().name)
            return super().__iter__()

    assert len(list(Passes(Forks()).batches(np.array, ROWS))) == ROWS // BATCH
    with stream_of(Forks()) as stream:
        stream.first()
        taken(stream, 9)
    assert len(Forks.began) == 4 and set(Forks.began) == {threading.current_thread().name}


def test_passes_need_a_loader_that_begins_anew() -> None:
    with pytest.raises(ArgumentError, match="ends after one pass"):
        Passes(iter(Again()))


@pytest.mark.parametrize(
    "given, words",
    [
        (X, "a tuple of the model's arguments.*found ndarray"),
        (([1.0, 2.0],), "found float in argument number 0"),
        ((X, Y[:5]), "leading axes \\[5, 48\\]"),
        ((X[:0],), "leading axes \\[0\\]"),
    ],
    ids=["an array", "numbers of Python", "other rows", "no rows"],
)
def test_what_is_no_batch_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        as_batch(given)


def test_no_thread_is_left_when_a_run_is_left_in_its_midst() -> None:
    with pytest.raises(KeyboardInterrupt), stream_of(Again()) as stream:
        stream.first()
        taken(stream, 1)
        raise KeyboardInterrupt
    assert not readers()


def test_no_warning_comes_from_a_run_that_goes_on_as_it_was() -> None:
    with stream_of(Again()) as stream:
        stream.first()
        taken(stream, ROWS // BATCH)
        saved = stream.saved()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with stream_of(Again(), saved) as stream:
            stream.first()
            np.testing.assert_array_equal(stream.next().args[0], X[:BATCH])
