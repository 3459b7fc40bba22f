"""Stochastic gradient MCMC in both packages behind one face, and what its chains must look like.

The stationary distribution of each dynamics on a Normal target is that of a linear recursion, so
it is known for every step size and every variance of the scores' noise, not only in the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov

from tests.backends import backend_of, from_zoo

Array = NDArray[np.float64]
Draws = dict[str, Array]


@dataclass
class Run:
    """Draws (C, S, ...) by site, what was recorded of each (C, S), and the host's object."""

    draws: Draws
    figures: dict[str, Array]
    mcmc: Any


class Chains:
    """Models of these tests for either host."""

    def __init__(self, package: str) -> None:
        self.backend = backend_of(package)
        self.public, self.models = self.backend.public, self.backend.models

    def normal(self, mean: Array, std: Array) -> Any:
        host, dist, array = self.backend.host, self.backend.dist, self.backend.array

        def model() -> None:
            host.sample("z", dist.Normal(array(mean), array(std)).to_event(1))

        return model

    def two_modes(self, distance: float, weight: float = 0.5) -> Any:
        """Of unit variance, at plus the distance with this weight and at minus the distance."""
        host, dist, xp = self.backend.host, self.backend.dist, self.backend.xp
        odds = float(np.log(weight / (1.0 - weight)))

        def model() -> None:
            z = host.sample("z", dist.Normal(0.0, 100.0).mask(False))
            modes = xp.logaddexp(odds - 0.5 * (z - distance) ** 2, -0.5 * (z + distance) ** 2)
            host.factor("modes", modes)

        return model


class PyroChains(Chains):
    """Kernels of ``pyro_ext`` with its vectorised MCMC."""

    def noisy(self, variance: float) -> Any:
        """Exact scores with Normal noise of this variance."""
        import torch

        from pyro_ext import Full

        class Estimator(Full):
            def estimate(self, target: Any, state: Any, z: Any, data: Any, generator: Any) -> Any:
                found, state = super().estimate(target, state, z, data, generator)
                noise = torch.randn(z.shape, generator=generator, dtype=z.dtype)
                return found._replace(score=found.score + variance**0.5 * noise), state

        return Estimator()

    def noisy_energies(self, variance: float) -> Any:
        """Exact scores, and log likelihoods with Normal noise of this variance."""
        import torch

        from pyro_ext import Full

        class Estimator(Full):
            def estimate(self, target: Any, state: Any, z: Any, data: Any, generator: Any) -> Any:
                found, state = super().estimate(target, state, z, data, generator)
                noise = torch.randn(len(z), generator=generator, dtype=z.dtype)
                value = found.log_likelihood + variance**0.5 * noise
                return found._replace(log_likelihood=value), state

        return Estimator()

    def broken(self) -> Any:
        """Scores that are NaN for the second of two chains at every third step."""
        import torch

        from pyro_ext import Full

        class Estimator(Full):
            def init(self, target: Any, data: Any, generator: Any) -> Any:
                return {"step": 0}

            def estimate(self, target: Any, state: Any, z: Any, data: Any, generator: Any) -> Any:
                found, _ = super().estimate(target, {}, z, data, generator)
                score = found.score.clone()
                if state["step"] % 3 == 2:
                    score[1] = torch.nan
                return found._replace(score=score), {"step": state["step"] + 1}

        return Estimator()

    def sample(
        self,
        kernel: Any,
        args: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        *,
        num_samples: int,
        warmup: int = 0,
        num_chains: int = 1,
        seed: int = 0,
        initial: Any = None,
        thinning: int = 1,
    ) -> Run:
        import pyro
        import torch

        pyro.set_rng_seed(seed)
        start = None if initial is None else {k: torch.as_tensor(v) for k, v in initial.items()}
        mcmc = self.public.MCMC(
            kernel,
            num_samples,
            warmup,
            start,
            num_chains,
            thinning=thinning,
            disable_progbar=True,
        )
        mcmc.run(*args, **(options or {}))
        draws = {
            name: np.asarray(value, np.float64)
            for name, value in mcmc.get_samples(group_by_chain=True).items()
        }
        diverging = np.zeros((num_chains, num_samples), bool)
        figures: dict[str, Any] = {"diverging": diverging}
        for chain, found in enumerate(mcmc._diagnostics):
            diverging[chain, found["divergences"]] = True
            figures.setdefault("cycle", []).append(found["cycle"])
        return Run(draws, {name: np.asarray(value) for name, value in figures.items()}, mcmc)

    def effective_sample_size(self, draws: Array) -> Array:
        import torch
        from pyro.ops.stats import effective_sample_size

        return np.asarray(effective_sample_size(torch.as_tensor(draws)))


class NumPyroChains(Chains):
    """Kernels of ``numpyro_ext`` with NumPyro's MCMC."""

    def noisy(self, variance: float) -> Any:
        """Exact scores with Normal noise of this variance."""
        from jax import random

        from numpyro_ext import Full

        class Estimator(Full):
            def init(self, target: Any, data: Any, rng_key: Any, num_positions: int) -> Any:
                return {"rng_key": rng_key}

            def estimate(self, target: Any, state: Any, z: Any, data: Any) -> Any:
                found, _ = super().estimate(target, {}, z, data)
                rng_key, key = random.split(state["rng_key"])
                noise = variance**0.5 * random.normal(key, z.shape, z.dtype)
                return found._replace(score=found.score + noise), {"rng_key": rng_key}

        return Estimator()

    def noisy_energies(self, variance: float) -> Any:
        """Exact scores, and log likelihoods with Normal noise of this variance."""
        from jax import random

        from numpyro_ext import Full

        class Estimator(Full):
            def init(self, target: Any, data: Any, rng_key: Any, num_positions: int) -> Any:
                return {"rng_key": rng_key}

            def estimate(self, target: Any, state: Any, z: Any, data: Any) -> Any:
                found, _ = super().estimate(target, {}, z, data)
                rng_key, key = random.split(state["rng_key"])
                value = found.log_likelihood
                value = value + variance**0.5 * random.normal(key, value.shape, value.dtype)
                return found._replace(log_likelihood=value), {"rng_key": rng_key}

        return Estimator()

    def broken(self) -> Any:
        """Scores that are NaN for the second of two chains at every third step."""
        import jax.numpy as jnp

        from numpyro_ext import Full

        class Estimator(Full):
            def init(self, target: Any, data: Any, rng_key: Any, num_positions: int) -> Any:
                return {"step": jnp.asarray(0)}

            def estimate(self, target: Any, state: Any, z: Any, data: Any) -> Any:
                found, _ = super().estimate(target, {}, z, data)
                bad = (state["step"] % 3 == 2) & (jnp.arange(len(z)) == 1)
                score = jnp.where(bad[:, None], jnp.nan, found.score)
                return found._replace(score=score), {"step": state["step"] + 1}

        return Estimator()

    def sample(
        self,
        kernel: Any,
        args: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        *,
        num_samples: int,
        warmup: int = 0,
        num_chains: int = 1,
        seed: int = 0,
        initial: Any = None,
        thinning: int = 1,
    ) -> Run:
        import jax
        from numpyro.infer import MCMC

        mcmc = MCMC(
            kernel,
            num_warmup=warmup,
            num_samples=num_samples * thinning,
            num_chains=num_chains,
            thinning=thinning,
            chain_method="vectorized",
            progress_bar=False,
        )
        if initial is not None and num_chains == 1:
            initial = {name: value[0] for name, value in initial.items()}
        mcmc.run(jax.random.key(seed), *args, init_params=initial, **(options or {}))
        # What the compiled program has to say.
        jax.effects_barrier()
        draws = mcmc.get_samples(group_by_chain=True)
        figures = mcmc.get_extra_fields(group_by_chain=True)
        return Run(
            {name: np.asarray(value, np.float64) for name, value in draws.items()},
            {name: np.asarray(value) for name, value in figures.items()},
            mcmc,
        )

    def effective_sample_size(self, draws: Array) -> Array:
        from numpyro.diagnostics import effective_sample_size

        return np.asarray(effective_sample_size(draws))


def chains_of(package: str) -> Any:
    """Kernels of a package."""
    return (PyroChains if package == "pyro" else NumPyroChains)(package)


def arguments(found: Any, name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model of the zoo, its arguments and its options."""
    return from_zoo(found.backend, name)


def require_moments(found: Any, draws: Array, mean: Any, variance: Any) -> None:
    """See that draws (C, S, ...) have these moments, within four standard errors.

    The standard errors are those of as many independent draws as the chains are worth, which for
    the variance is taken from the squares.
    """
    flat = draws.reshape(draws.shape[0] * draws.shape[1], -1)
    shape = (*draws.shape[:2], flat.shape[1])
    centred = (flat - np.ravel(mean)).reshape(shape)
    size = found.effective_sample_size(centred)
    assert np.all(size > 200), size
    error = np.sqrt(np.ravel(variance) / size)
    assert np.all(np.abs(centred.mean((0, 1))) < 4.0 * error), (centred.mean((0, 1)), error)
    squares = centred**2
    size = found.effective_sample_size(squares)
    assert np.all(size > 200), size
    error = np.sqrt(squares.var((0, 1)) / size)
    difference = squares.mean((0, 1)) - np.ravel(variance)
    assert np.all(np.abs(difference) < 4.0 * error), (squares.mean((0, 1)), variance, error)


def langevin_variance(
    variance: Array, step_size: float, noise: float = 0.0, preconditioner: Any = 1.0
) -> Array:
    """Stationary variance of z' = z - α G (z - m) / v + α G e + sqrt(2 α G) ε.

    ``noise`` is the variance of e.
    """
    size = step_size * np.asarray(preconditioner)
    kept = 1.0 - size / variance
    return np.asarray((2.0 * size + size**2 * noise) / (1.0 - kept**2))


def hamiltonian_covariance(
    variance: float, step_size: float, friction: float, mass: float, noise: float
) -> Array:
    """Stationary covariance of position and momentum on a Normal target of this variance.

    By composing the matrices of the four parts of a step and solving for the fixed point.
    """
    decay = np.exp(-friction * step_size)
    kick = np.array([[1.0, 0.0], [-step_size / variance, 1.0]])
    drift = np.array([[1.0, 0.5 * step_size / mass], [0.0, 1.0]])
    forget = np.diag([1.0, decay])
    step = drift @ forget @ drift @ kick
    from_score = drift @ forget @ drift @ np.array([0.0, step_size])
    from_heat = drift @ np.array([0.0, np.sqrt(mass * (1.0 - decay**2))])
    added = noise * np.outer(from_score, from_score) + np.outer(from_heat, from_heat)
    return np.asarray(solve_discrete_lyapunov(step, added))
