"""The planar flow guide of Pyro: exact inverse, density, and fits."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.optim import CosineAnnealingLR
from scipy import optimize

from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps
from pyro_ext.diagnostics import to_arviz
from pyro_ext.engine import seeded_generator
from pyro_ext.guides import AutoPlanarFlow, FlatDensity, PlanarFlowDensity, flat_density
from pyro_ext.guides.planar_flow import PlanarTransform, invertible_direction, solve_planar
from pyro_ext.score import ProximalScoreVI
from tests import arviz_support as support

torch.set_default_dtype(torch.float64)

FLOWS = 3


def model() -> None:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("p", dist.Dirichlet(torch.ones(3)))


DIM = 5


def plain(dim: int):
    return lambda: pyro.sample("x", dist.Normal(torch.zeros(dim), 1.0).to_event(1))


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def bent(model, num_flows: int = FLOWS) -> tuple[PlanarFlowDensity, dict[str, torch.Tensor]]:
    """A guide far from Normal, and its parameters."""
    density = flat_density(AutoPlanarFlow(model, num_flows))
    assert isinstance(density, PlanarFlowDensity)
    parameters = density.initial_parameters()
    for name, size in {"loc": 1.0, "weight": 0.7, "direction": 1.5, "bias": 1.0}.items():
        parameters[name] += size * torch.randn_like(parameters[name])
    parameters["scale_unconstrained"] += 2.0 + 0.5 * torch.randn(density.dim)
    return density, parameters


# -- the scalar equation -------------------------------------------------------------------------

SLOPES = [1e-6, 0.02, 0.6, 1.0, 1.5, 20.0, 1e4]


@pytest.mark.parametrize("slope", SLOPES)
def test_root_agrees_with_a_bracketing_method(slope) -> None:
    values = [-1e6, -30.0, -2.5, -0.4, -1e-3, 0.0, 1e-9, 0.1, 1.0, 5.0, 300.0]
    found = solve_planar(torch.tensor(values), torch.tensor(slope))
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("slope", SLOPES)
def test_root_inverts_the_equation_to_rounding(slope, dtype) -> None:
    slope = torch.tensor(slope, dtype=dtype)
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([1e-7, -1e3, 1e6])]).to(dtype)
    bend = torch.tanh(x)
    shifted = (x - bend) + slope * bend
    root = solve_planar(shifted, slope)
    assert root.dtype == dtype
    steepness = slope * (1 - bend**2) + bend**2
    unit = torch.finfo(dtype).eps * (shifted.abs() + x.abs())
    assert ((root - x).abs() * steepness <= 3 * unit).all()


def test_a_slope_far_below_one_is_not_lost() -> None:
    """At this x, x - tanh(x) is below the slope's part, slope * tanh(x), by a factor of 30."""
    found = solve_planar(torch.tensor(1e-26), torch.tensor(1e-17))
    assert float(found) == pytest.approx(1e-9, rel=0.05)


@pytest.mark.parametrize("slope", [0.05, 0.6, 1.7, 8.0])
def test_derivatives_of_the_root(slope) -> None:
    """First in closed form; second and third against differences of the one below."""
    shifted = torch.tensor([-2.0, -0.3, 0.05, 0.9, 4.0])
    slope = torch.full_like(shifted, slope)

    def derivatives(shifted, slope, order):
        """All derivatives of one order, elementwise: (2,) * order + (number,)."""
        arguments = [shifted.clone().requires_grad_(), slope.clone().requires_grad_()]
        values = [solve_planar(*arguments)]
        for _ in range(order):
            values = [
                entry
                for value in values
                for entry in torch.autograd.grad(value.sum(), arguments, create_graph=True)
            ]
        return torch.stack(values).detach()

    x = solve_planar(shifted, slope)
    bend = torch.tanh(x)
    steepness = 1 + (slope - 1) * (1 - bend**2)
    expected = torch.stack([1 / steepness, -bend / steepness])
    torch.testing.assert_close(derivatives(shifted, slope, 1), expected, rtol=1e-11, atol=1e-12)
    step = 1e-5
    for order in (2, 3):
        found = derivatives(shifted, slope, order).reshape(-1, 2, len(shifted))
        differences = [
            derivatives(shifted + a, slope + b, order - 1)
            - derivatives(shifted - a, slope - b, order - 1)
            for a, b in ((step, 0.0), (0.0, step))
        ]
        expected = torch.stack(differences, 1) / (2 * step)
        size = expected.abs().max()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=float(1e-7 * size))


# -- one map -------------------------------------------------------------------------------------


def planar(inner: float, dim: int = 4, dtype: torch.dtype = torch.float64) -> PlanarTransform:
    """A map with w . u as given, which decides how close to singular it is."""
    weight, direction = torch.randn(2, dim, dtype=dtype)
    direction += (inner - weight @ direction) / (weight @ weight) * weight
    return PlanarTransform(weight, direction, torch.tensor(0.3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("inner", [-10.0, -2.0, 0.0, 1.0, 30.0])
def test_inverse_is_exact_to_rounding(inner, size, dtype) -> None:
    transform = planar(inner, dtype=dtype)
    z = size * torch.randn(500, 4, dtype=dtype)
    y = transform(z)
    error = (transform.inv(y.clone()) - z).norm(dim=-1)
    stretch = transform.log_abs_det_jacobian(z, y).exp().clamp_max(1.0)
    length = transform.direction.norm()
    sizes = z.norm(dim=-1) + length
    # Rounding of y, seen through w, moves z along u_hat by its inverse slope.
    amplified = 1 + length * transform.weight.norm() / stretch
    assert (error <= 2 * torch.finfo(dtype).eps * sizes * amplified).all()


@pytest.mark.parametrize("inner", [-4.0, 0.0, 3.0])
def test_log_determinant_is_that_of_the_dense_jacobian(inner) -> None:
    transform = planar(inner)
    for z in torch.randn(4, 4):
        jacobian = torch.autograd.functional.jacobian(transform, z)
        expected = torch.linalg.slogdet(jacobian)
        assert expected.sign == 1
        found = transform.log_abs_det_jacobian(z, transform(z))
        torch.testing.assert_close(found, expected.logabsdet)


def test_the_map_is_the_papers() -> None:
    """f(z) = z + u_hat tanh(w . z + b), u_hat as in its appendix A.1 but for m's shift."""
    weight, direction, bias = torch.randn(4), torch.randn(4), torch.tensor(0.7)
    transform = PlanarTransform(weight, direction, bias)
    inner = (weight * direction).sum()
    shift = math.log(math.e - 1)
    m = -1 + torch.log1p(torch.exp(inner + shift))
    used = direction + (m - inner) * weight / weight.square().sum()
    z = torch.randn(4)
    torch.testing.assert_close(transform(z), z + used * torch.tanh(weight @ z + bias))
    torch.testing.assert_close(transform.slope, 1 + weight @ used)
    identity = PlanarTransform(weight, torch.zeros(4), bias)
    torch.testing.assert_close(identity(z), z)


def test_extreme_parameters_stay_finite() -> None:
    for weight, direction in [
        (torch.zeros(3), torch.ones(3)),
        (torch.full((3,), 1e-30), torch.ones(3)),
        (torch.ones(3), torch.full((3,), -20.0)),
        (torch.ones(3), torch.full((3,), 1e5)),
    ]:
        for dtype in (torch.float64, torch.float32):
            leaves = [value.to(dtype).requires_grad_() for value in (weight, direction)]
            used, slope = invertible_direction(*leaves)
            assert used.isfinite().all() and slope > 0
            gradients = torch.autograd.grad(used.sum() + slope, leaves)
            assert all(gradient.isfinite().all() for gradient in gradients)


# -- the density ---------------------------------------------------------------------------------


def literal_flow(density: PlanarFlowDensity, parameters, z: torch.Tensor) -> torch.Tensor:
    """theta of one z, map after map."""
    for weight, direction, bias in zip(
        parameters["weight"], parameters["direction"], parameters["bias"], strict=True
    ):
        used, _ = invertible_direction(weight, direction)
        z = z + used * torch.tanh(weight @ z + bias)
    scale = torch.nn.functional.softplus(parameters["scale_unconstrained"])
    return parameters["loc"] + scale * z


def test_log_prob_is_the_change_of_variables() -> None:
    density, parameters = bent(model)
    z = torch.randn(6, DIM)
    for point in z:
        theta = literal_flow(density, parameters, point)
        jacobian = torch.autograd.functional.jacobian(
            lambda x: literal_flow(density, parameters, x), point
        )
        base = dist.Normal(torch.zeros(DIM), 1.0).log_prob(point).sum()
        expected = base - torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(density.log_prob(parameters, theta), expected)


def test_the_hosts_posterior_is_the_same_density() -> None:
    density, parameters = bent(model)
    density.write_back(parameters)
    guide = density.guide
    theta = 2 * torch.randn(6, DIM)
    expected = density.log_prob(parameters, theta)
    torch.testing.assert_close(guide.get_posterior().log_prob(theta), expected)
    # Nothing remembers what it drew last: the drawn tensor and its copy have one log density.
    posterior = guide.get_posterior()
    drawn = posterior.rsample((4,))
    log_prob = posterior.log_prob(drawn)
    torch.testing.assert_close(posterior.log_prob(drawn.detach().clone()), log_prob)
    torch.testing.assert_close(posterior.log_prob(theta), expected)
    torch.testing.assert_close(
        density.log_prob(parameters, theta.reshape(2, 3, DIM)).flatten(), expected
    )


def test_density_integrates_to_one() -> None:
    density, parameters = bent(plain(1))
    grid = torch.linspace(-60, 60, 40_001).unsqueeze(-1)
    values = density.log_prob(parameters, grid).exp()
    assert torch.trapezoid(values, grid[:, 0]) == pytest.approx(1.0, abs=1e-8)

    density, parameters = bent(plain(2))
    axis = torch.linspace(-40, 40, 1201)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    values = density.log_prob(parameters, grid).exp()
    # The trapezoid rule on a smooth function that has died away at the ends.
    total = values.sum() * (axis[1] - axis[0]) ** 2
    assert total == pytest.approx(1.0, abs=1e-5)


def test_score_is_the_slope_of_the_log_density() -> None:
    density, parameters = bent(model)
    theta, step = 2 * torch.randn(4, DIM), 1e-5
    points = step * torch.eye(DIM)
    centre = theta.unsqueeze(-2)
    slopes = density.log_prob(parameters, centre + points) - density.log_prob(
        parameters, centre - points
    )
    score = density.score(parameters, theta)
    torch.testing.assert_close(score, slopes / (2 * step), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(density.score(parameters, theta[0]), score[0])
    stacked = density.score(parameters, theta.reshape(2, 2, DIM))
    torch.testing.assert_close(stacked, score.reshape(2, 2, DIM))
    # Automatic differentiation of the map-by-map inverse.
    torch.testing.assert_close(FlatDensity(density.guide).score(parameters, theta), score)


def test_residual_gradient_agrees_with_double_differentiation_and_differences() -> None:
    density, parameters = bent(model)
    theta, target = 2 * torch.randn(3, DIM), torch.randn(3, DIM)
    value, gradient = density.mean_square_residual(parameters, theta, target)
    expected, expected_gradient = FlatDensity(density.guide).mean_square_residual(
        parameters, theta, target
    )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-8)

    def value_at(name: str, change: torch.Tensor) -> torch.Tensor:
        changed = {**parameters, name: parameters[name] + change}
        return density.mean_square_residual(changed, theta, target)[0]

    step = 1e-6
    for name, entry in gradient.items():
        direction = torch.randn_like(entry)
        slope = (value_at(name, step * direction) - value_at(name, -step * direction)) / (2 * step)
        torch.testing.assert_close((entry * direction).sum(), slope, rtol=1e-5, atol=1e-5)


def test_second_derivatives_of_the_score() -> None:
    """``score`` may be differentiated twice itself, as ``log_prob`` three times."""
    density, parameters = bent(plain(2), num_flows=2)
    theta = torch.randn(2)

    def hessian(weight: torch.Tensor) -> torch.Tensor:
        def value(weight: torch.Tensor) -> torch.Tensor:
            return density.score({**parameters, "weight": weight}, theta).square().sum()

        return torch.autograd.functional.hessian(value, weight).reshape(4, 4)

    def gradient(weight: torch.Tensor) -> torch.Tensor:
        weight = weight.clone().requires_grad_()
        value = density.score({**parameters, "weight": weight}, theta).square().sum()
        return torch.autograd.grad(value, weight)[0].flatten()

    weight, step = parameters["weight"], 1e-6
    expected = [
        gradient(weight + step * point.reshape(2, 2))
        - gradient(weight - step * point.reshape(2, 2))
        for point in torch.eye(4)
    ]
    torch.testing.assert_close(
        hessian(weight), torch.stack(expected) / (2 * step), rtol=1e-5, atol=1e-5
    )


def test_samples_have_the_score_identities_of_their_density() -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    density, parameters = bent(model)
    number = 100_000
    theta = density.sample(parameters, seeded_generator(1), number)
    assert theta.shape == (number, DIM) and not theta.requires_grad
    assert torch.equal(theta, density.sample(parameters, seeded_generator(1), number))
    with torch.no_grad():
        score = density.score(parameters, theta)
    products = theta.unsqueeze(-1) * score.unsqueeze(-2)
    for draws, expected in [(score, torch.zeros(DIM)), (products, -torch.eye(DIM))]:
        standard_error = draws.std(0) / number**0.5
        assert ((draws.mean(0) - expected).abs() < 5 * standard_error).all()


@pytest.mark.parametrize("dim", [1, 5, 200])
def test_start_is_close_to_a_normal_of_the_initial_scale(dim) -> None:
    density = flat_density(AutoPlanarFlow(plain(dim), init_scale=0.2))
    parameters = density.initial_parameters()
    assert (parameters["weight"] != 0).all() and (parameters["direction"] != 0).all()
    theta = density.sample(parameters, seeded_generator(2), 4000)
    near = dist.Normal(parameters["loc"], 0.2).log_prob(theta).sum(-1)
    ratio = density.log_prob(parameters, theta) - near
    # The divergence from the Normal.
    assert abs(ratio.mean()) < 0.05 and ratio.std() < 0.5


def test_start_depends_on_the_seed_alone() -> None:
    first, again, other = (
        flat_density(AutoPlanarFlow(model), seed=seed).initial_parameters() for seed in (1, 1, 2)
    )
    assert all(torch.equal(again[name], value) for name, value in first.items())
    assert not torch.equal(first["weight"], other["weight"])


def test_dtype() -> None:
    density = flat_density(AutoPlanarFlow(model), dtype=torch.float32)
    parameters = density.initial_parameters()
    theta = density.sample(parameters, seeded_generator(0), 3)
    assert theta.dtype == density.score(parameters, theta).dtype == torch.float32
    assert density.log_prob(parameters, theta).dtype == torch.float32
    posterior = density.guide.get_posterior()
    assert posterior.log_prob(posterior.sample()).dtype == torch.float32


def test_medians_and_quantiles_are_refused_with_what_to_do() -> None:
    guide = AutoPlanarFlow(model)
    guide()
    for ask in (guide.median, lambda: guide.quantiles(0.5)):
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


# -- the host, and fits --------------------------------------------------------------------------


def test_guide_is_usable_in_the_host() -> None:
    density, parameters = bent(model)
    guide = density.guide
    density.write_back(parameters)
    draws = Predictive(model, guide=guide, num_samples=300)()
    assert draws["p"].shape == (300, 3) and (draws["a"] > 0).all()
    torch.testing.assert_close(draws["p"].sum(-1), torch.ones(300))
    reference = density.sample(parameters, seeded_generator(3), 20_000)
    error = draws["a"].log().mean() - reference[:, 2].mean()
    assert error.abs() < 5 * reference[:, 2].std() / 300**0.5

    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO(4, vectorize_particles=True))
    svi.step()
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    for name, value in density.initial_parameters().items():
        moved = (value - parameters[name]).abs()
        assert 0 < moved.max() < 1.1e-3, name


def test_host_svi_lowers_its_loss_on_a_skewed_target() -> None:
    def skewed() -> None:
        pyro.sample("x", dist.Gamma(torch.tensor([1.5, 1.5]), 1.0).to_event(1))

    guide = AutoPlanarFlow(skewed, 2, init_scale=0.5)
    optim = pyro.optim.Adam({"lr": 0.02})
    svi = SVI(skewed, guide, optim, Trace_ELBO(16, vectorize_particles=True))
    losses = [svi.step() for _ in range(300)]
    # The least loss is zero, for the exact posterior.
    assert np.mean(losses[-50:]) < 0.3 * np.mean(losses[:5])
    assert np.mean(losses[-50:]) < 0.1


def banana() -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("b", dist.Normal(0.5 * a**2, 0.5))


def forward_kl(engine: ProximalScoreVI) -> float:
    """KL(target | guide) from exact draws of the target; standard error about 0.02."""
    draws = np.random.default_rng(0).normal(size=(2, 20_000))
    theta = torch.tensor(np.stack([draws[0], 0.5 * draws[0] ** 2 + 0.5 * draws[1]], -1))
    log_p = dist.Normal(0.0, 1.0).log_prob(torch.tensor(draws)).sum(0) - math.log(0.5)
    with torch.no_grad():
        return float((log_p - engine.density.log_prob(engine.parameters, theta)).mean())


@pytest.mark.slow
def test_flow_follows_a_banana_where_a_diagonal_normal_cannot() -> None:
    divergences = {}
    for guide_class in (AutoPlanarFlow, AutoDiagonalNormal):
        guide = guide_class(banana, init_scale=0.5)
        # More draws and steps than by default, which is made for less tame targets.
        optim = CosineAnnealingLR(
            {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.01}, "T_max": 20_000}
        )
        engine = ProximalScoreVI(
            banana, guide, solver=GradientSteps(optim, num_samples=32, num_inner_steps=20), seed=0
        )
        engine.run(1000, progress_bar=False)
        divergences[guide_class] = forward_kl(engine)
    assert divergences[AutoPlanarFlow] < 0.1
    assert divergences[AutoDiagonalNormal] > 1.0


@pytest.mark.filterwarnings(*support.IGNORED)
def test_flow_lowers_the_residual_of_a_banana() -> None:
    engine = ProximalScoreVI(
        banana,
        AutoPlanarFlow(banana, 2, init_scale=0.5),
        solver=GradientSteps(num_samples=8, num_inner_steps=5, optim=pyro.optim.Adam({"lr": 0.02})),
        seed=0,
    )
    result = engine.run(250, progress_bar=False)
    assert np.median(result.losses[-50:]) < 0.3 * np.median(result.losses[:20])
    converted = to_arviz(engine, num_samples=50)
    assert support.values(converted, "posterior", "b").shape[-1] == 50
