"""Passes over memory in a training step: vectors of the network's length that are read or written.

What is at least a fiftieth of the network long is taken to lie in memory, and anything shorter in
the processor's cache. NumPyro's are read from the compiled program (:mod:`numpyro_passes
<benchmarks.score_vi.numpyro_passes>`), Pyro's are counted while a step is taken
(:mod:`pyro_passes <benchmarks.score_vi.pyro_passes>`).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import records
from benchmarks.records import Record
from benchmarks.score_vi.memory import BATCH, LAYERS, LAYERS_QUICK, data, num_parameters
from benchmarks.study import Study, backends_of

#: Parts of a step of the proximal fit, and what is in none of them.
DRAW, SCORE, STEPS, OTHER = "draw", "score", "inner steps", "other"
PARTS = (DRAW, SCORE, STEPS, OTHER)
#: Methods whose passes are counted.
COUNTED = ("ours", "Adam")
#: The least vectors that a part can read and write. A draw needs mean and scale. The network reads
#: its weights forwards and backwards and writes their score. The steps read mean, scale, their
#: four moments, the draw and its score, and write all but these two.
LEAST = {DRAW: (2, 1), SCORE: (2, 1), STEPS: (8, 6)}
#: Vectors that a step has to hold: those that the inner steps read.
HELD = 8
#: Plain Adam: weights forwards and backwards, and the gradient; then these and two moments.
LEAST_OF_ADAM, HELD_BY_ADAM = (2 + 4, 1 + 3), 4

Moved = dict[str, dict[str, float]]


def run_passes(arguments: argparse.Namespace) -> int:
    """Count them in both packages, or in one, and write the table."""
    layers = LAYERS_QUICK if arguments.quick else LAYERS
    study = Study("score-vi", arguments.out)
    settings = {"layers": list(layers), "batch": BATCH, "parameters": num_parameters(layers)}

    def counted(name: str, method: str) -> dict[str, Any]:
        counter = importlib.import_module(f"benchmarks.score_vi.{name}_passes")
        moved, held = counter.passes(method, layers, *data(layers))
        return {"passes": moved, "vectors held": held}

    for name in backends_of(arguments.backend):
        for method in COUNTED:
            work = partial(counted, name, method)
            study.run(method, name, "network", 0, settings, work, benchmark="score-vi passes")
    return study.report(f"# Passes\n\n{page_table(study.runs)}")


def longest_short(dim: int) -> int:
    """Entries of the longest array that counts as short, for a network of ``dim`` weights."""
    return dim // 50


def in_vectors(moved: Mapping[tuple[str, str], float], dim: int) -> Moved:
    """Bytes by part and kind ("read", "written") as vectors of the network's length."""
    found: Moved = {}
    for (part, kind), size in moved.items():
        found.setdefault(part, {"read": 0.0, "written": 0.0})[kind] += size / (4 * dim)
    return found


def page_table(runs: Sequence[Record]) -> str:
    """Vectors that each part of a step reads and writes, in both packages, for the page."""
    counted = {
        (run.backend, run.method): run.figures
        for run in runs
        if run.benchmark == "score-vi passes" and not run.failed
    }
    labels = {name: text for name, text in records.LABELS.items() if (name, "ours") in counted}

    def row(title: str, least: Sequence[int], method: str, parts: Sequence[str]) -> dict[str, str]:
        cells = {"part": title, "least": " + ".join(map(str, least))}
        for name, label in labels.items():
            moved = [counted[name, method]["passes"].get(part, {}) for part in parts]
            sums = (sum(each.get(kind, 0.0) for each in moved) for kind in ("read", "written"))
            cells[label] = " + ".join(f"{value:.1f}" for value in sums)
        return cells

    def held(title: str, least: int, method: str) -> dict[str, str]:
        found = {label: counted[name, method]["vectors held"] for name, label in labels.items()}
        shown = {label: f"{value:.1f}" for label, value in found.items()}
        return {"part": title, "least": str(least), **shown}

    whole = [sum(kind) for kind in zip(*LEAST.values(), strict=True)]
    rows = [
        *(row(part, least, "ours", [part]) for part, least in LEAST.items()),
        row("whole step", whole, "ours", PARTS),
        row("plain Adam's step", LEAST_OF_ADAM, "Adam", PARTS),
        held("held at most", HELD, "ours"),
        held("held by plain Adam", HELD_BY_ADAM, "Adam"),
    ]
    return records.markdown_table(rows)
