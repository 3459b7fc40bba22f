"""Which tests can notice a fault in a room."""

from __future__ import annotations

import pytest

from tests.rooms import above, files_for, rooms


@pytest.mark.parametrize("room", sorted(rooms() - {"stan"}))
def test_every_room_has_tests(room: str) -> None:
    assert files_for({room})


def test_rooms_above_import_it() -> None:
    assert {"stein", "laplace"} <= above("kernels")
    assert "density" not in above("kernels")
    assert above("target") >= {"density", "engine", "fit", "check"}


def test_a_room_within_a_room() -> None:
    names = {str(path) for path in files_for({"fit/ladder"})}
    assert "tests/fit/test_search.py" in names and "tests/fit/test_labels.py" not in names
    assert above("fit/ladder") >= {"fit", "check", "calibrate"}


def test_its_folder_and_its_imports() -> None:
    names = {str(path) for path in files_for({"kernels"})}
    assert {"tests/kernels/test_kernels.py", "tests/pyro_ext/test_kernels.py"} <= names
    assert "tests/sgmcmc/test_sgmcmc.py" not in names
