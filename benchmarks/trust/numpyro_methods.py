"""The rivals and the engines on a NumPyro program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from blackjax.mcmc.adjusted_mclmc import rescale
from blackjax.vi import multipathfinder
from jax import Array, random
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from numpyro.infer.util import initialize_model

import numpyro_ext as nx
from benchmarks.trust.methods import (
    ADJUSTED_DRAWS,
    CHAIN_DRAWS,
    CHAINS,
    DOUBTS,
    DRAWS,
    RATE,
    STEPS,
    WARM_UP,
    Draws,
    Fitted,
    Method,
    Size,
    as_arrays,
    options_of_chains,
    scores_of_a_start,
    scores_of_a_step,
)
from benchmarks.trust.problems import Program

#: Draws of each path that its bound is estimated with, and iterations at most: BlackJAX's own.
PATH_DRAWS, PATH_ITERATIONS = 200, 30
#: Steps that adapt the step size after Pathfinder: BlackJAX's default.
ADAPTING = 400
#: Microcanonical dynamics: acceptance that the step is tuned to (arXiv:2503.01707 advises 0.9), and
#: scores of a step of BlackJAX's integrator, of second order with two of them.
ACCEPTED, STEP_SCORES = 0.9, 2


class CountingNUTS(NUTS):
    """NUTS whose states hold the leapfrog steps of the whole chain, warm-up included."""

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        """See NumPyro."""
        found = super().sample(state, model_args, model_kwargs)
        return found._replace(num_steps=state.num_steps + found.num_steps)


def nuts(program: Program, seed: int, size: Size, *, dense: bool = False) -> Fitted:
    """NUTS by the host, as long as the study's chains are."""
    length = size.of(WARM_UP), size.of(CHAIN_DRAWS)
    return host_nuts(program, seed, CHAINS, *length, dense=dense)


def host_nuts(
    program: Program,
    seed: int,
    chains: int,
    warm_up: int,
    draws: int,
    *,
    dense: bool = False,
    start: Any = None,
) -> Fitted:
    """Chains side by side in one compiled program, from unconstrained values where given."""
    sampler = MCMC(
        CountingNUTS(program.model, dense_mass=dense),
        num_warmup=warm_up,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    key = random.key(seed)
    told = ("diverging", "num_steps")
    options: Any = {"extra_fields": told, "init_params": start, **program.kwargs}
    sampler.run(key, *program.args, **options)
    found = as_arrays(sampler.get_samples(group_by_chain=True))
    fields = sampler.get_extra_fields(group_by_chain=True)
    spent = np.asarray(fields["num_steps"])
    return Fitted(
        found,
        int(spent[:, -1].sum()),
        int(spent[:, 0].sum()),
        chains=True,
        divergences=int(np.asarray(fields["diverging"]).sum()),
    )


def warm_chains(program: Program, seed: int, size: Size, *, fitted: bool = False) -> Fitted:
    """Chains in the coordinates of a start or a fit, whose evaluations count."""
    before, after = random.split(random.key(seed))
    model, args, kwargs = program.model, program.args, dict(program.kwargs)
    source: Any
    if fitted:
        source = nx.fit(before, model, *args, progress_bar=False, **kwargs)
        spent = source.verdict.evaluations
    else:
        source = nx.find_start(before, model, *args, **kwargs)
        spent = source.evaluations
    with patch("numpyro_ext.warm_chains.NUTS", CountingNUTS):
        sampler = nx.warm_chains(after, model, source, *args, **options_of_chains(size), **kwargs)
    divergences = int(np.asarray(sampler.get_extra_fields()["diverging"]).sum())
    evaluations = spent + int(np.asarray(sampler.last_state.num_steps).sum())
    draws = as_arrays(sampler.get_samples(group_by_chain=True))
    return Fitted(draws, evaluations, chains=True, divergences=divergences)


def svi(program: Program, seed: int, size: Size) -> Fitted:
    """A full Normal by the host."""
    kind = autoguide.AutoMultivariateNormal
    return host_svi(program, seed, kind, size.of(STEPS), RATE, size.of(DRAWS))


def host_svi(program: Program, seed: int, kind: Any, steps: int, rate: float, draws: int) -> Fitted:
    """A guide of this kind by the host, with a rate that falls to 0 along a cosine."""
    guide = kind(program.model)
    optim = optax.adam(optax.cosine_decay_schedule(rate, steps))
    run = SVI(program.model, guide, optim, Trace_ELBO())
    options: Any = {"progress_bar": False, **program.kwargs}
    result = run.run(random.key(seed), steps, *program.args, **options)
    found = guide.sample_posterior(
        random.key(seed + 1),
        result.params,
        *program.args,
        sample_shape=(draws,),
        **program.kwargs,
    )
    return Fitted(as_arrays(found), steps)


class Density:
    """Log density of a program on NumPyro's unconstrained sites, for BlackJAX."""

    def __init__(self, program: Program, key: Array, count: int) -> None:
        keys = random.split(key, count)
        self._given = {"model_args": program.args, "model_kwargs": dict(program.kwargs)}
        info = initialize_model(keys, program.model, dynamic_args=False, **self._given)
        self._potential, self._postprocess = info.potential_fn, info.postprocess_fn
        #: Starting points, (count, ...) by site.
        self.starts: Any = info.param_info.z

    def __call__(self, z: Any) -> Array:
        found: Array = -self._potential(z)
        return found

    def draws(self, z: Any) -> Draws:
        """Constrained draws of positions (n, ...)."""
        return as_arrays(jax.vmap(self._postprocess)(z))


def pathfinder(program: Program, seed: int, size: Size) -> Fitted:
    """Several paths, and draws of them all by smoothed importance weights."""
    begin, run, choose = random.split(random.key(seed), 3)
    density = Density(program, begin, CHAINS)

    @jax.jit
    def approximate(starts: Any) -> Any:
        state, _ = multipathfinder.multi_approximate(
            run, density, starts, PATH_DRAWS, maxiter=PATH_ITERATIONS
        )
        weights, shape = multipathfinder.psis_weights(state)
        rows = random.categorical(choose, weights, shape=(size.of(DRAWS),))
        pool = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state.samples)
        return jax.tree.map(lambda x: x[rows], pool), shape

    found, shape = approximate(density.starts)
    k = float(shape)
    told = () if k < 0.7 else (f"Pareto k {k:.2f}",)
    # Bounds are taken at every point of a path; of its line searches BlackJAX tells nothing, and
    # one evaluation an iteration is the least.
    paths = CHAINS * (PATH_ITERATIONS + 1) * (PATH_DRAWS + 1)
    evaluations = paths + CHAINS * PATH_DRAWS
    return Fitted(density.draws(found), evaluations, paths, trusted=not told, reasons=told)


def pathfinder_nuts(program: Program, seed: int, size: Size) -> Fitted:
    """NUTS with the metric and the starts of Pathfinder."""
    begin, adapt, run = random.split(random.key(seed), 3)
    density = Density(program, begin, 1)
    warm_up = blackjax.pathfinder_adaptation(
        blackjax.nuts, density, num_chains=CHAINS, num_samples_per_path=PATH_DRAWS
    )

    @jax.jit
    def sample(start: Any) -> Any:
        adapted, info = warm_up.run(adapt, start, num_steps=size.of(ADAPTING))
        step_sizes = adapted.parameters["step_size"]
        metric = adapted.parameters["inverse_mass_matrix"]
        metrics = jnp.broadcast_to(metric, (CHAINS, *metric.shape))
        found = nuts_chains(density, adapted.state, step_sizes, metrics, run, size)
        return *found, info.info.num_integration_steps.sum()

    z, divergent, steps, adapting = sample(jax.tree.map(lambda x: x[0], density.starts))
    paths = CHAINS * ((PATH_ITERATIONS + 1) * (PATH_DRAWS + 1) + PATH_DRAWS)
    return chains_of(density, z, divergent, steps, paths + adapting)


def window_nuts(program: Program, seed: int, size: Size) -> Fitted:
    """NUTS with BlackJAX's window adaptation, each chain by itself."""
    begin, adapt, run = random.split(random.key(seed), 3)
    density = Density(program, begin, CHAINS)
    warm_up = blackjax.window_adaptation(blackjax.nuts, density)

    @jax.jit
    def sample(starts: Any) -> Any:
        adapted, info = jax.vmap(lambda key, z: warm_up.run(key, z, size.of(WARM_UP)))(
            random.split(adapt, CHAINS), starts
        )
        found = nuts_chains(
            density,
            adapted.state,
            adapted.parameters["step_size"],
            adapted.parameters["inverse_mass_matrix"],
            run,
            size,
        )
        return *found, info.info.num_integration_steps.sum()

    return chains_of(density, *sample(density.starts))


def nuts_chains(
    density: Density, states: Any, step_sizes: Any, metrics: Any, key: Array, size: Size
) -> Any:
    """Positions, divergences and leapfrog steps (chains, draws) of BlackJAX's NUTS."""
    kernel = blackjax.nuts.build_kernel()

    def chain(state: Any, step_size: Any, metric: Any, key: Array) -> Any:
        def step(state: Any, key: Array) -> Any:
            state, info = kernel(key, state, density, step_size, metric)
            return state, (state.position, info.is_divergent, info.num_integration_steps)

        return jax.lax.scan(step, state, random.split(key, size.of(CHAIN_DRAWS)))[1]

    return jax.vmap(chain)(states, step_sizes, metrics, random.split(key, CHAINS))


def chains_of(density: Density, z: Any, divergent: Any, steps: Any, warm_up: Any) -> Fitted:
    """Chains at positions, with the evaluations of each draw and those of the warm-up."""
    flat = density.draws(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), z))
    draws = {name: value.reshape(CHAINS, -1, *value.shape[1:]) for name, value in flat.items()}
    spent = int(warm_up) + int(jnp.sum(steps))
    return Fitted(draws, spent, int(warm_up), chains=True, divergences=int(jnp.sum(divergent)))


def mams(program: Program, seed: int, size: Size) -> Fitted:
    """Metropolis-adjusted microcanonical dynamics, tuned by BlackJAX's own search."""
    begin, adapt, run = random.split(random.key(seed), 3)
    density = Density(program, begin, CHAINS)
    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], density.starts))
    number = size.of(ADJUSTED_DRAWS)
    algorithm = blackjax.adjusted_mclmc_dynamic
    build = algorithm.build_kernel(
        integration_steps_fn=lambda key, mean: jnp.ceil(random.uniform(key) * rescale(mean))
    )

    def log_density(z: Array) -> Array:
        return density(unravel(z))

    # Called by BlackJAX's search with these names.
    def kernel(
        rng_key: Array,
        state: Any,
        logdensity_fn: Any,
        step_size: Any,
        inverse_mass_matrix: Any,
        integration_steps_params: Any,
    ) -> Any:
        return build(
            rng_key,
            state,
            logdensity_fn,
            step_size,
            inverse_mass_matrix=inverse_mass_matrix,
            integration_steps_params=integration_steps_params,
        )

    def chain(z: Array, keys: Array) -> Any:
        state = algorithm.init(z, log_density, keys[0])
        state, tuned, spent = blackjax.adjusted_mclmc_find_L_and_step_size(
            kernel, log_density, number, state, keys[1], target=ACCEPTED
        )
        metric, mean = tuned.inverse_mass_matrix, (tuned.L / tuned.step_size,)

        def step(state: Any, key: Array) -> Any:
            state, info = kernel(key, state, log_density, tuned.step_size, metric, mean)
            return state, (state.position, info.is_divergent, info.num_integration_steps)

        return *jax.lax.scan(step, state, random.split(keys[2], number))[1], spent

    starts = jax.vmap(lambda z: ravel_pytree(z)[0])(density.starts)
    keys = jnp.stack([random.split(adapt, CHAINS), random.split(run, CHAINS)], 1)
    keys = jnp.concatenate([random.split(begin, CHAINS)[:, None], keys], 1)
    z, divergent, steps, spent = jax.jit(jax.vmap(chain))(starts, keys)
    positions = jax.vmap(jax.vmap(unravel))(z)
    return chains_of(density, positions, divergent, STEP_SCORES * steps, STEP_SCORES * spent.sum())


def nutpie(program: Program, seed: int, size: Size, *, low_rank: bool = False) -> Fitted:
    """nutpie on NumPyro's own density, with its defaults for all but the number of chains."""
    # Not imported with the module: of all methods this one alone needs it.
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    density = Density(program, random.key(seed), 1)
    start = jax.tree.map(lambda x: x[0], density.starts)
    first, unravel = ravel_pytree(start)
    dim = first.size
    value_and_grad = jax.jit(jax.value_and_grad(lambda z: density(unravel(z))))

    def log_density(z: Any) -> tuple[float, Any]:
        value, score = value_and_grad(z)
        return float(value), np.asarray(score, np.float64)

    compiled = from_pyfunc(
        dim,
        lambda: log_density,
        lambda *_: lambda z: {"z": np.asarray(z)},
        [np.dtype(np.float64)],
        [(dim,)],
        ["z"],
    )
    length = {} if size.share == 1.0 else {"draws": size.of(CHAIN_DRAWS), "tune": size.of(400)}
    options: Any = {"chains": CHAINS, "seed": seed, "progress_bar": False, **length}
    found = nutpie.sample(compiled, low_rank_modified_mass_matrix=low_rank, **options)
    z = found.posterior["z"].values
    flat = density.draws(jax.vmap(unravel)(jnp.asarray(z.reshape(-1, dim))))
    draws = {name: value.reshape(*z.shape[:2], *value.shape[1:]) for name, value in flat.items()}
    before = int(found.warmup_sample_stats["n_steps"].sum())
    spent = before + int(found.sample_stats["n_steps"].sum())
    divergences = int(found.sample_stats["diverging"].sum())
    return Fitted(draws, spent, before, chains=True, divergences=divergences)


RIVALS: dict[str, Callable[[Program, int, Size], Fitted]] = {
    "svi": svi,
    "nuts": nuts,
    "nuts-dense": lambda program, seed, size: nuts(program, seed, size, dense=True),
    "nutpie": nutpie,
    "nutpie-low-rank": partial(nutpie, low_rank=True),
    "warm-chains": warm_chains,
    "warm-chains-fit": partial(warm_chains, fitted=True),
    "pathfinder": pathfinder,
    "pathfinder-nuts": pathfinder_nuts,
    "window-nuts": window_nuts,
    "mams": mams,
}


def run_engine(method: Method, program: Program, seed: int, size: Size) -> Fitted:
    """An engine of this project; what it warns of is what it says of its answer."""
    steps, options = size.of(method.steps), dict(method.options)
    given: list[Any] = []
    if method.guide:
        given.append(getattr(autoguide, method.guide)(program.model))
    if method.adam is not None:
        given.append(numpyro.optim.Adam(method.adam))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = getattr(nx, method.engine)(program.model, *given, **options)
        run: Any = {"progress_bar": False, **program.kwargs}
        result = engine.run(random.key(seed), steps, *program.args, **run)
        drawn = {} if "num_particles" in options else {"num_samples": size.of(DRAWS)}
        found = engine.get_samples(result.state, **drawn)
    told = tuple(str(each.message) for each in caught if each.category in DOUBTS)
    evaluations = steps * scores_of_a_step(method, engine.plan) + scores_of_a_start(engine)
    return Fitted(as_arrays(found), evaluations, trusted=not told, reasons=told)
