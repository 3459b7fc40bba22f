"""What ``fit`` of either package does, once it has its random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.batches.passes import passes_of
from ppl_ext.fit.fit import TARGET_ESS, Fit, fit
from ppl_ext.fit.problem.engine import epoch_of
from ppl_ext.fit.problem.naming import Describe, named_ways, with_names
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.views import axis_names
from ppl_ext.fit.verdict.policy import guide_for


class Asked(NamedTuple):
    """What is asked of a fit, as the packages' ``fit`` describes it."""

    budget: int | None
    seconds: float | None
    target_ess: float
    exact: bool
    progress_bar: bool = False
    target_sd_error: float | None = None
    judge: str | None = None
    held_out: Any = None


#: What is asked where nobody says.
UNASKED = Asked(None, None, TARGET_ESS, exact=True)


class Named(NamedTuple):
    """An engine or a guide that a user names, and what makes one where none is.

    Attributes
    ----------
    engine, guide
        What the user names, or None.
    guides : module
        The host's guides, by name.
    made : callable
        The engine of a program, a guide, and the number of steps in which it sees all rows, or None
        where it sees them in each.
    """

    engine: Any
    guide: Any
    guides: Any
    made: Callable[[Callable[..., Any], Any, int | None], Any]

    def of_program(self, program: Callable[..., Any], target: Any) -> Any:
        """The engine that fits a program, or None where none can."""
        if self.engine is not None or target.local_sites:
            return self.engine  # guides have no local latents
        guide = self.guide or getattr(self.guides, guide_for(target.dim))
        return self.made(program, guide, epoch_of(target.plates) if target.plates else None)


def fit_program(
    ways_of: Callable[..., Any],
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    random: tuple[np.random.Generator, int],
    asked: Asked,
    named: Named,
    batches: Iterable[Any] | None,
    names: tuple[Any, Any],
    describe: Describe,
    sharding: Any,
) -> Fit:
    """Fit a program with these arguments; see the packages' ``fit``.

    ``random`` are a generator and the seed of what else is drawn, ``names`` the arguments ``dims``
    and ``coords``, and ``describe`` tells the sites of a program, against which names are held.
    """
    passes, axes = passes_of(batches, call[0]), axis_names(*names)
    own = partial(ways_of, engine_of=named.of_program, sharding=sharding, names=axes)
    ways = with_names(own, describe)

    def problems() -> Iterator[Problem]:
        found = named_ways(own(*call, *random[::-1], passes=passes), describe, refuses=True)
        # An engine that is named has the program as it is written: chains alone take other ways.
        return found if named.engine is None or asked.exact else islice(found, 1)

    return fit(
        problems,
        *random,
        has_engine=named.guide is not None or named.engine is not None,
        clock=time.perf_counter if sharding is None else sharding.clock,
        again=ways if passes is None else None,
        **asked._asdict(),
    )
