"""Networks and their fits in NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from flax import nnx
from numpyro.infer import init_to_sample
from numpyro.infer.autoguide import AutoDiagonalNormal

from benchmarks.images.numpyro_lenet import LeNet
from benchmarks.networks import horseshoe
from benchmarks.networks.horseshoe import INPUTS, NOISE, RELEVANT, start
from benchmarks.networks.linearized import BATCH, HIDDEN
from numpyro_ext import (
    LaplaceGGN,
    ProximalScoreVI,
    predictive_distribution,
    predictive_metrics,
    priors,
    random_module,
)


def table(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, every: int, seed: int
) -> dict[str, Any]:
    """Predictions of a regression network; see :mod:`benchmarks.networks.linearized`.

    ``every`` is 0 where nothing is found from the marginal likelihood.
    """
    with jax.enable_x64(True):
        return _table(x, y, x_test, y_test, steps, draws, every, seed)


def _table(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, every: int, seed: int
) -> dict[str, Any]:
    linear = partial(nnx.Linear, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    module = nnx.Sequential(linear(x.shape[1], HIDDEN), jax.nn.relu, linear(HIDDEN, 1))

    def regression(x: Any, y: Any = None) -> None:
        scale = numpyro.sample("prior_scale", dist.LogNormal(0.0, 1.0)) if every else 1.0
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
        net = random_module("net", module, priors.ScaledNormal(scale))
        with numpyro.plate("rows", len(x), subsample_size=min(BATCH, len(x))):
            rows = numpyro.subsample(x, event_dim=1)
            observed = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(net(rows)[:, 0], noise), obs=observed)

    engine = LaplaceGGN(
        regression,
        optax.adam(optax.cosine_decay_schedule(0.01, steps)),
        hyperparameters=["prior_scale", "noise"] if every else None,
        hyperparameters_every=every or 1,
        init_strategy=init_to_sample,
    )
    return fitted(engine, regression, (x, y), (x_test, y_test), steps, draws, seed)


def images(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, scale: float, seed: int = 0
) -> dict[str, Any]:
    """Predictions of LeNet with a prior of this scale."""
    module = LeNet(nnx.Rngs(0))

    def classes(x: Any, y: Any = None) -> None:
        net = random_module("net", module, priors.ScaledNormal(scale))
        with numpyro.plate("images", len(x), subsample_size=min(64, len(x))):
            rows = numpyro.subsample(x, event_dim=2)
            observed = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Categorical(logits=net(rows)), obs=observed)

    engine = LaplaceGGN(
        classes,
        optax.adam(optax.cosine_decay_schedule(0.002, steps)),
        curvature="kfac",
        init_strategy=init_to_sample,
        data_chunk=64,
    )
    return fitted(engine, classes, (x, y), (x_test, y_test), steps, draws, seed, data_chunk=200)


def sparse(x: Any, y: Any, x_test: Any, y_test: Any, steps: int, seed: int) -> tuple[Any, Any]:
    """Scales of the inputs in draws (S, inputs), and figures of the predictions."""
    rngs = nnx.Rngs(0)
    sizes = ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))
    first, second, last = (nnx.Linear(*size, rngs=rngs) for size in sizes)
    module = nnx.Sequential(first, jnp.tanh, second, jnp.tanh, last)
    scale = priors.global_scale(RELEVANT, INPUTS, len(x), NOISE)
    prior = {"layers.0.kernel": priors.Horseshoe(scale), "*": priors.ScaledNormal()}

    def regression(x: Any, y: Any = None) -> None:
        net = random_module("net", module, prior)
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
        with numpyro.plate("rows", len(x), subsample_size=min(horseshoe.BATCH, len(x))):
            rows = numpyro.subsample(x, event_dim=1)
            observed = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(net(rows)[:, 0], noise), obs=observed)

    engine = ProximalScoreVI(regression, AutoDiagonalNormal, solver="gradient")
    layers = {f"net.layers.{layer}.kernel": False for layer in (0, 2, 4)}
    begin = {name: jnp.asarray(value) for name, value in start(seed, scale, layers).items()}
    rows = jnp.asarray(x), jnp.asarray(y)
    result = engine.run(jax.random.key(seed), steps, *rows, start=begin, progress_bar=False)
    draws = engine.get_samples(result.state, jax.random.key(seed), 200)
    metrics = predictive_metrics(
        predictive_distribution(regression, draws, jnp.asarray(x_test), jnp.asarray(y_test))
    )
    return priors.group_scales(draws, "net.layers.0.kernel"), metrics


def fitted(
    engine: LaplaceGGN,
    model: Callable[..., None],
    rows: tuple[Any, ...],
    test: tuple[Any, ...],
    steps: int,
    draws: int,
    seed: int,
    **chunks: Any,
) -> dict[str, Any]:
    """The three predictions of an engine after its run."""
    result = engine.run(jax.random.key(seed), steps, *map(jnp.asarray, rows), progress_bar=False)
    options: dict[str, Any] = {"draw_chunk": 10, **chunks}
    mode = {name: value[None] for name, value in engine.mode(result.state).items()}
    # The same draws for both.
    drawn = engine.get_samples(result.state, jax.random.key(seed), draws)
    at = engine.mode(result.state)
    return {
        "mode": predictive_distribution(model, mode, *test, **options),
        "all weights": predictive_distribution(model, drawn, *test, **options),
        "linearised": predictive_distribution(model, drawn, *test, linearize=at, **options),
    }
