"""ELBO and Pareto k-hat of guides, against closed forms and ArviZ."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.diagnostics.fit import chunk_sizes
from ppl_ext.diagnostics.importance import ELBO
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.statistics.khat import ParetoKHat
from tests import arviz_support as support
from tests.backends import use_float64
from tests.diagnostics_support import Y, kl_normal, log_evidence, posterior

use_float64()

# xarray and ArviZ use what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

COUNTS = np.array([3.0, 0.0, 5.0, 2.0, 4.0, 1.0])


@pytest.fixture
def y(backend: Any) -> Any:
    return backend.array(Y)


def test_chunks_are_nearly_equal() -> None:
    assert chunk_sizes(250, 10, None) == [84, 84, 82]
    assert chunk_sizes(1000, 10, None) == [100] * 10
    # A network of 20 million weights.
    assert chunk_sizes(3, 20_000_000, None) == [1, 1, 1]
    assert chunk_sizes(10, 3, 4) == [4, 4, 2]


# -- ELBO of guides ------------------------------------------------------------------------------


def test_elbo_of_the_posterior_is_the_log_evidence(host, y) -> None:
    fit = host.conjugate_engine(*posterior(), y)
    found = host.public.elbo(*fit)
    assert isinstance(found, ELBO) and found.num_samples == 1000
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)
    # The same at every draw.
    assert found.standard_error < 1e-13
    assert host.public.psis_khat(*fit) == ParetoKHat(-math.inf, 4000)
    # The last of four chunks has fewer draws.
    few = host.public.elbo(*fit, num_samples=25, draw_chunk=7)
    assert few.num_samples == 25
    np.testing.assert_allclose(few.value, log_evidence(), rtol=1e-10)


def test_elbo_of_a_wrong_guide_falls_short_by_the_divergence(host, y) -> None:
    mean, scale = posterior()
    wrong = mean + 0.5 * scale, 1.4 * scale
    guide = host.conjugate_guide(y, *wrong)
    options = {"model": host.conjugate, "args": (y,)}
    found = host.public.elbo(*guide, num_samples=4000, **options)
    expected = log_evidence() - kl_normal(*wrong, mean, scale)
    assert abs(found.value - expected) < 4 * found.standard_error
    # log p - log q is a constant + a e + b e^2 in e ~ N(0, 1).
    a, b = 0.5 * 1.4, (1.4**2 - 1) / 2
    error = math.sqrt((a**2 + 2 * b**2) / 4000)
    assert abs(found.standard_error / error - 1) < 0.1
    # Every draw is another one, in every chunk.
    chunked = host.public.elbo(*guide, num_samples=4000, draw_chunk=1000, **options)
    assert chunked != found and abs(chunked.standard_error / error - 1) < 0.1


def test_minibatches_do_not_change_the_elbo(host, y) -> None:
    """The sweep has a ragged last chunk."""
    seed = host.seed(0)
    whole = host.public.elbo(*host.conjugate_engine(2.0, 0.4, y), **seed)
    chunked = host.public.elbo(*host.conjugate_engine(2.0, 0.4, y, 10, data_chunk=16), **seed)
    np.testing.assert_allclose(chunked, whole, rtol=1e-10)
    guide = host.conjugate_guide(y, 2.0, 0.4)
    of_guide = host.public.elbo(
        *guide, model=host.conjugate, args=(y,), kwargs={"batch": 10}, **seed
    )
    np.testing.assert_allclose(of_guide, whole, rtol=1e-10)


def test_batches_as_arguments_need_all_rows(host, y) -> None:
    mean, scale = posterior()
    public = host.public
    fit = host.engine(host.in_batches, [mean], [[scale]], y[:10])
    for diagnostic in (public.elbo, public.psis_khat, public.ksd):
        with pytest.raises(ArgumentError, match=r"'N' has 40 rows.* 10. Pass all rows, as args"):
            diagnostic(*fit)
    np.testing.assert_allclose(public.elbo(*fit, args=(y,)).value, log_evidence(), rtol=1e-10)
    # Nor may the last of several calls have been a batch.
    fit = host.engine(host.in_batches, [mean], [[scale]], y)
    if host.backend.name == "pyro":
        fit[0].setup(y[:10])
    else:
        fit[0].update(fit[1], y[:10])
    with pytest.raises(ArgumentError, match="Pass all rows"):
        public.elbo(*fit)


def test_elbo_is_that_of_the_model_and_khat_that_of_the_target(host, y) -> None:
    guide, seed = host.conjugate_guide(y, *posterior(4.0)), host.seed(0)
    tempered = host.conjugate_engine(*posterior(4.0), y, likelihood_temperature=4.0)
    elbo, psis_khat = host.public.elbo, host.public.psis_khat
    found = elbo(*tempered, **seed)
    of_model = elbo(*guide, model=host.conjugate, args=(y,), **seed)
    np.testing.assert_allclose(found, of_model, rtol=1e-12)
    assert found.value < log_evidence() - 0.3
    for temperature in (None, 4.0):
        own = elbo(*tempered, likelihood_temperature=temperature)
        np.testing.assert_allclose(own.value, log_evidence(4.0), rtol=1e-10)
        assert own.standard_error < 1e-13
    assert psis_khat(*tempered).khat == -math.inf
    khat = psis_khat(*tempered, likelihood_temperature=1.0, **seed)
    np.testing.assert_allclose(
        khat, psis_khat(*guide, model=host.conjugate, args=(y,), **seed), rtol=1e-9
    )
    assert math.isfinite(khat.khat)


def test_elbo_of_a_constrained_site_is_the_host_s(host, backend) -> None:
    """The posterior of the rate is a Gamma; the guide is Normal in log rate."""
    infer = import_module(f"{backend.name}.infer")
    counts, loss = backend.array(COUNTS), infer.Trace_ELBO()
    guide = host.autoguide.AutoDiagonalNormal(host.counts)
    options = {"model": host.counts, "args": (counts,), "num_samples": 4000}
    if backend.name == "pyro":
        host.host.set_rng_seed(0)
        svi = infer.SVI(host.counts, guide, backend.adam(0.05), loss)
        for _ in range(300):
            svi.step(counts)
        found = host.public.elbo(guide, **options)
        losses = np.array([loss.loss(host.counts, guide, counts) for _ in range(1000)])
    else:
        import jax

        svi = infer.SVI(host.counts, guide, backend.adam(0.05), loss)
        result = svi.run(backend.key(), 300, counts, progress_bar=False)
        found = host.public.elbo(guide, result, **options)
        assert found == host.public.elbo(guide, result.params, **options)
        keys = jax.random.split(jax.random.key(1), 4000)
        losses = np.asarray(
            jax.vmap(lambda key: loss.loss(key, result.params, host.counts, guide, counts))(keys)
        )
    error = math.hypot(found.standard_error, losses.std() / math.sqrt(len(losses)))
    assert abs(found.value + losses.mean()) < 4 * error
    total, size = COUNTS.sum(), len(COUNTS)
    evidence = math.lgamma(2 + total) - (2 + total) * math.log(1 + size)
    evidence -= sum(math.lgamma(1 + each) for each in COUNTS)
    assert evidence - 0.1 < found.value < evidence + 4 * found.standard_error


def test_parameters_of_the_model_are_where_svi_has_put_them(host, backend, y) -> None:
    positive = host.dist.constraints.positive

    def model(y: Any) -> None:
        noise = host.host.param("noise", backend.array(1.0), constraint=positive)
        mu = host.host.sample("mu", host.dist.Normal(0.0, 3.0))
        with host.host.plate("N", len(y)):
            host.host.sample("y", host.dist.Normal(mu, noise), obs=y)

    guide = host.conjugate_guide(y, *posterior())
    options = {"model": model, "args": (y,)}
    if backend.name == "pyro":
        host.host.param("noise", backend.array(2.0), constraint=positive)
        found = host.public.elbo(*guide, **options)
        assert float(host.host.param("noise").detach()) == 2.0
    else:
        guide, params = guide
        found = host.public.elbo(guide, {**params, "noise": backend.array(2.0)}, **options)
        # One that is not among the fitted parameters keeps its initial value, which is told.
        with pytest.warns(HeldParameterWarning, match="noise"):
            initial = host.public.elbo(guide, params, **options)
        assert initial.value < found.value - 10
    np.testing.assert_allclose(found.value, log_evidence(), rtol=1e-10)


@pytest.mark.slow
def test_a_flow_is_at_most_the_evidence(host, backend) -> None:
    if backend.name == "pyro":
        host.host.set_rng_seed(1)
        guide = host.autoguide.AutoIAFNormal(host.conjugate_pair, hidden_dim=[4])
        guide()
        density = host.guides.flat_density(guide)
        parameters, fit = density.live_parameters(), (guide,)
    else:
        guide = host.autoguide.AutoIAFNormal(host.conjugate_pair, hidden_dims=[4])
        density = host.guides.flat_density(guide, backend.key())
        parameters = density.initial_parameters()
        fit = (guide, density.write_back(parameters))
    found = host.public.elbo(*fit, model=host.conjugate_pair)
    theta = density.sample(parameters, backend.key(3), 1000)
    log_q = backend.numpy(density.log_prob(parameters, theta))
    ratios = stats.norm(1.0, 2.0).logpdf(backend.numpy(theta)).sum(1) - log_q
    error = math.hypot(found.standard_error, ratios.std() / math.sqrt(1000))
    assert abs(found.value - ratios.mean()) < 4 * error
    assert found.value < 4 * found.standard_error


def test_a_density_of_zero_makes_the_elbo_infinite(host) -> None:
    guide = host.guide(host.positive, [0.0], [[1.0]])
    found = host.public.elbo(*guide, model=host.positive)
    assert found.value == -math.inf and math.isnan(found.standard_error)
    # The other half of the draws has equal ratios.
    assert host.public.psis_khat(*guide, model=host.positive).khat == -math.inf
    nowhere = host.guide(host.positive, [-50.0], [[1.0]])
    with pytest.raises(ArgumentError, match="log p = -inf at all 4000"):
        host.public.psis_khat(*nowhere, model=host.positive)


# -- k-hat of guides -----------------------------------------------------------------------------


def test_khat_is_that_of_the_ratios(host, backend) -> None:
    """Against the fit to ratios from closed forms, at the same number of other draws."""
    guide = host.guide(host.heavy, np.zeros(2), 0.3 * np.eye(2))
    found = host.public.psis_khat(*guide, model=host.heavy, num_samples=20_000)
    theta = 0.3 * np.random.default_rng(0).normal(size=(20_000, 2))
    ratios = stats.t(3.0).logpdf(theta).sum(1) - stats.norm(0.0, 0.3).logpdf(theta).sum(1)
    # The error of a shape from 424 ratios is about (1 + k) / 20.
    assert abs(found.khat - support.khat(ratios)) < 4 * math.sqrt(2) * (1 + found.khat) / 20
    guide = host.guide(host.heavy, np.zeros(2), 0.15 * np.eye(2))
    narrow = host.public.psis_khat(*guide, model=host.heavy)
    assert narrow.khat > 0.7 and not narrow.reliable


def test_a_wide_guide_is_reliable(host, y) -> None:
    mean, scale = posterior()
    guide = host.conjugate_guide(y, mean, 1.3 * scale)
    wide = host.public.psis_khat(*guide, model=host.conjugate, args=(y,))
    assert wide.khat < 0.2 and wide.reliable


# -- draws ---------------------------------------------------------------------------------------


def test_calls_repeat_and_seeds_differ(host, y) -> None:
    """And what the engine does next is not changed by them."""
    fit, elbo = host.conjugate_engine(2.0, 0.4, y), host.public.elbo
    first = elbo(*fit, num_samples=50)
    assert first == elbo(*fit, num_samples=50)
    assert first != elbo(*fit, num_samples=50, **host.seed(1))
    if host.backend.name == "numpyro":
        engine, state = fit
        assert first != elbo(engine, state._replace(rng_key=host.backend.key(7)), num_samples=50)
        result = engine.run(host.backend.key(), 2, y, progress_bar=False)
        assert elbo(engine, result, num_samples=50) == elbo(engine, result.state, num_samples=50)
    else:
        import torch

        (engine,) = fit
        before = torch.get_rng_state(), engine._generator.get_state()
        elbo(engine, num_samples=50)
        host.public.psis_khat(engine, num_samples=50)
        host.public.ksd(engine, num_samples=50)
        after = torch.get_rng_state(), engine._generator.get_state()
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


# -- refusals ------------------------------------------------------------------------------------


def test_what_is_no_fitted_guide_is_refused(host, y) -> None:
    public, conjugate = host.public, host.conjugate
    particles = host.particles(3, y)
    guide, engine = host.conjugate_guide(y, 0.0, 1.0), host.conjugate_engine(0.0, 1.0, y)
    per_site = host.autoguide.AutoNormal(conjugate)
    if host.backend.name == "pyro":
        per_site(y)
    more: list[tuple[tuple[Any, ...], dict[str, Any], str]] = []
    of_conjugate = {"model": conjugate, "args": (y,)}
    if host.backend.name == "pyro":
        fresh = host.autoguide.AutoDiagonalNormal(conjugate)
        more = [((fresh,), of_conjugate, "has not seen its model")]
    else:
        lacking = {name: value for name, value in guide[1].items() if name != "auto_loc"}
        more = [
            ((engine[0], guide[1]), {}, "state of ProximalScoreVI as the second"),
            ((guide[0], engine[1]), of_conjugate, "svi.get_params.*found EngineState"),
            ((guide[0], lacking), of_conjugate, r"found none of the name \['auto_loc'\]"),
        ]
    rest = guide[1:]
    for diagnostic in (public.elbo, public.psis_khat):
        for fit, options, message in (
            (particles, {}, "found SVGD.*Use ksd"),
            ((per_site, *rest), of_conjugate, "AutoNormal: it works site by site"),
            (guide, {}, "Pass model="),
            (engine, {"model": conjugate}, "Leave model out"),
            ((conjugate, *rest), {}, "found (conjugate|method)"),
            *more,
        ):
            with pytest.raises(ArgumentError, match=message):
                diagnostic(*fit, **options)
    unmet = public.ProximalScoreVI(conjugate, host.autoguide.AutoDiagonalNormal)
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        public.elbo(unmet, *engine[1:])


def test_bad_options_are_refused(host, y) -> None:
    fit = host.conjugate_engine(0.0, 1.0, y)
    for number in (1, 10.0, True):
        with pytest.raises(ArgumentError, match="num_samples to be an int >= 2"):
            host.public.elbo(*fit, num_samples=number)
    with pytest.raises(ArgumentError, match="num_samples to be an int >= 25"):
        host.public.psis_khat(*fit, num_samples=24)
    with pytest.raises(ArgumentError, match="draw_chunk"):
        host.public.elbo(*fit, draw_chunk=0)
    with pytest.raises(ArgumentError, match="likelihood_temperature"):
        host.public.elbo(*fit, likelihood_temperature=0.0)
    with pytest.raises(ArgumentError, match="over the latent sites"):
        host.public.elbo(*host.conjugate_guide(y, 0.0, 1.0), model=host.heavy)


def test_ratios_that_are_not_numbers_are_refused(host, y) -> None:
    guide = host.conjugate_guide(y, math.nan, 1.0)
    with pytest.raises(ArgumentError, match="found 1000 of 1000 draws"):
        host.public.elbo(*guide, model=host.conjugate, args=(y,))
