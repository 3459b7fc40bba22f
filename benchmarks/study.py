"""What studies share: runs that are recorded and taken up again, a table of them, and pictures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def forget_programs() -> None:
    """Forget what has been compiled in NumPyro, so that the time of a run has its own in it."""
    if "numpyro_ext" not in sys.modules:
        return
    import jax

    from numpyro_ext.programs import program

    jax.clear_caches()
    program._kept.clear()
    program._texts.clear()


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


def grid(number: int, columns: int = 4, size: tuple[float, float] = (3.6, 3.0)) -> tuple[Any, Any]:
    """A figure and its axes (rows, columns) in rows of so many, those hidden that are too many."""
    columns = min(columns, number)
    rows = -(-number // columns)
    width, height = size[0] * columns, size[1] * rows
    figure, axes = subplots(rows, columns, figsize=(width, height), squeeze=False)
    for axis in axes.flat[number:]:
        axis.set_visible(False)
    return figure, axes


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, and let go of it."""
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)


def curves(runs: Sequence[Record], along: str, figure_name: str, path: Path) -> None:
    """A figure along runs, means over seeds: a panel for each model and package."""
    from matplotlib.ticker import NullFormatter

    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    methods = list(dict.fromkeys(run.method for run in runs))
    for run in runs:
        groups.setdefault((run.model, run.backend), {}).setdefault(run.method, []).append(run)
    figure, axes = grid(len(groups))
    for axis, (panel, cells) in zip(axes.flat, groups.items(), strict=False):
        for method, own in cells.items():
            values = np.array([run.figures[figure_name] for run in own], float)
            color = f"C{methods.index(method)}"
            x = own[0].figures[along]
            axis.plot(x, values.mean(0), "o-", ms=3, color=color, label=method)
        axis.set(title=" / ".join(panel), xscale="log", xlabel=f"sweeps of {along}")
        low, high = axis.get_ylim()
        if low > 0 and high > 5 * low:
            axis.set_yscale("log")
        # Within less than a decade the labels of minor ticks would lie on each other.
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel(figure_name)
    axes[0][0].legend(fontsize=7)
    save(figure, path)


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

    @classmethod
    def recorded(cls, name: str, out: Path) -> Study:
        """A study with the runs that its file holds."""
        study = cls(name, out, resume=True)
        path = out / f"{name}.jsonl"
        study.runs = records.read(path) if path.exists() else []
        return study

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
        benchmark: str | None = None,
    ) -> Record:
        """Have the work return its figures, unless it has been done before, and say what came out.

        Whatever error ends it is part of its record, and the study goes on. A part of a study has
        a benchmark's name of its own.
        """

        def write(figures: dict[str, Any]) -> None:
            figures.update(work())

        given = (method, backend, model, seed, settings, write)
        return self.follow(*given, go_on_after=go_on_after, benchmark=benchmark)

    def follow(
        self,
        method: str,
        backend: str,
        model: str,
        seed: int | None,
        settings: Mapping[str, Any],
        work: Callable[[dict[str, Any]], None],
        *,
        go_on_after: tuple[type[Exception], ...] = (Exception,),
        benchmark: str | None = None,
    ) -> Record:
        """As :meth:`run` for work that writes its figures on its way: an error leaves those."""
        record = Record(benchmark or self.name, method, backend, model, seed, dict(settings))
        record = self._book.run(record, lambda own: work(own.figures), go_on_after)
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
        write_report(self.out / f"{self.name}.md", text, self.runs)
        whole = [run for run in self.runs if not run.failed]
        if picture is not None and whole:
            picture(whole, self.out / f"{self.name}.png")
        return int(not whole)

    def overview(self, *columns: str, by: Sequence[str] = ()) -> str:
        """What :func:`overview` makes of the runs, as the text of a report."""
        return f"# {self.name}\n\n{overview(self.runs, *columns, by=by)}"


def overview(runs: Sequence[Record], *columns: str, by: Sequence[str] = ()) -> str:
    """A table for each benchmark, whose rows are means over seeds of the figures of runs.

    Entries of a mapping are figures of their own. Of a list, which is shown only where its figure
    is among the columns, the last entry counts: the end of a run.

    Parameters
    ----------
    runs : sequence of Record
    columns : str
        Figures to show; default all.
    by : sequence of str
        Settings that tell rows apart, besides model, package and method.
    """
    tables: dict[str, dict[tuple[Any, ...], list[Record]]] = {}
    for run in runs:
        key = (run.model, run.backend, run.method, *(run.settings.get(each) for each in by))
        tables.setdefault(run.benchmark, {}).setdefault(key, []).append(run)
    text = []
    for benchmark, groups in tables.items():
        rows = []
        for key, own in groups.items():
            row = dict(zip(("model", "package", "method", *by), key, strict=True))
            row |= {"runs": len(own), "failed": sum(run.failed for run in own)}
            found: dict[str, list[Any]] = {}
            whole = [run for run in own if not run.failed]
            for figure, value in (each for run in whole for each in _flat(run.figures, columns)):
                found.setdefault(figure, []).append(value)
            for figure, values in found.items():
                if not columns or figure in columns:
                    words = any(isinstance(value, str) for value in values)
                    row[figure] = (
                        ", ".join(dict.fromkeys(map(str, values)))
                        if words
                        else float(np.mean(values))
                    )
            if seconds := [run.seconds for run in whole if run.seconds is not None]:
                row["seconds of a run"] = float(np.mean(seconds))
            rows.append(row)
        text.append(f"## {benchmark}\n\n{records.markdown_table(rows)}")
    return "\n".join(text)


def _flat(
    figures: Mapping[str, Any], columns: Sequence[str], before: str = ""
) -> Iterator[tuple[str, Any]]:
    """Single numbers and words, and the last ones of the lists among these columns, by name."""
    for name, value in figures.items():
        while f"{before}{name}" in columns and np.ndim(value) and len(value):
            value = value[-1]
        if isinstance(value, Mapping):
            yield from _flat(value, columns, f"{before}{name}: ")
        elif isinstance(value, str | float | int | np.generic):
            yield f"{before}{name}", value


def write_report(path: Path, text: str, runs: Sequence[Record]) -> None:
    """Write a text, with a line for each of the runs that failed, and print it."""
    text += "".join(f"\nFailed: {name_of(run)}: {run.error}\n" for run in runs if run.failed)
    records.write_text(path, text)
    print(text)


def name_of(run: Record) -> str:
    """What was run, in a line of text."""
    seed = "" if run.seed is None else f"seed {run.seed}"
    return ", ".join(each for each in (run.model, run.backend, run.method, seed) if each)
