"""Four models that people try first: their data, and what is done with each by each method.

Models are in ``fits.py``. Everything here is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets

Array = NDArray[np.float64]

HOST_METHODS = ("SVI", "NUTS")
METHODS = ("NUTS", "SVI", "ProximalScoreVI", "SVGD", "SVN", "LaplaceGGN")
#: Each is called first in a process that has fitted by ``DIAGNOSED`` and drawn.
DIAGNOSTICS = ("psis_khat", "elbo", "ksd")
DIAGNOSED = "ProximalScoreVI"
#: Draws that are asked of a guide; NUTS keeps as many, engines of particles have their particles.
DRAWS = 1000
HIDDEN = 10


@dataclass(frozen=True)
class Recipe:
    """Steps of each method, as README and its pages take them."""

    variational: int = 2000
    svgd: int = 500
    newton: int = 30
    mode: int = 1000
    warm_up: int = 1000
    draws: int = DRAWS


SMALL = Recipe(variational=20, svgd=10, newton=2, mode=10, warm_up=10, draws=20)


def eight_schools() -> tuple[Array, ...]:
    """Effects of coaching in eight schools (Rubin 1981): standard errors and effects."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]), effects


def logistic_regression() -> tuple[Array, ...]:
    """Breast cancer diagnosis, 426 rows, 30 features."""
    split = datasets.shipped("breast_cancer").random_split(seed=0, test_fraction=0.25)
    split = split.standardised()
    return split.x_train, split.y_train.astype(np.float64)


def gaussian_process() -> tuple[Array, ...]:
    """Counts at twenty places whose log rate is smooth."""
    x = np.linspace(-3.0, 3.0, 20)
    return x, np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(x))).astype(np.float64)


def network() -> tuple[Array, ...]:
    """Diabetes progression, 331 rows, 10 features."""
    data = datasets.shipped("diabetes")
    split = data.random_split(seed=0, test_fraction=0.25).standardised(response=True)
    return split.x_train, split.y_train


#: name -> its data
MODELS: dict[str, Callable[[], tuple[Array, ...]]] = {
    "eight_schools": eight_schools,
    "logistic_regression": logistic_regression,
    "gaussian_process": gaussian_process,
    "network": network,
}
