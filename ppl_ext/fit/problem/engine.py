"""Engines in a fit: which may be named, how long they run, and how many draws are made of them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ppl_ext.engines.judgement import unjudged
from ppl_ext.errors import ArgumentError, DataWarning, UnsettledWarning
from ppl_ext.fit.problem.problem import Meter
from ppl_ext.options import described
from ppl_ext.process import swapped
from ppl_ext.running.settling import Settling
from ppl_ext.target.layouts import DataPlate
from ppl_ext.target.log_density import NOTHING

#: Steps of an engine's first run. Each further run is twice as long as the one before.
FIRST_STEPS = 2_000
#: Steps of all runs, after which no other begins.
MOST_STEPS = 200_000
#: Share of the budget and of the seconds that an engine may take; its draws take of the rest.
ENGINE_SHARE = 0.8
#: Draws that are made of an engine.
ENGINE_DRAWS = 1_000
#: Numbers that these may hold, 160 MB; beyond, there are fewer draws.
ENGINE_NUMBERS = 20_000_000


def in_rounds(
    run: Callable[[int, Callable[..., bool]], tuple[int, Settling]],
    meter: Meter,
    spent: Callable[[int], float],
) -> tuple[int, Settling]:
    """Runs of an engine, one after the other, until it has settled or has spent what it may.

    Each run is planned for a number of steps, since an engine's rates fall over the length of its
    run: one that is only cut short would end with rates that have not fallen.

    Parameters
    ----------
    run : callable
        Of a number of steps, and of a callback that tells whether to stop: a run from where the
        engine is, the steps that it took and how settled it is.
    meter : Meter
    spent : callable
        Evaluations that the engine has made after so many steps, which the meter gets in the end.
    """
    taken, length = 0, FIRST_STEPS

    def is_over(step: int, *_: object) -> bool:
        return not meter.allows(ENGINE_SHARE, of_engine=spent(step))

    with swapped(warnings.catch_warnings()), unjudged():
        # The verdict says it, and the fit has said what is observed.
        warnings.simplefilter("ignore", UnsettledWarning)
        warnings.filterwarnings("ignore", re.escape(NOTHING), DataWarning)
        while True:
            # A step takes an evaluation at least, and the run asks after a hundredth of its steps.
            length = max(1, int(min(length, meter.for_engines)))
            steps, settling = run(length, is_over)
            taken, length = taken + steps, 2 * length
            if settling.settled or taken >= MOST_STEPS or is_over(taken):
                meter.evaluations += round(spent(taken))
                return taken, settling


def number_of_draws(dim: int) -> int:
    """Draws of an engine in so many dimensions."""
    return max(4, min(ENGINE_DRAWS, ENGINE_NUMBERS // dim))


def name_of(engine: Any) -> str:
    """An engine in words, with the guide that it fits."""
    name, guide = type(engine).__name__, getattr(engine, "guide", None)
    return name if guide is None else f"{name} with {type(guide).__name__}"


def epoch_of(plates: Mapping[str, DataPlate]) -> int:
    """Steps in which an engine sees all rows once."""
    return max(math.ceil(plate.size / plate.subsample_size) for plate in plates.values())


def check_own_engine(model: Any, guide: Any, engine: Any, engine_class: Any) -> None:
    """See that an engine, or a guide, that a user names can be a fit's.

    Raises
    ------
    ArgumentError
        Both are named, or the engine is none, or has another model.
    """
    if engine is None:
        return
    if guide is not None:
        raise ArgumentError("Expected guide or engine, found both. Give the engine the guide.")
    if not isinstance(engine, engine_class):
        raise ArgumentError(
            f"Expected engine to be an engine of this package, such as SVGD(model, optim), found "
            f"{described(engine)}."
        )
    if engine.model is not model:
        raise ArgumentError(
            "Expected an engine of the model that is fitted, found one of another model."
        )
