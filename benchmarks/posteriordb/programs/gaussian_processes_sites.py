"""Site map of the exact Gaussian process, which samples standardised function values."""

from __future__ import annotations

import numpy as np

from benchmarks.posteriordb.programs.sites import Draws, SiteMap

#: The places of `gp_pois_regr`, in posteriordb's data and in the embedded ones.
PLACES = np.arange(-10.0, 11.0, 2.0)

_JITTER = 1e-10


def _factor(values: Draws) -> np.ndarray:
    """Cholesky factors (draws, N, N) of the covariance of the function values."""
    rho, alpha = (np.asarray(values[name])[..., None, None] for name in ("rho", "alpha"))
    distance = (PLACES[:, None] - PLACES) / rho
    covariance = alpha**2 * np.exp(-0.5 * distance**2)
    return np.linalg.cholesky(covariance + _JITTER * np.eye(len(PLACES)))


def _process(sites: Draws) -> dict[str, np.ndarray]:
    values = dict(sites)
    standard = values.pop("f_tilde")
    return values | {"f": (_factor(sites) @ standard[..., None])[..., 0]}


def _standard(parameters: Draws) -> dict[str, np.ndarray]:
    values = dict(parameters)
    process = values.pop("f")
    return values | {"f_tilde": np.linalg.solve(_factor(parameters), process[..., None])[..., 0]}


SITES: dict[str, SiteMap] = {"gp_pois_regr": SiteMap(_process, _standard)}
