"""SVGD on a target by either package, and NUTS for moments that have no closed form."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import falling_adam
from benchmarks.kernels.targets import Target

Floats = NDArray[np.float64]

PARTICLES, RATE = 100, 0.1
CHAINS, DRAWS, WARMUP = 4, 4000, 2000

#: Heading -> a function of a package's `kernels` module.
KERNELS: dict[str, Any] = {
    "default": lambda k: k.default_kernel(),
    "IMQ, variance + linear": lambda k: k.mixture(
        [k.IMQ("dimension", metric="variance"), k.Linear()]
    ),
    "RBF, median": lambda k: k.RBF(),
    "RBF, NumPyro's rule": lambda k: k.RBF("numpyro"),
    "RBF, Pyro's rule": lambda k: k.RBF("pyro"),
    "RBF, median + linear": lambda k: k.mixture([k.RBF(), k.Linear()]),
    "IMQ, variance": lambda k: k.IMQ("dimension", metric="variance"),
    "RBF, variance + linear": lambda k: k.mixture([k.RBF("dimension", "variance"), k.Linear()]),
    "IMQ, covariance + linear": lambda k: k.mixture(
        [k.IMQ("dimension", metric="covariance"), k.Linear("covariance")]
    ),
}


def fit(target: Target, backend: str, kernel: str, seed: int) -> Floats:
    """Particles (P, D) of a run with Adam, whose rate falls along a cosine."""
    package: Any = importlib.import_module(f"{backend}_ext")
    optim = falling_adam(backend, RATE, target.steps)
    made = KERNELS[kernel](package.kernels)
    if backend == "pyro":
        engine = package.SVGD(target.program("pyro"), optim, made, PARTICLES, seed=seed)
        engine.run(target.steps, progress_bar=False)
        particles: Floats = engine.get_samples()["z"].double().numpy()
        return particles
    import jax

    engine = package.SVGD(target.program("numpyro"), optim, made, PARTICLES)
    state = engine.run(jax.random.key(seed), target.steps, progress_bar=False).state
    return np.asarray(engine.get_samples(state)["z"], np.float64)


def reference(target: Target) -> tuple[Floats, Floats, dict[str, float]]:
    """Mean and covariance of the statistic, and what vouches for them.

    Targets without a closed form are sampled by NumPyro's NUTS: the greatest R-hat and the least
    effective sample size over what is judged.
    """
    if target.moments is not None:
        return *target.moments, {}
    import jax
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(target.program("numpyro"), target_accept_prob=0.95),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.key(1))
    draws = np.asarray(sampler.get_samples(group_by_chain=True)["z"], np.float64)
    judged = target.statistic(draws)
    flat = judged.reshape(-1, judged.shape[-1])
    figures = {
        "R-hat": float(split_gelman_rubin(judged).max()),
        "effective draws": float(effective_sample_size(judged).min()),
    }
    return flat.mean(axis=0), np.cov(flat.T), figures


def judge(target: Target, particles: Floats, mean: Floats, covariance: Floats) -> dict[str, float]:
    """Errors of the particles' moments: of the mean in standard deviations, of variances as ratios.

    The error of the covariance is relative, in the Frobenius norm.
    """
    values = target.statistic(particles)
    deviations = np.sqrt(np.diag(covariance))
    ratios = values.var(axis=0) / deviations**2
    found = np.cov(values.T, bias=True)
    error = np.linalg.norm(found - covariance) / np.linalg.norm(covariance)
    return {
        "mean error": float(np.abs((values.mean(axis=0) - mean) / deviations).max()),
        "least variance ratio": float(ratios.min()),
        "greatest variance ratio": float(ratios.max()),
        "covariance error": float(error),
    }
