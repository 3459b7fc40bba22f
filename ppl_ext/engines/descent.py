"""Engines that fit parameters by steps of an optimizer, without arrays: options and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import NoisyScoreWarning
from ppl_ext.options import check_count, check_number
from ppl_ext.running.settling import FEWEST_DRAWS, MOST_DRAWS, NUMBERS


@documents_subclasses
class DescentShell:
    """Part of the engines that fit the parameters of something that is drawn from.

    Parameters
    ----------
    model : callable
        The host's model, used as it is.
    optim : optimizer, optional
        Default: Adam with a learning rate that falls to 0 along a cosine over the run.
    num_samples : int, optional
        Draws S per step. None when the engine chooses, in ``_plan``.
    clip_norm : float, optional
        The gradient in all parameters, as one vector, is shortened to this length where it is
        longer. Default: not.
    total_steps : int, optional
        T when steps are taken one by one.
    **options
        Options of every engine; see the package's ``Engine``.

    Raises
    ------
    ArgumentError
        An option is out of range, or ``optim`` is no optimizer.
    """

    #: Any number of draws may be asked for.
    makes_draws = True

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any = None,
        num_samples: int | None = None,
        *,
        clip_norm: float | None = None,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)  # type: ignore[call-arg]
        for name, count in (("num_samples", num_samples), ("total_steps", total_steps)):
            check_count(name, count, optional=True)
        check_number("clip_norm", clip_norm, optional=True)
        self.optim = self._host_optimizer(optim)
        self.num_samples: Any = num_samples
        self.clip_norm = clip_norm
        self.total_steps = total_steps

    @staticmethod
    def _host_optimizer(optim: Any) -> Any:
        """What the engine uses of an optimizer that was given, checked."""
        return optim

    def _draws_to_look_at(self, plan: Any) -> int | None:
        return min(max(NUMBERS // plan.target.dim, FEWEST_DRAWS), MOST_DRAWS)

    def _warn_of_noise(self, plan: Any, consequence: str) -> None:
        """Warn that the scores are not exact."""
        warnings.warn(
            f"{type(self).__name__} expects exact scores, but {type(plan.estimator).__name__} "
            f"gives noisy ones or scores of a part of the data here. {consequence} Use "
            "estimator=Full() with all rows, or ProximalScoreVI, which takes noisy scores.",
            NoisyScoreWarning,
            stacklevel=2,
        )
