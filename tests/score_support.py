"""What the tests of the engines that fit a guide share: models of both hosts, and runs.

Models are made once for each package, so that engines find the programs of those before them.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import zoo
from tests.stein_support import Run

MEAN, COVARIANCE = zoo.GAUSSIAN_5D_MEAN, zoo.GAUSSIAN_5D_COVARIANCE
#: Mean and standard deviations of :func:`independent`.
CENTER, WIDTH = np.array([1.0, -2.0, 2.0]), np.array([0.3, 1.0, 2.0])
Y = np.linspace(-2.0, 4.0, 40) + np.sin(np.linspace(0.0, 3.0, 40))
COUNTS = np.array([1.0, 0.0, 2.0, 4.0, 1.0])

Model = Callable[..., Any]


def room(face: Any, name: str) -> Any:
    """A module of the face's package."""
    return importlib.import_module(f"{face.name}_ext.{name}")


# -- models ----------------------------------------------------------------------------------------


@cache
def normal_model(face: Any, mean: tuple[float, ...], scale: tuple[float, ...]) -> Model:
    """Independent Normal latents in one site."""

    def model() -> None:
        normal = face.dist.Normal(face.array(mean), face.array(scale))
        face.host.sample("z", normal.to_event(1))

    return model


def independent(face: Any) -> Model:
    """Three independent Normals."""
    return normal_model(face, tuple(CENTER), tuple(WIDTH))


def correlated(face: Any, mean: np.ndarray, covariance: np.ndarray) -> Model:
    """A Normal with this mean and covariance."""

    def model() -> None:
        normal = face.dist.MultivariateNormal(face.array(mean), face.array(covariance))
        face.host.sample("z", normal)

    return model


@cache
def gaussian(face: Any) -> Model:
    """A correlated Normal of five latents."""
    return correlated(face, MEAN, COVARIANCE)


@cache
def lognormal(face: Any) -> Model:
    """One positive latent, Normal in the unconstrained space."""
    return lambda: face.host.sample("x", face.dist.LogNormal(0.3, 0.5))


@cache
def conjugate(face: Any) -> Model:
    """A Normal mean of the rows y, whose posterior is known."""

    def model(y: Any, batch: int | None = None) -> None:
        mu = face.host.sample("mu", face.dist.Normal(0.0, 3.0))
        with face.host.plate("N", len(y), subsample_size=batch) as rows:
            face.host.sample("y", face.dist.Normal(mu, 2.0), obs=y[rows])

    return model


def conjugate_posterior(temperature: float = 1.0) -> tuple[float, float]:
    """Mean and standard deviation of its posterior for :data:`Y`."""
    precision = 1 / 9 + len(Y) / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


@cache
def two_sites(face: Any) -> Model:
    """Sites of three and four latents that depend on each other."""

    def model() -> None:
        normal = face.dist.Normal(face.array([1.0, -2.0, 3.0]), 0.7)
        a = face.host.sample("layer.a", normal.to_event(1))
        face.host.sample("layer.b", face.dist.Normal(a.sum() * face.ones(4), 0.5).to_event(1))

    return model


@cache
def counts(face: Any) -> Model:
    """Three latents, one of them constrained, whose posterior is not Normal."""
    host, dist, xp = face.host, face.dist, face.backend.xp

    def model(y: Any, batch: int | None = None) -> None:
        rate = host.sample("rate", dist.Gamma(2.0, 1.0))
        effect = host.sample("effect", dist.Normal(face.zeros(2), rate).to_event(1))
        with host.plate("N", len(y), subsample_size=batch) as rows:
            slope = xp.linspace(-1.0, 1.0, len(y))[rows]
            log_rate = xp.log(rate) + effect[0] + slope * effect[1]
            host.sample("y", dist.Poisson(xp.exp(log_rate)), obs=y[rows])

    return model


def by_parts(face: Any, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Have vectors longer than this updated by part."""
    steps = room(face, "score.gradient_steps")
    if face.name == "pyro":
        monkeypatch.setattr(room(face, "pieces"), "LENGTH", length)
        return
    monkeypatch.setattr(room(face, "guides.normal"), "LONG", length)
    monkeypatch.setattr(steps, "LONG", length)
    monkeypatch.setattr(room(face, "score.long_vectors"), "PART", length)


# -- guides and runs -------------------------------------------------------------------------------


def guide_of(face: Any, name: str, model: Any = None, **options: Any) -> Any:
    """The guide of this name, the package's or the host's: the class, or one of a model."""
    kind = getattr(face.guides, name, None) or getattr(face.autoguide, name)
    return kind if model is None else kind(model, **options)


class GuideRun(Run):
    """A run of an engine that fits a guide; the guide may be given by its name."""

    def __init__(self, face: Any, model: Any, guide: Any = None, *options: Any, **named: Any):
        self.face, engine = face, named.pop("engine", "ProximalScoreVI")
        if isinstance(guide, str):
            guide = guide_of(face, guide)
        given = () if guide is None else (guide,)
        named["args"] = tuple(map(face.array, named.get("args", ())))
        super().__init__(face.backend, engine, model, *given, *options, **named)

    def meet(self) -> None:
        """Meet the model's arguments once more."""
        if self.is_pyro:
            self.engine.setup(*self.args, **self.kwargs)
        else:
            self.engine.init(self.backend.key(), *self.args, **self.kwargs)

    @property
    def parameters(self) -> dict[str, Any]:
        """Present parameters of the guide, the framework's arrays."""
        return self.engine.parameters if self.is_pyro else dict(self.state.algorithm.parameters)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The same as NumPy arrays."""
        return self.face.numpy(self.parameters)

    @property
    def flat(self) -> np.ndarray:
        """All of them as one vector."""
        return np.concatenate([value.ravel() for value in self.values.values()])

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (D,) and a root (D, D) of the covariance."""
        mean, scale = self.face.numpy(tuple(self.engine.density.moments(self.parameters)))
        return mean, np.diag(scale) if scale.ndim == 1 else scale

    @property
    def covariance(self) -> np.ndarray:
        """Covariance (D, D)."""
        root = self.moments[1]
        return np.asarray(root @ root.T)

    @property
    def reused(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Earlier draws and scores that the gradient solver uses again, the latest first."""
        if self.is_pyro:
            return self.face.numpy(self.engine._state.method.reused)
        found = self.face.numpy(self.state.algorithm.reused)
        number, written = len(found.theta), int(found.written)
        order = [(written - 1 - i) % number for i in range(min(number, written))]
        return [(found.theta[i], found.score[i]) for i in order]

    @property
    def host_values(self) -> dict[str, Any]:
        """What the host's functional verbs want: its parameters; none where the guide has them."""
        return {} if self.is_pyro else self.engine.get_params(self.state)

    def predictive(self, model: Any, *args: Any, **options: Any) -> dict[str, np.ndarray]:
        """Draws of the host's ``Predictive``."""
        predictive = self.face.infer.Predictive
        if not self.is_pyro and "guide" in options:
            options["params"] = self.host_values
        key = () if self.is_pyro else (self.backend.key(),)
        return self.face.numpy(predictive(model, **options)(*key, *args))

    def go_on_from(self, other: GuideRun) -> None:
        """Go on from the saved state of another run, through a file that is gone again."""
        with tempfile.TemporaryDirectory() as folder:
            self.load_from(other, Path(folder) / "state")

    def algorithm(self) -> list[bytes]:
        """What the algorithm keeps from step to step, by value."""
        if self.is_pyro:
            import torch
            from torch.utils import _pytree

            # But for the length of the run.
            state = {**self.engine._algorithm_state(self.engine._state), "total_steps": None}
            return [
                each.detach().numpy().tobytes()
                if isinstance(each, torch.Tensor)
                else repr(each).encode()
                for each in _pytree.tree_leaves(state)
            ]
        leaves = self.face.jax.tree.leaves(self.state.algorithm)
        return [np.asarray(leaf).tobytes() for leaf in leaves]


def updated(face: Any, name: str, *arrays: np.ndarray, **options: Any) -> Any:
    """Moments after an update from mean, scale, draws and scores."""
    mean, scale, theta, score = (face.array(each) for each in arrays)
    update = getattr(room(face, "score.matching"), f"{name}_update")
    moments = face.guides.Moments(mean, scale)
    return face.numpy(tuple(update(moments, theta, score, *options.values())))


def draws_and_scores(dim: int, number: int) -> tuple[np.ndarray, ...]:
    """Moments of a guide, points and scores that have nothing to do with each other."""
    draws = np.random.default_rng([dim, number])
    root = draws.normal(size=(dim, dim))
    scale = np.linalg.cholesky(root @ root.T + 0.1 * np.eye(dim))
    mean = draws.normal(size=dim)
    theta = mean + draws.normal(size=(number, dim)) @ scale.T
    return mean, scale, theta, 2.0 * draws.normal(size=(number, dim))


class Noted:
    """What a function of a step was given, also from inside a compiled program."""

    def __init__(self, face: Any) -> None:
        self._face = face
        self._found: list[Any] = []

    def add(self, *values: Any) -> None:
        """Note numbers or arrays."""
        if self._face.name == "pyro":
            self._found.append(tuple(self._face.numpy(value).copy() for value in values))
            return

        def keep(*given: Any) -> None:
            self._found.append(tuple(map(np.asarray, given)))

        self._face.jax.debug.callback(keep, *values, ordered=True)

    @property
    def found(self) -> list[Any]:
        """All that was noted so far."""
        if self._face.name == "numpyro":
            self._face.jax.effects_barrier()
        return self._found
