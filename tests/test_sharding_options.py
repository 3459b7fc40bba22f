"""What `Sharding` says of a mesh, in either package: the part that needs no devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ppl_ext.errors import ArgumentError, RankLostError
from ppl_ext.running.best import Watch
from ppl_ext.running.piece import Piece
from ppl_ext.running.run import Cadence, take_steps
from ppl_ext.running.sharding import ShardingShell, check_sharding, lost_rank


class Grid(ShardingShell):
    _host, _mesh_form = "Grid", "a dict from names to sizes"

    @staticmethod
    def _axes_of(mesh: Any) -> Mapping[str, int] | None:
        return mesh if isinstance(mesh, dict) else None


MESH = {"p": 4, "d": 2}


def test_it_knows_how_many_parts_there_are() -> None:
    both = Grid(MESH, particles="p", rows="d")
    assert (both.particle_parts, both.row_parts) == (4, 2)
    rows = Grid(MESH, rows="p")
    assert (rows.particle_parts, rows.row_parts) == (1, 4)
    both.check_positions(8)
    rows.check_positions(3)
    both.check_rows([2, 10])


def test_it_is_shown_by_its_axes() -> None:
    assert repr(Grid(MESH, "p", "d")) == "Sharding(particles='p' (4), rows='d' (2))"
    split = Grid(MESH, rows="d", exchange="all-to-all")
    assert repr(split) == "Sharding(rows='d' (2), exchange='all-to-all')"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": 4, "particles": "p"}, "Expected mesh to be a dict"),
        ({"mesh": MESH, "particles": "q"}, "Expected particles to name an axis .* found 'q'"),
        ({"mesh": MESH}, "found neither"),
        ({"mesh": MESH, "particles": "p", "rows": "p"}, "different axes"),
        ({"mesh": MESH, "rows": "d", "exchange": "ring"}, "all-to-all"),
        ({"mesh": MESH, "rows": "d", "timeout": 0}, "timeout"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Grid(**options)


def test_uneven_numbers_are_refused_with_what_would_do() -> None:
    sharding = Grid(MESH, "p", "d")
    with pytest.raises(ArgumentError, match=r"multiple of 4.*found 6. Take 8"):
        sharding.check_positions(6)
    with pytest.raises(ArgumentError, match=r"num_samples to be a multiple of 4"):
        sharding.check_positions(2, "num_samples")
    with pytest.raises(ArgumentError, match=r"multiple of 2.*found 7. Leave out 1 .* add 1"):
        sharding.check_rows([4, 7])


def test_what_is_no_sharding_of_the_package_is_refused() -> None:
    class Other(Grid):
        _host = "Other"

    check_sharding(None, Grid)
    check_sharding(Grid(MESH, "p"), Grid)
    with pytest.raises(ArgumentError, match="one of Grid's"):
        check_sharding(Grid(MESH, "p"), Other)
    with pytest.raises(ArgumentError, match="found 3"):
        check_sharding(3, Grid)


def test_a_lost_rank_is_told_with_what_to_do() -> None:
    told = lost_rank("step 120", 30.0, RuntimeError("DEADLINE\nmore"))
    assert "step 120" in told and "30 s (DEADLINE)" in told and "last checkpoint" in told


def test_a_lost_rank_ends_a_run_without_saving_what_is_lost_with_it() -> None:
    saved = []
    lost = RankLostError("gone")

    def take(count: int) -> Piece:
        raise lost

    with pytest.raises(RankLostError) as found:
        take_steps(
            "SVGD",
            Cadence.of(0, 10, (None, None), ("", 1)),
            take,
            state=lambda: (0, "state"),
            watch=Watch(1, lambda piece: piece.losses, None),
            until=None,
            save=lambda: saved.append(1),
            call_back=lambda step, figures: None,
            progress_bar=False,
        )
    assert not saved and not hasattr(found.value, "state")
