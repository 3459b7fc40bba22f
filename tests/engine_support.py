"""Verbs of both packages' engines as one, and a small engine for the tests of the shell.

A state is None where the engine itself holds it, as Pyro's do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.running import state_files
from tests.backends import backend_of

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], object]


def rewritten(path: Path, change: Change) -> None:
    """Change the header or the arrays of a saved state, with the digest that they then have."""
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header").tobytes())
    del arrays["digest"]
    change(header, arrays)
    with path.open("wb") as file:
        np.savez(file, **state_files.signed(header, arrays))


class Verbs:
    """Verbs of an engine with given arguments of its model.

    Parameters
    ----------
    backend : backend
    args : tuple
        Positional arguments of the model.
    **kwargs
        Keyword arguments of the model.
    """

    def __init__(self, backend: Any, args: tuple[Any, ...], **kwargs: Any) -> None:
        self.backend, self.args, self.kwargs = backend, args, kwargs
        self.is_pyro = backend.is_pyro

    def start(self, engine: Any, seed: int = 0) -> Any:
        """The state before the first step."""
        if self.is_pyro:
            return engine.setup(*self.args, **self.kwargs)
        return engine.init(self.backend.key(seed), *self.args, **self.kwargs)

    def run(self, engine: Any, steps: Any, state: Any = None, **options: Any) -> tuple[Any, Any]:
        """The state after a run, and what the run returned."""
        options = {"progress_bar": False, **self.kwargs, **options}
        if self.is_pyro:
            return None, engine.run(steps, *self.args, **options)
        run = engine.run(self.backend.key(), steps, *self.args, init_state=state, **options)
        return run.state, run

    def step(self, engine: Any, state: Any, *args: Any) -> tuple[Any, Any]:
        """The state after one step on these arguments in place of the own, and its loss."""
        if self.is_pyro:
            return None, engine.step(*(args or self.args), **self.kwargs)
        return engine.update(state, *(args or self.args), **self.kwargs)

    def save(self, engine: Any, state: Any, path: Path) -> None:
        engine.save(path, *(() if self.is_pyro else (state,)))

    def load(self, engine: Any, path: Path) -> Any:
        """The saved state, taken over."""
        if not self.is_pyro:
            return engine.load(path, *self.args, **self.kwargs)
        engine.load(path)
        engine.setup(*self.args, **self.kwargs)
        return None

    def samples(self, engine: Any, state: Any, number: int | None = None) -> dict[str, np.ndarray]:
        """Draws by site."""
        found = engine.get_samples(*(() if self.is_pyro else (state,)), num_samples=number)
        return {name: self.backend.numpy(value) for name, value in found.items()}

    def taken(self, engine: Any, state: Any) -> int:
        """Steps so far."""
        return engine.num_steps_taken if self.is_pyro else int(state.step)

    def skipped(self, engine: Any, state: Any) -> int:
        """Steps that were not finite."""
        return engine.num_skipped if self.is_pyro else int(state.skipped)

    def bits(self, engine: Any, state: Any) -> list[bytes]:
        """All that the next step needs, by value."""
        if not self.is_pyro:
            return bits_of(state._replace(step=0, skipped=0, horizon=0))
        import torch
        from torch.utils import _pytree

        whole = (
            engine._algorithm_state(engine._state),
            engine._estimator_state,
            engine._generator.get_state(),
        )
        return [
            each.detach().numpy().tobytes()
            if isinstance(each, torch.Tensor)
            else repr(each).encode()
            for each in _pytree.tree_leaves(whole)
        ]

    def algorithm(self, engine: Any, state: Any) -> list[bytes]:
        """State of the algorithm alone."""
        if not self.is_pyro:
            return bits_of(state.algorithm)
        return [
            repr(each).encode() for each in sorted(_flat(engine._algorithm_state(engine._state)))
        ]


def bits_of(tree: Any) -> list[bytes]:
    """Arrays of a tree of JAX's by value, random keys among them."""
    import jax

    leaves = [
        jax.random.key_data(leaf)
        if jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key)
        else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def _flat(tree: Any) -> list[str]:
    if isinstance(tree, Mapping):
        return [f"{key} {each}" for key, value in tree.items() for each in _flat(value)]
    return [f"{tree.tolist()}" if hasattr(tree, "tolist") else f"{tree}"]


@cache
def noisy_ascent(package: str) -> Any:
    """An engine of gradient ascent of a few points, with a little noise of its own.

    Scores are NaN at the step of number ``breaks_at``.
    """
    return {"pyro": _of_pyro, "numpyro": _of_numpyro}[package](backend_of(package).public)


def _of_pyro(public: Any) -> Any:
    import torch

    from pyro_ext.engine import Engine, Update
    from pyro_ext.optim import EngineOptimizer

    class PointState(NamedTuple):
        z: torch.Tensor
        optimizer: EngineOptimizer

    class NoisyAscent(Engine):
        def __init__(self, *args: Any, num: int = 3, breaks_at: int = -1, **options: Any) -> None:
            super().__init__(*args, **options)
            self.num, self.breaks_at = num, breaks_at

        def _initialize(self, plan: Any, data: Any) -> PointState:
            z = plan.target.initial_positions(self.num, self._generator, data)
            return PointState(z, EngineOptimizer(self.optim, {"z": z}))

        def _update(self, plan: Any, state: PointState, data: Any) -> Update:
            score = self._score(state.z.detach(), data)
            noise = 0.1 * torch.randn(score.score.shape, generator=self._generator)
            broken = torch.nan if self.num_steps_taken == self.breaks_at else 1.0
            direction = broken * (score.score + noise)
            finite = bool(torch.isfinite(direction).all())
            if finite:
                state.optimizer.step({"z": -direction})
            loss = -float((score.log_prior + score.log_likelihood).mean())
            info = {"norm": float(score.score.norm()), "horizon": float(self._horizon or 0)}
            return Update(loss, info, finite)

        def _algorithm_state(self, state: PointState) -> dict[str, Any]:
            return {"z": state.z.detach(), "optimizer": state.optimizer.state_dict()}

        def _load_algorithm_state(
            self, plan: Any, state: PointState, saved: dict[str, Any]
        ) -> PointState:
            with torch.no_grad():
                state.z.copy_(saved["z"])
            state.optimizer.load_state_dict(saved["optimizer"])
            return state

        def _draw(self, plan: Any, state: PointState, num_samples: int | None) -> Any:
            return state.z.detach()

    return NoisyAscent


def _of_numpyro(public: Any) -> Any:
    from typing import NamedTuple

    import jax
    import jax.numpy as jnp
    from jax import random

    from numpyro_ext.engine import Engine

    class Memory(NamedTuple):
        """Leaves of many kinds: optimizer state, both sorts of keys, half precision."""

        optimizer: Any
        typed_key: jax.Array
        raw_key: jax.Array
        half: jax.Array

    class NoisyAscent(Engine):
        def __init__(self, *args: Any, num: int = 3, breaks_at: int = -1, **options: Any) -> None:
            super().__init__(*args, **options)
            self.num, self.breaks_at, self.traces = num, breaks_at, 0

        def _start(self, plan: Any, rng_key: jax.Array, data: Any) -> Any:
            return plan.target.initial_positions(self.num, rng_key, data), rng_key

        def _init_algorithm(self, plan: Any, start: Any, data: Any) -> Memory:
            positions, rng_key = start
            half = jnp.ones(2, jnp.bfloat16)
            return Memory(self.optim.init(positions), rng_key, random.PRNGKey(3), half)

        def _num_positions(self, plan: Any) -> int:
            return self.num

        def _step(self, plan: Any, state: Any, data: Any) -> Any:
            self.traces += 1
            memory: Memory = state.algorithm
            positions = self.optim.get_params(memory.optimizer)
            score, estimator = plan.estimator.estimate(
                plan.target, state.estimator, positions, data
            )
            rng_key, key = random.split(state.rng_key)
            noise = 0.1 * random.normal(key, positions.shape)
            loss = -(score.log_prior + score.log_likelihood).mean()
            broken = jnp.where(state.step == self.breaks_at, jnp.nan, 1.0)
            direction = broken * (score.score + noise)
            memory = memory._replace(
                optimizer=self.optim.update(-direction, memory.optimizer, value=loss),
                typed_key=random.split(memory.typed_key)[0],
                half=memory.half * jnp.bfloat16(0.99),
            )
            info = {"norm": jnp.linalg.norm(score.score), "horizon": state.horizon}
            return (
                state._replace(algorithm=memory, estimator=estimator, rng_key=rng_key),
                loss,
                info,
            )

        def _get_params(self, plan: Any, state: Any, data: Any) -> dict[str, jax.Array]:
            return {"positions": self.optim.get_params(state.algorithm.optimizer)}

        def _draw(
            self, plan: Any, state: Any, rng_key: jax.Array | None, num_samples: int | None
        ) -> jax.Array:
            return self.optim.get_params(state.algorithm.optimizer)

    return NoisyAscent


class Shell(Verbs):
    """The small engine on a small program with minibatches."""

    y = np.random.default_rng(0).normal(size=40)

    def __init__(self, backend: Any) -> None:
        super().__init__(backend, (backend.array(self.y),), batch=8)
        self.engine_class = noisy_ascent(backend.name)

    def model(self, y: Any, batch: int | None = None) -> None:
        host, dist = self.backend.host, self.backend.dist
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        scale = host.sample("scale", dist.LogNormal(0.0, 1.0))
        with host.plate("N", len(y), subsample_size=batch) as rows:
            host.sample("y", dist.Normal(mean, scale), obs=y[rows])

    def make(self, optim: Any = None, model: Any = None, seed: int = 0, **options: Any) -> Any:
        seeds = {"seed": seed} if self.is_pyro else {}
        optim = self.backend.adam(0.05) if optim is None else optim
        return self.engine_class(model or self.model, optim, **seeds, **options)


@cache
def shell_of(package: str) -> Shell:
    return Shell(backend_of(package))
