"""The table of the mixture targets on the page."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import records
from benchmarks.records import Record
from benchmarks.synthetic.experiments import FORWARD, all_experiments
from benchmarks.synthetic.runs import chosen_runs, final, median_final

#: Methods of the mixture targets as the page names them.
MIXTURES = {
    "Ours, regression": "`AutoGaussianMixture`, default",
    "Ours": "gradient solver",
    "ADVI": "ADVI",
}


def mixtures_table(found: Sequence[Record]) -> str:
    """Forward KL on the mixture targets, median and greatest over the seeds, for the page."""
    table = []
    for label in dict.fromkeys(record.backend for record in of_mixtures(found)):
        own = [record for record in of_mixtures(found) if record.backend == label]
        for case in all_experiments()["fig2"].cases:
            row = {"target": f"{case.title}, {case.budget:,} scores", "package": label}
            for method in case.methods:
                chosen = chosen_runs(own, case, method) if method.name in MIXTURES else []
                if chosen:
                    greatest = max(final(record, FORWARD) for record in chosen)
                    middle = median_final(chosen, FORWARD)
                    row[MIXTURES[method.name]] = f"{_short(middle)}, {_short(greatest)}"
            table.append(row)
    return records.markdown_table(table, ["target", "package", *MIXTURES.values()])


def of_mixtures(found: Sequence[Record]) -> list[Record]:
    """The records of the mixture targets."""
    return [record for record in found if record.settings["experiment"] == "fig2"]


def _short(value: float) -> str:
    return f"{value:.2g}"
