"""The mixture of posteriordb in both hosts: plain density, reference draws, Stan; flat priors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pyro
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoDiagonalNormal
from scipy import stats

from benchmarks.posteriordb.programs import pyro_program
from benchmarks.posteriordb.programs.pyro.flat import Flat
from pyro_ext import ProximalScoreVI
from tests.benchmarks.posteriordb import checks, plain
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

MODEL = "low_dim_gauss_mix"


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


# -- the check sees errors ---------------------------------------------------------------------


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


PROGRAMS = {MODEL: Program(mixture, draws=2000, draws_if_wrong=2000, batch=7)}
WRONG = [("official", f"{MODEL}-{MODEL}", change) for change in (halved_scale, other_shares)]


# -- the rest ---------------------------------------------------------------------------------


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
