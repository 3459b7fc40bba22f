"""Numbers of either package in the memory of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float


def as_float64(values: Any) -> Float[np.ndarray, " ..."]:
    """Numbers of an array, on whichever device it is, in double precision."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
