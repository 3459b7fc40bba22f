"""Engines of either package behind one face, on a regression with minibatches."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS, FEATURES, BATCH, PARTICLES = 200, 20, 20, 20
ENGINES = ("SVGD", "ProximalScoreVI", "FisherVI")


class Fits:
    """Engines of a package. A state is None where the engine itself holds it, as Pyro's do.

    Parameters
    ----------
    package : {"pyro", "numpyro"}
    """

    def __init__(self, package: str) -> None:
        self.is_pyro = package == "pyro"
        self.host: Any = importlib.import_module(package)
        self.public: Any = importlib.import_module(f"{package}_ext")
        generator = np.random.default_rng(0)
        x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
        y = (x[:, 0] + 0.5 * generator.normal(size=ROWS)).astype(np.float32)
        self.data = tuple(map(self.array, (x, y)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Fits:
        # The model is a method of this, and modules cannot be copied.
        return self

    def array(self, value: Any) -> Any:
        """The framework's array."""
        if self.is_pyro:
            return importlib.import_module("torch").as_tensor(value)
        return importlib.import_module("jax.numpy").asarray(value)

    def model(self, x: Any, y: Any) -> None:
        """A linear regression."""
        dist = self.host.distributions
        prior = dist.Normal(self.array(np.zeros(FEATURES, np.float32)), 1.0)
        weights = self.host.sample("weights", prior.to_event(1))
        with self.host.plate("rows", ROWS, subsample_size=BATCH) as rows:
            self.host.sample("y", dist.Normal(x[rows] @ weights, 0.5), obs=y[rows])

    def adam(self, rate: float) -> Any:
        """The host's Adam."""
        optim = importlib.import_module(f"{self.host.__name__}.optim")
        return optim.Adam({"lr": rate} if self.is_pyro else rate)

    def make(self, name: str) -> Any:
        """The engine of this public name, always of the same seed."""
        options: dict[str, Any] = {"seed": 0} if self.is_pyro else {}
        kind = getattr(self.public, name)
        if name == "SVGD":
            return kind(self.model, self.adam(0.01), num_particles=PARTICLES, **options)
        autoguide = importlib.import_module(f"{self.host.__name__}.infer.autoguide")
        guide = autoguide.AutoDiagonalNormal(self.model)
        if name == "FisherVI":
            options |= {"optim": self.adam(0.01), "estimator": self.public.Full()}
        return kind(self.model, guide, **options)

    def run(
        self,
        engine: Any,
        state: Any,
        steps: int,
        callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """The state after a run."""
        options |= {"progress_bar": False, "callback": callback}
        if self.is_pyro:
            return engine.run(steps, *self.data, **options) and None
        key = importlib.import_module("jax").random.key(0)
        return engine.run(key, steps, *self.data, init_state=state, **options).state

    def load(self, engine: Any, path: str | os.PathLike[str]) -> Any:
        """The saved state."""
        if self.is_pyro:
            engine.load(path)
            return engine.setup(*self.data)
        return engine.load(path, *self.data)

    def save(self, engine: Any, state: Any, path: str | os.PathLike[str]) -> None:
        """Save a state."""
        engine.save(path, *(() if self.is_pyro else (state,)))

    def samples(self, engine: Any, state: Any) -> dict[str, np.ndarray]:
        """Draws by site."""
        found = engine.get_samples(*(() if self.is_pyro else (state,)))
        return {name: np.asarray(value) for name, value in found.items()}

    def taken(self, engine: Any, state: Any) -> int:
        """Steps so far."""
        return int(engine.num_steps_taken if self.is_pyro else state.step)

    def digest(self, engine: Any, state: Any, path: str | os.PathLike[str]) -> str:
        """Of all that a saved state holds, to the last bit; ``path`` is a file that may be written.

        Of the state itself and not of the story of figures before it.
        """
        self.save(engine, state, path)
        with np.load(path) as archive:
            arrays = dict(archive)
        os.unlink(path)
        found = hashlib.blake2b(digest_size=16)
        for name in sorted(arrays):
            found.update(name.encode() + arrays[name].tobytes())
        return found.hexdigest()
