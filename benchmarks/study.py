"""What studies share: runs that are recorded and taken up again, a table of them, and pictures."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.images.training import Book
from benchmarks.records import Record


def backends_of(choice: str) -> tuple[str, ...]:
    """The packages that an option ``--backend`` names."""
    return ("numpyro", "pyro") if choice == "both" else (choice,)


def modules_of(choice: str, where: str, threads: int | None = 1) -> list[Any]:
    """A study's modules of the backends that an option names, such as "images.{}_networks".

    Torch takes so many threads: small networks lose more to handing work between threads than
    they gain.
    """
    if threads is not None and "pyro" in backends_of(choice):
        import torch

        torch.set_num_threads(threads)
    names = backends_of(choice)
    return [importlib.import_module(f"benchmarks.{where.format(name)}") for name in names]


def pyplot() -> Any:
    """matplotlib's functions, without a window."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def subplots(*shape: int, **options: Any) -> tuple[Any, Any]:
    """What matplotlib's ``subplots`` gives, whose parts do not overlap."""
    found: tuple[Any, Any] = pyplot().subplots(*shape, **{"layout": "constrained", **options})
    return found


def grid(number: int, columns: int = 4) -> tuple[Any, Any]:
    """A figure and its axes (rows, columns) in rows of so many, those hidden that are too many."""
    columns = min(columns, number)
    rows = -(-number // columns)
    figure, axes = subplots(rows, columns, figsize=(3.6 * columns, 3.0 * rows), squeeze=False)
    for axis in axes.flat[number:]:
        axis.set_visible(False)
    return figure, axes


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, and let go of it."""
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)


class Study:
    """A benchmark's runs and what is written of them: its records, its table and its picture.

    Parameters
    ----------
    name : str
        Of the benchmark, and of its files.
    out : Path
        Folder for them.
    resume, retry_failed : bool
        Take up recorded runs, as a :class:`Book` does.
    """

    def __init__(
        self, name: str, out: Path, *, resume: bool = False, retry_failed: bool = False
    ) -> None:
        self.name, self.out = name, out
        #: What was run, or taken up, in order.
        self.runs: list[Record] = []
        self._book = Book(out / f"{name}.jsonl", resume, retry_failed)

    def run(
        self,
        method: str,
        backend: str,
        model: str,
        seed: int | None,
        settings: Mapping[str, Any],
        work: Callable[[], Mapping[str, Any]],
        *,
        go_on_after: tuple[type[Exception], ...] = (Exception,),
    ) -> Record:
        """Have the work return its figures, unless it has been done before, and say what came out.

        Whatever error ends it is part of its record, and the study goes on.
        """
        record = Record(self.name, method, backend, model, seed, dict(settings))
        record = self._book.run(record, lambda own: own.figures.update(work()), go_on_after)
        shown = {name: value for name, value in record.figures.items() if np.ndim(value) == 0}
        told = ", ".join(f"{name} {records.format_cell(value)}" for name, value in shown.items())
        print(f"{name_of(record)}: {record.error or told}", flush=True)
        self.runs.append(record)
        return record

    def report(
        self, text: str, picture: Callable[[Sequence[Record], Path], None] | None = None
    ) -> int:
        """Write the text, with a line for each run that failed, and the picture; the exit status.

        The picture is drawn of the runs that did not fail, where there is one.
        """
        failed = [run for run in self.runs if run.failed]
        lines = [f"\nFailed: {name_of(run)}: {run.error}\n" for run in failed]
        text += "".join(lines)
        records.write_text(self.out / f"{self.name}.md", text)
        print(text)
        whole = [run for run in self.runs if not run.failed]
        if picture is not None and whole:
            picture(whole, self.out / f"{self.name}.png")
        return int(not whole)


def name_of(run: Record) -> str:
    """What was run, in a line of text."""
    seed = "" if run.seed is None else f"seed {run.seed}"
    return ", ".join(each for each in (run.model, run.backend, run.method, seed) if each)
