"""What the posterior itself predicts: draws by NUTS."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from numpyro.infer import MCMC, NUTS

from benchmarks.logistic.numpyro_program import PRIOR
from benchmarks.variance_reduction.methods import Floats

#: Steps of a trajectory are at most two to this power.
TREE_DEPTH = 7


def posterior_draws(x: Floats, y: NDArray[Any], draws: int, seed: int) -> Floats:
    """Weights (draws, D) from one chain with as many steps of warm-up, on all rows at each step.

    The program is that of the comparison with standardised weights, which NUTS needs.
    """
    features, labels = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def model() -> None:
        precision = numpyro.sample("precision", dist.Gamma(*PRIOR))
        standard = numpyro.sample(
            "standard", dist.Normal(jnp.zeros(features.shape[1]), 1.0).to_event(1)
        )
        weights = numpyro.deterministic("weights", standard * precision**-0.5)
        numpyro.sample("y", dist.Bernoulli(logits=features @ weights), obs=labels)

    kernel = NUTS(model, max_tree_depth=TREE_DEPTH)
    chain = MCMC(kernel, num_warmup=draws, num_samples=draws, progress_bar=False)
    chain.run(jax.random.key(seed))
    found: Floats = np.asarray(chain.get_samples()["weights"], np.float64)
    return found
