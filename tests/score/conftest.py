"""The face of each package's guides in turn, which the tests of the engines that fit one use."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def face(backend: Any) -> Any:
    """Guides of a package, behind the face of ``tests/guides_support.py``."""
    from tests.guides_support import face_of

    return face_of(backend.name)
