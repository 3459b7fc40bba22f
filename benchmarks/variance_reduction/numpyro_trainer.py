"""Runs with NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import numpyro_ext as nx
from benchmarks.variance_reduction.methods import (
    DECAY,
    FUDGE,
    Arguments,
    Floats,
    Method,
    Schedule,
)


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
    """A run in progress; see :class:`~benchmarks.variance_reduction.methods.Trainer`.

    Parameters
    ----------
    model : callable
        Takes ``data``, and subsamples ``schedule.batch`` rows.
    data : arrays
    schedule : Schedule
    method : Method
    rate : float
        Step size of RMSProp, or of gradient descent on the mean loss for a point estimate.
    seed : int
    options
        Further options of the engine.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        data: Arguments,
        schedule: Schedule,
        method: Method,
        rate: float,
        seed: int,
        **options: Any,
    ) -> None:
        self._data = tuple(jnp.asarray(array, jnp.float32) for array in data)
        self._key = jax.random.key(seed)
        sampling: Literal["cyclic", "reshuffle"] = "cyclic" if schedule.ordered else "reshuffle"
        every = schedule.anchor_every
        estimator = nx.SVRG(every, sampling) if method.reduced else nx.Minibatch(sampling)
        if method.point:
            optim = optax.sgd(rate / schedule.rows)
        else:
            falling = schedule.falling_over
            size = optax.cosine_decay_schedule(rate, falling) if falling else rate
            scaled = optax.scale_by_rms(decay=DECAY, eps=FUDGE, eps_in_sqrt=False)
            # The step size goes on falling where the mean of squares starts anew.
            scaled = reset_every(every, scaled) if method.reset else scaled
            optim = optax.chain(scaled, optax.scale_by_learning_rate(size))
        self._engine = nx.SVGD(
            model,
            optim,
            nx.RBF("dartml"),
            1 if method.point else schedule.particles,
            estimator=estimator,
            **options,
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

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.variance_reduction.methods.Trainer`."""
        samples = self._engine.get_samples(self._state)
        return {name: np.asarray(value, np.float64) for name, value in samples.items()}

    def variance_ratio(self, batches: int) -> float:
        """See :class:`~benchmarks.variance_reduction.methods.Trainer`."""
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
