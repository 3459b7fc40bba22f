"""The minibatch comparison's programs and fits in Pyro."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, init_to_sample
from pyro.poutine.messenger import Messenger

import pyro_ext as px
from benchmarks.datasets import Split
from benchmarks.hosts import falling_adam, host_of
from benchmarks.score_vi import ANNEALED
from benchmarks.score_vi.problems import Logistic, logistic_program, network_program
from ppl_ext.score_matching.regression import diagonal

BACKEND = "Pyro"
logistic_model = partial(logistic_program, host_of("pyro"))
network_model = partial(network_program, host_of("pyro"))


def configure(float64: bool) -> None:
    """Set the precision of everything that follows."""
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)


class _Entropy(Messenger):
    """Multiply the entropy of an ``AutoDiagonalNormal`` in its bound by a temperature."""

    def __init__(self, guide: Any) -> None:
        self.temperature, self._guide = 1.0, guide
        super().__init__()

    def _pyro_sample(self, msg: Any) -> None:
        # Only of the draw in unconstrained space: the other sites hold the transforms' Jacobians,
        # which belong to the target.
        if msg["name"] == f"_{self._guide._pyro_name}_latent":
            msg["scale"] = self.temperature


def _advi(
    model: Any, guide: Any, rate: float, steps: int, seed: int, *data: Any, annealed: bool = False
) -> None:
    """The host's SVI; ``annealed`` gives its entropy the temperature with which the diagonal
    closed form starts cold."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    optimizer = falling_adam("pyro", rate, steps)
    entropy = _Entropy(guide)
    svi = SVI(model, entropy(guide), optimizer, Trace_ELBO())
    for index in range(steps):
        if annealed:
            # The guide has no size before its first step.
            dim = guide.latent_dim if index else 1
            entropy.temperature = diagonal.schedule(float(index), float(steps), dim).temperature
        svi.step(*data)
        optimizer.step()


def _run(method: str, model: Any, guide: Any, scores: int, seed: int, *data: Any) -> Any:
    """An engine, and its run of so many scores, of which it takes one for each draw of a step."""
    engine: Any
    if method in ("GSM", "BaM"):
        engine = getattr(px, method)(model, guide, num_samples=2, seed=seed)
    else:
        solver: Any = "gradient" if method == "ours, gradient" else None
        engine = px.ProximalScoreVI(model, guide, solver=solver, seed=seed)
    # The draws of a step depend on the guide, which an engine knows when it has met the model.
    engine.setup(*data)
    return engine, engine.run(scores // engine.plan.num_samples, *data, progress_bar=False)


def fit_logistic(
    problem: Logistic, method: str, scores: int, batch_size: int, seed: int, rate: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of the guide after this many minibatch scores."""
    kind = torch.get_default_dtype()
    data = torch.tensor(problem.x, dtype=kind), torch.tensor(problem.y, dtype=kind), batch_size
    pyro.set_rng_seed(seed)
    guide = AutoMultivariateNormal(logistic_model)
    if method == "ADVI":
        assert rate is not None
        _advi(logistic_model, guide, rate, scores, seed, *data)
    else:
        _run(method, logistic_model, guide, scores, seed, *data)
    with torch.no_grad():
        posterior = guide.get_posterior()
        return posterior.mean.double().numpy(), posterior.covariance_matrix.double().numpy()


def fit_network(
    split: Split, method: str, scores: int, batch_size: int, seed: int, rate: float | None
) -> dict[str, np.ndarray]:
    """Draws of the weights after this many minibatch scores, from a diagonal Normal guide."""
    kind = torch.get_default_dtype()
    x, y = torch.tensor(split.x_train, dtype=kind), torch.tensor(split.y_train, dtype=kind)
    data = x, y, min(batch_size, len(x))
    pyro.set_rng_seed(seed)
    guide = AutoDiagonalNormal(network_model, init_loc_fn=init_to_sample)
    if method in ("ADVI", ANNEALED):
        assert rate is not None
        _advi(network_model, guide, rate, scores, seed, *data, annealed=method == ANNEALED)
    else:
        _run(method, network_model, guide, scores, seed, *data)
    with torch.no_grad():
        draws = [guide(*data) for _ in range(200)]
    return {
        name: torch.stack([draw[name] for draw in draws]).double().numpy()
        for name in ("w1", "b1", "w2", "b2", "noise")
    }
