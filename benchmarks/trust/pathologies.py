"""All planted problems by name."""

from __future__ import annotations

from benchmarks.trust.pathology import Pathology
from benchmarks.trust.planted import (
    conjugate,
    funnels,
    improper,
    modes,
    precision,
    schools,
    shapes,
    steps,
    supports,
    switching,
    tails,
    widths,
)

FAMILIES = (
    modes,
    widths,
    funnels,
    shapes,
    tails,
    supports,
    conjugate,
    schools,
    switching,
    steps,
    precision,
    improper,
)

PATHOLOGIES: dict[str, Pathology] = {
    problem.name: problem for family in FAMILIES for problem in family.PROBLEMS
}
