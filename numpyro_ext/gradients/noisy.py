"""Scores with noise added, for studying how robust an engine is."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.draws import standard_normal
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.minibatch import default_estimator
from ppl_ext.gradients import noisy


class Noisy(noisy.Noisy, GradientEstimator):
    """Another estimator's scores with normal noise added, for studying robustness.

    The score s of each particle becomes ``s + level * max|s| * n`` with n standard normal in
    every coordinate, drawn anew for every particle and step: unbiased, and noisier far from the
    mode. Equation 19 of M. Kim, "Large-scale Score-based Variational Posterior Inference for
    Bayesian Deep Neural Networks", https://arxiv.org/abs/2602.05873, where ``level`` is beta. The
    parts of the log density stay as they are.

    Parameters
    ----------
    estimator : GradientEstimator, optional
        Where the scores come from. Default: the engines' default, minibatches when the model
        subsamples a plate itself, else all rows of the arguments.
    level : float
        Noise level; 0 adds none.

    Raises
    ------
    ArgumentError
        The level is negative, or ``estimator`` is something else.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> noisy = nx.Noisy(level=0.1)
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.1), num_particles=20, estimator=noisy)
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> print(f"{engine.get_samples(result.state)['mean'].mean():.0f}")
    2
    """

    def inner(self, target: LogDensity) -> GradientEstimator:
        return default_estimator(target) if self.estimator is None else self.estimator

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, and the state of the estimator that the scores come from."""
        rng_key, inner_key = random.split(rng_key)
        inner = self.inner(target).init(target, data, inner_key, num_positions)
        return {"rng_key": rng_key, "inner": inner}

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        found, inner = self.inner(target).estimate(target, state["inner"], z, data)
        rng_key, noise_key = random.split(state["rng_key"])
        noise = standard_normal(noise_key, found.score.shape, found.score.dtype)
        # Whoever differentiates scores gets the derivative of the score itself: with noise that
        # follows the parameters the derivative would not be unbiased.
        size = lax.stop_gradient(jnp.abs(found.score).max(-1, keepdims=True))
        score = found.score + self.level * size * noise
        return found._replace(score=score), {"rng_key": rng_key, "inner": inner}
