"""The NumPyro half: forced host devices, and one of two processes that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from benchmarks.scaling.kills import PATIENCE, STEPS, killed
from benchmarks.scaling.problem import ENGINES


def measure(devices: Collection[int], done: Collection[Any]) -> Iterator[Record]:
    """Records "measured" of every engine and layout that is not done yet."""
    with tempfile.TemporaryDirectory() as folder:
        for number in sorted({1, *devices}):
            known = {name for backend, name, _, n in done if (backend, n) == ("numpyro", number)}
            # The parameters of one device are what others are compared with.
            engines = [name for name in ENGINES if name not in known or number == 1]
            options = {"engines": engines, "devices": number, "folder": folder}
            began = time.perf_counter()
            process = _start(options, number)
            assert process.stdout is not None
            for line in process.stdout:
                found = json.loads(line)
                if number == 1 and found["settings"]["engine"] in known:
                    continue
                record = _record("measured", found["settings"], found.get("figures"), began)
                record.error = found.get("error")
                yield record
                began = time.perf_counter()
            if process.wait():
                raise RuntimeError(f"{number} devices: ended with status {process.returncode}")


def kill(number: int, seed: int) -> Record:
    """The record "kills": what was left when one of two processes was killed so many times."""
    return killed("numpyro", _pair, number, seed)


def _pair(path: Path, until: float | None, moments: random.Random) -> dict[str, Any]:
    """Two processes on a file, one of which is killed so many seconds after their first step."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = {"path": str(path), "port": port, "steps": STEPS}
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]
    pair = [_start({**options, "process": i}, 1, outputs[i]) for i in range(2)]
    seen: dict[str, Any] = {"end": None, "killed": False, "seconds": None, "message": None}
    seen["over"] = None
    try:
        if until is not None:
            while all(each.poll() is None for each in pair) and "step" not in _read(outputs[0]):
                time.sleep(0.05)
            time.sleep(until)
            victim = moments.randrange(2)
            if all(each.poll() is None for each in pair):
                os.kill(pair[victim].pid, signal.SIGKILL)
                seen["killed"] = True
                began = time.perf_counter()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pair[1 - victim].wait(2 * PATIENCE)
                seen["seconds"] = time.perf_counter() - began
                seen["message"] = _message(_read(outputs[1 - victim]))
        for each in pair:
            each.wait(None if until is None or not seen["killed"] else 1.0)
    finally:
        for each in pair:
            each.kill()
            each.wait()
    said = [_read(each) for each in outputs]
    for output in outputs:
        output.close()
    ends = [line[4:] for text in said for line in text.splitlines() if line.startswith("end ")]
    if not seen["killed"] and len(ends) == 2 and ends[0] == ends[1]:
        seen["end"] = ends[0]
    if seen["killed"] and ends:
        seen["over"] = ends[0]
    seen["said"] = "\n".join(text[-2000:] for text in said)
    return seen


def _message(text: str) -> str | None:
    """What a process has said of the other's end."""
    for word in ("RankLostError", "JAX distributed service detected fatal errors"):
        if word in text:
            return word
    return None


def _read(file: Any) -> str:
    # By position: the process writes to the same open file.
    return os.pread(file.fileno(), 10**7, 0).decode(errors="replace")


def _record(method: str, settings: Any, figures: Any, began: float) -> Record:
    record = Record("scaling", method, "numpyro", "regression", 0, settings, figures or {})
    record.seconds = time.perf_counter() - began
    return record


def _start(options: dict[str, Any], devices: int, output: Any = None) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scaling.numpyro_worker"]
    return subprocess.Popen(
        [*command, json.dumps(options)],
        env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE if output is None else output,
        stderr=None if output is None else subprocess.STDOUT,
        text=True,
    )
