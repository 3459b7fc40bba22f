"""Deep ensembles (``DeepEnsemble``): independent MAP estimates, advanced together."""

from __future__ import annotations

from torch import Tensor

from ppl_ext.start.given import HOST
from pyro_ext.engine import Plan
from pyro_ext.stein.particles import ParticleEngine


class DeepEnsemble(ParticleEngine):
    """P independent maximum a posteriori estimates from different starting points.

    SVGD without a kernel: each particle follows its own score. The modes are those of the
    density in unconstrained space. Members are evaluated in one vectorized call, and share the
    minibatches of a step (Lakshminarayanan et al. 2017, "Simple and scalable predictive
    uncertainty estimation using deep ensembles", https://arxiv.org/abs/1612.01474).

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        Such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of tensors to a torch
        optimizer.
    num_particles : int, default 32
        Number P of members.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Notes
    -----
    The loss is minus the mean log density of the members before the step, an estimate where the
    score is one. ``info["force_norm"]`` is the root mean square over members of |score|. Members
    are to end in modes of their own: without ``start`` they begin by the host's init strategy, far
    from each other, and not near the few modes that a search for a start finds.

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
    >>> engine = px.DeepEnsemble(model, pyro.optim.Adam({"lr": 0.1}), num_particles=5, seed=0)
    >>> result = engine.run(200, y)  # every member ends at the only mode
    >>> print([round(member, 1) for member in engine.get_samples()["mean"].tolist()])
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """

    _usual_start = HOST
    _answers_apart = True
    _sees_all = False

    def _direction(
        self, plan: Plan, state: None, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, None]:
        return scores, None
