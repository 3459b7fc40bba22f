"""Engines that fit parameters by steps of an optimizer, without arrays: options and warnings."""

from __future__ import annotations

import warnings
from typing import Any

from ppl_ext.errors import NoisyScoreWarning
from ppl_ext.options import check_count, check_number
from ppl_ext.running.settling import FEWEST_DRAWS, MOST_DRAWS, NUMBERS


def set_descent(
    engine: Any,
    optim: Any,
    num_samples: int | None,
    clip_norm: float | None,
    total_steps: int | None,
) -> None:
    """Let an engine have the options of a descent.

    Parameters
    ----------
    engine
    optim : optimizer, optional
        Default: Adam with a learning rate that falls to 0 along a cosine over the run.
    num_samples : int, optional
        Draws S per step. None when the engine chooses, in ``_plan``.
    clip_norm : float, optional
        The gradient in all parameters, as one vector, is shortened to this length where it is
        longer. Default: not.
    total_steps : int, optional
        T when steps are taken one by one.

    Raises
    ------
    ArgumentError
        An option is out of range, or ``optim`` is no optimizer.
    """
    for name, count in (("num_samples", num_samples), ("total_steps", total_steps)):
        check_count(name, count, optional=True)
    check_number("clip_norm", clip_norm, optional=True)
    engine.optim = engine._host_optimizer(optim)
    engine.num_samples = num_samples
    engine.clip_norm = clip_norm
    engine.total_steps = total_steps


def draws_to_look_at(engine: Any, plan: Any) -> int:
    """Number of draws by which the settling of an engine that makes any is judged."""
    # As many draws as make NUMBERS together: a look is to cost the same for few latents and many.
    return min(max(NUMBERS // plan.target.dim, FEWEST_DRAWS), MOST_DRAWS)


def warn_of_squared_noise(engine: Any, plan: Any) -> None:
    """Warn where scores that enter an objective squared are not exact."""
    if plan.estimator.evaluations_per_step(plan.target) != 1.0:
        consequence = "Its objective holds the variance of the scores besides, and the fit is drawn"
        warn_of_noise(engine, plan, f"{consequence} to where that is small.")


def warn_of_noise(engine: Any, plan: Any, consequence: str) -> None:
    """Warn that the scores of an engine are not exact."""
    warnings.warn(
        f"{type(engine).__name__} expects exact scores, but {type(plan.estimator).__name__} "
        f"gives noisy ones or scores of a part of the data here. {consequence} Use "
        "estimator=Full() with all rows, or ProximalScoreVI, which takes noisy scores.",
        NoisyScoreWarning,
        stacklevel=2,
    )
