"""Minibatch scores with reduced variance: differences to one fixed position, such as a mode."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.gradients.batch_arguments import BatchArguments
from numpyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
)
from numpyro_ext.gradients.minibatch import Minibatch
from ppl_ext.gradients import reduced_variance


class ControlVariate(reduced_variance.ControlVariate, GradientEstimator):
    """Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> estimator = nx.ControlVariate({"mean": jnp.array(2.0)})  # such as a mode
    >>> kernel = nx.SGLD(model, 0.02, estimator=estimator)
    >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    _minibatches, _batch_arguments = Minibatch, BatchArguments

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the anchor (1, D) and its exact score."""
        self._check(target, data)
        minibatch = self._rows().init(target, data, rng_key, num_positions)
        values = {name: jnp.asarray(value)[None] for name, value in self.anchor.items()}
        anchor = target.unconstrain(values, data)
        exact = self._score_of_all_rows(target, anchor, data)
        return {"minibatch": minibatch, "anchor": anchor, "exact": exact}

    def check(self, state: EstimatorState) -> None:
        """See that the score at the anchor is finite."""
        self._check_finite(bool(np.isfinite(np.asarray(state["exact"].score)).all()))

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        # One anchor for all, unless every position has rows of its own to compare at.
        anchor = jnp.broadcast_to(state["anchor"], z.shape) if self.own_rows else state["anchor"]
        return self._estimated(target, state, z, anchor, data)
