"""Where engines of both packages start: by their own search, by what they are given, or as the
host does.

The posterior is Normal in unconstrained coordinates, far from the origin and wide: the first
coordinate has mean 41,000 and standard deviation 1,500, the second, the log of a scale, 7 and 0.5.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppl_ext.start.given as given
import ppl_ext.start.search as searching
from ppl_ext.errors import StartWarning
from ppl_ext.start.start import Mode, Start
from tests.backends import use_float64

use_float64()
pytestmark = pytest.mark.library_start

MEAN, SCALE = np.array([41_000.0, 7.0]), np.array([1_500.0, 0.5])
#: Two draws of the latent sites, and their positions.
VALUES = {"place": np.array([40_000.0, 42_000.0]), "scale": np.exp([6.5, 7.5])}
POSITIONS = np.array([[40_000.0, 6.5], [42_000.0, 7.5]])


class Program:
    """The posterior as a program, which can be pickled."""

    def __init__(self, backend: Any) -> None:
        self.host, self.dist = backend.host, backend.dist

    def __reduce__(self) -> Any:
        return program_of, (self.host.__name__,)

    def __call__(self) -> None:
        self.host.sample("place", self.dist.Normal(MEAN[0], SCALE[0]))
        self.host.sample("scale", self.dist.LogNormal(MEAN[1], SCALE[1]))


def program_of(name: str) -> Program:
    from tests.backends import backend_of

    return Program(backend_of(name))


def networks(backend: Any) -> Callable[[], None]:
    """Sites whose supports change the shape, or depend on another site."""
    host, dist = backend.host, backend.dist

    def model() -> None:
        host.sample("share", dist.Dirichlet(backend.array([3.0, 2.0, 1.0])))
        high = host.sample("high", dist.Gamma(3.0, 1.0))
        host.sample("below", dist.Uniform(0.0, high))

    return model


def began(backend: Any, engine: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
    """The state of an engine that has met its model; of Pyro's the engine."""
    if backend.is_pyro:
        engine.setup(*args, **options)
        return engine
    return engine.init(backend.key(seed), *args, **options)


def particles(backend: Any, engine: Any, **options: Any) -> np.ndarray:
    """First particles (P, D) of an engine."""
    state = began(backend, engine, **options)
    found = engine.particles if backend.is_pyro else engine.particles(state)
    return backend.numpy(found)


def moments(backend: Any, engine: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of an engine's guide at the start."""
    state = began(backend, engine, **options)
    parameters = engine.parameters if backend.is_pyro else state.algorithm.parameters
    found = engine.density.moments(parameters)
    return backend.numpy(found.mean), backend.numpy(found.scale)


def svgd(backend: Any, number: int, model: Any = None, **options: Any) -> Any:
    seeds = {"seed": 0} if backend.is_pyro else {}
    made = Program(backend) if model is None else model
    adam = backend.adam(0.01)
    return backend.public.SVGD(made, adam, num_particles=number, **seeds, **options)


def proximal(backend: Any, guide: str = "AutoMultivariateNormal", **options: Any) -> Any:
    model, seeds = Program(backend), {"seed": 0} if backend.is_pyro else {}
    made = getattr(backend.autoguide, guide)(model)
    return backend.public.ProximalScoreVI(model, made, **seeds, **options)


# Relative to a standard deviation; 64 draws tell a mean to 0.125 and a deviation to 9 %.
ENGINES = {
    "SVGD": (20, {"num_particles": 64}),
    "SVN": (3, {"num_particles": 64}),
    "LaplaceGGN": (20, {}),
    "ProximalScoreVI": (20, {}),
    "GSM": (20, {}),
    "BaM": (20, {}),
    "FisherVI": (20, {}),
}


@pytest.mark.parametrize("name", ENGINES)
def test_engines_land_on_posteriors_that_are_far_and_wide(backend: Any, name: str) -> None:
    steps, named = ENGINES[name]
    options: list[Any] = []
    if name in ("ProximalScoreVI", "FisherVI"):
        options.append(backend.autoguide.AutoMultivariateNormal)
    if name in ("SVGD", "LaplaceGGN"):
        options.append(backend.adam(0.01))
    found = backend.fit(name, Program(backend), *options, steps=steps, **named)
    assert found.engine.start is not None and found.engine.start.evaluations < 300
    z = np.stack([found.samples["place"], np.log(found.samples["scale"])], -1)
    assert (np.abs(z.mean(0) - MEAN) < 0.5 * SCALE).all()
    np.testing.assert_allclose(z.std(0), SCALE, rtol=0.35)


def test_the_hosts_start_is_far_away(backend: Any) -> None:
    for engine, options in (
        (svgd(backend, 8), {"start": "host"}),
        (svgd(backend, 8, init_strategy=strategy(backend)), {}),
    ):
        found = particles(backend, engine, **options)
        assert engine.start is None
        assert np.abs(found[:, 0]).max() < 3.0


def strategy(backend: Any) -> Any:
    if backend.is_pyro:
        return backend.autoguide.initialization.init_to_uniform
    from numpyro.infer import init_to_uniform

    return init_to_uniform


def test_a_search_may_begin_by_the_strategy(backend: Any) -> None:
    engine = svgd(backend, 1, init_strategy=strategy(backend))
    np.testing.assert_allclose(particles(backend, engine, start="search")[0], MEAN, atol=1.0)


def test_starts_are_honoured(backend: Any) -> None:
    root = np.array([[2.0, 0.0], [1.0, 3.0]])
    one, two = Mode(POSITIONS[0], root, np.log(0.75), 0.0), Mode(POSITIONS[1], root, 0.0, 0.0)
    start = Start((two, one), 17)
    found = particles(backend, svgd(backend, 700), start=start)
    far = found[:, 0] > 41_000.0
    assert far.sum() == 400  # in proportion to the masses, 4 : 3
    for chosen, mode in ((far, two), (~far, one)):
        white = np.linalg.solve(root, (found[chosen] - mode.mean).T)
        assert np.abs(white.mean(1)).max() < 5.0 / np.sqrt(300)
        np.testing.assert_allclose(np.cov(white), np.eye(2), atol=0.35)
    np.testing.assert_array_equal(
        particles(backend, svgd(backend, 1), start=start)[0], POSITIONS[1]
    )
    mean, scale = moments(backend, proximal(backend), start=start)
    np.testing.assert_allclose(mean, POSITIONS[1])
    np.testing.assert_allclose(scale, root, rtol=1e-6, atol=1e-9)
    mean, scale = moments(backend, proximal(backend, initial_scale=0.3), start=start)
    np.testing.assert_allclose(mean, POSITIONS[1])
    np.testing.assert_allclose(scale, 0.3 * np.eye(2), rtol=1e-6, atol=1e-9)


def test_a_point_is_given_by_constrained_values(backend: Any) -> None:
    point = {"place": 40_000.0, "scale": np.exp(6.5), "another": 3.0}
    mean, scale = moments(backend, proximal(backend), start=point)
    np.testing.assert_allclose(mean, POSITIONS[0])
    # The density's own scales at that point.
    np.testing.assert_allclose(scale, np.diag(SCALE), rtol=1e-3, atol=1e-3)
    engine = svgd(backend, 1, networks(backend))
    values = {"share": np.array([0.2, 0.3, 0.5]), "high": 4.0, "below": 1.0}
    first = particles(backend, engine, start=values)
    data = engine.target.bind()
    found = engine.target.constrain(backend.array(first), data)
    for name, value in values.items():
        np.testing.assert_allclose(backend.numpy(found[name])[0], value, rtol=1e-6)


def test_draws_are_first_particles_or_moments(backend: Any) -> None:
    samples = SimpleNamespace(get_samples=lambda: VALUES)
    for start in (VALUES, backend.arrays(VALUES), samples):
        found = particles(backend, svgd(backend, 2), start=start)
        np.testing.assert_allclose(found, POSITIONS)
    found = particles(backend, svgd(backend, 3), start=VALUES)
    np.testing.assert_allclose(found[:2], POSITIONS)
    draws = np.random.default_rng(0).normal(size=(500, 2)) * SCALE + MEAN
    draws[:, 1] += (draws[:, 0] - MEAN[0]) / SCALE[0]
    many = {"place": draws[:, 0], "scale": np.exp(draws[:, 1])}
    mean, scale = moments(backend, proximal(backend), start=many)
    np.testing.assert_allclose(mean, draws.mean(0))
    np.testing.assert_allclose(scale @ scale.T, np.cov(draws.T), rtol=1e-6)


def fitted(backend: Any, name: str, loc: np.ndarray, scale: np.ndarray) -> Any:
    """A guide with these parameters, as it is given for a start."""
    model = Program(backend)
    guide = getattr(backend.autoguide, name)(model)
    if backend.is_pyro:
        guide()
        if name == "AutoNormal":
            for number, site in enumerate(("place", "scale")):
                getattr(guide.locs, site).data.fill_(loc[number])
                setattr(guide.scales, site, backend.array(scale[number]))
        else:
            guide.loc.data.copy_(backend.array(loc))
            guide.scale = backend.array(scale)
        return guide
    import jax
    from numpyro.infer import SVI, Trace_ELBO

    run = SVI(model, guide, backend.adam(0.01), Trace_ELBO())
    jax.jit(lambda key: run.get_params(run.init(key)))(backend.key())
    if name == "AutoNormal":
        sites = [("place", 0), ("scale", 1)]
        params = {f"{site}_auto_loc": backend.array(loc[i]) for site, i in sites}
        params |= {f"{site}_auto_scale": backend.array(scale[i]) for site, i in sites}
    else:
        params = {"auto_loc": backend.array(loc), "auto_scale": backend.array(scale)}
    return guide, params


def test_guides_of_the_host_are_starts(backend: Any) -> None:
    scale = np.array([20.0, 0.1])
    start = fitted(backend, "AutoDiagonalNormal", POSITIONS[0], scale)
    mean, root = moments(backend, proximal(backend), start=start)
    np.testing.assert_allclose(mean, POSITIONS[0])
    np.testing.assert_allclose(root, np.diag(scale), rtol=1e-6, atol=1e-9)
    # One without a flat density, by 256 draws.
    start = fitted(backend, "AutoNormal", POSITIONS[0], scale)
    mean, found = moments(backend, proximal(backend, "AutoDiagonalNormal"), start=start)
    assert (np.abs(mean - POSITIONS[0]) < 5.0 * scale / 16.0).all()
    np.testing.assert_allclose(found, scale, rtol=0.25)


def test_guides_that_were_made_to_start_elsewhere_do(backend: Any) -> None:
    model, kind = Program(backend), backend.autoguide.AutoDiagonalNormal
    seeds = {"seed": 0} if backend.is_pyro else {}
    for options in ({"init_loc_fn": strategy(backend)}, {"init_scale": 0.01}):
        if backend.is_pyro or "init_scale" in options:
            options |= {"init_scale": 0.01}
        if not backend.is_pyro and "init_loc_fn" in options:
            from numpyro.infer import init_to_feasible

            options["init_loc_fn"] = init_to_feasible
        engine = backend.public.ProximalScoreVI(model, kind(model, **options), **seeds)
        moments(backend, engine)
        assert engine.start is None


def test_a_guide_that_was_fitted_goes_on_from_there() -> None:
    from tests.backends import backend_of

    backend = backend_of("pyro")
    guide = fitted(backend, "AutoDiagonalNormal", POSITIONS[0], SCALE)
    engine = backend.public.ProximalScoreVI(Program(backend), guide, seed=0)
    mean, scale = moments(backend, engine)
    np.testing.assert_allclose(mean, POSITIONS[0])
    np.testing.assert_allclose(scale, SCALE)


def test_a_long_point_is_taken_as_it_is(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "MOST_LOCAL", 1)
    start = {"place": 3.0, "scale": 2.0}
    engine = proximal(backend, "AutoDiagonalNormal")
    mean, scale = moments(backend, engine, start=start)
    np.testing.assert_allclose(mean, [3.0, np.log(2.0)], rtol=1e-6)
    np.testing.assert_allclose(scale, 0.1, rtol=1e-6)
    assert engine.start.evaluations == 0
    # A longer one still is as long as a network's weights, and not kept.
    monkeypatch.setattr("ppl_ext.engines.base.LONGEST_START", 1)
    engine = proximal(backend, "AutoDiagonalNormal")
    assert moments(backend, engine, start=start)[0][0] == 3.0
    assert engine.start is None


def test_ensembles_and_long_vectors_start_as_the_host_does(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = backend.public.DeepEnsemble(Program(backend), backend.adam(0.01), num_particles=4)
    assert np.abs(particles(backend, ensemble)[:, 0]).max() < 3.0
    ensemble = backend.public.DeepEnsemble(Program(backend), backend.adam(0.01), num_particles=4)
    assert np.abs(particles(backend, ensemble, start="search")[:, 0]).min() > 30_000.0
    with monkeypatch.context() as patch:
        patch.setattr(searching, "MOST_SEARCHED", 1)
        engine = svgd(backend, 4)
        particles(backend, engine)
        assert engine.start is None
    with monkeypatch.context() as patch:
        patch.setattr(searching, "MOST_FULL", 1)
        engine = svgd(backend, 4)
        particles(backend, engine)
        assert engine.start.factor.shape == (2,)
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    engine = svgd(backend, 4)
    with pytest.warns(StartWarning, match="ended after 0 s"):
        assert np.abs(particles(backend, engine)[:, 0]).max() < 3.0


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (3.0, "Expected start to be 'search', 'host'"),
        ("modes", "Expected start to be 'search', 'host'"),
        ({"place": 1.0}, r"found none of \['scale'\]"),
        ({"place": 1.0, "scale": -1.0}, r"inside the supports .* found others of \['scale'\]"),
        ({"place": np.nan, "scale": 1.0}, r"found others of \['place'\]"),
        ({"place": np.ones(3), "scale": 1.0}, "or draws, with one axis more in front"),
        ({"place": np.ones(3), "scale": np.ones(2)}, "or draws, with one axis more in front"),
        (Start((Mode(np.zeros(3), np.eye(3), 0.0, 0.0),), 0), "have 2 unconstrained numbers"),
        (SimpleNamespace(get_samples=lambda state: {}), "wants arguments"),
        (SimpleNamespace(get_samples=lambda: 3), "to give a dict"),
    ],
)
def test_bad_starts_are_refused(backend: Any, start: Any, match: str) -> None:
    engine = svgd(backend, 2)
    with pytest.raises(backend.public.ArgumentError, match=match):
        began(backend, engine, start=start)
    # Nothing was begun.
    np.testing.assert_allclose(particles(backend, engine, start=VALUES), POSITIONS)


def test_a_start_belongs_to_the_first_run(backend: Any, tmp_path: Path) -> None:
    public, keys = backend.public, () if backend.is_pyro else (backend.key(),)
    engine = svgd(backend, 2)
    run = engine.run(*keys, 2, progress_bar=False, start=VALUES)
    state = {} if backend.is_pyro else {"init_state": run.state}
    for each in [engine, copy.deepcopy(engine)] if backend.is_pyro else [engine]:
        with pytest.raises(public.ArgumentError, match="goes on from a state"):
            each.run(*keys, 1, start=VALUES, **state)
    path = tmp_path / "state"
    engine.save(path, *([] if backend.is_pyro else [run.state]))
    # Another engine takes the state over and does not search.
    other = svgd(backend, 2)
    if backend.is_pyro:
        other = pickle.loads(pickle.dumps(other))
        other.load(path)
        with pytest.raises(public.ArgumentError, match="goes on from a state"):
            other.setup(start="search")
        other.run(1, progress_bar=False)
        engine.run(1, progress_bar=False)
        found, expected = other.particles, engine.particles
    else:
        state = other.load(path)
        found = other.run(*keys, 1, init_state=state, progress_bar=False).params["particles"]
        last = engine.run(*keys, 1, init_state=run.state, progress_bar=False)
        expected = last.params["particles"]
    np.testing.assert_array_equal(backend.numpy(found), backend.numpy(expected))
    assert other.start is None


def test_starts_are_the_same_for_a_seed(backend: Any) -> None:
    found = [particles(backend, svgd(backend, 4)) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert len(np.unique(found[0][:, 0])) == 4


def test_minibatch_programs_start_from_a_batch(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    x = backend.array(np.random.default_rng(0).normal(size=200) * 300.0 + 9_000.0)

    def model(x: Any) -> None:
        place = host.sample("place", dist.Normal(0.0, 1e5))
        with host.plate("rows", 200, subsample_size=min(len(x), 50)) as rows:
            host.sample("x", dist.Normal(place, 300.0), obs=x[rows] if len(x) == 200 else x)

    deviation = 300.0 / np.sqrt(200)
    for data in (x, x[:50]):
        engine = svgd(backend, 1, model)
        state = began(backend, engine, data)
        found = engine.particles if backend.is_pyro else engine.particles(state)
        centre = backend.numpy(data).mean()
        np.testing.assert_allclose(backend.numpy(found)[0], centre, atol=0.1 * deviation)
        np.testing.assert_allclose(engine.start.factor, deviation, rtol=1e-2)


def test_traced_starts_are_the_hosts() -> None:
    import jax

    from tests.backends import backend_of

    backend = backend_of("numpyro")
    engine = svgd(backend, 4)
    assert np.abs(particles(backend, engine)[:, 0]).min() > 30_000.0
    state = jax.jit(engine.init)(backend.key())
    assert np.abs(engine.particles(state)[:, 0]).max() < 3.0
    with pytest.raises(backend.public.ArgumentError, match="outside of jax.jit"):
        jax.jit(lambda key: engine.init(key, start=VALUES))(backend.key())
