"""Transformed distributions, and sites that record a value and have a density, in Pyro."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.infer.reparam import SplitReparam
from torch.distributions import transforms as tf

from ppl_ext.errors import ArgumentError, ModelCheckError
from pyro_ext import SVGD, fit, to_arviz
from pyro_ext.density import LogDensity
from pyro_ext.guides.flat_density import check_same_layout
from tests.arviz_support import group


@pytest.fixture(autouse=True)
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


#: By what is transformed, and the same distribution as base and map from unconstrained space. The
#: last transform of each maps the line to itself, so that the host takes the line for the support.
NARROWER = {
    "shifted log-normal": (
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0), [tf.ExpTransform(), tf.AffineTransform(1.0, 2.0)]
        ),
        lambda z: 1.0 + 2.0 * z.exp(),
    ),
    "mirrored gamma": (
        dist.TransformedDistribution(dist.Gamma(2.0, 1.0), [tf.AffineTransform(-1.0, -2.0)]),
        lambda z: -1.0 - 2.0 * z.exp(),
    ),
    "half-normals in a vector": (
        dist.TransformedDistribution(
            dist.HalfNormal(torch.ones(3)), [tf.AffineTransform(torch.arange(3.0), 2.0)]
        ).to_event(1),
        lambda z: torch.arange(3.0) + 2.0 * z.exp(),
    ),
    "half-normals in another order": (
        dist.TransformedDistribution(
            dist.HalfNormal(torch.ones(3)).to_event(1),
            [dist.transforms.Permute(torch.tensor([2, 0, 1]))],
        ),
        lambda z: z[..., [2, 0, 1]].exp(),
    ),
    "beta on an interval": (
        dist.TransformedDistribution(dist.Beta(2.0, 3.0), [tf.AffineTransform(-1.0, 4.0)]),
        lambda z: -1.0 + 4.0 * torch.sigmoid(z),
    ),
}


@pytest.mark.parametrize("name", NARROWER)
def test_a_transformed_distribution_has_the_support_of_what_is_transformed(name):
    prior, to_value = NARROWER[name]

    def model():
        pyro.sample("x", prior)

    target = LogDensity(model)
    z = 2.0 * torch.rand(4, target.dim, generator=torch.Generator().manual_seed(0)) - 1.0
    values = target.constrain(z, target.bind())["x"]
    expected = to_value(z if prior.event_shape else z[:, 0])
    torch.testing.assert_close(values, expected)
    for place, found in zip(z, target.log_density(z, target.bind()), strict=True):
        at = place if prior.event_shape else place[0]
        jacobian = torch.autograd.functional.jacobian(to_value, at).reshape(target.dim, target.dim)
        density = prior.log_prob(to_value(at)).sum() + torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(found, density)


def test_families_that_are_written_as_transformed_ones_keep_the_hosts_coordinates():
    priors = {
        "log_normal": (dist.LogNormal(0.0, 1.0), torch.exp),
        "gumbel": (dist.Gumbel(0.0, 1.0), lambda z: z),
        "weibull": (dist.Weibull(1.0, 2.0), torch.exp),
        "shifted": (
            dist.TransformedDistribution(dist.Normal(0.0, 1.0), [tf.AffineTransform(1.0, 2.0)]),
            lambda z: z,
        ),
    }

    def model():
        for name, (prior, _) in priors.items():
            pyro.sample(name, prior)

    target = LogDensity(model)
    z = torch.linspace(-1.0, 1.0, target.dim)[None]
    values = target.constrain(z, target.bind())
    for column, (name, (_, to_value)) in enumerate(priors.items()):
        torch.testing.assert_close(values[name], to_value(z[:, column]))


def test_bounds_of_what_is_transformed_may_be_latent():
    def model(y):
        width = pyro.sample("width", dist.LogNormal(0.0, 0.3))
        base = dist.Uniform(torch.zeros(()), width)
        x = pyro.sample("x", dist.TransformedDistribution(base, [tf.AffineTransform(5.0, -1.0)]))
        pyro.sample("y", dist.Normal(x, 0.5), obs=y)

    found = fit(model, torch.tensor(4.0), seed=0, progress_bar=False)
    assert found.verdict.trusted
    width, x = (found.draws[name].numpy() for name in ("width", "x"))
    assert (x < 5.0).all() and (x > 5.0 - width).all()
    widths, places = np.meshgrid(np.linspace(0.1, 5.0, 700), np.linspace(1e-3, 1.0, 700))
    at = 5.0 - widths * places
    logs = -0.5 * (np.log(widths) / 0.3) ** 2 - np.log(widths) - 0.5 * ((4.0 - at) / 0.5) ** 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    assert abs(x.mean() - (weights * at).sum()) < 0.05
    assert abs(width.mean() - (weights * widths).sum()) < 0.05


def test_guides_that_take_a_support_for_wider_than_it_is_are_refused():
    prior, _ = NARROWER["beta on an interval"]

    def model():
        pyro.sample("x", prior)

    target, guide = LogDensity(model), AutoNormal(model)
    guide()
    with pytest.raises(ArgumentError, match="wider than what is transformed has"):
        check_same_layout(guide, target.layout)


def test_log_priors_have_those_of_sites_that_are_split():
    """The host records such a site as a point whose density is the prior of its parts."""
    y = torch.tensor([1.0, 0.5])

    def model(y):
        s = pyro.sample("s", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with pyro.plate("N", 2):
            pyro.sample("y", dist.Normal(s.sum(), 1.0), obs=y)

    split = pyro.poutine.reparam(model, config={"s": SplitReparam([1, 2], -1)})
    engine = SVGD(split, pyro.optim.Adam({"lr": 0.05}), num_particles=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.run(5, y, progress_bar=False)
        groups = to_arviz(engine, y)
    draws, found = group(groups, "posterior"), group(groups, "log_prior")
    assert set(found.data_vars) == {"s", "s_split_0", "s_split_1"}
    total = sum(value.values.reshape(16, -1).sum(1) for value in found.data_vars.values())
    whole = torch.as_tensor(draws["s"].values.reshape(16, 3))
    expected = dist.Normal(0.0, 2.0).log_prob(whole).sum(-1)
    np.testing.assert_allclose(total, expected.numpy(), rtol=1e-6)


#: Densities of a matrix of the size two, and log|d matrix / d z| with z in its order: below the
#: diagonal, then logarithms on it.
MATRICES = {
    "Wishart": (
        lambda: dist.Wishart(torch.tensor(5.0), torch.eye(2)),
        lambda lower: lower @ lower.mT,
        # 2^2 l_11^2 l_22 of the product, l_11 l_22 of the exponentials.
        lambda lower: math.log(4.0) + 3.0 * lower[0, 0].log() + 2.0 * lower[1, 1].log(),
    ),
    "lower triangles": (
        lambda: dist.ImproperUniform(
            dist.constraints.lower_cholesky, torch.Size(), torch.Size([2, 2])
        ),
        lambda lower: lower,
        lambda lower: lower[0, 0].log() + lower[1, 1].log(),
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_positive_definite_matrices_and_their_roots_are_latent_sites(name):
    make, to_value, log_det = MATRICES[name]

    def model():
        pyro.sample("x", make())

    target = LogDensity(model, init_strategy=init_to_value(values={"x": torch.eye(2)}))
    assert target.dim == 3
    z = torch.tensor([[0.3, -0.2, 0.5], [-1.0, 0.1, 0.0]])
    values = target.constrain(z, target.bind())["x"]
    density = target.log_density(z, target.bind())
    for place, value, found in zip(z, values, density, strict=True):
        lower = torch.diag(place[1:].exp())
        lower[1, 0] = place[0]
        torch.testing.assert_close(value, to_value(lower))
        torch.testing.assert_close(found, make().log_prob(value) + log_det(lower))
    back = target.unconstrain({"x": values}, target.bind())
    torch.testing.assert_close(back, z)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_where_the_host_wants_others_are_refused_with_what_to_write(dtype):
    def model(y):
        p = pyro.sample("p", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=p), obs=y)

    y = torch.tensor([0, 1, 1, 0]).to(dtype)
    with pytest.raises(ModelCheckError, match=r"floating point, as `y.float\(\)`"):
        LogDensity(model, (y,))
