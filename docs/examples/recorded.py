"""What an example found, as a record beside its pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks import records
from benchmarks.records import LABELS, Record


def settings_of(options: Any) -> dict[str, Any]:
    """The fields of a dataclass of options that change what is found: all but `out` and `seed`."""
    settings = dataclasses.asdict(options)
    return {name: value for name, value in settings.items() if name not in ("out", "seed")}


def recorded(name: str, method: str, host: str, model: str, options: Any, figures: Any) -> None:
    """Append what a run found to `NAME.jsonl` in the folder of its options.

    Parameters
    ----------
    name, method, host, model : str
        Of the example, what it fits by, the package and the data.
    options : dataclass
        With `out`, the folder; its other fields are the settings.
    figures : dict
        Seconds among them, if they were taken.
    """
    record = Record(name.replace("-", "_"), method, host, model, getattr(options, "seed", 0))
    record.settings, record.figures = settings_of(options), dict(figures)
    record.seconds = figures.get("seconds")
    options.out.mkdir(parents=True, exist_ok=True)
    records.append(options.out / f"{name}.jsonl", record)


def row_of(run: Record, headings: Mapping[str, str]) -> dict[str, Any]:
    """A row of a page's table: the package, and figures under their headings."""
    figures = {heading: run.figures[name] for name, heading in headings.items()}
    return {"package": LABELS[run.backend], **figures}
