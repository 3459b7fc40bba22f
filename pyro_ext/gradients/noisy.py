"""Scores with noise added, for studying how robust an engine is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import noisy
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.minibatch import default_estimator


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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.1}), estimator=px.Noisy(level=0.1), seed=0)
    >>> result = engine.run(200, y)
    >>> print(round(engine.get_samples()["mean"].mean().item()))
    2
    """

    def inner(self, target: LogDensity) -> GradientEstimator:
        return default_estimator(target) if self.estimator is None else self.estimator

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        return self.inner(target).init(target, data, generator)

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        found, state = self.inner(target).estimate(target, state, z, data, generator)
        score = found.score
        noise = target.noise_like(score, generator)
        # Whoever differentiates scores gets the derivative of the score itself: with noise that
        # follows the parameters the derivative would not be unbiased.
        size = score.detach().abs().amax(-1, keepdim=True)
        return found._replace(score=score + self.level * size * noise), state
