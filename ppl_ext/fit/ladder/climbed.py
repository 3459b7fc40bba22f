"""Where a climb ended, and the stages of its work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.sampler import Sampled
from ppl_ext.chains.symmetry import Symmetry, ordered_values
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import facts, levels
from ppl_ext.fit.verdict.verdict import STAGES, Stage, Verdict
from ppl_ext.target.bounds import told_of_bounds


@dataclass
class Climbed:
    """Where a fit ended.

    Attributes
    ----------
    problem : Problem
        The way to write the program that was chosen.
    positions : array (N, M, D)
        Equally weighted draws on the unconstrained space, N of each of M chains.
    sampled : Sampled or None
        The chains, to go on.
    evidence : Evidence
    stages : list of Stage
    symmetry : Symmetry, optional
        Labels that can be exchanged; the draws have them in random order.
    """

    problem: Problem
    positions: Float[np.ndarray, "N M D"]
    sampled: Sampled | None
    evidence: facts.Evidence
    stages: list[Stage] = field(default_factory=list)
    symmetry: Symmetry | None = None

    @cached_property
    def draws(self) -> dict[str, Any]:
        """The sites as written, chain by chain as the hosts' MCMC gives them."""
        flat = self.positions.transpose(1, 0, 2).reshape(-1, self.positions.shape[2])
        return self.problem.values(flat)

    def ordered(self, draws: Mapping[str, Any]) -> dict[str, Any]:
        """Draws of the sites as written with labels that can be exchanged in order."""
        if self.symmetry is None:
            return dict(draws)
        values = {name: np.asarray(value) for name, value in draws.items()}
        return ordered_values(self.symmetry.as_written, values)

    @cached_property
    def beyond(self) -> tuple[str, ...]:
        """What is said of draws at which something is out of the bounds of its distribution."""
        flat = self.positions.reshape(-1, self.positions.shape[2])
        return told_of_bounds(self.problem.out_of_bounds, flat)

    @property
    def verdict(self) -> Verdict:
        """What the draws are worth."""
        level, reasons = levels.judge(self.evidence)
        if self.beyond:
            level, reasons = "not trusted", (*self.beyond, *reasons)
        if self.problem.name != "as written":
            reasons = (*reasons, f"Fitted {self.problem.name}; draws are of the sites as written.")
        coupled = self.evidence.coupled
        bound = None if coupled is None or level == "not trusted" else coupled.bound
        return Verdict(level, reasons, {}, tuple(self.stages), total_variation=bound)


@contextmanager
def staged(
    stages: list[Stage], meter: Meter, name: str, shown: str | None = None
) -> Iterator[list[str]]:
    """Add a part of the work to the stages, with what is noted on the way.

    The progress bar shows its name, or what is to be ``shown``.
    """
    before, started, notes = meter.evaluations, time.perf_counter(), list[str]()
    if meter.bar is not None:
        meter.bar.set_description_str(shown or STAGES.get(name, name))
    yield notes
    spent = meter.evaluations - before
    stages.append(Stage(name, spent, time.perf_counter() - started, "; ".join(notes)))
