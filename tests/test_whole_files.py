"""Files that are complete or absent: writers side by side, killed ones, links, permissions."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.running import state_files
from ppl_ext.running.whole_files import replaced

HEADER: dict[str, Any] = {"engine": "test", "settings": {}, "tuning": {}, "sites": []}


def save(path: Path, number: int) -> None:
    # Enough numbers that a write takes long enough to be killed in the middle of it.
    state = {"number": number, "array": np.full(50_000, number)}
    state_files.save(path, HEADER, state, lambda array: (array, {}))


def load(path: Path) -> int:
    _, state = state_files.load(path, "test", lambda array, _: array)
    assert (state["array"] == state["number"]).all()
    number: int = state["number"]
    return number


def write_on(path: Path, number: int) -> None:
    while True:
        save(path, number)


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_two_writers_that_are_killed_leave_a_whole_file_and_nothing_else(
    tmp_path: Path, rounds: int
) -> None:
    path, waits = tmp_path / "state", random.Random(0)
    # This process may have threads, of JAX for one, which a fork of it would leave behind.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_whole_files"])
    save(path, 0)
    reads = 0
    for _ in range(rounds):
        writers = [context.Process(target=write_on, args=(path, each)) for each in (1, 2)]
        for each in writers:
            each.start()
        until = time.perf_counter() + waits.uniform(0.02, 0.06)
        while time.perf_counter() < until:
            load(path)
            reads += 1
        for each in writers:
            assert each.is_alive()  # a writer ends by an error only
            os.kill(each.pid or 0, signal.SIGKILL)
            each.join()
        load(path)
    assert reads > rounds
    save(path, 3)
    assert os.listdir(tmp_path) == ["state"]
    assert load(path) == 3


def test_an_array_of_another_shape_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save(path, 1)
    with np.load(path) as archive:
        arrays = dict(archive)
    (name,) = (name for name, each in arrays.items() if each.shape == (50_000,))
    arrays[name] = arrays[name].reshape(2, 25_000)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ArgumentError, match="damaged"):
        load(path)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "state", tmp_path / "link"
    link.symlink_to(target)
    for number in (1, 2):  # the target is absent at first
        save(link, number)
        assert link.is_symlink() and load(target) == number
    assert os.listdir(tmp_path / "there") == ["state"]
    assert sorted(os.listdir(tmp_path)) == ["link", "there"]


def test_what_bears_a_leftovers_name_is_no_way_to_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    for name in ("state.part", "state.0123456789abcdef.part"):
        (tmp_path / name).symlink_to(other)
    save(tmp_path / "state", 1)
    assert other.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"")
    path.chmod(mode)
    save(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_new_files_have_the_permissions_that_the_process_gives(tmp_path: Path) -> None:
    usual = os.umask(0o027)
    try:
        save(tmp_path / "state", 1)
    finally:
        os.umask(usual)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o640


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with replaced(path) as file:
        save(path, 1)
        file.write(b"later")
    assert path.read_bytes() == b"later"


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null"), tmp_path / "absent" / "state"):
        with pytest.raises(ArgumentError, match="Expected path to be a file that can be written"):
            save(path, 1)
    assert os.listdir(tmp_path) == ["pipe"]
