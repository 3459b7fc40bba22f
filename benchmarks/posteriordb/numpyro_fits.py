"""Posteriors and methods in NumPyro."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, lax, random
from numpyro.infer import NUTS, SVI, Trace_ELBO, init_to_uniform
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
)

import numpyro_ext as nx
from benchmarks.posteriordb.methods import (
    CHAINS,
    COMPONENTS,
    INITIAL_SCALE,
    PARTICLES,
    RADIUS,
    Draws,
    Fitter,
    Floats,
    Look,
    Method,
    WholeFitter,
    after_warm_up,
    check_noise,
    cost_of,
    of_chains,
    own_engine,
    sweeps_of,
    uniform,
    warm_up,
)
from benchmarks.posteriordb.native import OfSites, OfStan
from benchmarks.posteriordb.nutpie_fits import NutpieFitter
from benchmarks.posteriordb.programs import numpyro_program, site_map
from benchmarks.posteriordb.programs.sites import SiteMap
from benchmarks.synthetic.numpyro_fits import white_noise
from benchmarks.trust.methods import Size, run_method
from benchmarks.trust.problems import Program
from numpyro_ext.curvature.gauss_newton import whitened_outputs
from numpyro_ext.curvature.row_structure import row_structure
from numpyro_ext.density import LogDensity
from numpyro_ext.guides.mixture import AutoGaussianMixture
from numpyro_ext.start import started
from ppl_ext.start.given import SEARCH
from ppl_ext.start.start import Start

#: Iterations of chains after which a budget is looked at.
BLOCK = 50
#: Numbers of positions that programs are evaluated at.
SIZES = (128, 2_048, 16_384)


def configure() -> None:
    """Double precision from here on."""
    jax.config.update("jax_enable_x64", True)


def release() -> None:
    """Let go of what was compiled."""
    jax.clear_caches()


def padded(z: Floats) -> Array:
    """Positions with the last one repeated, so that few numbers of rows are compiled for."""
    number = len(z)
    size = number if number == 1 else next((n for n in SIZES if n >= number), number)
    return jnp.asarray(np.concatenate([z, np.repeat(z[-1:], size - number, axis=0)]))


class NativeProgram(OfSites):
    """A program with its target; see :class:`~benchmarks.posteriordb.methods.Program`."""

    def __init__(self, model: Callable[[], Any], sites: SiteMap) -> None:
        self.model, self._sites = model, sites
        self.target = LogDensity(model, random.key(0))
        self.data = self.target.bind()
        self.dim: int = self.target.dim

    def log_density(self, z: Floats) -> Floats:
        """See the protocol."""
        found = self.target.log_density(padded(z), self.data)
        return np.asarray(found, np.float64)[: len(z)]

    def value_and_score(self, z: Floats) -> tuple[Floats, Floats]:
        """See the protocol."""
        found = self.target.score(padded(z), self.data)
        value = np.asarray(found.log_prior + found.log_likelihood, np.float64)
        return value[: len(z)], np.asarray(found.score, np.float64)[: len(z)]

    def parameters(self, z: Floats) -> dict[str, Floats]:
        """See the protocol."""
        found = self.target.constrain(padded(z), self.data)
        rows = slice(len(z))
        return self._sites.parameters(
            {name: np.asarray(value, np.float64)[rows] for name, value in found.items()}
        )

    def unconstrained(self, sites: Mapping[str, Any]) -> Floats:
        """Positions (n, D) of values of the sites, draws first."""
        values = {name: jnp.asarray(sites[name]) for name in self.target.layout.names}
        return np.asarray(self.target.unconstrain(values, self.data), np.float64)

    def start(self, seed: int) -> Start:
        """See the protocol."""
        found = started(self.target, random.key(seed), self.data, SEARCH)
        assert found is not None
        return found.start


class StanProgram(OfStan, NativeProgram):
    """A Stan program, whose draws have the parameters under Stan's names."""

    def parameters(self, z: Floats) -> dict[str, Floats]:
        """See the protocol."""
        found = self._program.constrain(z)
        return {name: np.asarray(value, np.float64) for name, value in found.items()}


def native(model_name: str, data: Mapping[str, Any]) -> NativeProgram:
    """The native program of a model."""
    return NativeProgram(partial(numpyro_program(model_name), data), site_map(model_name))


def stan(model_name: str, program: str, data: Mapping[str, Any]) -> NativeProgram:
    """A Stan program of a model."""
    return StanProgram(nx.stan.model(program, data), site_map(model_name))


def noisy(program: NativeProgram, level: float, seed: int) -> Callable[[], None]:
    """The density of a program with noise in its score, for the host's own engines.

    The score s becomes s + level |s|_inf N(0, I), equation 19 of M. Kim, "Large-scale Score-based
    Variational Posterior Inference for Bayesian Deep Neural Networks"; values stay exact. The one
    latent is the position in unconstrained space. Engines of ours take the estimator ``Noisy``.
    """

    def value(z: Array) -> Array:
        found: Array = program.target.log_density(z[None], program.data)[0]
        return found

    def model() -> None:
        flat = dist.Normal(0.0, 1.0).expand([program.dim]).to_event(1).mask(False)
        z = numpyro.sample("z", flat)
        held = lax.stop_gradient(z)
        with numpyro.handlers.block():  # The sites inside are not of this program.
            density, score = jax.value_and_grad(value)(held)
        noise = level * jnp.abs(score).max() * white_noise(held, jnp.asarray(seed, jnp.uint32))
        numpyro.factor("density", density + (score + noise) @ (z - held))

    return model


def fitter(program: NativeProgram, method: Method, budget: int, noise: float) -> Fitter:
    """A method on a program."""
    check_noise(method, noise)
    if method.family == "fit":

        def run(seed: int) -> tuple[int, Draws]:
            key = random.key(seed)
            found = nx.fit(key, program.model, budget=budget, progress_bar=False)
            return found.verdict.evaluations, Draws(program.unconstrained(found.draws))

        return WholeFitter(run)
    if method.family == "peer":
        return WholeFitter(partial(peer, program, method.engine))
    if method.engine == "nutpie":
        return NutpieFitter(program, budget)
    kind: dict[str, Any] = {"host": HostFitter, "guide": EngineFitter}
    kind |= {"particles": EngineFitter, "chains": StochasticGradientFitter, "MCMC": ChainFitter}
    kind["own"] = EngineFitter
    made: Fitter = kind[method.family](program, method, budget, noise)
    return made


def peer(program: NativeProgram, name: str, seed: int, share: float = 1.0) -> tuple[int, Draws]:
    """Evaluations and draws of a method of the benchmark of trust."""
    found = run_method(name, "numpyro", Program(program.model), seed, Size(share))
    assert found.evaluations is not None
    draws, chains = found.draws, 0
    if found.chains:
        chains = len(next(iter(draws.values())))
        draws = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    positions = program.unconstrained(draws)
    return found.evaluations, Draws(positions, None, found.warm_up, chains)


def make_guide(name: str, model: Callable[[], Any]) -> Any:
    """A guide of a model by its family's name."""
    options: dict[str, Any] = {"init_loc_fn": init_to_uniform(radius=RADIUS)}
    if name == "mixture":
        return AutoGaussianMixture(model, COMPONENTS, **options)
    if name == "Laplace":
        return AutoLaplaceApproximation(model, **options)
    kind = {"diagonal": AutoDiagonalNormal, "full": AutoMultivariateNormal}[name]
    return kind(model, init_scale=INITIAL_SCALE, **options)


def host_parameters(start: Start, guide: str) -> dict[str, Array]:
    """Parameters of a host's guide at the start, under the host's names."""
    found = {"auto_loc": start.mean}
    if guide == "diagonal":
        found["auto_scale"] = start.modes[0].conditional_deviations
    elif guide == "full":
        found["auto_scale_tril"] = start.modes[0].root
    return {name: jnp.asarray(value) for name, value in found.items()}


def adam() -> optax.GradientTransformation:
    """Adam that falls along a cosine; its step size and the run's length lie in its state."""

    def build(learning_rate: Any, steps: Any) -> optax.GradientTransformation:
        def falling(count: Any) -> Any:
            return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(count / steps, 1.0)))

        return optax.chain(optax.adam(learning_rate), optax.scale_by_schedule(falling))

    return optax.inject_hyperparams(build)(learning_rate=1e-2, steps=1.0)


def with_rate(state: Any, rate: float | None, steps: int) -> Any:
    """The state with another first step size of Adam, for a run of so many steps."""

    def chosen(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if name.endswith("['learning_rate']") and rate is not None:
            return jnp.full_like(leaf, rate)
        return jnp.full_like(leaf, max(1, steps)) if name.endswith("['steps']") else leaf

    return jax.tree_util.tree_map_with_path(chosen, state)


def repeated(step: Callable[[Any], Any]) -> Callable[[Any, Array], Any]:
    """A compiled function that takes a step so many times."""
    return jax.jit(lambda state, count: lax.fori_loop(0, count, lambda _, now: step(now), state))


def follow(
    advance: Callable[[Any, Array], Any],
    state: Any,
    cost: float,
    spent: int,
    points: list[int],
    look: Look,
    draws: Callable[[Any, int], Draws],
) -> None:
    """Run to the points and look at each, ``spent`` evaluations being gone before.

    The seconds leave out compiling and looking.
    """
    jax.block_until_ready(advance(state, jnp.asarray(0, jnp.int32)))
    done, seconds = 0, 0.0
    for point in points:
        count = int((point - spent) / cost) - done
        if count <= 0:
            continue
        started = time.perf_counter()
        state = jax.block_until_ready(advance(state, jnp.asarray(count, jnp.int32)))
        seconds += time.perf_counter() - started
        done += count
        if look(spent + round(done * cost), seconds, partial(draws, state)):
            return


def newton_sweeps(program: NativeProgram) -> int | None:
    """See :func:`~benchmarks.posteriordb.methods.sweeps_of`; None where there are no outputs."""
    target, data = program.target, program.data
    if not target.observed_sites:
        return None
    z = jnp.asarray(np.random.default_rng(0).uniform(-1.0, 1.0, program.dim))
    rows = target.first_rows()
    structure = row_structure(target, z, data, rows)

    def size(indices: Any, sites: Collection[str]) -> int:
        options = structure.repeated, False
        whitened = whitened_outputs(target, z, data, indices, random.key(0), sites, *options)
        return int(jax.eval_shape(whitened, z).shape[0])

    of_a_row = 0
    if structure.by_row:
        of_a_row = size({plate: found[:1] for plate, found in rows.items()}, structure.by_row)
    others = set(target.outputs(z, data, rows)) - structure.by_row
    # Of all rows, where some are taken here.
    share = math.prod(target.plates[plate].size / len(found) for plate, found in rows.items())
    return sweeps_of(of_a_row, share * size(rows, others), program.dim)


class EngineFitter:
    """An engine of ours; see :class:`~benchmarks.posteriordb.methods.Fitter`."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        own = method.family == "own"
        engine: Any = own_engine(method.engine) if own else getattr(nx, method.engine)
        model = program.model
        options = dict(method.options) | {"on_nonfinite": "skip"}
        if noise:
            options["estimator"] = nx.Noisy(nx.Full(), level=noise)
        self._particles = method.family == "particles"
        if own:
            self.engine = engine(model, **options)
            self._particles = hasattr(self.engine, "num_particles")
        elif self._particles:
            optim = () if method.engine == "SVN" else (adam(),)
            self.engine = engine(model, *optim, num_particles=PARTICLES, **options)
        else:
            assert method.guide is not None
            self.engine = engine(model, make_guide(method.guide, model), **options)
        self._draw = jax.jit(self._guide_draws, static_argnums=1)
        sweeps = newton_sweeps(program) if method.engine == "SVN" else None
        self._cost = cost_of(method, program.dim, sweeps)
        self._budget = budget
        self._advance = repeated(lambda state: self.engine.update(state)[0])

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        state = self.engine.init(random.key(seed), start="host" if start is None else start)
        engine = self.engine
        each = int(engine.num_particles if self._particles else engine.plan.num_samples)
        cost = self._cost.step * each
        spent = round(self._cost.start * each)
        if start is not None:
            spent += start.evaluations
        # Schedules over the run need its end.
        steps = max(1, int((self._budget - spent) / cost))
        state = with_rate(state._replace(horizon=jnp.asarray(steps, jnp.int32)), rate, steps)
        follow(self._advance, state, cost, spent, points, look, self._draws)

    def _draws(self, state: Any, number: int) -> Draws:
        if self._particles:
            return Draws(np.asarray(self.engine.particles(state), np.float64))
        z, log_q = self._draw(state.algorithm.parameters, number)
        return Draws(np.asarray(z, np.float64), np.asarray(log_q, np.float64))

    def _guide_draws(self, parameters: Any, number: int) -> tuple[Array, Array]:
        density = self.engine.density
        z = density.sample(parameters, random.key(1), number)
        return z, density.log_prob(parameters, z)


class HostFitter:
    """Variational inference of the host's own."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        assert method.guide is not None
        model = noisy(program, noise, 0) if noise else program.model
        self._guide_name, self._dim, self._budget = method.guide, program.dim, budget
        self._guide = make_guide(method.guide, model)
        # The Hessian of Laplace's approximation costs a score for each coordinate, once.
        self._spare = program.dim if method.guide == "Laplace" else 0
        self._svi = SVI(model, self._guide, adam(), Trace_ELBO())
        self._draw = jax.jit(self._guide_draws, static_argnums=1)
        self._advance = repeated(lambda state: self._svi.update(state)[0])

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        if start is None:
            # The guide would keep the point that it drew for the first seed.
            (point,) = uniform(self._dim, seed, 1)
            spent, found = self._spare, {"auto_loc": jnp.asarray(point)}
        else:
            spent = self._spare + start.evaluations
            found = host_parameters(start, self._guide_name)
        state = self._svi.init(random.key(seed), init_params=found)
        state = with_rate(state, rate, self._budget - spent)
        follow(self._advance, state, 1.0, spent, points, look, self._draws)

    def _draws(self, state: Any, number: int) -> Draws:
        z, log_q = self._draw(self._svi.get_params(state), number)
        return Draws(np.asarray(z, np.float64), np.asarray(log_q, np.float64))

    def _guide_draws(self, params: Any, number: int) -> tuple[Array, Array]:
        posterior = self._guide.get_posterior(params)
        z = posterior.sample(random.key(1), (number,))
        log_q = posterior.log_prob(z)
        # Of a diagonal guide the host's posterior has independent coordinates.
        return z, log_q if log_q.ndim == 1 else log_q.sum(-1)


def _all(drawn: Draws, number: int) -> Draws:
    """What a chain has, however many draws are asked for."""
    return drawn


class StochasticGradientFitter:
    """Stochastic gradient MCMC, with masses that make the start's coordinates alike."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        self._program, self._method = program, method
        self._estimator = nx.Noisy(nx.Full(), level=noise) if noise else None

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        program, options = self._program, dict(self._method.options)
        assert rate is not None
        spent, scale, z = of_chains(start, program.dim, seed, CHAINS)
        kind: Any = getattr(nx, self._method.engine)
        kernel = kind(program.model, rate, mass=scale**-2, estimator=self._estimator, **options)
        layout = program.target.layout
        keys = random.split(random.key(seed), CHAINS)
        state = kernel.init(keys, 0, layout.split(jnp.asarray(z)), (), {})

        @jax.jit
        def block(state: Any) -> Any:
            def step(now: Any, _: None) -> Any:
                now = kernel.sample(now, (), {})
                return now, layout.join(now.z)

            return lax.scan(step, state, None, length=BLOCK)

        jax.block_until_ready(block(state))
        positions, seconds = np.zeros((0, CHAINS, program.dim)), 0.0
        for point in points:
            steps = (point - spent) // CHAINS
            if steps < 1:
                continue
            while len(positions) < steps:
                started = time.perf_counter()
                state, drawn = jax.block_until_ready(block(state))
                seconds += time.perf_counter() - started
                positions = np.concatenate([positions, np.asarray(drawn, np.float64)])
            draws = Draws(after_warm_up(positions[:steps]))
            if look(spent + steps * CHAINS, seconds, partial(_all, draws)):
                return


class ChainFitter:
    """NUTS, one chain: the warm-up is part of the budget."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        self._program, self._warm_up = program, warm_up(budget)
        self._kernel = NUTS(program.model, init_strategy=init_to_uniform(radius=RADIUS))
        self._block: Any = None

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        state = self._kernel.init(random.key(seed), self._warm_up, None, (), {})
        if self._block is None:

            def block(state: Any) -> Any:
                def step(now: Any, _: None) -> Any:
                    now = self._kernel.sample(now, (), {})
                    return now, (now.z, now.num_steps, now.i)

                return lax.scan(step, state, None, length=BLOCK)

            self._block = jax.jit(block)
            jax.block_until_ready(self._block(state))
        positions, spent = np.zeros((0, self._program.dim)), np.zeros(0, int)
        total, seconds = 0, 0.0
        remaining = list(points)
        while remaining:
            started = time.perf_counter()
            state, (z, leapfrogs, number) = jax.block_until_ready(self._block(state))
            seconds += time.perf_counter() - started
            counts = total + np.cumsum(np.asarray(leapfrogs))
            total = int(counts[-1])
            kept = np.asarray(number) > self._warm_up
            if kept.any():
                positions = np.concatenate([positions, self._flat(z)[kept]])
                spent = np.concatenate([spent, counts[kept]])
            while remaining and remaining[0] <= total:
                point = remaining.pop(0)
                shown = positions[spent <= point]
                # A chain that still warms up has nothing to show.
                if len(shown) < 2:
                    continue
                drawn = Draws(shown, before=int(spent[0]))
                if look(point, seconds, partial(_all, drawn)):
                    return

    def _flat(self, z: dict[str, Array]) -> Floats:
        return self._program.unconstrained(jax.vmap(self._kernel.postprocess_fn((), {}))(z))
