"""Fisher divergence by reparameterised draws (``FisherVI``).

See :mod:`ppl_ext.score_matching.fisher_divergence`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.descent import descend, start_optimizer
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from ppl_ext.score_matching.fisher_divergence import FisherShell


def fisher_gradient(
    density: FlatDensity,
    parameters: Parameters,
    draw: Callable[[Parameters], Float[Array, "S D"]],
    score: Callable[[Float[Array, "S D"]], tuple[Float[Array, "S D"], Any]],
    norm: str,
) -> tuple[Float[Array, ""], Parameters, Any]:
    """Mean over draws of |grad log q - s|^2, its gradient in the guide's parameters, and the rest.

    ``draw`` makes draws (S, D) from parameters, differentiable, with its noise fixed. ``score``
    gives the target's scores (S, D) there, differentiable once more, and anything else, which is
    the rest. ``norm`` is one of :data:`~ppl_ext.score_matching.fisher_divergence.NORMS`.
    """

    def objective(parameters: Parameters) -> tuple[Array, Any]:
        theta = draw(parameters)
        target, other = score(theta)
        residual = density.score(parameters, theta) - target
        if norm == "covariance":
            scale = density.moments(parameters).scale
            # |r|^2 in the norm of Cov(q) = L L' is |L' r|^2; of rows r' that is r' L.
            residual = residual * scale if scale.ndim == 1 else residual @ scale
        return jnp.square(residual).sum(-1).mean(), other

    (value, other), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
    return value, gradient, other


class FisherVI(FisherShell, GuideEngine):
    """Score matching over the guide's own draws, differentiated through the draws.

    Each step takes one optimizer step down

        E_q |grad log q - s|^2

    where s is the target's score, in the Euclidean norm or in that of the guide's covariance. The
    gradient is that of the Monte Carlo estimate with the noise of the draws held fixed, through
    the draws, the score of the guide, the score of the model and, for ``norm="covariance"``, the
    norm.

    It depends on its start. The norm of Cov(q) does not see the directions in which the guide is
    narrow: while the mean is far, a guide that shrinks everywhere lowers the objective, and then
    stays. Start at least as wide as the posterior (``init_scale=1.0``; the host's default is 0.1)
    and not far from it.

    Parameters
    ----------
    model : callable
        The host's model, used as it is; it is differentiated twice.
    guide : AutoContinuous
        An autoguide of the model that has a log density over the flat unconstrained vector and
        reparameterised draws, or the class, which is then called with the model. In Pyro the
        guide object holds the fit at any time and starts from the values that it has.
    optim : optimizer or mapping, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's; or a mapping that
        gives sites optimizers of their own, see
        :class:`~ppl_ext.score_matching.options.GradientSteps`. Default: Adam with a learning rate
        that falls from 0.01 to 0 along a cosine over the run.
    norm : {"euclidean", "covariance"}
        "euclidean" is |r|^2 (Fisher). "covariance" is r^T Cov(q) r (Score), which does not depend
        on the units of the latents; for guides with a covariance in closed form: Normals and
        mixtures of them.
    num_samples : int
        Draws S per step.
    max_dimension : int
        Models with more latent dimensions are refused, because of the second derivatives. Raise
        it to fit them all the same.
    total_steps : int, optional
        Length of the run that the default optimizer's rate falls over, when steps are taken one
        by one; ``run`` sets its own.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the objective at the draws; ``info`` holds the means of log p (tempered as the
    target is, from the minibatch) and of log q there. A step takes
    about as long as two of other engines: a product with the Hessian costs as much as two
    gradients, one of which is the score itself.

    Scores enter squared, so that with minibatches the objective holds the variance of the score
    besides, and the fit is drawn to where that is small: unlike ``ProximalScoreVI`` this engine
    is biased by noise that depends on the parameters. Noise of ``Noisy`` scores is not
    differentiated and biases only ``norm="covariance"``.

    Draws of a guide whose posterior is a mixture choose a component, and a choice has no
    derivative: with a posterior that offers a stand-in, such as the straight-through gradient of
    ``AutoGaussianMixture``, the gradient in the mixture's weights is biased as the stand-in is.

    References
    ----------
    A. Hyvarinen, "Estimation of non-normalized statistical models by score matching", JMLR 2005,
    https://jmlr.org/papers/v6/hyvarinen05a.html; A. Barp et al., "Minimum Stein discrepancy
    estimators", NeurIPS 2019, https://arxiv.org/abs/1906.08283.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, its draws cannot be reparameterised, or it has no
        covariance in closed form for ``norm="covariance"``; the model has more than
        ``max_dimension`` dimensions; or an option is out of range.

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
    >>> guide = numpyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> engine = nx.FisherVI(model, guide, numpyro.optim.Adam(0.05))
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> print(f"{guide.median(result.params)['mean']:.0f}")
    2
    """

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> GuidePlan:
        # Before the guide is set up, which may itself need room for a large covariance.
        self._check_dimension(target.dim)
        plan = super()._plan(target, rng_key, data)
        density = plan.density

        def check(parameters: Parameters) -> None:
            self._check_guide(density, parameters, density._posterior(parameters).has_rsample)

        # What is checked are kinds, not values.
        jax.eval_shape(check, density.abstract_parameters())
        self._warn_unless_exact(plan)
        return plan

    def _init_algorithm(self, plan: GuidePlan, start: Parameters, data: Data) -> GuideState:
        return GuideState(start, start_optimizer(plan, start))

    def _step(
        self, plan: GuidePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        target, density = plan.target, plan.density
        rng_key, sample_key = random.split(state.rng_key)

        def draw(parameters: Parameters) -> Array:
            return density._posterior(parameters).sample(sample_key, (plan.num_samples,))

        def score(theta: Array) -> tuple[Array, Any]:
            found, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
            return found.score, (theta, found, estimator)

        value, gradient, (theta, found, estimator) = fisher_gradient(
            density, state.algorithm.parameters, draw, score, self.norm
        )
        log_q = density.log_prob(state.algorithm.parameters, theta)
        log_p = found.log_density(target.likelihood_temperature)
        parameters, optimizer = descend(self, plan, state, lambda parameters: (value, gradient))
        state = state._replace(
            algorithm=GuideState(parameters, optimizer), estimator=estimator, rng_key=rng_key
        )
        return state, value, {"log_p": log_p.mean(), "log_q": log_q.mean()}
