"""`python -m benchmarks queue`: the runs of all studies that pages want, one after another.

A study that is too long for a day is cut into parts: one set, method or experiment with one
package. A part is a command of its own, ``python -m benchmarks STUDY ...``, which writes to a
folder of its own. The queue runs the parts in the order of :data:`PARTS`, as many at a time as
there are cores, until the time is over. A part that ended is in ``queue.jsonl`` and is not run
again; neither is one that ``benchmarks/results/queue.jsonl`` names. A part that was stopped goes on
with the runs that it has recorded, where its study can, and starts again otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import records
from benchmarks.arguments import count
from benchmarks.network_truth import REFERENCES
from benchmarks.records import Record

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Studies that take up what they have recorded.
RESUMED = (
    *("bnn", "images", "forecasting", "posteriordb", "network-truth", "network-sets"),
    *("fit-many", "refit"),
)
#: Curves of networks along a run that are kept.
CURVES = ("epoch", "seconds", "processor seconds", "test NLL")
#: Seconds that a part has to write its records after it was asked to stop.
GRACE = 30.0
#: A part with Pyro takes this many times the minutes of one with NumPyro, until one was timed.
SLOWER = 2.0


@dataclass(frozen=True)
class Part:
    """One command of a study.

    Attributes
    ----------
    study : str
        Its name on the command line.
    options : tuple of str
        Its options, the folder for the results apart.
    minutes : float
        What it is expected to take on one core.
    serves : str
        What is to be made of its records.
    """

    study: str
    options: tuple[str, ...]
    minutes: float
    serves: str

    @property
    def name(self) -> str:
        """A name that is a folder's as well."""
        words = [self.study, *(option.removeprefix("--") for option in self.options)]
        return re.sub(r"[^\w.]+", "-", "-".join(words))

    def runs(self, out: Path) -> list[Record]:
        """What it has recorded in a queue's folder."""
        return [
            record
            for path in sorted(self.folder(out).rglob("*.jsonl"))
            if not re.search(r"-\d+$", path.stem)  # begun anew, and moved aside
            for record in records.read(path)
        ]

    def folder(self, out: Path) -> Path:
        """Where its results lie in a queue's folder."""
        return out / "parts" / self.name

    def command(self, folder: Path) -> list[str]:
        """What is run."""
        resume = ("--resume",) if self.study in RESUMED else ()
        return [
            *(sys.executable, "-m", "benchmarks", self.study),
            *(*self.options, *resume, "--out", str(folder)),
        ]


def _both(study: str, options: str, minutes: float, serves: str) -> Iterator[Part]:
    for backend, times in (("numpyro", 1.0), ("pyro", SLOWER)):
        yield Part(study, (*options.split(), "--backend", backend), times * minutes, serves)


def _parts() -> Iterator[Part]:
    """All parts, those first that most pages lack, small sets before large ones."""
    dam, kim, svn = "Dam et al.", "Kim", "Floege et al."
    for name in ("a9a", "w8a", "covtype_subset", "cod_rna"):
        for protocol, table in (("test", "Table I, Fig. 1 and 2"), ("online", "Table II, Fig. 3")):
            options = f"--sets {name} --protocols {protocol} --seeds 3"
            yield from _both("logistic", options, 15.0, f"{dam}, {table}")
    uci = {"yacht": 4, "boston": 5, "energy": 5, "energy_leaked": 5, "concrete": 6, "wine_red": 6}
    larger = {"kin8nm": 10, "power_plant": 10, "naval": 12, "protein": 15}
    for name, minutes in (uci | larger).items():
        options = f"--sets {name} --splits 5"
        yield from _both("regression", options, minutes, f"{dam}, Tables III to V")
    known = {"fig2": 20, "table7": 20, "table8": 20, "noise": 20}
    for experiment, minutes in (known | {"fig1": 15, "alpha": 10, "samples": 10}).items():
        options = f"--experiment {experiment} --seeds 3"
        yield from _both("synthetic", options, minutes, f"{kim}, {experiment}")
    for name in ("yacht", "energy", "concrete", "wine_red", "kin8nm", "power_plant", "naval"):
        yield from _both("score-vi", f"--experiment uci --sets {name} --seeds 5", 10.0, f"{kim}")
    yield from _both("score-vi", "--experiment logistic --seeds 3", 25.0, f"{kim}, section 3")
    sets = {"yacht": 4, "energy": 6, "concrete": 8, "wine_red": 10}
    classes = {"australian": 6, "breast_cancer": 6, "ionosphere": 5}
    methods = ("Ensemble", "WGD", "SVGD", "SVN", "SVN KFAC", "SVN diag", "LL-SVN")
    for name, minutes in (sets | classes | {"kin8nm": 20, "power_plant": 20, "naval": 20}).items():
        for method in methods:
            words = ("--sets", name, "--splits", "5", "--methods", method)
            for backend, times in (("numpyro", 1.0), ("pyro", SLOWER)):
                yield Part(
                    "bnn",
                    (*words, "--backend", backend),
                    times * minutes,
                    f"{svn}, Table 1 and C.1",
                )
    for number in ("10", "20"):
        for name, minutes in sets.items():
            options = f"--sets {name} --splits 5 --methods Ensemble WGD SVGD SVN "
            options += f"--particles {number}"
            yield from _both("bnn", options, 5.0 * minutes, f"{svn}, Table C.2")
    # Posteriors of the folder that POSTERIORDB names.
    for name in (
        *("arK-arK", "low_dim_gauss_mix-low_dim_gauss_mix"),
        *("gp_pois_regr-gp_pois_regr", "diamonds-diamonds"),
    ):
        options = f"--appendix-b --posteriors {name} --route native --jobs 1"
        yield from _both("posteriordb", options, 15.0, f"{kim}, Fig. 5 and 6")
    for name in ("mnist", "fashion_mnist"):
        options = f"--experiment lenet --dataset {name} --seeds 3"
        yield from _both("images", options, 60.0, f"{svn}, Table 2")
    yield from _both("images", "--experiment small-data --seeds 3", 60.0, f"{kim}, Fig. 3")
    # Flows where the paper has them; without names the option leaves them out.
    for name, flow in (
        ("exchange_rate", " exchange_rate"),
        ("illness", ""),
        ("weather", " weather"),
    ):
        options = f"--series {name} --flow-series{flow} --seeds 3"
        yield from _both("forecasting", options, 40.0, f"{kim}, Tables 2, 3 and 6")
    options = "--study kernels --sets yacht --splits 5"
    yield from _both("bnn", options, 20.0, f"{svn}, Fig. D.2")
    for number in ("500", "2000"):
        options = f"--experiment lenet --dataset mnist --rows {number} --seeds 3 "
        options += "--methods ensemble SVGD SVN"
        yield from _both("images", options, 30.0, f"{svn}, Fig. D.1")
    for name, minutes in sets.items():
        options = f"--sets {name} --splits 5 --methods SGLD MFVI"
        yield from _both("bnn", options, 2.0 * minutes, "Chen et al., section 2.1")
    networks = {"curve": 10, "moons": 10, "curve-spread": 15, "curve-deep": 15, "moons-deep": 15}
    networks |= {"wine": 15, "digits-convolution": 30, "breast-cancer": 30, "diabetes": 40}
    networks |= {"diabetes-spread": 60, "digits": 120, "wine-red": 240}
    # References go to the folder of the study, and are committed from there. Runs need them. Yacht
    # has none: its chains disagree.
    made = [name for name in networks if (REFERENCES / f"{name}.npz").exists()]
    for name in (name for name in networks if name not in made):
        making = ("--references", "--networks", name, "--backend", "numpyro")
        length = 2.0 * networks[name]
        yield Part("network-truth", making, length, "references of networks")
    for name in made:
        options = f"--networks {name} --seeds 3"
        length = 3.0 * networks[name]
        yield from _both("network-truth", options, length, "networks by their outputs")
    yield from _both("refit", "", 5.0, "refits")
    yield from _both("fit-many", "", 50.0, "many data sets")
    # A set with 64 units takes some ten times as long as with 16.
    sets = {"yacht": 15, "energy": 25, "concrete": 30, "wine_red": 50}
    for units, times in ((16, 1.0), (64, 10.0)):
        for name, minutes in (sets | {"kin8nm": 200, "power_plant": 240, "naval": 300}).items():
            options = f"--sets {name} --units {units} --splits 10"
            yield from _both("network-sets", options, times * minutes, "networks on UCI sets")
    options = "--parts fits --images 2000 --test-images 500 --first 120 --steps 40 --draws 5 "
    options += "--methods ADVI proximal --seeds 3"
    yield from _both("vision", options, 30.0, f"{kim}, Table 1 in its structure")


PARTS: tuple[Part, ...] = tuple(_parts())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--out", type=Path, default=Path("out/queue"), help="for the results")
    parser.add_argument("--hours", type=float, default=2.0, help="after which nothing is begun")
    parser.add_argument(
        "--workers", type=count, default=os.cpu_count() or 1, help="parts at a time, a core each"
    )
    parser.add_argument("--only", nargs="+", metavar="STUDY", help="parts of these studies")
    parser.add_argument("--retry-failed", action="store_true", help="run those again that failed")
    parser.add_argument("--list", action="store_true", help="print what is left, run nothing")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="run nothing; put the records of ended parts into benchmarks/results",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run parts until the time is over; the exit status."""
    if arguments.keep:
        return kept(arguments.out)
    queue = Queue(arguments.out, PARTS, arguments.only, arguments.retry_failed)
    if arguments.list:
        print(queue.report())
        return 0
    queue.run(arguments.hours, arguments.workers)
    print(queue.report())
    return 0


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[int]:
    """See that no other queue works in the folder; the file descriptor of its lock.

    Processes that get the descriptor hold the lock as well, so that parts which a killed queue has
    left behind end before the next queue begins.

    Raises
    ------
    SystemExit
        One does.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(
                f"{out}: another queue, or a part of one that was killed, works here; wait for "
                "its end or give another --out."
            ) from None
        yield stream.fileno()


def ended(*files: Path) -> dict[str, Record]:
    """The last record of each part that ended."""
    return {
        record.model: record for path in files if path.exists() for record in records.read(path)
    }


class Queue:
    """Parts, which of them ended, and what is left.

    Parameters
    ----------
    out : Path
    parts : sequence of Part
    only : sequence of str, optional
        Studies to take; default all.
    retry_failed : bool
    """

    def __init__(
        self,
        out: Path,
        parts: Sequence[Part],
        only: Sequence[str] | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.out, self.book = out, out / "queue.jsonl"
        if self.book.exists():
            records.drop_cut_line(self.book)
        self.parts = [part for part in parts if only is None or part.study in only]
        self.ended = ended(RESULTS / "queue.jsonl", self.book)
        if retry_failed:
            self.ended = {name: one for name, one in self.ended.items() if not one.failed}
        self._lock = threading.Lock()
        self._begun: set[str] = set()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def left(self) -> list[Part]:
        """Parts that have not ended, in order."""
        return [part for part in self.parts if part.name not in self.ended]

    def minutes(self, part: Part) -> float:
        """What a part takes: its own estimate, corrected by those of its study that ended."""
        shares = [
            (self.ended[other.name].seconds or 0.0) / 60.0 / other.minutes
            for other in self.parts
            if other.study == part.study
            and other.options[-1] == part.options[-1]
            and other.name in self.ended
            and not self.ended[other.name].failed
        ]
        return part.minutes * (sum(shares) / len(shares) if shares else 1.0)

    def run(self, hours: float, workers: int) -> None:
        """Run what is left until the time is over."""
        deadline = time.monotonic() + 3600.0 * hours
        try:
            with _alone(self.out) as lock, ThreadPoolExecutor(workers) as pool:
                tasks = [pool.submit(self._work, deadline, lock) for _ in range(workers)]
                try:
                    for task in tasks:
                        task.result()
                except BaseException:
                    self._stop()
                    raise
        except KeyboardInterrupt:
            print("stopped; the same command goes on", file=sys.stderr)

    def _work(self, deadline: float, lock: int) -> None:
        while (part := self._next(deadline)) is not None:
            self._run(part, deadline, lock)

    def _next(self, deadline: float) -> Part | None:
        """The next part that fits into the time left, or the first where none was begun yet."""
        with self._lock:
            minutes = (deadline - time.monotonic()) / 60.0
            waiting = [part for part in self.left() if part.name not in self._begun]
            if minutes <= 0.0 or not waiting:
                return None
            fits = [part for part in waiting if self.minutes(part) <= minutes]
            # A part that can be taken up gets on, however long it is.
            resumed = [part for part in waiting if part.study in RESUMED]
            chosen = next(iter(fits or resumed or ([] if self._begun else waiting)), None)
            if chosen is not None:
                self._begun.add(chosen.name)
            return chosen

    def _run(self, part: Part, deadline: float, lock: int) -> None:
        """Run a part and write down how it ended."""
        folder = part.folder(self.out)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"begins: {part.name} (about {self.minutes(part):.0f} min)", flush=True)
        # One core for a part, so that times do not depend on how many run.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        started = time.monotonic()
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                part.command(folder),
                cwd=ROOT,
                env={**os.environ, **threads, "XLA_FLAGS": flags},
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the queue alone, which asks its parts to stop.
                start_new_session=True,
                pass_fds=(lock,),
            )
            self._processes.add(process)
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
                self._end(process)
            finally:
                self._processes.discard(process)
        seconds = time.monotonic() - started
        if status is None or status < 0:  # it was stopped, and says nothing about its study
            print(f"stopped: {part.name}", flush=True)
            return
        self._write(part, status, seconds)

    def _write(self, part: Part, status: int, seconds: float) -> None:
        runs = part.runs(self.out)
        record = Record("queue", part.study, part.options[-1], part.name)
        record.settings = {"options": list(part.options), "serves": part.serves}
        record.figures = {"runs": len(runs), "failed": sum(run.failed for run in runs)}
        # A part that was taken up has been longer at work than it was the last time.
        record.seconds = max(seconds, sum(run.seconds or 0.0 for run in runs))
        if status or not runs:
            log = part.folder(self.out) / "log.txt"
            lines = log.read_text(errors="replace").strip().splitlines()
            record.error = f"exit status {status}: {lines[-1] if lines else 'no output'}"
        with self._lock:
            records.append(self.book, record)
            self.ended[part.name] = record
        said = record.error or f"{len(runs)} runs, {seconds / 60.0:.1f} min"
        print(f"ended: {part.name}: {said}", flush=True)

    def _stop(self) -> None:
        with self._lock:
            self._begun.update(part.name for part in self.parts)
        for process in tuple(self._processes):
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """Ask a process to stop, as Ctrl-C does, and end it where it does not."""
        for sign in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
                return

    def report(self) -> str:
        """What is left by study, with an estimate, and what failed."""
        rows = []
        for study in dict.fromkeys(part.study for part in self.parts):
            own = [part for part in self.parts if part.study == study]
            left = [part for part in own if part.name not in self.ended]
            failed = [p.name for p in own if p.name in self.ended and self.ended[p.name].failed]
            rows.append(
                {
                    "study": study,
                    "parts": len(own),
                    "ended": len(own) - len(left),
                    "failed": len(failed),
                    "hours left on one core": sum(map(self.minutes, left)) / 60.0,
                    "next": left[0].name if left else "",
                }
            )
        return records.markdown_table(rows)


def _slim(record: Record) -> Record:
    """Without those curves of networks that no page draws; there are many, of many points."""
    if record.benchmark == "bnn" and "curves" in record.figures:
        curves = record.figures["curves"]
        record.figures["curves"] = {name: curves[name] for name in CURVES if name in curves}
    return record


def kept(out: Path) -> int:
    """Put the records of ended parts into the results that pages are made of.

    A record takes the place of one of the same run: benchmark, method, package, model, seed and
    settings.
    """

    def key(record: Record) -> str:
        parts = (record.benchmark, record.method, record.backend, record.model, record.seed)
        return repr((parts, records.to_json(record.settings)))

    done = ended(out / "queue.jsonl")
    added: dict[str, list[Record]] = {"queue.jsonl": list(done.values())}
    for part in PARTS:
        if part.name in done:
            added.setdefault(f"{part.study}.jsonl", []).extend(map(_slim, part.runs(out)))
    for file, runs in added.items():
        path = RESULTS / file
        before = records.read(path) if path.exists() else []
        merged = {key(record): record for record in (*before, *runs)}
        records.write(path, merged.values())
        print(f"{path.relative_to(ROOT)}: {len(before)} records before, {len(merged)} now")
    return 0
