"""NumPyro's guides are set up by one compiled program, and end as the host would leave them."""

from __future__ import annotations

import gc
import sys
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import autoguide, init_to_value

import numpyro_ext as nx
from numpyro_ext.density.layout import Data
from numpyro_ext.guides import flat_density
from numpyro_ext.guides.set_up import set_up
from numpyro_ext.programs import Program

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
ROWS = jnp.linspace(-1.0, 1.0, 6)
GUIDES = {
    "diagonal": autoguide.AutoDiagonalNormal,
    "full": autoguide.AutoMultivariateNormal,
    "low rank": autoguide.AutoLowRankMultivariateNormal,
    "mixture": lambda model: nx.AutoGaussianMixture(model, 2),
    "matrix": nx.AutoMatrixNormal,
    "flow": nx.AutoPlanarFlow,
    "layers": nx.AutoLayerLowRankNormal,
}
compiled: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def count_programs():
    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield
    jax.monitoring.unregister_event_duration_listener(listen)


def model(rows: jax.Array) -> None:
    """All that a guide can keep of a run: a parameter, supports that depend on sites, a plate, a
    mask, a state, sites whose names are out of order."""
    width = numpyro.param("width", 2.0, constraint=constraints.positive)
    z = numpyro.sample("z", dist.Normal(jnp.zeros((2, 3)), width).to_event(2))
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    bounded = numpyro.sample("b", dist.Uniform(0.0, 1.0 + a))
    numpyro.deterministic("sum", a + bounded)
    with numpyro.plate("rows", len(rows)), handlers.mask(mask=rows > -0.5):
        local = numpyro.sample("local", dist.Normal(z.sum(), a))
        numpyro.sample("y", dist.Normal(local, a), obs=rows)


def host_set_up(guide: Any, key: jax.Array, *args: Any) -> Any:
    with handlers.seed(rng_seed=key):
        guide._setup_prototype(*args)
    return guide


def tracers_in(root: Any) -> list[Any]:
    """Tracers that an object refers to, by any path that does not go through code."""
    seen, found, waiting = set(), [], [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, jax.core.Tracer):
            found.append(value)
        elif isinstance(value, FunctionType):
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
        elif not isinstance(value, jax.Array):
            waiting += gc.get_referents(value)
    return found


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_takes_few_programs(name: str) -> None:
    def plain(rows: jax.Array) -> None:
        weight = numpyro.sample("w", dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(2))
        scale = numpyro.sample("a", dist.HalfCauchy(1.0))
        with numpyro.plate("rows", len(rows)):
            numpyro.sample("y", dist.Normal(weight.sum(), scale), obs=rows)

    guide = GUIDES[name](plain)
    jax.clear_caches()
    before = len(compiled)
    density = flat_density(guide, KEY, (ROWS,))
    parameters = jax.block_until_ready(density.initial_parameters())
    assert 0 < len(compiled) - before <= 6
    assert set(density.parameter_names) == set(parameters)


def test_a_model_that_draws_its_minibatches_is_compiled_once() -> None:
    """The host would compile the drawing of rows anew for every guide, and JAX keep it."""

    def subsampled(rows: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(rows), subsample_size=3) as batch:
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=rows[batch])

    set_up(autoguide.AutoDiagonalNormal(subsampled), KEY, Data((ROWS,), {}))
    before = len(compiled)
    set_up(autoguide.AutoDiagonalNormal(subsampled), KEY, Data((ROWS,), {}))
    assert len(compiled) == before


def test_the_guide_is_left_as_the_host_leaves_it() -> None:
    expected = host_set_up(autoguide.AutoMultivariateNormal(model), KEY, ROWS)
    guide = autoguide.AutoMultivariateNormal(model)
    set_up(guide, KEY, Data((ROWS,)))
    assert type(guide) is autoguide.AutoMultivariateNormal
    assert tracers_in(vars(guide)) == []
    assert vars(guide).keys() == vars(expected).keys()
    assert list(guide._init_locs) == list(expected._init_locs) == ["z", "a", "b", "local"]
    assert guide.prototype_trace.keys() == expected.prototype_trace.keys()
    params = {
        "auto_loc": jnp.linspace(-1.0, 1.0, guide.latent_dim),
        "auto_scale_tril": jnp.eye(guide.latent_dim),
        "width": jnp.asarray(3.0),
    }
    for call in (
        lambda each: each._init_latent,
        lambda each: each._init_locs,
        lambda each: {k: s["value"] for k, s in each.prototype_trace.items()},
        lambda each: each._potential_fn(each._init_locs),
        lambda each: each.median(params),
        lambda each: each.quantiles(params, [0.1, 0.9]),
        lambda each: each.sample_posterior(KEY, params, sample_shape=(2,)),
        lambda each: handlers.seed(handlers.substitute(each, params), 3)(ROWS),
    ):
        found, wanted = call(guide), call(expected)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_guide_that_was_set_up_is_set_up_again() -> None:
    guide = host_set_up(autoguide.AutoDiagonalNormal(model), jax.random.key(7), ROWS)
    first = guide._init_latent
    set_up(guide, KEY, Data((ROWS,)))
    expected = host_set_up(autoguide.AutoDiagonalNormal(model), KEY, ROWS)._init_latent
    np.testing.assert_allclose(guide._init_latent, expected, rtol=1e-12)
    assert not np.allclose(guide._init_latent, first)


@pytest.mark.parametrize("forward", [False, True])
def test_values_where_the_observations_have_no_density_are_drawn_again(forward: bool) -> None:
    """The first values with a finite prior are not in the support: the host's own search is."""

    def narrow() -> None:
        width = numpyro.sample("width", dist.HalfNormal(1.0))
        numpyro.factor("bounds", jnp.where(width > 0.9, 0.0, -jnp.inf))

    for key in jax.random.split(KEY, 8):
        guide, expected = (autoguide.AutoDiagonalNormal(narrow) for _ in range(2))
        guide._forward_mode_differentiation = expected._forward_mode_differentiation = forward
        host_set_up(expected, key)
        set_up(guide, key, Data())
        np.testing.assert_allclose(guide._init_latent, expected._init_latent, rtol=1e-12)
        assert jnp.exp(guide._init_latent[0]) > 0.9
    assert tracers_in(vars(guide)) == []


def test_what_cannot_be_traced_is_run_as_the_host_does() -> None:
    def on_concrete_values(site: dict[str, Any] | None = None) -> Any:
        if site is None:
            return on_concrete_values
        if site["type"] == "sample" and not site["is_observed"]:
            return jnp.full(site["fn"].shape(), float(site["fn"].mean.max()))
        return None

    def short() -> None:
        loc = numpyro.sample("a", dist.Normal(0.5, 1.0))
        numpyro.sample("z", dist.Normal(jnp.full(2, loc), 1.0).to_event(1))

    guide = autoguide.AutoDiagonalNormal(short, init_loc_fn=partial(on_concrete_values))
    set_up(guide, KEY, Data())
    np.testing.assert_array_equal(guide._init_latent, [0.5, 0.5, 0.5])
    assert tracers_in(vars(guide)) == []


def test_without_valid_initial_values_the_host_says_so() -> None:
    def short() -> None:
        numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("nowhere", -jnp.inf)

    guide = autoguide.AutoDiagonalNormal(short, init_loc_fn=init_to_value(values={"a": 0.3}))
    with pytest.raises(RuntimeError, match="Cannot find valid initial parameters"):
        set_up(guide, KEY, Data())
    assert guide.prototype_trace is None


def test_a_first_draw_that_no_distribution_takes_is_drawn_again() -> None:
    """Of a rate that is negative at half of the positions. Sites stay in the model's order."""

    def rates(counts: jax.Array) -> None:
        rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
        numpyro.sample("before", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(counts)):
            numpyro.sample("y", dist.Poisson(rate), obs=counts)

    for seed in range(4):
        guide = autoguide.AutoDiagonalNormal(rates)
        set_up(guide, jax.random.key(seed), Data((jnp.asarray([0, 2]),)))
        assert guide._init_latent[0] > 0.0 and list(guide._init_locs) == ["rate", "before"]


def test_no_value_is_drawn_that_nobody_asks_for() -> None:
    """Drawing the values of a network's many sites takes half a minute to compile."""
    drawn: list[str] = []

    class Told(dist.LogNormal):
        def sample(self, key: Any, sample_shape: Any = ()) -> Any:
            drawn.append("prior")
            return super().sample(key, sample_shape)

    def told(site: Any = None) -> Any:
        drawn.append("strategy")
        return init_to_value(site, {"a": jnp.full(3, 5.0), "b": jnp.asarray(7.0)})

    def positive(rows: jax.Array) -> None:
        a = numpyro.sample("a", Told(jnp.zeros(3), 1.0).to_event(1))
        b = numpyro.sample("b", Told(0.0, 1.0))
        with numpyro.plate("rows", len(rows)):
            numpyro.sample("y", dist.Normal(a.sum(), b), obs=rows)

    guide = autoguide.AutoDiagonalNormal(positive, init_loc_fn=told)
    set_up(guide, KEY, Data((ROWS,)), drawn=False)
    assert drawn == []
    assert tracers_in(vars(guide)) == []
    assert guide.init_loc_fn is told
    np.testing.assert_array_equal(guide._init_latent, np.zeros(4))
    np.testing.assert_array_equal(guide.prototype_trace["a"]["value"], np.ones(3))
    # What the host computes with it is that of the whole model.
    at = {"a": jnp.zeros(3), "b": jnp.asarray(0.0)}
    expected = 4 * dist.Normal().log_prob(0.0) + dist.Normal(3.0).log_prob(ROWS).sum()
    np.testing.assert_allclose(guide._potential_fn(at), -expected)
    set_up(guide, KEY, Data((ROWS,)))
    assert "strategy" in drawn
    np.testing.assert_allclose(guide._init_latent, np.log([5.0, 5.0, 5.0, 7.0]))


@pytest.mark.parametrize("drawn", [True, False])
def test_a_guide_shares_the_arguments_with_the_caller(drawn: bool) -> None:
    """As the program's values they would be copies, of images or of a network's weights."""

    def around(rows: jax.Array, given: dict[str, jax.Array]) -> None:
        weight = numpyro.sample("w", dist.Normal(given["w"], 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(weight.sum(), 1.0).expand(rows.shape).to_event(1), obs=rows)

    given = {"w": jnp.arange(3.0), "changing": np.arange(3.0, dtype=np.float32)}
    guide = autoguide.AutoDiagonalNormal(around)
    set_up(guide, KEY, Data((ROWS, given)), drawn=drawn)
    args = guide._potential_fn.args[1]
    assert args[0] is ROWS and args[1]["w"] is given["w"]
    # NumPy's arrays may change later.
    assert args[1]["changing"] is not given["changing"]
    assert guide.prototype_trace["w"]["fn"].base_dist.loc is given["w"]
    assert guide.prototype_trace["y"]["value"] is ROWS


def test_values_that_nobody_asks_for_are_no_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from constants the compiler works out number by number, as long as they are."""
    texts: list[str] = []

    class Read(Program):
        def __call__(self, *args: Any) -> Any:
            texts.append(self.jitted.trace(*args).lower().as_text())
            return super().__call__(*args)

    monkeypatch.setattr(sys.modules[set_up.__module__], "Program", Read)
    set_up(GUIDES["diagonal"](model), KEY, Data((ROWS,)), drawn=False)
    arguments, _, body = texts[0].partition("@main(")[2].partition(") ->")
    last = arguments.count("%arg") - 1
    assert f"%arg{last}" in body


@pytest.mark.parametrize("has_start", [True, False])
def test_long_guides_are_set_up_with_values_where_no_start_is_given(
    has_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def normal(rows: jax.Array) -> None:
        weight = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        with numpyro.plate("rows", len(rows)):
            numpyro.sample("y", dist.Normal(weight.sum(), 1.0), obs=rows)

    monkeypatch.setattr("numpyro_ext.score.guide_engine.LONG", 3)
    monkeypatch.setattr("numpyro_ext.density.start.LONG", 3)
    monkeypatch.setattr("numpyro_ext.guides.normal.LONG", 3)
    monkeypatch.setattr("ppl_ext.engines.base.LONGEST_START", 3)
    asked: list[bool] = []

    def noted(guide: Any, key: Any, data: Any, *, drawn: bool = True) -> None:
        asked.append(drawn)
        set_up(guide, key, data, drawn=drawn)

    monkeypatch.setattr(sys.modules["numpyro_ext.guides.flat_density"], "set_up", noted)
    values = {"w": jnp.arange(4.0)}
    strategy = init_to_value(values={"w": jnp.arange(4.0) + 1.0})
    guide = autoguide.AutoDiagonalNormal(normal, init_loc_fn=strategy)
    engine = nx.ProximalScoreVI(normal, guide, "gradient", initial_scale=0.5)
    for _ in range(2):
        state = engine.init(KEY, ROWS, **({"start": values} if has_start else {}))
        found = engine.get_params(state)["auto_loc"]
        np.testing.assert_allclose(found, jnp.arange(4.0) + (not has_start), atol=1e-12)
        # What is long is kept no longer than it is needed, and zeros take no memory.
        assert engine.start is None
        assert not engine.plan.target._start._programs
        assert np.asarray(engine.guide._init_latent).strides == ((0,) if has_start else (8,))
    # The plan takes no values; then each run that has no start asks for them.
    assert asked == ([False, False] if has_start else [False, True, True])
