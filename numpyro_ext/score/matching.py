"""``GSM`` and ``BaM``: closed-form updates of a full Normal guide from exact scores.

See :mod:`ppl_ext.score_matching.matching`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float
from numpyro.infer.autoguide import AutoMultivariateNormal

from numpyro_ext.density import Data
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients import Full
from numpyro_ext.guides.flat_density import Moments, Parameters
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan
from numpyro_ext.score.overflow import judged
from ppl_ext.score_matching import matching as shared
from ppl_ext.score_matching.regression.overflow import LENIENCE


class MatchingState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    score_square : array ()
        Mean square of the scores seen, whitened by the guide; 0 before there are any.
    """

    parameters: Parameters
    score_square: Float[Array, ""]


def first_state(engine: Any, plan: GuidePlan, start: Parameters, data: Data) -> MatchingState:
    """The state before the first step."""
    return MatchingState(start, jnp.zeros((), jnp.result_type(*start.values())))


def step(
    engine: Any, plan: GuidePlan, state: EngineState, data: Data
) -> tuple[EngineState, Array, dict[str, Array]]:
    """One step: the next state, the loss and further figures."""
    target, density, (parameters, seen) = plan.target, plan.density, state.algorithm
    rng_key, sample_key = random.split(state.rng_key)
    theta = density.sample(parameters, sample_key, plan.num_samples)
    log_q, present = density.log_prob_and_score(parameters, theta)
    score, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
    loss = jnp.square(present - score.score).sum(-1).mean()
    log_p = score.log_density(target.likelihood_temperature)
    moments = density.moments(parameters)
    whitened = score.score @ moments.scale
    # Of scores in units of the guide, which does not depend on how coordinates are scaled.
    latest = jnp.square(whitened).sum(-1).mean().astype(seen.dtype)
    verdict = judged(seen, latest)
    after = jnp.where(seen > 0.0, seen + shared.RECENT * (latest - seen), latest)
    before = seen
    seen = verdict.choose(lambda: LENIENCE * before, lambda: latest, lambda: after)
    moments = engine._matched(moments, theta, score.score, state.step)
    proposed = density.set_moments(parameters, moments)
    sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(proposed)]).all()
    sound &= ~verdict.wild
    parameters = jax.tree.map(lambda new, old: jnp.where(sound, new, old), proposed, parameters)
    # Scores that are not finite make the loss so, which is the engine's business.
    rejected = jnp.where(jnp.isfinite(loss) & ~sound, 1.0, 0.0)
    state = state._replace(
        algorithm=MatchingState(parameters, seen), estimator=estimator, rng_key=rng_key
    )
    info = {
        "log_p": log_p.mean(),
        "log_q": log_q.mean(),
        "pull": shared.pull(whitened),
        "rejected": rejected,
    }
    return state, loss, info


def gsm_update(moments: Moments, theta: Float[Array, "S D"], score: Float[Array, "S D"]) -> Moments:
    """Moments of the next guide, from the scores of the target at draws from the present one.

    With NaN for a scale when the covariance is not positive definite. That cannot happen in exact
    arithmetic; in floating point the covariance is a difference.
    """
    mean, covariance = shared.gsm_moments(*moments, theta, score)
    # As little as keeps a covariance that is singular to rounding positive definite, in units of
    # each coordinate: scales may differ by orders of magnitude.
    scale = jnp.sqrt(jnp.diagonal(covariance))
    jitter = jnp.finfo(mean.dtype).eps * jnp.eye(len(mean), dtype=mean.dtype)
    factor = jnp.linalg.cholesky(covariance / scale / scale[:, None] + jitter)
    return Moments(mean, scale[:, None] * factor)


class GSM(shared.MatchingShell, GuideEngine):
    """Gaussian score matching: closed-form updates of a full Normal guide.

    Each step draws from the guide q_t and moves it to the Normal q that is nearest to q_t in
    KL(q_t, q) among those with grad log q = s at a draw, where s is the target's score; over the
    draws of a step the updates of mean and covariance are averaged. There is no learning rate.

    Exact for Normal posteriors. For others it does not settle: as the fit goes on matching the
    latest draws, it keeps moving around the best Normal. It needs exact scores: noise, as of
    minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`): on a correlated Normal in five dimensions
    nine tenths of the covariance are lost to ``Noisy`` scores of level 1.

    Far from the posterior all scores are large and nearly equal. They shrink the covariance along
    them and thereby the steps: on a Normal in three dimensions with correlations of 0.9, from 20
    standard deviations away, 6 to 17 are left after 1,000 steps. Start near.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``, which is
        then ``engine.guide``.
    num_samples : int
        Draws S per step. The paper finds little gain beyond 2.
    **options
        Options of every engine but ``init_strategy``; see :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, ``pull``, the square of the length of the
    target's mean score in units of the guide, and ``rejected``, which is 1 for a step
    whose covariance was not positive definite, so that the guide stayed as it was.

    References
    ----------
    C. Modi et al., "Variational inference with Gaussian score matching", NeurIPS 2023,
    https://arxiv.org/abs/2307.07849.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.

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
    >>> engine = nx.GSM(model)
    >>> result = engine.run(jax.random.key(0), 50, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{engine.guide.median(result.params)['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    _normal_guide, _exact = AutoMultivariateNormal, Full
    _init_algorithm, _step = first_state, step

    def _matched(self, moments: Moments, theta: Array, score: Array, step: Array) -> Moments:
        return gsm_update(moments, theta, score)


def bam_update(
    moments: Moments,
    theta: Float[Array, "S D"],
    score: Float[Array, "S D"],
    weight: Float[Array, ""] | float,
) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    ``moments`` are those of the present guide, which drew ``theta``; ``score`` is the target's
    there, and ``weight`` the paper's lambda_t: weight of the scores against the present guide.
    """
    return Moments(*shared.bam_moments(jnp, _triangular, *moments, theta, score, weight))


def _triangular(rows: Float[Array, "n D"]) -> Float[Array, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = jnp.linalg.qr(rows, mode="r")
    # QR leaves the signs of rows open; a Cholesky factor has a positive diagonal.
    return upper.T * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)


class BaM(shared.MatchingShell, GuideEngine):
    """Batch and match: closed-form proximal updates of a full Normal guide.

    Each step draws a batch from the guide q_t and takes the Normal q that minimises

        mean |grad log q - s|^2 in the norm of Cov(q)  +  (2 / lambda_t) KL(q_t, q)

    over the batch, where s is the target's score.

    Exact for Normal posteriors, and settles on others if lambda_t falls. It needs exact scores:
    noise, as of minibatches, is followed like the score itself
    (:class:`~ppl_ext.errors.NoisyScoreWarning`). Noise looks like curvature and shrinks the
    covariance: on a correlated Normal in five dimensions it ends at a few hundredths of the
    target's with ``Noisy`` scores of level 1.

    Far from the posterior all scores are large and nearly equal. They shrink the covariance along
    them and thereby the steps, which a falling lambda_t can then end: on a Normal in three
    dimensions with correlations of 0.9, from 20 standard deviations away, more than 16 are left
    after 1,000 steps, where a constant lambda of S D takes fewer than 100. Start near, or with a
    constant.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``, which is
        then ``engine.guide``.
    num_samples : int
        Draws S per step. More make a step better, not only less random; the paper takes 8 to 32
        on posteriors of about ten dimensions.
    regularization : "decaying", float or callable
        lambda_t, the paper's learning rate: the larger, the further a step goes. "decaying" is
        S D / (t + 1), with which the paper fits all posteriors and other targets that are not
        Normal; a constant, such as the S D that it uses for Normal targets; or a function of
        the step t = 0, 1, ..., which JAX has to be able to trace.
    **options
        Options of every engine but ``init_strategy``; see :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of log p
    (tempered as the target is) and of log q at the draws, ``pull``, the square of the length of the
    target's mean score in units of the guide, and ``rejected``, which is 1 for a step
    whose covariance was singular to rounding, so that the guide stayed as it was.

    References
    ----------
    D. Cai et al., "Batch and match: black-box variational inference with a score-based
    divergence", ICML 2024, https://arxiv.org/abs/2402.14758: Algorithm 1; schedules in sections
    5.1 and 5.2.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.

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
    >>> engine = nx.BaM(model)
    >>> result = engine.run(jax.random.key(0), 50, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{engine.guide.median(result.params)['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    _normal_guide, _exact = AutoMultivariateNormal, Full
    _init_algorithm, _step = first_state, step

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any = None,
        num_samples: int = 8,
        regularization: shared.Regularization = "decaying",
        **options: Any,
    ) -> None:
        super().__init__(model, guide, num_samples, **options)
        self.regularization = shared.checked_regularization(regularization)

    def _weight(self, size: int, step: Array) -> Array:
        weight = shared.regularization_at(self.regularization, step, size)
        return jnp.asarray(weight, jnp.result_type(float))

    def _matched(self, moments: Moments, theta: Array, score: Array, step: Array) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.size, step))
