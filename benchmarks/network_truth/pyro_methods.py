"""The engines, the kernels and the host's own methods on a network in Pyro."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import torch
from pyro.infer import Predictive, autoguide
from pyro.optim import Adam

import pyro_ext as px
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
from benchmarks.trust.problems import Program
from benchmarks.trust.pyro_methods import host_svi


def advi(program: Program, seed: int, size: Size) -> Fitted:
    """A Normal without correlations, by the host."""
    kind = autoguide.AutoDiagonalNormal
    return host_svi(program, seed, kind, size.of(ADVI_STEPS), ADVI_RATE, size.of(DRAWS))


def run_engine(recipe: Recipe, program: Program, seed: int, size: Size) -> Answer:
    """An engine of this project; its judgement is what it says of its answer."""
    steps, options = size.of(recipe.steps), dict(recipe.options)
    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    given: list[Any] = []
    if recipe.guide:
        kind = getattr(px, recipe.guide, None) or getattr(autoguide, recipe.guide)
        given.append(kind(program.model))
    if recipe.adam is not None:
        given.append(Adam({"lr": recipe.adam}))
    with warnings.catch_warnings():
        # They stand in the judgement.
        warnings.simplefilter("ignore", px.DoubtfulFitWarning)
        engine = getattr(px, recipe.engine)(program.model, *given, seed=seed, **options)
        run: Any = {"progress_bar": False, **recipe.run}
        if (watch := recipe.watch) is not None:
            run["callback"] = lambda _, engine, __: watch(as_arrays(engine.get_samples()))
        result = engine.run(steps, *program.args, **run)
    drawn = {} if "num_particles" in options else {"num_samples": size.of(DRAWS)}
    draws = as_arrays(engine.get_samples(**drawn))
    linear_at = as_arrays(engine.mode()) if recipe.linearized else None
    pyro.clear_param_store()
    return answered(recipe, steps, engine, result, draws, linear_at)


def run_kernel(recipe: Recipe, program: Program, seed: int, size: Size) -> Answer:
    """A kernel of this project in its vectorised `MCMC`."""
    pyro.set_rng_seed(seed)
    kernel = getattr(px, recipe.kernel)(program.model, *recipe.given, **recipe.options)
    warm_up, draws, evaluations = length_of(recipe, size, kernel)
    sampler = px.MCMC(
        kernel,
        num_samples=draws,
        warmup_steps=warm_up,
        num_chains=recipe.chains,
        disable_progbar=True,
    )
    sampler.run(*program.args)
    found = as_arrays(sampler.get_samples(group_by_chain=True))
    said = getattr(kernel, "judgement", None)
    return Answer(
        Fitted(
            found,
            evaluations,
            chains=True,
            divergences=int(kernel.state.num_diverging.sum()),
            reasons=() if said is None else tuple(said.reasons),
        )
    )


def of_prior(program: Program, number: int, seed: int) -> dict[str, Any]:
    """Draws of the prior, by latent site."""
    pyro.set_rng_seed(seed)
    with torch.no_grad():
        found = Predictive(program.model, num_samples=number)(*program.args)
    return {name: each.squeeze(1) for name, each in found.items() if name != "y"}
