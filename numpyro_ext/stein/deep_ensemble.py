"""Deep ensembles (``DeepEnsemble``): independent MAP estimates, advanced together."""

from __future__ import annotations

from jax import Array
from jaxtyping import Float

from numpyro_ext.engine import Plan
from numpyro_ext.stein.particles import ParticleEngine
from ppl_ext.start.given import HOST


class DeepEnsemble(ParticleEngine):
    """P independent maximum a posteriori estimates from different starting points.

    SVGD without a kernel: each particle follows its own score. The modes are those of the
    density in unconstrained space. Members are evaluated in one vectorized call, and share the
    minibatches of a step (Lakshminarayanan et al. 2017, "Simple and scalable predictive
    uncertainty estimation using deep ensembles", https://arxiv.org/abs/1612.01474).

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer
        NumPyro or optax optimizer.
    num_particles : int, default 32
        Number P of members.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is minus the mean log density of the members before the step, an estimate where the
    score is one. ``info["force_norm"]`` is the root mean square over members of |score|. Members
    are to end in modes of their own: without ``start`` they begin by the host's init strategy, far
    from each other, and not near the few modes that a search for a start finds.

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
    >>> engine = nx.DeepEnsemble(model, numpyro.optim.Adam(0.1), num_particles=5)
    >>> result = engine.run(jax.random.key(0), 200, y)  # every member ends at the only mode
    >>> print(engine.get_samples(result.state)["mean"].round(1))
    [2. 2. 2. 2. 2.]
    """

    _answers_apart = True
    _usual_start = HOST
    _sees_all = False

    def _init_direction(self, plan: Plan, particles: Array) -> dict[str, Array]:
        return {}

    def _direction(
        self,
        plan: Plan,
        state: dict[str, Array],
        particles: Float[Array, "P D"],
        scores: Float[Array, "P D"],
    ) -> tuple[Float[Array, "P D"], dict[str, Array]]:
        return scores, state
