"""Gaussian processes: exact with Poisson counts, and approximate by basis functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.hosts import Host

Data = Mapping[str, Any]

#: Added to the diagonal of the covariance matrix. In float32 it is lost, and the matrix is no
#: longer positive definite at long length scales.
JITTER = 1e-10


def cholesky(h: Host, matrix: Any) -> Any:
    """A matrix's Cholesky factor; not a number where there is none, which leaves no density."""
    if h.name == "numpyro":
        return h.xp.linalg.cholesky(matrix)
    # An exception would end a run.
    factor, failed = h.xp.linalg.cholesky_ex(matrix)
    return factor.masked_fill(failed != 0, math.nan)


def gp_pois_regr(h: Host, data: Data) -> None:
    """Poisson counts whose log rate is a Gaussian process with a squared exponential covariance.

    Sites: the length scale `rho`, the standard deviation `alpha`, and `f_tilde` (N,), standard
    Normal, which the Cholesky factor turns into the log rates `f`.
    """
    x, counts = np.asarray(data["x"], float), h.array(data["k"])
    rho = h.sample("rho", h.dist.Gamma(25.0, 4.0))
    alpha = h.sample("alpha", h.dist.HalfNormal(2.0))
    f_tilde = h.sample("f_tilde", h.dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    distance = h.floats(x[:, None] - x) / rho
    covariance = alpha**2 * h.xp.exp(-0.5 * distance**2)
    factor = cholesky(h, covariance + JITTER * h.xp.eye(len(x)))
    f = h.deterministic("f", factor @ f_tilde)
    with h.plate("observations", len(x)):
        h.sample("k", h.dist.Poisson(h.xp.exp(f)), obs=counts)


def approximate_process(
    h: Host, basis: Any, frequency: Any, sd: Any, length_scale: Any, weights: Any
) -> Any:
    """Values of a Gaussian process by the eigenfunctions of the Laplacian on an interval.

    Each basis function is weighted by the square root of the spectral density of the squared
    exponential covariance at its frequency (Solin and Sarkka 2020).

    Parameters
    ----------
    h : Host
    basis : array (N, M)
        Eigenfunctions at the observations.
    frequency : array (M,)
        Square roots of their eigenvalues.
    sd, length_scale : array ()
    weights : array (M,)
        Standard Normal.
    """
    amplitude = sd * (2.0 * math.pi) ** 0.25 * h.xp.sqrt(length_scale)
    return basis @ (amplitude * h.xp.exp(-0.25 * (length_scale * frequency) ** 2) * weights)


def accel_gp(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Acceleration of a head in a crash: Gaussian processes for the mean and the log scale.

    Sites, of the mean and, with `sigma` in their names, of the logarithm of the standard
    deviation: `Intercept`, the process' standard deviation `sdgp_1`, its length scale `lscale_1`
    and the weights `zgp_1` (M,) of its basis functions.
    """
    dist, y = h.dist, h.floats(data["Y"])
    values = []
    for part, loc, scale in (("", -13.0, 36.0), ("sigma_", 0.0, 10.0)):
        basis = h.floats(data[f"Xgp_{part}1"])
        frequency = h.floats(data[f"slambda_{part}1"])[:, 0]
        name = f"Intercept_{part}".rstrip("_")
        intercept = h.sample(name, dist.StudentT(3.0, loc, scale))
        sd = h.sample(f"sdgp_{part}1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
        length_scale = h.sample(f"lscale_{part}1", dist.InverseGamma(1.124909, 0.0177))
        unit = dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1)
        of_process = basis, frequency, sd, length_scale, h.sample(f"zgp_{part}1", unit)
        values.append(intercept + approximate_process(h, *of_process))
    mean, log_scale = values
    with h.plate("observations", len(y), subsample_size=subsample_size) as rows:
        h.sample("Y", dist.Normal(mean[rows], h.xp.exp(log_scale[rows])), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"accel_gp": accel_gp, "gp_pois_regr": gp_pois_regr}
