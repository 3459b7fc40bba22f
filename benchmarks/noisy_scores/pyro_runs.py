"""The closed form in Pyro, one run at a time, on the programs of the study."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

import pyro_ext as px
from benchmarks.noisy_scores.figures import Best, Floats
from benchmarks.noisy_scores.problems import Problem, start_of
from benchmarks.posteriordb.pyro_fits import configure

__all__ = ["configure", "program_of", "run"]


def _site(dim: int) -> torch.Tensor:
    flat = dist.Normal(0.0, 1.0).expand([dim]).to_event(1).mask(False)
    return pyro.sample("z", flat)


def program_of(problem: Problem, mean: Floats, deviations: Floats) -> Callable[[], None]:
    """The program of a Normal or a regression, with an origin and units of its coordinates."""
    source = problem.source
    centre, sds = torch.tensor(mean), torch.tensor(deviations)
    if problem.group == "Normal":
        precision = torch.tensor(np.linalg.inv(source))

        def of_normal() -> None:
            z = _site(len(source))
            pyro.factor("target", -0.5 * z @ (precision @ z))

        return of_normal
    x, y = torch.tensor(source.x), torch.tensor(source.y)

    def of_rows() -> None:
        theta = centre + sds * _site(source.dim)
        pyro.factor("prior", -0.5 * theta.square().sum())
        with pyro.plate("rows", len(y), subsample_size=source.batch) as rows:
            if source.kind == "linear":
                observed = dist.Normal(x[rows] @ theta[:-1], theta[-1].exp())
            elif source.kind == "Poisson":
                observed = dist.Poisson((x[rows] @ theta).exp())
            else:
                observed = dist.Bernoulli(logits=x[rows] @ theta)
            pyro.sample("y", observed, obs=y[rows])

    return of_rows


def run(
    program: Callable[[], None], best: Best, level: float, seed: int, scores: int
) -> tuple[Floats, Floats]:
    """Mean (D,) and scale (D, D) of the guide at the end of a run."""
    pyro.set_rng_seed(seed)
    engine = px.ProximalScoreVI(
        program,
        AutoMultivariateNormal(program),
        estimator=px.Noisy(level=level),
        seed=seed,
        on_nonfinite="skip",
    )
    engine.run(scores // 2, start=start_of(seed, best), progress_bar=False)
    with torch.no_grad():
        posterior = engine.guide.get_posterior()
        return posterior.mean.double().numpy(), posterior.scale_tril.double().numpy()
