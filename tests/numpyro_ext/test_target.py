"""What only NumPyro's target has: scan, forms of arguments, constants, jit, held values."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from jax import lax, random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.module import random_nnx_module
from numpyro.infer.util import potential_energy
from scipy import special, stats

from numpyro_ext.density import Data, LogDensity, layout
from numpyro_ext.density.handlers import with_own_determinants
from numpyro_ext.start import pieces_of
from ppl_ext.errors import (
    ArgumentError,
    EvaluationWarning,
    HeldParameterWarning,
    ModelCheckError,
)

jax.config.update("jax_enable_x64", True)

KEY = random.key(0)
ROUNDING = 1e-11  # relative; sums of at most a few hundred terms in float64

Model = Callable[..., Any]


def dependent_support() -> None:
    a = numpyro.sample("a", dist.LogNormal(0.3, 0.5))
    numpyro.sample("b", dist.Uniform(0.0, a))


def scanned(y: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))

    def step(previous: jax.Array, observed: jax.Array) -> tuple[jax.Array, None]:
        x = numpyro.sample("x", dist.LogNormal(jnp.log(previous), 0.3))
        numpyro.sample("y", dist.Exponential(rate / x), obs=observed)
        return x, None

    with handlers.scale(scale=1.5):
        scan(step, jnp.array(1.0), y)


class Network(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(2, 4, rngs=rngs)
        self.outer = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer(nnx.tanh(self.inner(x)))[..., 0]


def network(x: jax.Array, y: jax.Array, batch: int | None = None) -> None:
    net = random_nnx_module("net", Network(), dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("N", len(x), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(net(x[rows]), sigma), obs=y[rows])


def local_rows(x: jax.Array, y: jax.Array, batch: int | None = None) -> None:
    """Local latents with a Jacobian, a mask, a scale, and both ways to pick rows."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    numpyro.factor("outside", -a)
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        chosen = numpyro.subsample(x, event_dim=0)
        local = numpyro.sample("local", dist.Uniform(0.0, a))
        simplex = numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
        numpyro.factor("inside", -jnp.square(y[rows]) * a)
        with handlers.mask(mask=chosen > 0), handlers.scale(scale=1.5):
            numpyro.sample("y", dist.Normal(local + simplex[:, 0] * chosen, a), obs=y[rows])


def _draws(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# Model, arguments, minibatch options.
SUBSAMPLED: dict[str, tuple[Model, tuple[Any, ...], dict[str, int]]] = {
    "network": (network, (_draws(7, 2), _draws(7)), {"batch": 3}),
    "local_rows": (local_rows, (_draws(5), _draws(5, seed=1)), {"batch": 2}),
}


def reference(
    target: LogDensity, model: Model, args: tuple[Any, ...], z: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """NumPyro's own log joint on all rows, and its gradient, at each position."""
    held = handlers.substitute(model, data=target.held)
    args = jax.tree.map(jnp.asarray, args)

    def log_joint(position: jax.Array) -> jax.Array:
        return -potential_energy(held, args, {}, target.layout.split(position))

    return jax.jit(jax.vmap(jax.value_and_grad(log_joint)))(z)


def assert_close(actual: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    tolerance = ROUNDING * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=ROUNDING, atol=tolerance)


def test_the_density_inside_scan_is_numpyros_and_its_spaces_are_inverse() -> None:
    y = np.exp(_draws(5))
    target = LogDensity(scanned, KEY, (y,))
    data = target.bind(y)
    z = random.normal(random.key(1), (3, target.dim))
    # The scale around the scan would be that of Jacobians as well.
    value, gradient = reference(target, with_own_determinants(scanned), (y,), z)
    score = target.score(z, data)
    assert_close(score.log_density(), value)
    scaled, _ = reference(target, scanned, (y,), z)
    assert_close(value + 0.5 * z[:, 1:].sum(-1), scaled)
    assert_close(score.score, gradient)
    assert_close(target.unconstrain(target.constrain(z, data), data), z)


@pytest.mark.parametrize("length", [1, 5])
def test_bounds_of_a_scan_beside_discrete_sites_are_of_each_step(length: int) -> None:
    def model(y: jax.Array) -> None:
        def step(z: jax.Array, observed: jax.Array) -> tuple[jax.Array, None]:
            z = numpyro.sample("z", dist.Bernoulli(0.2 + 0.5 * z))
            u = numpyro.sample("u", dist.Uniform(0.0, 2.0))
            numpyro.sample("y", dist.Normal(u * z, 1.0), obs=observed)
            return z, None

        scan(step, jnp.array(0), y)

    y = np.linspace(-1.0, 2.0, length)
    target = LogDensity(model, KEY, (y,))
    data = target.bind(y)
    z = random.normal(random.key(1), (3, target.dim))
    values = target.constrain(z, data)
    assert_close(values["u"], 2.0 * jax.nn.sigmoid(z))
    assert_close(target.unconstrain(values, data), z)


def test_full_sweep_is_numpyros_density_on_all_rows() -> None:
    model, args, options = SUBSAMPLED["local_rows"]
    target = LogDensity(model, KEY, args, options, data_chunk=3)
    z = random.normal(random.key(1), (3, target.dim))
    value, gradient = reference(target, model, args, z)
    score = target.full_score(z, target.bind(*args, **options))
    assert_close(score.log_density(), value)
    assert_close(score.score, gradient)


def test_unconstrain_wants_sites_in_their_shapes() -> None:
    target = LogDensity(dependent_support, KEY)
    with pytest.raises(ArgumentError, match="unconstrained shape"):
        values = {"a": jnp.ones((3, 2)), "b": jnp.ones((3, 2)) / 2}
        target.unconstrain(values, target.bind())


def test_single_batch_matches_numpyro_with_the_same_rows() -> None:
    model, args, options = SUBSAMPLED["local_rows"]
    target = LogDensity(model, KEY, args, options)
    data = target.bind(*args, **options)
    z = random.normal(random.key(1), (1, target.dim))
    rows = jnp.array([4, 1])
    sites = target.layout.split(z[0])
    # NumPyro's potential takes the local values of the batch only.
    sites = {n: v[rows] if n in ("local", "simplex") else v for n, v in sites.items()}
    batch = handlers.substitute(model, data={"N": rows})
    expected = -potential_energy(batch, args, options, sites)
    prior, likelihood = target.log_prior_and_likelihood(z, data, {"N": rows})
    assert_close(prior[0] + likelihood[0], expected)


def test_batches_as_arguments_are_recognised_and_evaluated_as_they_are() -> None:
    def model(x: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 100, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x, y = _draws(5), _draws(5, seed=1)
    target = LogDensity(model, KEY, (x, y))
    assert target.batch_arguments and not target.plates
    found = target.score(jnp.array([[0.7]]), target.bind(x, y))
    assert_close(found.score, [[-0.7 + 100 / 5 * np.sum(x * (y - 0.7 * x))]])
    # Batches of another size keep the density's scale, N over the rows in the batch.
    shorter = target.full_score(jnp.array([[0.7]]), target.bind(x[:2], y[:2]))
    assert_close(shorter.score, [[-0.7 + 100 / 2 * np.sum(x[:2] * (y[:2] - 0.7 * x[:2]))]])
    with pytest.raises(ArgumentError, match="data_chunk"):
        LogDensity(model, KEY, (x, y), data_chunk=2)


@pytest.mark.parametrize("jitted", [False, True])
def test_batches_that_do_not_fit_a_fixed_subsample_are_explained(jitted: bool) -> None:
    def model(x: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 103, subsample_size=20):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = _draws(20)
    target = LogDensity(model, KEY, (x, x))

    def log_density(x: jax.Array, y: jax.Array) -> jax.Array:
        return target.log_density(jnp.zeros((1, 1)), target.bind(x, y))

    if jitted:
        log_density = jax.jit(log_density)
    words = r"'y' does not fit plate 'N' \(size 103, subsample_size 20\): expected 20 rows, found"
    fix = r".*numpyro.plate\('N', 103, subsample_size=x.shape\[0\]\)"
    for rows, theirs in (((13, 13), "Incompatible shapes"), ((20, 13), "incompatible shapes")):
        with pytest.raises(ArgumentError, match=f"{words}{fix}.*{theirs}"):
            log_density(*(x[:n] for n in rows))
    assert np.isfinite(log_density(x, x)).all()


def test_observations_missing_from_a_later_call_are_named() -> None:
    def model(n: int, y: jax.Array | None = None) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", n):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    target = LogDensity(model, KEY, (5, _draws(5)))
    words = r"Expected the observations of site 'y', .* found none.*Predictive\(model"
    with pytest.raises(ArgumentError, match=words):
        target.bind(5)
    with pytest.raises(ArgumentError, match=words):
        target.evaluate(jnp.zeros(1), Data((5,)))


def test_batches_may_come_after_all_rows_but_new_subsampling_may_not() -> None:
    def batches(y: jax.Array) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 10, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def look_up(y: jax.Array, batch: int | None = None) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", len(y), subsample_size=batch) as rows:
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y[rows])

    y = _draws(10)
    target = LogDensity(batches, KEY, (y,))
    assert not target.batch_arguments
    found = target.score(jnp.array([[0.4]]), target.bind(y[:4]))
    assert target.batch_arguments
    assert_close(found.score, [[-0.4 + 10 / 4 * np.sum(y[:4] - 0.4)]])
    target = LogDensity(look_up, KEY, (y,))
    target.bind(y[:7])
    with pytest.raises(ArgumentError, match="Initialise the engine with the arguments"):
        target.bind(y, batch=4)


def test_networks_with_a_prior_on_every_weight_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = LogDensity(network, KEY, (_draws(4, 2), _draws(4)))
    assert target.layout.names[:2] == ("net/inner.bias", "net/inner.kernel")
    with pytest.warns(HeldParameterWarning, match=r"net\$params.outer.bias"):
        partly = LogDensity(partly_random, KEY, (_draws(4, 2), _draws(4)))
    assert partly.layout.names == ("net/inner.bias", "net/inner.kernel", "net/outer.kernel")


def partly_random(x: jax.Array, y: jax.Array) -> None:
    prior = {name: dist.Normal() for name in ("inner.bias", "inner.kernel", "outer.kernel")}
    net = random_nnx_module("net", Network(), prior)
    numpyro.sample("y", dist.Normal(net(x), 1.0).to_event(1), obs=y)


def test_models_that_need_concrete_arrays_fall_back_to_constants_once() -> None:
    def model(group: jax.Array, y: jax.Array) -> None:
        count = len(np.unique(group))
        with numpyro.plate("groups", count):
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)

    group, y = np.array([0, 1, 1, 2]), np.array([0.5, 1.0, 2.0, -1.0])
    with pytest.warns(EvaluationWarning, match="TracerArrayConversionError") as record:
        target = LogDensity(model, KEY, (group, y))
    assert len(record) == 1
    assert target.constants_reason is not None
    data = target.bind(group, y)
    z = jnp.array([[0.1, 0.2, 0.3]])
    expected = [[-0.1 + 0.4, -0.2 + 0.8 + 1.8, -0.3 - 1.3]]
    assert_close(target.score(z, data).score, expected)
    # New contents are a new program, equal contents are not.
    assert target.bind(group.copy(), y.copy()).signature() == data.signature()
    moved = target.score(z, target.bind(group, y + 1.0)).score
    assert_close(moved, np.add(expected, [1.0, 2.0, 1.0]))


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
def test_a_length_may_be_computed_from_an_argument(place: Callable[[Any], Any]) -> None:
    """JAX traces the largest entry of a constant of its own, and NumPy computes it."""

    def model(group: Any, y: Any) -> None:
        with numpyro.plate("groups", int(group.max()) + 1):
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean[group], 1.0).to_event(1), obs=y)

    group, y = place([0, 1, 1, 2]), place([0.5, 1.0, 2.0, -1.0])
    with pytest.warns(EvaluationWarning, match="new arrays mean a new compilation"):
        target = LogDensity(model, KEY, (group, y))
    z = jnp.array([[0.1, 0.2, 0.3]])
    for move in (0.0, 1.0):
        expected = [[-0.1 + 0.4, -0.2 + 0.8 + 1.8, -0.3 - 1.3]] + move * np.array([1.0, 2.0, 1.0])
        assert_close(target.score(z, target.bind(group, y + move)).score, expected)
    more = target.bind(place([0, 0, 1, 1, 2]), place(np.zeros(5)))
    assert_close(target.score(z, more).score, [[-0.3, -0.6, -0.6]])
    with pytest.raises(ArgumentError, match="Close over"):
        jax.jit(lambda y: target.bind(group, y))(y)


def test_arguments_are_constants_where_traced_ones_leave_no_gradient() -> None:
    """NumPy's sort of traced numbers cannot be compiled, and their number of rounds has no end."""

    def model(rounds: jax.Array, y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        total = lax.fori_loop(0, rounds, lambda _, total: total + mean, 0.0)
        numpyro.sample("y", dist.Normal(total, 1.0).expand([2]).to_event(1), obs=y)

    def sorting(x: jax.Array, y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean * x[np.argsort(x)], 1.0).to_event(1), obs=y)

    y = np.array([1.0, 3.0])
    for each, x, expected in ((model, np.array(2), 8.0), (sorting, np.array([4.0, 2.0]), 14.0)):
        with pytest.warns(EvaluationWarning, match="needs concrete values") as record:
            target = LogDensity(each, KEY, (x, y))
        assert len(record) == 1
        assert_close(target.score(jnp.zeros((1, 1)), target.bind(x, y)).score, [[expected]])


def test_data_traces_arrays_and_holds_the_rest_static() -> None:
    def square(x: float) -> float:
        return x**2

    first = Data((np.ones(3), 2, "a", None), {"f": square, "d": {"x": jnp.ones(2), "n": [1]}})
    again = Data((np.zeros(3), 2, "a", None), {"f": square, "d": {"x": jnp.zeros(2), "n": [1]}})
    assert len(first.arrays) == 2
    assert first.signature() == again.signature()
    assert Data((np.ones(3), 3, "a", None), first.kwargs).signature() != first.signature()
    assert Data((1,)).signature() != Data((True,)).signature()
    unhashable, other = {1, 2}, {1, 2}
    assert Data((unhashable,)).signature() == Data((unhashable,)).signature()
    assert Data((unhashable,)).signature() != Data((other,)).signature()
    traces = []

    @jax.jit
    def total(data: Data) -> jax.Array:
        traces.append(data)
        return data.args[0].sum() * data.args[1] + data.kwargs["d"]["x"].sum()

    assert float(total(first)) == 8.0
    assert float(total(again)) == 0.0
    assert len(traces) == 1
    moved = first.on_device()
    assert isinstance(moved.args[0], jax.Array) and moved.kwargs["f"] is square


def test_methods_run_inside_jit_without_retracing() -> None:
    calls = []

    def model(y: jax.Array, batch: int | None = None) -> None:
        calls.append(None)
        local_rows(y, y, batch)

    y = _draws(5)
    target = LogDensity(model, KEY, (y,), {"batch": 2})
    data = target.bind(y, batch=2)
    z = target.initial_positions(3, random.key(1), data)

    @jax.jit
    def both(z: jax.Array, data: Data, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        return target.score(z, data, {"N": rows}).score, target.full_score(z, data).score

    inside = both(z, data, jnp.array([1, 3]))
    before = len(calls)
    again = both(z + 0.0, target.bind(y.copy(), batch=2), jnp.array([0, 2]))
    assert len(calls) == before
    assert_close(again[1], inside[1])
    assert_close(target.score(z, data, {"N": jnp.array([1, 3])}).score, inside[0])


def test_arguments_are_checked() -> None:
    model, args, options = SUBSAMPLED["network"]
    target = LogDensity(model, KEY, args, options)
    data = target.bind(*args, **options)
    z = jnp.zeros((2, target.dim))
    with pytest.raises(ArgumentError, match="vector of integers"):
        target.score(z, data, {"N": jnp.zeros((1, 2, 2), int)})
    with pytest.raises(ArgumentError, match="expected to have 7 rows"):
        target.full_score(z, target.bind(args[0][:5], args[1][:5], batch=3))
    with pytest.raises(ArgumentError, match="init_strategy"):
        LogDensity(model, KEY, args, options, init_strategy=3)


@pytest.mark.parametrize("number", [1, 3])
def test_scores_of_long_vectors_are_those_of_short_ones(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under another derivative; of one position, which has no axis of its own, and of more."""
    model, args, options = SUBSAMPLED["network"]
    target = LogDensity(model, KEY, args, options)
    data, rows = target.bind(*args, **options), {"N": jnp.array([1, 3])}
    z = jnp.asarray(np.random.default_rng(0).normal(size=(number, target.dim)))

    def figures(z: jax.Array) -> Any:
        def score(z: jax.Array) -> jax.Array:
            return target._evaluation.batch(target._evaluation.score, z, data, rows).score

        return score(z), jax.jvp(score, (z,), (jnp.cos(z),))[1]

    expected = figures(z)
    values = [target.log_density(z.at[:, 2].add(h), data, rows) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(expected[0][:, 2], (values[0] - values[1]) / 2e-5, rtol=1e-6)
    monkeypatch.setattr(layout, "LONG", 1)
    for found, value in zip(figures(z), expected, strict=True):
        np.testing.assert_allclose(found, value, ROUNDING)


def test_structure_that_changes_between_runs_is_noticed() -> None:
    runs = []

    def model() -> None:
        runs.append(None)
        numpyro.sample("z", dist.Normal(0.0, 1.0))
        if len(runs) > 1:
            numpyro.sample("extra", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelCheckError, match="'extra'.*structure changes"):
        LogDensity(model, KEY)


@pytest.mark.parametrize("length", [2, 5])
def test_steps_of_a_longer_history_are_in_their_order(length: int) -> None:
    """The first three stand apart, each by a name of its own, and are all where there are two."""

    def model(y: jax.Array) -> None:
        def step(before: Any, observed: jax.Array) -> tuple[Any, None]:
            z = numpyro.sample("z", dist.Bernoulli(0.2 + 0.3 * before[0] + 0.4 * before[1]))
            u = numpyro.sample("u", dist.HalfNormal(1.0))
            numpyro.sample("y", dist.Normal(2.0 * z, u), obs=observed)
            return (before[1], z), None

        scan(step, (0, 0), y, history=2)

    y = np.linspace(-1.0, 2.0, length)
    target = LogDensity(model, KEY, (y,))
    data, z = target.bind(y), np.linspace(-1.0, 1.0, length)[None]
    values = target.constrain(jnp.asarray(z), data)
    np.testing.assert_allclose(values["u"], np.exp(z))
    np.testing.assert_allclose(target.unconstrain(values, data), z, atol=1e-12)
    u, terms = np.exp(z[0]), []
    for path in itertools.product((0, 1), repeat=length):
        chances = 0.2 + 0.3 * np.array((0, 0, *path))[:length] + 0.4 * np.array((0, *path))[:length]
        prior = stats.bernoulli.logpmf(path, chances).sum()
        terms.append(prior + stats.norm.logpdf(y, 2.0 * np.array(path), u).sum())
    expected = special.logsumexp(terms) + stats.halfnorm.logpdf(u).sum() + z.sum()
    np.testing.assert_allclose(target.log_density(jnp.asarray(z), data)[0], expected, ROUNDING)


def test_a_site_of_a_scan_that_depends_on_a_discrete_one_is_refused() -> None:
    """NumPyro's own error asks for a report to its developers."""

    def model(y: jax.Array) -> None:
        def step(z: jax.Array, observed: jax.Array) -> tuple[jax.Array, None]:
            z = numpyro.sample("z", dist.Bernoulli(0.2 + 0.5 * z))
            u = numpyro.sample("u", dist.HalfNormal(1.0 + z))
            numpyro.sample("y", dist.Normal(0.0, u), obs=observed)
            return z, None

        scan(step, jnp.array(0), y)

    with pytest.raises(ModelCheckError, match="'u' inside scan .* depends on a discrete latent"):
        LogDensity(model, KEY, (np.linspace(-1.0, 2.0, 4),))


def test_pieces_are_traced_once_for_all_runs_of_a_target():
    """A second run looks for its start, and is judged, by what the first has traced."""
    runs = []

    def model(y):
        runs.append(1)
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 4):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    y = jnp.arange(4.0)
    target = LogDensity(model, jax.random.key(0), (y,), {})
    data, z = target.bind(y), np.zeros((16, 1))
    first = [np.asarray(each) for each in pieces_of(target)(data, None)(z, 0)]
    number = len(runs)
    again = [np.asarray(each) for each in pieces_of(target.with_start(None))(data, None)(z, 0)]
    assert len(runs) == number
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    # What a network keeps is let go of.
    target.forget_programs()
    pieces_of(target)(data, None)(z, 0)
    assert len(runs) > number
