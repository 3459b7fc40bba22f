"""Chains of peers from the members of a deep ensemble, in NumPyro: MILE by BlackJAX, and NUTS.

MILE follows its authors' public code for UCI sets (E. Sommer and others, "Microcanonical Langevin
ensembles: advancing the sampling of Bayesian neural networks", ICLR 2025,
https://arxiv.org/abs/2502.06335): from each member of a deep ensemble
(:mod:`benchmarks.network_truth.ensembles`) one chain that is tuned by itself, without
preconditioning, in 50,000 steps, and 10,000 steps more, of which every tenth is a draw. Eight
tenths of the tuning find the step size from 0.001 on, with a length of max(sqrt(D), 15); in the
next tenth it is tuned further, and the length becomes the root of the sum of the variances; in the
last the length becomes 0.4 times the mean autocorrelation length. The variance of the energy that
is aimed at falls from 0.5 to 0.1 for each dimension, of 100 effective steps, with a trust of 1.5
in each. Theirs falls from step to step, here it does in nine parts, since BlackJAX's tuning aims at
one. A step takes two scores. They have 12 members, weights of standard Normals, ReLU units and a
spread that depends on the inputs; here all methods have 16 and one program.
"""

from __future__ import annotations

import math
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from blackjax.util import pytree_size
from jax import Array, random
from numpyro.infer.util import unconstrain_fn

from benchmarks.trust.methods import Draws, Fitted, Size
from benchmarks.trust.numpyro_methods import Density, host_nuts
from benchmarks.trust.problems import Program

#: Parts of MILE's tuning before the last, with the energy's variance at the first and last step,
#: steps of each and of the last; steps after it, of which one in so many is a draw.
PARTS, FIRST, LAST, PART, STEPS, THINNED = 9, 0.5, 0.1, 5_000, 10_000, 10
#: Scores of a step of BlackJAX's default integrator.
SCORES = 2
#: Warm-up of NUTS by the same code, and draws, of which theirs has 1,000.
NUTS_WARM_UP, NUTS_DRAWS = 100, 25


def unconstrained(program: Program, draws: Draws) -> dict[str, Array]:
    """Draws as the host's unconstrained sites."""

    def one(draw: Any) -> Any:
        return unconstrain_fn(program.model, program.args, program.kwargs, draw)

    found: dict[str, Array] = jax.vmap(one)({n: jnp.asarray(x, float) for n, x in draws.items()})
    return found


def mile(program: Program, members: Fitted, seed: int, size: Size) -> Fitted:
    """Microcanonical chains, one from each member."""
    begin, run = random.split(random.key(seed))
    density = Density(program, begin, 1)
    starts = unconstrained(program, members.draws)
    part, draws = size.of(PART), size.of(STEPS // THINNED)
    kernel = blackjax.mcmc.mclmc.build_kernel()

    def tuned(key: Array, state: Any, params: Any, variance: Any, *shares: float) -> Any:
        state, params, _ = blackjax.mclmc_find_L_and_step_size(
            kernel,
            part,
            state,
            key,
            density,
            *shares,
            desired_energy_var=variance,
            num_effective_samples=100,
            diagonal_preconditioning=False,
            params=params,
        )
        # The tuning mixes Python's numbers with arrays.
        return state, jax.tree.map(jnp.asarray, params)

    def chain(given: Any) -> Any:
        key, position = given
        key, first = random.split(key)
        dim = pytree_size(position)
        state = blackjax.mcmc.mclmc.init(position, density, first)
        params = MCLMCAdaptationState(
            jnp.asarray(max(math.sqrt(dim), 15.0)), jnp.asarray(0.001), jnp.ones(dim)
        )
        aims = FIRST + (LAST - FIRST) * (jnp.arange(PARTS) + 0.5) / PARTS

        def tune(carry: Any, given: Any) -> Any:
            return tuned(given[0], *carry, given[1], 1.0, 0.0, 0.0), None

        keys = random.split(key, PARTS + 1)
        (state, params), _ = jax.lax.scan(tune, (state, params), (keys[1:PARTS], aims[:-1]))
        state, params = tuned(keys[PARTS], state, params, aims[-1], 0.0, 1.0, 1.0)

        def step(state: Any, key: Array) -> Any:
            found, info = kernel(
                key, state, density, params.inverse_mass_matrix, params.L, params.step_size
            )
            return found, (jnp.square(info.energy_change), ~info.nonans)

        def draw(state: Any, key: Array) -> Any:
            state, figures = jax.lax.scan(step, state, random.split(key, THINNED))
            return state, (state.position, figures)

        _, (z, (squares, diverged)) = jax.lax.scan(draw, state, random.split(keys[0], draws))
        return z, squares.mean() / dim, diverged.sum()

    @jax.jit
    def sample(keys: Array, starts: Any) -> Any:
        # One after another: side by side these small products are slower on one core.
        return jax.lax.map(chain, (keys, starts))

    number = len(members.draws["noise"])
    z, variances, diverged = sample(random.split(run, number), starts)
    flat = density.draws(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), z))
    found = {name: value.reshape(number, -1, *value.shape[1:]) for name, value in flat.items()}
    steps = number * ((PARTS + 1) * part + draws * THINNED)
    worst = float(np.max(variances))
    told = (f"the energy's variance is {worst:.2g} for each dimension",) if worst > 1.0 else ()
    return Fitted(
        found,
        (members.evaluations or 0) + SCORES * steps,
        chains=True,
        divergences=int(diverged.sum()),
        reasons=told,
    )


def nuts(program: Program, members: Fitted, seed: int, size: Size) -> Fitted:
    """The host's NUTS, a short chain from each member."""
    starts, number = unconstrained(program, members.draws), len(members.draws["noise"])
    length = size.of(NUTS_WARM_UP), size.of(NUTS_DRAWS)
    found = host_nuts(program, seed, number, *length, start=starts)
    spent = (members.evaluations or 0) + (found.evaluations or 0)
    return Fitted(found.draws, spent, chains=True, divergences=found.divergences)
