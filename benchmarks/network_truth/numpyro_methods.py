"""The engines, the kernels and the host's own methods on a network in NumPyro."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpyro
from jax import random
from numpyro.infer import MCMC, Predictive, autoguide

import numpyro_ext as nx
from benchmarks.network_truth.methods import (
    ADVI_RATE,
    ADVI_STEPS,
    DRAWS,
    Answer,
    Recipe,
    answered,
    length_of,
)
from benchmarks.trust.methods import Fitted, Size, as_arrays
from benchmarks.trust.numpyro_methods import host_svi
from benchmarks.trust.problems import Program


def advi(program: Program, seed: int, size: Size) -> Fitted:
    """A Normal without correlations, by the host."""
    kind = autoguide.AutoDiagonalNormal
    return host_svi(program, seed, kind, size.of(ADVI_STEPS), ADVI_RATE, size.of(DRAWS))


def run_engine(recipe: Recipe, program: Program, seed: int, size: Size) -> Answer:
    """An engine of this project; its judgement is what it says of its answer."""
    steps, options = size.of(recipe.steps), dict(recipe.options)
    given: list[Any] = []
    if recipe.guide:
        kind = getattr(nx, recipe.guide, None) or getattr(autoguide, recipe.guide)
        given.append(kind(program.model))
    if recipe.adam is not None:
        given.append(numpyro.optim.Adam(recipe.adam))
    with warnings.catch_warnings():
        # They stand in the judgement.
        warnings.simplefilter("ignore", nx.DoubtfulFitWarning)
        engine = getattr(nx, recipe.engine)(program.model, *given, **options)
        run: Any = {"progress_bar": False, **recipe.run}
        if (watch := recipe.watch) is not None:
            run["callback"] = lambda _, state, __: watch(as_arrays(engine.get_samples(state)))
        result = engine.run(random.key(seed), steps, *program.args, **run)
    drawn = {} if "num_particles" in options else {"num_samples": size.of(DRAWS)}
    draws = as_arrays(engine.get_samples(result.state, **drawn))
    linear_at = as_arrays(engine.mode(result.state)) if recipe.linearized else None
    return answered(recipe, steps, engine, result, draws, linear_at)


def run_kernel(recipe: Recipe, program: Program, seed: int, size: Size) -> Answer:
    """A kernel of this project in the host's `MCMC`."""
    kernel = getattr(nx, recipe.kernel)(program.model, *recipe.given, **recipe.options)
    warm_up, draws, evaluations = length_of(recipe, size, kernel)
    sampler = MCMC(
        kernel,
        num_warmup=warm_up,
        num_samples=draws,
        num_chains=recipe.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(random.key(seed), *program.args)
    found = as_arrays(sampler.get_samples(group_by_chain=True))
    diverged = int(np.asarray(sampler.last_state.num_diverging).sum())
    reasons: tuple[str, ...] = ()
    if hasattr(kernel, "judge"):
        reasons = tuple(kernel.judge(sampler).reasons)
    return Answer(Fitted(found, evaluations, chains=True, divergences=diverged, reasons=reasons))


def of_prior(program: Program, number: int, seed: int) -> dict[str, Any]:
    """Draws of the prior, by latent site."""
    found = Predictive(program.model, num_samples=number)(random.key(seed), *program.args)
    return {name: each for name, each in found.items() if name != "y"}
