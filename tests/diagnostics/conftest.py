"""What the tests of diagnostics are given: models and fits in either host, under one name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import arviz_support
from tests.backends import from_zoo
from tests.diagnostics_support import N
from tests.engine_support import Verbs


class Host:
    """Models written once, and guides and engines put to given moments.

    What :meth:`guide` and :meth:`engine` return are the first arguments of the diagnostics.
    """

    def __init__(self, backend: Any) -> None:
        self.backend, self.public = backend, backend.public
        self.host, self.dist, self.handlers = backend.host, backend.dist, backend.handlers
        self.autoguide, self.guides = backend.autoguide, backend.room("guides")

    def seed(self, seed: int) -> dict[str, Any]:
        """The option that makes draws repeat."""
        if self.backend.name == "pyro":
            return {"seed": seed}
        return {"rng_key": self.backend.key(seed)}

    def conjugate(self, y: Any, batch: int | None = None) -> None:
        mu = self.host.sample("mu", self.dist.Normal(0.0, 3.0))
        with self.host.plate("N", len(y), subsample_size=batch) as rows:
            self.host.sample("y", self.dist.Normal(mu, 2.0), obs=y[rows])

    def in_batches(self, y: Any) -> None:
        mu = self.host.sample("mu", self.dist.Normal(0.0, 3.0))
        with self.host.plate("N", N, subsample_size=len(y)):
            self.host.sample("y", self.dist.Normal(mu, 2.0), obs=y)

    def counts(self, y: Any) -> None:
        rate = self.host.sample("rate", self.dist.Gamma(2.0, 1.0))
        with self.host.plate("N", len(y)):
            self.host.sample("y", self.dist.Poisson(rate), obs=y)

    def heavy(self) -> None:
        zeros = self.backend.array(np.zeros(2))
        self.host.sample("z", self.dist.StudentT(3.0, zeros, 1.0).to_event(1))

    def conjugate_pair(self) -> None:
        ones = self.backend.array(np.ones(2))
        self.host.sample("z", self.dist.Normal(ones, 2.0).to_event(1))

    def positive(self) -> None:
        """A Normal of which one half has density zero."""
        z = self.host.sample("z", self.dist.Normal(self.backend.array([0.0]), 1.0).to_event(1))
        size = self.backend.xp.where(z > 0, 0.0, -np.inf)
        self.host.factor("positive", size.sum())

    def guide(self, model: Any, mean: Any, scale: Any, *args: Any) -> tuple[Any, ...]:
        """A guide of a model with these moments, and in NumPyro its parameters."""
        guide = self.autoguide.AutoMultivariateNormal(model)
        keys = () if self.backend.name == "pyro" else (self.backend.key(),)
        density = self.guides.flat_density(guide, *keys, args)
        moments = self.guides.Moments(self.backend.array(mean), self.backend.array(scale))
        written = density.write_back(density.set_moments(density.initial_parameters(), moments))
        return (guide,) if self.backend.name == "pyro" else (guide, written)

    def engine(
        self, model: Any, mean: Any, scale: Any, *args: Any, **options: Any
    ) -> tuple[Any, ...]:
        """An engine whose guide has these moments, and in NumPyro its state."""
        guide = self.guide(model, mean, scale, *args)
        if self.backend.name == "pyro":
            engine = self.public.ProximalScoreVI(model, *guide, seed=0, **options)
            engine.setup(*args)
            return (engine,)
        engine = self.public.ProximalScoreVI(model, guide[0], **options)
        state = engine.init(self.backend.key(), *args)
        parameters = engine.density.from_host(guide[1])
        return engine, state._replace(algorithm=state.algorithm._replace(parameters=parameters))

    def fixed(self, model: Any, args: tuple[Any, ...], **options: Any) -> FixedEngine:
        """An engine whose particles are given."""
        return FixedEngine(self.backend, model, args, **options)

    def converted(self, name: str, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
        """The zoo's model as an ArviZ object, and its draws."""
        model, args, of_model = from_zoo(self.backend, name)
        engine = self.fixed(model, args, **of_model)
        return engine.to_arviz(*args, **of_model, **options), engine.draws

    def conjugate_guide(self, y: Any, mean: float, scale: float) -> tuple[Any, ...]:
        return self.guide(self.conjugate, [mean], [[scale]], y)

    def conjugate_engine(
        self, mean: float, scale: float, *args: Any, **options: Any
    ) -> tuple[Any, ...]:
        return self.engine(self.conjugate, [mean], [[scale]], *args, **options)

    def particles(
        self, num: int, *args: Any, steps: int = 0, model: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """SVGD of the conjugate or another model, set up or run, and in NumPyro its result."""
        seeds = {"seed": 0} if self.backend.is_pyro else {}
        model, adam = model or self.conjugate, self.backend.adam(0.1)
        engine = self.public.SVGD(model, adam, num_particles=num, **seeds)
        verbs = Verbs(self.backend, args, **kwargs)
        if self.backend.is_pyro and not steps:
            verbs.start(engine)
            return (engine,)
        _, run = verbs.run(engine, steps)
        return (engine,) if self.backend.is_pyro else (engine, run)

    def draws(self, fit: tuple[Any, ...]) -> dict[str, np.ndarray]:
        """What an engine draws, by site."""
        found = fit[0].get_samples(*(result.state for result in fit[1:]))
        return {name: self.backend.numpy(value) for name, value in found.items()}

    def positions(self, fit: tuple[Any, ...]) -> np.ndarray:
        """The particles of an engine."""
        engine = fit[0]
        found = engine.particles if len(fit) == 1 else engine.particles(fit[1].state)
        return self.backend.numpy(found).copy()


class FixedEngine:
    """An engine whose particles are given; in NumPyro they are its state."""

    num_particles = 20

    def __init__(
        self, backend: Any, model: Any, args: tuple[Any, ...], positions: Any = None, **options: Any
    ) -> None:
        self._backend = backend
        self.target, self.data = backend.target(model, args, options)
        if positions is None:
            positions = arviz_support.positions(self.target.dim, self.num_particles)
        self.positions = backend.array(positions)

    def get_samples(
        self, *state: Any, rng_key: Any = None, num_samples: int | None = None
    ) -> dict[str, Any]:
        # Pyro gives the number alone.
        number = state[0] if state and self._backend.name == "pyro" else num_samples
        return self.target.constrain(self.positions[:number], self.data)

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """All draws by site."""
        found = self.target.constrain(self.positions, self.data)
        return {name: self._backend.numpy(value) for name, value in found.items()}

    def to_arviz(self, *args: Any, **options: Any) -> Any:
        """The engine as an ArviZ object."""
        state = () if self._backend.name == "pyro" else (self.positions,)
        return self._backend.public.to_arviz(self, *state, *args, **options)


class StatisticsEngine(FixedEngine):
    """An engine with everything that the conversion looks for."""

    def sample_statistics(self, *state_and_positions: Any) -> dict[str, Any]:
        return {"log_q": -0.5 * (state_and_positions[-1] ** 2).sum(-1)}

    def arviz_attributes(self) -> dict[str, Any]:
        return {"sample_kind": "independent draws", "converged": True, "rank": 2}


@pytest.fixture
def host(backend: Any) -> Host:
    """Models and fits of each package."""
    return Host(backend)
