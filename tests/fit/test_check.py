"""``check`` on draws that are right, and on planted wrong ones, in both packages.

A problem of NumPy's own stands for a program where the witnesses alone are asked; each of them must
see its own fault, and pass right draws.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t

from ppl_ext.check import check as module
from ppl_ext.check.check import Program, check
from ppl_ext.check.own_chains import energy_fraction, own_chains
from ppl_ext.check.source import Source, source_of
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.ladder.written import best_written
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict.comparison import Columns, compared, dependence, flat_columns
from ppl_ext.fit.verdict.facts import Engine
from ppl_ext.fit.verdict.levels import judge_engine
from ppl_ext.fit.verdict.verdict import SiteFigures, Verdict
from ppl_ext.start.search import InPieces
from ppl_ext.witnesses.drift import drift
from ppl_ext.witnesses.ratios import importance_ratios
from ppl_ext.witnesses.stein import stein_identities
from ppl_ext.witnesses.touched import untouched
from tests.backends import from_zoo
from tests.fit.test_fit import CENTRES, fit_of, five_means, rows_of_a_normal
from tests.fit_support import WITHOUT_PROGRAM

DIM = 5
NAMES = [f"x[{k}]" for k in range(DIM)]
#: Of the posterior that NumPy's own problem has: correlated Normals.
COVARIANCE = 0.5 * np.eye(DIM) + 0.5
PRECISION = np.linalg.inv(COVARIANCE)
ROOT = np.linalg.cholesky(COVARIANCE)
FAULTS = ["shifted", "narrow", "wide", "tail"]


def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density and score of the Normal."""
    return -0.5 * np.einsum("ni,ij,nj->n", z, PRECISION, z), -z @ PRECISION


def right(generator: np.random.Generator, number: int = 1_000) -> np.ndarray:
    return generator.normal(size=(number, DIM)) @ ROOT.T


def planted(fault: str, x: np.ndarray) -> np.ndarray:
    """Right draws with a fault in the third coordinate, whose standard deviation is 1."""
    x = x.copy()
    if fault == "shifted":
        x[:, 2] += 0.3
    elif fault == "narrow":
        x[:, 2] *= 0.7
    elif fault == "wide":
        x[:, 2] *= 1.4
    elif fault == "half":
        x[:, 2] = -np.abs(x[:, 2])
    elif fault == "tail":
        x = x[x[:, 2] < 2.0]
    elif fault == "spikes":  # mean and standard deviation are right
        x[:, 2] = np.sign(x[:, 2])
    elif fault == "uncorrelated":
        x[:, 2] = np.roll(x[:, 2], 1)
    elif fault == "not a number":
        x[3, 2] = np.nan
    elif fault == "a point":
        x[:, 2] = 0.5
    return x


def program(density: Callable[[np.ndarray], Any] = evaluate, **changes: Any) -> Program:
    """NumPy's own problem."""
    options: dict[str, Any] = {
        "name": "as written",
        "evaluate": density,
        "dim": DIM,
        "epsilon": 1e-16,
        "starting_points": lambda number: np.zeros((number, DIM)),
        "coordinates": {"x": slice(0, DIM)},
        "values": lambda z: {"x": z},
        "target": WITHOUT_PROGRAM,
        "own": None,
        "data": None,
        "digest": lambda: "",
    }
    written = Problem(**{**options, **changes})
    return Program(
        written,
        lambda: [written],
        lambda draws: np.asarray(draws["x"], float),
        lambda: {"x": (DIM,)},
        lambda z: (-z, density(z)[1]),
    )


def reference(generator: np.random.Generator, number: int = 2_000) -> Fit:
    """A fit that ended with independent draws."""
    verdict = Verdict(
        "exact", ("R-hat 1.0",), {"x": SiteFigures(float(number), float(number), 1.0)}
    )
    return Fit({"x": right(generator, number)}, verdict, 16)


def verdict_on(x: np.ndarray, generator: np.random.Generator, fit: Fit | None = None) -> Verdict:
    made = reference(generator) if fit is None else fit
    source = Source("draws", "draws", {"x": x})
    return check(source, program(), generator, progress_bar=False, reference=lambda: made)


def test_right_draws_are_confirmed() -> None:
    """Of 60 sets of draws at most three are refused, four times as many as the levels allow."""
    generator = np.random.default_rng(0)
    verdicts = [verdict_on(right(generator, 400), generator) for _ in range(60)]
    assert sum(not verdict.trusted for verdict in verdicts) <= 3
    first = next(verdict for verdict in verdicts if verdict.trusted)
    assert first.level == "approximate" and "the draws agree with chains" in str(first)
    assert Verdict.from_json(first.as_json()).as_json() == first.as_json()
    site = first.by_site["x"]
    # Bounds on errors, wider than the errors of chance themselves.
    assert 0.05 < site.mean_error < 0.4 and 0.03 < site.deviation_error < 0.4
    assert first.evaluations > 400 and "drift" in str(first)


@pytest.mark.parametrize(
    "fault", [*FAULTS, "half", "spikes", "uncorrelated", "not a number", "a point"]
)
def test_wrong_draws_are_refused(fault: str) -> None:
    generator = np.random.default_rng(1)
    for _ in range(10):
        verdict = verdict_on(planted(fault, right(generator, 2_000)), generator)
        assert not verdict.trusted and verdict.level == "not trusted"
        assert fault != "a point" or "All draws of 'x[2]' are one number" in verdict.reasons[0]


@pytest.mark.parametrize("fault", [*FAULTS, "half", "spikes"])
def test_the_comparison_alone_sees_marginals(fault: str) -> None:
    generator = np.random.default_rng(2)
    shapes = {"x": (DIM,)}
    theirs = flat_columns({"x": right(generator, 2_000)}, shapes, 16)
    good = flat_columns({"x": right(generator)}, shapes)
    bad = flat_columns({"x": planted(fault, right(generator, 2_000))}, shapes)
    assert not compared(good, theirs, DIM).wrong
    found = compared(bad, theirs, DIM)
    assert found.wrong and found.worst.name == "x[2]" and "'x[2]'" in found.worst.told
    # Numbers have the names that they have elsewhere.
    named = flat_columns({"w": np.zeros((5, 2, 2)), "m": np.zeros(5)}, {"w": (2, 2), "m": ()})
    assert named.names == ["w[0, 0]", "w[0, 1]", "w[1, 0]", "w[1, 1]", "m"]


@pytest.mark.parametrize("missing", [0.4, -0.6])
@pytest.mark.parametrize("dim", [2, 20])
def test_the_comparison_sees_a_dependence_that_is_missing_or_made_up(
    dim: int, missing: float
) -> None:
    """Beside chains worth 400 draws, whose marginals are those of the draws."""
    generator = np.random.default_rng(3)
    covariance = np.eye(dim)
    covariance[0, -1] = covariance[-1, 0] = missing
    root = np.linalg.cholesky(covariance)

    def drawn(number: int, *, has_it: bool, chains: int = 1) -> Columns:
        noise = generator.normal(size=(number, dim))
        # Lognormal, as of scales: ranks do not know.
        values = {"x": np.exp(noise @ root.T if has_it else noise)}
        return flat_columns(values, {"x": (dim,)}, chains)

    for own, theirs in ((True, False), (False, True)):
        found = dependence(drawn(2_000, has_it=own), drawn(400, has_it=theirs, chains=16))
        assert found is not None and found.share > 1.0
        assert found.names == ("x[0]", f"x[{dim - 1}]")
    shares = [
        dependence(drawn(400, has_it=True), drawn(400, has_it=True, chains=16)).share
        for _ in range(50)
    ]
    assert max(shares) < 1.0 and max(shares) > 0.3


def test_right_draws_that_depend_strongly_are_not_called_off() -> None:
    """Ranks of few draws tell no correlation of 0.9999 from 1, nor does a column of one number."""
    generator = np.random.default_rng(4)

    def drawn(number: int, chains: int = 1) -> Columns:
        z, small = generator.normal(size=(2, number))
        x = np.stack([z, -z + 1e-3 * small, np.full(number, 0.1)], 1)
        return flat_columns({"x": x}, {"x": (3,)}, chains)

    for number in (50, 400, 2_000):
        found = dependence(drawn(number), drawn(800, 16))
        assert found is not None and found.share < 0.5


def test_products_may_be_worth_less_than_what_they_are_of() -> None:
    """Chains that turn round at every step: means are known well, and products are not."""
    generator = np.random.default_rng(5)

    def turning(number: int, dim: int) -> Columns:
        x = np.zeros((number, dim))
        noise = generator.normal(size=(number, dim)) * np.sqrt(1.0 - 0.97**2)
        x[0] = generator.normal(size=dim)
        for k in range(1, number):
            x[k] = -0.97 * x[k - 1] + noise[k]
        return flat_columns({"x": x}, {"x": (dim,)})

    normal = flat_columns({"x": generator.normal(size=(4_000, 20))}, {"x": (20,)})
    found = [dependence(turning(1_000, 20), normal) for _ in range(10)]
    assert sum(each is not None and each.share > 1.0 for each in found) <= 1


def test_a_dependence_that_differs_is_told_by_check_and_of_engines() -> None:
    generator = np.random.default_rng(6)
    noise = generator.normal(size=(2_000, 2))
    own = flat_columns({"x": noise}, {"x": (2,)})
    turned = noise @ np.array([[1.0, 0.7], [0.0, 0.71]])
    theirs = flat_columns({"x": turned}, {"x": (2,)}, 16)
    found = compared(own, theirs, 2)
    assert not found.wrong and "'x[0]' and 'x[1]' have a rank correlation" in found.dependent
    engine = Engine("SVGD", 1_000, settled=True, moving=0.0, figure="0 sd")
    level, reasons = judge_engine(engine, Verdict("exact", ("Fine.",)), 0, found.dependent)
    assert level == "not trusted" and found.dependent in " ".join(reasons)


@pytest.mark.parametrize("nowhere", [np.nan, -np.inf])
def test_a_draw_of_chains_without_a_density_leaves_the_others_compared(
    nowhere: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marginals are right here, so that the log density alone tells."""
    generator = np.random.default_rng(2)
    made = reference(generator)
    made.draws["x"][3] = 9.0

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = evaluate(z)
        return np.where((z == 9.0).any(1), nowhere, values), scores

    # Those that are heard before see the fault as well.
    monkeypatch.setattr(module, "stein_identities", lambda z, *_: stein_identities(z, -z, NAMES))
    monkeypatch.setattr(module, "drift", lambda *_, **__: None)
    source = Source("draws", "draws", {"x": planted("uncorrelated", right(generator, 2_000))})
    verdict = check(source, program(density), generator, progress_bar=False, reference=lambda: made)
    assert any("Log densities at the draws" in reason for reason in verdict.reasons)


def test_draws_that_depend_on_each_other_count_as_fewer() -> None:
    """A mean that is off by chance is no fault of a slow chain."""
    generator = np.random.default_rng(3)
    x, noise = np.zeros((1_000, DIM)), generator.normal(size=(1_000, DIM))
    for row in range(1, 1_000):
        x[row] = 0.98 * x[row - 1] + np.sqrt(1 - 0.98**2) * noise[row]
    shapes = {"x": (DIM,)}
    theirs = flat_columns({"x": generator.normal(size=(2_000, DIM))}, shapes, 16)
    own = flat_columns({"x": x}, shapes)
    assert np.abs(x.mean(0)).max() > 0.2 and not compared(own, theirs, DIM).wrong


def test_heavy_tails_leave_draws_confirmed() -> None:
    """Of a Student t with two degrees of freedom no standard deviation is known."""
    generator = np.random.default_rng(5)
    shapes = {"heavy": (), "x": ()}

    def both(number: int) -> dict[str, Any]:
        # At equal steps of probability, so that tails are as heavy whatever the generator.
        levels = (generator.permutation(number) + 0.5) / number
        return {"heavy": student_t.ppf(levels, 2.0), "x": generator.normal(size=number)}

    theirs = flat_columns(both(8_000), shapes, 16)
    found = compared(flat_columns(both(2_000), shapes), theirs, len(shapes))
    assert not found.wrong and not found.unsure
    assert found.by_site["heavy"].deviation_error == np.inf
    assert found.by_site["x"].deviation_error < 0.3
    wide = {name: 1.5 * values for name, values in both(2_000).items()}
    assert compared(flat_columns(wide, shapes), theirs, len(shapes)).wrong == 2


@pytest.mark.parametrize("fault", ["shifted", "narrow", "wide", "half", "spikes"])
def test_drift_alone_sees_what_moves(fault: str) -> None:
    generator = np.random.default_rng(4)
    options: dict[str, Any] = {"chains": 4_000, "transitions": 4}
    good = drift(evaluate, right(generator, 4_000), generator, NAMES, **options)
    bad = drift(evaluate, planted(fault, right(generator, 4_000)), generator, NAMES, **options)
    assert good is not None and not good.is_adrift and good.nested_r_hat < 1.1
    assert bad is not None and bad.is_adrift
    # Towards the posterior: back to the mean, or out to the width.
    if fault == "shifted":
        assert bad.sizes[0, 2] < -0.2
    if fault == "narrow":
        assert bad.sizes[1, 2] > 0.2


def test_drift_of_right_draws_is_seldom_called_so() -> None:
    """Also where the density has a jump, which Stein's identities do not survive."""
    generator = np.random.default_rng(5)

    def steps(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = (z > 0.0).all(1)
        return np.where(inside, -z.sum(1), -np.inf), -np.ones_like(z)

    exponential = generator.exponential(size=(500, DIM))
    found = drift(steps, exponential, generator, NAMES, chains=500, transitions=6)
    assert found is not None and not found.is_adrift
    assert stein_identities(exponential, steps(exponential)[1], NAMES).is_off
    adrift = 0
    for _ in range(40):
        found = drift(evaluate, right(generator, 256), generator, NAMES, chains=256, transitions=3)
        adrift += found is not None and found.is_adrift
    assert adrift <= 1


@pytest.mark.parametrize("fault", ["shifted", "narrow", "wide", "half", "uncorrelated"])
def test_steins_identities_alone_see_it(fault: str) -> None:
    generator = np.random.default_rng(6)
    x = right(generator)
    assert not stein_identities(x, evaluate(x)[1], NAMES).is_off
    # A score with the wrong sign is seen as well.
    assert stein_identities(x, -evaluate(x)[1], NAMES).is_off
    x = planted(fault, x)
    found = stein_identities(x, evaluate(x)[1], NAMES)
    assert found.is_off and "Stein's identities" in found.told


def test_importance_ratios_alone_see_wrong_moments() -> None:
    generator = np.random.default_rng(7)

    def of_normal(mean: float, scale: float) -> Any:
        z = mean + scale * generator.normal(size=(2_000, 2))
        log_q = -0.5 * np.square((z - mean) / scale).sum(1) - 2.0 * np.log(scale)
        return importance_ratios(z, -0.5 * np.square(z).sum(1), log_q, 1e-16, ["a", "b"])

    right_one = of_normal(0.0, 1.0)
    assert not right_one.is_off and right_one.can_correct and right_one.share > 0.99
    shifted, wide = of_normal(0.3, 1.1), of_normal(0.0, 1.4)
    assert shifted.is_off and np.all(shifted.mean < -0.2)
    assert wide.is_off and np.allclose(wide.deviation, np.log(1.4), atol=0.1)
    # Far too narrow: nothing is to be believed, so nothing is refused.
    narrow = of_normal(0.0, 0.3)
    assert not narrow.can_correct and not narrow.is_off


def test_ratios_tell_a_distribution_function_that_is_off() -> None:
    """Draws with the posterior's mean and standard deviation, and without skewness."""
    generator = np.random.default_rng(12)

    def of_mixture(apart: float, exact: bool) -> Any:
        signs = generator.choice([-1.0, 1.0], size=(496, 1))
        z = generator.normal(size=(496, 2))
        if exact:
            z[:, :1] += signs * apart
            return importance_ratios(z, -0.5 * z[:, 1] ** 2, -0.5 * z[:, 1] ** 2, 1e-16, "ab")
        z[:, 0] *= np.sqrt(1.0 + apart**2)
        heights = np.logaddexp(*(-0.5 * np.square(z[:, 0] - s * apart) for s in (-1.0, 1.0)))
        log_q = -0.5 * np.square(z[:, 0]) / (1.0 + apart**2)
        return importance_ratios(z, heights, log_q, 1e-16, "ab")

    found = [of_mixture(2.0, False) for _ in range(20)]
    # Between a Normal and the mixture with its moments.
    assert np.mean([each.distance[0] for each in found]) == pytest.approx(0.10, abs=0.03)
    assert sum(each.is_misplaced for each in found) > 10
    assert not any(each.is_skewed or each.moves for each in found)
    assert not of_mixture(2.0, True).is_misplaced
    # Draws whose other coordinate is wrong: the weights' noise is not taken for a distance.
    wide = []
    for _ in range(100):
        z = generator.normal(size=(496, 2)) * [1.0, 1.5]
        log_p, log_q = -0.5 * np.square(z).sum(1), -0.5 * np.square(z / [1.0, 1.5]).sum(1)
        wide.append(importance_ratios(z, log_p, log_q, 1e-16, "ab"))
    assert all(each._distances()[0] <= 1.0 for each in wide if each is not None)


def test_log_ratios_tell_skewness() -> None:
    """A Normal guide with the best mean and spread, of the logarithm of a Gamma variable."""
    generator = np.random.default_rng(11)

    def of_log_gamma(shape: float, sign: float = 1.0, exact: bool = False) -> Any:
        spread, mean = 1.0 / np.sqrt(shape), np.log(shape) - 0.5 / shape
        z = mean + spread * generator.normal(size=(496, 2))
        if exact:
            z = np.log(generator.gamma(shape, size=(496, 2)))
        log_p = (shape * z - np.exp(z)).sum(1)
        log_q = log_p if exact else -0.5 * np.square((z - mean) / spread).sum(1)
        return importance_ratios(sign * z, log_p, log_q, 1e-16, ["a", "b"])

    for sign in (1.0, -1.0):
        found = of_log_gamma(1.0, sign)
        # The logarithm of an Exponential variable has a skewness of -1.14.
        assert found.is_skewed and np.all(np.abs(found.skewness + sign) < 0.5)
        assert f"longer tail on the {'left' if sign > 0 else 'right'}" in found.told_of_skewness
    # -0.47: the guide's standard deviation and quantiles are right enough.
    mild = [of_log_gamma(5.0) for _ in range(50)]
    assert not any(found.is_skewed for found in mild)
    assert np.mean([found.skewness for found in mild]) == pytest.approx(-0.45, abs=0.05)
    # Draws that are as skewed as the posterior.
    assert not of_log_gamma(0.5, exact=True).is_skewed


def test_chains_tell_of_themselves() -> None:
    generator = np.random.default_rng(8)
    draws = generator.normal(size=(500, 4, 2))
    energy = generator.normal(size=(500, 4))
    good = own_chains(draws, ["a", "b"], 0.0, energy)
    assert not good.against and good.ess_bulk.min() > 1_000 and good.bfmi is not None
    assert good.bfmi == pytest.approx(2.0, rel=0.2)
    # A slow walk of the energy.
    assert energy_fraction(np.cumsum(energy, 0)) < 0.3
    draws[:, 0, 1] += 2.0
    bad = own_chains(draws, ["a", "b"], 0.02)
    assert "R-hat" in bad.against[0] and "'b'" in bad.against[0] and "2.0% divergent" in bad.told


def test_sites_without_data_are_named() -> None:
    """A scale is touched through the effects that it scales; a site of its own is not."""

    def parts(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        effect, scale, alone = z.T
        prior = [-effect * np.exp(-2 * scale), effect**2 * np.exp(-2 * scale) - 1, -alone]
        return np.stack(prior, 1), np.stack([1 - effect, 0 * scale, 0 * alone], 1)

    where = {"effect": slice(0, 1), "scale": slice(1, 2), "alone": slice(2, 3)}
    z = np.random.default_rng(9).normal(size=(20, 3))
    assert untouched(parts, where, z) == ["alone"]


def test_sites_and_shapes_must_be_the_models() -> None:
    generator = np.random.default_rng(10)
    with pytest.raises(ArgumentError, match="found none of 'x'"):
        check(Source("", "draws", {"y": np.zeros(3)}), program(), generator, progress_bar=False)
    with pytest.raises(ArgumentError, match=r"shape \(draws, 5\)"):
        verdict_on(np.zeros((3, 4)), generator)
    with pytest.raises(ArgumentError, match="Expected draws as a mapping"):
        source_of(3.0, lambda _: None)


def test_chains_that_could_not_tell_are_said() -> None:
    generator = np.random.default_rng(11)
    lost = reference(generator)
    lost.verdict = Verdict("not trusted", ("Chains disagree.",))
    verdict = verdict_on(right(generator, 400), generator, lost)
    assert verdict.level == "approximate" and not verdict.trusted
    assert verdict.reasons[0] == "The comparison with chains decided nothing: Chains disagree."


def test_what_cannot_be_afforded_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is evaluated of huge programs, or with too many rows; a small budget is kept."""
    generator = np.random.default_rng(12)

    def never(*_: Any) -> Any:
        raise AssertionError("evaluated")

    source = Source("draws", "draws", {"x": right(generator, 400)})
    given: dict[str, Any] = {"progress_bar": False, "reference": lambda: never(0)}
    said: dict[str, Any] = {"predictions": lambda: "Held-out rows: fine."}
    batch = program()
    batch.written = replace(batch.written, of_all_rows=InPieces(never), times_all_rows=1e12)
    verdict = check(source, batch, generator, **given, **said)
    assert verdict.level == "approximate" and not verdict.trusted and verdict.evaluations < 40
    assert (
        "all rows the search alone would take" in verdict.reasons[0]
        and "Held-out rows: fine." in verdict.reasons
    )
    monkeypatch.setattr(module, "MOST_COORDINATES", 4)
    verdict = check(source, program(never), generator, **given)
    assert verdict.level == "approximate" and "too many" in verdict.reasons[0]
    monkeypatch.undo()
    verdict = check(source, program(), generator, budget=100, **given)
    assert verdict.evaluations < 50 and "too dear" in verdict.reasons[0]
    verdict = check(source, program(), generator, budget=5_000, **given)
    assert not verdict.trusted and verdict.level == "approximate" and verdict.evaluations < 6_000
    assert "budget" in verdict.reasons[0]


@pytest.mark.in_one_package
def test_many_rows_are_all_taken_where_there_is_time(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", 400)
    model, y, mean, deviation = rows_of_a_normal(backend)
    exact = mean + deviation * np.random.default_rng(1).normal(size=2_000)
    key = () if backend.is_pyro else (backend.key(6),)
    found = backend.public.check(*key, {"mean": exact}, model, y, progress_bar=False)
    assert found.trusted
    shifted = {"mean": exact + 0.4 * deviation}
    found = backend.public.check(*key, shifted, model, y, progress_bar=False)
    assert found.level == "not trusted"


def test_a_program_is_checked(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args, seed=3)
    key = () if backend.is_pyro else (backend.key(5),)
    options = {"progress_bar": False, **({"seed": 5} if backend.is_pyro else {})}
    found = backend.public.check(*key, fit, model, *args, held_out=args, **options)
    assert any(reason.startswith("Held-out rows: log likelihood") for reason in found.reasons)
    assert found.trusted and found.level == "approximate" and found.evaluations > 0
    assert json.loads(found.as_json())["confirmed"] and "Its own chains" in str(found)
    wide = {name: 2.0 * value for name, value in fit.draws.items()}
    assert not backend.public.check(*key, wide, model, *args, **options).trusted
    with pytest.raises(ArgumentError, match="Expected draws as a mapping"):
        backend.public.check(*key, 3.0, model, *args, **options)


TIMES = np.array([0.4, 1.1, 2.9, 2.2, 3.8])


def rate_of(backend: Any) -> tuple[Any, np.ndarray]:
    """A rate of waiting times, and exact draws of it: Gamma(2 + n, 1 + sum)."""

    def model(y: Any) -> None:
        rate = backend.host.sample("rate", backend.dist.Gamma(backend.array(2.0), 1.0))
        with backend.host.plate("rows", len(y)):
            backend.host.sample("y", backend.dist.Exponential(rate), obs=y)

    exact = np.random.default_rng(0).gamma(7.0, 1.0 / (1.0 + TIMES.sum()), 2_000)
    return model, exact


def test_any_draw_outside_of_the_support_is_refused(backend: Any) -> None:
    model, exact = rate_of(backend)
    key = () if backend.is_pyro else (backend.key(6),)
    for number in (1, 15):
        outside = exact.copy()
        outside[:number] = -1.0
        found = backend.public.check(
            *key, {"rate": outside}, model, backend.array(TIMES), progress_bar=False
        )
        assert found.level == "not trusted"
        assert f"{number} of 2000 draws lie outside of their supports, most in 'rate'" in str(found)


def test_draws_at_the_edge_of_the_support_are_not_outside(backend: Any) -> None:
    """Shares that add up to a little more than one, as they do in single precision."""

    def model(y: Any) -> None:
        alpha = backend.array([1.0, 1.0, 1.0])
        shares = backend.host.sample("shares", backend.dist.Dirichlet(alpha))
        backend.host.sample("y", backend.dist.Normal(shares[0], 1.0), obs=y)

    exact = np.random.default_rng(0).dirichlet(np.ones(3), 400)
    exact[:3] = [0.7, 0.3 + 1e-6, 0.0]
    key = () if backend.is_pyro else (backend.key(6),)
    given = {"shares": exact}
    found = backend.public.check(
        *key, given, model, backend.array(0.3), progress_bar=False, budget=1_000
    )
    assert "outside" not in str(found)


def test_one_draw_is_refused(backend: Any) -> None:
    model, exact = rate_of(backend)
    key = () if backend.is_pyro else (backend.key(6),)
    with pytest.raises(ArgumentError, match="two draws or more of each chain, found 1 in all"):
        backend.public.check(
            *key, {"rate": exact[:1]}, model, backend.array(TIMES), progress_bar=False
        )


def test_draws_whose_deviation_may_be_off_are_not_confirmed() -> None:
    generator = np.random.default_rng(3)
    few = right(generator, 40)
    found = verdict_on(few, generator, reference(generator))
    assert not found.trusted
    assert "may be off by" in str(found) or "too few" in str(found)


@pytest.mark.in_one_package
def test_labels_that_can_be_exchanged_mean_nothing(backend: Any) -> None:
    """Chains in one order of labels, and in several, are right; those of other posteriors wrong."""
    generator = np.random.default_rng(0)
    y = np.repeat(CENTRES, 8) + 0.5 * generator.normal(size=40)
    model, args = five_means(backend, as_sites=False), (backend.array(y),)
    # Components are so far apart that each row belongs to one.
    precision = 8.0 + 1.0 / 400.0
    mean, deviation = y.reshape(5, 8).sum(1) / precision, 1.0 / np.sqrt(precision)
    chains = generator.normal(size=(4, 500, 5)) * deviation + mean
    orders = generator.permuted(np.tile(np.arange(5), (4, 1)), axis=1)
    in_orders = np.take_along_axis(chains, orders[:, None], 2)
    wide = in_orders + 0.7 * deviation * generator.normal(size=chains.shape)
    apart = in_orders + 3.0 * deviation * np.arange(4)[:, None, None]
    room = importlib.import_module(f"{backend.public.__name__}.check")
    verdicts = {}
    given = {"one": chains, "all": in_orders, "wide": wide, "apart": apart, "a mapping": in_orders}
    for name, draws in given.items():
        known = ("draws", 1) if name == "a mapping" else ("Markov chains", 4)
        source = Source("NUTS", known[0], {"mean": draws.reshape(-1, 5)}, chains=known[1])
        of_program = room.program_of(model, args, {}, 1, generator)
        verdicts[name] = check(source, of_program, generator, 1, budget=60_000, progress_bar=False)
    for name in ("one", "all", "a mapping"):
        assert verdicts[name].trusted, str(verdicts[name])
        assert "Labels in 'mean' can be exchanged" in str(verdicts[name])
    assert verdicts["wide"].level == verdicts["apart"].level == "not trusted"
    assert "chains disagree" in str(verdicts["apart"])


def sources(backend: Any, model: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """What each host hands over after short runs of everything, by name."""
    run: dict[str, Any] = {"progress_bar": False}
    infer = __import__(f"{backend.name}.infer", fromlist=["SVI"])
    guide = backend.autoguide.AutoDiagonalNormal(model)
    svi = infer.SVI(model, guide, backend.adam(0.05), infer.Trace_ELBO())
    if backend.is_pyro:
        for _ in range(20):
            svi.step(*args)
        mcmc = infer.MCMC(infer.NUTS(model), 100, 100, disable_progbar=True)
        mcmc.run(*args)
        vi = backend.public.GSM(model)
        vi.run(400, *args, **run)
        particles = backend.public.SVGD(model, backend.adam(0.1), num_particles=32)
        particles.run(3, *args, **run)
        return {"SVI": svi, "guide": guide, "MCMC": mcmc, "GSM": vi, "SVGD": particles}
    result = svi.run(backend.key(0), 20, *args, **run)
    mcmc = infer.MCMC(infer.NUTS(model), num_warmup=100, num_samples=100, **run)
    mcmc.run(backend.key(1), *args, extra_fields=("energy",))
    vi = backend.public.GSM(model)
    particles = backend.public.SVGD(model, backend.adam(0.1), num_particles=32)
    return {
        "SVI": (svi, result),
        "guide": (guide, result.params),
        "MCMC": mcmc,
        "GSM": (vi, vi.run(backend.key(2), 400, *args, **run)),
        "SVGD": (particles, particles.run(backend.key(3), 3, *args, **run).state),
    }


def test_sources_of_every_kind(backend: Any) -> None:
    """Each is taken, and what it has beside its draws is heard; stopped early, most are refused."""
    model, args, _ = from_zoo(backend, "conjugate_normal")
    key = () if backend.is_pyro else (backend.key(5),)
    found = {
        name: backend.public.check(*key, source, model, *args, budget=12_000, progress_bar=False)
        for name, source in sources(backend, model, args).items()
    }
    assert not any(found[name].trusted for name in ("SVI", "guide", "SVGD"))
    for name in ("SVI", "guide", "GSM"):
        assert "Pareto k-hat" in str(found[name]), str(found[name])
    assert "Pareto" not in str(found["SVGD"]) and "scores" in str(found["SVGD"])
    assert "Its own chains: R-hat" in str(found["MCMC"])
    assert ("E-BFMI" in str(found["MCMC"])) is not backend.is_pyro
    # The right Normal: nothing speaks against it.
    assert found["GSM"].level == "approximate", str(found["GSM"])
    # Draws of every kind are looked at as a fit's.
    for name, judged in found.items():
        table, site = judged.summary(), next(iter(judged.seen.draws))
        assert site in table.index or f"{site}[0]" in table.index, name
        np.testing.assert_allclose(table["mean"].iloc[0], judged[site].reshape(-1).mean(), rtol=1)
        whole = judged.to_arviz(num_samples=4)
        assert "log_likelihood" in whole and "observed_data" in whole
        assert all(len(each) == 3 for each in judged.predict(num_samples=3).values())
        # The verdict as such is as before.
        assert Verdict.from_json(judged.as_json()).reasons == judged.reasons


def test_a_checked_verdict_has_the_looks_of_a_fit(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    key = () if backend.is_pyro else (backend.key(5),)
    fit = fit_of(backend, model, *args, exact=False)
    draws = {name: np.asarray(backend.numpy(value)) for name, value in fit.draws.items()}
    judged = backend.public.check(*key, draws, model, *args, progress_bar=False)
    assert isinstance(judged, backend.public.Checked) and judged.trusted
    other, own = judged.summary(), fit.summary()
    np.testing.assert_allclose(other["mean"], own["mean"], rtol=1e-5)
    assert np.isfinite(other["mcse_mean"]).all()
    with pytest.raises(ArgumentError, match=r"Type summary\(sites="):
        judged.summary(var_names=["x"])
    # Read again from text it has no draws.
    with pytest.raises(ArgumentError, match="verdict with the draws that were judged"):
        backend.public.Checked("approximate", ()).summary()


def test_sites_that_another_way_to_write_a_program_has_otherwise() -> None:
    written = program().written
    moved = program(
        name="non-centred",
        coordinates={"x_decentered": slice(0, DIM)},
        latents={"x": "x_decentered"},
    ).written
    for others in ([moved], []):
        meter = Meter(10_000, 60.0)
        found, _ = best_written(written, iter(others), np.random.default_rng(0), meter, [])
        assert found.name == written.name
        assert ([] if found.other_form is None else [found.other_form]) == others
