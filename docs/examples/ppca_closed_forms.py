"""Probabilistic principal component analysis: data, closed forms, and what is compared with them.

Rows x (D,) have latent variables z (Q,): z ~ N(0, I), x | z ~ N(W z, s^2 I), with centred data.
All that inference has to find is known exactly:

- the evidence, log N(x; 0, W W^T + s^2 I), summed over rows;
- the posterior of a row, N(M^-1 W^T x, s^2 M^-1) with M = W^T W + s^2 I;
- the W and s of the largest evidence, by the eigenvalues of the covariance of the data.

M. E. Tipping and C. M. Bishop, "Probabilistic principal component analysis", Journal of the Royal
Statistical Society B 61 (1999), https://doi.org/10.1111/1467-9868.00196.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.records import LABELS, Record, markdown_table
from docs.examples.recorded import recorded

Array = Float[np.ndarray, "..."]

COLUMNS, LATENT, SCALE = 6, 2, 0.7
#: Rows of a minibatch, and step size of a chain over the least posterior variance.
BATCH, STEP = 40, 0.01


@dataclass(frozen=True)
class Sizes:
    """Rows, steps of the host's SVI, and chains with their draws, which are ten steps apart."""

    rows: int
    steps: int
    chains: int
    draws: int
    out: Path


def parse_sizes(argv: Sequence[str] | None, description: str | None) -> Sizes:
    """Read the command line; ``--small`` is a run of seconds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--small", action="store_true", help="seconds: fewer rows and draws")
    found = parser.parse_args(argv)
    if found.small:
        return Sizes(120, 3_000, 8, 300, found.out)
    return Sizes(400, 20_000, 16, 2_000, found.out)


def make_rows(number: int) -> Float[np.ndarray, "N D"]:
    """Centred rows of a model with columns of unequal length, from a seed."""
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(COLUMNS, LATENT)))[0]
    z = generator.normal(size=(number, LATENT))
    x = z @ (axes * [2.0, 1.3]).T + SCALE * generator.normal(size=(number, COLUMNS))
    return (x - x.mean(0)).astype(np.float32)


def log_evidence(x: Array, weights: Array, scale: float) -> float:
    """Log density of rows x (N, D) with z integrated out, for weights (D, Q)."""
    covariance = weights @ weights.T + scale**2 * np.eye(len(weights))
    _, log_determinant = np.linalg.slogdet(2.0 * np.pi * covariance)
    squares = np.einsum("nd,nd->", x @ np.linalg.inv(covariance), x)
    return float(-0.5 * (len(x) * log_determinant + squares))


def posterior(
    x: Array, weights: Array, scale: float
) -> tuple[Float[np.ndarray, "N Q"], Float[np.ndarray, "Q Q"]]:
    """Means of the rows' z, and their one covariance."""
    precision = weights.T @ weights + scale**2 * np.eye(weights.shape[1])
    return np.linalg.solve(precision, weights.T @ x.T).T, scale**2 * np.linalg.inv(precision)


def maximum_likelihood(x: Array) -> tuple[Float[np.ndarray, "D Q"], float]:
    """Weights (D, Q), up to a rotation of z, and scale of the largest evidence."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    variance = values[:-LATENT].mean()
    return vectors[:, -LATENT:] * np.sqrt(values[-LATENT:] - variance), float(np.sqrt(variance))


def report(
    host: str,
    x: Array,
    trained: tuple[Array, float],
    bound: float,
    encoder: tuple[Array, Array],
    laplace: float,
    draws: Float[np.ndarray, "S N Q"],
    by_rows: tuple[Float[np.ndarray, "N Q"], Float[np.ndarray, "N Q"]],
    sizes: Sizes,
) -> dict[str, Any]:
    """Figures of a run against the closed forms, put into a record and printed.

    Parameters
    ----------
    host : str
    x : array (N, D)
    trained : array (D, Q) and float
        Weights and scale by the host's SVI.
    bound : float
        ELBO over all rows there.
    encoder : array (Q, D) and array (Q, Q)
        The encoder's matrix, and its covariance.
    laplace : float
        Log marginal likelihood by ``LaplaceGGN`` at the weights of maximum likelihood.
    draws : array (S, N, Q)
        Draws of the chains at the same weights.
    by_rows : arrays (N, Q)
        Means and standard deviations of a guide with parameters for every row, there too.
    sizes : Sizes
    """
    number, best = len(x), maximum_likelihood(x)
    at_best, at_trained = log_evidence(x, *best), log_evidence(x, *trained)
    mean, covariance = posterior(x, *trained)
    root = np.sqrt(np.diag(covariance))
    exact, spread = posterior(x, *best)
    deviation = np.sqrt(np.diag(spread))
    found = {
        "largest evidence, a row": at_best / number,
        "evidence at the trained weights, a row": at_trained / number,
        "ELBO at the trained weights, a row": bound / number,
        "scale": trained[1],
        "scale of maximum likelihood": best[1],
        "largest error of the encoder's means, in sd": float(
            (np.abs(x @ encoder[0].T - mean) / root).max()
        ),
        "largest error of the encoder's covariance, relative": float(
            np.abs(encoder[1] - covariance).max() / covariance.max()
        ),
        "evidence by LaplaceGGN, a row": laplace / number,
        "error of the chains' means, root mean square, in sd": float(
            np.sqrt((((draws.mean(0) - exact) / deviation) ** 2).mean())
        ),
        "sd of the chains' draws over the exact one": float(
            np.sqrt((draws.var(0) / deviation**2).mean())
        ),
        "error of AutoNormal's means, root mean square, in sd": float(
            np.sqrt((((by_rows[0] - exact) / deviation) ** 2).mean())
        ),
        "sd of AutoNormal over the exact one": float((by_rows[1] / deviation).mean()),
    }
    recorded("ppca", "all", host, "ppca", sizes, found)
    for name, value in found.items():
        print(f"{name}: {value:.4f}")
    return found


#: What a row of the page's table says, its figure, and the exact one or the name of that.
ROWS = (
    (
        "evidence at $W$, $\\sigma$ by the host's `SVI` with a linear encoder, in minibatches",
        "evidence at the trained weights, a row",
        "largest evidence, a row",
    ),
    ("the ELBO there", "ELBO at the trained weights, a row", "largest evidence, a row"),
    (
        "evidence by `LaplaceGGN` at the best $W$, $\\sigma$",
        "evidence by LaplaceGGN, a row",
        "largest evidence, a row",
    ),
    (
        "largest error of a mean by the encoder, in standard deviations",
        "largest error of the encoder's means, in sd",
        0,
    ),
    (
        "error of a row's mean by `AutoNormal` with parameters for every row, root mean square, in "
        "standard deviations",
        "error of AutoNormal's means, root mean square, in sd",
        0,
    ),
    ("its standard deviations, over the exact ones", "sd of AutoNormal over the exact one", 1),
    (
        "error of a row's mean by `SGLD`, root mean square, in standard deviations",
        "error of the chains' means, root mean square, in sd",
        0,
    ),
    (
        "standard deviation of its draws, over the exact one",
        "sd of the chains' draws over the exact one",
        1,
    ),
)


def table(runs: Sequence[Record]) -> str:
    """The page's table."""
    rows = []
    for what, name, exact in ROWS:
        row: dict[str, Any] = {"what": what}
        for run in runs:
            row[LABELS[run.backend]] = f"{run.figures[name]:.4f}"
        exact = f"{runs[0].figures[exact]:.4f}" if isinstance(exact, str) else str(exact)
        rows.append(row | {"closed form": exact})
    return markdown_table(rows)
