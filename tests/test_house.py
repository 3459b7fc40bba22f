"""Bounds on the figures of the house: `python -m tests.house` prints them all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from tests.house import running, source

#: A class, and the project's classes above it in one line.
DEEPEST = 4
#: The project's classes above one, in all of its lines.
ANCESTORS = 5
#: Own calls of a warm step of Pyro's ``SVGD``, each of which costs as much as a small operation.
CALLS = 60
#: Frames from ``run`` to the kernel's arithmetic, and their files.
FRAMES = 13, 8
#: Files of ``ppl_ext`` that stand in no room.
LOOSE = 6
#: Lines of code of all packages, docstrings apart, to the next ten; and comments a line.
LINES, COMMENTS = 53_221, 0.06
#: Lines that same-named files of both packages have in common: all, and those of bodies.
SAME, SAME_IN_BODIES = 1_867, 588


def test_no_class_has_more_than_three_above_it() -> None:
    deep = {name: running.depth(kind) for name, kind in running.classes().items()}
    assert not {name: depth for name, depth in deep.items() if depth > DEEPEST}


def test_no_class_is_made_of_many() -> None:
    assert running.most_ancestors()[1] <= ANCESTORS


def test_a_warm_step_looks_little_up() -> None:
    assert running.calls_of_a_step()[0] <= CALLS


def test_it_is_not_far_from_a_run_to_its_arithmetic() -> None:
    frames, files = running.frames_to_a_kernel()
    assert frames <= FRAMES[0] and files <= FRAMES[1]


def test_nothing_imports_in_a_circle() -> None:
    assert not source.circles()
    assert not source.room_circles()


def test_files_stand_in_rooms() -> None:
    assert source.loose_files() <= LOOSE


def test_the_house_stays_as_small_as_it_is_and_says_why() -> None:
    sizes = source.size().values()
    lines = sum(each["code"] for each in sizes)
    assert lines <= LINES
    assert sum(each["comments"] for each in sizes) >= COMMENTS * lines


def test_what_both_packages_say_alike_stands_once() -> None:
    every, bodies = map(sum, zip(*source.identical_lines().values(), strict=True))
    assert every <= SAME
    assert bodies <= SAME_IN_BODIES
