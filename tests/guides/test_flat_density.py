"""The flat log density of the hosts' guides."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.errors import ArgumentError
from tests import guides_support
from tests.backends import use_float64
from tests.guides_support import DIM, face_of, model_of, normal

use_float64()

NORMALS = ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"]
EVALUABLE = [*NORMALS, "AutoIAFNormal"]
#: Of the sites of :func:`tests.guides_support.model_of`.
SHAPES = {"z": (2,), "a": (), "p": (2,)}


def layout_of(face: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    return face.backend.room("density.layout").Layout(tuple(shapes), shapes)


@cache
def density_of(package: str, name: str) -> Any:
    face = face_of(package)
    small = package == "numpyro" and name == "AutoIAFNormal"
    options = {"num_flows": 2, "hidden_dims": [DIM]} if small else {}
    guide = getattr(face.autoguide, name)(model_of(package), **options)
    return face.density(guide, layout=layout_of(face, SHAPES))


def random_parameters(face: Any, density: Any) -> dict[str, Any]:
    # A flow with large random weights has tails too heavy for Monte Carlo.
    flow = type(density.guide).__name__ == "AutoIAFNormal"
    return face.random(density, 0.1 if flow else 0.7)


@pytest.mark.parametrize("name", EVALUABLE)
def test_log_prob_and_score_agree_with_the_host(face: Any, name: str) -> None:
    density = density_of(face.name, name)
    parameters, theta = random_parameters(face, density), normal(1, 6, DIM)
    # The base class goes through the host's own posterior.
    automatic = face.automatic(density.guide)
    for method in ("log_prob", "score"):
        expected = face.call(getattr(automatic, method), parameters, theta)
        function = getattr(density, method)
        found = face.call(function, parameters, theta)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
        # A single point, and more than one leading dimension.
        single = face.call(function, parameters, theta[0])
        np.testing.assert_allclose(single, found[0], rtol=1e-8, atol=1e-10)
        stacked = face.call(function, parameters, theta.reshape(2, 3, DIM))
        np.testing.assert_allclose(stacked, found.reshape(2, 3, *found.shape[1:]), rtol=1e-8)
    # And directly, with the parameters in the guide or handed to it.
    posterior = face.posterior(density, parameters)
    of_points = [np.sum(face.numpy(posterior.log_prob(face.array(point)))) for point in theta]
    found = face.call(density.log_prob, parameters, theta)
    np.testing.assert_allclose(found, of_points, rtol=1e-8)


def test_single_precision_of_a_large_factor(face: Any) -> None:
    guide = face.autoguide.AutoLowRankMultivariateNormal(model_of(face.name))
    density = face.density(guide, layout=layout_of(face, SHAPES))
    rank = density.parts(density.initial_parameters())[2].shape[-1]
    guides_support.check_single_precision(face, density, rank)


@pytest.mark.parametrize("name", EVALUABLE)
def test_residual_gradient_agrees_with_double_differentiation(face: Any, name: str) -> None:
    density = density_of(face.name, name)
    guides_support.check_residual_gradient(face, density, random_parameters(face, density))


@pytest.mark.parametrize("name", EVALUABLE)
def test_samples_have_the_score_identities_of_their_density(face: Any, name: str) -> None:
    density = density_of(face.name, name)
    parameters = random_parameters(face, density)
    theta = face.draws(density, parameters, 100_000, 1)
    assert theta.shape == (100_000, DIM)
    guides_support.check_score_identities(theta, face.call(density.score, parameters, theta))
    np.testing.assert_array_equal(theta, face.draws(density, parameters, 100_000, 1))
    face.no_gradient_through(density, parameters)


@pytest.mark.parametrize("name", NORMALS)
def test_moments(face: Any, name: str) -> None:
    density = density_of(face.name, name)
    parameters = random_parameters(face, density)
    posterior = face.posterior(density, parameters)
    mean, scale = face.numpy(density.moments(parameters))
    np.testing.assert_allclose(mean, face.numpy(posterior.mean), rtol=1e-10)
    if scale.ndim == 1:
        np.testing.assert_allclose(scale**2, face.numpy(posterior.variance), rtol=1e-10)
    else:
        expected = face.numpy(posterior.covariance_matrix)
        np.testing.assert_allclose(scale @ scale.T, expected, rtol=1e-10)


def test_set_moments_is_the_inverse_of_moments(face: Any) -> None:
    mean, root = normal(1, DIM), normal(2, DIM, DIM)
    scale_tril = np.linalg.cholesky(root @ root.T + 0.1 * np.eye(DIM))
    make = face.guides.Moments
    for name, scale in zip(NORMALS[:2], (np.diagonal(scale_tril).copy(), scale_tril), strict=True):
        density = density_of(face.name, name)
        given = make(face.array(mean), face.array(scale))
        parameters = density.set_moments(density.initial_parameters(), given)
        guides_support.check_close(face.numpy(density.moments(parameters)), (mean, scale))
        if face.name == "numpyro":
            again = density.from_host(density.to_host(parameters))
            guides_support.check_close(face.numpy(again), face.numpy(parameters))
    density = density_of(face.name, NORMALS[2])
    with pytest.raises(ArgumentError, match="AutoLowRankMultivariateNormal, which cannot be set"):
        density.set_moments(density.initial_parameters(), given)
    density = density_of(face.name, "AutoIAFNormal")
    with pytest.raises(ArgumentError, match="AutoIAFNormal, whose moments have no closed form"):
        density.moments(density.initial_parameters())


@pytest.mark.parametrize("name", NORMALS[:2])
def test_prefix_and_constraints_of_the_guide_are_honoured(face: Any, name: str) -> None:
    constraints = face.dist.constraints
    given, options = {"scale_constraint": constraints.positive}, {}
    if not face.backend.is_pyro:
        given["scale_tril_constraint"] = constraints.lower_cholesky
        options["prefix"] = "mine"
    guide = type("Exponential", (getattr(face.autoguide, name),), given)
    density = face.density(guide(model_of(face.name), **options))
    parameters = random_parameters(face, density)
    if face.backend.is_pyro:
        scale = face.numpy(density.moments(parameters))[1]
        diagonal = scale if scale.ndim == 1 else np.diag(scale)
        np.testing.assert_allclose(diagonal, np.exp(face.numpy(parameters["scale_unconstrained"])))
    else:
        assert all(name.startswith("mine_") for name in parameters)
    theta = normal(1, 3, DIM)
    expected = face.call(face.automatic(density.guide).score, parameters, theta)
    np.testing.assert_allclose(face.call(density.score, parameters, theta), expected, rtol=1e-8)
    guides_support.check_residual_gradient(face, density, parameters)


@pytest.mark.parametrize("score", [-1e-3, -1e3, 1e3])
@pytest.mark.parametrize("unconstrained", [-3.0, 0.0])
def test_the_bound_on_gradients_holds_at_the_end_of_its_reach(
    face: Any, score: float, unconstrained: float
) -> None:
    """Where the draws are at the mean, so that only the reach takes residuals away from zero."""
    density, reach = density_of(face.name, "AutoDiagonalNormal"), 1.0
    assert isinstance(density, face.guides.DiagonalNormalDensity)
    loc, scale = sorted(density.initial_parameters())
    middle, wide = np.linspace(-1.0, 1.0, DIM), np.linspace(unconstrained, unconstrained + 2.0, DIM)
    theta, scores = face.array(np.tile(middle, (2, 1))), face.array(np.full((2, DIM), score))
    parameters = face.arrays({loc: middle, scale: wide})
    bound = float(density.largest_gradient(parameters, theta, scores, reach))
    largest = 0.0
    for side in (-reach, reach):
        near = face.arrays({loc: middle + side, scale: wide - reach})
        _, gradient = density.mean_square_residual(near, theta, scores)
        found = list(face.numpy(gradient).values())
        largest = max(largest, *(np.abs(each).max() for each in found))
    assert largest <= bound < 10.0 * largest


@pytest.mark.parametrize("name", NORMALS)
def test_parameters_are_usable_in_the_host_afterwards(face: Any, name: str) -> None:
    density, model = density_of(face.name, name), model_of(face.name)
    parameters = random_parameters(face, density)
    mean, scale = face.numpy(density.moments(parameters))
    spread = scale if scale.ndim == 1 else np.sqrt(np.square(scale).sum(-1))
    median = face.median(density, parameters)
    np.testing.assert_allclose(median["z"], mean[:2])
    np.testing.assert_allclose(median["a"], np.exp(mean[2]))
    quantile = face.quantiles(density, parameters, [0.9])["z"][0]
    np.testing.assert_allclose(quantile, stats.norm(mean, spread).ppf(0.9)[:2], rtol=1e-6)
    for draws in face.host_draws(density, parameters, model, 1000):
        error = np.abs(np.log(draws["a"]).mean() - mean[2])
        assert error < 5 * spread[2] / 1000**0.5
    guides_support.check_svi_goes_on(face, density, parameters, model)


OF_BOTH = [
    ("AutoNormal", "AutoDiagonalNormal is its flat equal"),
    ("AutoDelta", "point estimate"),
    ("AutoGuideList", "list of guides"),
]
REFUSED = {
    "pyro": [
        *OF_BOTH,
        ("AutoStructured", "site by site"),
        ("AutoDiscreteParallel", "discrete"),
        ("AutoLaplaceApproximation", "laplace_approximation"),
    ],
    "numpyro": [
        *OF_BOTH,
        ("AutoBNAFNormal", "no analytic inverse"),
        ("AutoDAIS", "auxiliary variables"),
        ("AutoLaplaceApproximation", "point estimate while"),
    ],
}


def test_guides_without_a_flat_density_are_refused_by_name(face: Any) -> None:
    for name, reason in REFUSED[face.name]:
        with pytest.raises(ArgumentError) as caught:
            face.density(getattr(face.autoguide, name)(model_of(face.name)))
        message = str(caught.value)
        assert name in message
        assert reason in message
        assert "Use AutoDiagonalNormal, AutoMultivariateNormal" in message
    with pytest.raises(ArgumentError, match=r"Expected an autoguide object.*found model"):
        face.density(model_of(face.name))


def test_flows_that_cannot_be_inverted_are_refused(face: Any) -> None:
    if face.backend.is_pyro:
        from pyro.distributions.transforms import block_autoregressive, iterated

        block = partial(iterated, 1, block_autoregressive)
        flow = type("AutoBlock", (face.autoguide.AutoNormalizingFlow,), {})
        guide = flow(model_of(face.name), block)
    else:
        flow = type("AutoBlock", (face.autoguide.AutoBNAFNormal,), {})
        guide = flow(model_of(face.name), num_flows=1)
        # The host's class is refused by name before it comes to that.
        face.guides.register_flat_density(flow)(type("Automatic", (face.guides.FlatDensity,), {}))
    with pytest.raises(ArgumentError, match="AutoBlock, which cannot be inverted"):
        face.density(guide)


def test_registry_is_open(face: Any) -> None:
    guides, plain = face.guides, face.autoguide.AutoDiagonalNormal
    mine = type("Mine", (plain,), {})

    @guides.register_flat_density(mine)
    class MineDensity(guides.DiagonalNormalDensity):
        pass

    model = model_of(face.name)
    assert type(face.density(mine(model))) is MineDensity
    assert type(face.density(plain(model))) is guides.DiagonalNormalDensity
    guides.refuse_flat_density(mine, "it is ours")
    with pytest.raises(ArgumentError, match="found Mine: it is ours"):
        face.density(mine(model))


@pytest.mark.parametrize(
    "shapes",
    [
        {"a": (), "z": (2,), "p": (2,)},
        {"z": (3,), "a": (), "p": (2,)},
        {"z": (2,), "a": ()},
    ],
)
def test_other_order_or_shapes_of_the_sites_are_refused(face: Any, shapes: Any) -> None:
    guide = face.autoguide.AutoDiagonalNormal(model_of(face.name))
    with pytest.raises(ArgumentError, match="in this order"):
        face.density(guide, layout=layout_of(face, shapes))
