"""The minibatch comparison's programs and fits in NumPyro."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import SVI, Trace_ELBO, init_to_sample
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.primitives import Messenger

import numpyro_ext as nx
from benchmarks.datasets import Split
from benchmarks.hosts import falling_adam, host_of
from benchmarks.score_vi import ANNEALED
from benchmarks.score_vi.problems import Logistic, logistic_program, network_program
from ppl_ext.score_matching.regression import diagonal

BACKEND = "NumPyro"
logistic_model = partial(logistic_program, host_of("numpyro"))
network_model = partial(network_program, host_of("numpyro"))


def configure(float64: bool) -> None:
    """Set the precision of everything that follows."""
    jax.config.update("jax_enable_x64", float64)


def _advi(model: Any, guide: Any, rate: float, steps: int, seed: int, *data: Any) -> Any:
    optimizer = falling_adam("numpyro", rate, steps)
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    return svi.run(jax.random.key(seed), steps, *data, progress_bar=False).params


class _Entropy(Messenger):
    """Multiply the entropy of an ``AutoDiagonalNormal`` in its bound by a temperature."""

    def __init__(self, temperature: Any) -> None:
        self._temperature = temperature
        super().__init__()

    def process_message(self, msg: Any) -> None:
        # Only of the draw in unconstrained space: the other sites hold the transforms' Jacobians,
        # which belong to the target.
        if msg["type"] == "sample" and msg["name"] == "_auto_latent":
            msg["scale"] = self._temperature


def _annealed_advi(model: Any, guide: Any, rate: float, steps: int, seed: int, *data: Any) -> Any:
    """ADVI whose entropy has the temperature with which the diagonal closed form starts cold."""

    def tempered(*data: Any, temperature: Any) -> Any:
        with _Entropy(temperature):
            return guide(*data)

    def untempered(*data: Any, temperature: Any) -> Any:
        return model(*data)

    optimizer = falling_adam("numpyro", rate, steps)
    svi = SVI(untempered, tempered, optimizer, Trace_ELBO())
    state = svi.init(jax.random.key(seed), *data, temperature=1.0)
    dim = svi.get_params(state)["auto_loc"].size

    @jax.jit
    def run(state: Any, arrays: Any) -> Any:
        def step(index: Any, state: Any) -> Any:
            now = diagonal.schedule(jnp.asarray(index, dtype=jnp.float32), float(steps), dim)
            return svi.update(state, *arrays, *data[2:], temperature=now.temperature)[0]

        return jax.lax.fori_loop(0, steps, step, state)

    return svi.get_params(run(state, data[:2]))


def _run(method: str, model: Any, guide: Any, scores: int, seed: int, *data: Any) -> Any:
    """An engine, and its run of so many scores, of which it takes one for each draw of a step."""
    engine: Any
    if method in ("GSM", "BaM"):
        engine = getattr(nx, method)(model, guide, num_samples=2)
    else:
        solver: Any = "gradient" if method == "ours, gradient" else None
        engine = nx.ProximalScoreVI(model, guide, solver=solver)
    key = jax.random.key(seed)
    # The draws of a step depend on the guide, which an engine knows when it has met the model.
    engine.init(key, *data)
    steps = scores // engine.plan.num_samples
    return engine, engine.run(key, steps, *data, progress_bar=False)


def fit_logistic(
    problem: Logistic, method: str, scores: int, batch_size: int, seed: int, rate: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of the guide after this many minibatch scores."""
    data = jnp.asarray(problem.x), jnp.asarray(problem.y), batch_size
    guide = AutoMultivariateNormal(logistic_model)
    if method == "ADVI":
        assert rate is not None
        params = _advi(logistic_model, guide, rate, scores, seed, *data)
        mean, scale_tril = params["auto_loc"], params["auto_scale_tril"]
    else:
        engine, run = _run(method, logistic_model, guide, scores, seed, *data)
        mean, scale_tril = engine.density.moments(run.state.algorithm.parameters)
    scale_tril = np.asarray(scale_tril, dtype=np.float64)
    return np.asarray(mean, dtype=np.float64), scale_tril @ scale_tril.T


def fit_network(
    split: Split, method: str, scores: int, batch_size: int, seed: int, rate: float | None
) -> dict[str, np.ndarray]:
    """Draws of the weights after this many minibatch scores, from a diagonal Normal guide."""
    data = (
        jnp.asarray(split.x_train),
        jnp.asarray(split.y_train),
        min(batch_size, len(split.x_train)),
    )
    guide = AutoDiagonalNormal(network_model, init_loc_fn=init_to_sample)
    key = jax.random.key(seed + 1000)
    if method in ("ADVI", ANNEALED):
        assert rate is not None
        fit = _annealed_advi if method == ANNEALED else _advi
        params = fit(network_model, guide, rate, scores, seed, *data)
        draws = guide.sample_posterior(key, params, sample_shape=(200,))
    else:
        engine, run = _run(method, network_model, guide, scores, seed, *data)
        draws = engine.get_samples(run.state, key, 200)
    return {name: np.asarray(value, dtype=np.float64) for name, value in draws.items()}
