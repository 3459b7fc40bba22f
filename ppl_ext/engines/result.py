"""What a run leaves behind, as one line and as a page of a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_ext.diagnostics.tables import Table, block, listed, paragraph


def run_text(result: Any) -> str:
    """A run's result in one line: steps, loss, whether it has settled, and what was found."""
    losses = np.asarray(result.losses, float)
    parts = [f"{len(losses):,} steps"]
    if len(losses):
        parts.append(f"loss {losses[-1]:.4g} at the end")
    if result.settling is not None:
        parts.append("settled" if result.settled else f"not settled: {result.settling}")
    if result.judgement is not None and result.judgement.doubtful:
        parts.append("doubtful")
    return f"RunResult({', '.join(parts)})"


def run_table(result: Any) -> Table:
    """Loss and other figures of the first and of the last step."""
    figures = {"loss": result.losses, **result.info}
    rows = [
        (name, f"{float(values[0]):.4g}", f"{float(values[-1]):.4g}")
        for name, values in figures.items()
        if len(values)
    ]
    return Table(("figure", "first step", "last step"), rows)


def run_page(result: Any) -> str:
    """A run's result in a notebook."""
    judgement = result.judgement
    first, *others = ("",) if judgement is None else str(judgement).splitlines()
    return block(
        paragraph(run_text(result), bold=True),
        run_table(result).as_html(),
        paragraph(first) if first else "",
        listed([each.strip().removeprefix("- ") for each in others]),
    )
