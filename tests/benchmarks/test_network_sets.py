"""Networks on sets: members that stop early, a whole small run, tables from known figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.bnn.protocol import split_rows
from benchmarks.datasets import Dataset, Split
from benchmarks.network_truth import ensembles, sets
from benchmarks.network_truth.ensembles import EarlyStopping, ensemble, means_of
from benchmarks.network_truth.networks import Network, bound
from benchmarks.network_truth.outputs import predicted
from benchmarks.records import Record
from benchmarks.trust.methods import Fitted, Size
from benchmarks.trust.target import Target
from tests.backends import PACKAGES

#: Scale of the response of the set below.
SCALE = 50.0


def line() -> Dataset:
    """Rows of a line with noise, in units of its own."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    y = SCALE * (x[:, 0] + 0.3 * generator.normal(size=60))
    order = np.arange(60)
    return Dataset("line", "regression", x, y, "", ((order[:50], order[50:]),))


def small(part: str = "test") -> Network:
    """A network of two hidden layers of three units on that."""
    rows = split_rows(line(), 0, 0.1)
    split = Split(rows.x, rows.y, *rows.parts[part])
    return Network("line", lambda: split, (2, 3, 3, 1), "noise")


@pytest.mark.parametrize("package", PACKAGES)
def test_means_of_members_are_those_of_the_program(package: str) -> None:
    with_rows = bound(small(), package)
    target = Target(package, with_rows.program.model, with_rows.program.args)
    draws = target.constrain(np.random.default_rng(1).normal(size=(4, target.dim)))
    found = predicted(package, with_rows.program.model, draws, with_rows.held_out)
    means = means_of(draws, small().rows().x_test)
    np.testing.assert_allclose(means, found.values[:, :-1], rtol=1e-4, atol=1e-5)


def test_members_stop_by_themselves_and_are_taken_where_they_were_best() -> None:
    x, y = np.zeros((1, 1)), np.zeros(1)
    stopping = EarlyStopping(x, y)

    def look(*bias: float) -> bool:
        draws = {"net.0.weight": np.zeros((2, 1, 1)), "net.0.bias": np.array(bias)[:, None]}
        return stopping({**draws, "noise": np.ones(2)})

    # The first member is best at its second look, and would be better after it has stopped.
    assert not look(0.5, 9.0) and not look(0.25, 8.0)
    for step in range(ensembles.PATIENCE):
        assert not look(1.0, 7.0 - 0.1 * step)
    for step in range(ensembles.PATIENCE):
        assert look(0.0, 10.0) is (step == ensembles.PATIENCE - 1)
    best = 7.0 - 0.1 * (ensembles.PATIENCE - 1)
    np.testing.assert_allclose(stopping.draws["net.0.bias"][:, 0], [0.25, best])
    assert stopping.epochs == 2 + 2 * ensembles.PATIENCE


@pytest.mark.parametrize("package", PACKAGES)
def test_an_ensemble_learns_the_line(package: str) -> None:
    rows = split_rows(line(), 0, 0.1)
    members = ensemble(small("validation"), package, rows, 0, Size(0.04))
    x, y = rows.parts["test"]
    errors = means_of(members.draws, x).mean(0) - y
    # Members start at draws of the prior, whose mean explains nothing; the response has scale 1.
    assert np.sqrt(np.square(errors).mean()) < 0.7
    # 20 epochs of 40 steps of 16 members, each by 32 of 45 rows.
    assert members.evaluations == int(np.ceil(20 * 40 * 16 * 32 / 45))


def small_run(
    methods: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[Record]]:
    """The command on the line, with draws of the prior in place of a fit; status and records."""
    monkeypatch.setattr("benchmarks.datasets.external", lambda name: line())

    def drawn(backend: str, program: Any, seed: int, **options: Any) -> Fitted:
        assert len(options["held_out"][1]) == 5
        target = Target(backend, program.model, program.args)
        z = np.random.default_rng(seed).normal(size=(16 * 5, target.dim))
        return Fitted(target.constrain(z), 80, trusted=True, level="exact")

    monkeypatch.setattr(sets, "run_fit", drawn)
    given = ["network-sets", "--sets", "yacht", "--units", "3", "--splits", "1", "--small"]
    given += ["--methods", *methods, "--resume", "--out", str(folder)]
    status = command_line.main(given)
    return status, records.read(folder / "network-sets.jsonl")


def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ("fit", "DeepEnsemble")
    status, found = small_run(methods, tmp_path, monkeypatch)
    assert status == 0, capsys.readouterr()
    assert [(run.backend, run.method) for run in found] == [
        (package, name) for package in ("numpyro", "pyro") for name in methods
    ]
    for run in found:
        assert run.error is None
        assert run.figures["rows"] == 45 and run.figures["dimension"] == 26
        assert (run.figures["median R-hat"] is None) == (run.method == "DeepEnsemble")
        # In the units of the set: nothing that is not far off is denser than the noise alone.
        assert run.figures["log density"] < norm.logpdf(0.0, scale=0.15 * SCALE)
        assert 0.15 * SCALE < run.figures["RMSE"] < 10.0 * SCALE
    before = (tmp_path / "network-sets.jsonl").read_text()
    assert small_run(methods, tmp_path, monkeypatch)[0] == 0
    assert (tmp_path / "network-sets.jsonl").read_text() == before
    assert "| yacht |     3 | NumPyro | DeepEnsemble |" in capsys.readouterr().out
    assert (tmp_path / "network-sets.png").stat().st_size > 10_000


@pytest.mark.slow
def test_chains_go_on_from_the_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = small_run(sets.METHODS[1:], tmp_path, monkeypatch)
    assert status == 0
    members, *chains = (run for run in found if run.backend == "numpyro")
    assert [run.method for run in chains] == list(sets.NUMPYRO_ALONE)
    for run in chains:  # they pay for the members that they start from
        assert run.error is None and run.figures["median R-hat"] is not None
        for cost in ("evaluations", "processor seconds"):
            assert run.figures[cost] > members.figures[cost]
    # Ten parts of 50 steps and 200 after them, of two scores, in 16 chains.
    spent = chains[0].figures["evaluations"] - members.figures["evaluations"]
    assert spent == 2 * 16 * (10 * 50 + 20 * 10)


def known(method: str, split: int, density: float, **options: Any) -> Record:
    """A record with these figures."""
    figures = {
        **{"log density": density, "RMSE": 1.0, "calibration error": 0.1, "median R-hat": None},
        **{"evaluations": 10, "processor seconds": 1.5, "trusted": split == 0},
    }
    settings = {"units": 16, "share": 1.0}
    return Record("network-sets", method, "pyro", "yacht", split, settings, figures, **options)


def test_a_rival_is_held_against_the_same_splits() -> None:
    runs = [known("fit", n, level) for n, level in enumerate((-1.0, -2.0, -3.0))]
    runs += [known("DeepEnsemble", n, level) for n, level in enumerate((-1.1, -2.2))]
    runs += [known("DeepEnsemble", 2, np.nan, error="FloatingPointError: thrown")]
    fit, rival = sets.rows_of(runs)
    assert fit["log density"] == "-2.000 ± 0.577" and "fit is" not in fit
    assert rival["less that of fit"] == "-0.150 ± 0.050" and rival["fit is"] == "ahead"
    assert fit["trusted"] == "1 of 3" and rival["trusted"] == "1 of 2, 1 failed"
    assert sets.standing([0.1, -0.1, 0.2]) == "level"
    assert sets.standing([0.1, 0.11, 0.12]) == "behind"
    assert sets.standing([0.1]) == "one split"
    (failed,) = sets.rows_of([known("fit", 0, 0.0, error="ValueError: no")])
    assert failed["trusted"] == "failed"


def test_median_r_hat_sees_chains_that_stand_apart() -> None:
    values = np.random.default_rng(0).normal(size=(400, 3))
    assert sets.median_r_hat(values, (400,)) is None
    together = sets.median_r_hat(values, (4, 100))
    values[:100, :2] += 5.0  # two of three outputs
    apart = sets.median_r_hat(values, (4, 100))
    assert together is not None and apart is not None and together < 1.05 < 1.5 < apart


def test_compiling_is_of_the_run_that_it_is_counted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(sets, "forget_programs", partial(order.append, "forget"))
    fitted = Fitted({}, 80)

    def work() -> Fitted:
        order.append("fit")
        return fitted

    assert sets.timed(work)[0] is fitted
    assert order == ["forget", "fit"]
