"""Fisher information of what each host has its own, of a user's distributions, and of neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import PACKAGES, backend_of, use_float64
from tests.curvature_support import assert_is_fisher, gauss_newton, root_and_scores

use_float64()

COVARIANCE = [[1.44, 0.6], [0.6, 0.89]]
#: Distributions that only one host has under this name: what they are made of.
OWN: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "pyro": {
        "probs": ("NegativeBinomial", {"total_count": 1.4, "probs": 0.6}),
        "logits": ("NegativeBinomial", {"total_count": 3.4, "logits": -0.6}),
        "nearly Poisson": ("NegativeBinomial", {"total_count": 25.0, "logits": -1.8}),
        "zero-inflated": (
            "ZeroInflatedDistribution",
            {"total_count": 1.4, "logits": 0.6, "gate_logits": -0.5},
        ),
        "covariance": (
            "MultivariateNormal",
            {"loc": [0.3, -1.0], "covariance_matrix": COVARIANCE},
        ),
        "precision": (
            "MultivariateNormal",
            {"loc": [0.3, -1.0], "precision_matrix": COVARIANCE},
        ),
        "one hot": ("OneHotCategorical", {"logits": [0.7, -0.2, 0.1]}),
    },
    "numpyro": {
        "mean": ("NegativeBinomial2", {"mean": 2.3, "concentration": 1.4}),
        "nearly Poisson": ("NegativeBinomial2", {"mean": 4.0, "concentration": 25.0}),
        "probs": ("NegativeBinomialProbs", {"total_count": 1.4, "probs": 0.6}),
        "logits": ("NegativeBinomialLogits", {"total_count": 3.4, "logits": -0.6}),
        "zero-inflated": (
            "ZeroInflatedDistribution",
            {"mean": 2.3, "concentration": 1.4, "gate_logits": -0.5},
        ),
    },
}


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in OWN[package]]
)
def test_fisher_information_is_the_covariance_of_the_score(package: str, name: str) -> None:
    backend = backend_of(package)
    dist = backend.dist
    made, moved = OWN[package][name]

    def zero_inflated(gate_logits: Any, **parameters: Any) -> Any:
        counts = dist.NegativeBinomial if backend.is_pyro else dist.NegativeBinomial2
        return dist.ZeroInflatedDistribution(counts(**parameters), gate_logits=gate_logits)

    make = zero_inflated if name == "zero-inflated" else getattr(dist, made)
    root, scores = root_and_scores(backend, make, moved, {})
    assert_is_fisher(root.T @ root, scores)


@pytest.mark.parametrize("batch", [None, 4])
def test_gauss_newton_matrices_of_both_packages_agree(batch: int | None) -> None:
    ours, theirs = (gauss_newton_of(backend_of(package), batch) for package in PACKAGES)
    assert ours[1:] == theirs[1:]
    assert ours[2] == (set() if batch is None else {"a", "b", "c", "d"})
    assert np.linalg.eigvalsh(ours[0])[0] > 1e-3
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-8, atol=1e-8)


def gauss_newton_of(backend: Any, batch: int | None) -> tuple[np.ndarray, Any, Any]:
    """The matrix at a position, and which sites have rows that repeat or are apart."""
    generator, room = np.random.default_rng(0), backend.room("curvature")
    x, counts = generator.normal(size=(9, 3)), generator.poisson(3.0, size=9).astype(float)
    data = backend.arrays((x, counts, counts.astype(int) % 3))
    target, bound = backend.target(predictor(backend), data, {"batch": batch})
    indices = {} if batch is None else {"N": backend.array(np.array([0, 2, 3, 8]))}
    z = backend.array(np.array([0.3, -0.2, 0.5, 0.4]))
    keys = () if backend.is_pyro else (backend.key(),)
    sites = room.row_structure(target, z, bound, indices)

    def rows_at(z: Any) -> Any:
        return room.jacobian_rows(target, z[None], bound, indices, *keys, sites)[0]

    rows = backend.numpy(backend.compiled(rows_at)(z))
    return rows.T @ rows, sites.repeated, sites.by_row


def predictor(backend: Any) -> Any:
    """Overdispersed counts, heavy-tailed values and classes from one linear predictor."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, counts: Any, classes: Any, batch: int | None = None) -> None:
        w = host.sample("w", dist.Normal(xp.ones(3), 1.0).to_event(1))
        size = host.sample("size", dist.LogNormal(0.0, 1.0))
        with host.plate("N", 9, subsample_size=batch) as i:
            mean = x[i] @ w
            host.sample("a", dist.GammaPoisson(size, xp.exp(-mean)), obs=counts[i])
            host.sample("b", dist.StudentT(2.0 + size, mean, size), obs=counts[i])
            host.sample("c", dist.Gamma(size, xp.exp(mean)), obs=1.0 + counts[i])
            host.sample("d", dist.Categorical(logits=x[i] * w), obs=classes[i])

    return model


def test_a_mask_of_the_handler(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    keep = backend.array(np.array([True, False, True]))

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        with host.plate("N", 3), backend.handlers.mask(mask=keep):
            host.sample("y", dist.Normal(z, 1.0), obs=xp.zeros(3))

    np.testing.assert_allclose(gauss_newton(backend, model, np.zeros(3)), np.diag([1.0, 0.0, 1.0]))


# -- distributions of a user -----------------------------------------------------------------------


def base_of(backend: Any) -> Any:
    """What a user's distributions derive from."""
    return backend.dist.TorchDistribution if backend.is_pyro else backend.dist.Distribution


def test_a_distribution_of_the_user(backend: Any) -> None:
    dist, room = backend.dist, backend.room("curvature")

    class Shifted(base_of(backend)):  # type: ignore[misc]
        arg_constraints = {"shift": dist.constraints.real}  # noqa: RUF012
        support = dist.constraints.real

        def __init__(self, shift: Any) -> None:
            self.shift = shift
            super().__init__(tuple(shift.shape), validate_args=False)

        def log_prob(self, value: Any) -> Any:
            return -(abs(value - self.shift) ** 3)

    def model() -> None:
        z = backend.host.sample("z", dist.Normal(0.0, 1.0))
        backend.host.sample("y", Shifted(2 * z), obs=backend.array(1.0))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Shifted.*register_output_fisher"):
        gauss_newton(backend, model, np.zeros(1))
    try:
        room.register_output_fisher(Shifted)(lambda p, t: 3.0 * t["shift"][..., None])
        np.testing.assert_allclose(gauss_newton(backend, model, np.zeros(1)), [[36.0]])
    finally:
        del backend.room("curvature.fisher")._FISHER.roots[Shifted]
    with pytest.raises(ArgumentError, match="not one of its objects"):
        room.register_output_fisher(dist.Normal(0.0, 1.0))


def test_arguments_that_are_lost_are_noticed(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    if backend.is_pyro:

        class Repeated(dist.TorchDistribution):  # type: ignore[misc, name-defined]
            """Two equal Normals, unless told another number."""

            arg_constraints = {"loc": dist.constraints.real}  # noqa: RUF012
            support = dist.constraints.real_vector

            def __init__(self, loc: Any, times: int = 2) -> None:
                self.loc, self.times = loc, times
                super().__init__(loc.shape, (times,), validate_args=False)

            def sample(self, sample_shape: Any = ()) -> Any:
                return self.loc.expand((*self.loc.shape, self.times))

            def log_prob(self, value: Any) -> Any:
                return -((value - self.loc[..., None]) ** 2).sum(-1)

    def model() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        if backend.is_pyro:
            host.sample("y", Repeated(z, 5), obs=xp.ones(5))
        else:  # which has one of this kind
            walk = dist.GaussianRandomWalk(xp.exp(z), num_steps=12)
            host.sample("y", walk, obs=xp.ones(12))

    with pytest.raises(ArgumentError, match=r"(Repeated|GaussianRandomWalk).*events of shape"):
        gauss_newton(backend, model, np.zeros(1))


def test_parameters_that_no_element_has_alone_are_noticed(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    class Profile(base_of(backend)):  # type: ignore[misc]
        """Elements with a level each and a shape in common, which is said to be a number."""

        arg_constraints = {  # noqa: RUF012
            "level": dist.constraints.real,
            "profile": dist.constraints.real,
        }
        support = dist.constraints.real_vector

        def __init__(self, level: Any, profile: Any) -> None:
            self.level, self.profile = level, profile
            super().__init__(tuple(level.shape), tuple(profile.shape), validate_args=False)

        def log_prob(self, value: Any) -> Any:
            return -((value - self.level[..., None] - self.profile) ** 2).sum(-1)

    def model() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        host.sample("y", Profile(z * xp.ones(3), z * xp.ones(4)), obs=xp.ones((3, 4)))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Profile \(profile of shape \(4,\)"):
        gauss_newton(backend, model, np.zeros(1))


# -- Pyro alone ------------------------------------------------------------------------------------


def test_series_of_pyro_are_refused_by_name() -> None:
    """Of a hidden Markov model, as none of NumPyro's distributions is."""
    pytest.importorskip("torch")
    backend = backend_of("pyro")
    pyro, dist, xp = backend.host, backend.dist, backend.xp

    def series() -> None:
        loc = pyro.sample("loc", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        hidden = dist.DiscreteHMM(xp.zeros(2), xp.zeros(2, 2), dist.Normal(loc, 1.0))
        pyro.sample("y", hidden, obs=xp.zeros(5))

    expected = (
        "Site 'y': expected a distribution whose .* found DiscreteHMM.*register_output_fisher"
    )
    with pytest.raises(ArgumentError, match=expected):
        gauss_newton(backend, series, np.zeros(2))


def test_eigenvalues_of_a_matrix_that_is_not_finite_with_torch() -> None:
    """One particle that is lost must not take the others with it, as torch's own would."""
    torch = pytest.importorskip("torch")
    room = backend_of("pyro").room("curvature")
    matrices = torch.eye(3).repeat(2, 1, 1) * torch.tensor([2.0, torch.nan])[:, None, None]
    values, vectors = room.symmetric_eigen(matrices)
    np.testing.assert_allclose(values[0], 2.0)
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, np.eye(3), atol=1e-12)
    assert torch.isnan(values[1]).all()
