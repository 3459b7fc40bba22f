"""ELBO and Pareto k-hat of guides fitted to NumPyro models."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.importance import _psis_khat
from scipy import stats

from numpyro_ext import SVGD, ProximalScoreVI, elbo, ksd, psis_khat
from numpyro_ext.diagnostics import fit as diagnostics_fit
from numpyro_ext.diagnostics import importance
from numpyro_ext.diagnostics.importance import ELBO, ParetoKHat
from numpyro_ext.guides import Moments, flat_density
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from tests import arviz_support as support

jax.config.update("jax_enable_x64", True)

# xarray and ArviZ use what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

KEY = jax.random.key(0)
N = 40
Y = jnp.linspace(-2.0, 4.0, N) + jnp.sin(jnp.linspace(0.0, 3.0, N))
COUNTS = jnp.array([3.0, 0.0, 5.0, 2.0, 4.0, 1.0])


def conjugate(y: jax.Array, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def in_batches(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", N, subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def counts(y: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def heavy() -> None:
    numpyro.sample("z", dist.StudentT(3.0, jnp.zeros(2), 1.0).to_event(1))


def conjugate_pair() -> None:
    numpyro.sample("z", dist.Normal(jnp.ones(2), 2.0).to_event(1))


def posterior(temperature: float = 1.0) -> tuple[float, float]:
    """Mean and standard deviation."""
    precision = 1 / 9 + N / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def log_evidence(temperature: float = 1.0) -> float:
    """Log of the integral of prior times likelihood^(1/temperature), by quadrature."""
    mu = np.linspace(-4.0, 8.0, 200_001)
    log_likelihood = stats.norm(mu[:, None], 2.0).logpdf(np.asarray(Y)).sum(1) / temperature
    log_joint = stats.norm(0.0, 3.0).logpdf(mu) + log_likelihood
    peak = log_joint.max()
    return peak + math.log(np.trapezoid(np.exp(log_joint - peak), mu))


def guide_at(model: Any, mean: Any, scale: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
    """A guide of a model that has been set up, and the host's parameters for these moments."""
    guide = AutoMultivariateNormal(model)
    density = flat_density(guide, KEY, args)
    moments = Moments(jnp.asarray(mean), jnp.asarray(scale))
    return guide, density.write_back(density.set_moments(density.initial_parameters(), moments))


def conjugate_guide(mean: float, scale: float) -> tuple[Any, dict[str, Any]]:
    return guide_at(conjugate, [mean], [[scale]], Y)


def engine_at(
    model: Any, mean: Any, scale: Any, *args: Any, **options: Any
) -> tuple[ProximalScoreVI, Any]:
    """An engine, and a state in which its guide has these moments."""
    engine = ProximalScoreVI(model, AutoMultivariateNormal, **options)
    state = engine.init(KEY, *args)
    moments = Moments(jnp.asarray(mean), jnp.asarray(scale))
    parameters = engine.density.set_moments(state.algorithm.parameters, moments)
    return engine, state._replace(algorithm=state.algorithm._replace(parameters=parameters))


def conjugate_engine(mean: float, scale: float, *args: Any, **options: Any) -> Any:
    return engine_at(conjugate, [mean], [[scale]], *(args or (Y,)), **options)


def kl_normal(mean: float, scale: float, other_mean: float, other_scale: float) -> float:
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    return 0.5 * (ratio**2 + shift**2 - 1.0) - math.log(ratio)


# -- ELBO ----------------------------------------------------------------------------------------


def test_elbo_of_the_posterior_is_the_log_evidence() -> None:
    found = elbo(*conjugate_engine(*posterior()))
    assert isinstance(found, ELBO) and found.num_samples == 1000
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # The same at every draw.
    assert found.standard_error < 1e-13


def test_elbo_of_a_wrong_guide_falls_short_by_the_divergence() -> None:
    mean, scale = posterior()
    wrong = mean + 0.5 * scale, 1.4 * scale
    found = elbo(*conjugate_guide(*wrong), model=conjugate, args=(Y,), num_samples=4000)
    expected = log_evidence() - kl_normal(*wrong, mean, scale)
    assert abs(found.value - expected) < 4 * found.standard_error
    # log p - log q is a constant + a e + b e^2 in e ~ N(0, 1).
    a, b = 0.5 * 1.4, (1.4**2 - 1) / 2
    error = math.sqrt((a**2 + 2 * b**2) / 4000)
    assert abs(found.standard_error / error - 1) < 0.1


def test_minibatches_do_not_change_the_elbo() -> None:
    """The sweep has a ragged last chunk."""
    guide = conjugate_guide(2.0, 0.4)
    whole = elbo(*conjugate_engine(2.0, 0.4), rng_key=KEY)
    chunked = elbo(*conjugate_engine(2.0, 0.4, Y, 10, data_chunk=16), rng_key=KEY)
    np.testing.assert_allclose(chunked, whole, rtol=1e-10)
    of_guide = elbo(*guide, model=conjugate, args=(Y,), kwargs={"batch": 10}, rng_key=KEY)
    np.testing.assert_allclose(of_guide, whole, rtol=1e-10)


def test_batches_as_arguments_need_all_rows() -> None:
    mean, scale = posterior()
    engine, state = engine_at(in_batches, [mean], [[scale]], Y[:10])
    for diagnostic in (elbo, psis_khat, ksd):
        with pytest.raises(ArgumentError, match=r"'N' has 40 rows.* 10. Pass all rows, as args"):
            diagnostic(engine, state)
    found = elbo(engine, state, args=(Y,))
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # Nor may the last of several calls have been a batch.
    engine, state = engine_at(in_batches, [mean], [[scale]], Y)
    engine.update(state, Y[:10])
    with pytest.raises(ArgumentError, match="Pass all rows"):
        elbo(engine, state)


def test_elbo_is_that_of_the_model_unless_the_temperature_is_asked_for() -> None:
    guide = conjugate_guide(*posterior(4.0))
    tempered = conjugate_engine(*posterior(4.0), likelihood_temperature=4.0)
    found = elbo(*tempered, rng_key=KEY)
    of_model = elbo(*guide, model=conjugate, args=(Y,), rng_key=KEY)
    np.testing.assert_allclose(found, of_model, rtol=1e-12)
    assert found.value < log_evidence() - 0.3
    for temperature in (None, 4.0):
        own = elbo(*tempered, likelihood_temperature=temperature)
        np.testing.assert_allclose(own.value, log_evidence(4.0), rtol=1e-10)
        assert own.standard_error < 1e-13
    assert psis_khat(*tempered).khat == -math.inf
    khat = psis_khat(*tempered, likelihood_temperature=1.0, rng_key=KEY)
    assert khat == psis_khat(*guide, model=conjugate, args=(Y,), rng_key=KEY)
    assert math.isfinite(khat.khat)


def test_elbo_of_a_constrained_site_is_the_host_s() -> None:
    """The posterior of the rate is a Gamma; the guide is Normal in log rate."""
    guide = AutoDiagonalNormal(counts)
    svi = SVI(counts, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    result = svi.run(KEY, 300, COUNTS, progress_bar=False)
    found = elbo(guide, result, model=counts, args=(COUNTS,), num_samples=4000)
    assert found == elbo(guide, result.params, model=counts, args=(COUNTS,), num_samples=4000)

    def loss(key: jax.Array) -> jax.Array:
        return Trace_ELBO().loss(key, result.params, counts, guide, COUNTS)

    losses = jax.vmap(loss)(jax.random.split(jax.random.key(1), 4000))
    error = math.hypot(found.standard_error, float(losses.std()) / math.sqrt(4000))
    assert abs(found.value + float(losses.mean())) < 4 * error
    total, size = float(COUNTS.sum()), len(COUNTS)
    evidence = math.lgamma(2 + total) - (2 + total) * math.log(1 + size)
    evidence -= sum(math.lgamma(1 + float(y)) for y in COUNTS)
    assert evidence - 0.1 < found.value < evidence + 4 * found.standard_error


def test_parameters_of_the_model_are_where_svi_has_put_them() -> None:
    def model(y: jax.Array) -> None:
        noise = numpyro.param("noise", 1.0, constraint=dist.constraints.positive)
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(mu, noise), obs=y)

    guide, params = conjugate_guide(*posterior())
    found = elbo(guide, {**params, "noise": jnp.array(2.0)}, model=model, args=(Y,))
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # One that is not among the fitted parameters keeps its initial value, which is told.
    with pytest.warns(HeldParameterWarning, match="noise"):
        initial = elbo(guide, params, model=model, args=(Y,))
    assert initial.value < found.value - 10


@pytest.mark.slow
def test_a_flow_is_at_most_the_evidence() -> None:
    guide = AutoIAFNormal(conjugate_pair, hidden_dims=[4])
    density = flat_density(guide, KEY)
    parameters = density.initial_parameters()
    found = elbo(guide, density.write_back(parameters), model=conjugate_pair)
    theta = density.sample(parameters, jax.random.key(3), 1000)
    log_q = density.log_prob(parameters, theta)
    ratios = np.asarray(dist.Normal(1.0, 2.0).log_prob(theta).sum(1) - log_q)
    error = math.hypot(found.standard_error, ratios.std() / math.sqrt(1000))
    assert abs(found.value - ratios.mean()) < 4 * error
    assert found.value < 4 * found.standard_error


def test_a_density_of_zero_makes_the_elbo_infinite() -> None:
    def bounded() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(1), 1.0).to_event(1))
        numpyro.factor("positive", jnp.where(z > 0, 0.0, -jnp.inf).sum())

    guide = guide_at(bounded, [0.0], [[1.0]])
    found = elbo(*guide, model=bounded)
    assert found.value == -math.inf and math.isnan(found.standard_error)
    # The other half of the draws has equal ratios.
    assert psis_khat(*guide, model=bounded).khat == -math.inf
    nowhere = guide_at(bounded, [-50.0], [[1.0]])
    with pytest.raises(ArgumentError, match="log p = -inf at all 4000"):
        psis_khat(*nowhere, model=bounded)


# -- k-hat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9, 1.5])
def test_khat_is_the_shape_of_the_tail(shape: float) -> None:
    """Ratios at the quantiles of a Pareto distribution, in any order and up to a factor."""
    survival = (np.arange(4000) + 0.5) / 4000
    ratios = np.random.default_rng(0).permutation(-shape * np.log(survival)) - 700.0
    found = importance._pareto_shape(ratios, 0.0)
    # ArviZ weighs the fit to 190 or so ratios with a prior of ten at 0.5.
    assert abs(found - (190 * shape + 10 * 0.5) / 200) < 0.05
    # The host's own; the versions of ArviZ count the tail a little differently.
    assert abs(found - _psis_khat(ratios)) < 0.02


def test_khat_is_that_of_the_ratios() -> None:
    """Against the host's fit to ratios from closed forms."""
    guide, params = guide_at(heavy, np.zeros(2), 0.5 * np.eye(2))
    found = psis_khat(guide, params, model=heavy, num_samples=1000, rng_key=KEY, draw_chunk=1000)
    density = flat_density(guide, KEY)
    # The key of the only chunk.
    key = jax.random.split(KEY, 1)[0]
    theta = np.asarray(density.sample(density.from_host(params), key, 1000))
    ratios = stats.t(3.0).logpdf(theta).sum(1) - stats.norm(0.0, 0.5).logpdf(theta).sum(1)
    tolerance = 1e-9 if support.MAJOR < 1 else 0.02
    np.testing.assert_allclose(found.khat, _psis_khat(ratios), atol=tolerance)


def test_khat_tells_good_guides_from_narrow_ones() -> None:
    narrow = psis_khat(*guide_at(heavy, np.zeros(2), 0.3 * np.eye(2)), model=heavy)
    assert narrow.khat > 0.7 and not narrow.reliable
    mean, scale = posterior()
    wide = psis_khat(*conjugate_guide(mean, 1.3 * scale), model=conjugate, args=(Y,))
    assert wide.khat < 0.2 and wide.reliable
    exact = psis_khat(*conjugate_engine(mean, scale))
    assert exact == ParetoKHat(-math.inf, 4000) and exact.reliable


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
    engine, state = conjugate_engine(*posterior())
    sizes = []
    evaluate = engine.target.full_log_prior_and_likelihood

    def recorded(theta, data):
        sizes.append(len(theta))
        return evaluate(theta, data)

    monkeypatch.setattr(engine.target, "full_log_prior_and_likelihood", recorded)
    found = elbo(engine, state, num_samples=25, draw_chunk=7)
    assert sizes == [7, 7, 7, 4]
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    assert diagnostics_fit.chunk_sizes(250, 10, None) == [100, 100, 50]
    # A network of 20 million weights.
    assert diagnostics_fit.chunk_sizes(3, 20_000_000, None) == [1, 1, 1]
    fitted = diagnostics_fit.fitted_guide(engine, state, None, None, None, None)
    parts = [theta for theta, _ in diagnostics_fit.draws(fitted, [4, 4])]
    # Each chunk has a key of its own.
    assert len(np.unique(np.concatenate(parts))) == 8


def test_calls_repeat_and_keys_differ() -> None:
    engine, state = conjugate_engine(2.0, 0.4)
    first = elbo(engine, state, num_samples=50)
    assert first == elbo(engine, state, num_samples=50)
    assert first != elbo(engine, state, num_samples=50, rng_key=jax.random.key(1))
    other = state._replace(rng_key=jax.random.key(7))
    assert first != elbo(engine, other, num_samples=50)
    result = engine.run(KEY, 2, Y, progress_bar=False)
    assert elbo(engine, result, num_samples=50) == elbo(engine, result.state, num_samples=50)


def test_a_guide_keeps_its_prototype() -> None:
    guide, params = conjugate_guide(2.0, 0.4)
    prototype, start = guide.prototype_trace, guide._init_locs
    elbo(guide, params, model=conjugate, args=(Y,), num_samples=50)
    assert guide.prototype_trace is prototype and guide._init_locs is start
    # One that has not seen its model, such as one made for saved parameters, is set up.
    fresh = AutoMultivariateNormal(conjugate)
    assert elbo(fresh, params, model=conjugate, args=(Y,)) == elbo(
        guide, params, model=conjugate, args=(Y,)
    )


# -- refusals ------------------------------------------------------------------------------------


def test_what_is_no_fitted_guide_is_refused() -> None:
    particles = SVGD(conjugate, numpyro.optim.Adam(0.1), num_particles=3)
    moving = particles.init(KEY, Y)
    guide, params = conjugate_guide(0.0, 1.0)
    engine, state = conjugate_engine(0.0, 1.0)
    for diagnostic in (elbo, psis_khat):
        with pytest.raises(ArgumentError, match="found SVGD.*Use ksd"):
            diagnostic(particles, moving)
        with pytest.raises(ArgumentError, match="AutoNormal: it works site by site"):
            diagnostic(AutoNormal(conjugate), params, model=conjugate, args=(Y,))
        with pytest.raises(ArgumentError, match="Pass model="):
            diagnostic(guide, params)
        with pytest.raises(ArgumentError, match="Leave model out"):
            diagnostic(engine, state, model=conjugate)
        with pytest.raises(ArgumentError, match="found conjugate"):
            diagnostic(conjugate, params)
        with pytest.raises(ArgumentError, match="state of ProximalScoreVI as the second"):
            diagnostic(engine, params)
        with pytest.raises(ArgumentError, match="svi.get_params.*found EngineState"):
            diagnostic(guide, state, model=conjugate, args=(Y,))
        with pytest.raises(ArgumentError, match=r"found none of the name \['auto_loc'\]"):
            lacking = {name: value for name, value in params.items() if name != "auto_loc"}
            diagnostic(guide, lacking, model=conjugate, args=(Y,))
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        elbo(ProximalScoreVI(conjugate, AutoDiagonalNormal), state)


def test_bad_options_are_refused() -> None:
    fit = conjugate_engine(0.0, 1.0)
    for number in (1, 10.0, True):
        with pytest.raises(ArgumentError, match="num_samples to be an int >= 2"):
            elbo(*fit, num_samples=number)
    with pytest.raises(ArgumentError, match="num_samples to be an int >= 25"):
        psis_khat(*fit, num_samples=24)
    with pytest.raises(ArgumentError, match="draw_chunk"):
        elbo(*fit, draw_chunk=0)
    with pytest.raises(ArgumentError, match="likelihood_temperature"):
        elbo(*fit, likelihood_temperature=0.0)


def test_guides_and_models_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ArgumentError, match="over the latent sites"):
        elbo(*conjugate_guide(0.0, 1.0), model=heavy)


def test_ratios_that_are_not_numbers_are_refused() -> None:
    guide, params = conjugate_guide(0.0, 1.0)
    params = {**params, "auto_loc": jnp.full(1, jnp.nan)}
    with pytest.raises(ArgumentError, match="found 1000 of 1000 draws"):
        elbo(guide, params, model=conjugate, args=(Y,))
