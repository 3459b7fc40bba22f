"""Gaussian processes in NumPyro: exact with Poisson counts, and approximate by basis functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

Data = Mapping[str, Any]

#: Added to the diagonal of the covariance matrix. In float32 it is lost, and the matrix is no
#: longer positive definite at long length scales.
JITTER = 1e-10


def gp_pois_regr(data: Data) -> None:
    """Poisson counts whose log rate is a Gaussian process with a squared exponential covariance.

    Sites: the length scale `rho`, the standard deviation `alpha`, and `f_tilde` (N,), standard
    Normal, which the Cholesky factor turns into the log rates `f`.
    """
    x, counts = np.asarray(data["x"], float), data["k"]
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    f_tilde = numpyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    distance = (x[:, None] - x) / rho
    covariance = alpha**2 * jnp.exp(-0.5 * distance**2)
    factor = jnp.linalg.cholesky(covariance + JITTER * jnp.eye(len(x)))
    f = numpyro.deterministic("f", factor @ f_tilde)
    with numpyro.plate("observations", len(x)):
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=counts)


def approximate_process(
    basis: Array, frequency: Array, sd: Array, length_scale: Array, weights: Array
) -> Array:
    """Values of a Gaussian process by the eigenfunctions of the Laplacian on an interval.

    Each basis function is weighted by the square root of the spectral density of the squared
    exponential covariance at its frequency (Solin and Sarkka 2020).

    Parameters
    ----------
    basis : array (N, M)
        Eigenfunctions at the observations.
    frequency : array (M,)
        Square roots of their eigenvalues.
    sd, length_scale : array ()
    weights : array (M,)
        Standard Normal.
    """
    amplitude = sd * (2.0 * math.pi) ** 0.25 * jnp.sqrt(length_scale)
    return basis @ (amplitude * jnp.exp(-0.25 * (length_scale * frequency) ** 2) * weights)


def accel_gp(data: Data, subsample_size: int | None = None) -> None:
    """Acceleration of a head in a crash: Gaussian processes for the mean and the log scale.

    Sites, of the mean and, with `sigma` in their names, of the logarithm of the standard
    deviation: `Intercept`, the process' standard deviation `sdgp_1`, its length scale `lscale_1`
    and the weights `zgp_1` (M,) of its basis functions.
    """
    y = jnp.asarray(data["Y"])
    values = []
    for part, loc, scale in (("", -13.0, 36.0), ("sigma_", 0.0, 10.0)):
        basis = jnp.asarray(data[f"Xgp_{part}1"])
        frequency = jnp.asarray(data[f"slambda_{part}1"])[:, 0]
        name = f"Intercept_{part}".rstrip("_")
        intercept = numpyro.sample(name, dist.StudentT(3.0, loc, scale))
        positive = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0))
        sd = numpyro.sample(f"sdgp_{part}1", positive)
        length_scale = numpyro.sample(f"lscale_{part}1", dist.InverseGamma(1.124909, 0.0177))
        weights = numpyro.sample(
            f"zgp_{part}1", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1)
        )
        values.append(intercept + approximate_process(basis, frequency, sd, length_scale, weights))
    mean, log_scale = values
    with numpyro.plate("observations", len(y), subsample_size=subsample_size) as rows:
        numpyro.sample("Y", dist.Normal(mean[rows], jnp.exp(log_scale[rows])), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"accel_gp": accel_gp, "gp_pois_regr": gp_pois_regr}
