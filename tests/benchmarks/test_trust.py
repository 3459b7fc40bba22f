"""The benchmark of trust: outcomes are counted, runs are recorded, failures too."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.trust import methods, report, runner, worker
from benchmarks.trust.problems import Program, all_problems, chosen
from benchmarks.trust.runs import Case, figures_of, judged
from benchmarks.trust.target import Target, inside, precision
from tests.backends import PACKAGES, backend_of


def made_up(method: str, **figures: Any) -> records.Record:
    """A record of a run with these figures."""
    base = {"kind": "modes", "answerable": True, "right": True, "trusted": True}
    base |= {"evaluations": 100, "seconds to draws": 1.0, "Kolmogorov": 0.1, "dimension": 2}
    return records.Record(
        "trust", method, "pyro", "planted/x", 0, {"double": True}, {**base, **figures}
    )


def test_outcomes_are_counted_by_hand(tmp_path: Path) -> None:
    failed = made_up("svi")
    failed.figures, failed.error = {"kind": "modes", "answerable": True}, "ValueError: no"
    found = [
        made_up("fit"),
        made_up("fit", right=False, trusted=False, evaluations=300),
        made_up("fit", right=None, answerable=False, trusted=False),
        made_up("svi", right=False),
        made_up("svi", right=None, answerable=False),
        failed,
    ]
    fit, svi = report.counts(found)
    assert (fit["right, trusted"], fit["wrong, not trusted"], fit["no answer, not trusted"]) == (
        (1, 1, 1)
    )
    assert (svi["wrong, trusted"], svi["no answer, trusted"], svi["failed"]) == (1, 1, 1)
    assert fit["runs"] == 3 and fit["evaluations"] == 100.0
    (row,) = report.page_table(found[:3]).splitlines()[2:]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["Pyro", "2", "1", "0", "0", "1", "1 of 1", "100"]
    (row,) = report.missed_table(found[:3]).splitlines()[2:]
    assert "| right, trusted; wrong, not trusted |" in row
    (engine, *_) = report.engines_table(found[:3]).splitlines()[2:]
    assert [cell.strip() for cell in engine.split("|")[1:-1]] == [
        "`fit`",
        "Pyro",
        "1",
        "0",
        "0",
        "1",
    ]
    (kind,) = report.by_kind(found)
    assert kind["fit"] == "2/3" and kind["svi"] == "0/3, 2 misled"
    report.write(found, tmp_path)
    text = (tmp_path / "trust.md").read_text()
    assert "| wrong     |       0 |           1 |" in text
    assert "(trust/planted-x.md)" in text and (tmp_path / "trust.png").stat().st_size > 0
    assert "ValueError: no" in (tmp_path / "trust" / "planted-x.md").read_text()


def test_cost_of_effective_draws_by_hand() -> None:
    chains = {"warm-up": 1_000, "bulk ESS": 800.0}
    found = [
        made_up("fit", evaluations=2_000),
        made_up("nuts", evaluations=7_000, **chains),
        made_up("nutpie", evaluations=7_000, right=False, **chains),
        made_up("svi"),
    ]
    assert [report.cost(run) for run in found] == [2_000.0, 4_000.0, None, None]
    fit, nuts = report.costs(found)
    assert fit["right"] == nuts["right"] == "1 of 1" and "of fit" not in fit
    assert nuts["of fit"].startswith("0.5 [") and nuts["fit dearer"] == "0 of 1"
    assert "| NUTS, NumPyro | 1 of 1 |" in report.peers_table(found)


def test_chains_are_asked_what_the_field_asks() -> None:
    generator = np.random.default_rng(0)
    good = generator.normal(size=(4, 500))
    apart = good + np.array([0.0, 0.0, 0.0, 5.0])[:, None]
    chains = methods.Fitted({}, 1, chains=True)
    fixed = np.ones((4, 500))
    found = methods.judged_by_itself(chains, {"x": good, "fixed": fixed})
    assert found["trusted"] and found["R-hat"] < 1.01
    found = methods.judged_by_itself(chains, {"x": good, "y": apart})
    assert not found["trusted"] and len(found["told"]) == 2
    diverged = methods.Fitted({}, 1, chains=True, divergences=3)
    assert methods.judged_by_itself(diverged, {"x": good})["told"] == ["3 divergences"]
    silent = methods.judged_by_itself(methods.Fitted({}, 1), {})
    assert silent["trusted"] and not silent["told"]
    assert not methods.judged_by_itself(chains, {"fixed": fixed})["trusted"]


def test_fit_is_asked_for_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyro_ext

    stages = [types.SimpleNamespace(name="start", evaluations=40, seconds=0.5)] * 2
    verdict = types.SimpleNamespace(
        trusted=False, level="not trusted", reasons=["two modes"], cost=stages
    )
    asked: list[Any] = []

    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return types.SimpleNamespace(draws={"mu": np.zeros(9)}, verdict=verdict)

    monkeypatch.setattr(pyro_ext, "fit", fit, raising=False)
    program = Program(len, (1,), {"option": 2})
    found = methods.run_method("fit", "pyro", program, 0, methods.Size())
    assert asked == [((1,), {"option": 2, "seed": 0, "progress_bar": False})]
    assert found.evaluations == 80
    assert (found.trusted, found.level, found.reasons) == (False, "not trusted", ("two modes",))
    assert found.stages[0] == {"name": "start", "evaluations": 40, "seconds": 0.5}


def test_problems_are_chosen_by_name_and_pattern() -> None:
    problems = all_problems("embedded")
    assert len(problems) == len(set(problems)) >= 100
    assert [one.name for one in chosen(problems, ["funnel-centred-3d"])] == [
        "planted/funnel-centred-3d"
    ]
    assert {one.source for one in chosen(problems, ["zoo/*"])} == {"zoo"}
    assert len(chosen(problems, None)) == len(problems)
    with pytest.raises(LookupError, match="no-such"):
        chosen(problems, ["no-such"])


@pytest.mark.parametrize(
    "name",
    [
        "planted/dirichlet-plain",
        "zoo/nested_plates_subsampled",
        "embedded/eight_schools-eight_schools_noncentered",
    ],
)
def test_exact_draws_are_right_and_shifted_ones_wrong(name: str) -> None:
    problem = all_problems("embedded")[name]
    assert problem.reference is not None
    with precision("pyro", double=True):
        program = problem.program("pyro")
        draws = problem.sites.sites(problem.reference())
        target = Target("pyro", program.model, program.args, program.kwargs)
        z = target.unconstrain(draws)[:4_000]
        for shift, right in ((0.0, True), (0.5, False)):
            moved = target.constrain(z + shift * z.std(0))
            found = judged(problem, methods.Fitted(moved, None))
            assert found["right"] is right, found


@pytest.mark.parametrize("package", PACKAGES)
def test_precision_is_put_back(package: str) -> None:
    backend = backend_of(package)
    before = backend.numpy(backend.array(np.zeros(1))).dtype
    for double in (True, False):
        with precision(package, double=double):
            found = backend.numpy(backend.array(np.zeros(1))).dtype
        assert found == (np.float64 if double else np.float32)
    assert backend.numpy(backend.array(np.zeros(1))).dtype == before


def test_draws_on_the_edge_get_the_farthest_number() -> None:
    column = np.array([1.0, np.inf, -2.0, -np.inf])
    np.testing.assert_array_equal(inside(column), [1.0, 1.0, -2.0, -2.0])
    np.testing.assert_array_equal(inside(column[1::2]), column[1::2])


def test_draws_that_are_not_finite_are_wrong() -> None:
    problem = all_problems("embedded")["zoo/lognormal"]
    found = judged(problem, methods.Fitted({"x": np.full(9, np.nan)}, 1))
    assert found["right"] is False and found["trusted"]
    chains = methods.Fitted({"x": np.full((3, 9), np.nan)}, 1, chains=True)
    assert judged(problem, chains)["trusted"] is False
    improper = all_problems("embedded")["planted/improper-valley"]
    assert judged(improper, methods.Fitted({"z": np.full((9, 2), np.inf)}, 1))["right"] is None


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("method", ["svi", "nuts", "ProximalScoreVI", "SVN"])
def test_methods_run(package: str, method: str) -> None:
    problem = all_problems("embedded")["planted/gamma-poisson-6d"]
    found = figures_of(Case(problem.name, package, method, 0, share=0.02), problem)
    assert found["evaluations"] > 0 and found["dimension"] == 6 and found["seconds to draws"] > 0
    assert found["right"] in (True, False) and found["trusted"] in (True, False)


@pytest.mark.parametrize("method", ["pathfinder", "pathfinder-nuts", "window-nuts", "mams"])
def test_methods_of_blackjax_run(method: str) -> None:
    problem = all_problems("embedded")["zoo/gaussian_five"]
    found = figures_of(Case(problem.name, "numpyro", method, 0, share=0.02), problem)
    assert found["evaluations"] > 1_000 and found["dimension"] == 5
    assert method == "pathfinder" or 0 < found["warm-up"] < found["evaluations"]


def test_nutpie_is_right() -> None:
    pytest.importorskip("nutpie")
    problem = all_problems("embedded")["zoo/gaussian_five"]
    found = figures_of(Case(problem.name, "numpyro", "nutpie", 0, double=True, share=0.5), problem)
    assert found["right"] and found["draws"] == 2_000 and found["evaluations"] > 2_000


def test_command_records_failures_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> methods.Fitted:
        raise ArithmeticError("out of luck")

    monkeypatch.setattr(methods, "run_fit", refuse)
    options = ["trust", "--small", "--backends", "pyro", "--seeds", "1", "--out", str(tmp_path)]
    options += ["--database", "embedded", "--problems", "zoo/exponential", "improper-sum"]
    assert command_line.main([*options, "--methods", "svi", "fit"]) == 0
    found = records.read(tmp_path / "trust.jsonl")
    assert [record.method for record in found] == ["svi", "fit"] * 2
    assert found[0].figures["answerable"] and not found[2].figures["answerable"]
    assert found[0].figures["right"] in (True, False) and found[2].figures["right"] is None
    assert found[1].error == "ArithmeticError: out of luck"
    assert "out of luck" in capsys.readouterr().out
    # Kept, and nothing is run again.
    monkeypatch.setattr(runner, "figures_of", refuse)
    assert command_line.main([*options, "--methods", "svi", "--resume"]) == 0
    assert len(records.read(tmp_path / "trust.jsonl")) == 4
    assert command_line.main([*options[:-2], "no-such"]) == 2


def test_a_fresh_process_gives_figures_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("zoo/exponential", "pyro", "svi", 0, share=0.02)
    found = worker.in_a_process(case, "embedded", 200)
    assert found["evaluations"] == 100 and found["dimension"] == 1
    with pytest.raises(worker.ChildFailed, match="no result within 0 s"):
        worker.in_a_process(case, "embedded", 0)
    monkeypatch.setattr(worker.sys, "executable", "false")
    with pytest.raises(worker.ChildFailed, match="status 1: no message"):
        worker.in_a_process(case, "embedded", 200)
