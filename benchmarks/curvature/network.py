"""The network whose curvature is measured: sizes and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_ext.curvature.program_curvature import GaussNewton

ROWS, FEATURES, HIDDEN, BATCH, PARTICLES = 277, 8, 50, 32, 5
#: Latent sites of the last layer.
LAST_LAYER = ["w3", "b3"]
#: Weights by site, with their shapes.
SHAPES = {
    "w1": (FEATURES, HIDDEN),
    "b1": (HIDDEN,),
    "w2": (HIDDEN, HIDDEN),
    "b2": (HIDDEN,),
    "w3": (HIDDEN, 1),
    "b3": (1,),
}

#: The form that needs an optimizer besides.
LAST = "SVN, last layer"
#: Forms of SVN by name, with their options.
STEPS: dict[str, dict[str, Any]] = {
    "SVN": {},
    LAST: {"curvature": GaussNewton(sites=LAST_LAYER)},
    "SVN, block diagonal": {"system": "block_diagonal"},
    "SVN, diagonal curvature": {"curvature": "diag"},
    "SVN, Kronecker factors": {"curvature": "kfac"},
    "SVN, curvature every 5 steps": {"curvature": GaussNewton(every=5)},
}


#: Forms as a user writes them.
CODE = {
    LAST: "SVN(curvature=GaussNewton(sites=...))",
    "SVN, block diagonal": 'SVN(system="block_diagonal")',
    "SVN, diagonal curvature": 'SVN(curvature="diag")',
    "SVN, Kronecker factors": 'SVN(curvature="kfac")',
    "SVN, curvature every 5 steps": "SVN(curvature=GaussNewton(every=5))",
}

#: A network of one hidden layer whose rows are all taken in each step.
SMALL_ROWS, SMALL_FEATURES, SMALL_HIDDEN, SMALL_PARTICLES, SMALL_STEPS = 353, 10, 37, 20, 60


def small_data() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows (SMALL_ROWS, SMALL_FEATURES) and responses (SMALL_ROWS,)."""
    x = np.random.default_rng(0).normal(size=(SMALL_ROWS, SMALL_FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(1)).astype(np.float32)


def data() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows (ROWS, FEATURES) and responses (ROWS,)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(1)).astype(np.float32)


def scale(name: str) -> float:
    """Prior standard deviation of a site."""
    shape = SHAPES[name]
    return float(shape[0]) ** -0.5 if len(shape) == 2 else 1.0
