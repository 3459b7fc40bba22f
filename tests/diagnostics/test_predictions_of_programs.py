"""New observations of every program of the zoo have the distribution of the host's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests import arviz_support
from tests.backends import PACKAGES, backend_of, from_zoo, use_float64
from tests.models import zoo

use_float64()

#: New observations at one draw.
NUMBER = 300
#: Programs that torch cannot run at many draws at once: it has no rule for recurrent layers.
DRAW_BY_DRAW = {"recurrent"}
#: Programs of latents by row that take some of the rows: the hosts refuse draws of all rows.
LOCAL = {"local_latents", "local_positive_latents"}
PROGRAMS = [
    (package, name) for package in PACKAGES for name in zoo.names(package) if name not in LOCAL
]


def draws_of(backend: Any, name: str, positions: np.ndarray) -> tuple[Any, ...]:
    model, args, kwargs = from_zoo(backend, name)
    target, data = backend.target(model, args, kwargs)
    found = target.constrain(backend.array(positions(target.dim)), data)
    return model, args, kwargs, target, data, found


def free(backend: Any, model: Any) -> Any:
    """The program without its observations.

    Pyro's handler takes deterministic sites for observations as well, and draws those that stand in
    a plate anew for each of its rows.
    """
    if not backend.is_pyro:
        return backend.handlers.uncondition(model)

    class Uncondition(backend.handlers.uncondition_messenger.UnconditionMessenger):
        def _pyro_sample(self, msg: Any) -> None:
            if not msg["infer"].get("_deterministic"):
                super()._pyro_sample(msg)

    return Uncondition()(model)


def of_host(backend: Any, model: Any, args: Any, kwargs: Any, draws: Any) -> dict[str, np.ndarray]:
    """What the host's ``Predictive`` draws of a program whose observations are taken away."""
    predictive = backend.host.infer.Predictive(free(backend, model), posterior_samples=dict(draws))
    keys = () if backend.is_pyro else (backend.key(5),)
    if backend.is_pyro:
        backend.host.set_rng_seed(5)
    found = predictive(*keys, *args, **kwargs)
    return {name: backend.numpy(value) for name, value in found.items()}


def predicted(backend: Any, model: Any, draws: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = backend.room("diagnostics").predictive.predictions(
        model, draws, args, kwargs, 3
    )
    return found


@pytest.mark.filterwarnings("ignore:The model is run draw by draw")
@pytest.mark.parametrize(("package", "name"), PROGRAMS)
def test_new_observations_are_distributed_as_the_hosts(package: str, name: str) -> None:
    backend = backend_of(package)
    at_one = np.repeat(arviz_support.positions(400, 1, 3), NUMBER, axis=0)
    model, args, kwargs, target, _, draws = draws_of(backend, name, lambda dim: at_one[:, :dim])
    own = predicted(backend, model, draws, args, kwargs)
    theirs = of_host(backend, model, args, kwargs, draws) if own else {}
    assert set(target.observed_sites) <= own.keys() and own.keys() <= theirs.keys()
    # Factors are sites of the hosts, without values.
    assert all(theirs[name].size == 0 for name in theirs.keys() - own.keys())
    for site, values in own.items():
        other = theirs[site]
        if target.plates:
            # The host draws some of the rows each time; ours are all of them.
            values, other = (each.reshape(NUMBER, -1).mean(1) for each in (values, other))
        other = other.reshape(values.shape)
        spread = np.sqrt((values.var(0) + other.var(0)) / NUMBER)
        # Of some thousand numbers in all programs together none is off by five errors.
        assert (abs(values.mean(0) - other.mean(0)) <= 5.0 * spread + 1e-9).all(), site


@pytest.mark.parametrize("name", zoo.names("pyro"))
def test_many_draws_at_once_are_what_each_is(
    backend: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.is_pyro:
        pytest.skip("NumPyro compiles one program for all draws")
    replays = backend.room("density.replay")
    positions = arviz_support.positions
    *_, target, data, draws = draws_of(backend, name, lambda dim: positions(dim, 7))
    groups = {"log_likelihood", "log_prior", "predictive", "deterministic"}
    fallen: list[str] = []
    monkeypatch.setattr(replays, "_tell_of_time", lambda *told: fallen.append(str(told[1:])))
    together = replays.replay(target, draws, data, groups=groups)
    assert bool(fallen) == (name in DRAW_BY_DRAW), fallen
    monkeypatch.setattr(replays, "_put_together", lambda _, values, groups, *more: (groups, ""))
    alone = replays.replay(target, draws, data, groups=groups)
    kinds = ["log_likelihood", "log_prior"]
    kinds += [] if target.bound.enumerated else ["deterministic"]
    for kind in kinds:
        one, many = getattr(alone, kind), getattr(together, kind)
        assert one.keys() == many.keys()
        for site, values in one.items():
            np.testing.assert_allclose(many[site], values, rtol=1e-9, atol=1e-9)
    for site, values in alone.predictive.items():
        assert together.predictive[site].shape == values.shape
        assert together.predictive[site].dtype == values.dtype


@pytest.mark.filterwarnings("default")
def test_a_model_that_branches_on_values_is_run_draw_by_draw(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.is_pyro:
        pytest.skip("a program of JAX cannot branch on values")
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 1.0))
        scale = 1.0 if float(mean) > 0.0 else 0.1
        host.deterministic("scale", backend.array(scale))
        host.sample("y", dist.Normal(mean, scale), obs=y)

    draws = {"mean": backend.array(np.array([-1.0, 2.0, 0.5]))}
    monkeypatch.setattr("pyro_ext.density.replay._SLOW", 0.0)
    with pytest.warns(backend.public.EvaluationWarning, match="draw by draw.*num_samples="):
        found = predicted(backend, model, draws, (backend.array(np.array(0.0)),), {})
    assert found["y"].shape == (3,)


def with_values(backend: Any) -> Any:
    """A program with deterministic sites of latents, of rows, of what is observed and of states."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        host.deterministic("twice", 2.0 * slope)
        with host.plate("rows", len(x)):
            state = host.sample("state", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            mean = host.deterministic("mu", slope * x + 3.0 * state)
            new = host.sample("y", dist.Normal(mean, 0.1), obs=y)
            host.deterministic("excess", new - mean)
        host.deterministic("last", slope + x.sum())
        host.deterministic("three", backend.array(3.0) if backend.is_pyro else 3)

    return model


@pytest.mark.parametrize("is_seen", [True, False])
def test_deterministic_sites_are_those_of_the_hosts(backend: Any, is_seen: bool) -> None:
    model, number = with_values(backend), 2000
    x = np.array([1.0, -2.0, 0.5])
    slope = np.linspace(0.5, 1.5, number)
    args = (backend.array(x), backend.array(np.zeros(3)) if is_seen else None)
    draws = {"slope": backend.array(slope)}
    own = predicted(backend, model, draws, args, {})
    theirs = of_host(backend, model, args[:1], {}, draws)
    assert list(own) == ["twice", "state", "mu", "y", "excess", "last", "three"]
    assert own.keys() == theirs.keys() - {"slope"}
    for name, values in own.items():
        other = theirs[name].reshape(values.shape)
        # Of fifteen numbers, each of 2,000 runs.
        error = np.sqrt((values.var(0) + other.var(0)) / number)
        assert (abs(values.mean(0) - other.mean(0)) <= 4.5 * error + 1e-12).all(), name
        assert np.allclose(values.std(0), other.std(0), rtol=4.5 / np.sqrt(number)), name
    # One run is behind all values of a draw, as of the host.
    for found in (own, theirs):
        state, mean, y = (found[name].reshape(number, 3) for name in ("state", "mu", "y"))
        np.testing.assert_allclose(mean, slope[:, None] * x + 3.0 * state, rtol=1e-9)
        np.testing.assert_allclose(found["excess"].reshape(number, 3), y - mean, atol=1e-9)
    np.testing.assert_allclose(own["twice"], 2.0 * slope, rtol=1e-12)
    np.testing.assert_allclose(own["last"], slope - 0.5, rtol=1e-12)


def test_values_of_rows_that_come_in_chunks(backend: Any) -> None:
    """What is made of all rows is made of the rows that are returned beside it."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(x), subsample_size=2) as rows:
            mean = host.deterministic("mu", slope * x[rows])
            new = host.sample("y", dist.Normal(mean, 0.1), obs=None if y is None else y[rows])
        host.deterministic("largest", new.max())

    x, slope = np.arange(5.0), np.array([1.0, -1.0, 0.0])
    args = (backend.array(x), backend.array(np.zeros(5)))
    draws = {"slope": backend.array(slope)}
    target, data = backend.target(model, args, {})
    replay = backend.room("density.replay").replay
    groups = ("predictive", "alongside")
    found = replay(target, draws, data, groups=groups, data_chunk=2)
    np.testing.assert_allclose(found.alongside["mu"], slope[:, None] * x)
    np.testing.assert_allclose(found.alongside["largest"], found.predictive["y"].max(1))
    assert (abs(found.predictive["y"] - slope[:, None] * x) < 0.6).all()


def in_a_series(backend: Any) -> Any:
    """A program in which an observation is the mean of the next, in a ``scan``."""
    from numpyro.contrib.control_flow import scan

    def model(y: Any) -> None:
        slope = backend.host.sample("slope", backend.dist.Normal(0.0, 1.0))

        def step(before: Any, observed: Any) -> Any:
            now = backend.host.sample("y", backend.dist.Normal(slope * before, 0.1), obs=observed)
            return now, None

        scan(step, 1.0, y, length=6)

    return model


def by_states(backend: Any) -> Any:
    """A program in which each row's state, one of two, is behind two observations."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        apart = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", 6):
            state = host.sample("state", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            for name in ("y", "other"):
                host.sample(name, dist.Normal(apart * state, 0.1), obs=y)

    return model


# Pyro has no scan.
@pytest.mark.parametrize(
    ("backend", "program"),
    [("numpyro", in_a_series), ("numpyro", by_states), ("pyro", by_states)],
    indirect=["backend"],
)
@pytest.mark.parametrize("is_seen", [True, False])
def test_new_observations_are_what_later_ones_are_made_of(
    backend: Any, program: Any, is_seen: bool
) -> None:
    model = program(backend)
    number, slope = 4000, 2.0 if program is by_states else 0.9
    draws = {"slope": backend.array(np.full(number, slope))}
    y = backend.array(np.zeros(6))
    if is_seen:
        target, data = backend.target(model, (y,), {})
        replay = backend.room("density.replay").replay
        y_new = replay(target, draws, data, groups=("predictive",)).predictive["y"]
    else:
        y_new = predicted(backend, model, draws, (None,), {})["y"]
    assert y_new.shape == (number, 6)
    if program is by_states:
        mean, covariance = np.ones(6), (1.0 + 0.01) * np.eye(6)
    else:
        steps = np.arange(1, 7)
        mean = slope**steps
        powers = np.tril(slope ** (steps[:, None] - steps[None, :]).astype(float))
        covariance = 0.01 * powers @ powers.T
    error = np.sqrt(np.diag(covariance) / number)
    assert (abs(y_new.mean(0) - mean) < 5.0 * error).all()
    np.testing.assert_allclose(np.cov(y_new.T), covariance, atol=0.09 * covariance.max())


def test_what_a_program_conditions_on_itself_stays_where_observations_are_left_out(
    backend: Any,
) -> None:
    """As with the host: new observations are of the value that the program gives."""
    host, dist = backend.host, backend.dist

    def inner(y: Any = None) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        b = host.sample("b", dist.Normal(a, 1.0))
        with host.plate("rows", 20):
            host.sample("y", dist.Normal(a + b, 0.1), obs=y)

    given = {"b": backend.array(np.array(1.5, np.float32))}
    handlers = host.poutine if backend.is_pyro else host.handlers
    model = handlers.condition(inner, data=given)
    draws = {"a": backend.array(np.linspace(-0.1, 0.1, 50).astype(np.float32))}
    observed = backend.array(np.full(20, 1.5, np.float32))
    hidden = predicted(backend, model, draws, (None,), {})
    assert (abs(hidden["b"] - 1.5) < 1e-6).all()
    assert abs(hidden["y"].mean() - 1.5) < 0.02
    # With all observations there, all of them are drawn anew, each of those before it.
    every = predicted(backend, model, draws, (observed,), {})
    assert every["b"].std() > 0.5
    assert np.corrcoef(every["b"], every["y"].mean(1))[0, 1] > 0.9


def test_a_look_at_what_depends_on_what_leaves_parameters_alone() -> None:
    """Of sites without draws Pyro runs the model, which would write into the global store."""
    pyro, torch = pytest.importorskip("pyro"), pytest.importorskip("torch")
    import pyro_ext

    def model(x: Any, y: Any = None) -> None:
        weight = pyro.param("weight", torch.tensor(1.0))
        slope, more = (
            pyro.sample(name, pyro.distributions.Normal(0.0, 1.0)) for name in ("slope", "more")
        )
        with pyro.plate("rows", len(x)):
            for name in ("y", "z"):
                pyro.sample(name, pyro.distributions.Normal(weight * slope * x + more, 1.0), obs=y)

    pyro.clear_param_store()
    with pytest.raises(ArgumentError, match="Expected one site to predict"):
        pyro_ext.predictive_distribution(model, {"slope": torch.zeros(3)}, torch.ones(2))
    assert not list(pyro.get_param_store().keys())


def test_a_discrete_latent_site_is_no_observation_that_is_left_out(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any = None) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", 6):
            z = host.sample(
                "z", dist.Bernoulli(backend.array(0.5)), infer={"enumerate": "parallel"}
            )
            host.sample("y", dist.Normal(mean + 4.0 * z, 0.1), obs=y)

    draws = {"mean": backend.array(np.zeros(200, np.float32))}
    for given in (None, backend.array(np.full(6, 4.0, np.float32))):
        found = predicted(backend, model, draws, (given,), {})
        assert (abs(found["y"] - 4.0 * found["z"]) < 1.0).all()
        assert 0.3 < found["z"].mean() < 0.7


def test_observations_that_the_host_cannot_draw_are_named(backend: Any) -> None:
    """Of counts with another total in each row the hosts have densities alone."""
    host, dist = backend.host, backend.dist
    counts = backend.array(np.array([[1.0, 2.0], [4.0, 1.0]], np.float32))

    def model(y: Any = None) -> None:
        totals = backend.array(np.array([3.0, 5.0], np.float32))
        totals = totals if backend.is_pyro else totals.astype(int)
        shares = host.sample("shares", dist.Dirichlet(backend.array(np.ones(2, np.float32))))
        with host.plate("rows", 2):
            host.sample("y", dist.DirichletMultinomial(10.0 * shares, totals), obs=y)

    draws = {"shares": backend.array(np.full((4, 2), 0.5, np.float32))}
    with pytest.raises(ArgumentError, match="distribution of 'y' that the host can draw from"):
        predicted(backend, model, draws, (counts,), {})


def test_counts_whose_totals_are_an_argument() -> None:
    """NumPyro's draws of counts need the largest total, which their density does not."""
    backend = backend_of("numpyro")
    host, dist = backend.host, backend.dist
    totals, counts = np.array([3, 5]), np.array([[1, 2], [4, 1]])

    def model(totals: Any, y: Any = None) -> None:
        shares = host.sample("shares", dist.Dirichlet(backend.array(np.ones(2))))
        with host.plate("rows", 2):
            host.sample("y", dist.Multinomial(totals, shares), obs=y)

    draws = {"shares": backend.array(np.full((4, 2), 0.5))}
    found = predicted(backend, model, draws, (totals, counts), {})
    np.testing.assert_array_equal(found["y"].sum(-1), np.tile(totals, (4, 1)))
