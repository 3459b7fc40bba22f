"""Mixtures of Normals as a guide, in Pyro."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import init_to_value
from scipy import optimize, special, stats

from ppl_ext.errors import ArgumentError
from pyro_ext import ProximalScoreVI
from pyro_ext.diagnostics import to_arviz
from pyro_ext.engine import seeded_generator
from pyro_ext.guides import (
    AutoGaussianMixture,
    FlatDensity,
    GaussianMixtureDensity,
    flat_density,
)

torch.set_default_dtype(torch.float64)

COVARIANCES = ["diag", "full", "low_rank"]
DIM, COMPONENTS, RANK = 3, 4, 2


def model() -> None:
    """Sites on purpose not in alphabetical order, one of them constrained."""
    pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("a", dist.LogNormal(0.0, 1.0))


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(20260101)
        yield


def random_mixture(covariance: str) -> tuple[FlatDensity, dict[str, torch.Tensor]]:
    """A guide's density and random parameters, which the guide holds too."""
    options = {"rank": RANK} if covariance == "low_rank" else {}
    density = flat_density(AutoGaussianMixture(model, COMPONENTS, covariance, **options))
    parameters = {
        name: value + 0.7 * torch.randn_like(value)
        for name, value in density.initial_parameters().items()
    }
    density.write_back(parameters)
    return density, parameters


def dense(guide: AutoGaussianMixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and dense covariances, read from the guide's parameters by definition."""
    logits, loc, scales = (
        value.detach().numpy() for value in (guide.logits, guide.loc, guide.scale)
    )
    covariances = []
    for k, scale in enumerate(scales):
        inner = np.eye(len(scale))
        if guide.covariance == "full":
            unit = guide.scale_tril[k].detach().numpy()
            inner = unit @ unit.T
        elif guide.covariance == "low_rank":
            factor = guide.cov_factor[k].detach().numpy()
            inner = inner + factor @ factor.T
        covariances.append(np.diag(scale) @ inner @ np.diag(scale))
    return special.softmax(logits), loc, np.asarray(covariances)


def mixture_log_prob(mixture: tuple[np.ndarray, ...], theta: np.ndarray) -> np.ndarray:
    components = [
        np.log(weight) + stats.multivariate_normal(mean, covariance).logpdf(theta)
        for weight, mean, covariance in zip(*mixture, strict=True)
    ]
    return special.logsumexp(components, axis=0)


def random_points(number: int) -> np.ndarray:
    return 2.0 * np.random.default_rng(1).normal(size=(number, DIM))


def assert_near(actual: torch.Tensor, expected: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(
        actual.detach().numpy(), expected, **({"rtol": 1e-10, "atol": 1e-12} | tolerance)
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_log_prob_is_that_of_the_mixture(covariance: str) -> None:
    density, parameters = random_mixture(covariance)
    assert isinstance(density, GaussianMixtureDensity)
    assert density.covariance_structure is None
    theta = random_points(6)
    expected = mixture_log_prob(dense(density.guide), theta)
    points = torch.tensor(theta)
    assert_near(density.log_prob(parameters, points), expected)
    assert_near(density.log_prob(parameters, points[0]), expected[0])
    posterior = density.guide.get_posterior()
    assert posterior.event_shape == (DIM,) and posterior.batch_shape == ()
    stacked = posterior.log_prob(points.reshape(2, 3, DIM))
    assert_near(stacked, expected.reshape(2, 3))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_score_is_the_slope_of_the_log_density(covariance: str) -> None:
    density, parameters = random_mixture(covariance)
    theta, step, mixture = random_points(6), 1e-5, dense(density.guide)
    slopes = [
        mixture_log_prob(mixture, theta + shift) - mixture_log_prob(mixture, theta - shift)
        for shift in step * np.eye(DIM)
    ]
    expected = np.stack(slopes, -1) / (2 * step)
    points = torch.tensor(theta)
    assert_near(density.score(parameters, points), expected, rtol=1e-6, atol=1e-7)
    assert_near(density.score(parameters, points[0]), expected[0], rtol=1e-6, atol=1e-7)
    stacked = density.score(parameters, points.reshape(2, 3, DIM))
    assert_near(stacked, expected.reshape(2, 3, DIM), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_residual_gradient_agrees_with_double_differentiation(covariance: str) -> None:
    density, parameters = random_mixture(covariance)
    theta, target = torch.randn(2, 3, DIM)
    value, gradient = density.mean_square_residual(parameters, theta, target)

    leaves = {name: entry.clone().requires_grad_() for name, entry in parameters.items()}
    point = theta.clone().requires_grad_()
    log_prob = FlatDensity.log_prob(density, leaves, point).sum()
    (score,) = torch.autograd.grad(log_prob, point, create_graph=True)
    expected = (score - target).square().sum(-1).mean()
    gradients = torch.autograd.grad(expected, list(leaves.values()))
    torch.testing.assert_close(value, expected.detach())
    assert set(gradient) == set(leaves)
    for name, entry in zip(leaves, gradients, strict=True):
        torch.testing.assert_close(gradient[name], entry, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_draws_have_the_moments_and_the_score_identities_of_the_mixture(covariance: str) -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    density, parameters = random_mixture(covariance)
    weights, means, covariances = dense(density.guide)
    mean = weights @ means
    second = np.einsum("k,kij->ij", weights, covariances)
    second += np.einsum("k,ki,kj->ij", weights, means, means)
    scale_tril = np.linalg.cholesky(second - np.outer(mean, mean))
    assert_near(density.moments(parameters).mean, mean)
    assert_near(density.moments(parameters).scale, scale_tril)
    assert_near(density.guide.get_posterior().variance, np.square(scale_tril).sum(-1))

    number = 100_000
    theta = density.sample(parameters, seeded_generator(1), number)
    assert theta.shape == (number, DIM) and not theta.requires_grad
    score = density.score(parameters, theta)
    for draws, expected in [
        (theta, torch.tensor(mean)),
        (theta.unsqueeze(-1) * theta.unsqueeze(-2), torch.tensor(second)),
        (score, torch.zeros(DIM)),
        (theta.unsqueeze(-1) * score.unsqueeze(-2), -torch.eye(DIM)),
    ]:
        standard_error = draws.std(0) / number**0.5
        assert ((draws.mean(0) - expected).abs() < 5 * standard_error).all()
    before = torch.get_rng_state()
    assert torch.equal(density.sample(parameters, seeded_generator(1), number), theta)
    assert torch.equal(torch.get_rng_state(), before)


def plain() -> None:
    pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def separated(temperature: float = 0.05) -> AutoGaussianMixture:
    """Three far components in two dimensions, which a draw's place tells apart."""
    guide = AutoGaussianMixture(plain, 3, "diag", temperature=temperature)
    guide._setup_prototype()
    guide.logits.data = torch.tensor([0.2, 0.5, 0.3]).log() + 4.0
    guide.loc.data = torch.tensor([[-50.0, 0.0], [0.0, 10.0], [50.0, 5.0]])
    guide.scale = torch.tensor([[1.0, 2.0], [0.5, 1.0], [2.0, 0.1]])
    return guide


def component_of(draws: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(draws[:, 0].contiguous(), torch.tensor([-25.0, 25.0]))


@pytest.mark.parametrize("source", ["guide", "Predictive", "with gradients"])
def test_host_draws_fall_into_each_component_with_its_weight(source: str) -> None:
    guide, number = separated(), 20_000
    if source == "guide":
        with torch.no_grad(), pyro.plate("draws", number, dim=-1):
            draws = guide()["x"]
    elif source == "Predictive":
        draws = Predictive(plain, guide=guide, num_samples=number, parallel=True)()["x"]
    else:
        draws = guide.get_posterior().rsample((number,)).detach()
    draws = draws.reshape(number, 2)
    component = component_of(draws)
    for k, weight in enumerate([0.2, 0.5, 0.3]):
        mine = draws[component == k]
        error = (weight * (1 - weight) / number) ** 0.5
        assert len(mine) / number == pytest.approx(weight, abs=5 * error)
        standard = ((mine - guide.loc[k]) / guide.scale[k]).detach().numpy()
        # The draws within a component are that Normal's, no blend of several.
        for coordinate in standard.T:
            assert stats.kstest(coordinate, "norm").pvalue > 1e-4


def draw_gradients(
    guide: AutoGaussianMixture, number: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draws, and the derivatives (2, 3) and (2, 3, 2) of their mean in logits and means."""
    draws = guide.get_posterior().rsample((number,))
    gradients = [
        torch.autograd.grad(draws[:, i].mean(), [guide.logits, guide.loc], retain_graph=True)
        for i in range(2)
    ]
    by_logits, by_loc = (torch.stack(entries) for entries in zip(*gradients, strict=True))
    return draws.detach(), by_logits, by_loc


def test_gradient_of_a_draw_goes_to_its_component_and_softly_to_the_logits() -> None:
    guide, size = separated(), 500
    batches = [draw_gradients(guide, size) for _ in range(100)]
    for draws, _, by_loc in batches:
        # d draw_i / d loc_kj is 1 for the chosen k and i = j, else exactly 0.
        share = component_of(draws).bincount(minlength=3) / size
        torch.testing.assert_close(by_loc, torch.einsum("k,ij->ikj", share, torch.eye(2)))
    # For a linear function the exact gradient is w_k (mu_k - mean); the softmax of temperature
    # 0.05 smooths the difference of two Gumbels by that width, which is below one per cent.
    weights, means = guide.logits.detach().softmax(-1), guide.loc.detach()
    exact = (weights.unsqueeze(-1) * (means - weights @ means)).T
    by_logits = torch.stack([entry for _, entry, _ in batches])
    error = by_logits.std(0) / len(batches) ** 0.5
    bias = 0.01 * exact.abs().max()
    assert ((by_logits.mean(0) - exact).abs() < 5 * error + bias).all()
    # A low temperature keeps most draws far from a tie, where the softmax is flat.
    sharp = separated(temperature=1e-3)
    slopes = torch.stack([draw_gradients(sharp, 1)[1].abs().max() for _ in range(300)])
    assert (slopes < 1e-3).double().mean() > 0.9


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_quantiles_invert_the_distribution_function_of_each_coordinate(covariance: str) -> None:
    density, _ = random_mixture(covariance)
    weights, means, covariances = dense(density.guide)
    levels = [1e-6, 0.05, 0.5, 0.99]
    expected = np.empty((len(levels), DIM))
    for d in range(DIM):
        scale = np.sqrt(covariances[:, d, d])
        for row, level in enumerate(levels):
            expected[row, d] = optimize.brentq(
                lambda x, d=d, s=scale, p=level: weights @ special.ndtr((x - means[:, d]) / s) - p,
                -100.0,
                100.0,
                xtol=1e-13,
            )
    # The flat order is that of the sites.
    for given in (levels, torch.tensor(levels)):
        actual = density.guide.quantiles(given)
        assert_near(actual["z"], expected[:, :2], rtol=1e-8)
        assert_near(actual["a"], np.exp(expected[:, 2]), rtol=1e-8)
    median = density.guide.median()
    assert_near(median["z"], expected[2, :2], rtol=1e-8)
    assert_near(median["a"], np.exp(expected[2, 2]), rtol=1e-8)


def test_quantiles_at_the_ends_and_between_distant_modes() -> None:
    guide = separated()
    ends = guide.get_posterior().quantile(torch.tensor([0.0, 1.0, 1.5]))
    assert (ends[0] == -torch.inf).all() and (ends[1] == torch.inf).all()
    assert ends[2].isnan().all()
    # Nothing lies between the two modes: the middle is the median, to the rounding of where the
    # function is flat (about 42 on either side), not an edge of one of them.
    guide.logits.data = torch.tensor([0.0, 0.0, -torch.inf])
    guide.loc.data = torch.tensor([[-50.0, 1.0], [50.0, 1.0], [0.0, 0.0]])
    guide.scale = torch.ones(3, 2)
    assert_near(guide.median()["x"], [0.0, 1.0], atol=0.1)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_extreme_scales_and_far_points_stay_finite_in_single_precision(covariance: str) -> None:
    density, _ = random_mixture(covariance)
    guide = density.guide
    sizes = torch.tensor([1e-6, 1e-2, 1.0, 1e6]).unsqueeze(-1)
    guide.scale = guide.scale.detach() * sizes
    theta = random_points(4) * np.array([1e-3, 1.0, 1e4, 1e8])[:, None]
    values = {}
    for dtype in (torch.float64, torch.float32):
        guide.to(dtype)
        posterior, point = guide.get_posterior(), torch.tensor(theta, dtype=dtype)
        values[dtype] = posterior.log_prob(point), posterior.score(point)
        values[dtype][1].square().mean().backward()
        for parameter in guide.parameters():
            assert parameter.grad.dtype == dtype
            assert parameter.grad.isfinite().all()
        guide.zero_grad()
    for single, double in zip(values[torch.float32], values[torch.float64], strict=True):
        assert single.dtype == torch.float32
        assert_near(single, double.detach().numpy(), rtol=2e-4)


def test_initial_values() -> None:
    """Means apart by ``init_scale``, around the initial location; equal weights and scales."""
    number, scale = 400, 0.5
    start = init_to_value(values={"z": torch.ones(2), "a": torch.tensor(1.0)})
    for covariance in COVARIANCES:
        guide = AutoGaussianMixture(
            model, number, covariance, init_scale=scale, init_spread=1.0, init_loc_fn=start
        )
        parameters = flat_density(guide, seed=1).initial_parameters()
        assert (guide.logits == 0).all()
        error = scale / number**0.5
        assert_near(guide.loc.mean(0), [1.0, 1.0, 0.0], atol=5 * error)
        assert_near(guide.loc.std(0), scale, atol=5 * error)
        _, _, covariances = dense(guide)
        variances = np.diagonal(covariances, axis1=1, axis2=2)
        if covariance == "low_rank":
            # On average over the draws of the factor, whose gradient would be zero at zero.
            assert guide.cov_factor.shape == (number, DIM, RANK)
            error = variances.std() / variances.size**0.5
            assert variances.mean() == pytest.approx(scale**2, abs=5 * error)
        else:
            np.testing.assert_allclose(covariances, scale**2 * np.tile(np.eye(DIM), (number, 1, 1)))
        for seed, same in [(1, True), (2, False)]:
            other = AutoGaussianMixture(
                model, number, covariance, init_scale=scale, init_spread=1.0, init_loc_fn=start
            )
            again = flat_density(other, seed=seed).initial_parameters()
            assert torch.equal(again["loc"], parameters["loc"]) is same


def test_components_start_from_narrow_to_wide() -> None:
    found = {}
    for number, spread in [(1, 4.0), (3, 4.0), (3, 1.0)]:
        guide = AutoGaussianMixture(model, number, "diag", init_scale=0.5, init_spread=spread)
        flat_density(guide)
        found[number, spread] = guide.scale.detach().numpy()
    np.testing.assert_allclose(found[1, 4.0], [[0.5] * DIM], rtol=1e-6)
    np.testing.assert_allclose(found[3, 4.0], np.outer([0.125, 0.5, 2.0], np.ones(DIM)), rtol=1e-6)
    np.testing.assert_allclose(found[3, 1.0], np.full((3, DIM), 0.5), rtol=1e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_density_in_another_precision(covariance: str) -> None:
    guide = AutoGaussianMixture(model, 2, covariance)
    density = flat_density(guide, dtype=torch.float32)
    parameters = density.initial_parameters()
    theta = density.sample(parameters, seeded_generator(1), 3)
    values = [*parameters.values(), theta, density.score(parameters, theta)]
    assert all(value.dtype == torch.float32 for value in values)


def test_guide_can_be_copied_and_its_parameters_loaded() -> None:
    density, _ = random_mixture("full")
    theta = torch.tensor(random_points(3))
    expected = density.guide.get_posterior().log_prob(theta)
    assert torch.equal(copy.deepcopy(density.guide).get_posterior().log_prob(theta), expected)
    other = AutoGaussianMixture(model, COMPONENTS)
    other._setup_prototype()
    other.load_state_dict(density.guide.state_dict())
    assert torch.equal(other.get_posterior().log_prob(theta), expected)


WRONG = [
    ({"num_components": 0}, "num_components"),
    ({"num_components": 2.0}, "num_components"),
    ({"covariance": "banded"}, "covariance"),
    ({"rank": 1}, "no rank with covariance='full'"),
    ({"covariance": "diag", "rank": 1}, "no rank with covariance='diag'"),
    ({"covariance": "low_rank", "rank": 0}, "rank"),
    ({"init_scale": 0.0}, "init_scale"),
    ({"init_scale": float("nan")}, "init_scale"),
    ({"temperature": 0.0}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_bad_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"Expected.*{message}.*found"):
        AutoGaussianMixture(model, **({"num_components": 2} | options))


def test_a_rank_above_the_number_of_latents_is_refused() -> None:
    guide = AutoGaussianMixture(model, 2, "low_rank", rank=DIM)
    flat_density(guide)
    guide = AutoGaussianMixture(model, 2, "low_rank", rank=DIM + 1)
    with pytest.raises(ArgumentError, match=r"at most the number of latents, 3, found rank=4"):
        flat_density(guide)


# -- fits ----------------------------------------------------------------------------------------

WEIGHTS = np.array([0.3, 0.7])
MEANS = np.array([[-2.0, 0.0], [2.0, 1.0]])
ROOTS = np.array([[[1.0, 0.0], [0.5, 0.8]], [[0.7, 0.0], [-0.4, 1.2]]])
#: The same without correlations inside the components, for guides that cannot have them.
UNCORRELATED = ROOTS * np.eye(2)


def two_components(roots: np.ndarray) -> None:
    """Two overlapping components, so that a path of scores leads from one to the other.

    Written with a factor, since the host's mixtures have no bijection to their support.
    """
    wide = dist.Normal(torch.zeros(2), 3.0).to_event(1)
    x = pyro.sample("x", wide)
    components = dist.MultivariateNormal(torch.tensor(MEANS), scale_tril=torch.tensor(roots))
    log_density = components.log_prob(x.unsqueeze(-2)) + torch.tensor(WEIGHTS).log()
    pyro.factor("mixture", log_density.logsumexp(-1) - wide.log_prob(x))


def bimodal() -> None:
    two_components(ROOTS)


def forward_divergence(
    guide: AutoGaussianMixture, roots: np.ndarray = ROOTS
) -> tuple[float, float]:
    """KL(target | guide) and its standard error, from draws of the target."""
    draws = np.random.default_rng(7)
    number = 20_000
    index = draws.choice(2, number, p=WEIGHTS)
    theta = MEANS[index] + np.einsum("nij,nj->ni", roots[index], draws.normal(size=(number, 2)))
    target = (WEIGHTS, MEANS, roots @ roots.transpose(0, 2, 1))
    ratio = mixture_log_prob(target, theta) - mixture_log_prob(dense(guide), theta)
    return ratio.mean(), ratio.std() / number**0.5


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_host_svi_fits_the_components(covariance: str) -> None:
    guide = AutoGaussianMixture(bimodal, 2, covariance, init_spread=1.0)
    guide._setup_prototype()
    # On either side: from random starts, two components often share a mode.
    guide.loc.data = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    svi = SVI(
        bimodal,
        guide,
        pyro.optim.Adam({"lr": 0.02}),
        Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=0),
    )
    losses = [svi.step() for _ in range(500)]
    # Loosely, since the weights' gradient is biased and leaves them badly determined.
    assert np.mean(losses[-100:]) < 0.5 * np.mean(losses[:20])
    assert_near(guide.loc, MEANS, atol=0.5)


def test_proximal_fit_recovers_a_mixture(tmp_path) -> None:
    guide = AutoGaussianMixture(bimodal, 2)
    engine = ProximalScoreVI(bimodal, guide, seed=1)
    engine.run(600, progress_bar=False)
    divergence, error = forward_divergence(guide)
    assert divergence < 0.01 + 3 * error

    assert engine.get_samples(500)["x"].shape == (500, 2)
    assert to_arviz(engine).posterior["x"].shape[-1] == 2
    engine.save(tmp_path / "fit")
    again = AutoGaussianMixture(bimodal, 2)
    other = ProximalScoreVI(bimodal, again, seed=2)
    other.setup()
    other.load(tmp_path / "fit")
    for name, parameter in guide.named_parameters():
        assert torch.equal(dict(again.named_parameters())[name], parameter)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_proximal_fit_recovers_a_mixture_to_the_last_digit(covariance: str) -> None:
    """More components than the target has must do no harm."""
    roots = UNCORRELATED if covariance == "diag" else ROOTS
    model = functools.partial(two_components, roots)
    guide = AutoGaussianMixture(model, 3, covariance)
    ProximalScoreVI(model, guide, seed=1).run(5000, progress_bar=False)
    divergence, error = forward_divergence(guide, roots)
    assert divergence < 0.002 + 3 * error
