"""The flat log density of NumPyro's guides."""

from __future__ import annotations

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
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
)

from numpyro_ext.guides import (
    FlatDensity,
    LowRankNormalDensity,
    Moments,
    flat_density,
    normal,
)
from numpyro_ext.guides.flat_density import _transform_to
from numpyro_ext.guides.softplus import softplus_and_slope
from numpyro_ext.guides.threefry import threefry_normal
from tests.guides_support import DIM, face_of, model_of

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
FACE, model = face_of("numpyro"), model_of("numpyro")


def host_log_prob(density: FlatDensity, parameters, theta):
    """One point, through the host's own posterior under the host's own parameters."""
    params = density.write_back(parameters)
    posterior = handlers.substitute(density.guide._get_posterior, data=params)()
    return posterior.log_prob(theta).sum()


def test_batched_guides_go_through_automatic_differentiation() -> None:
    def batched() -> None:
        with numpyro.plate("group", 3):
            numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    density = flat_density(AutoBatchedMultivariateNormal(batched), KEY)
    parameters = FACE.random(density, 0.7)
    theta = density.sample(parameters, KEY, 4)
    assert theta.shape == density.score(parameters, theta).shape == (4, 6)
    expected = jax.jit(jax.grad(lambda point: host_log_prob(density, parameters, point)))(theta[0])
    np.testing.assert_allclose(density.score(parameters, theta)[0], expected, rtol=1e-8)


def test_parameters_depend_on_the_key_alone() -> None:
    guide = AutoDiagonalNormal(model)
    first = flat_density(guide, jax.random.key(1)).initial_parameters()
    other = flat_density(guide, jax.random.key(2)).initial_parameters()
    again = flat_density(guide, jax.random.key(1)).initial_parameters()
    jax.tree.map(np.testing.assert_array_equal, again, first)
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


def test_the_fast_softplus_is_right_to_single_precision() -> None:
    x = np.concatenate([np.linspace(-80.0, 80.0, 100_001), [0.0, -1e-30, 1e-30]]).astype(np.float32)
    exact = x.astype(np.float64)
    expected = np.logaddexp(exact, 0.0), 1.0 / (1.0 + np.exp(-exact))
    for found, value in zip(jax.jit(softplus_and_slope)(x), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=5e-7)


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
    jax.tree.map(np.testing.assert_array_equal, states[0].optim_state, states[1].optim_state)
    params = density.write_back(density.initial_parameters())
    for call in (
        lambda each: each.median(params),
        lambda each: each.quantiles(params, [0.1, 0.9]),
        lambda each: each.sample_posterior(KEY, params, sample_shape=(2,)),
        lambda each: Predictive(model, guide=each, params=params, num_samples=2)(KEY),
    ):
        jax.tree.map(np.testing.assert_array_equal, call(plain), call(guide))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_scale_of_a_full_rank_guide_is_the_host_s(size: int) -> None:
    transform = _transform_to(constraints.scaled_unit_lower_cholesky)
    host = dist.transforms.ScaledUnitLowerCholeskyTransform()
    vector = jax.random.normal(jax.random.key(0), (size * (size + 1) // 2,))
    np.testing.assert_array_equal(transform(vector), host(vector))
    np.testing.assert_allclose(transform.inv(transform(vector)), vector, atol=1e-5)
