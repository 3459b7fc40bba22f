"""Runs with NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array

import numpyro_ext as nx
from benchmarks.logistic.training import (
    ANCHOR_EVERY,
    DECAY,
    PARTICLES,
    PRIOR,
    Floats,
    Method,
    Task,
)


def program(task: Task, point: bool) -> Callable[[Array, Array], None]:
    """The regression; without a prior for the point estimate."""
    num_rows, num_features = task.x.shape

    def model(x: Array, y: Array) -> None:
        if point:
            prior = dist.Normal(jnp.zeros(num_features), 1.0).mask(False)
        else:
            precision = numpyro.sample("precision", dist.Gamma(*PRIOR))
            prior = dist.Normal(jnp.zeros(num_features), precision**-0.5)
        weights = numpyro.sample("weights", prior.to_event(1))
        with numpyro.plate("rows", num_rows, subsample_size=task.batch) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


class _Reset(NamedTuple):
    """Steps since the optimizer was last started, and its state."""

    since: Array
    inner: Any


def reset_every(steps: int, inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that starts anew every so many steps."""

    def update(grads: Any, state: _Reset, params: Any = None) -> tuple[Any, _Reset]:
        due = state.since >= steps
        started = jax.tree.map(
            lambda new, old: jnp.where(due, new, old), inner.init(params), state.inner
        )
        updates, following = inner.update(grads, started, params)
        return updates, _Reset(jnp.where(due, 1, state.since + 1), following)

    return optax.GradientTransformation(
        lambda params: _Reset(jnp.zeros((), jnp.int32), inner.init(params)), update
    )


class NumPyroTrainer:
    """A run in progress; see :class:`~benchmarks.logistic.training.Trainer`."""

    def __init__(self, task: Task, method: Method, rate: float, seed: int) -> None:
        self._data = jnp.asarray(task.x, jnp.float32), jnp.asarray(task.y, jnp.float32)
        self._key = jax.random.key(seed)
        sampling: Literal["cyclic", "reshuffle"] = "cyclic" if task.ordered else "reshuffle"
        estimator = nx.SVRG(ANCHOR_EVERY, sampling) if method.reduced else nx.Minibatch(sampling)
        if method.point:
            # The scale of the mean loss, as is usual for a point estimate.
            optim = optax.sgd(rate / len(task.x))
        else:
            optim = optax.rmsprop(rate, decay=DECAY, eps=1e-6)
            optim = reset_every(ANCHOR_EVERY, optim) if method.reset else optim
        self._engine = nx.SVGD(
            program(task, method.point),
            optim,
            nx.RBF("dartml"),
            1 if method.point else PARTICLES,
            estimator=estimator,
        )
        self._state = self._engine.init(self._key, *self._data)

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        if steps == 1:
            self._state, _ = self._engine.update(self._state, *self._data)
            return
        result = self._engine.run(
            self._key, steps, *self._data, init_state=self._state, progress_bar=False
        )
        self._state = result.state

    def weights(self) -> Floats:
        """Weights of the particles, (P, D)."""
        return np.asarray(self._engine.get_samples(self._state)["weights"], np.float64)

    def variance_ratio(self, batches: int) -> float:
        """See :class:`~benchmarks.logistic.training.Trainer`."""
        engine, state = self._engine, self._state
        target, data = engine.target, engine.target.bind(*self._data)
        here, anchor = engine.particles(state), state.estimator["anchor"]
        sampler = nx.Minibatch("replacement")
        minibatch = sampler.init(target, data, jax.random.key(1), len(here))
        plain, reduced = [], []
        for _ in range(batches):
            indices, minibatch = sampler.draw(target, minibatch)
            score = target.score(here, data, indices).score
            plain.append(score)
            reduced.append(score - target.score(anchor, data, indices).score)
        norms = [jnp.sqrt(jnp.var(jnp.stack(scores), axis=0).sum()) for scores in (plain, reduced)]
        return float(norms[1] / norms[0])
