"""The benchmark's chains in NumPyro, and a step of BlackJAX on the same regression."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.infer import MCMC, NUTS

import numpyro_ext as nx
from benchmarks.hosts import host_of
from benchmarks.sgmcmc import problems

Chains = dict[str, np.ndarray]
logistic = partial(problems.logistic, host_of("numpyro"))
two_modes = partial(problems.two_modes, host_of("numpyro"))


def draw(
    kernel: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    num_samples: int,
    warmup: int,
    chains: int,
    initial: dict[str, np.ndarray] | None = None,
) -> Chains:
    """Draws (chains, draws, ...) by site."""
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=num_samples,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), *args, init_params=initial, **options)
    draws = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(values) for name, values in draws.items()}


def rows(x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
    """The data as arrays of the backend."""
    return jnp.asarray(x), jnp.asarray(y)


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Draws (draws, D) of the weights by NUTS."""
    mcmc = MCMC(NUTS(logistic), num_warmup=500, num_samples=4000, progress_bar=False)
    mcmc.run(random.key(1), jnp.asarray(x), jnp.asarray(y))
    return np.asarray(mcmc.get_samples()["w"])


def speed_cases(steps: int) -> dict[str, Callable[[], object]]:
    """So many steps of SGLD with minibatches, ours by the host's MCMC and BlackJAX's by a scan."""
    x, y = rows(*problems.logistic_rows())
    size, batch = 1e-4, problems.BATCH
    cases: dict[str, Callable[[], object]] = {}
    estimators = {
        "numpyro_ext": nx.Minibatch("replacement"),
        "numpyro_ext, reshuffled": nx.Minibatch("reshuffle"),
    }
    for name, estimator in estimators.items():
        kernel = nx.SGLD(logistic, size, estimator=estimator)
        mcmc = MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False)

        def ours(mcmc: Any = mcmc) -> object:
            mcmc.run(random.key(0), x, y, batch=batch)
            return jax.block_until_ready(mcmc.get_samples())

        cases[name] = ours
    try:
        import blackjax
    except ImportError:
        return cases

    def log_density(weights: Array, minibatch: tuple[Array, Array]) -> Array:
        inputs, labels = minibatch
        logits = inputs @ weights
        likelihood = (labels * logits - jax.nn.softplus(logits)).sum()
        return -0.5 * (weights**2).sum() + len(x) / batch * likelihood

    algorithm = blackjax.sgld(jax.grad(log_density))

    @jax.jit
    def run(key: Array) -> Array:
        def step(position: Array, key: Array) -> tuple[Array, Array]:
            row_key, key = random.split(key)
            chosen = random.randint(row_key, (batch,), 0, len(x))
            position = algorithm.step(key, position, (x[chosen], y[chosen]), size)
            return position, position

        return lax.scan(step, jnp.zeros(x.shape[1]), random.split(key, steps))[1]

    cases["blackjax"] = lambda: jax.block_until_ready(run(random.key(0)))
    return cases
