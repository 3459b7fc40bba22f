"""What both packages name again of the neutral one."""

from __future__ import annotations

from typing import Any

from ppl_ext import public
from ppl_ext.public import predictions


def test_a_package_names_all_of_it_once(backend: Any) -> None:
    own = backend.public
    assert len(set(own.__all__)) == len(own.__all__)
    assert {*predictions.__all__, *public.__all__} < {*own.__all__}
    for room in (public, predictions):
        assert all(getattr(own, name) is getattr(room, name) for name in room.__all__)


def test_predictions_stand_in_the_room_of_diagnostics_too(backend: Any) -> None:
    room = backend.room("diagnostics")
    assert {*predictions.__all__} < {*room.__all__}
    assert all(getattr(room, name) is getattr(predictions, name) for name in predictions.__all__)
