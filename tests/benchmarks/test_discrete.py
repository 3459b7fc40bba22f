"""The benchmark of programs with discrete latent sites: it runs and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.discrete.programs import large_mixture


def test_the_large_mixture_is_a_density() -> None:
    # Its own entropy is the least that rows can cost on average, whatever is held out.
    y, held_out, best = large_mixture(2000, 4)
    assert len(y) == 2000 and len(held_out) == 10_000
    other = held_out.std()
    normal = -0.5 * np.log(2.0 * np.pi * other**2) - 0.5
    assert normal < best < 0.0


def test_gradients_are_recorded(tmp_path: Path) -> None:
    options = ["--parts", "gradient", "--backend", "pyro", "--programs", "zero_inflated"]
    assert command_line.main(["discrete", *options, "--out", str(tmp_path)]) == 0
    (run,) = records.read(tmp_path / "discrete.jsonl")
    assert run.figures["one beside the host's"] > 0.0 and not run.failed
    assert "zero_inflated" in (tmp_path / "discrete.md").read_text(encoding="utf-8")
    assert command_line.main(["discrete", "--programs", "none", "--out", str(tmp_path)]) == 2
