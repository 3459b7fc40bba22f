"""The flat log density of NumPyro's guides."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoBatchedMultivariateNormal,
    AutoBNAFNormal,
    AutoDAIS,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from numpyro_ext.density.layout import Layout
from numpyro_ext.guides import (
    DiagonalNormalDensity,
    FlatDensity,
    LowRankNormalDensity,
    Moments,
    flat_density,
    normal,
    refuse_flat_density,
    register_flat_density,
)
from numpyro_ext.guides.flat_density import _REGISTRY, _transform_to
from numpyro_ext.guides.threefry import threefry_normal
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

NORMALS = [AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]
EVALUABLE = [*NORMALS, AutoIAFNormal]
KEY = jax.random.key(0)


def model() -> None:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))


LAYOUT = Layout(("z", "a", "p"), {"z": (2,), "a": (), "p": (2,)})
DIM = 5


@functools.cache
def density_of(guide_class) -> FlatDensity:
    options = {"num_flows": 2, "hidden_dims": [DIM]} if guide_class is AutoIAFNormal else {}
    return flat_density(guide_class(model, **options), KEY, layout=LAYOUT)


def random_parameters(density: FlatDensity):
    # A flow with large random weights has tails too heavy for Monte Carlo.
    size = 0.1 if isinstance(density.guide, AutoIAFNormal) else 0.7
    leaves, treedef = jax.tree.flatten(density.initial_parameters())
    keys = jax.random.split(jax.random.key(3), len(leaves))
    leaves = [x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, leaves)


def host_log_prob(density: FlatDensity, parameters, theta):
    """One point, through the host's own posterior under the host's own parameters."""
    params = density.write_back(parameters)
    posterior = handlers.substitute(density.guide._get_posterior, data=params)()
    return posterior.log_prob(theta).sum()


def assert_trees_close(actual, expected, **tolerance) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 1e-8, "atol": 1e-10} | tolerance))


@pytest.mark.parametrize("guide_class", EVALUABLE)
def test_log_prob_and_score_agree_with_the_host(guide_class) -> None:
    density = density_of(guide_class)
    parameters = random_parameters(density)
    theta = jax.random.normal(jax.random.key(1), (6, DIM))
    for function, of_host in [
        (density.log_prob, host_log_prob),
        (density.score, jax.grad(host_log_prob, argnums=2)),
    ]:
        expected = jax.jit(jax.vmap(lambda point, f=of_host: f(density, parameters, point)))(theta)
        actual = jax.jit(function)(parameters, theta)
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)
        # A single point, and more than one leading dimension.
        shapes = jax.eval_shape(function, parameters, theta[0]).shape, actual.shape[1:]
        assert shapes[0] == shapes[1]
        stacked = jax.jit(function)(parameters, theta.reshape(2, 3, DIM))
        np.testing.assert_allclose(stacked, actual.reshape(2, 3, *actual.shape[1:]), rtol=1e-8)


@pytest.mark.parametrize("guide_class", EVALUABLE)
def test_residual_gradient_agrees_with_double_differentiation(guide_class) -> None:
    density = density_of(guide_class)
    parameters = random_parameters(density)
    theta, target = jax.random.normal(jax.random.key(1), (2, 3, DIM))

    def objective(parameters):
        score = jax.vmap(
            lambda point: jax.grad(host_log_prob, argnums=2)(density, parameters, point)
        )
        return jnp.square(score(theta) - target).sum(-1).mean()

    expected = jax.jit(jax.value_and_grad(objective))(parameters)
    actual = jax.jit(density.mean_square_residual)(parameters, theta, target)
    assert_trees_close(actual, expected)


@pytest.mark.parametrize("guide_class", EVALUABLE)
def test_samples_have_the_score_identities_of_their_density(guide_class) -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    density = density_of(guide_class)
    parameters = random_parameters(density)
    number = 100_000
    theta = density.sample(parameters, jax.random.key(1), number)
    assert theta.shape == (number, DIM)
    score = jax.jit(density.score)(parameters, theta)
    products = theta[:, :, None] * score[:, None, :]
    for draws, expected in [(score, jnp.zeros(DIM)), (products, -jnp.eye(DIM))]:
        standard_error = draws.std(0) / number**0.5
        assert (jnp.abs(draws.mean(0) - expected) < 5 * standard_error).all()
    gradient = jax.grad(lambda p: density.sample(p, KEY, 3).sum())(parameters)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("guide_class", NORMALS)
def test_moments(guide_class) -> None:
    density = density_of(guide_class)
    parameters = random_parameters(density)
    posterior = density.guide.get_posterior(density.write_back(parameters))
    mean, scale = density.moments(parameters)
    np.testing.assert_allclose(mean, posterior.mean)
    if scale.ndim == 1:
        np.testing.assert_allclose(scale**2, posterior.variance)
    else:
        np.testing.assert_allclose(scale @ scale.T, posterior.covariance_matrix, rtol=1e-10)


def test_set_moments_is_the_inverse_of_moments() -> None:
    mean = jax.random.normal(jax.random.key(1), (DIM,))
    root = jax.random.normal(jax.random.key(2), (DIM, DIM))
    scale_tril = jnp.linalg.cholesky(root @ root.T + 0.1 * jnp.eye(DIM))
    for guide_class, scale in [
        (AutoDiagonalNormal, jnp.diagonal(scale_tril)),
        (AutoMultivariateNormal, scale_tril),
    ]:
        density = density_of(guide_class)
        parameters = density.set_moments(density.initial_parameters(), Moments(mean, scale))
        assert_trees_close(density.moments(parameters), Moments(mean, scale))
        assert_trees_close(density.from_host(density.to_host(parameters)), parameters)
    density = density_of(AutoLowRankMultivariateNormal)
    with pytest.raises(ArgumentError, match="AutoLowRankMultivariateNormal, which cannot be set"):
        density.set_moments(density.initial_parameters(), Moments(mean, scale_tril))
    density = density_of(AutoIAFNormal)
    with pytest.raises(ArgumentError, match="AutoIAFNormal, whose moments have no closed form"):
        density.moments(density.initial_parameters())


@pytest.mark.parametrize("guide_class", [AutoDiagonalNormal, AutoMultivariateNormal])
def test_prefix_and_constraints_of_the_guide_are_honoured(guide_class) -> None:
    class Exponential(guide_class):
        scale_constraint = constraints.positive
        scale_tril_constraint = constraints.lower_cholesky

    density = flat_density(Exponential(model, prefix="mine"), KEY)
    parameters = random_parameters(density)
    assert all(name.startswith("mine_") for name in parameters)
    theta = jax.random.normal(jax.random.key(1), (DIM,))
    expected = jax.grad(host_log_prob, argnums=2)(density, parameters, theta)
    np.testing.assert_allclose(density.score(parameters, theta), expected, rtol=1e-8)
    theta, target = jax.random.normal(jax.random.key(2), (2, 3, DIM))
    plain = functools.partial(FlatDensity.mean_square_residual, density)
    _, gradient = jax.jit(density.mean_square_residual)(parameters, theta, target)
    assert_trees_close(gradient, jax.jit(plain)(parameters, theta, target)[1])


@pytest.mark.parametrize("score", [-1e-3, -1e3, 1e3])
@pytest.mark.parametrize("unconstrained", [-3.0, 0.0])
def test_the_bound_on_gradients_holds_at_the_end_of_its_reach(
    score: float, unconstrained: float
) -> None:
    """Where the draws are at the mean, so that only the reach takes residuals away from zero."""
    density = density_of(AutoDiagonalNormal)
    loc, reach = jnp.linspace(-1.0, 1.0, DIM), 1.0
    scale = jnp.linspace(unconstrained, unconstrained + 2.0, DIM)
    theta, scores = jnp.tile(loc, (2, 1)), jnp.full((2, DIM), score)
    parameters = {"auto_loc": loc, "auto_scale": scale}
    assert isinstance(density, DiagonalNormalDensity)
    bound = density.largest_gradient(parameters, theta, scores, reach)
    largest = 0.0
    for side in (-reach, reach):
        near = {"auto_loc": loc + side, "auto_scale": scale - reach}
        _, gradient = density.mean_square_residual(near, theta, scores)
        largest = max(largest, *(float(jnp.abs(v).max()) for v in gradient.values()))
    assert largest <= bound < 10.0 * largest


@pytest.mark.parametrize("guide_class", NORMALS)
def test_parameters_are_usable_in_the_host_afterwards(guide_class) -> None:
    density = density_of(guide_class)
    guide = density.guide
    parameters = random_parameters(density)
    params = density.write_back(parameters)
    mean, scale = density.moments(parameters)
    spread = scale if scale.ndim == 1 else jnp.sqrt(jnp.square(scale).sum(-1))
    np.testing.assert_allclose(guide.median(params)["z"], mean[:2])
    np.testing.assert_allclose(guide.median(params)["a"], jnp.exp(mean[2]))
    quantile = guide.quantiles(params, 0.9)["z"]
    np.testing.assert_allclose(quantile, dist.Normal(mean, spread).icdf(0.9)[:2], rtol=1e-6)
    for draws in [
        guide.sample_posterior(KEY, params, sample_shape=(4000,)),
        Predictive(guide, params=params, num_samples=4000)(KEY),
    ]:
        error = jnp.abs(jnp.log(draws["a"]).mean() - mean[2])
        assert error < 5 * spread[2] / 4000**0.5


def test_host_svi_goes_on_from_the_parameters() -> None:
    density = density_of(AutoMultivariateNormal)
    params = density.write_back(random_parameters(density))
    guide, mean = density.guide, params["auto_loc"]
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    state = svi.init(KEY, init_params=params)
    assert_trees_close(svi.get_params(state), params)
    state, _ = svi.update(state)
    # Adam's first step is the learning rate, from where we left the guide.
    loc = svi.get_params(state)["auto_loc"]
    assert 0 < jnp.abs(loc - mean).max() < 1.1e-3


def test_batched_guides_go_through_automatic_differentiation() -> None:
    def batched() -> None:
        with numpyro.plate("group", 3):
            numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    density = flat_density(AutoBatchedMultivariateNormal(batched), KEY)
    parameters = random_parameters(density)
    theta = density.sample(parameters, KEY, 4)
    assert theta.shape == density.score(parameters, theta).shape == (4, 6)
    expected = jax.jit(jax.grad(lambda point: host_log_prob(density, parameters, point)))(theta[0])
    np.testing.assert_allclose(density.score(parameters, theta)[0], expected, rtol=1e-8)


def test_parameters_depend_on_the_key_alone() -> None:
    guide = AutoDiagonalNormal(model)
    first = flat_density(guide, jax.random.key(1)).initial_parameters()
    other = flat_density(guide, jax.random.key(2)).initial_parameters()
    again = flat_density(guide, jax.random.key(1)).initial_parameters()
    assert_trees_close(again, first, rtol=0, atol=0)
    assert not np.array_equal(first["auto_loc"], other["auto_loc"])


def test_low_rank_guide_starts_off_the_saddle() -> None:
    """At a factor of zero, where the host starts, no score depends on the factor's sign."""

    def simple() -> None:
        numpyro.sample("x", dist.Normal(jnp.zeros(DIM), 1.0).to_event(1))

    guide = AutoLowRankMultivariateNormal(simple, rank=2, init_scale=0.3)
    density = flat_density(guide, KEY)
    parameters = density.initial_parameters()
    theta, target = jax.random.normal(KEY, (2, 3, DIM))
    _, gradient = density.mean_square_residual(parameters, theta, target)
    assert (gradient["auto_cov_factor"] != 0).all()
    zero = {**parameters, "auto_cov_factor": jnp.zeros((DIM, 2))}
    _, gradient = density.mean_square_residual(zero, theta, target)
    assert (gradient["auto_cov_factor"] == 0).all()
    # On average over draws of the factor the marginal scale is the one asked for.
    variances = []
    for seed in range(40):
        density = LowRankNormalDensity(guide, jax.random.key(seed))
        scale_tril = density.moments(density.initial_parameters()).scale
        variances.append(jnp.square(scale_tril).sum(-1))
    assert jnp.stack(variances).mean() == pytest.approx(0.09, rel=0.15)


def test_model_parameters_are_not_the_guides() -> None:
    def with_parameter() -> None:
        scale = numpyro.param("scale", 2.0, constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(0.0, scale))

    density = flat_density(AutoDiagonalNormal(with_parameter), KEY)
    assert set(density.initial_parameters()) == {"auto_loc", "auto_scale"}


REFUSED = [
    (AutoNormal, "AutoDiagonalNormal is its flat equal"),
    (AutoDelta, "point estimate"),
    (AutoGuideList, "list of guides"),
    (AutoBNAFNormal, "no analytic inverse"),
    (AutoDAIS, "auxiliary variables"),
    (AutoLaplaceApproximation, "point estimate while"),
]


@pytest.mark.parametrize(("guide_class", "reason"), REFUSED)
def test_guides_without_a_flat_density_are_refused_by_name(guide_class, reason) -> None:
    with pytest.raises(ArgumentError) as caught:
        flat_density(guide_class(model), KEY)
    message = str(caught.value)
    assert guide_class.__name__ in message
    assert reason in message
    assert "Use AutoDiagonalNormal, AutoMultivariateNormal" in message


def test_flows_that_cannot_be_inverted_and_functions_are_refused() -> None:
    @register_flat_density(AutoBlock)
    class Automatic(FlatDensity):
        pass

    with pytest.raises(ArgumentError, match="AutoBlock, which cannot be inverted"):
        flat_density(AutoBlock(model, num_flows=1), KEY)
    with pytest.raises(ArgumentError, match=r"Expected an autoguide object.*found model"):
        flat_density(model, KEY)


class AutoBlock(AutoBNAFNormal):
    pass


def test_registry_is_open() -> None:
    class Mine(AutoDiagonalNormal):
        pass

    @register_flat_density(Mine)
    class MineDensity(DiagonalNormalDensity):
        pass

    assert type(flat_density(Mine(model), KEY)) is MineDensity
    assert type(flat_density(AutoDiagonalNormal(model), KEY)) is DiagonalNormalDensity
    refuse_flat_density(Mine, "it is ours")
    with pytest.raises(ArgumentError, match="found Mine: it is ours"):
        flat_density(Mine(model), KEY)
    assert Mine not in _REGISTRY.factories


@pytest.mark.parametrize(
    "layout",
    [
        Layout(("a", "z", "p"), {"z": (2,), "a": (), "p": (2,)}),
        Layout(("z", "a", "p"), {"z": (3,), "a": (), "p": (2,)}),
        Layout(("z", "a"), {"z": (2,), "a": ()}),
    ],
)
def test_other_order_or_shapes_of_the_sites_are_refused(layout: Layout) -> None:
    with pytest.raises(ArgumentError, match="in this order"):
        flat_density(AutoDiagonalNormal(model), KEY, layout=layout)


# -- long vectors ----------------------------------------------------------------------------------


def test_threefry_numbers_are_the_hosts() -> None:
    """At any places; in a pattern that a wrong rotation or key would break everywhere."""
    expected = jax.random.normal(KEY, (1000,), jnp.float32)
    places = jnp.asarray([[999, 0], [1, 500]], jnp.uint32)
    found = threefry_normal(KEY, places)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected[places], rtol=1e-5)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_long_vectors_are_drawn_in_pieces(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five coordinates in pieces of two: as many different numbers, with mean and scale."""
    density = flat_density(AutoDiagonalNormal(model), KEY)
    mean, scale = jnp.arange(5, dtype=jnp.float32), jnp.arange(1, 6, dtype=jnp.float32)
    parameters = density.set_moments(density.initial_parameters(), Moments(mean, scale))
    monkeypatch.setattr(normal, "LONG", 2)
    key = jax.random.key(4, impl=implementation)
    standard = (density.sample(parameters, key, 3) - mean) / scale
    assert len(np.unique(np.round(standard, 4))) == 15
    if implementation == "threefry2x32":
        expected = jax.random.normal(key, (3, 5), jnp.float32)
        np.testing.assert_allclose(standard, expected, atol=1e-5)


def test_a_long_guide_keeps_its_initial_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, guide = AutoDiagonalNormal(model), AutoDiagonalNormal(model)
    flat_density(plain, KEY)
    monkeypatch.setattr(normal, "LONG", 1)
    density = flat_density(guide, KEY)
    for name, value in plain._init_locs.items():
        np.testing.assert_array_equal(guide._init_locs[name], value)
        assert guide._init_locs[name].base is not None
        assert (
            guide.prototype_trace[name]["value"].shape == plain.prototype_trace[name]["value"].shape
        )
    # A fit of the host's starts where it would have, and its draws are the same.
    states = [
        SVI(model, each, numpyro.optim.Adam(0.1), Trace_ELBO()).init(KEY) for each in (plain, guide)
    ]
    assert_trees_close(states[0].optim_state, states[1].optim_state, rtol=0, atol=0)
    params = density.write_back(density.initial_parameters())
    for call in (
        lambda each: each.median(params),
        lambda each: each.quantiles(params, [0.1, 0.9]),
        lambda each: each.sample_posterior(KEY, params, sample_shape=(2,)),
        lambda each: Predictive(model, guide=each, params=params, num_samples=2)(KEY),
    ):
        assert_trees_close(call(plain), call(guide), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_scale_of_a_full_rank_guide_is_the_host_s(size: int) -> None:
    transform = _transform_to(constraints.scaled_unit_lower_cholesky)
    host = dist.transforms.ScaledUnitLowerCholeskyTransform()
    vector = jax.random.normal(jax.random.key(0), (size * (size + 1) // 2,))
    np.testing.assert_array_equal(transform(vector), host(vector))
    np.testing.assert_allclose(transform.inv(transform(vector)), vector, atol=1e-5)
