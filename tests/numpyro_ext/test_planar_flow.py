"""The planar flow guide of NumPyro: exact inverse, density, and fits."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform
from scipy import optimize

from numpyro_ext.diagnostics import to_arviz
from numpyro_ext.guides import AutoPlanarFlow, FlatDensity, PlanarFlowDensity, flat_density
from numpyro_ext.guides.planar_flow import PlanarTransform, invertible_direction, solve_planar
from numpyro_ext.score import ProximalScoreVI
from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps
from tests import arviz_support as support

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
FLOWS = 3


def model() -> None:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))


DIM = 5


def plain(dim: int):
    return lambda: numpyro.sample("x", dist.Normal(jnp.zeros(dim), 1.0).to_event(1))


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@functools.cache
def bent(dim: int = DIM) -> tuple[PlanarFlowDensity, dict[str, jax.Array]]:
    """A guide far from Normal, and its parameters."""
    density = flat_density(AutoPlanarFlow(model if dim == DIM else plain(dim), FLOWS), KEY)
    assert isinstance(density, PlanarFlowDensity)
    parameters = density.initial_parameters()
    sizes = {"loc": 1.0, "weight": 0.7, "direction": 1.5, "bias": 1.0, "scale": 0.5}
    for seed, (name, size) in enumerate(sizes.items()):
        parameters[f"auto_{name}"] += size * normal(seed, *parameters[f"auto_{name}"].shape)
    parameters["auto_scale"] += 2.0
    return density, parameters


# -- the scalar equation ---------------------------------------------------------------------------

SLOPES = [1e-6, 0.02, 0.6, 1.0, 1.5, 20.0, 1e4]
solve = jax.jit(solve_planar)


@pytest.mark.parametrize("slope", SLOPES)
def test_root_agrees_with_a_bracketing_method(slope) -> None:
    values = [-1e6, -30.0, -2.5, -0.4, -1e-3, 0.0, 1e-9, 0.1, 1.0, 5.0, 300.0]
    found = solve(jnp.array(values), jnp.array(slope))
    for value, root in zip(values, found.tolist(), strict=True):
        width = abs(slope - 1) + 1e-6
        expected = optimize.brentq(
            lambda x, value=value: (x - math.tanh(x)) + slope * math.tanh(x) - value,
            value - width,
            value + width,
            xtol=1e-15,
            rtol=1e-14,
        )
        # Rounding of the equation, amplified where its left side is flat.
        steepness = slope * (1 - math.tanh(expected) ** 2) + math.tanh(expected) ** 2
        tolerance = 1e-15 * (abs(value) + abs(expected)) / steepness + 2e-15
        assert root == pytest.approx(expected, abs=5 * tolerance, rel=5e-14)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("slope", SLOPES)
def test_root_inverts_the_equation_to_rounding(slope, dtype) -> None:
    # In numpy, whose tanh is exact to rounding where XLA's may be off by a few units.
    x = np.concatenate([np.linspace(-9, 9, 1001), [1e-7, -1e3, 1e6]]).astype(dtype)
    slope = np.asarray(slope, dtype)
    bend = np.tanh(x)
    shifted = (x - bend) + slope * bend
    root = solve(jnp.asarray(shifted), jnp.asarray(slope))
    assert root.dtype == dtype
    steepness = slope * (1 - bend**2) + bend**2
    unit = np.finfo(dtype).eps * (np.abs(shifted) + np.abs(x))
    assert (np.abs(root - x) * steepness <= 3 * unit).all()


def test_a_slope_far_below_one_is_not_lost() -> None:
    """At this x, x - tanh(x) is below the slope's part, slope * tanh(x), by a factor of 30."""
    assert float(solve(jnp.array(1e-26), jnp.array(1e-17))) == pytest.approx(1e-9, rel=0.05)


@pytest.mark.parametrize("slope", [0.05, 0.6, 1.7, 8.0])
def test_derivatives_of_the_root(slope) -> None:
    """First in closed form; second and third against differences of the one below."""
    shifted = jnp.array([-2.0, -0.3, 0.05, 0.9, 4.0])
    slope = jnp.full_like(shifted, slope)
    gradients = [
        jax.jit(jax.vmap(function))
        for function in (
            jax.grad(solve_planar, argnums=(0, 1)),
            jax.jacrev(jax.grad(solve_planar, argnums=(0, 1)), argnums=(0, 1)),
            jax.jacfwd(
                jax.jacrev(jax.grad(solve_planar, argnums=(0, 1)), argnums=(0, 1)), argnums=(0, 1)
            ),
        )
    ]

    def derivatives(shifted, slope, order):
        """All derivatives of one order, elementwise: (2**order, number), the last one fastest."""
        return np.stack(jax.tree.leaves(gradients[order - 1](shifted, slope)))

    x = solve(shifted, slope)
    bend = np.tanh(x)
    steepness = 1 + (slope - 1) * (1 - bend**2)
    expected = np.stack([1 / steepness, -bend / steepness])
    np.testing.assert_allclose(derivatives(shifted, slope, 1), expected, rtol=1e-11, atol=1e-12)
    step = 1e-5
    for order in (2, 3):
        found = derivatives(shifted, slope, order).reshape(-1, 2, len(shifted))
        differences = [
            derivatives(shifted + a, slope + b, order - 1)
            - derivatives(shifted - a, slope - b, order - 1)
            for a, b in ((step, 0.0), (0.0, step))
        ]
        expected = np.stack(differences, 1) / (2 * step)
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * size)


# -- one map ---------------------------------------------------------------------------------------


def planar(inner: float, dim: int = 4, dtype=jnp.float64) -> PlanarTransform:
    """A map with w . u as given, which decides how close to singular it is."""
    weight, direction = normal(0, 2, dim)
    direction += (inner - weight @ direction) / (weight @ weight) * weight
    return PlanarTransform(
        weight.astype(dtype), direction.astype(dtype), jnp.asarray(0.3, dtype=dtype)
    )


@jax.jit
def there_and_back(transform: PlanarTransform, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = transform(z)
    return transform.inv(y), transform.log_abs_det_jacobian(z, y)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("inner", [-10.0, -2.0, 0.0, 1.0, 30.0])
def test_inverse_is_exact_to_rounding(inner, size, dtype) -> None:
    transform = planar(inner, dtype=dtype)
    z = (size * normal(1, 500, 4)).astype(dtype)
    found, log_determinant = there_and_back(transform, z)
    assert found.dtype == dtype
    error = jnp.linalg.norm(found - z, axis=-1)
    stretch = jnp.minimum(jnp.exp(log_determinant), 1.0)
    length = jnp.linalg.norm(transform.direction)
    sizes = jnp.linalg.norm(z, axis=-1) + length
    # Rounding of y, seen through w, moves z along u_hat by its inverse slope.
    amplified = 1 + length * jnp.linalg.norm(transform.weight) / stretch
    assert (error <= 2 * jnp.finfo(dtype).eps * sizes * amplified).all()


@pytest.mark.parametrize("inner", [-4.0, 0.0, 3.0])
def test_log_determinant_is_that_of_the_dense_jacobian(inner) -> None:
    transform = planar(inner)
    points = normal(2, 4, 4)
    sign, expected = jnp.linalg.slogdet(jax.jit(jax.vmap(jax.jacobian(transform)))(points))
    assert (sign == 1).all()
    _, found = there_and_back(transform, points)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_the_map_is_the_papers() -> None:
    """f(z) = z + u_hat tanh(w . z + b), u_hat as in its appendix A.1 but for m's shift."""
    weight, direction, z, bias = *normal(3, 3, 4), jnp.asarray(0.7)
    transform = PlanarTransform(weight, direction, bias)
    inner = (weight * direction).sum()
    shift = math.log(math.e - 1)
    m = -1 + np.log1p(np.exp(inner + shift))
    used = direction + (m - inner) * weight / jnp.square(weight).sum()
    np.testing.assert_allclose(transform(z), z + used * jnp.tanh(weight @ z + bias), rtol=1e-12)
    np.testing.assert_allclose(transform.slope, 1 + weight @ used, rtol=1e-10)
    identity = PlanarTransform(weight, jnp.zeros(4), bias)
    np.testing.assert_allclose(identity(z), z, rtol=1e-14)


def test_extreme_parameters_stay_finite() -> None:
    @jax.jit
    def results(weight, direction):
        def total(weight, direction):
            used, slope = invertible_direction(weight, direction)
            return used.sum() + slope

        gradients = jax.grad(total, argnums=(0, 1))(weight, direction)
        return invertible_direction(weight, direction), gradients

    for weight, direction in [
        (jnp.zeros(3), jnp.ones(3)),
        (jnp.full(3, 1e-30), jnp.ones(3)),
        (jnp.ones(3), jnp.full(3, -20.0)),
        (jnp.ones(3), jnp.full(3, 1e5)),
    ]:
        for dtype in (jnp.float64, jnp.float32):
            (used, slope), gradients = results(weight.astype(dtype), direction.astype(dtype))
            assert jnp.isfinite(used).all() and slope > 0
            assert all(jnp.isfinite(gradient).all() for gradient in gradients)


# -- the density -----------------------------------------------------------------------------------


def literal_flow(parameters, z: jax.Array) -> jax.Array:
    """theta of one z, map after map."""
    for weight, direction, bias in zip(
        parameters["auto_weight"],
        parameters["auto_direction"],
        parameters["auto_bias"],
        strict=True,
    ):
        used, _ = invertible_direction(weight, direction)
        z = z + used * jnp.tanh(weight @ z + bias)
    return parameters["auto_loc"] + jax.nn.softplus(parameters["auto_scale"]) * z


def test_log_prob_is_the_change_of_variables() -> None:
    density, parameters = bent()
    points = normal(1, 6, DIM)
    theta, jacobians = (
        jax.jit(jax.vmap(function, (None, 0)))(parameters, points)
        for function in (literal_flow, jax.jacobian(literal_flow, argnums=1))
    )
    expected = dist.Normal(0.0, 1.0).log_prob(points).sum(-1) - jnp.linalg.slogdet(jacobians)[1]
    found = jax.jit(density.log_prob)(parameters, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    stacked = jax.jit(density.log_prob)(parameters, theta.reshape(2, 3, DIM))
    np.testing.assert_allclose(stacked, found.reshape(2, 3), rtol=1e-10)
    posterior = density.guide.get_posterior(density.write_back(parameters))
    np.testing.assert_allclose(jax.jit(posterior.log_prob)(theta), expected, rtol=1e-10)


def test_density_integrates_to_one() -> None:
    density, parameters = bent(1)
    grid = jnp.linspace(-60, 60, 40_001)[:, None]
    values = jnp.exp(jax.jit(density.log_prob)(parameters, grid))
    assert jnp.trapezoid(values, grid[:, 0]) == pytest.approx(1.0, abs=1e-8)

    density, parameters = bent(2)
    axis = jnp.linspace(-40, 40, 1201)
    grid = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), -1)
    values = jnp.exp(jax.jit(density.log_prob)(parameters, grid))
    # The trapezoid rule on a smooth function that has died away at the ends.
    assert values.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=1e-5)


def test_score_is_the_slope_of_the_log_density() -> None:
    density, parameters = bent()
    theta, step = 2 * normal(1, 4, DIM), 1e-5
    log_prob, score = jax.jit(density.log_prob), jax.jit(density.score)
    points = step * jnp.eye(DIM)
    centre = theta[:, None, :]
    slopes = log_prob(parameters, centre + points) - log_prob(parameters, centre - points)
    found = score(parameters, theta)
    np.testing.assert_allclose(found, slopes / (2 * step), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(score(parameters, theta[0]), found[0], rtol=1e-10)
    stacked = score(parameters, theta.reshape(2, 2, DIM))
    np.testing.assert_allclose(stacked, found.reshape(2, 2, DIM), rtol=1e-10)


def test_residual_gradient_agrees_with_double_differentiation_and_differences() -> None:
    density, parameters = bent()
    theta, target = 2 * normal(1, 3, DIM), normal(2, 3, DIM)
    residual = jax.jit(density.mean_square_residual)
    value, gradient = residual(parameters, theta, target)
    # Automatic differentiation of the map-by-map inverse.
    automatic = FlatDensity(density.guide, KEY)
    expected = jax.jit(automatic.mean_square_residual)(parameters, theta, target)
    np.testing.assert_allclose(value, expected[0], rtol=1e-9)
    step = 1e-6
    for seed, (name, entry) in enumerate(gradient.items()):
        np.testing.assert_allclose(entry, expected[1][name], rtol=1e-7, atol=1e-8)
        direction = normal(seed, *entry.shape)
        up, down = (
            residual({**parameters, name: parameters[name] + change * direction}, theta, target)[0]
            for change in (step, -step)
        )
        slope = (entry * direction).sum()
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5, atol=1e-5)


def test_second_derivatives_of_the_score() -> None:
    """``score`` may be differentiated twice itself, as ``log_prob`` three times."""
    density, parameters = bent(2)
    theta = normal(1, 2)

    def value(weight: jax.Array) -> jax.Array:
        return jnp.square(density.score({**parameters, "auto_weight": weight}, theta)).sum()

    weight, step, size = parameters["auto_weight"], 1e-6, 2 * FLOWS
    gradient = jax.jit(jax.grad(value))
    expected = [
        (gradient(weight + point) - gradient(weight - point)).reshape(-1) / (2 * step)
        for point in step * jnp.eye(size).reshape(size, FLOWS, 2)
    ]
    found = jax.jit(jax.hessian(value))(weight).reshape(size, size)
    np.testing.assert_allclose(found, jnp.stack(expected), rtol=1e-5, atol=1e-5)


def test_samples_have_the_score_identities_of_their_density() -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    density, parameters = bent()
    number = 100_000
    params = density.write_back(parameters)
    posterior = density.guide.get_posterior(params)
    for theta in (
        density.sample(parameters, jax.random.key(1), number),
        posterior.sample(jax.random.key(2), (number,)),
    ):
        assert theta.shape == (number, DIM)
        score = jax.jit(density.score)(parameters, theta)
        products = theta[:, :, None] * score[:, None, :]
        for draws, expected in [(score, jnp.zeros(DIM)), (products, -jnp.eye(DIM))]:
            standard_error = draws.std(0) / number**0.5
            assert (jnp.abs(draws.mean(0) - expected) < 5 * standard_error).all()
    gradient = jax.grad(lambda p: density.sample(p, KEY, 3).sum())(parameters)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("dim", [1, 200])
def test_start_is_close_to_a_normal_of_the_initial_scale(dim) -> None:
    density = flat_density(AutoPlanarFlow(plain(dim), init_scale=0.2, prefix="mine"), KEY)
    parameters = density.initial_parameters()
    assert all(name.startswith("mine_") for name in parameters)
    assert (parameters["mine_weight"] != 0).all() and (parameters["mine_direction"] != 0).all()
    theta = density.sample(parameters, jax.random.key(2), 4000)
    near = dist.Normal(parameters["mine_loc"], 0.2).log_prob(theta).sum(-1)
    ratio = density.log_prob(parameters, theta) - near
    # The divergence from the Normal.
    assert abs(ratio.mean()) < 0.05 and ratio.std() < 0.5
    other = flat_density(AutoPlanarFlow(plain(dim), prefix="mine"), jax.random.key(1))
    assert not np.array_equal(other.initial_parameters()["mine_weight"], parameters["mine_weight"])


def test_medians_and_quantiles_are_refused_with_what_to_do() -> None:
    density, parameters = bent()
    guide, params = density.guide, density.write_back(parameters)
    for ask in (lambda: guide.median(params), lambda: guide.quantiles(params, 0.5)):
        with pytest.raises(NotImplementedError, match="of draws, from"):
            ask()


@pytest.mark.parametrize("num_flows", [0, -1, 2.0, "4", True, None])
def test_bad_numbers_of_flows_are_refused(num_flows) -> None:
    with pytest.raises(ArgumentError, match="Expected num_flows to be an int >="):
        AutoPlanarFlow(model, num_flows)


@pytest.mark.parametrize("init_scale", [0, -1.0, math.nan, "0.1"])
def test_bad_initial_scales_are_refused(init_scale) -> None:
    with pytest.raises(ArgumentError, match="Expected init_scale > 0, found"):
        AutoPlanarFlow(model, init_scale=init_scale)


# -- the host, and fits ----------------------------------------------------------------------------


def test_guide_is_usable_in_the_host() -> None:
    density, parameters = bent()
    guide, params = density.guide, density.write_back(parameters)
    reference = density.sample(parameters, jax.random.key(3), 20_000)[:, 2]
    for draws in [
        guide.sample_posterior(KEY, params, sample_shape=(2000,)),
        Predictive(guide, params=params, num_samples=2000)(KEY),
    ]:
        assert draws["p"].shape == (2000, 3) and (draws["a"] > 0).all()
        np.testing.assert_allclose(draws["p"].sum(-1), 1.0)
        error = jnp.log(draws["a"]).mean() - reference.mean()
        assert abs(error) < 5 * reference.std() / 2000**0.5

    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO(4))
    state, _ = svi.update(svi.init(KEY, init_params=params))
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    for name, value in density.from_host(svi.get_params(state)).items():
        assert 0 < jnp.abs(value - parameters[name]).max() < 1.1e-3, name


def test_host_svi_lowers_its_loss_on_a_skewed_target() -> None:
    def skewed() -> None:
        numpyro.sample("x", dist.Gamma(jnp.array([1.5, 1.5]), 1.0).to_event(1))

    guide = AutoPlanarFlow(skewed, 2, init_scale=0.5)
    svi = SVI(skewed, guide, numpyro.optim.Adam(0.02), Trace_ELBO(16))
    losses = svi.run(KEY, 400, progress_bar=False).losses
    # The least loss is zero, for the exact posterior.
    assert losses[-50:].mean() < 0.3 * losses[:5].mean()
    assert losses[-50:].mean() < 0.1


def banana() -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(0.5 * a**2, 0.5))


def forward_kl(engine: ProximalScoreVI, parameters) -> float:
    """KL(target | guide) from exact draws of the target; standard error about 0.02."""
    draws = np.random.default_rng(0).normal(size=(2, 20_000))
    theta = np.stack([draws[0], 0.5 * draws[0] ** 2 + 0.5 * draws[1]], -1)
    log_p = dist.Normal(0.0, 1.0).log_prob(draws).sum(0) - math.log(0.5)
    return float((log_p - engine.density.log_prob(parameters, theta)).mean())


@pytest.mark.slow
def test_flow_follows_a_banana_where_a_diagonal_normal_cannot() -> None:
    divergences = {}
    for guide_class in (AutoPlanarFlow, AutoDiagonalNormal):
        guide = guide_class(banana, init_scale=0.5)
        # More draws and steps than by default, which is made for less tame targets.
        optim = optax.adam(optax.cosine_decay_schedule(0.01, 20_000))
        engine = ProximalScoreVI(
            banana, guide, solver=GradientSteps(optim, num_samples=32, num_inner_steps=20)
        )
        state = engine.run(KEY, 1000, progress_bar=False).state
        divergences[guide_class] = forward_kl(engine, state.algorithm.parameters)
    assert divergences[AutoPlanarFlow] < 0.1
    assert divergences[AutoDiagonalNormal] > 1.0


@pytest.mark.filterwarnings(*support.IGNORED)
def test_flow_lowers_the_residual_of_a_banana() -> None:
    engine = ProximalScoreVI(
        banana,
        AutoPlanarFlow(banana, 2, init_scale=0.5, init_loc_fn=init_to_uniform),
        solver=GradientSteps(num_samples=8, num_inner_steps=5, optim=optax.adam(0.02)),
    )
    result = engine.run(KEY, 400, progress_bar=False)
    assert np.median(result.losses[-50:]) < 0.3 * np.median(result.losses[:20])
    converted = to_arviz(engine, result.state, num_samples=50)
    assert support.values(converted, "posterior", "b").shape[-1] == 50
