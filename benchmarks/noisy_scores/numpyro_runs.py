"""Programs, best Normals and runs in NumPyro. Seeds, levels and rates run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from numpyro.infer.autoguide import AutoMultivariateNormal
from scipy.stats import norm, qmc

import numpyro_ext as nx
from benchmarks.noisy_scores.ablations import ABLATIONS, engine_of
from benchmarks.noisy_scores.figures import Best, Floats, LeastSquares
from benchmarks.noisy_scores.problems import (
    Problem,
    Regression,
    mode_and_deviations,
    posterior_draws,
    start_of,
)
from benchmarks.noisy_scores.rivals import RIVALS, Now, Rival
from benchmarks.posteriordb.numpyro_fits import configure, native, release
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.draws import standard_normal
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients.estimator import EstimatorState, ScoreEstimate
from numpyro_ext.guides.flat_density import Moments

__all__ = ["Prepared", "configure", "prepare", "release", "run"]

#: Points of a rule of equal weights by which the best Normal is found, and its greatest steps.
POINTS, STEPS, CLIP = 2**13, 200, 2.0
#: Pairs of scores by which the bound of least squares is found.
PAIRS, BLOCK = 2**13, 64


@dataclass(frozen=True)
class Levelled(nx.Noisy):
    """``Noisy`` whose level lies in its state, so that one compiled program serves all levels."""

    level: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """The level may be an array."""

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        state = super().init(target, data, rng_key, num_positions)
        return {**state, "level": jnp.asarray(self.level, jnp.result_type(float))}

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        level = state["level"]
        found, following = nx.Noisy.estimate(replace(self, level=level), target, state, z, data)
        return found, {**following, "level": level}


@dataclass(frozen=True)
class Prepared:
    """A problem as a program of one flat site, with what its fits are held against.

    Attributes
    ----------
    program : callable
        In units of the reference's deviations.
    mean, deviations : arrays (D,)
        Origin and units of its coordinates in those of the model.
    best : Best
    bounds : dict of float to LeastSquares
        By noise level.
    """

    program: Callable[[], None]
    mean: Floats
    deviations: Floats
    best: Best
    bounds: dict[float, LeastSquares]

    @property
    def dim(self) -> int:
        """Number D of coordinates."""
        return len(self.best.mean)


def _site(dim: int) -> Array:
    flat = dist.Normal(0.0, 1.0).expand([dim]).to_event(1).mask(False)
    return numpyro.sample("z", flat)


def normal_program(covariance: Floats) -> Callable[[], None]:
    """A Normal around zero."""
    precision = jnp.asarray(np.linalg.inv(covariance))

    def program() -> None:
        z = _site(len(covariance))
        numpyro.factor("target", -0.5 * z @ (precision @ z))

    return program


def scaled_program(target: LogDensity, data: Data, mean: Floats, sds: Floats) -> Callable[[], None]:
    """A density over mean + deviations times the site."""

    def program() -> None:
        z = _site(len(mean))
        numpyro.factor("target", target.log_density(jnp.asarray(mean + sds * z)[None], data)[0])

    return program


def regression_program(
    problem: Regression, mean: Floats, sds: Floats, batch: int | None
) -> Callable[[], None]:
    """A regression with a plate of rows, of which ``batch`` are drawn at a time."""
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)

    def program() -> None:
        theta = mean + sds * _site(problem.dim)
        numpyro.factor("prior", -0.5 * jnp.square(theta).sum())
        with numpyro.plate("rows", len(y), subsample_size=batch) as rows:
            if problem.kind == "linear":
                observed = dist.Normal(x[rows] @ theta[:-1], jnp.exp(theta[-1]))
            elif problem.kind == "Poisson":
                observed = dist.Poisson(jnp.exp(x[rows] @ theta))
            else:
                observed = dist.Bernoulli(logits=x[rows] @ theta)
            numpyro.sample("y", observed, obs=y[rows])

    return program


def prepare(problem: Problem) -> Prepared:
    """The program, its best Normal, the reference and the bounds."""
    source = problem.source
    if problem.group == "Normal":
        program = normal_program(source)
        mean, scale = best_normal(program)
        best = Best(mean, scale, np.zeros(len(source)), source)
        centre, sds = np.zeros(len(source)), np.ones(len(source))
    elif problem.group == "posteriordb":
        whole = native(source.model_name, source.data())
        draws = source.reference_draws()
        pooled = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        positions = whole.positions(pooled)
        assert positions is not None
        centre, sds = positions.mean(0), positions.std(0)
        program = scaled_program(whole.target, whole.data, centre, sds)
        mean, scale = best_normal(program)
        standard = (positions - centre) / sds
        best = Best(mean, scale, standard.mean(0), np.cov(standard.T, bias=True))
    else:
        centre, sds = mode_and_deviations(source)
        mean, scale = best_normal(regression_program(source, centre, sds, None))
        program = regression_program(source, centre, sds, source.batch)
        draws = posterior_draws(source, centre + sds * mean, sds[:, None] * scale)
        standard = (draws - centre) / sds
        best = Best(mean, scale, standard.mean(0), np.cov(standard.T, bias=True))
    bounds = {level: bound_of(program, best, level) for level in problem.levels}
    return Prepared(program, centre, sds, best, bounds)


def best_normal(program: Callable[[], None]) -> tuple[Floats, Floats]:
    """Mean (D,) and scale (D, D) of the Normal whose evidence lower bound is stationary.

    By steps of the fixed point on mirrored points of a Sobol sequence, of exact scores.

    Raises
    ------
    RuntimeError
        The steps do not end.
    """
    target = LogDensity(program, random.key(0))
    data = target.bind()
    half = norm.ppf(qmc.Sobol(target.dim, seed=0).random(POINTS // 2))
    standard = np.concatenate([half, -half])
    scores = jax.jit(lambda theta: target.score(theta, data).score)
    mean, scale = np.zeros(target.dim), np.eye(target.dim)
    for _ in range(STEPS):
        found = np.asarray(scores(jnp.asarray(mean + standard @ scale.T))) @ scale
        slope = -np.linalg.solve(standard.T @ standard, standard.T @ found).T
        values, vectors = np.linalg.eigh(0.5 * (slope + slope.T))
        values = np.clip(values, 1.0 / CLIP, CLIP)
        pull = vectors @ ((vectors.T @ found.mean(0)) / values)
        pull = pull / max(1.0, float(np.linalg.norm(pull)))
        mean = mean + scale @ pull
        covariance = scale @ (vectors / values) @ vectors.T @ scale.T
        scale = np.linalg.cholesky(0.5 * (covariance + covariance.T))
        if np.abs(values - 1.0).max() < 1e-8 and np.abs(pull).max() < 1e-8:
            return mean, scale
    raise RuntimeError("Expected steps to the best Normal to end, found that they do not.")


def bound_of(program: Callable[[], None], best: Best, level: float) -> LeastSquares:
    """What least squares leaves, by noisy scores at the best Normal."""
    target = LogDensity(program, random.key(0))
    data, estimator = target.bind(), Levelled()
    mean, scale = jnp.asarray(best.mean), jnp.asarray(best.scale_tril)

    def pair(key: Array) -> tuple[Array, Array]:
        draw, begin = random.split(key)
        z = standard_normal(draw, (1, len(mean)))
        state = {**estimator.init(target, data, begin, 2), "level": jnp.asarray(level)}
        found, _ = estimator.estimate(target, state, points_of(mean, scale, z), data)
        return z[0], found.score @ scale

    keys = random.split(random.key(1), (PAIRS // BLOCK, BLOCK))
    z, score = jax.jit(partial(lax.map, jax.vmap(pair)))(keys)
    dim = len(best.mean)
    return LeastSquares.of(np.asarray(z).reshape(-1, dim), np.asarray(score).reshape(-1, 2, dim))


def points_of(mean: Array, scale: Array, standard: Array) -> Array:
    """Mirrored points (2 K, D) of standard normals (K, D)."""
    offset = standard @ scale.T
    return jnp.concatenate([mean + offset, mean - offset])


def engine_for(prepared: Prepared, method: str) -> nx.ProximalScoreVI:
    """``ProximalScoreVI`` with a full Normal, or with a closed form that lacks a part."""
    made = engine_of(ABLATIONS[method]) if method in ABLATIONS else nx.ProximalScoreVI
    guide = AutoMultivariateNormal(prepared.program)
    return made(prepared.program, guide, estimator=Levelled(), on_nonfinite="skip")


def first_states(
    engine: nx.ProximalScoreVI,
    prepared: Prepared,
    streams: Sequence[tuple[float, int]],
    total: int,
) -> EngineState:
    """States of all streams, stacked: the same keys, rows and starts for every method.

    ``streams`` are pairs of a level and a seed.
    """
    states = []
    begun: dict[int, EngineState] = {}
    for level, seed in streams:
        if seed not in begun:
            begun[seed] = engine.init(random.key(seed), start=start_of(seed, prepared.best))
        state = begun[seed]
        estimator = {**state.estimator, "level": jnp.asarray(level, jnp.result_type(float))}
        horizon = jnp.asarray(total, jnp.int32)
        states.append(state._replace(estimator=estimator, horizon=horizon))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def run(
    prepared: Prepared,
    method: str,
    streams: Sequence[tuple[float, int]],
    scores: int,
    looks: Sequence[int],
) -> tuple[Floats, Floats]:
    """Means (looks, rates, streams, D) and scales (looks, rates, streams, D, D) along a run.

    ``looks`` are numbers of scores, the last of them ``scores``. Methods without a rate have one.
    """
    rival = next((each for each in RIVALS if each.name == method), None)
    # Parameters and random numbers come from the library's engine for rivals as well.
    engine = engine_for(prepared, "" if rival else method)
    each = 2 * (rival.pairs if rival else 1)
    state = first_states(engine, prepared, streams, scores // each)
    if rival is None:
        advance, moments = _of_engine(engine)
    else:
        begin, advance, moments = _of_rival(engine, rival, scores // each)
        state = begin(state)
    found, done = [], 0
    for look in looks:
        state = advance(state, look // each - done)
        done = look // each
        found.append(jax.device_get(moments(state)))
    means, scales = (np.stack([np.asarray(f[k], np.float64) for f in found]) for k in range(2))
    return means, scales


def _of_engine(engine: nx.ProximalScoreVI) -> tuple[Callable[..., Any], Callable[..., Any]]:
    step = jax.vmap(lambda state: engine.update(state)[0])
    advance = jax.jit(lambda state, number: lax.fori_loop(0, number, lambda _, s: step(s), state))

    def moments(state: EngineState) -> Moments:
        found = jax.vmap(engine.density.moments)(state.algorithm.parameters)
        return Moments(found.mean[None], found.scale[None])

    return advance, jax.jit(moments)


def _of_rival(
    engine: nx.ProximalScoreVI, rival_class: type[Rival], total: int
) -> tuple[Callable[..., Any], ...]:
    target, data = engine.plan.target, engine._bound.data
    estimator, density = engine.plan.estimator, engine.density
    rival = rival_class(density, density.initial_parameters())
    rates = jnp.asarray(rival.rates)

    def begin(state: EngineState) -> tuple[Any, EngineState]:
        start = rival.start(density.moments(state.algorithm.parameters))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(rates), *x.shape)), start), state

    def step(carry: tuple[Any, EngineState]) -> tuple[Any, EngineState]:
        """Of one stream: one set of rows and noise for all rates."""
        fits, stream = carry
        mean, scale = jax.vmap(rival.moments)(fits)
        standard, theta, score = [], [], []
        key, state = stream.rng_key, stream.estimator
        for _ in range(rival.pairs):
            # As the closed form draws.
            key, draw = random.split(key)
            z = standard_normal(draw, (1, density.dim))
            points = jax.vmap(points_of, (0, 0, None))(mean, scale, z)

            def evaluate(theta: Array, state: Any = state) -> tuple[Array, Any]:
                found, following = estimator.estimate(target, state, theta, data)
                return found.score, following

            found, state = jax.vmap(evaluate, out_axes=(0, None))(points)
            standard.append(z)
            theta.append(points)
            score.append(found)
        now = [_plus_before_minus(each) for each in (theta, score)]
        z = jnp.concatenate(standard)

        def follow(fit: Any, theta: Array, score: Array, rate: Array) -> Any:
            iteration = stream.step.astype(rates.dtype)
            return rival.step(fit, z, theta, score, Now(iteration, jnp.asarray(total * 1.0), rate))

        fits = jax.vmap(follow)(fits, now[0], now[1], rates)
        return fits, stream._replace(rng_key=key, estimator=state, step=stream.step + 1)

    every = jax.vmap(step)
    advance = jax.jit(lambda state, number: lax.fori_loop(0, number, lambda _, s: every(s), state))

    def moments(state: tuple[Any, EngineState]) -> Moments:
        found = jax.vmap(jax.vmap(rival.moments))(state[0])
        return Moments(found.mean.swapaxes(0, 1), found.scale.swapaxes(0, 1))

    return jax.jit(jax.vmap(begin)), advance, jax.jit(moments)


def _plus_before_minus(pairs: Sequence[Array]) -> Array:
    """Pairs, each (R, 2, D), as (R, 2 K, D)."""
    stacked = jnp.stack(pairs, 2)
    return stacked.reshape(len(stacked), -1, stacked.shape[-1])


def rates_of(method: str) -> tuple[float, ...]:
    """What the oracle chooses from; nothing for the closed form."""
    return next((each.rates for each in RIVALS if each.name == method), ())
