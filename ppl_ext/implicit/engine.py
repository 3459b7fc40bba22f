"""Fits of guides without a density, without arrays: ``SteinDiscrepancyVI``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ppl_ext.engines.base import EngineShell
from ppl_ext.engines.descent import draws_to_look_at, set_descent, warn_of_squared_noise
from ppl_ext.errors import ArgumentError
from ppl_ext.implicit.samplers import PushForward, Sampler
from ppl_ext.options import check_number, described

#: Draws per step, and the learning rate of the default optimizer at the start of a run.
NUM_SAMPLES, LEARNING_RATE = 100, 5e-3
#: Limit on the length of the gradient: scores far out are rare and long.
CLIP_NORM = 10.0
LENGTHS = (0.3, 1.0)


class SteinDiscrepancyVI(EngineShell):
    """A guide without a density: draws of a sampler, fitted by the kernelised Stein discrepancy.

    The sampler turns noise into draws: a network, a Normal whose mean and scale are outputs of a
    network, or a few Langevin steps. The density of its draws is not known, and not asked for. A
    step of the fit draws S times, and moves the sampler's parameters down the U-statistic of the
    squared discrepancy, by its gradient through draws and scores.

    Parameters
    ----------
    model : callable
        The host's model, used as it is; it is differentiated twice.
    sampler : Sampler, optional
        ``PushForward``, ``SemiImplicit`` or ``UnrolledSGLD``. Default: ``PushForward()``.
    optim : optimizer, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's. Default: Adam with a
        learning rate that falls from 0.005 to 0 along a cosine over the run.
    num_samples : int
        Draws S per step.
    lengths : sequence of float
        Lengths of the inverse multiquadric kernels, in standard deviations of the draws.
    clip_norm : float, optional
        The gradient in all parameters, as one vector, is shortened to this length where it is
        longer. None: not.
    total_steps : int, optional
        T when steps are taken one by one; ``run`` sets its own.
    **options
        Options of every engine; see the package's ``Engine``.

    Notes
    -----
    The loss is the U-statistic: it is near zero at the end and may be below.

    The discrepancy does not see how much mass modes that lie far apart have, as little as ``ksd``
    does; and draws that come near no part of the posterior say nothing about it. Where there are
    modes, and what each weighs, comes from the start. It is also a weak judge of tails: draws far
    out are few and have long scores, so that networks stay too narrow along tails for a long time.
    ``check`` tells.

    Products of two scores enter it, so that the noise of a minibatch, which the draws share, adds
    its variance; the engine warns.

    References
    ----------
    Q. Liu, J. Lee and M. Jordan, "A kernelized Stein discrepancy for goodness-of-fit tests", ICML
    2016, https://arxiv.org/abs/1602.03253; T. Hu et al., "Stein neural sampler", 2018,
    https://arxiv.org/abs/1810.03545; Z. Cheng et al., "Kernel semi-implicit variational inference",
    ICML 2024, https://arxiv.org/abs/2405.18997.

    Raises
    ------
    ArgumentError
        An option is out of range, a module is none of the framework's or has outputs of another
        number, or the estimator keeps scores, which have no derivative.
    """

    allow_local_latents = False
    makes_draws = True
    _draws_to_look_at = draws_to_look_at
    num_samples: Any
    clip_norm: float | None
    total_steps: int | None
    #: What the engine uses of an optimizer that was given, checked.
    _host_optimizer: ClassVar[Any]

    def __init__(
        self,
        model: Callable[..., Any],
        sampler: Sampler | None = None,
        optim: Any = None,
        num_samples: int = NUM_SAMPLES,
        lengths: Sequence[float] = LENGTHS,
        *,
        clip_norm: float | None = CLIP_NORM,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        set_descent(self, optim, num_samples, clip_norm, total_steps)
        self.sampler = PushForward() if sampler is None else sampler
        Sampler.check(self.sampler)
        if num_samples is None or num_samples < 2:
            raise ArgumentError(
                f"Expected num_samples to be an int >= 2, found {num_samples}: the objective is of "
                "pairs of draws."
            )
        if not isinstance(lengths, Sequence) or not lengths:
            raise ArgumentError(
                f"Expected lengths to be numbers, such as (0.3, 1.0), found {described(lengths)}."
            )
        for length in lengths:
            check_number("a length of lengths", length)
        self.lengths = tuple(map(float, lengths))

    def _settings(self) -> dict[str, str]:
        return {
            "sampler": self.sampler.description,
            "lengths": repr(self.lengths),
            **super()._settings(),
        }

    def _check_estimator(self, plan: Any, data: Any) -> None:
        """Refuse estimators that have no derivative, and warn of noise that makes a bias."""
        if plan.estimator.memory_of(data) is not None:
            raise ArgumentError(
                "Expected an estimator whose scores can be differentiated, found "
                f"{type(plan.estimator).__name__}, which keeps scores. Use Full() or Minibatch()."
            )
        warn_of_squared_noise(self, plan)
