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

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import constraints

import pyro_ext as px
from docs.examples import ppca_closed_forms as closed
from docs.examples.ppca_closed_forms import BATCH, COLUMNS, LATENT, STEP


def model(x: Tensor, weights: Tensor, scale: Tensor, batch: int | None = None) -> None:
    """Rows x (N, D) given weights (D, Q); minibatches of so many rows with ``batch``."""
    with pyro.plate("rows", len(x), subsample_size=batch) as rows:
        z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([LATENT]).to_event(1))
        pyro.sample("x", dist.Normal(z @ weights.T, scale).to_event(1), obs=x[rows])


def trained_model(x: Tensor, batch: int | None = None) -> None:
    """The same with weights and scale that are trained."""
    weights = pyro.param("weights", lambda: torch.randn(COLUMNS, LATENT))
    scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
    model(x, weights, scale, batch)


def encoder(x: Tensor, batch: int | None = None) -> None:
    """q(z | x) = N(A x, R R^T)."""
    matrix = pyro.param("encoder", lambda: 0.1 * torch.randn(LATENT, COLUMNS))
    root = pyro.param("root", torch.eye(LATENT), constraint=constraints.lower_cholesky)
    with pyro.plate("rows", len(x), subsample_size=batch) as rows:
        pyro.sample("z", dist.MultivariateNormal(x[rows] @ matrix.T, scale_tril=root))


def trainer(trained: Any, guide: Any, rate: float, steps: int) -> SVI:
    """The host's SVI by Adam, whose rate falls to a thousandth over so many steps."""
    decay = {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}}
    optim = pyro.optim.ExponentialLR({**decay, "gamma": 0.001 ** (1 / steps)})
    return SVI(trained, guide, optim, Trace_ELBO())


def train(x: Tensor, steps: int) -> tuple[dict[str, np.ndarray], float]:
    """Parameters by SVI in minibatches, and the ELBO of all rows from 1,000 draws."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    svi = trainer(trained_model, encoder, 0.02, steps)
    for _ in range(steps):
        svi.step(x, batch=BATCH)
        svi.optim.step()
    draws = Trace_ELBO(num_particles=1000, vectorize_particles=True, max_plate_nesting=1)
    bound = -float(draws.loss(trained_model, encoder, x))
    store = pyro.get_param_store()
    return {name: value.detach().numpy() for name, value in store.items()}, bound


def evidence(x: Tensor, weights: Tensor, scale: Tensor) -> float:
    """Log marginal likelihood of all rows by ``LaplaceGGN``."""
    engine = px.LaplaceGGN(model, pyro.optim.Adam({"lr": 0.05}), curvature="full")
    engine.run(1000, x, weights, scale, progress_bar=False)
    return float(engine.log_marginal_likelihood())


def chains(x: Tensor, weights: Tensor, scale: Tensor, sizes: closed.Sizes) -> np.ndarray:
    """Draws (S, N, Q) of all z by SGLD in minibatches."""
    least = np.linalg.eigvalsh(closed.posterior(x.numpy(), weights.numpy(), float(scale))[1])[0]
    kernel = px.SGLD(model, STEP * float(least))
    pyro.set_rng_seed(0)
    mcmc = px.MCMC(
        kernel,
        sizes.draws,
        warmup_steps=100 * 10,
        num_chains=sizes.chains,
        thinning=10,
        disable_progbar=True,
    )
    mcmc.run(x, weights, scale, batch=BATCH)
    return mcmc.get_samples()["z"].numpy()


def by_rows(x: Tensor, weights: Tensor, scale: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (N, Q) of all z by ``AutoNormal`` in minibatches."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)

    def plate(x: Tensor, weights: Tensor, scale: Tensor, batch: int | None = None) -> Any:
        return pyro.plate("rows", len(x), subsample_size=batch, dim=-1)

    guide = AutoNormal(model, create_plates=plate)
    svi = trainer(model, guide, 0.05, steps)
    for _ in range(steps):
        svi.step(x, weights, scale, batch=BATCH)
        svi.optim.step()
    return guide.locs.z.detach().numpy(), guide.scales.z.detach().numpy()


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all four and compare."""
    sizes = closed.parse_sizes(argv, __doc__)
    rows = closed.make_rows(sizes.rows)
    x = torch.from_numpy(rows)
    found, bound = train(x, sizes.steps)
    weights, scale = (
        torch.as_tensor(each, dtype=x.dtype) for each in closed.maximum_likelihood(rows)
    )
    return closed.report(
        "pyro",
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
