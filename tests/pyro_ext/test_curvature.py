"""Curvature of programs: Fisher information of outputs, and Gauss-Newton matrices from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.curvature import (
    GaussNewton,
    PriorStructure,
    fisher_root,
    gauss_newton_products,
    jacobian_rows,
    prior_curvature,
    prior_structure,
    register_output_fisher,
    row_structure,
    symmetric_eigen,
    whitened_outputs,
)
from pyro_ext.curvature import fisher as fisher_module
from pyro_ext.density import LogDensity
from pyro_ext.density.handlers import without_host_checks
from pyro_ext.density.outputs import Output, OutputHandler
from tests.curvature_support import (
    DRAWS,
    MIXTURE,
    SHARED,
    assert_is_fisher,
    directions,
    flatten,
    mixture_fisher,
)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def zero_inflated(total_count: Any, logits: Any, gate_logits: Any) -> Any:
    base = dist.NegativeBinomial(total_count, logits=logits)
    return dist.ZeroInflatedDistribution(base, gate_logits=gate_logits)


def normal_vector(**parameters: Any) -> Any:
    return dist.MultivariateNormal(**parameters)


COVARIANCE = [[1.44, 0.6], [0.6, 0.89]]
OWN = {
    "NegativeBinomial probs": (dist.NegativeBinomial, {"total_count": 1.4, "probs": 0.6}, {}),
    "NegativeBinomial logits": (dist.NegativeBinomial, {"total_count": 3.4, "logits": -0.6}, {}),
    "NegativeBinomial, nearly Poisson": (
        dist.NegativeBinomial,
        {"total_count": 25.0, "logits": -1.8},
        {},
    ),
    "zero-inflated": (
        zero_inflated,
        {"total_count": 1.4, "logits": 0.6, "gate_logits": -0.5},
        {},
    ),
    "covariance": (normal_vector, {"loc": [0.3, -1.0], "covariance_matrix": COVARIANCE}, {}),
    "precision": (normal_vector, {"loc": [0.3, -1.0], "precision_matrix": COVARIANCE}, {}),
    "OneHotCategorical": (dist.OneHotCategorical, {"logits": [0.7, -0.2, 0.1]}, {}),
}
CASES = {name: (getattr(dist, case[0]), *case[1:]) for name, case in SHARED.items()} | OWN


def gauss_newton(model: Any, z: Any, *args: Any) -> np.ndarray:
    target = LogDensity(model, args)
    rows = jacobian_rows(target, torch.as_tensor(z)[None], target.bind(*args), {})[0]
    return (rows.T @ rows).numpy()


def output(fn: Any) -> Output:
    handler = OutputHandler({}, {})
    with handler:
        pyro.sample("y", fn, obs=torch.zeros(fn.shape()))
    return handler.outputs["y"]


@pytest.mark.parametrize("name", CASES)
def test_fisher_information_is_the_covariance_of_the_score(name: str) -> None:
    make, moved, fixed = CASES[name]
    flat, slices = flatten(moved)
    pyro.set_rng_seed(1)

    def build(vector: Tensor) -> Any:
        values = {
            each: vector[where].reshape(np.shape(moved[each])) for each, where in slices.items()
        }
        return make(**values, **fixed)

    start = torch.from_numpy(flat)
    with without_host_checks():
        values = build(start).sample((DRAWS,))
        point = output(build(start))

        def root(vector: Tensor) -> Tensor:
            parameters = {
                each: value.double() for each, value in output(build(vector)).parameters.items()
            }
            return fisher_root(point, parameters).reshape(-1)

        columns = directions(moved)
        jacobian = torch.func.jacrev(root)(start).numpy() @ columns
        # Central differences, since forward mode lacks some distributions' derivatives.
        step = 1e-5
        scores = torch.stack(
            [
                (
                    build(start + step * column).log_prob(values)
                    - build(start - step * column).log_prob(values)
                )
                / (2 * step)
                for column in torch.from_numpy(columns).T
            ],
            -1,
        )
    assert_is_fisher(jacobian.T @ jacobian, scores.numpy())


def test_fisher_information_is_the_curvature_of_the_log_partition() -> None:
    def counts() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("c", dist.Categorical(logits=z), obs=torch.tensor(1))
        pyro.sample("n", dist.Poisson(torch.exp(z[0])), obs=torch.tensor(2.0))
        pyro.sample("k", dist.Binomial(7, logits=z[1]), obs=torch.tensor(3.0))

    z = torch.tensor([0.4, -1.0, 0.2])

    def partition(z: Tensor) -> Tensor:
        softplus = torch.nn.functional.softplus(z[1])
        return torch.logsumexp(z, 0) + torch.exp(z[0]) + 7 * softplus

    expected = torch.autograd.functional.hessian(partition, z).numpy()
    np.testing.assert_allclose(gauss_newton(counts, z), expected, atol=1e-12)


def _data() -> tuple[Tensor, Tensor, Tensor]:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(12, 2)), generator.normal(size=12)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy((y > 0.3).astype(float))


def rows(x: Tensor, y: Tensor, c: Tensor, batch: int | None = None) -> None:
    """Two sites in a plate, one of them heteroscedastic, and one site outside."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    pyro.sample("extra", dist.Poisson(torch.exp(w[0])), obs=torch.tensor(3.0))
    with pyro.plate("N", len(y), subsample_size=batch) as i:
        mean = x[i] @ w + torch.sin(w[0])
        pyro.sample("y", dist.Normal(mean, s), obs=y[i])
        pyro.sample("c", dist.Bernoulli(logits=mean * s), obs=c[i])


def naive(z: Tensor, x: Tensor, factor: float) -> np.ndarray:
    """J^T F J of ``rows``, site by site."""

    def mean(z: Tensor) -> Tensor:
        return x @ z[:2] + torch.sin(z[0])

    jacobian = torch.func.jacrev(mean)(z)
    logits = torch.func.jacrev(lambda z: mean(z) * torch.exp(z[2]))(z)
    scale = torch.exp(z[2])
    chance = torch.sigmoid(mean(z) * scale)
    total = factor * (
        jacobian.T @ jacobian / scale**2 + logits.T @ ((chance * (1 - chance))[:, None] * logits)
    )
    # The scale's own Fisher information 2 / s^2 for each row, times (ds / dz)^2 = s^2.
    total[2, 2] += factor * 2.0 * len(x)
    total[0, 0] += torch.exp(z[0])
    return total.numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("batch", [None, 5])
def test_gauss_newton_is_the_naive_product(batch: int | None, temperature: float) -> None:
    args = _data()
    target = LogDensity(rows, args, {"batch": batch}, likelihood_temperature=temperature)
    data = target.bind(*args, batch=batch)
    chosen = torch.tensor([0, 3, 4, 7, 11])
    indices = {} if batch is None else {"N": chosen}
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 3)))
    structure = row_structure(target, z[0], data, indices)
    assert structure.by_row == (set() if batch is None else {"y", "c"})
    found = jacobian_rows(target, z, data, indices, structure)
    # One row for the scale of all of y, and one for the site outside.
    assert found.shape == (3, 2 * (batch or 12) + 2, 3)
    x = args[0] if batch is None else args[0][chosen]
    vectors = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 3)))
    products = gauss_newton_products(target, z, data, indices)(vectors)
    for each, position, vector, product in zip(found, z, vectors, products, strict=True):
        expected = naive(position, x, 12 / len(x)) / temperature
        np.testing.assert_allclose(each.T @ each, expected, rtol=1e-10)
        np.testing.assert_allclose(product, expected @ vector.numpy(), rtol=1e-10)


def shared(x: Any, y: Any, batch: int | None = None) -> None:
    """Two responses for each row, with parameters shared by all rows or by all elements."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("N", 12, subsample_size=batch) as i:
        mean = torch.sin(x[i] * w)
        seen = dist.Normal(mean, s).mask(y[i] > -0.5).to_event(1)
        pyro.sample("columns", seen, obs=y[i])
        pyro.sample("tails", dist.StudentT(3.0 + s[0], mean[:, 0], s[1]), obs=y[i, 0])
        # The information mixes concentration and rate; one component has the shared one alone.
        positive = dist.Gamma(s[0], torch.exp(mean[:, 1]))
        pyro.sample("mixed", positive, obs=torch.exp(y[i, 1]))
        pyro.sample("unseen", dist.Normal(mean[:, 0], s[0]).mask(torch.tensor(False)), obs=y[i, 0])


@pytest.mark.parametrize("batch", [None, 5])
def test_merged_rows_have_the_same_products(batch: int | None) -> None:
    x, y = (np.random.default_rng(seed).normal(size=(12, 2)) for seed in (3, 4))
    args = torch.from_numpy(x), torch.from_numpy(y)
    target = LogDensity(shared, args, {"batch": batch})
    data = target.bind(*args, batch=batch)
    indices = {} if batch is None else {"N": torch.tensor([0, 3, 4, 7, 11])}
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 4)))
    structure = row_structure(target, z[0], data, indices)
    merged = {name: {each.axes for each in found} for name, found in structure.repeated.items()}
    assert merged == {name: {(0,)} for name in ("columns", "tails", "mixed", "unseen")}
    found = jacobian_rows(target, z, data, indices, structure)
    plain = jacobian_rows(target, z, data, indices)
    assert found.shape[1] < plain.shape[1]
    np.testing.assert_allclose(found.mT @ found, plain.mT @ plain, rtol=1e-9, atol=1e-9)
    for latents, columns in ((["w"], slice(2)), (["s"], slice(2, 4)), (["s", "w"], slice(4))):
        part = jacobian_rows(target, z, data, indices, structure, latents)
        np.testing.assert_allclose(part, found[..., columns], rtol=1e-9, atol=1e-9)


def test_rows_that_depend_on_each_other_are_not_taken_apart() -> None:
    def model(x: Any) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("N", 12, subsample_size=5) as i:
            mean = x[i] @ w
            pyro.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            pyro.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])
            # Next to large values a small one is known to their rounding only.
            rounding = 1e-8 if len(i) > 1 else 0.0
            pyro.sample("large", dist.Normal(1e6 * mean + rounding, 1.0), obs=x[i, 0])

    x = _data()[0].clone()
    x[0] = 0.0
    target = LogDensity(model, (x,))
    data, indices = target.bind(x), {"N": torch.tensor([0, 3, 4, 7, 11])}
    assert row_structure(target, torch.tensor([0.3, -0.2]), data, indices).by_row == {
        "apart",
        "large",
    }


def test_batches_of_one_row_do_not_hide_rows_that_depend_on_each_other() -> None:
    def model(x: Any, batch: int) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("N", 12, subsample_size=batch) as i:
            mean = x[i] @ w
            pyro.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            pyro.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])

    x = _data()[0]
    target = LogDensity(model, (x, 1))
    structure = row_structure(
        target, torch.tensor([0.3, -0.2]), target.bind(x, 1), target.first_rows()
    )
    assert structure.by_row == {"apart"}
    assert set(structure.repeated) == {"centred", "apart"}


def test_elements_have_their_own_scales_and_several_masks() -> None:
    weights = torch.tensor([0.5, 2.0, 3.0])

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros((3, 2)), 1.0).to_event(2))
        with pyro.plate("N", 3), poutine.scale(scale=weights):
            inner = dist.Normal(z, 1.0).mask(
                torch.tensor([[True, False], [True, True], [True, True]])
            )
            outer = inner.to_event(1).mask(torch.tensor([True, True, False]))
            pyro.sample("y", outer, obs=torch.zeros((3, 2)))

    expected = np.diag([0.5, 0.0, 2.0, 2.0, 0.0, 0.0])
    np.testing.assert_allclose(gauss_newton(model, np.zeros(6)), expected)


def test_probabilities_that_do_not_sum_to_one() -> None:
    """A common factor of the weights changes nothing; so it must not in the information."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample(
            "y", dist.Categorical(probs=torch.exp(z) / torch.exp(z).sum()), obs=torch.tensor(1)
        )

    z = torch.tensor([0.4, -1.0, 0.2])
    chance = torch.softmax(z, -1)
    expected = (torch.diag(chance) - torch.outer(chance, chance)).numpy()
    np.testing.assert_allclose(gauss_newton(model, z), expected, atol=1e-12)
    point = output(dist.Categorical(probs=chance))
    np.testing.assert_allclose(fisher_root(point, {"probs": chance}).numpy(), 0.0, atol=1e-12)


def test_a_zero_inflated_binomial_and_a_certain_gate() -> None:
    def model(gate: Any) -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        base = dist.Binomial(5, logits=z)
        pyro.sample(
            "y", dist.ZeroInflatedDistribution(base, gate=torch.tensor(gate)), obs=torch.tensor(0.0)
        )

    chances = dist.Binomial(5, logits=torch.tensor(0.3)).log_prob(torch.arange(6.0)).exp().numpy()
    slopes = np.arange(6) - 5 * torch.tensor(0.3).sigmoid().item()
    for gate in (0.3, 0.0):
        mixed = (1 - gate) * chances
        changes = mixed * slopes
        mixed[0] += gate
        found = gauss_newton(model, np.array([0.3]), gate)
        np.testing.assert_allclose(found, [[np.sum(changes**2 / mixed)]], rtol=1e-6)


def test_a_mask_of_the_handler() -> None:
    keep = torch.tensor([True, False, True])

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("N", 3), poutine.mask(mask=keep):
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    np.testing.assert_allclose(gauss_newton(model, np.zeros(3)), np.diag([1.0, 0.0, 1.0]))


def test_arguments_that_are_lost_are_noticed() -> None:
    class Repeated(dist.TorchDistribution):
        """Two equal Normals, unless told another number."""

        arg_constraints: ClassVar = {"loc": dist.constraints.real}
        support = dist.constraints.real_vector

        def __init__(self, loc: Any, times: int = 2) -> None:
            self.loc, self.times = loc, times
            super().__init__(loc.shape, (times,), validate_args=False)

        def sample(self, sample_shape: Any = ()) -> Any:
            return self.loc.expand((*self.loc.shape, self.times))

        def log_prob(self, value: Any) -> Any:
            return -((value - self.loc[..., None]) ** 2).sum(-1)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Repeated(z, 5), obs=torch.ones(5))

    with pytest.raises(ArgumentError, match=r"Repeated.*events of shape"):
        gauss_newton(model, np.zeros(1))


@pytest.mark.parametrize("rows", [2, 5])  # two: as many as components, whose shapes then agree
def test_distributions_made_of_others_are_refused_by_name(rows: int) -> None:
    def mixture() -> None:
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        parts = dist.Normal(loc, 1.0).mask(torch.tensor([True, False]))
        mixed = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), parts)
        with pyro.plate("N", rows):
            pyro.sample("y", mixed, obs=torch.zeros(rows))

    def series() -> None:
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        hidden = dist.DiscreteHMM(torch.zeros(2), torch.zeros(2, 2), dist.Normal(loc, 1.0))
        pyro.sample("y", hidden, obs=torch.zeros(rows))

    expected = "Site 'y': expected a distribution whose Fisher .*{}.*register_output_fisher"
    with pytest.raises(ArgumentError, match=expected.format(r"\[\] .* found MixtureSameFamily")):
        gauss_newton(mixture, np.zeros(2))
    with pytest.raises(ArgumentError, match=expected.format("found DiscreteHMM")):
        gauss_newton(series, np.zeros(2))


def test_fisher_information_of_a_mixture() -> None:
    """Of one whose components overlap, by integration; 16 draws for each of 1,000 elements."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        weights = dist.Categorical(logits=torch.stack([z[0], torch.tensor(0.0)]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z[1:3], torch.exp(z[3:])))
        with pyro.plate("N", 1000):
            pyro.sample("y", mixed, obs=torch.zeros(1000))

    pyro.set_rng_seed(0)
    expected, deviation = mixture_fisher()
    found = gauss_newton(model, MIXTURE) / 1000
    assert (np.abs(found - expected) < 5 * deviation / np.sqrt(16_000)).all()


def test_fisher_information_of_a_mixture_of_vectors() -> None:
    """Far apart it is that of the components times their weights."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        weights = dist.Categorical(probs=torch.tensor([0.3, 0.7]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z, 0.5).to_event(1))
        pyro.sample("y", mixed.expand([1000]).to_event(1), obs=torch.zeros(1000, 3))

    pyro.set_rng_seed(0)
    found = gauss_newton(model, np.array([0.0, 0.1, 0.2, 90.0, 91.0, 92.0])) / 1000
    weights = np.repeat([0.3, 0.7], 3)
    # Of a squared standard normal number times an event of this chance, over the scale.
    deviation = 4.0 * np.sqrt(3.0 * weights - weights**2)
    error = 5 * deviation / np.sqrt(16_000)
    assert (np.abs(np.diag(found) - 4.0 * weights) < error).all()
    assert np.abs(found - np.diag(np.diag(found))).max() < error.max()


def test_parameters_that_no_element_has_alone_are_noticed() -> None:
    class Profile(dist.TorchDistribution):
        """Elements with a level each and a shape in common, which is said to be a number."""

        arg_constraints: ClassVar = {"level": dist.constraints.real, "shape": dist.constraints.real}
        support = dist.constraints.real_vector

        def __init__(self, level: Any, shape: Any) -> None:
            self.level, self.shape = level, shape
            super().__init__(level.shape, shape.shape, validate_args=False)

        def sample(self, sample_shape: Any = ()) -> Any:
            return self.level[..., None] + self.shape

        def log_prob(self, value: Any) -> Any:
            return -((value - self.level[..., None] - self.shape) ** 2).sum(-1)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Profile(z * torch.ones(3), z * torch.ones(4)), obs=torch.ones((3, 4)))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Profile \(shape of shape \(4,\)"):
        gauss_newton(model, np.zeros(1))


def test_masks_scales_and_declared_dimensions() -> None:
    keep = torch.tensor([True, False, True])

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with poutine.scale(scale=2.5):
            inside = dist.Normal(z, 0.5).mask(keep).to_event(1)
            pyro.sample("a", inside, obs=torch.zeros(3))
        outside = dist.Normal(z[:, None] * torch.ones(2), 2.0).to_event(1).mask(~keep)
        pyro.sample("b", outside, obs=torch.zeros((3, 2)))
        pyro.sample("c", dist.Exponential(torch.exp(z[0])).expand([4]), obs=torch.ones(4))

    expected = np.diag([2.5 * 4.0 + 4.0, 2 * 0.25, 2.5 * 4.0])
    np.testing.assert_allclose(gauss_newton(model, np.array([0.1, 0.2, 0.3])), expected)


def test_unknown_distributions_have_a_monte_carlo_fisher_information() -> None:
    pyro.set_rng_seed(0)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample(
            "y", dist.Pareto(torch.ones(()), torch.exp(z)).expand([2000]), obs=2 * torch.ones(2000)
        )

    # In the logarithm of its exponent the score is 1 - E, with E standard exponential: its square
    # has mean 1 and variance 8, and each of 2,000 elements has 16 draws.
    found = gauss_newton(model, np.array([0.3]))[0, 0] / 2000
    assert abs(found - 1.0) < 5 * np.sqrt(8 / (16 * 2000))


def test_a_distribution_of_the_user() -> None:
    class Shifted(dist.TorchDistribution):
        arg_constraints: ClassVar = {"shift": dist.constraints.real}
        support = dist.constraints.real

        def __init__(self, shift: Any) -> None:
            self.shift = shift
            super().__init__(shift.shape, validate_args=False)

        def log_prob(self, value: Any) -> Any:
            return -((value - self.shift).abs() ** 3)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Shifted(2 * z), obs=torch.tensor(1.0))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Shifted.*register_output_fisher"):
        gauss_newton(model, np.zeros(1))
    try:
        register_output_fisher(Shifted)(lambda p, t: 3.0 * t["shift"][..., None])
        np.testing.assert_allclose(gauss_newton(model, np.zeros(1)), [[36.0]])
    finally:
        del fisher_module._ROOTS[Shifted]
    with pytest.raises(ArgumentError, match="not one of its objects"):
        register_output_fisher(dist.Normal(0.0, 1.0))  # type: ignore[arg-type]


def test_a_program_without_observations_has_no_whitened_outputs() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    target = LogDensity(model)
    z = torch.ones((3, 2))
    assert jacobian_rows(target, z, target.bind(), {}).shape == (3, 0, 2)
    assert whitened_outputs(target, z[0], target.bind(), {})(z[0]).shape == (0,)


def independent() -> None:
    pyro.sample("a", dist.Normal(torch.arange(3.0), torch.tensor([1.0, 2.0, 0.5])).to_event(1))
    pyro.sample("b", dist.Gamma(2.0, 3.0))
    pyro.sample("t", dist.StudentT(3.0, 0.0, 1.0))


def hierarchical() -> None:
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("J", 3):
        pyro.sample("effects", dist.Normal(0.0, scale))
    covariance = torch.tensor([[1.0, 0.6], [0.6, 2.0]])
    pyro.sample("pair", dist.MultivariateNormal(torch.zeros(2), covariance))


@pytest.mark.parametrize("model", [independent, hierarchical])
def test_prior_curvature_is_the_clipped_hessian(model: Any) -> None:
    target = LogDensity(model)
    data = target.bind()
    z = 2.0 * torch.from_numpy(np.random.default_rng(3).normal(size=(4, target.dim)))
    exact = -torch.func.vmap(
        torch.func.jacrev(torch.func.jacrev(lambda z: target.evaluate(z, data)[0]))
    )(z)
    assert torch.linalg.eigvalsh(exact).min().item() < 0  # so that something is clipped
    structure = prior_structure(target, z, data)
    found = prior_curvature(target, structure, z, data).numpy()
    diagonal = np.maximum(np.diagonal(exact.numpy(), axis1=1, axis2=2), 0.0)
    if model is independent:
        assert structure == PriorStructure(
            ("a", "b", "t"), "diagonal", True, ("a", "b", "t"), constant=False
        )
        np.testing.assert_allclose(found, diagonal, atol=1e-12)
        return
    assert structure == PriorStructure(
        ("scale", "effects", "pair"), "hessian", True, ("scale", "effects"), constant=False
    )
    values, vectors = np.linalg.eigh(exact.numpy())
    clipped = np.einsum("pij,pj,pkj->pik", vectors, np.maximum(values, 0.0), vectors)
    np.testing.assert_allclose(found, clipped, atol=1e-10)
    structure = prior_structure(target, z, data, "diagonal")
    assert not structure.exact
    found = prior_curvature(target, structure, z, data).numpy()
    np.testing.assert_allclose(found, diagonal, atol=1e-10)
    # Given the scale the effects are independent, and the pair is no concern of theirs.
    structure = prior_structure(target, z, data, sites=("effects",))
    assert structure == PriorStructure(("effects",), "diagonal", True, ("effects",), constant=False)
    np.testing.assert_allclose(
        prior_curvature(target, structure, z, data).numpy(), diagonal[:, 1:4], atol=1e-10
    )
    structure = prior_structure(target, z, data, sites=("scale", "pair"))
    assert structure.form == "hessian"
    where = [0, 4, 5]
    values, vectors = np.linalg.eigh(np.asarray(exact)[:, where][:, :, where])
    clipped = np.einsum("pij,pj,pkj->pik", vectors, np.maximum(values, 0.0), vectors)
    np.testing.assert_allclose(
        prior_curvature(target, structure, z, data).numpy(), clipped, atol=1e-10
    )
    with pytest.raises(ArgumentError, match="prior to be one of 'diagonal'.*found 'full'"):
        GaussNewton(prior="full")  # type: ignore[arg-type]


def test_eigenvalues_of_a_matrix_that_is_not_finite() -> None:
    # One particle that is lost must not take the others with it.
    matrices = torch.eye(3).repeat(2, 1, 1) * torch.tensor([2.0, torch.nan])[:, None, None]
    values, vectors = symmetric_eigen(matrices)
    np.testing.assert_allclose(values[0], 2.0)
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, np.eye(3), atol=1e-12)
    assert torch.isnan(values[1]).all()
