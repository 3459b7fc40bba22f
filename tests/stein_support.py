"""What the tests of particle engines share: both packages' engines by the same verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
        self.backend, self.args, self.kwargs = backend, args, dict(kwargs or {})
        self.is_pyro = backend.name == "pyro"
        self._made = name, model, options, named
        seeds = {"seed": seed} if self.is_pyro else {}
        self.state: Any = None
        self.engine = getattr(backend.public, name)(model, *options, **seeds, **named)
        if self.is_pyro:
            self.engine.setup(*args, **self.kwargs)
        else:
            self.state = self.engine.init(backend.key(seed), *args, **self.kwargs)
            self._losses, self._info = np.zeros(0), {}
        if start is not None:
            self._begin_at(backend.array(start))

    def _begin_at(self, start: Any) -> None:
        engine = self.engine
        if self.is_pyro:
            engine._particles.detach().copy_(start)
            if getattr(engine, "_moved", None) is not None:
                engine._moved.detach().copy_(start[:, engine.plan.others])
            return
        algorithm = self.state.algorithm
        if hasattr(algorithm, "particles"):
            algorithm = algorithm._replace(particles=start)
            start = start[:, engine.plan.others]
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
        args = args or self.args
        if self.is_pyro:
            return float(self.engine.step(*args, **self.kwargs))
        self.state, loss = self.engine.update(self.state, *args, **self.kwargs)
        return float(loss)

    def run(self, steps: int, **options: Any) -> Run:
        """Further steps."""
        options = {"progress_bar": False, **self.kwargs, **options}
        if self.is_pyro:
            self.engine.run(steps, *self.args, **options)
            return self
        key = self.backend.key(0)
        done = self.engine.run(key, steps, *self.args, init_state=self.state, **options)
        self.state = done.state
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

    def samples(self, *options: Any) -> dict[str, np.ndarray]:
        """Draws by site."""
        engine = self.engine
        if self.is_pyro:
            found = engine.get_samples(*options)
        else:
            found = engine.get_samples(self.state, None, *options)
        return {name: self.backend.numpy(value) for name, value in found.items()}

    def saved_and_loaded(self, path: Any, **other: Any) -> Run:
        """This run by another engine, of the same options but those given, from a saved state."""
        name, model, options, named = self._made
        engine = Run(
            self.backend,
            name,
            model,
            *options,
            args=self.args,
            kwargs=self.kwargs,
            seed=1,
            **{**named, **other},
        )
        if self.is_pyro:
            self.engine.save(path)
            engine.engine.load(path)
        else:
            self.engine.save(path, self.state)
            engine.state = engine.engine.load(path, *self.args, **self.kwargs)
        return engine
