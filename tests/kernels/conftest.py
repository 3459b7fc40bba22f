"""What the tests of kernels are given."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def kernels(backend: Any) -> Any:
    """The room of each package."""
    return backend.room("kernels")
