"""Gaussian processes in Pyro: exact with Poisson counts, and approximate by basis functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.posteriordb.programs.pyro.flat import as_tensor

Data = Mapping[str, Any]

#: Added to the diagonal of the covariance matrix. In float32 it is lost, and the matrix is no
#: longer positive definite at long length scales.
JITTER = 1e-10


def gp_pois_regr(data: Data) -> None:
    """Poisson counts whose log rate is a Gaussian process with a squared exponential covariance.

    Sites: the length scale `rho`, the standard deviation `alpha`, and `f_tilde` (N,), standard
    Normal, which the Cholesky factor turns into the log rates `f`.
    """
    x, counts = as_tensor(data["x"]), as_tensor(data["k"])
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    f_tilde = pyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    distance = (x[:, None] - x) / rho
    covariance = alpha.square() * torch.exp(-0.5 * distance.square())
    factor, failed = torch.linalg.cholesky_ex(covariance + JITTER * torch.eye(len(x)))
    # Where the factorization fails, that position has no density; an exception would end a run.
    factor = factor.masked_fill(failed != 0, torch.nan)
    f = pyro.deterministic("f", factor @ f_tilde)
    with pyro.plate("observations", len(x)):
        pyro.sample("k", dist.Poisson(f.exp()), obs=counts)


def approximate_process(
    basis: Tensor, frequency: Tensor, sd: Tensor, length_scale: Tensor, weights: Tensor
) -> Tensor:
    """Values of a Gaussian process by the eigenfunctions of the Laplacian on an interval.

    Each basis function is weighted by the square root of the spectral density of the squared
    exponential covariance at its frequency (Solin and Sarkka 2020).

    Parameters
    ----------
    basis : tensor (N, M)
        Eigenfunctions at the observations.
    frequency : tensor (M,)
        Square roots of their eigenvalues.
    sd, length_scale : tensor ()
    weights : tensor (M,)
        Standard Normal.
    """
    amplitude = sd * (2.0 * math.pi) ** 0.25 * length_scale.sqrt()
    return basis @ (amplitude * torch.exp(-0.25 * (length_scale * frequency).square()) * weights)


def accel_gp(data: Data, subsample_size: int | None = None) -> None:
    """Acceleration of a head in a crash: Gaussian processes for the mean and the log scale.

    Sites, of the mean and, with `sigma` in their names, of the logarithm of the standard
    deviation: `Intercept`, the process' standard deviation `sdgp_1`, its length scale `lscale_1`
    and the weights `zgp_1` (M,) of its basis functions.
    """
    y = as_tensor(data["Y"])
    values = []
    for part, loc, scale in (("", -13.0, 36.0), ("sigma_", 0.0, 10.0)):
        basis = as_tensor(data[f"Xgp_{part}1"])
        frequency = as_tensor(data[f"slambda_{part}1"])[:, 0]
        name = f"Intercept_{part}".rstrip("_")
        intercept = pyro.sample(name, dist.StudentT(3.0, loc, scale))
        sd = pyro.sample(f"sdgp_{part}1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
        length_scale = pyro.sample(f"lscale_{part}1", dist.InverseGamma(1.124909, 0.0177))
        weights = pyro.sample(
            f"zgp_{part}1", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1)
        )
        values.append(intercept + approximate_process(basis, frequency, sd, length_scale, weights))
    mean, log_scale = values
    with pyro.plate("observations", len(y), subsample_size=subsample_size) as rows:
        pyro.sample("Y", dist.Normal(mean[rows], log_scale[rows].exp()), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"accel_gp": accel_gp, "gp_pois_regr": gp_pois_regr}
