"""Each method on the four models in Pyro, as README and its pages write it."""

from __future__ import annotations

from typing import Any

import arviz
import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import init_to_uniform
from pyro.optim import Adam
from torch import Tensor

import pyro_ext as px
from benchmarks.first_result import fits
from benchmarks.first_result.fits import DRAWN, one_chain
from benchmarks.first_result.problems import HOST_METHODS, Recipe


class Fit(fits.Fit):
    """One method on one model with one seed."""

    backend = "pyro"

    def __init__(
        self, method: str, model: str, data: tuple[np.ndarray, ...], recipe: Recipe, seed: int
    ) -> None:
        super().__init__(method, model, recipe, seed)
        self.data = tuple(torch.as_tensor(array, dtype=torch.float32) for array in data)
        torch.set_num_threads(1)
        pyro.set_rng_seed(seed)

    def run(self) -> None:
        """Make the method's object and run it."""
        recipe = self.recipe
        if self.method == "NUTS":
            self.fitted: Any = MCMC(
                NUTS(self.model), recipe.draws, recipe.warm_up, disable_progbar=True
            )
            self.fitted.run(*self.data)
            return
        if self.method == "SVI":
            self.guide = self.guide_class(self.model)
            self.fitted = SVI(self.model, self.guide, Adam({"lr": 0.01}), Trace_ELBO())
            for _ in range(recipe.variational):
                self.fitted.step(*self.data)
            return
        near = init_to_uniform(radius=0.1)
        steps, self.fitted = self.engine(lambda rate: Adam({"lr": rate}), near, seed=self.seed)
        self.fitted.run(steps, *self.data, progress_bar=False)

    def draws(self) -> dict[str, Tensor]:
        """Draws by site."""
        if self.method == "NUTS":
            found = self.fitted.get_samples()
        elif self.method == "SVI":
            # Pyro's guides draw one at a time.
            with torch.no_grad():
                rows = [self.guide() for _ in range(self.recipe.draws)]
            found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        elif self.method in DRAWN:
            found = self.fitted.get_samples(self.recipe.draws)
        else:
            found = self.fitted.get_samples()
        self.found = dict(found)
        return self.found

    def to_arviz(self) -> Any:
        """Posterior, predictions, log likelihood and observations."""
        if self.method not in HOST_METHODS:
            num = self.recipe.draws if self.method in DRAWN else None
            return px.to_arviz(self.fitted, *self.data, num_samples=num)
        *inputs, _ = self.data
        predictions = Predictive(self.model, posterior_samples=self.found)(*inputs)
        if self.method == "NUTS":
            return arviz.from_pyro(
                self.fitted, posterior_predictive=predictions, log_likelihood=True
            )
        logs = []
        for index in range(self.recipe.draws):
            one = {name: value[index] for name, value in self.found.items()}
            trace = poutine.trace(poutine.condition(self.model, one)).get_trace(*self.data)
            trace.compute_log_prob()
            logs.append(trace.nodes["y"]["log_prob"])
        return arviz.from_dict(
            posterior=one_chain(self.found),
            posterior_predictive=one_chain(predictions),
            log_likelihood=one_chain({"y": torch.stack(logs)}),
            observed_data={"y": self.data[-1].numpy()},
        )

    def diagnostic(self, name: str) -> Any:
        """``psis_khat``, ``elbo`` or ``ksd`` of the fit."""
        return getattr(px, name)(self.fitted, args=self.data)
