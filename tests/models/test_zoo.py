"""The zoo's reference moments against NumPyro's NUTS, which knows nothing of this project."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

# The same posterior comes once with and once without minibatches; NUTS needs all rows.
KNOWN = [name for name in zoo.names("numpyro") if zoo.ZOO[name].moments()]


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_reference_moments_agree_with_nuts(name: str) -> None:
    model = numpyro_models.build(name)
    sampler = MCMC(
        NUTS(model, target_accept_prob=0.95, find_heuristic_step_size=True),
        num_warmup=1000,
        num_samples=4000,
        num_chains=1,
        progress_bar=False,
    )
    args = numpyro_models.arguments(name)
    sampler.run(jax.random.key(0), *args, **zoo.ZOO[name].full_options)
    draws = {site: np.asarray(value) for site, value in sampler.get_samples().items()}
    for moment in zoo.ZOO[name].moments():
        statistic = np.asarray(moment.statistic(draws))
        size = np.asarray(effective_sample_size(statistic[None]))
        error = moment.std * (5.0 * size**-0.5 + moment.error)
        assert np.all(np.abs(statistic.mean(0) - moment.mean) < error), moment.name
        # The error of a sd is larger for heavy tails: take it from the draws themselves.
        deviation = (statistic - moment.mean) ** 2
        size = np.asarray(effective_sample_size(deviation[None]))
        error = 5.0 * deviation.std(0) * size**-0.5 + 3.0 * moment.error * moment.std**2
        assert np.all(np.abs(deviation.mean(0) - moment.std**2) < error), moment.name
