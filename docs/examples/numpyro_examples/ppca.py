"""Probabilistic principal component analysis, with rows as local latents in minibatches.

Every row x has latent variables z ~ N(0, I), and x | z ~ N(W z, s^2 I). Evidence and posterior
are known in closed form (``docs/examples/ppca_closed_forms.py``), and each of four ways to get
at them is compared with these:

1. ``SVI`` of the host, by minibatches: W, s and an encoder q(z | x) = N(A x, S) that is linear, as
   the posterior is, so that the largest ELBO is the largest evidence.
2. ``LaplaceGGN`` at W and s of maximum likelihood: its Gaussian is the posterior, and its marginal
   likelihood the evidence, of all rows.
3. ``SGLD`` there: all z are latent sites, and a step sees the rows of a minibatch.
4. ``AutoNormal`` of the host there: parameters for every row, of which a step moves those of a
   minibatch. Exact as well, since the columns of the best W are orthogonal.

Written to the folder ``--out``: ``ppca.jsonl``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, random
from numpyro.distributions import constraints
from numpyro.infer import MCMC, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import numpyro_ext as nx
from docs.examples import ppca_closed_forms as closed
from docs.examples.ppca_closed_forms import BATCH, COLUMNS, LATENT, STEP


def model(x: Array, weights: Array, scale: Array, batch: int | None = None) -> None:
    """Rows x (N, D) given weights (D, Q); minibatches of so many rows with ``batch``."""
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([LATENT]).to_event(1))
        numpyro.sample("x", dist.Normal(z @ weights.T, scale).to_event(1), obs=x[rows])


def trained_model(x: Array, batch: int | None = None) -> None:
    """The same with weights and scale that are trained."""
    weights = numpyro.param("weights", lambda key: random.normal(key, (COLUMNS, LATENT)))
    scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
    model(x, weights, scale, batch)


def encoder(x: Array, batch: int | None = None) -> None:
    """q(z | x) = N(A x, R R^T)."""
    matrix = numpyro.param("encoder", lambda key: 0.1 * random.normal(key, (LATENT, COLUMNS)))
    root = numpyro.param("root", jnp.eye(LATENT), constraint=constraints.lower_cholesky)
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        numpyro.sample("z", dist.MultivariateNormal(x[rows] @ matrix.T, scale_tril=root))


def train(x: Array, steps: int) -> tuple[dict[str, np.ndarray], float]:
    """Parameters by SVI in minibatches, and the ELBO of all rows from 1,000 draws."""
    rate = optax.exponential_decay(0.02, steps, 0.001)
    svi = SVI(trained_model, encoder, optax.adam(rate), Trace_ELBO())
    found = svi.run(random.key(0), steps, x, batch=BATCH, progress_bar=False).params
    loss = Trace_ELBO(num_particles=1000).loss(random.key(1), found, trained_model, encoder, x)
    return {name: np.asarray(value) for name, value in found.items()}, -float(loss)


def evidence(x: Array, weights: Array, scale: Array) -> float:
    """Log marginal likelihood of all rows by ``LaplaceGGN``."""
    engine = nx.LaplaceGGN(model, optax.adam(0.05), curvature="full")
    run = engine.run(random.key(0), 1000, x, weights, scale, progress_bar=False)
    return float(engine.log_marginal_likelihood(run.state))


def chains(x: Array, weights: Array, scale: Array, sizes: closed.Sizes) -> np.ndarray:
    """Draws (S, N, Q) of all z by SGLD in minibatches."""
    _, covariance = closed.posterior(np.asarray(x), np.asarray(weights), float(scale))
    kernel = nx.SGLD(model, STEP * float(np.linalg.eigvalsh(covariance)[0]))
    mcmc = MCMC(
        kernel,
        num_warmup=100 * 10,
        num_samples=10 * sizes.draws,
        num_chains=sizes.chains,
        thinning=10,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), x, weights, scale, batch=BATCH)
    return np.asarray(mcmc.get_samples()["z"])


def by_rows(x: Array, weights: Array, scale: Array, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (N, Q) of all z by ``AutoNormal`` in minibatches."""

    def plate(x: Array, weights: Array, scale: Array, batch: int | None = None) -> Any:
        return numpyro.plate("rows", len(x), subsample_size=batch, dim=-1)

    guide = AutoNormal(model, create_plates=plate)
    rate = optax.exponential_decay(0.05, steps, 0.001)
    svi = SVI(model, guide, optax.adam(rate), Trace_ELBO())
    run = svi.run(random.key(0), steps, x, weights, scale, batch=BATCH, progress_bar=False)
    return np.asarray(run.params["z_auto_loc"]), np.asarray(run.params["z_auto_scale"])


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all four and compare."""
    sizes = closed.parse_sizes(argv, __doc__)
    rows = closed.make_rows(sizes.rows)
    x = jnp.asarray(rows)
    found, bound = train(x, sizes.steps)
    weights, scale = (jnp.asarray(each, x.dtype) for each in closed.maximum_likelihood(rows))
    return closed.report(
        "numpyro",
        rows.astype(float),
        (found["weights"], float(found["scale"])),
        bound,
        (found["encoder"], found["root"] @ found["root"].T),
        evidence(x, weights, scale),
        chains(x, weights, scale, sizes),
        by_rows(x, weights, scale, sizes.steps // 2),
        sizes,
    )


if __name__ == "__main__":
    main()
    sys.exit(0)
