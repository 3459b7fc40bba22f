"""The synthetic targets as one NumPyro program, and every method's fit of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoContinuous, AutoMultivariateNormal
from numpyro.optim import Adam

import numpyro_ext as nx
from benchmarks.synthetic.experiments import Case, Method, engine_options, iterations_to_look_at
from benchmarks.synthetic.fits import Diverged, Fitter, Look, show
from benchmarks.synthetic.targets import Mixture
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.mixture import AutoGaussianMixture
from numpyro_ext.score.fisher import FisherVI
from numpyro_ext.score.matching import GSM, BaM

BACKEND = "NumPyro"
ENGINES: dict[str, Any] = {
    "proximal": nx.ProximalScoreVI,
    "gsm": GSM,
    "bam": BaM,
    "fisher": FisherVI,
}


def configure(float64: bool) -> None:
    """Set the precision of everything that follows."""
    jax.config.update("jax_enable_x64", float64)


def is_float64() -> bool:
    """Whether results have double precision."""
    return jnp.result_type(float) == jnp.float64


def white_noise(theta: Array, seed: Array) -> Array:
    """Standard normal numbers (D,) that are a function of theta (D,) and of a seed.

    The bits of theta make the key, so that numbers at any two points are as good as independent.
    A program with such noise is still a function of its latents, which lets every method take it:
    the host's SVI as it is, and engines that evaluate the program under fixed keys.
    """
    words = lax.bitcast_convert_type(lax.stop_gradient(theta), jnp.uint32).ravel()
    places = jnp.arange(1, words.size + 1, dtype=jnp.uint32)
    key = random.key(seed)
    # Two sums of 32 mixed bits each: points that share one of them by chance differ in the other.
    for constant in (0x9E3779B9, 0x85EBCA6B):
        key = random.fold_in(key, _mixed(words + places * jnp.uint32(constant)).sum(dtype="uint32"))
    return random.normal(key, theta.shape, theta.dtype)


def _mixed(words: Array) -> Array:
    """Words of 32 bits, each bit of which depends on all bits of the word given (murmur3)."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def score(theta: Array, log_factors: Array, means: Array, whitening: Array) -> Array:
    """Score of a mixture of Normals at theta (D,)."""
    standard = jnp.einsum("kij,kj->ki", whitening, theta - means)
    shares = jax.nn.softmax(log_factors - 0.5 * jnp.square(standard).sum(-1))
    return -jnp.einsum("k,kij,ki->j", shares, whitening, standard)


def program(
    log_factors: Array,
    means: Array,
    whitening: Array,
    level: Array | None = None,
    seed: Array | None = None,
) -> None:
    """A mixture of Normals as a program: one latent vector under a flat prior, and a factor.

    Parameters
    ----------
    log_factors : array (K,)
        Logarithms of weight / sqrt(det(2 pi covariance)).
    means : array (K, D)
    whitening : array (K, D, D)
        Inverses of the covariances' Cholesky factors.
    level : array, optional
        Noise level beta of the paper's equation 19: the score s of the program becomes
        s + beta |s|_inf N(0, I), whoever differentiates it. Values and second derivatives stay
        exact.
    seed : array, optional
        Seed of the noise.
    """
    flat = dist.Normal(0.0, 1.0).expand([means.shape[1]]).to_event(1).mask(False)
    theta = numpyro.sample("theta", flat)
    standard = jnp.einsum("kij,kj->ki", whitening, theta - means)
    value = logsumexp(log_factors - 0.5 * jnp.square(standard).sum(-1))
    if level is not None:
        assert seed is not None
        held = lax.stop_gradient(theta)
        exact = score(held, log_factors, means, whitening)
        noise = level * jnp.abs(exact).max() * white_noise(held, seed)
        # Zero in value, with the noise as its gradient.
        value += noise @ (theta - held)
    numpyro.factor("target", value)


def arguments(target: Mixture, noise: float | None, seed: int) -> tuple[Array, ...]:
    """Arguments of :func:`program` for a target."""
    arrays = (target.log_factors, target.means, target.whitening)
    given = tuple(jnp.asarray(array, jnp.result_type(float)) for array in arrays)
    if noise is None:
        return given
    return (*given, jnp.asarray(noise, jnp.result_type(float)), jnp.asarray(seed, jnp.uint32))


def to_mixture(params: Mapping[str, Array]) -> Mixture:
    """The density of a guide with these parameters (in the host's form)."""
    means = np.asarray(params["auto_loc"], np.float64)
    scale_trils = np.asarray(params["auto_scale_tril"], np.float64)
    if means.ndim == 1:
        return Mixture(np.ones(1), means[None], scale_trils[None])
    logits = np.asarray(params["auto_logits"], np.float64)
    return Mixture(np.exp(logits - np.logaddexp.reduce(logits)), means, scale_trils)


class EngineFitter:
    """A method of this project on cases of one shape.

    What is compiled at the first fit serves all seeds and noise levels.

    Parameters
    ----------
    case : Case
    method : Method
    rate : float or None
        First learning rate of Adam, which falls to 0 along a cosine; None for the engine's own
        optimizer.
    """

    def __init__(self, case: Case, method: Method, rate: float | None) -> None:
        # The guide looks its location up when it is set up, which every fit does again.
        self._location: dict[str, Array] = {}
        self.guide = make_guide(case, method, self._location)
        optim: Any = None
        if rate is not None:
            optim = make_adam(case, rate, dict(method.options)["num_samples"])
        elif method.constant_rate is not None:
            optim = Adam(method.constant_rate)
        options = engine_options(method, optim)
        self.engine = ENGINES[method.kind](program, self.guide, **options)
        self._advance = repeated(
            lambda state, args: self.engine.update(state, *args)[0], self.engine.get_params
        )

    def start(self, args: tuple[Array, ...], case: Case, seed: int) -> EngineState:
        """State before the first step."""
        self._location["theta"] = jnp.asarray(case.start(seed), jnp.result_type(float))
        return self.engine.init(random.key(seed), *args)

    def fit(self, case: Case, seed: int, look: Look) -> None:
        """See :class:`~benchmarks.synthetic.fits.Fitter`."""
        args = arguments(case.target(seed), case.noise, seed)
        state = self.start(args, case, seed)
        samples = self.engine.plan.num_samples
        points = iterations_to_look_at(case.budget, samples, case.points)
        # Schedules over the run need its end; as an array it compiles once for all budgets.
        state = state._replace(horizon=jnp.asarray(points[-1], jnp.int32))
        show(look, 0, to_mixture(self.engine.get_params(state)))
        done = 0
        for iteration in points:
            state, params = self._advance(state, args, iteration - done)
            done = iteration
            if int(state.skipped):
                raise Diverged(f"a step was not finite before score evaluation {done * samples}")
            show(look, done * samples, to_mixture(params))


class HostFitter:
    """ADVI: NumPyro's own SVI with ``Trace_ELBO``, one draw a step, on cases of one shape."""

    def __init__(self, case: Case, method: Method, rate: float) -> None:
        # An engine that takes no step, for the start that the other methods have.
        self._start = EngineFitter(case, dataclasses.replace(method, kind="proximal"), None)
        self._svi = SVI(program, self._start.guide, make_adam(case, rate, 1), Trace_ELBO())
        self._advance = repeated(
            lambda state, args: self._svi.update(state, *args)[0], self._svi.get_params
        )

    def fit(self, case: Case, seed: int, look: Look) -> None:
        """See :class:`~benchmarks.synthetic.fits.Fitter`."""
        args = arguments(case.target(seed), case.noise, seed)
        params = self._start.engine.get_params(self._start.start(args, case, seed))
        state = self._svi.init(random.key(seed), *args, init_params=params)
        show(look, 0, to_mixture(params))
        done = 0
        for iteration in iterations_to_look_at(case.budget, 1, case.points):
            state, params = self._advance(state, args, iteration - done)
            done = iteration
            show(look, done, to_mixture(params))


def fitter(case: Case, method: Method, rate: float | None) -> Fitter:
    """The method on cases of this shape; ``rate`` is for methods with a tuned one."""
    return _fitter(case.shape(), method, rate)


# Enough for all methods of a case; compiled programs take memory.
@functools.lru_cache(maxsize=24)
def _fitter(shape: Case, method: Method, rate: float | None) -> Fitter:
    if method.kind == "advi":
        assert rate is not None
        return HostFitter(shape, method, rate)
    return EngineFitter(shape, method, rate)


def make_guide(case: Case, method: Method, location: dict[str, Array]) -> AutoContinuous:
    """The case's guide, or the Normal one for a method that knows no other."""
    options = {"init_loc_fn": init_to_value(values=location), "init_scale": case.start_scale}
    if case.guide_order == 1 or method.normal_only:
        return AutoMultivariateNormal(program, **options)
    return AutoGaussianMixture(program, case.guide_order, **options)


def make_adam(case: Case, rate: float, samples: int) -> Adam:
    """Adam whose rate falls from ``rate`` to 0 along a cosine over the run."""
    return Adam(optax.cosine_decay_schedule(rate, max(1, case.budget // samples)))


def repeated(
    step: Callable[[Any, tuple[Array, ...]], Any], get_params: Callable[[Any], dict[str, Array]]
) -> Callable[..., tuple[Any, dict[str, Array]]]:
    """A compiled function of state, arguments and count that takes the step ``count`` times.

    It returns the state and the parameters in it.
    """

    def advance(state: Any, args: tuple[Array, ...], count: int) -> tuple[Any, dict[str, Array]]:
        state = lax.fori_loop(0, count, lambda _, now: step(now, args), state)
        return state, get_params(state)

    return jax.jit(advance)
