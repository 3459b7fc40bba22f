"""Each method on the four models in NumPyro, as README and its pages write it."""

from __future__ import annotations

from typing import Any

import arviz
import jax
import numpy as np
from jax import Array
from numpyro.infer import (
    MCMC,
    NUTS,
    SVI,
    Predictive,
    Trace_ELBO,
    init_to_uniform,
    log_likelihood,
)
from numpyro.optim import Adam

import numpyro_ext as nx
from benchmarks.first_result import fits
from benchmarks.first_result.fits import DRAWN, one_chain
from benchmarks.first_result.problems import HOST_METHODS, Recipe


class Fit(fits.Fit):
    """One method on one model with one seed."""

    backend = "numpyro"

    def __init__(
        self, method: str, model: str, data: tuple[np.ndarray, ...], recipe: Recipe, seed: int
    ) -> None:
        super().__init__(method, model, recipe, seed)
        # A user has arrays before the clock starts, and a device.
        self.data = jax.block_until_ready(
            tuple(jax.device_put(array.astype(np.float32)) for array in data)
        )

    def run(self) -> None:
        """Make the method's object and run it."""
        recipe = self.recipe
        options: Any = {"progress_bar": False}
        self.key = jax.random.key(self.seed)
        if self.method == "NUTS":
            self.fitted: Any = MCMC(
                NUTS(self.model), num_warmup=recipe.warm_up, num_samples=recipe.draws, **options
            )
            self.fitted.run(self.key, *self.data)
            return
        if self.method == "SVI":
            self.guide = self.guide_class(self.model)
            self.fitted = SVI(self.model, self.guide, Adam(0.01), Trace_ELBO())
            self.result = self.fitted.run(self.key, recipe.variational, *self.data, **options)
            return
        steps, self.fitted = self.engine(Adam, init_to_uniform(radius=0.1))
        self.result = self.fitted.run(self.key, steps, *self.data, **options)

    def draws(self) -> dict[str, Array]:
        """Draws by site."""
        if self.method == "NUTS":
            found = self.fitted.get_samples()
        elif self.method == "SVI":
            shape = (self.recipe.draws,)
            found = self.guide.sample_posterior(self.key, self.result.params, sample_shape=shape)
        elif self.method in DRAWN:
            found = self.fitted.get_samples(self.result.state, self.key, self.recipe.draws)
        else:
            found = self.fitted.get_samples(self.result.state)
        self.found = jax.block_until_ready(dict(found))
        return self.found

    def to_arviz(self) -> Any:
        """Posterior, predictions, log likelihood and observations."""
        if self.method not in HOST_METHODS:
            num = self.recipe.draws if self.method in DRAWN else None
            return nx.to_arviz(self.fitted, self.result, *self.data, num_samples=num)
        *inputs, _ = self.data
        predictions = Predictive(self.model, posterior_samples=self.found)(self.key, *inputs)
        if self.method == "NUTS":
            return arviz.from_numpyro(self.fitted, posterior_predictive=predictions)
        logs = log_likelihood(self.model, self.found, *self.data)
        return arviz.from_dict(
            posterior=one_chain(self.found),
            posterior_predictive=one_chain(predictions),
            log_likelihood=one_chain(logs),
            observed_data={"y": np.asarray(self.data[-1])},
        )

    def diagnostic(self, name: str) -> Any:
        """``psis_khat``, ``elbo`` or ``ksd`` of the fit."""
        return getattr(nx, name)(self.fitted, self.result.state, args=self.data)
