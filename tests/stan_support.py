"""One Stan program with known moments, compiled once for all tests of both packages.

Its posterior is Gaussian on Stan's unconstrained space: a conjugate mean, two lognormal scales,
a correlated pair, and a matrix whose entries all have their own mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs._extensions.stan_compiler import missing

PROGRAM = """
data {
  int<lower=1> N;
  vector[N] y;
  real<lower=0> sd;
}
parameters {
  real mu;
  vector<lower=0>[2] tau;
  vector[2] x;
  matrix[2, 3] b;
}
transformed parameters {
  matrix[3, 2] c = 2 * b';
}
model {
  if (mu > 40) reject("mu is too large: ", mu);
  mu ~ normal(1, 2);
  tau ~ lognormal([0, 1]', 0.5);
  x[1] ~ normal(0, 1);
  x[2] ~ normal(0.8 * x[1], 0.6);
  for (i in 1:2) for (j in 1:3) b[i, j] ~ normal(2 * i - j, 0.5);
  y ~ normal(mu, sd);
}
generated quantities {
  real prediction = normal_rng(mu, sd);
}
"""
#: Generated quantities that Stan rejects in half of the draws.
REJECTING = """
parameters { real mu; }
transformed parameters { real twice = 2 * mu; }
model { mu ~ normal(2, 1); }
generated quantities {
  vector[2] next = rep_vector(mu + 1, 2);
  if (mu > 2) reject("mu is high: ", mu);
}
"""
#: The file of another program, with the posterior of the eight schools.
EIGHT_SCHOOLS = (
    Path(__file__).parent.parent
    / "benchmarks/posteriordb/embedded/posterior_database/models/stan"
    / "eight_schools_noncentered.stan"
)
Y = np.array([2.0, 3.5, 2.5, 4.0])
DATA: dict[str, Any] = {"N": len(Y), "y": Y, "sd": 1.5}

DIM = 11
SHAPES = {"mu": (), "tau": (2,), "x": (2,), "b": (2, 3), "c": (3, 2)}
#: Where each parameter is in the unconstrained vector; the matrix is there column by column.
WHERE = {"mu": slice(0, 1), "tau": slice(1, 3), "x": slice(3, 5), "b": slice(5, 11)}
B_MEANS = np.array([[1.0, 0.0, -1.0], [3.0, 2.0, 1.0]])


def moments() -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of the posterior in unconstrained space."""
    precision = 1.0 / 4.0 + len(Y) / DATA["sd"] ** 2
    mean_of_mu = (1.0 / 4.0 + Y.sum() / DATA["sd"] ** 2) / precision
    mean = np.concatenate([[mean_of_mu], [0.0, 1.0], [0.0, 0.0], B_MEANS.T.ravel()])
    covariance = np.diag([1.0 / precision, 0.25, 0.25, 1.0, 1.0, *[0.25] * 6])
    covariance[3, 4] = covariance[4, 3] = 0.8
    return mean, covariance


def flat(draws: dict[str, Any]) -> np.ndarray:
    """Draws of the parameters, by name, in unconstrained space (S, D)."""
    values = {name: np.asarray(value, np.float64) for name, value in draws.items()}
    columns = values["b"].transpose(0, 2, 1).reshape(-1, 6)
    return np.column_stack([values["mu"], np.log(values["tau"]), values["x"], columns])


REASON = missing()
needs_stan = pytest.mark.skipif(REASON is not None, reason=str(REASON))
