"""Records of benchmark runs: one JSON line per run, failures included, and tables made from them.

A run that fails is a result: leaving it out would flatter the method that failed. Every record
says what was run (benchmark, method, backend, seed, settings), with what (library versions,
machine), and what came out (figures, seconds, or the error). NumPy only; nothing here imports a
backend.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

DISTRIBUTIONS = (
    "ppl-ext",
    "numpy",
    "torch",
    "pyro-ppl",
    "jax",
    "jaxlib",
    "numpyro",
    "optax",
    "flax",
    "blackjax",
    "arviz",
    "scikit-learn",
)


#: Packages as tables name them, by the backend of a record.
LABELS = {"numpyro": "NumPyro", "pyro": "Pyro"}


def versions(distributions: Sequence[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Versions of Python and of those `distributions` that are installed."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the run had: architecture, operating system and the number of usable cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"architecture": platform.machine(), "system": platform.system(), "cores": cores}


@dataclasses.dataclass
class Record:
    """One run of one method on one model.

    Attributes
    ----------
    benchmark, method, backend, model:
        What was run; `backend` is "pyro", "numpyro" or a peer's name.
    seed:
        Seed of the run, or None where nothing was random.
    settings:
        Every option that changes the result (particles, steps, learning rate, batch size, ...).
    figures:
        Results by name; scalars, strings or nested lists. NaN and infinities are kept.
    seconds:
        Wall-clock seconds of the run, None when it was not timed.
    error:
        `"ExceptionName: message"` of a run that failed, None of one that did not.
    """

    benchmark: str
    method: str
    backend: str = ""
    model: str = ""
    seed: int | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float | None = None
    error: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=versions)
    machine: dict[str, Any] = dataclasses.field(default_factory=machine)
    time: str = dataclasses.field(
        default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    )

    @property
    def failed(self) -> bool:
        """Whether the run ended in an error."""
        return self.error is not None

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the run, so that nothing is known of its method."""
        return self.error is not None and self.error.startswith("KeyboardInterrupt:")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` so that a reader sees the old contents or the new, never a part.

    The folder is made when it is missing.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same folder, hence the same file system: os.replace is atomic only there.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes a file for its owner alone; give it the mode that open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def to_json(value: Any) -> Any:
    """Turn NumPy values into plain ones; JSON has no NaN or infinity, so those become strings."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(value: Any) -> Any:
    """What :func:`to_json` was given, with lists in place of arrays."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def append(path: str | os.PathLike[str], *records: Record) -> None:
    """Add `records` to the JSON-lines file at `path`, one line each; atomic as `write_text` is."""
    path = Path(path)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_text(path, before + _lines(records))


def write(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write `records` to a JSON-lines file in place of what it holds; atomic as `write_text` is."""
    write_text(path, _lines(records))


def _lines(records: Iterable[Record]) -> str:
    """A line of JSON for each record."""
    return "".join(
        json.dumps(to_json(dataclasses.asdict(record)), allow_nan=False) + "\n"
        for record in records
    )


def read(path: str | os.PathLike[str]) -> list[Record]:
    """Read the records of a JSON-lines file in the order in which they were written.

    Raises
    ------
    ValueError
        When a line is not a record; the message names the line.
    """
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(Record(**from_json(json.loads(line))))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: expected one benchmark record as JSON, found {error}; "
                "remove the line or run the benchmark again."
            ) from error
    return records


def drop_cut_line(path: str | os.PathLike[str]) -> None:
    """Remove the last line of a JSON-lines file if it was cut off, and say so."""
    path = Path(path)
    *whole, last = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if not last:
        return
    try:
        json.loads(last)
    except ValueError:
        write_text(path, "".join(line + "\n" for line in whole))
        print(f"{path}: dropped line {len(whole) + 1}, which was cut off", file=sys.stderr)


def resumed(path: str | os.PathLike[str], resume: bool, retry_failed: bool) -> list[Record]:
    """The runs in a file that need not be made again; it is deleted where nothing is taken up.

    Parameters
    ----------
    path : path
    resume : bool
        Take up the runs that the file holds.
    retry_failed : bool
        The same, but drop those that failed.
    """
    path = Path(path)
    if not (resume or retry_failed):
        path.unlink(missing_ok=True)
    if not path.exists():
        return []
    drop_cut_line(path)
    found = read(path)
    if retry_failed:
        found = [record for record in found if not record.failed]
        write(path, found)
    return found


def moved_aside(path: str | os.PathLike[str]) -> Path | None:
    """Give an existing file a name that is free, say so, and return it."""
    path = Path(path)
    if not path.exists():
        return None
    number = 1
    while (aside := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    print(f"{path}: earlier records are now in {aside.name}", file=sys.stderr)
    return aside


class recorded_run:
    """Time a block and append its record to `path`, whether it ends well or in an error.

    `path` may be a function that takes the record instead.

    >>> with recorded_run("out/speed.jsonl", Record("speed", "SVGD", "pyro")) as record:
    ...     record.figures["milliseconds"] = 1.2

    An exception of a class in `go_on_after` is recorded and ends the block only, so that the rest
    of the benchmark runs; any other is recorded and raised.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Callable[[Record], None],
        record: Record,
        *,
        go_on_after: tuple[type[Exception], ...] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._path = path
        self._record = record
        self._go_on_after = go_on_after
        self._clock = clock

    def __enter__(self) -> Record:
        self._started = self._clock()
        return self._record

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._record.seconds is None:
            self._record.seconds = self._clock() - self._started
        if error is not None:
            self._record.error = f"{type(error).__name__}: {error}"
        if callable(self._path):
            self._path(self._record)
        else:
            append(self._path, self._record)
        return isinstance(error, self._go_on_after)


def format_cell(value: Any, digits: int = 3) -> str:
    """One table cell: floats to `digits` significant digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        value = float(value)
        if not math.isfinite(value):
            return str(value)
        # Whole numbers of many digits read badly as 1.23e+04.
        return f"{value:,.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def markdown_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | Mapping[str, str] | None = None,
    *,
    digits: int = 3,
) -> str:
    """Write `rows` as a Markdown table whose columns line up in a terminal, too.

    Parameters
    ----------
    rows:
        One mapping per row; a column that a row lacks is shown as a dash.
    columns:
        Keys in order, or a mapping from key to heading; by default every key in the order in which
        the rows bring them.
    digits:
        Significant digits of floats.

    Numbers stand to the right, text to the left. Returns the table with a final newline, or an
    empty string when there is no column.
    """
    if columns is None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
    headings = dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}
    if not headings:
        return ""
    cells = [[format_cell(row.get(key), digits) for key in headings] for row in rows]
    numeric = [
        any(isinstance(row.get(key), int | float | np.number) for row in rows) for key in headings
    ]
    titles = list(headings.values())
    widths = [
        max(3, *(len(line[index]) for line in [titles, *cells])) for index in range(len(titles))
    ]

    def line(entries: Sequence[str]) -> str:
        padded = (
            entry.rjust(width) if right else entry.ljust(width)
            for entry, width, right in zip(entries, widths, numeric, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rule = [
        "-" * (width - 1) + ":" if right else "-" * width
        for width, right in zip(widths, numeric, strict=True)
    ]
    return "\n".join([line(titles), line(rule), *(line(row) for row in cells)]) + "\n"
