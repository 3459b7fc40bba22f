"""The flat log density of Pyro's guides."""

from __future__ import annotations

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import block_autoregressive, iterated
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoDiscreteParallel,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalizingFlow,
    AutoStructured,
)
from torch.distributions import constraints, transform_to
from torch.distributions.transforms import ExpTransform

from ppl_ext.errors import ArgumentError
from pyro_ext.density.layout import Layout
from pyro_ext.guides import (
    DiagonalNormalDensity,
    FlatDensity,
    Moments,
    flat_density,
    refuse_flat_density,
    register_flat_density,
)
from pyro_ext.guides.flat_density import _REGISTRY

torch.set_default_dtype(torch.float64)

NORMALS = [AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]


def model() -> None:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("p", dist.Dirichlet(torch.ones(3)))


LAYOUT = Layout(("z", "a", "p"), {"z": (2,), "a": (), "p": (2,)})
DIM = 5


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random_parameters(density: FlatDensity) -> dict[str, torch.Tensor]:
    return {
        name: value + 0.7 * torch.randn_like(value)
        for name, value in density.initial_parameters().items()
    }


def host_log_prob(density: FlatDensity, parameters, theta: torch.Tensor) -> torch.Tensor:
    """Through the host's own get_posterior, with the parameters written into the guide."""
    density.write_back(parameters)
    return density.guide.get_posterior().log_prob(theta)


@pytest.mark.parametrize("guide_class", [*NORMALS, AutoIAFNormal])
def test_log_prob_and_score_agree_with_the_host(guide_class) -> None:
    guide = guide_class(model)
    density = flat_density(guide, layout=LAYOUT)
    parameters = random_parameters(density)
    theta = torch.randn(7, DIM)

    expected = host_log_prob(density, parameters, theta)
    torch.testing.assert_close(density.log_prob(parameters, theta), expected)

    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(host_log_prob(density, parameters, leaf).sum(), leaf)
    torch.testing.assert_close(density.score(parameters, theta), expected)
    # A single point, and more than one leading dimension.
    torch.testing.assert_close(density.score(parameters, theta[0]), expected[0])
    stacked = density.score(parameters, theta[:6].reshape(2, 3, DIM))
    torch.testing.assert_close(stacked, expected[:6].reshape(2, 3, DIM))


@pytest.mark.parametrize("guide_class", [*NORMALS, AutoIAFNormal])
def test_residual_gradient_agrees_with_double_differentiation(guide_class) -> None:
    density = flat_density(guide_class(model))
    parameters = random_parameters(density)
    theta, target = torch.randn(3, DIM), torch.randn(3, DIM)
    value, gradient = density.mean_square_residual(parameters, theta, target)

    leaves = {name: entry.clone().requires_grad_() for name, entry in parameters.items()}
    point = theta.clone().requires_grad_()
    log_prob = FlatDensity.log_prob(density, leaves, point).sum()
    (score,) = torch.autograd.grad(log_prob, point, create_graph=True)
    expected = (score - target).square().sum(-1).mean()
    expected_gradient = torch.autograd.grad(expected, list(leaves.values()), allow_unused=True)
    torch.testing.assert_close(value, expected.detach())
    for name, entry in zip(leaves, expected_gradient, strict=True):
        # A shift that cancels in the score has no gradient at all.
        entry = torch.zeros_like(leaves[name]) if entry is None else entry
        torch.testing.assert_close(gradient[name], entry, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("guide_class", [*NORMALS, AutoIAFNormal])
def test_samples_have_the_score_identities_of_their_density(guide_class) -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    density = flat_density(guide_class(model))
    parameters = random_parameters(density)
    number = 100_000
    generator = torch.Generator().manual_seed(1)
    theta = density.sample(parameters, generator, number)
    assert theta.shape == (number, DIM) and not theta.requires_grad
    score = density.score(parameters, theta)
    products = theta.unsqueeze(-1) * score.unsqueeze(-2)
    for draws, expected in [(score, torch.zeros(DIM)), (products, -torch.eye(DIM))]:
        standard_error = draws.std(0) / number**0.5
        assert ((draws.mean(0) - expected).abs() < 5 * standard_error).all()
    again = density.sample(parameters, torch.Generator().manual_seed(1), number)
    assert torch.equal(theta, again)


@pytest.mark.parametrize("guide_class", NORMALS)
def test_moments(guide_class) -> None:
    density = flat_density(guide_class(model))
    parameters = random_parameters(density)
    density.write_back(parameters)
    posterior = density.guide.get_posterior()
    mean, scale = density.moments(parameters)
    covariance = torch.diag(scale.square()) if scale.dim() == 1 else scale @ scale.T
    torch.testing.assert_close(mean, posterior.mean)
    if scale.dim() == 1:
        torch.testing.assert_close(scale.square(), posterior.variance)
    else:
        torch.testing.assert_close(covariance, posterior.covariance_matrix)


def test_set_moments_is_the_inverse_of_moments() -> None:
    mean, root = torch.randn(DIM), torch.randn(DIM, DIM)
    scale_tril = torch.linalg.cholesky(root @ root.T + 0.1 * torch.eye(DIM))
    for guide_class, scale in [
        (AutoDiagonalNormal, scale_tril.diagonal()),
        (AutoMultivariateNormal, scale_tril),
    ]:
        density = flat_density(guide_class(model))
        parameters = density.set_moments(density.initial_parameters(), Moments(mean, scale))
        torch.testing.assert_close(density.moments(parameters).mean, mean)
        torch.testing.assert_close(density.moments(parameters).scale, scale)
    density = flat_density(AutoLowRankMultivariateNormal(model))
    with pytest.raises(ArgumentError, match="AutoLowRankMultivariateNormal, which cannot be set"):
        density.set_moments(density.initial_parameters(), Moments(mean, scale_tril))
    density = flat_density(AutoIAFNormal(model))
    with pytest.raises(ArgumentError, match="AutoIAFNormal, whose moments have no closed form"):
        density.moments(density.initial_parameters())


class AboveZero(constraints.Constraint):
    """Of positive numbers, with the exponential alone; PyTorch's own adds a lower bound of 0."""

    def check(self, value: torch.Tensor) -> torch.Tensor:
        return value > 0


@transform_to.register(AboveZero)
def exponential(constraint: AboveZero) -> ExpTransform:
    return ExpTransform()


@pytest.mark.parametrize("constraint", [constraints.positive, AboveZero()])
def test_constraints_of_the_guide_are_honoured(constraint: constraints.Constraint) -> None:
    class Exponential(AutoDiagonalNormal):
        scale_constraint = constraint

    density = flat_density(Exponential(model))
    parameters = random_parameters(density)
    scale = density.moments(parameters).scale
    torch.testing.assert_close(scale, parameters["scale_unconstrained"].exp())
    theta, target = torch.randn(3, DIM), torch.randn(3, DIM)
    _, gradient = density.mean_square_residual(parameters, theta, target)
    _, expected = FlatDensity.mean_square_residual(density, parameters, theta, target)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("score", [-1e-3, -1e3, 1e3])
@pytest.mark.parametrize("unconstrained", [-3.0, 0.0])
def test_the_bound_on_gradients_holds_at_the_end_of_its_reach(
    score: float, unconstrained: float
) -> None:
    """Where the draws are at the mean, so that only the reach takes residuals away from zero."""
    density = flat_density(AutoDiagonalNormal(model))
    loc, reach = torch.linspace(-1.0, 1.0, DIM), 1.0
    scale = torch.linspace(unconstrained, unconstrained + 2.0, DIM)
    theta, scores = loc.expand(2, DIM), torch.full((2, DIM), score)
    parameters = {"loc": loc, "scale_unconstrained": scale}
    assert isinstance(density, DiagonalNormalDensity)
    bound = density.largest_gradient(parameters, theta, scores, reach)
    largest = 0.0
    for side in (-reach, reach):
        near = {"loc": loc + side, "scale_unconstrained": scale - reach}
        residual, gradient = density.residual_gradient(near, theta, scores)
        largest = max(largest, *(float(v.abs().max()) for v in (residual, *gradient.values())))
    assert largest <= bound < 10.0 * largest


@pytest.mark.parametrize("guide_class", NORMALS)
def test_guide_is_usable_in_the_host_afterwards(guide_class) -> None:
    guide = guide_class(model)
    density = flat_density(guide)
    parameters = random_parameters(density)
    density.write_back(parameters)
    mean, scale = density.moments(parameters)
    torch.testing.assert_close(guide.median()["z"], mean[:2])
    torch.testing.assert_close(guide.median()["a"], mean[2].exp())
    spread = scale if scale.dim() == 1 else scale.square().sum(-1).sqrt()
    normal = dist.Normal(mean, spread)
    quantile = guide.quantiles([0.9])["z"][0]
    torch.testing.assert_close(quantile, normal.icdf(torch.tensor(0.9))[:2])

    draws = Predictive(model, guide=guide, num_samples=4000)()
    error = (draws["a"].log().mean() - mean[2]).abs()
    assert error < 5 * spread[2] / 4000**0.5

    pyro.clear_param_store()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    svi.step()
    # Adam's first step is the learning rate, from where we left the guide.
    torch.testing.assert_close(guide.loc.detach(), mean, atol=1.1e-3, rtol=0)
    assert not torch.equal(guide.loc.detach(), mean)


def test_param_store_and_random_state_are_untouched() -> None:
    def model_with_parameter() -> None:
        scale = pyro.param("model_scale", torch.tensor(2.0), constraint=constraints.positive)
        pyro.sample("x", dist.Normal(0.0, scale))

    pyro.param("mine", torch.tensor(3.0))
    before = torch.get_rng_state()
    density = flat_density(AutoMultivariateNormal(model_with_parameter), seed=0)
    density.score(density.initial_parameters(), torch.zeros(2, 1))
    density.write_back(density.initial_parameters())
    flow = flat_density(AutoIAFNormal(model), seed=0)
    flow.score(flow.initial_parameters(), torch.zeros(2, DIM))
    flow.sample(flow.initial_parameters(), torch.Generator(), 2)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    assert pyro.param("mine").item() == 3.0
    assert torch.equal(torch.get_rng_state(), before)


def test_dtype() -> None:
    for guide_class in NORMALS:
        density = flat_density(guide_class(model), dtype=torch.float32)
        parameters = density.initial_parameters()
        theta = density.sample(parameters, torch.Generator(), 3)
        assert theta.dtype == torch.float32
        assert density.score(parameters, theta).dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"AutoIAFNormal, found torch.float32.*set_default"):
        flat_density(AutoIAFNormal(model), dtype=torch.float32)


REFUSED = [
    (AutoNormal, "AutoDiagonalNormal is its flat equal"),
    (AutoDelta, "point estimate"),
    (AutoStructured, "site by site"),
    (AutoGuideList, "list of guides"),
    (AutoDiscreteParallel, "discrete"),
    (AutoLaplaceApproximation, "laplace_approximation"),
]


@pytest.mark.parametrize(("guide_class", "reason"), REFUSED)
def test_guides_without_a_flat_density_are_refused_by_name(guide_class, reason) -> None:
    with pytest.raises(ArgumentError) as caught:
        flat_density(guide_class(model))
    message = str(caught.value)
    assert guide_class.__name__ in message
    assert reason in message
    assert "Use AutoDiagonalNormal, AutoMultivariateNormal" in message


class AutoBlockFlow(AutoNormalizingFlow):
    def __init__(self, model) -> None:
        super().__init__(model, partial(iterated, 1, block_autoregressive))


def test_flows_that_cannot_be_inverted_and_functions_are_refused() -> None:
    with pytest.raises(ArgumentError, match="AutoBlockFlow, which cannot be inverted"):
        flat_density(AutoBlockFlow(model))
    with pytest.raises(ArgumentError, match=r"Expected an autoguide object.*found model"):
        flat_density(model)
    guide = AutoLaplaceApproximation(model)
    guide()
    with pytest.raises(ArgumentError, match="fixed values"):
        flat_density(guide.laplace_approximation())


def test_registry_is_open() -> None:
    class Mine(AutoDiagonalNormal):
        pass

    @register_flat_density(Mine)
    class MineDensity(DiagonalNormalDensity):
        pass

    assert type(flat_density(Mine(model))) is MineDensity
    assert type(flat_density(AutoDiagonalNormal(model))) is DiagonalNormalDensity
    refuse_flat_density(Mine, "it is ours")
    with pytest.raises(ArgumentError, match="found Mine: it is ours"):
        flat_density(Mine(model))
    assert Mine not in _REGISTRY.factories


@pytest.mark.parametrize(
    "layout",
    [
        Layout(("a", "z", "p"), {"a": (), "z": (2,), "p": (2,)}),
        Layout(("z", "a", "p"), {"z": (3,), "a": (), "p": (2,)}),
        Layout(("z", "a"), {"z": (2,), "a": ()}),
    ],
)
def test_other_order_or_shapes_of_the_sites_are_refused(layout: Layout) -> None:
    with pytest.raises(ArgumentError, match="in this order"):
        flat_density(AutoDiagonalNormal(model), layout=layout)
