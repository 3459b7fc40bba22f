"""ELBO and Pareto k-hat of guides fitted to Pyro models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from scipy import stats

from ppl_ext.errors import ArgumentError
from pyro_ext import SVGD, ProximalScoreVI, elbo, ksd, psis_khat
from pyro_ext.diagnostics import fit as diagnostics_fit
from pyro_ext.diagnostics import importance
from pyro_ext.diagnostics.importance import ELBO, ParetoKHat
from pyro_ext.guides import Moments, flat_density
from tests import arviz_support as support

torch.set_default_dtype(torch.float64)

# xarray and ArviZ use what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

N = 40
Y = torch.linspace(-2.0, 4.0, N) + torch.linspace(0.0, 3.0, N).sin()
COUNTS = torch.tensor([3.0, 0.0, 5.0, 2.0, 4.0, 1.0])


def conjugate(y: torch.Tensor, batch: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def in_batches(y: torch.Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", N, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def counts(y: torch.Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("N", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def heavy() -> None:
    pyro.sample("z", dist.StudentT(3.0, torch.zeros(2), 1.0).to_event(1))


def posterior(temperature: float = 1.0) -> tuple[float, float]:
    """Mean and standard deviation."""
    precision = 1 / 9 + N / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def log_evidence(temperature: float = 1.0) -> float:
    """Log of the integral of prior times likelihood^(1/temperature), by quadrature."""
    mu = np.linspace(-4.0, 8.0, 200_001)
    log_likelihood = stats.norm(mu[:, None], 2.0).logpdf(Y.numpy()[None]).sum(1) / temperature
    log_joint = stats.norm(0.0, 3.0).logpdf(mu) + log_likelihood
    peak = log_joint.max()
    return peak + math.log(np.trapezoid(np.exp(log_joint - peak), mu))


def guide_at(model: Any, mean: Any, scale: Any, *args: Any, kind: Any = AutoMultivariateNormal):
    """A guide of a model, set up and put to these moments."""
    guide = kind(model)
    # Not by a call, which would share parameters with other guides of the same name.
    density = flat_density(guide, args)
    moments = Moments(torch.as_tensor(mean), torch.as_tensor(scale))
    density.write_back(density.set_moments(density.initial_parameters(), moments))
    return guide


def conjugate_guide(mean: float, scale: float) -> Any:
    return guide_at(conjugate, [mean], [[scale]], Y)


def engine_at(model: Any, guide: Any, *args: Any, **options: Any) -> ProximalScoreVI:
    engine = ProximalScoreVI(model, guide, seed=0, **options)
    engine.setup(*args)
    return engine


def kl_normal(mean: float, scale: float, other_mean: float, other_scale: float) -> float:
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    return 0.5 * (ratio**2 + shift**2 - 1.0) - math.log(ratio)


# -- ELBO ----------------------------------------------------------------------------------------


def test_elbo_of_the_posterior_is_the_log_evidence() -> None:
    found = elbo(engine_at(conjugate, conjugate_guide(*posterior()), Y))
    assert isinstance(found, ELBO) and found.num_samples == 1000
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # The same at every draw.
    assert found.standard_error < 1e-13


def test_elbo_of_a_wrong_guide_falls_short_by_the_divergence() -> None:
    mean, scale = posterior()
    wrong = mean + 0.5 * scale, 1.4 * scale
    guide = conjugate_guide(*wrong)
    found = elbo(guide, model=conjugate, args=(Y,), num_samples=4000)
    expected = log_evidence() - kl_normal(*wrong, mean, scale)
    assert abs(found.value - expected) < 4 * found.standard_error
    # log p - log q is a constant + a e + b e^2 in e ~ N(0, 1).
    a, b = 0.5 * 1.4, (1.4**2 - 1) / 2
    error = math.sqrt((a**2 + 2 * b**2) / 4000)
    assert abs(found.standard_error / error - 1) < 0.1


def test_minibatches_do_not_change_the_elbo() -> None:
    """The sweep has a ragged last chunk."""
    guide = conjugate_guide(2.0, 0.4)
    whole = elbo(engine_at(conjugate, guide, Y))
    chunked = elbo(engine_at(conjugate, guide, Y, 10, data_chunk=16))
    np.testing.assert_allclose(chunked, whole, rtol=1e-10)
    of_guide = elbo(guide, model=conjugate, args=(Y,), kwargs={"batch": 10})
    np.testing.assert_allclose(of_guide, whole, rtol=1e-10)


def test_batches_as_arguments_need_all_rows() -> None:
    engine = engine_at(in_batches, guide_at(in_batches, *_column(posterior()), Y), Y[:10])
    for diagnostic in (elbo, psis_khat, ksd):
        with pytest.raises(ArgumentError, match=r"'N' has 40 rows.* 10. Pass all rows, as args"):
            diagnostic(engine)
    found = elbo(engine, args=(Y,))
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # Nor may the last of several calls have been a batch.
    engine = engine_at(in_batches, guide_at(in_batches, *_column(posterior()), Y), Y)
    engine.setup(Y[:10])
    with pytest.raises(ArgumentError, match="Pass all rows"):
        elbo(engine)


def _column(moments: tuple[float, float]) -> tuple[list[float], list[list[float]]]:
    return [moments[0]], [[moments[1]]]


def test_elbo_is_that_of_the_model_unless_the_temperature_is_asked_for() -> None:
    guide = conjugate_guide(*posterior(4.0))
    tempered = engine_at(conjugate, guide, Y, likelihood_temperature=4.0)
    found = elbo(tempered)
    np.testing.assert_allclose(found, elbo(guide, model=conjugate, args=(Y,)), rtol=1e-12)
    assert found.value < log_evidence() - 0.3
    for temperature in (None, 4.0):
        own = elbo(tempered, likelihood_temperature=temperature)
        np.testing.assert_allclose(own.value, log_evidence(4.0), rtol=1e-10)
        assert own.standard_error < 1e-13


def test_elbo_of_a_constrained_site_is_the_host_s() -> None:
    """The posterior of the rate is a Gamma; the guide is Normal in log rate."""
    pyro.set_rng_seed(0)
    guide = AutoDiagonalNormal(counts)
    svi = SVI(counts, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(300):
        svi.step(COUNTS)
    found = elbo(guide, model=counts, args=(COUNTS,), num_samples=4000)
    losses = [Trace_ELBO().loss(counts, guide, COUNTS) for _ in range(1000)]
    error = math.hypot(found.standard_error, np.std(losses) / math.sqrt(1000))
    assert abs(found.value + np.mean(losses)) < 4 * error
    total, size = float(COUNTS.sum()), len(COUNTS)
    evidence = math.lgamma(2 + total) - (2 + total) * math.log(1 + size)
    evidence -= sum(math.lgamma(1 + float(y)) for y in COUNTS)
    assert evidence - 0.1 < found.value < evidence + 4 * found.standard_error


def test_parameters_of_the_model_are_where_svi_has_put_them() -> None:
    def model(y: torch.Tensor) -> None:
        noise = pyro.param("noise", torch.tensor(1.0), constraint=dist.constraints.positive)
        mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("N", len(y)):
            pyro.sample("y", dist.Normal(mu, noise), obs=y)

    guide = conjugate_guide(*posterior())
    pyro.param("noise", torch.tensor(2.0), constraint=dist.constraints.positive)
    found = elbo(guide, model=model, args=(Y,))
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    assert float(pyro.param("noise").detach()) == 2.0


def test_a_flow_is_at_most_the_evidence() -> None:
    pyro.set_rng_seed(1)
    guide = AutoIAFNormal(conjugate_pair, hidden_dim=[4])
    guide()
    before = torch.get_rng_state()
    found = elbo(guide, model=conjugate_pair)
    assert torch.equal(torch.get_rng_state(), before)
    density = flat_density(guide)
    theta = density.sample(density.live_parameters(), diagnostics_fit.diagnostic_generator(3), 1000)
    log_q = density.log_prob(density.live_parameters(), theta).detach()
    ratios = dist.Normal(1.0, 2.0).log_prob(theta).sum(1) - log_q
    error = math.hypot(found.standard_error, float(ratios.std()) / math.sqrt(1000))
    assert abs(found.value - float(ratios.mean())) < 4 * error
    assert found.value < 4 * found.standard_error


def conjugate_pair() -> None:
    pyro.sample("z", dist.Normal(torch.ones(2), 2.0).to_event(1))


def test_a_density_of_zero_makes_the_elbo_infinite() -> None:
    def bounded() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        pyro.factor("positive", torch.where(z > 0, 0.0, -math.inf).sum())

    guide = guide_at(bounded, [0.0], [[1.0]])
    found = elbo(guide, model=bounded)
    assert found.value == -math.inf and math.isnan(found.standard_error)
    # The other half of the draws has equal ratios.
    assert psis_khat(guide, model=bounded).khat == -math.inf
    nowhere = guide_at(bounded, [-50.0], [[1.0]])
    with pytest.raises(ArgumentError, match="log p = -inf at all 4000"):
        psis_khat(nowhere, model=bounded)


# -- k-hat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9, 1.5])
def test_khat_is_the_shape_of_the_tail(shape: float) -> None:
    """Ratios at the quantiles of a Pareto distribution, in any order and up to a factor."""
    survival = (np.arange(4000) + 0.5) / 4000
    ratios = np.random.default_rng(0).permutation(-shape * np.log(survival)) - 700.0
    # ArviZ weighs the fit to 190 or so ratios with a prior of ten at 0.5.
    expected = (190 * shape + 10 * 0.5) / 200
    assert abs(importance._pareto_shape(ratios, 0.0) - expected) < 0.05


def test_khat_is_arviz_s_of_the_ratios() -> None:
    guide = guide_at(heavy, np.zeros(2), 0.5 * np.eye(2))
    found = psis_khat(guide, model=heavy, num_samples=1000, seed=3, draw_chunk=1000)
    density = flat_density(guide)
    theta = density.sample(
        density.live_parameters(), diagnostics_fit.diagnostic_generator(3), 1000
    ).numpy()
    ratios = stats.t(3.0).logpdf(theta).sum(1) - stats.norm(0.0, 0.5).logpdf(theta).sum(1)
    np.testing.assert_allclose(found.khat, _arviz_khat(ratios), rtol=1e-9)


def _arviz_khat(ratios: np.ndarray) -> float:
    import arviz

    if support.MAJOR < 1:
        return float(arviz.psislw(ratios)[1])
    from arviz_stats.base import array_stats

    return float(array_stats.psislw(-ratios)[1])


def test_khat_tells_good_guides_from_narrow_ones() -> None:
    narrow = psis_khat(guide_at(heavy, np.zeros(2), 0.3 * np.eye(2)), model=heavy)
    assert narrow.khat > 0.7 and not narrow.reliable
    mean, scale = posterior()
    wide = psis_khat(conjugate_guide(mean, 1.3 * scale), model=conjugate, args=(Y,))
    assert wide.khat < 0.2 and wide.reliable
    exact = psis_khat(engine_at(conjugate, conjugate_guide(mean, scale), Y))
    assert exact == ParetoKHat(-math.inf, 4000) and exact.reliable


def test_khat_is_that_of_the_engine_s_target() -> None:
    guide = conjugate_guide(*posterior(4.0))
    tempered = engine_at(conjugate, guide, Y, likelihood_temperature=4.0)
    assert psis_khat(tempered).khat == -math.inf
    model = psis_khat(tempered, likelihood_temperature=1.0)
    assert model == psis_khat(guide, model=conjugate, args=(Y,))
    assert math.isfinite(model.khat)


def test_threshold_and_message_follow_the_number_of_draws() -> None:
    assert ParetoKHat(0.6, 100).threshold == 0.5
    assert ParetoKHat(0.6, 4000).threshold == 0.7
    assert [ParetoKHat(0.6, number).reliable for number in (100, 4000)] == [False, True]
    assert "below 0.70" in ParetoKHat(0.6, 4000).message
    assert "too few draws" in ParetoKHat(0.6, 100).message
    assert "unreliable" in ParetoKHat(0.8, 4000).message
    assert "no finite mean" in ParetoKHat(math.inf, 4000).message
    assert not ParetoKHat(math.nan, 4000).reliable


# -- draws ---------------------------------------------------------------------------------------


def test_draws_come_in_chunks(monkeypatch) -> None:
    engine = engine_at(conjugate, conjugate_guide(*posterior()), Y)
    sizes = []
    sample = engine.density.sample

    def recorded(parameters, generator, num):
        sizes.append(num)
        return sample(parameters, generator, num)

    monkeypatch.setattr(engine.density, "sample", recorded)
    found = elbo(engine, num_samples=25, draw_chunk=7)
    assert sizes == [7, 7, 7, 4]
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    assert diagnostics_fit.chunk_sizes(250, 10, None) == [100, 100, 50]
    # A network of 20 million weights.
    assert diagnostics_fit.chunk_sizes(3, 20_000_000, None) == [1, 1, 1]


def test_nothing_is_disturbed() -> None:
    """Neither the engine, nor the global generator, nor Pyro's parameter store."""
    engines = [ProximalScoreVI(conjugate, AutoMultivariateNormal, seed=0) for _ in range(2)]
    for engine in engines:
        engine.run(3, Y, 10, progress_bar=False)
    pyro.param("mine", torch.tensor(1.0))
    before = torch.get_rng_state()
    first = elbo(engines[0], num_samples=50), psis_khat(engines[0], num_samples=50)
    second = elbo(engines[0], num_samples=50), psis_khat(engines[0], num_samples=50)
    assert first == second
    assert elbo(engines[0], num_samples=50, seed=1) != first[0]
    ksd(engines[0], num_samples=50)
    elbo(engines[0].guide, model=conjugate, args=(Y,))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store()) == ["mine"]
    results = [engine.run(3, Y, 10, progress_bar=False).losses for engine in engines]
    np.testing.assert_array_equal(*results)
    assert torch.equal(*(engine.get_samples(5)["mu"] for engine in engines))


# -- refusals ------------------------------------------------------------------------------------


def test_what_is_no_fitted_guide_is_refused() -> None:
    particles = SVGD(conjugate, pyro.optim.Adam({"lr": 0.1}), num_particles=3, seed=0)
    particles.setup(Y)
    guide = conjugate_guide(0.0, 1.0)
    engine = engine_at(conjugate, guide, Y)
    per_site = AutoNormal(conjugate)
    per_site(Y)
    for diagnostic in (elbo, psis_khat):
        with pytest.raises(ArgumentError, match="found SVGD.*Use ksd"):
            diagnostic(particles)
        with pytest.raises(ArgumentError, match="AutoNormal: it works site by site"):
            diagnostic(per_site, model=conjugate, args=(Y,))
        with pytest.raises(ArgumentError, match="has not seen its model"):
            diagnostic(AutoDiagonalNormal(conjugate), model=conjugate, args=(Y,))
        with pytest.raises(ArgumentError, match="Pass model="):
            diagnostic(guide)
        with pytest.raises(ArgumentError, match="Leave model out"):
            diagnostic(engine, model=conjugate)
        with pytest.raises(ArgumentError, match="found conjugate"):
            diagnostic(conjugate)
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        elbo(ProximalScoreVI(conjugate, AutoDiagonalNormal))


def test_bad_options_are_refused() -> None:
    engine = engine_at(conjugate, conjugate_guide(0.0, 1.0), Y)
    for number in (1, 10.0, True):
        with pytest.raises(ArgumentError, match="num_samples to be an int >= 2"):
            elbo(engine, num_samples=number)
    with pytest.raises(ArgumentError, match="num_samples to be an int >= 25"):
        psis_khat(engine, num_samples=24)
    with pytest.raises(ArgumentError, match="draw_chunk"):
        elbo(engine, draw_chunk=0)
    with pytest.raises(ArgumentError, match="likelihood_temperature"):
        elbo(engine, likelihood_temperature=0.0)


def test_guides_and_models_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ArgumentError, match="over the latent sites"):
        elbo(conjugate_guide(0.0, 1.0), model=heavy)


def test_ratios_that_are_not_numbers_are_refused() -> None:
    guide = conjugate_guide(0.0, 1.0)
    with torch.no_grad():
        guide.loc.fill_(math.nan)
    with pytest.raises(ArgumentError, match="found 1000 of 1000 draws"):
        elbo(guide, model=conjugate, args=(Y,))
