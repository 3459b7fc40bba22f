"""The planar flow guides: exact inverse, density, and fits."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import GradientSteps
from tests import arviz_support, guides_support
from tests.backends import use_float64
from tests.guides_support import face_of, normal

use_float64()
pytestmark = pytest.mark.formula

FLOWS, DIM = 3, guides_support.DIM


@cache
def model_of(package: str, dim: int = DIM) -> Any:
    """The model of several sites; or, for another number of coordinates, one site."""
    face = face_of(package)
    host, dist = face.host, face.dist

    def plain() -> None:
        host.sample("x", dist.Normal(face.zeros(dim), 1.0).to_event(1))

    return guides_support.model_of(package) if dim == DIM else plain


def bent_values(dim: int) -> dict[str, np.ndarray]:
    """Parameters of a guide far from Normal."""
    return {
        "loc": normal(0, dim),
        "scale": 0.6 * np.exp(0.4 * normal(1, dim)),
        "weight": (0.7 + dim**-0.5) * normal(2, FLOWS, dim),
        "direction": 1.5 * normal(3, FLOWS, dim),
        "bias": normal(4, FLOWS),
    }


@cache
def bent(package: str, dim: int = DIM) -> tuple[Any, dict[str, Any]]:
    """A guide far from Normal, and its parameters."""
    face = face_of(package)
    density = face.density(face.guides.AutoPlanarFlow(model_of(package, dim), FLOWS))
    assert isinstance(density, face.guides.PlanarFlowDensity)
    parameters = face.constrained(density, bent_values(dim))
    assert parameters.keys() == density.initial_parameters().keys()
    return density, parameters


def flow_module(face: Any) -> Any:
    return face.guides.planar_flow


# -- the scalar equation ---------------------------------------------------------------------------

SLOPES = [1e-6, 0.02, 0.6, 1.0, 1.5, 20.0, 1e4]


def solve(face: Any, shifted: Any, slope: Any, dtype: Any = np.float64) -> np.ndarray:
    arguments = np.asarray(shifted, dtype), np.asarray(slope, dtype)
    return face.call(flow_module(face).PlanarTransform.solve_planar, *arguments)


@pytest.mark.parametrize("slope", SLOPES)
def test_root_agrees_with_a_bracketing_method(face: Any, slope: float) -> None:
    values = [-1e6, -30.0, -2.5, -0.4, -1e-3, 0.0, 1e-9, 0.1, 1.0, 5.0, 300.0]
    for value, root in zip(values, solve(face, values, slope).tolist(), strict=True):
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("slope", SLOPES)
def test_root_inverts_the_equation_to_rounding(face: Any, slope: float, dtype: Any) -> None:
    # In NumPy, whose tanh is exact to rounding where XLA's may be off by a few units.
    x = np.concatenate([np.linspace(-9, 9, 1001), [1e-7, -1e3, 1e6]]).astype(dtype)
    slope = np.asarray(slope, dtype)
    bend = np.tanh(x)
    shifted = (x - bend) + slope * bend
    root = solve(face, shifted, slope, dtype)
    assert root.dtype == dtype
    steepness = slope * (1 - bend**2) + bend**2
    unit = np.finfo(dtype).eps * (np.abs(shifted) + np.abs(x))
    assert (np.abs(root - x) * steepness <= 3 * unit).all()


def test_a_slope_far_below_one_is_not_lost(face: Any) -> None:
    """At this x, x - tanh(x) is below the slope's part, slope * tanh(x), by a factor of 30."""
    assert float(solve(face, 1e-26, 1e-17)) == pytest.approx(1e-9, rel=0.05)


def test_both_packages_find_the_same_roots() -> None:
    shifted = np.linspace(-20, 20, 101)
    faces = [face_of(package) for package in ("pyro", "numpyro")]
    for slope in (1e-4, 0.3, 1.0, 5.0, 100.0):
        found, expected = (solve(face, shifted, slope) for face in faces)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.in_both_packages
def test_derivatives_of_the_root(face: Any) -> None:
    """First in closed form; second and third against differences of the one below."""
    shifted, slopes = np.meshgrid([-2.0, -0.3, 0.05, 0.9, 4.0], [0.05, 0.6, 1.7, 8.0])
    shifted, slopes = shifted.ravel(), slopes.ravel()

    def derivatives(shifted: np.ndarray, slope: np.ndarray, order: int) -> np.ndarray:
        function = flow_module(face).PlanarTransform.solve_planar
        return face.elementwise_derivatives(function, [shifted, slope], order)

    bend = np.tanh(solve(face, shifted, slopes))
    steepness = slopes * (1 - bend**2) + bend**2
    expected = np.stack([1 / steepness, -bend / steepness])
    found = derivatives(shifted, slopes, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    step = 1e-5
    for order in (2, 3):
        found = derivatives(shifted, slopes, order).reshape(-1, 2, len(shifted))
        differences = [
            derivatives(shifted + a, slopes + b, order - 1).reshape(-1, len(shifted))
            - derivatives(shifted - a, slopes - b, order - 1).reshape(-1, len(shifted))
            for a, b in ((step, 0.0), (0.0, step))
        ]
        expected = np.stack(differences, 1) / (2 * step)
        # Relative to the largest for each slope.
        for slope in np.unique(slopes):
            where = slopes == slope
            size = np.abs(expected[..., where]).max()
            np.testing.assert_allclose(
                found[..., where], expected[..., where], rtol=1e-6, atol=1e-7 * size
            )


# -- one map ---------------------------------------------------------------------------------------


def planar(face: Any, inner: float, dtype: str = "float64") -> Any:
    """A map with w . u as given, which decides how close to singular it is."""
    weight, direction = normal(0, 2, 4)
    direction += (inner - weight @ direction) / (weight @ weight) * weight
    values = weight, direction, np.asarray(0.3)
    return flow_module(face).PlanarTransform(*(face.backend.array(v, dtype) for v in values))


def there_and_back(face: Any, transform: Any, z: Any) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of the map, and its log determinant."""
    y = transform(z)
    if face.name == "pyro":
        y = y.clone()  # torch remembers the last value
    return face.numpy((transform.inv(y), transform.log_abs_det_jacobian(z, y)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("inner", [-10.0, -2.0, 0.0, 1.0, 30.0])
def test_inverse_is_exact_to_rounding(face: Any, inner: float, size: float, dtype: str) -> None:
    transform = planar(face, inner, dtype)
    z = (size * normal(1, 500, 4)).astype(dtype)
    found, log_determinant = there_and_back(face, transform, face.backend.array(z, dtype))
    assert found.dtype == z.dtype
    error = np.linalg.norm(found - z, axis=-1)
    stretch = np.minimum(np.exp(log_determinant), 1.0)
    length = np.linalg.norm(face.numpy(transform.direction))
    sizes = np.linalg.norm(z, axis=-1) + length
    # Rounding of y, seen through w, moves z along u_hat by its inverse slope.
    amplified = 1 + length * np.linalg.norm(face.numpy(transform.weight)) / stretch
    assert (error <= 2 * np.finfo(dtype).eps * sizes * amplified).all()


@pytest.mark.parametrize("inner", [-4.0, 0.0, 3.0])
def test_log_determinant_is_that_of_the_dense_jacobian(face: Any, inner: float) -> None:
    transform, points = planar(face, inner), normal(2, 4, 4)
    dense = np.stack([face.jacobian(transform, point) for point in points])
    sign, expected = np.linalg.slogdet(dense)
    assert (sign == 1).all()
    _, found = there_and_back(face, transform, face.array(points))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def used_direction(weight: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """u_hat of the paper's appendix A.1 but for the shift of m."""
    inner = weight @ direction
    m = -1 + np.log1p(np.exp(inner + math.log(math.e - 1)))
    return direction + (m - inner) * weight / np.square(weight).sum()


def test_the_map_is_the_papers(face: Any) -> None:
    weight, direction, z = normal(3, 3, 4)
    make = flow_module(face).PlanarTransform
    transform = make(face.array(weight), face.array(direction), face.array(0.7))
    used = used_direction(weight, direction)
    expected = z + used * np.tanh(weight @ z + 0.7)
    np.testing.assert_allclose(face.numpy(transform(face.array(z))), expected, rtol=1e-12)
    np.testing.assert_allclose(face.numpy(transform.slope), 1 + weight @ used, rtol=1e-10)
    identity = make(face.array(weight), face.zeros(4), face.array(0.7))
    np.testing.assert_allclose(face.numpy(identity(face.array(z))), z, rtol=1e-14)


def test_extreme_parameters_stay_finite(face: Any) -> None:
    function = flow_module(face).PlanarTransform.invertible_direction

    def total(values: Any) -> Any:
        used, slope = function(values["weight"], values["direction"])
        return used.sum() + slope

    for weight, direction in [(0.0, 1.0), (1e-30, 1.0), (1.0, -20.0), (1.0, 1e5)]:
        for dtype in ("float64", "float32"):
            pair = [face.backend.array(np.full(3, value), dtype) for value in (weight, direction)]
            used, slope = face.numpy(function(*pair))
            assert np.isfinite(used).all() and slope > 0
            gradients = face.gradient(total, {"weight": pair[0], "direction": pair[1]})
            assert all(np.isfinite(gradient).all() for gradient in gradients.values())


# -- the density -----------------------------------------------------------------------------------


def literal_flow(values: dict[str, np.ndarray], z: np.ndarray) -> tuple[np.ndarray, float]:
    """theta of one z, map after map, and the log determinant of the Jacobian."""
    log_determinant = np.log(values["scale"]).sum()
    for weight, direction, bias in zip(
        values["weight"], values["direction"], values["bias"], strict=True
    ):
        used, bend = used_direction(weight, direction), np.tanh(weight @ z + bias)
        jacobian = np.eye(len(z)) + (1 - bend**2) * np.outer(used, weight)
        log_determinant += np.linalg.slogdet(jacobian)[1]
        z = z + used * bend
    return values["loc"] + values["scale"] * z, float(log_determinant)


@pytest.mark.in_both_packages
def test_log_prob_is_the_change_of_variables(face: Any) -> None:
    density, parameters = bent(face.name)
    points = normal(1, 6, DIM)
    thetas, determinants = zip(*(literal_flow(bent_values(DIM), z) for z in points), strict=True)
    theta = np.stack(thetas)
    expected = stats.norm.logpdf(points).sum(-1) - np.array(determinants)
    found = face.call(density.log_prob, parameters, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    stacked = face.call(density.log_prob, parameters, theta.reshape(2, 3, DIM))
    np.testing.assert_allclose(stacked, found.reshape(2, 3), rtol=1e-10)
    posterior = face.posterior(density, parameters)
    found = face.numpy(posterior.log_prob(face.array(theta)))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_hosts_posterior_remembers_nothing() -> None:
    """Of Pyro, whose transforms may keep the last value: a draw and its copy have one density."""
    density, parameters = bent("pyro")
    posterior = face_of("pyro").posterior(density, parameters)
    drawn = posterior.rsample((4,))
    log_prob = posterior.log_prob(drawn)
    torch.testing.assert_close(posterior.log_prob(drawn.detach().clone()), log_prob)
    torch.testing.assert_close(density.log_prob(parameters, drawn), log_prob)


def test_density_integrates_to_one(face: Any) -> None:
    density, parameters = bent(face.name, 1)
    grid = np.linspace(-60, 60, 20_001)[:, None]
    values = np.exp(face.call(density.log_prob, parameters, grid))
    assert np.trapezoid(values, grid[:, 0]) == pytest.approx(1.0, abs=1e-8)

    density, parameters = bent(face.name, 2)
    axis = np.linspace(-15, 15, 601)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    values = np.exp(face.call(density.log_prob, parameters, grid))
    # The trapezoid rule on a smooth function that has died away at the ends.
    assert values.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=1e-5)


@pytest.mark.in_both_packages
def test_score_is_the_slope_of_the_log_density(face: Any) -> None:
    density, parameters = bent(face.name)
    theta, step = 2 * normal(1, 4, DIM), 1e-5
    up, down = (
        face.call(density.log_prob, parameters, theta[:, None] + change * np.eye(DIM))
        for change in (step, -step)
    )
    found = face.call(density.score, parameters, theta)
    np.testing.assert_allclose(found, (up - down) / (2 * step), rtol=1e-6, atol=1e-6)
    single = face.call(density.score, parameters, theta[0])
    np.testing.assert_allclose(single, found[0], rtol=1e-10)
    stacked = face.call(density.score, parameters, theta.reshape(2, 2, DIM))
    np.testing.assert_allclose(stacked, found.reshape(2, 2, DIM), rtol=1e-10)
    # Automatic differentiation of the map-by-map inverse.
    automatic = face.call(face.automatic(density.guide).score, parameters, theta)
    np.testing.assert_allclose(automatic, found, rtol=1e-9, atol=1e-10)


@pytest.mark.in_both_packages
def test_residual_gradient_agrees_with_double_differentiation_and_differences(face: Any) -> None:
    density, parameters = bent(face.name)
    theta, target = 2 * normal(1, 3, DIM), normal(2, 3, DIM)
    residual = density.mean_square_residual
    value, gradient = face.call(residual, parameters, theta, target)
    automatic = face.automatic(density.guide).mean_square_residual
    expected, expected_gradient = face.call(automatic, parameters, theta, target)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    guides_support.check_close(gradient, expected_gradient, rtol=1e-7, atol=1e-8)
    step = 1e-6
    for seed, (name, entry) in enumerate(sorted(gradient.items())):
        direction = normal(seed, *entry.shape)
        up, down = (
            face.call(
                residual,
                {**parameters, name: parameters[name] + change * face.array(direction)},
                theta,
                target,
            )[0]
            for change in (step, -step)
        )
        slope = (entry * direction).sum()
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5, atol=1e-5)


def test_second_derivatives_of_the_score(face: Any) -> None:
    """``score`` may be differentiated twice itself, as ``log_prob`` three times."""
    density, parameters = bent(face.name, 2)
    theta, name = face.array(normal(1, 2)), f"{face.prefix}weight"

    def value(weight: Any) -> Any:
        return (density.score({**parameters, name: weight}, theta) ** 2).sum()

    weight, step, size = face.numpy(parameters[name]), 1e-6, 2 * FLOWS
    moves = step * np.eye(size).reshape(size, FLOWS, 2)

    def slopes(stacked: dict[str, Any]) -> Any:
        return sum(value(stacked[key]) for key in stacked)

    ends = {
        f"{sign} {number}": face.array(weight + sign * move)
        for number, move in enumerate(moves)
        for sign in (1, -1)
    }
    gradients = face.gradient(slopes, ends)
    expected = [
        (gradients[f"1 {number}"] - gradients[f"-1 {number}"]).reshape(-1) / (2 * step)
        for number in range(size)
    ]
    found = face.hessian(value, weight).reshape(size, size)
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-5)


def test_samples_have_the_score_identities_of_their_density(face: Any) -> None:
    density, parameters = bent(face.name)
    number = 100_000
    theta = face.draws(density, parameters, number, 1)
    assert theta.shape == (number, DIM)
    np.testing.assert_array_equal(theta, face.draws(density, parameters, number, 1))
    for draws in (theta, face.posterior_draws(density, parameters, number)):
        score = face.call(density.score, parameters, draws)
        guides_support.check_score_identities(draws, score)
    face.no_gradient_through(density, parameters)


@pytest.mark.parametrize("dim", [1, 200])
def test_start_is_close_to_a_normal_of_the_initial_scale(face: Any, dim: int) -> None:
    own = {"prefix": "mine"} if face.name == "numpyro" else {}
    prefix = "mine_" if own else ""
    guide = face.guides.AutoPlanarFlow(model_of(face.name, dim), init_scale=0.2, **own)
    density = face.density(guide)
    parameters = density.initial_parameters()
    start = face.numpy(parameters)
    assert all(name.startswith(prefix) for name in start)
    assert (start[f"{prefix}weight"] != 0).all() and (start[f"{prefix}direction"] != 0).all()
    theta = face.draws(density, parameters, 4000, 2)
    near = stats.norm(start[f"{prefix}loc"], 0.2).logpdf(theta).sum(-1)
    ratio = face.call(density.log_prob, parameters, theta) - near
    # The divergence from the Normal.
    assert abs(ratio.mean()) < 0.05 and ratio.std() < 0.5
    for seed, same in ((0, True), (1, False)):
        guide = face.guides.AutoPlanarFlow(model_of(face.name, dim), **own)
        again = face.numpy(face.density(guide, seed=seed).initial_parameters())
        name = f"{prefix}weight"
        assert np.array_equal(again[name], start[name]) is same


def test_medians_and_quantiles_are_refused_with_what_to_do(face: Any) -> None:
    density, parameters = bent(face.name)
    for ask in (
        lambda: face.median(density, parameters),
        lambda: face.quantiles(density, parameters, [0.5]),
    ):
        with pytest.raises(NotImplementedError, match="of draws, from"):
            ask()


@pytest.mark.parametrize("num_flows", [0, -1, 2.0, "4", True, None])
def test_bad_numbers_of_flows_are_refused(face: Any, num_flows: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected num_flows to be an int >="):
        face.guides.AutoPlanarFlow(model_of(face.name), num_flows)


# -- the host, and fits ----------------------------------------------------------------------------


@pytest.mark.in_both_packages
def test_guide_is_usable_in_the_host(face: Any) -> None:
    density, parameters = bent(face.name)
    reference = face.draws(density, parameters, 20_000, 3)[:, 2]
    for draws in face.host_draws(density, parameters, model_of(face.name), 300):
        assert draws["p"].shape == (300, 3) and (draws["a"] > 0).all()
        np.testing.assert_allclose(draws["p"].sum(-1), 1.0)
        error = np.log(draws["a"]).mean() - reference.mean()
        assert abs(error) < 5 * reference.std() / 300**0.5
    guides_support.check_svi_goes_on(face, density, parameters, model_of(face.name))


@pytest.mark.in_both_packages
def test_host_svi_lowers_its_loss_on_a_skewed_target(face: Any) -> None:
    def skewed() -> None:
        face.host.sample("x", face.dist.Gamma(face.array([1.5, 1.5]), 1.0).to_event(1))

    guide = face.guides.AutoPlanarFlow(skewed, 2, init_scale=0.5)
    losses, _ = face.svi(skewed, guide, 400, 0.02, 16)
    # The least loss is zero, for the exact posterior.
    assert losses[-50:].mean() < 0.3 * losses[:5].mean()
    assert losses[-50:].mean() < 0.1


def banana_of(face: Any) -> Any:
    def banana() -> None:
        a = face.host.sample("a", face.dist.Normal(0.0, 1.0))
        face.host.sample("b", face.dist.Normal(0.5 * a**2, 0.5))

    return banana


def forward_kl(face: Any, fit: Any) -> float:
    """KL(target | guide) from exact draws of the target; standard error about 0.02."""
    draws = np.random.default_rng(0).normal(size=(2, 20_000))
    theta = np.stack([draws[0], 0.5 * draws[0] ** 2 + 0.5 * draws[1]], -1)
    log_p = stats.norm.logpdf(draws).sum(0) - math.log(0.5)
    log_q = face.call(fit.engine.density.log_prob, face.fitted_parameters(fit), theta)
    return float((log_p - log_q).mean())


def falling_adam(face: Any, rate: float, steps: int) -> Any:
    """Adam, whose rate falls along a cosine over so many of its own steps."""
    if face.name == "numpyro":
        import optax

        return optax.adam(optax.cosine_decay_schedule(rate, steps))
    from pyro.optim import CosineAnnealingLR

    options = {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "T_max": steps}
    return CosineAnnealingLR(options)


@pytest.mark.slow
def test_flow_follows_a_banana_where_a_diagonal_normal_cannot(face: Any) -> None:
    divergences, banana = [], banana_of(face)
    for guide_class in (face.guides.AutoPlanarFlow, face.autoguide.AutoDiagonalNormal):
        guide, optim = guide_class(banana, init_scale=0.5), falling_adam(face, 0.01, 20_000)
        # More draws and steps than by default, which is made for less tame targets.
        solver = GradientSteps(optim, num_samples=32, num_inner_steps=20)
        fit = face.backend.fit("ProximalScoreVI", banana, guide, solver, steps=1000, draws=2)
        divergences.append(forward_kl(face, fit))
    assert divergences[0] < 0.1
    assert divergences[1] > 1.0


@pytest.mark.filterwarnings(*arviz_support.IGNORED)
@pytest.mark.slow
def test_flow_lowers_the_residual_of_a_banana(face: Any) -> None:
    banana = banana_of(face)
    # In NumPyro from a random point: from the median of its draws there is less to lower.
    start = {"init_loc_fn": face.infer.init_to_uniform} if face.name == "numpyro" else {}
    guide = face.guides.AutoPlanarFlow(banana, 2, init_scale=0.5, **start)
    solver = GradientSteps(face.backend.adam(0.02), num_samples=8, num_inner_steps=5)
    fit = face.backend.fit("ProximalScoreVI", banana, guide, solver, steps=300, draws=2)
    assert np.median(fit.losses[-50:]) < 0.3 * np.median(fit.losses[:20])
    converted = face.to_arviz(fit, num_samples=50)
    assert arviz_support.values(converted, "posterior", "b").shape[-1] == 50
