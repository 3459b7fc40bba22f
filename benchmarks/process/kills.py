"""Runs that are killed, or interrupted by Ctrl-C, at random moments.

In each package 200 processes that save a checkpoint at every step are killed (SIGKILL) at random
moments; each goes on from the file that the one before has left, and a run that gets to its end
must have the very state of one that nothing has stopped. A file that cannot be loaded is counted
as torn. An unfinished ``.part`` beside it is what the next write removes: it may lie there after
a kill and not at a run's end; any other file is litter, and so is a ``.part`` at the end. Then 50
times Ctrl-C reaches a run in its own process: the state must be that of an engine that took as many
steps undisturbed, and go on as that does. Written to kills.jsonl, kills.md and kills.png.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.arguments import add_common, count
from benchmarks.process.fits import Fits
from benchmarks.study import Study, save, subplots

#: Steps of a run that is killed again and again, and seconds until a kill at most.
STEPS, LONGEST = 400, 0.5
#: Steps of a run that is meant to be interrupted, and seconds after which it was not.
MANY, PATIENCE = 10**8, 120.0
#: What must not happen.
BAD = ("torn", "litter", "not exact")
#: Engines that get Ctrl-C in turn: they write their tensors in different ways.
INTERRUPTED = ("SVGD", "FisherVI")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks kills`."""
    add_common(parser)
    parser.add_argument("--kills", type=count, default=200)
    parser.add_argument("--interrupts", type=count, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--signal", choices=("SIGKILL", "Ctrl-C", "both"), default="both")
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="run nothing; table and plot from the records in the output folder",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run it; the exit status is 1 where anything was torn, left behind or not exact."""
    out: Path = arguments.out
    path = out / "kills.jsonl"
    if not arguments.redraw:
        records.moved_aside(path)
        for package in ("pyro", "numpyro"):
            if arguments.backend in (package, "both"):
                _run(package, arguments, path)
    study = Study.recorded("kills", out)
    study.report(study.overview(), plot)
    found = study.runs
    good = [not each.failed and not any(each.figures.get(name) for name in BAD) for each in found]
    return 0 if all(good) else 1


def _run(package: str, arguments: argparse.Namespace, path: Path) -> None:
    for name, work, number in (
        ("SIGKILL", killed, arguments.kills),
        ("Ctrl-C", interrupted, arguments.interrupts),
    ):
        if arguments.signal in (name, "both"):
            record = records.Record("kills", name, package, "regression", arguments.seed)
            record.settings = {"number": number, "steps": STEPS}
            with records.recorded_run(path, record, go_on_after=(Exception,)):
                record.figures |= work(package, number, arguments.seed)


def page_table(found: Sequence[records.Record]) -> str:
    """What the signals did, for the page."""
    names = {
        "files at a kill": "an unfinished file lay there",
        "ends": "runs to the end",
        **{name: name for name in BAD},
    }
    rows = [
        {
            "package": records.LABELS[each.backend],
            "signal": each.method,
            "times": each.settings["number"],
            **{title: each.figures.get(name) for name, title in names.items()},
        }
        for each in found
    ]
    return records.markdown_table(rows)


def plot(found: Sequence[records.Record], path: Path) -> None:
    """Bars: how often each signal came, and what was found."""
    shown = {
        "SIGKILL": {
            "kills": "kills",
            "files at a kill": "with an\nunfinished\nfile",
            "ends": "runs to\nthe end",
            "torn": "torn",
            "litter": "litter",
            "not exact": "not exact",
        },
        "Ctrl-C": {"interrupts": "interrupts", "not exact": "not exact"},
    }
    figure, axes = subplots(
        1, 2, figsize=(9, 3.5), width_ratios=[len(each) for each in shown.values()]
    )
    for axis, (signal_name, names) in zip(axes, shown.items(), strict=True):
        chosen = [each for each in found if each.method == signal_name]
        for place, each in enumerate(chosen):
            where = [index + 0.4 * (place - (len(chosen) - 1) / 2) for index in range(len(names))]
            label = each.backend + (" (failed)" if each.failed else "")
            bars = axis.bar(where, [each.figures.get(name, 0) for name in names], 0.38, label=label)
            axis.bar_label(bars)
        axis.set(title=signal_name, ylabel="times")
        axis.set_xticks(range(len(names)), names.values())
        axis.margins(y=0.12)
    legend: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside right upper")
    save(figure, path)


# -- SIGKILL ---------------------------------------------------------------------------------------


def killed(package: str, kills: int, seed: int) -> dict[str, Any]:
    """Kill runs of the package, and say what was found in their folder and in their states."""
    moments = random.Random(seed)
    # Processes that have imported everything, and nothing has started threads yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.process.fits", f"{package}_ext"])
    found: dict[str, Any] = dict.fromkeys(("kills", "torn", "litter", "ends", "not exact"), 0)
    found |= {"files at a kill": 0, "names of litter": []}
    with tempfile.TemporaryDirectory() as folder:
        # The digest is taken by a file too, which is no file of the run's: it has another folder.
        # There JAX keeps its compiled programs as well, and a run is at its steps in a second.
        paths = os.path.join(folder, "run", "state"), os.path.join(folder, "digest")
        reference = _one(context, package, (os.path.join(folder, "reference"), paths[1]), None)[1]
        path, reached = paths[0], 0
        os.mkdir(os.path.dirname(path))
        while found["kills"] < kills or reached:
            last = found["kills"] >= kills
            until = None if last else moments.uniform(0.0, LONGEST)
            what, value = _one(context, package, paths, until)
            left = set(os.listdir(os.path.dirname(path)))
            unfinished = {each for each in left if each.endswith(".part")}
            litter = left - {"state"} - (set() if what == "ended" else unfinished)
            if what == "failed":
                found["torn"] += 1
                print(value, file=sys.stderr)
                reached = 0
            elif what == "ended":
                found["ends"] += 1
                found["not exact"] += value != reference
                found["torn"] += "state" not in left
                reached = 0
            else:
                found["kills"] += 1
                found["files at a kill"] += bool(unfinished)
                reached = 1
            found["litter"] += bool(litter)
            found["names of litter"] += sorted(litter)
            if not reached:
                for name in left:
                    os.unlink(os.path.join(os.path.dirname(path), name))
    return found


def _one(
    context: Any, package: str, paths: tuple[str, str], until: float | None
) -> tuple[str, Any]:
    """Start a run and kill it so many seconds after its first step; None lets it end."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_checkpointing, args=(package, *paths, theirs))
    process.start()
    theirs.close()
    what: str = "killed"
    value: Any = None
    try:
        what, value = ours.recv()
        if what == "running":
            what, value = "killed", None
            if until is None or ours.poll(until):
                what, value = ours.recv()
            else:
                os.kill(process.pid, signal.SIGKILL)
    except EOFError:
        what, value = "failed", "the process ended without a word"
    process.join()
    return what, value


def _checkpointing(package: str, path: str, digest: str, pipe: Any) -> None:
    """Go on from the file, if there is one, to the end of the run."""
    try:
        _prepare(package, os.path.join(os.path.dirname(digest), "programs"))
        fits = Fits(package)
        engine, state = fits.make("SVGD"), None
        if os.path.exists(path):
            state = fits.load(engine, path)
        remaining = STEPS - (0 if state is None and not fits.is_pyro else fits.taken(engine, state))
        first = True

        def tell(*_: Any) -> None:
            nonlocal first
            if first:
                pipe.send(("running", None))
            first = False

        options = {"checkpoint": path, "checkpoint_every": 1}
        state = fits.run(engine, state, remaining, callback=tell, callback_every=1, **options)
        if first:  # the run was at its end already
            pipe.send(("running", None))
        pipe.send(("ended", fits.digest(engine, state, digest)))
    except BaseException:  # noqa: BLE001 the other process tells
        pipe.send(("failed", traceback.format_exc()))


def _prepare(package: str, programs: str | None = None) -> None:
    """One thread, and a folder for JAX's compiled programs."""
    if package == "pyro":
        import torch

        torch.set_num_threads(1)
    elif programs is not None:
        import jax

        jax.config.update("jax_compilation_cache_dir", programs)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# -- Ctrl-C ----------------------------------------------------------------------------------------


def interrupted(package: str, interrupts: int, seed: int) -> dict[str, Any]:
    """Interrupt runs of the package, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_interrupting, args=(package, interrupts, seed, theirs))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    finally:
        process.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return dict(found)


def _interrupting(package: str, interrupts: int, seed: int, pipe: Any) -> None:
    # A process that a shell has started in the background ignores Ctrl-C, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _prepare(package)
        pipe.send(interrupted_here(package, interrupts, seed))
    except BaseException:  # noqa: BLE001 the other process tells
        pipe.send(traceback.format_exc())


def interrupted_here(package: str, interrupts: int, seed: int) -> dict[str, Any]:
    """Interrupt runs in this process, and compare with engines that nothing disturbs."""
    fits, moments = Fits(package), random.Random(seed)
    found = {"interrupts": 0, "not exact": 0, "steps": 0}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state")
        for number, name in enumerate(INTERRUPTED):
            engine, calm = fits.make(name), fits.make(name)
            state = fits.run(engine, None, 1)
            quiet = fits.run(calm, None, 1)
            for _ in range(interrupts // len(INTERRUPTED) + (number == 0) * (interrupts % 2)):
                before = fits.taken(engine, state)
                state = _interrupt(fits, engine, state, moments.uniform(0.0, LONGEST))
                taken = fits.taken(engine, state)
                # A run of as many steps, some of whose schedules know how many there are to be.
                quiet = fits.run(calm, quiet, MANY, partial(_is_at, taken), callback_every=1)
                found["interrupts"] += 1
                found["steps"] += taken - before
                same = fits.digest(engine, state, path) == fits.digest(calm, quiet, path)
                found["not exact"] += not same
    return found


def _is_at(last: int, step: int, *_: Any) -> bool:
    return step == last


def _interrupt(fits: Fits, engine: Any, state: Any, seconds: float) -> Any:
    """The state after a run that gets Ctrl-C so many seconds after its first step."""

    def press() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    began = time.monotonic()

    def first(*_: Any) -> bool:
        if thread.ident is None:
            thread.start()
        return time.monotonic() - began > PATIENCE

    try:
        fits.run(engine, state, MANY, first, callback_every=10)
    except KeyboardInterrupt as stop:
        return None if fits.is_pyro else stop.state  # type: ignore[attr-defined]
    raise RuntimeError(f"expected Ctrl-C to end the run, found it running after {PATIENCE} s")
