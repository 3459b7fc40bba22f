"""Numbers of either package in the memory of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float


def on_host(value: Any) -> Any:
    """A tensor, on whichever device it is, where NumPy finds it; anything else as it is."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def as_float64(values: Any) -> Float[np.ndarray, " ..."]:
    """Numbers of an array, on whichever device it is, in double precision."""
    return np.asarray(on_host(values), np.float64)
