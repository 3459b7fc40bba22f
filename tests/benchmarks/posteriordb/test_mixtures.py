"""The mixture of posteriordb in both hosts: plain density, reference draws, Stan; flat priors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pyro
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoDiagonalNormal
from scipy import stats

from benchmarks.posteriordb.programs import pyro_program
from benchmarks.posteriordb.programs.pyro.flat import Flat
from pyro_ext import ProximalScoreVI
from tests.benchmarks.posteriordb import checks, plain

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

MODEL = "low_dim_gauss_mix"
# Rounding of a sum of a thousand terms.
ROUNDING = 1e-11

backends = pytest.mark.parametrize("backend", checks.BACKENDS)

Sites = dict[str, Any]


def mixture(u: Sites, data: Sites) -> float:
    mu, total = plain.increasing_pair(u["mu"])
    sigma, sigma_stretch = plain.positive(u["sigma"])
    theta, theta_stretch = plain.share(u["theta"])
    total += sigma_stretch + theta_stretch + stats.beta.logpdf(theta, 5.0, 5.0)
    total += stats.norm.logpdf(mu, 0.0, 2.0).sum() + stats.norm.logpdf(sigma, 0.0, 2.0).sum()
    for y in data["y"]:
        first, second = stats.norm.pdf(y, mu, sigma)
        total += np.log(theta * first + (1.0 - theta) * second)
    return total


@pytest.mark.parametrize(("where", "name"), checks.cases([MODEL]))
def test_the_density_is_the_plain_one_in_both_hosts(where: str, name: str) -> None:
    plain.density_is(mixture, where, name, ROUNDING)


@backends
@pytest.mark.parametrize(("where", "name"), checks.cases([MODEL], with_draws=True))
def test_the_mean_score_over_reference_draws_is_zero(backend: str, where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    native = checks.native_of(backend, where, name)
    found = checks.mean_score_is_zero(backend, posterior, draws=2000, native=native)
    print(f"{where} {name} {backend}: {found.worst:.2f} standard errors at most")


# -- the check sees errors ---------------------------------------------------------------------


Change = Callable[[Any, Callable[[Any], Any], Sites], Any]


def halved_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of the means has half its scale."""
    mu = sites["mu"]
    return (dist.Normal(0.0, 1.0).log_prob(mu) - dist.Normal(0.0, 2.0).log_prob(mu)).sum()


def other_shares(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the share is of the second component, up to a constant."""
    theta = sites["theta"]
    right = dist.Categorical(probs=_stacked(theta, 1.0 - theta))
    wrong = dist.Categorical(probs=_stacked(1.0 - theta, theta))
    terms = []
    for shares in (wrong, right):
        components = dist.Normal(sites["mu"], sites["sigma"])
        terms.append(dist.MixtureSameFamily(shares, components).log_prob(sites["y"]).sum())
    return terms[0] - terms[1]


def _stacked(*values: Any) -> Any:
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else jax.numpy.stack(values)


@backends
@pytest.mark.parametrize("change", [halved_scale, other_shares])
def test_the_check_sees_a_wrong_density(backend: str, change: Change) -> None:
    if reason := checks.why_not_official():
        pytest.skip(reason)
    posterior = checks.open_database("official")[f"{MODEL}-{MODEL}"]
    wrong = checks.Native(backend, checks.planted(backend, MODEL, change), posterior.data())
    with pytest.raises(AssertionError, match="standard error"):
        checks.mean_score_is_zero(backend, posterior, draws=2000, native=wrong)


# -- the rest ---------------------------------------------------------------------------------


@backends
def test_minibatches_cover_the_data_once(backend: str) -> None:
    (case, *_) = checks.cases([MODEL])
    where, name = case.values
    native = checks.native_of(backend, where, name)
    program = partial(checks.program_of(backend, MODEL), subsample_size=7)
    batched = checks.Native(backend, program, checks.open_database(where)[name].data())
    z = checks.random_positions(native, 3)
    np.testing.assert_allclose(batched.full_score(z), native.score(z), rtol=1e-9, atol=1e-9)


def test_a_flat_prior_can_be_drawn_from() -> None:
    pyro.set_rng_seed(0)
    prior = Flat(constraints.positive_ordered_vector, 3)
    draws = prior.sample((1000,))
    assert draws.shape == (1000, 3)
    assert prior.support.check(draws).all()
    assert torch.equal(prior.log_prob(draws), torch.zeros(1000))
    free = Flat(constraints.positive).sample((1000,)).log()
    assert stats.kstest(free.numpy(), stats.uniform(-2.0, 4.0).cdf).pvalue > 1e-4


def test_a_guide_is_set_up_on_a_program_with_a_flat_prior() -> None:
    data = checks.open_database("embedded")["gauss_mix_simulated-low_dim_gauss_mix"].data()
    engine = ProximalScoreVI(partial(pyro_program(MODEL), data), AutoDiagonalNormal, seed=0)
    assert np.isfinite(engine.step())


@pytest.mark.slow
@backends
@pytest.mark.parametrize(("where", "name"), checks.cases([MODEL]))
def test_the_difference_to_stan_is_constant(backend: str, where: str, name: str) -> None:
    if reason := checks.why_no_stan():
        pytest.skip(reason)
    posterior = checks.open_database(where)[name]
    native = checks.native_of(backend, where, name)
    found = checks.stan_difference_is_constant(
        backend, posterior, ROUNDING, wide=True, native=native
    )
    print(f"{where} {name} {backend}: {found:.1e}")
