"""What the tests of particle engines share: both packages' engines by the same verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.engine_support import Verbs
from tests.models import zoo


def optimizer(
    backend: Any,
    name: str,
    rate: float,
    *,
    steps: int | None = None,
    end: float = 1e-2,
    cosine: bool = False,
    momentum: float = 0.0,
) -> Any:
    """SGD or Adam of the host; with ``steps`` the rate falls to ``end`` of its start in them."""
    if backend.name == "numpyro":
        import optax

        schedule: Any = rate
        if steps is not None:
            falls = optax.cosine_decay_schedule if cosine else optax.exponential_decay
            schedule = falls(rate, steps) if cosine else falls(rate, steps, end)
        sgd = optax.sgd(schedule, momentum=momentum or None)
        return optax.adam(schedule) if name == "adam" else sgd
    import pyro
    import torch

    options: dict[str, Any] = {"lr": rate} | ({"momentum": momentum} if name == "sgd" else {})
    made = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    if steps is None:
        return {"adam": pyro.optim.Adam, "sgd": pyro.optim.SGD}[name](options)
    given = {"optimizer": made, "optim_args": options}
    if cosine:
        return pyro.optim.CosineAnnealingLR({**given, "T_max": steps})
    return pyro.optim.ExponentialLR({**given, "gamma": end ** (1 / steps)})


def check_moments(
    name: str, draws: dict[str, np.ndarray], mean_tolerance: float, sd_tolerance: float
) -> None:
    """See that draws have a zoo model's means, within these standard deviations, and deviations."""
    for moment in zoo.ZOO[name].moments():
        values = moment.statistic(draws)
        error = (values.mean(axis=0) - moment.mean) / moment.std
        np.testing.assert_allclose(error, 0.0, atol=mean_tolerance, err_msg=moment.name)
        ratio = values.std(axis=0) / moment.std
        np.testing.assert_allclose(ratio, 1.0, atol=sd_tolerance, err_msg=moment.name)


class Run:
    """An engine that has met its arguments, with what it has done so far as NumPy arrays.

    Parameters
    ----------
    backend : backend
    name : str
        Public name of the engine.
    model, *options, **named
        What the engine is made of.
    args, kwargs
        Arguments of the model.
    start : array, optional
        Particles (P, D) to begin with.
    """

    def __init__(
        self,
        backend: Any,
        name: str,
        model: Any,
        *options: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: Any = None,
        seed: int = 0,
        **named: Any,
    ) -> None:
        self.verbs = Verbs(backend, args, **(kwargs or {}))
        self.backend, self.args, self.kwargs = backend, args, self.verbs.kwargs
        self.is_pyro = backend.is_pyro
        self._made = name, model, options, named
        seeds = {"seed": seed} if self.is_pyro else {}
        self.engine = getattr(backend.public, name)(model, *options, **seeds, **named)
        self.state = self.verbs.start(self.engine, seed)
        self._losses: Any = np.zeros(0)
        self._info: dict[str, Any] = {}
        if start is not None:
            self._begin_at(backend.array(start))

    def _begin_at(self, start: Any) -> None:
        engine = self.engine
        if self.is_pyro:
            engine._state.particles.detach().copy_(start)
            if getattr(engine._state, "moved", None) is not None:
                engine._state.moved.detach().copy_(engine.plan.others.part(start))
            return
        algorithm = self.state.algorithm
        if hasattr(algorithm, "particles"):
            algorithm = algorithm._replace(particles=start)
            start = engine.plan.others.part(start)
        if engine.optim is not None:
            algorithm = algorithm._replace(optimizer=engine.optim.init(start))
        self.state = self.state._replace(algorithm=algorithm)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """A method of the engine, of the present state."""
        state = () if self.is_pyro else (self.state,)
        return getattr(self.engine, name)(*state, *args, **options)

    @property
    def particles(self) -> np.ndarray:
        """Particles now, (P, D)."""
        found = self.engine.particles if self.is_pyro else self.engine.particles(self.state)
        return self.backend.numpy(found).copy()

    def score(self, particles: np.ndarray, indices: Any = None) -> np.ndarray:
        """Scores of particles on all rows, or on some."""
        target, data = self.engine.target, self.engine.data
        rows = () if indices is None else (indices,)
        return self.backend.numpy(target.score(self.backend.array(particles), data, *rows).score)

    def step(self, *args: Any) -> float:
        """One step with these arguments in place of the first; its loss."""
        self.state, loss = self.verbs.step(self.engine, self.state, *args)
        return float(loss)

    def run(self, steps: int, **options: Any) -> Run:
        """Further steps."""
        self.state, done = self.verbs.run(self.engine, steps, self.state, **options)
        if not self.is_pyro:
            self._losses = np.append(self._losses, done.losses)
            for name, values in done.info.items():
                self._info[name] = np.append(self._info.get(name, np.zeros(0)), values)
        return self

    @property
    def losses(self) -> np.ndarray:
        """Losses of the runs so far."""
        return np.asarray(self.engine.losses) if self.is_pyro else self._losses

    def info(self, name: str) -> np.ndarray:
        """A figure of each step of the runs so far."""
        return np.asarray(self.engine.history[name]) if self.is_pyro else self._info[name]

    @property
    def skipped(self) -> int:
        """Steps that were not finite."""
        return self.verbs.skipped(self.engine, self.state)

    def samples(self, number: int | None = None) -> dict[str, np.ndarray]:
        """Draws by site."""
        return self.verbs.samples(self.engine, self.state, number)

    def load_from(self, other: Run, path: Any) -> Run:
        """Go on from the saved state of another run."""
        self.verbs.save(other.engine, other.state, path)
        self.state = self.verbs.load(self.engine, path)
        return self

    def saved_and_loaded(self, path: Any, **other: Any) -> Run:
        """This run by another engine, of the same options but those given, from a saved state."""
        name, model, options, named = self._made
        given = {"args": self.args, "kwargs": self.kwargs, "seed": 1, **named, **other}
        return Run(self.backend, name, model, *options, **given).load_from(self, path)
