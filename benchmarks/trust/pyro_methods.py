"""The rivals and the engines on a Pyro program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from pyro.optim import Adam, LambdaLR

import pyro_ext as px
from benchmarks.trust.methods import (
    CHAIN_DRAWS,
    CHAINS,
    DOUBTS,
    DRAWS,
    RATE,
    STEPS,
    WARM_UP,
    Fitted,
    Method,
    Size,
    as_arrays,
    options_of_chains,
    scores_of_a_start,
    scores_of_a_step,
)
from benchmarks.trust.problems import Program


class CountingNUTS(NUTS):
    """NUTS that counts its leapfrog steps, warm-up included."""

    leapfrogs = 0

    def _build_basetree(self, *args: Any) -> Any:
        self.leapfrogs += 1
        return super()._build_basetree(*args)


def nuts(program: Program, seed: int, size: Size, *, dense: bool = False) -> Fitted:
    """NUTS by the host, as long as the study's chains are."""
    length = size.of(WARM_UP), size.of(CHAIN_DRAWS)
    return host_nuts(program, seed, CHAINS, *length, dense=dense)


def host_nuts(
    program: Program, seed: int, chains: int, warm_up: int, draws: int, *, dense: bool = False
) -> Fitted:
    """One chain after the other: Pyro's chains side by side are processes."""
    found, evaluations, divergences = [], 0, 0
    for chain in range(chains):
        pyro.set_rng_seed(1_000 * seed + chain)
        kernel = CountingNUTS(program.model, full_mass=dense)
        sampler = MCMC(kernel, draws, warm_up, num_chains=1, disable_progbar=True)
        sampler.run(*program.args, **program.kwargs)
        found.append(as_arrays(sampler.get_samples()))
        evaluations += kernel.leapfrogs
        diverged = sampler.diagnostics().get("divergences", {})
        divergences += sum(len(rows) for rows in diverged.values())
    side_by_side = {name: np.stack([each[name] for each in found]) for name in found[0]}
    return Fitted(side_by_side, evaluations, chains=True, divergences=divergences)


def warm_chains(program: Program, seed: int, size: Size, *, fitted: bool = False) -> Fitted:
    """Chains in the coordinates of a start or a fit, whose evaluations count."""
    model, args, kwargs = program.model, program.args, dict(program.kwargs)
    source: Any
    if fitted:
        source = px.fit(model, *args, seed=seed, progress_bar=False, **kwargs)
        spent = source.verdict.evaluations
    else:
        source = px.find_start(model, *args, seed=seed, **kwargs)
        spent = source.evaluations
    options = options_of_chains(size)
    sampler = px.warm_chains(model, source, *args, seed=seed + 1, **options, **kwargs)
    diverged = sampler.diagnostics()["divergences"].values()
    draws = as_arrays(sampler.get_samples(group_by_chain=True))
    evaluations = spent + sampler.kernel.evaluations
    return Fitted(draws, evaluations, chains=True, divergences=sum(map(len, diverged)))


def svi(program: Program, seed: int, size: Size) -> Fitted:
    """A full Normal by the host."""
    kind = autoguide.AutoMultivariateNormal
    return host_svi(program, seed, kind, size.of(STEPS), RATE, size.of(DRAWS))


def host_svi(program: Program, seed: int, kind: Any, steps: int, rate: float, draws: int) -> Fitted:
    """A guide of this kind by the host, with a rate that falls to 0 along a cosine."""
    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    guide = kind(program.model)
    falling = {
        "optimizer": torch.optim.Adam,
        "optim_args": {"lr": rate},
        "lr_lambda": lambda step: 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps))),
    }
    optim = LambdaLR(falling)
    run = SVI(program.model, guide, optim, Trace_ELBO())
    for _ in range(steps):
        run.step(*program.args, **program.kwargs)
        optim.step()
    with torch.no_grad():
        rows = [guide(*program.args, **program.kwargs) for _ in range(draws)]
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    pyro.clear_param_store()
    return Fitted(as_arrays(found), steps)


RIVALS: dict[str, Callable[[Program, int, Size], Fitted]] = {
    "svi": svi,
    "nuts": nuts,
    "nuts-dense": lambda program, seed, size: nuts(program, seed, size, dense=True),
    "warm-chains": warm_chains,
    "warm-chains-fit": partial(warm_chains, fitted=True),
}


def run_engine(method: Method, program: Program, seed: int, size: Size) -> Fitted:
    """An engine of this project; what it warns of is what it says of its answer."""
    steps, options = size.of(method.steps), dict(method.options)
    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    given: list[Any] = []
    if method.guide:
        given.append(getattr(autoguide, method.guide)(program.model))
    if method.adam is not None:
        given.append(Adam({"lr": method.adam}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = getattr(px, method.engine)(program.model, *given, seed=seed, **options)
        engine.run(steps, *program.args, progress_bar=False, **program.kwargs)
        drawn = {} if "num_particles" in options else {"num_samples": size.of(DRAWS)}
        found = engine.get_samples(**drawn)
    told = tuple(str(each.message) for each in caught if each.category in DOUBTS)
    evaluations = steps * scores_of_a_step(method, engine.plan) + scores_of_a_start(engine)
    pyro.clear_param_store()
    return Fitted(as_arrays(found), evaluations, trusted=not told, reasons=told)
