"""``fit.log_evidence`` and ``compare`` against integrals that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import halfcauchy, multivariate_normal, norm

from ppl_ext.chains.symmetry import Exchange, Symmetry
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after.evidence import LogEvidence, _log_orders, bridge
from ppl_ext.fit.compare import compare
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.verdict.verdict import Verdict
from tests.fit.test_fit import fit_of

#: A program of a backend with its arguments, and its log evidence.
Case = tuple[Callable[..., None], tuple[Any, ...], float]

COUNTS = np.array([2.0, 4.0, 3.0, 1.0, 6.0, 2.0])
Y = np.array([-2.1, -1.7, 1.4, 2.2, 2.6, -1.9, 1.8])


def gamma_poisson(backend: Any) -> Case:
    host, dist, array = backend.host, backend.dist, backend.array

    def model(counts: Any) -> None:
        rate = host.sample("rate", dist.Gamma(array(2.0), array(1.0)))
        with host.plate("rows", len(COUNTS)):
            host.sample("counts", dist.Poisson(rate), obs=counts)

    total, number = COUNTS.sum(), len(COUNTS)
    known = gammaln(2.0 + total) - gammaln(2.0) - (2.0 + total) * math.log(1.0 + number)
    return model, (array(COUNTS),), known - gammaln(COUNTS + 1.0).sum()


def beta_binomial(backend: Any) -> Case:
    """All 16 failed: the mass lies at the edge."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(failed: Any) -> None:
        share = host.sample("share", dist.Beta(array(1.0), array(2.0)))
        host.sample("failed", dist.Binomial(total_count=16, probs=share), obs=failed)

    return model, (array(16.0),), betaln(17.0, 2.0) - betaln(1.0, 2.0)


def powers_of_a_prior(backend: Any) -> Case:
    """A Beta prior to the power of four is Beta(5, 9), but for the normaliser."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(failed: Any) -> None:
        with backend.handlers.scale(scale=4.0):
            share = host.sample("share", dist.Beta(array(2.0), array(3.0)))
        host.sample("failed", dist.Binomial(total_count=16, probs=share), obs=failed)

    choose = gammaln(17.0) - gammaln(7.0) - gammaln(11.0)
    return model, (array(6.0),), choose + betaln(11.0, 19.0) - 4.0 * betaln(2.0, 3.0)


def exchanged_labels(backend: Any) -> Case:
    """Two alike components whose indicators are summed out, by a grid of their means."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(y: Any) -> None:
        with host.plate("components", 2):
            means = host.sample("means", dist.Normal(array(0.0), array(3.0)))
        with host.plate("rows", len(Y)):
            which = host.sample("which", dist.Categorical(array([0.5, 0.5])))
            host.sample("y", dist.Normal(means[which], array(1.0)), obs=y)

    grid = np.linspace(-14.0, 14.0, 1401)
    prior, likely = norm.logpdf(grid, 0.0, 3.0), norm.logpdf(Y[:, None], grid, 1.0)
    rows = np.logaddexp(likely[:, :, None], likely[:, None]) - math.log(2.0)
    joint = prior[:, None] + prior + rows.sum(0)
    return model, (array(Y),), float(logsumexp(joint)) + 2.0 * math.log(grid[1] - grid[0])


def two_modes(backend: Any) -> Case:
    """A factor with modes of weights .3 and .7 inside of a wide prior."""
    host, dist, array, xp = backend.host, backend.dist, backend.array, backend.xp

    def model() -> None:
        x = host.sample("x", dist.Normal(array(np.zeros(3)), array(3.0)).to_event(1))
        one, other = (
            dist.Normal(array(np.full(3, mean)), array(0.5)).to_event(1).log_prob(x)
            for mean in (2.5, -2.5)
        )
        host.factor("modes", xp.logaddexp(one + math.log(0.3), other + math.log(0.7)))

    return model, (), 3.0 * float(norm.logpdf(2.5, 0.0, math.sqrt(9.0 + 0.25)))


def regression(backend: Any, dim: int = 20) -> Case:
    host, dist, array = backend.host, backend.dist, backend.array
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2 * dim, dim))
    y = x @ generator.normal(size=dim) + 0.7 * generator.normal(size=2 * dim)

    def model(x: Any, y: Any) -> None:
        slopes = host.sample("slopes", dist.Normal(array(np.zeros(dim)), array(2.0)).to_event(1))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(x @ slopes, array(0.7)), obs=y)

    covariance = 4.0 * x @ x.T + 0.49 * np.eye(len(y))
    return model, (array(x), array(y)), float(multivariate_normal.logpdf(y, cov=covariance))


def schools(backend: Any) -> Case:
    """Eight schools, fitted non-centred; by quadrature over the logarithm of the scale."""
    host, dist, array = backend.host, backend.dist, backend.array
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(array(0.0), array(5.0)))
        scale = host.sample("scale", dist.HalfCauchy(array(5.0)))
        with host.plate("schools", 8):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, array(errors)), obs=y)

    logs = np.linspace(-12.0, 14.0, 2001)
    shared = 25.0 * np.ones((8, 8)) + np.diag(errors**2)
    terms = [
        multivariate_normal.logpdf(effects, cov=shared + math.exp(2.0 * log) * np.eye(8))
        + halfcauchy.logpdf(math.exp(log), 0.0, 5.0)
        + log
        for log in logs
    ]
    return model, (array(effects),), float(logsumexp(terms)) + math.log(logs[1] - logs[0])


def check(found: LogEvidence, known: float) -> None:
    """Within four stated errors, and these small: false once in 16,000."""
    assert found.value is not None and found.error is not None and not found.reason
    assert abs(found.value - known) < 4.0 * found.error
    assert 0.001 < found.error < 0.05
    assert 0 < found.evaluations < 6_000


@pytest.mark.parametrize(
    "case", [gamma_poisson, beta_binomial, powers_of_a_prior, exchanged_labels, two_modes]
)
def test_evidence_is_the_integral_of_the_program(backend: Any, case: Any) -> None:
    model, args, known = case(backend)
    fit = fit_of(backend, model, *args)
    check(fit.log_evidence, known)
    assert fit.log_evidence is fit.log_evidence  # it is computed once


@pytest.mark.slow
@pytest.mark.parametrize("case", [regression, schools])
def test_evidence_of_larger_programs(backend: Any, case: Any) -> None:
    model, args, known = case(backend)
    check(fit_of(backend, model, *args).log_evidence, known)


def test_evidence_of_corrected_draws_is_by_importance_weights(backend: Any) -> None:
    model, args, known = gamma_poisson(backend)
    fit = fit_of(backend, model, *args, exact=False)
    assert fit.verdict.level == "corrected"
    check(fit.log_evidence, known)


def test_evidence_leaves_the_chains_as_they_are(backend: Any) -> None:
    model, args, _ = gamma_poisson(backend)
    one, other = (fit_of(backend, model, *args) for _ in range(2))
    before = one.log_evidence
    one.more(32, progress_bar=False), other.more(32, progress_bar=False)
    for name, each in one.draws.items():
        np.testing.assert_array_equal(backend.numpy(each), backend.numpy(other.draws[name]))
    assert one.log_evidence is not before  # it is of more draws now


def test_there_is_none_without_a_proper_prior(backend: Any) -> None:
    host, dist, array = backend.host, backend.dist, backend.array
    constraints = dist.constraints

    def improper(y: Any) -> None:
        host.sample("level", dist.ImproperUniform(constraints.real, (), ()))
        host.sample("other", dist.Normal(array(0.0), array(1.0)))
        host.sample("y", dist.Normal(array(0.0), array(1.0)), obs=y)

    def masked(y: Any) -> None:
        level = host.sample("level", dist.Normal(array(0.0), array(1.0)).mask(False))
        host.sample("y", dist.Normal(level, array(1.0)), obs=y)

    for model in (improper, masked):
        target, _ = backend.target(model, (array(1.0),), init_strategy=_at_zero(backend))
        assert target.layout.improper == ("level",)
    found = fit_of(backend, masked, array(1.0)).log_evidence
    assert found.value is None and "density of 'level' has no normaliser" in found.reason
    assert str(found) == f"none: {found.reason}"


def _at_zero(backend: Any) -> Any:
    """A strategy for sites that cannot be drawn from."""
    if backend.is_pyro:
        from pyro.infer.autoguide import init_to_value
    else:
        from numpyro.infer import init_to_value
    return init_to_value(values={"level": backend.array(0.0), "other": backend.array(0.0)})


def test_a_curved_ridge_is_fitted_in_coordinates_in_which_it_is_straight(
    backend: Any, tmp_path: Any
) -> None:
    """Fits took 89,000 evaluations and more; priors alone have an evidence of 1."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model() -> None:
        x = host.sample("x", dist.Normal(array(0.0), array(1.0)))
        host.sample("y", dist.Normal(2.0 * x**2, array(0.2)))

    with pytest.warns(UserWarning, match="observe"):
        found = fit_of(backend, model)
    assert found.verdict.trusted and found.verdict.evaluations < 20_000
    own = found.climbed.sampled.kernel.proposal
    assert own.bend is not None and own.bend.bent == (1,)
    evidence = found.log_evidence
    assert abs(evidence.value) < 4.0 * evidence.error < 0.2
    found.save(tmp_path / "fit")
    again = backend.public.load_fit(tmp_path / "fit", model)
    kept = again.climbed.sampled.kernel.proposal
    assert kept.bend.bent == (1,) and kept.unbent == own.unbent
    np.testing.assert_array_equal(kept.bend.squares, own.bend.squares)


def test_there_is_none_of_draws_that_are_not_trusted(backend: Any) -> None:
    model, args, _ = gamma_poisson(backend)
    found = fit_of(backend, model, *args, budget=500).log_evidence
    assert found.value is None and found.error is None and "not trusted" in found.reason


def test_a_fit_without_its_program_has_none(backend: Any, tmp_path: Any) -> None:
    model, args, _ = gamma_poisson(backend)
    fit_of(backend, model, *args).save(tmp_path / "fit")
    with pytest.raises(ArgumentError, match="loaded without"):
        _ = backend.public.load_fit(tmp_path / "fit").log_evidence


# -- the bridge by itself ------------------------------------------------------------------------


def chains(number: int, correlation: float, generator: np.random.Generator) -> np.ndarray:
    """Sixteen chains (N, 16) of a standard Normal, each an autoregression."""
    found = generator.normal(size=(number, 16))
    for step in range(1, number):
        found[step] *= math.sqrt(1.0 - correlation**2)
        found[step] += correlation * found[step - 1]
    return found


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_bridge_is_right_within_its_error(correlation: float) -> None:
    """p = e^3 N(0, 1), q = N(.7, 1.3^2): the error is that of many repetitions."""
    scores, errors = [], []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        drawn = chains(40, correlation, generator)
        proposed = generator.normal(0.7, 1.3, size=600)
        ratios = [
            3.0 + norm.logpdf(each) - norm.logpdf(each, 0.7, 1.3) for each in (drawn, proposed)
        ]
        value, error = bridge(*ratios)
        scores.append((value - 3.0) / error)
        errors.append(error)
    # Of 200 scores the mean is known to .07 and the root mean square to .05, four of them each;
    # autocorrelations of 40 draws are known to some percent.
    assert abs(np.mean(scores)) < 0.28
    assert 0.75 < np.sqrt(np.mean(np.square(scores))) < 1.3
    assert 0.01 < np.mean(errors) < 0.1


def test_the_bridge_counts_draws_of_the_proposal_without_density() -> None:
    """Uniform on (0, 1) by a proposal that is uniform on (0, 2): half of its draws have none."""
    generator = np.random.default_rng(0)
    inside = generator.uniform(size=4_000) < 0.5
    ratios = np.where(inside, math.log(2.0), -np.inf)
    value, error = bridge(np.full((100, 16), math.log(2.0)), ratios)
    assert abs(value) < 4.0 * error < 0.1
    assert bridge(np.zeros((10, 16)), np.full(100, -np.inf))[1] == math.inf


def test_orders_of_exchanged_labels_are_counted() -> None:
    exchanges = (Exchange((0, 1, 2), ()), Exchange((0, 1), ()))
    symmetry = Symmetry(exchanges, lambda z: {}, lambda values: np.zeros((0, 0)))
    assert _log_orders(symmetry) == pytest.approx(math.log(12.0))
    assert _log_orders(None) == 0.0


# -- a table of several --------------------------------------------------------------------------


def test_compare_gives_probabilities_of_models() -> None:
    table = compare(
        {
            "small": LogEvidence(-1003.0, 0.02),
            "none": LogEvidence(None, None, "a prior is improper"),
            "large": LogEvidence(-1002.0, 0.01),
        }
    )
    assert list(table.index) == ["large", "small", "none"]
    weights = np.exp([0.0, -1.0]) / np.exp([0.0, -1.0]).sum()
    np.testing.assert_allclose(table["probability"][:2], weights)
    np.testing.assert_allclose(table["difference"][:2], [0.0, -1.0])
    assert table["error"]["large"] == 0.01 and math.isnan(table["probability"]["none"])
    assert table["reason"]["none"] == "a prior is improper"


def test_compare_takes_fits_by_name() -> None:
    untrusted = Fit({"x": np.zeros(4)}, Verdict("not trusted", ()), 1)
    with pytest.raises(ArgumentError, match="loaded without"):
        compare({"one": untrusted})
    for wrong in ([untrusted], {}, {"one": 3.0}):
        with pytest.raises(ArgumentError, match="Expected a mapping of names to fits"):
            compare(wrong)  # type: ignore[arg-type]
