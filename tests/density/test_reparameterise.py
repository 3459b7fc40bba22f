"""Sites of latent scale, non-centred: which they are, and that the program stays the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppl_ext.target.noncentred import ENTRY_DATA, Moves, check_moved, difference, points_around
from tests.fit.test_fit import fit_of, numbers

MOVED, MOVED_BASE, LEFT = {"e": "e_decentered"}, {"e": "e_base_decentered"}, dict[str, str]()


def transformed(names: str, *first: Any) -> Callable[..., Any]:
    """A Normal of latent scale under transforms of these names."""

    def distribution(dist: Any, s: Any) -> Any:
        every = dist.transforms
        steps = [getattr(every, f"{name}Transform")() for name in names.split()]
        return dist.TransformedDistribution(
            dist.Normal(0.5, s), [*(f(every) for f in first), *steps]
        )

    return distribution


FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "Normal": (lambda dist, s: dist.Normal(0.3, s), MOVED),
    "of several entries": (lambda dist, s: dist.Normal(0.3, s).expand([3]).to_event(1), MOVED),
    "StudentT": (lambda dist, s: dist.StudentT(5.0, 0.3, s), MOVED),
    "Laplace": (lambda dist, s: dist.Laplace(0.3, s), MOVED),
    "LogNormal": (lambda dist, s: dist.LogNormal(0.3, s), MOVED_BASE),
    "LogNormals": (lambda dist, s: dist.LogNormal(0.3, s).expand([3]).to_event(1), MOVED_BASE),
    "a logit": (transformed("Sigmoid"), MOVED_BASE),
    "shifted": (transformed("Exp", lambda every: every.AffineTransform(1.0, 2.0)), MOVED_BASE),
    "of constant scale": (lambda dist, s: dist.Normal(s, 1.0), LEFT),
    "HalfNormal": (lambda dist, s: dist.HalfNormal(s), LEFT),
    "HalfCauchy": (lambda dist, s: dist.HalfCauchy(s), LEFT),
    "masked": (lambda dist, s: dist.Normal(0.3, s).mask(False), LEFT),
    "folded": (lambda dist, s: dist.FoldedDistribution(dist.Normal(0.3, s)), LEFT),
    "Softplus": (transformed("Softplus"), LEFT),
    "Gamma": (lambda dist, s: dist.Gamma(2.0, s), LEFT),
}
NUMPYRO: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "TruncatedNormal": (lambda dist, s: dist.TruncatedNormal(0.3, s, low=0.0), LEFT),
    "ZeroSumNormal": (lambda dist, s: dist.ZeroSumNormal(s, (3,)), LEFT),
    "a random walk": (lambda dist, s: dist.GaussianRandomWalk(s, 4), MOVED),
    "random walks": (
        lambda dist, s: dist.GaussianRandomWalk(s, 4).expand([2, 3]).to_event(1),
        MOVED,
    ),
    "a long random walk": (lambda dist, s: dist.GaussianRandomWalk(s, 101), LEFT),
}


#: By name: the option of a multivariate Normal of pairs, its location, shape of the batch, what is
#: done with it, and whether its scale is latent.
FACTOR, PLAIN = np.array([[1.0, 0.0], [0.6, 0.5]]), (lambda _, pairs: pairs)
PAIRS: dict[str, tuple[str, Any, tuple[int, ...], Callable[..., Any], dict[str, str]]] = {
    "factor": ("scale_tril", [0.3, -1.0], (), PLAIN, MOVED),
    "covariance": ("covariance_matrix", [0.3, -1.0], (), PLAIN, MOVED),
    "precision": ("precision_matrix", [0.3, -1.0], (), PLAIN, MOVED),
    "locations": ("scale_tril", [[0.3, -1.0], [2.0, 1.0]], (), PLAIN, MOVED),
    "factors": ("scale_tril", [0.3, -1.0], (2,), PLAIN, MOVED),
    "expanded": ("scale_tril", [0.3, -1.0], (), lambda _, pairs: pairs.expand([2]), MOVED),
    "of an event": (
        "scale_tril",
        [0.3, -1.0],
        (),
        lambda _, pairs: pairs.expand([2, 3]).to_event(1),
        MOVED,
    ),
    "positive": (
        "scale_tril",
        [0.3, -1.0],
        (),
        lambda dist, pairs: dist.TransformedDistribution(pairs, [dist.transforms.ExpTransform()]),
        MOVED_BASE,
    ),
    "masked": ("scale_tril", [0.3, -1.0], (), lambda _, pairs: pairs.mask(False), LEFT),
    "constant": ("constant", [0.3, -1.0], (), PLAIN, LEFT),
}


def of_pairs(backend: Any, name: str) -> Callable[..., Any]:
    """A distribution of ``PAIRS``, of dist and s."""
    option, loc, batch, around, _ = PAIRS[name]

    def distribution(dist: Any, s: Any) -> Any:
        matrix, scale = backend.array(np.broadcast_to(FACTOR, (*batch, 2, 2)).copy()), s
        if option == "constant":
            return dist.MultivariateNormal(s * backend.array(loc), scale_tril=matrix)
        if option != "scale_tril":
            matrix, scale = matrix @ matrix.swapaxes(-1, -2), s**2
        if option == "precision_matrix":
            scale = s**-2
        pairs = dist.MultivariateNormal(backend.array(loc), **{option: scale * matrix})
        return around(dist, pairs)

    return distribution


def one_site(backend: Any, distribution: Callable[..., Any], around: Any = None) -> Any:
    """A site of a distribution with a latent scale, in a plate and under a handler."""
    host, dist = backend.host, backend.dist

    def model() -> None:
        s = host.sample("s", dist.HalfNormal(backend.array(1.0)))
        with host.plate("two", 2):
            if around is None:
                host.sample("e", distribution(dist, s))
            else:
                with around(backend.handlers):
                    host.sample("e", distribution(dist, s))

    return model


def moved(backend: Any, model: Any) -> tuple[Moves, Any]:
    """What is moved, and a function that compares the two programs."""
    own = backend.room("density.reparameterise")
    target, data = backend.target(model)
    moves = own.moves_of(target, data)

    def compare(*, has_data: bool = False) -> None:
        program, given = own.noncentred(model, moves, target.layout.names), {}
        if has_data:
            # Any numbers give the same program; the precisions are positive.
            shape = target.layout.shapes["e"]
            length = moves.lengths.get("e")
            shape = (2, *shape) if length is None else (*shape[:-1], length + 1, length)
            noise = np.random.default_rng(0).normal(size=shape)
            noise[0] = np.exp(noise[0])
            program = program.given_data()
            given = {ENTRY_DATA: {"e": backend.array(noise)}}
        check_moved(moves, target, data, *backend.target(program, (), given))

    return moves, compare


@pytest.mark.parametrize("family", [*FAMILIES, *NUMPYRO])
def test_sites_are_moved_whose_distribution_the_hosts_handlers_take(
    backend: Any, family: str
) -> None:
    """And the program that comes of it has the same density, Jacobian included.

    So has that whose entries are standardised given their data.
    """
    if family in NUMPYRO and backend.is_pyro:
        pytest.skip("not in Pyro")
    distribution, expected = {**FAMILIES, **NUMPYRO}[family]
    found, compare = moved(backend, one_site(backend, distribution))
    assert found.latents == expected
    # In which units their location and scale are is not known from their values.
    assert found.shifted == ({"e"} if family == "shifted" else set())
    if found.latents:
        compare()
        compare(has_data=True)


def test_sites_with_a_sample_shape_are_moved(backend: Any) -> None:
    """NumPyro's handler takes the distribution alone, and would leave one entry of three."""
    if backend.is_pyro:
        pytest.skip("not in Pyro")
    host, dist = backend.host, backend.dist

    def model() -> None:
        s = host.sample("s", dist.HalfNormal(1.0))
        host.sample("e", dist.Normal(0.3, s), sample_shape=(3,))

    found, compare = moved(backend, model)
    assert found.latents == MOVED
    compare()
    compare(has_data=True)


@pytest.mark.parametrize("name", PAIRS)
def test_multivariate_normals_of_latent_scale_are_moved(backend: Any, name: str) -> None:
    found, compare = moved(backend, one_site(backend, of_pairs(backend, name)))
    assert found.latents == PAIRS[name][-1]
    assert found.lengths == dict.fromkeys(set(found.latents), 2)
    if found.latents:
        compare()
        compare(has_data=True)


@pytest.mark.parametrize(("centred", "expected"), [(0.0, LEFT), (0.5, ["e_decentered"])])
def test_what_the_hosts_handler_has_moved_is_left_alone(
    backend: Any, centred: float, expected: Any
) -> None:
    """A program that is non-centred already has no latent scale; one that is half so has."""
    module = "pyro.infer.reparam" if backend.is_pyro else "numpyro.infer.reparam"
    reparam = importlib.import_module(module).LocScaleReparam(centred)
    model = backend.handlers.reparam(one_site(backend, FAMILIES["Normal"][0]), {"e": reparam})
    assert list(moved(backend, model)[0].latents) == list(expected)


@pytest.mark.parametrize("name", ["scale", "mask"])
def test_sites_that_do_not_count_once_are_left_alone(backend: Any, name: str) -> None:
    """Their Jacobian would count as they do."""
    option = {"scale": {"scale": 0.5}, "mask": {"mask": backend.array(False)}}[name]
    model = one_site(
        backend, FAMILIES["Normal"][0], lambda handlers: getattr(handlers, name)(**option)
    )
    assert moved(backend, model)[0].latents == LEFT


def not_of_scale(backend: Any) -> Any:
    """A Normal and a factor that its scale has no part in: no family of location and scale."""

    class Other(backend.dist.Normal):  # type: ignore[misc, name-defined]
        def log_prob(self, value: Any) -> Any:
            return super().log_prob(value) - 0.5 * value**2

    return Other


def with_more(backend: Any) -> Any:
    """A Normal that is not made of location and scale alone."""

    class WithMore(backend.dist.Normal):  # type: ignore[misc, name-defined]
        def __init__(self, loc: Any, scale: Any, more: float) -> None:
            super().__init__(loc, scale)
            self.more = more

    return WithMore


def test_another_program_is_refused(backend: Any) -> None:
    other = not_of_scale(backend)
    found, compare = moved(backend, one_site(backend, lambda _, s: other(backend.array(0.3), s)))
    assert found.latents == MOVED
    with pytest.raises(backend.public.ModelCheckError, match="differs .* at 1. of 16 positions"):
        compare()


@pytest.mark.in_one_package
@pytest.mark.parametrize("fails", [False, True])
def test_another_way_to_write_a_program_never_ends_a_fit(backend: Any, fails: bool) -> None:
    """It is dropped with the reason; the answer is that of the program as written."""
    host, dist, array = backend.host, backend.dist, backend.array
    made = with_more(backend) if fails else not_of_scale(backend)
    more = (1.0,) if fails else ()

    def model(y: Any) -> None:
        s = host.sample("s", dist.LogNormal(array(0.0), 0.1))
        e = host.sample("e", made(array(0.0), s, *more))
        host.sample("y", dist.Normal(e, 1.0), obs=y)

    fit = fit_of(backend, model, array(2.0), exact=False)
    told = "which failed: TypeError" if fails else "non-centred: its log density"
    assert any(told in reason for reason in fit.verdict.reasons)
    assert fit.climbed.problem.name == "as written"
    # With s near 1: precisions 1 + 1, and 1 more of the factor.
    assert numbers(backend, fit)["e"].mean() == pytest.approx(1.0 if fails else 2 / 3, abs=0.1)


def log_normals(y: np.ndarray) -> tuple[float, np.ndarray]:
    """Means of s and e in e ~ LogNormal(0, s), y ~ Normal(e, 0.7), s ~ HalfNormal(1).

    On a grid over s, with the rule of Gauss and Hermite over the logarithm of each effect.
    """
    s = np.linspace(0.005, 5.0, 1000)
    x, weight = np.polynomial.hermite_e.hermegauss(80)
    effect = np.exp(s[:, None] * x)
    likelihood = np.exp(-0.5 * ((y - effect[..., None]) / 0.7) ** 2) * weight[None, :, None]
    inner = likelihood.sum(1)
    log_weight = np.log(inner).sum(1) - 0.5 * s**2
    posterior = np.exp(log_weight - log_weight.max())
    posterior /= posterior.sum()
    means = (likelihood * effect[..., None]).sum(1) / inner
    return float(posterior @ s), posterior @ means


@pytest.mark.in_one_package
def test_a_hierarchy_of_log_normals_is_fitted_right(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    y = np.array([2.9, 0.2, 1.1])
    s_mean, means = log_normals(y)

    def model(y: Any) -> None:
        s = host.sample("s", dist.HalfNormal(backend.array(1.0)))
        with host.plate("rows", 3):
            e = host.sample("e", dist.LogNormal(backend.array(0.0), s))
            host.sample("y", dist.Normal(e, 0.7), obs=y)

    fit = fit_of(backend, model, backend.array(y), target_ess=200.0)
    # Chains may be slow where s is near 0, and the verdict says so then. What is asked here is that
    # the other way to write the program is the same program.
    assert fit.verdict.level in ("exact", "not trusted")
    for name, expected in (("s", s_mean), ("e", means)):
        draws, figures = numbers(backend, fit)[name], fit.verdict.by_site[name]
        error = 4.0 * draws.std(0) / np.sqrt(figures.ess_bulk)
        assert (np.abs(draws.mean(0) - expected) < error).all()


def correlated(backend: Any) -> Any:
    """Intercepts and slopes of ten groups, with a latent correlation."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(group: Any, x: Any, y: Any) -> None:
        t = host.sample("t", dist.HalfNormal(array([2.0, 2.0])).to_event(1))
        sigma = host.sample("sigma", dist.HalfNormal(array(2.0)))
        factor = host.sample("L", dist.LKJCholesky(2, 2.0))
        mu = host.sample("mu", dist.Normal(array([0.0, 0.0]), 5.0).to_event(1))
        with host.plate("groups", 10):
            pairs = dist.MultivariateNormal(mu, scale_tril=t[:, None] * factor)
            a = host.sample("a", pairs)
        with host.plate("rows", 80):
            host.sample("y", dist.Normal(a[group, 0] + a[group, 1] * x, sigma), obs=y)

    return model


def test_correlated_effects_are_fitted_right_and_soon(backend: Any) -> None:
    """Means and deviations by 32,000 draws of NUTS on the program non-centred by hand."""
    rng, group = np.random.default_rng(0), np.repeat(np.arange(10), 8)
    rng.integers(0, 6, 80)
    x, one, two = rng.normal(size=80), rng.normal(0.0, 1.0, 10), rng.normal(0.0, 0.5, 10)
    rng.normal(size=6)
    y = 1.0 + one[group] + two[group] * x + 0.5 * x + rng.normal(size=80)
    args = backend.array(group), backend.array(x), backend.array(y)
    fit = fit_of(backend, correlated(backend), *args)
    assert fit.verdict.level == "exact" and fit.verdict.evaluations < 20_000
    assert any("a partly non-centred" in reason for reason in fit.verdict.reasons)
    found = numbers(backend, fit)
    assert found["a"].shape[1:] == (10, 2) and "a_decentered" not in found
    draws = np.concatenate(
        [found["t"], found["mu"], found["sigma"][:, None], found["L"][:, 1, :1], found["a"][:, 0]],
        axis=1,
    )
    means = np.array([0.655, 0.671, 0.529, 0.714, 1.096, -0.496, 0.925, 0.396])
    deviations = np.array([0.253, 0.255, 0.258, 0.260, 0.104, 0.312, 0.389, 0.328])
    ess = min(each.ess_bulk for each in fit.verdict.by_site.values())
    assert (np.abs(draws.mean(0) - means) < 4.0 * deviations / np.sqrt(ess)).all()
    np.testing.assert_allclose(draws.std(0), deviations, rtol=0.25)


def test_two_ways_to_write_a_density_are_compared_with_the_jacobian() -> None:
    """x = m + s e, D = 3; the position is what a rewrite must keep, the volume what it changes."""
    scales = np.array([0.2, 1.0, 30.0])

    def written(x: np.ndarray) -> np.ndarray:
        return -0.5 * np.square(x / scales).sum(1) - np.log(scales).sum()

    def moved(e: np.ndarray) -> np.ndarray:
        return -0.5 * np.square(e).sum(1)

    def told(of_moved: Any, there: Any = lambda e: e * scales, epsilon: float = 1e-7) -> str:
        place = [(slice(0, 3), slice(0, 3), 1)]
        return difference(points_around(3), of_moved, written, there, place, epsilon)

    assert told(moved) == ""
    # Without the Jacobian, another density, another map, and a density that is nowhere known.
    assert "16 of 16 positions, by up to 1.8 nats" in told(
        lambda e: moved(e) - np.log(scales).sum()
    )
    assert "differs" in told(lambda e: 1.1 * moved(e))
    assert "differs" in told(moved, lambda e: 2.0 * e * scales)
    assert "differs" in told(lambda e: np.where(e[:, 0] > 0.0, np.nan, moved(e)))
    assert "could not be compared" in told(moved, lambda e: np.full(e.shape, np.nan))
    assert "could not be compared" in told(moved, lambda e: np.exp(e) * scales)
    # What rounding hides is no difference.
    assert told(lambda e: moved(e) + 0.01, lambda e: e * scales) != ""
    assert told(lambda e: moved(e) + 0.01, lambda e: e * scales, 1e-3) == ""


def test_vectors_of_a_singular_scale_do_not_end_the_evaluation_of_others(backend: Any) -> None:
    """Side by side, where rounding makes the matrix that standardises entries singular at one."""
    own = backend.room("density.reparameterise")

    def model() -> None:
        s = backend.host.sample("s", backend.dist.HalfNormal(backend.array(np.ones(3))).to_event(1))
        loc, unit = backend.array(np.zeros(3)), backend.array(np.tril(np.ones((3, 3))))
        with backend.host.plate("two", 2):
            root = s[:, None] * unit
            backend.host.sample("e", backend.dist.MultivariateNormal(loc, scale_tril=root))

    target, data = backend.target(model)
    moves = own.moves_of(target, data)
    program = own.noncentred(model, moves, target.layout.names).given_data()
    given = {ENTRY_DATA: {"e": backend.array(np.ones((2, 4, 3)))}}
    target, data = backend.target(program, (), given)
    z = np.zeros((3, target.dim))
    start = target.layout.slices["s"].start
    z[1, start : start + 3] = 12.0
    score = target.score(backend.array(z), data).score
    assert np.isfinite(backend.numpy(score)[[0, 2]]).all()


def test_an_argument_of_the_models_may_have_the_name_of_that_of_entries(backend: Any) -> None:
    """A program without entries that are standardised hands it on."""
    own = backend.room("density.reparameterise")

    def model(entry_data_by_site: Any) -> None:
        s = backend.host.sample("s", backend.dist.HalfNormal(entry_data_by_site))
        backend.host.sample("e", backend.dist.Normal(0.3, s))

    given = {ENTRY_DATA: backend.array(2.0)}
    target, data = backend.target(model, (), given)
    moves = own.moves_of(target, data)
    assert moves.latents == MOVED
    program = own.noncentred(model, moves, target.layout.names)
    check_moved(moves, target, data, *backend.target(program, (), given))
