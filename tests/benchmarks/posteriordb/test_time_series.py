"""The time series of posteriordb in both hosts: plain densities, reference draws, and Stan."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as numpyro_dist
import pyro
import pyro.distributions as pyro_dist
import pytest
import torch
from scipy import stats

from benchmarks.posteriordb.programs.numpyro import time_series as numpyro_series
from benchmarks.posteriordb.programs.pyro import time_series as pyro_series
from tests.benchmarks.posteriordb import checks, plain
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program, backends

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)


Sites = dict[str, Any]


# -- plain log densities ----------------------------------------------------------------------


def autoregression(u: Sites, data: Sites) -> float:
    sigma, total = plain.positive(u["sigma"])
    total += stats.norm.logpdf(u["alpha"], 0.0, 10.0) + stats.cauchy.logpdf(sigma, 0.0, 2.5)
    total += stats.norm.logpdf(u["beta"], 0.0, 10.0).sum()
    y, order = data["y"], data["K"]
    for t in range(order, data["T"]):
        mean = u["alpha"]
        for lag in range(1, order + 1):
            mean += u["beta"][lag - 1] * y[t - lag]
        total += stats.norm.logpdf(y[t], mean, sigma)
    return total


def volatility(u: Sites, data: Sites) -> float:
    alpha0, total = plain.positive(u["alpha0"])
    alpha1, stretch = plain.share(u["alpha1"])
    part, part_stretch = plain.share(u["beta1"])
    beta1 = (1.0 - alpha1) * part
    total += stretch + part_stretch + np.log(1.0 - alpha1)
    variance = data["sigma1"] ** 2
    for y in data["y"]:
        total += stats.norm.logpdf(y, u["mu"], np.sqrt(variance))
        variance = alpha0 + alpha1 * (y - u["mu"]) ** 2 + beta1 * variance
    return total


def hidden_states(likelihood: np.ndarray, rows: np.ndarray) -> float:
    """Log density of a series from that of each observation in each state, (T, K)."""
    weights, total = np.ones(rows.shape[0]), 0.0
    for t, given_state in enumerate(likelihood):
        if t > 0:
            weights = np.array([sum(weights * rows[:, k]) for k in range(len(weights))])
        weights = weights * given_state
        total += np.log(weights.sum())
        weights = weights / weights.sum()
    return total


def two_levels(u: Sites, data: Sites) -> float:
    first, total = plain.pair_of_shares(u["theta1"])
    second, stretch = plain.pair_of_shares(u["theta2"])
    mu, mu_stretch = plain.positive_increasing_pair(u["mu"])
    total += stretch + mu_stretch + stats.norm.logpdf(mu, [3.0, 10.0], 1.0).sum()
    likelihood = stats.norm.pdf(data["y"][:, None], mu, 1.0)
    return total + hidden_states(likelihood, np.stack([first, second]))


def drives(u: Sites, data: Sites) -> float:
    total, rows, rates = 0.0, [], {}
    for state in range(2):
        row, stretch = plain.pair_of_shares(u[f"theta{state + 1}"])
        total += stretch + stats.dirichlet.logpdf(row, data["alpha"][state])
        rows.append(row)
    for name in ("phi", "lambda"):
        rates[name], stretch = plain.positive_increasing_pair(u[name])
        total += stretch + stats.norm.logpdf(rates[name], [0.0, 3.0], 1.0).sum()
    likelihood = stats.expon.pdf(data["u"][:, None], scale=1.0 / rates["phi"])
    likelihood = likelihood * stats.expon.pdf(data["v"][:, None], scale=1.0 / rates["lambda"])
    return total + hidden_states(likelihood, np.stack(rows))


# -- the check sees errors ---------------------------------------------------------------------


def without_jacobian(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the Jacobian of log sigma is forgotten."""
    return -log(sites["sigma"])


def uniform_in_turn(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when alpha1 and then beta1 are uniform on what is left to them."""
    return -log(1.0 - sites["alpha1"])


def halved_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of the means has half its scale."""
    mu = sites["mu"]
    ratio = [
        dist.Normal(loc, 0.5).log_prob(mu[i]) - dist.Normal(loc, 1.0).log_prob(mu[i])
        for i, loc in enumerate((3.0, 10.0))
    ]
    return ratio[0] + ratio[1]


PROGRAMS = {
    "arK": Program(autoregression, spread=0.3, draws=5000, batch=7),
    "garch11": Program(volatility, spread=0.3, draws=5000),
    # Rates near one would give the longest distances densities that are zero in float64; its 416
    # steps take seconds at ten thousand draws.
    "hmm_drive_0": Program(drives, centre={"lambda": [-3.5, -0.5]}, spread=0.3, draws=1000),
    "hmm_example": Program(two_levels, spread=0.3, draws=5000),
}
WRONG = [
    ("official", "arK-arK", without_jacobian),
    ("official", "garch-garch11", uniform_in_turn),
    ("official", "hmm_example-hmm_example", halved_scale),
]


@backends
def test_the_check_sees_a_wrong_first_state(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first state follows from another one, instead of having equal odds."""
    if reason := checks.why_not_official():
        pytest.skip(reason)
    posterior = checks.open_database("official")["hmm_example-hmm_example"]
    module: Any = numpyro_series if backend == "numpyro" else pyro_series
    right = module.HiddenMarkov

    def wrong(theta: Any, emission: Any, duration: int) -> Any:
        return right(theta, emission, duration, first=theta[0])

    monkeypatch.setattr(module, "HiddenMarkov", wrong)
    with pytest.raises(AssertionError, match="standard error"):
        checks.mean_score_is_zero(backend, posterior, draws=10_000)


# -- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 7, 200])
def test_a_linear_recursion_is_its_loop(length: int) -> None:
    inputs = np.random.default_rng(0).standard_normal(length)
    expected = [inputs[0]]
    for value in inputs[1:]:
        expected.append(value + 0.8 * expected[-1])
    found = pyro_series.linear_recursion(torch.from_numpy(inputs), torch.tensor(0.8))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)


FIRST = np.array([0.2, 0.5, 0.3])
THETA = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
LEVELS = np.array([-1.0, 0.5, 4.0])


def hidden_markov(backend: str, duration: int) -> Any:
    """A hidden Markov model of three states, whose first state has unequal odds."""
    if backend == "numpyro":
        return numpyro_series.HiddenMarkov(
            jnp.asarray(THETA),
            numpyro_dist.Normal(jnp.asarray(LEVELS), 1.0),
            duration,
            jnp.asarray(FIRST),
        )
    emission = pyro_dist.Normal(torch.from_numpy(LEVELS), 1.0)
    return pyro_series.HiddenMarkov(
        torch.from_numpy(THETA), emission, duration, torch.from_numpy(FIRST)
    )


@backends
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_hidden_markov_density_sums_over_all_sequences(backend: str, length: int) -> None:
    y = np.random.default_rng(length).normal(0.0, 2.0, length)
    total = 0.0
    for states in itertools.product(range(3), repeat=length):
        weight = FIRST[states[0]]
        for before, after in itertools.pairwise(states):
            weight *= THETA[before, after]
        total += weight * stats.norm.pdf(y, LEVELS[list(states)], 1.0).prod()
    value = jnp.asarray(y) if backend == "numpyro" else torch.from_numpy(y)
    found = float(hidden_markov(backend, length).log_prob(value))
    assert found == pytest.approx(np.log(total), rel=1e-12)


@backends
def test_a_hidden_markov_series_has_the_means_of_its_states(backend: str) -> None:
    count, length = 4000, 4
    model = hidden_markov(backend, length)
    if backend == "numpyro":
        draws = np.asarray(jax.jit(lambda key: model.sample(key, (count,)))(jax.random.key(0)))
    else:
        pyro.set_rng_seed(0)
        draws = model.sample((count,)).numpy()
    assert draws.shape == (count, length)
    odds = FIRST
    for t in range(length):
        error = draws[:, t].std() / np.sqrt(count)
        assert abs(draws[:, t].mean() - odds @ LEVELS) < 4.0 * error
        odds = odds @ THETA
    # The mean product of the first two observations tells the transitions' rows from columns.
    pair = draws[:, 0] * draws[:, 1]
    expected = (FIRST * LEVELS) @ THETA @ LEVELS
    assert abs(pair.mean() - expected) < 4.0 * pair.std() / np.sqrt(count)
