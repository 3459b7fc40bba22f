"""The search for modes: what known modes explain, where paths start, and what chains meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.trust.planted.widths import Mixture
from ppl_ext.chains.adaptive import Weighted
from ppl_ext.chains.coupling import Coupled
from ppl_ext.chains.given import Given
from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel, Sampled, Window
from ppl_ext.fit.ladder import by_chains, corrected, ladder
from ppl_ext.fit.ladder.climbed import Climbed
from ppl_ext.fit.ladder.ladder import climb
from ppl_ext.fit.ladder.modes import ENOUGH, Search, Watched, masses, unexplained
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import agreement, facts, levels, policy
from ppl_ext.start.find import explains, find, gain, more_modes
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.search import InPieces, starting_points
from ppl_ext.start.start import Mode, Start
from tests.fit.test_fit import fit_of, numbers
from tests.fit_support import WITHOUT_PROGRAM

EPSILON = float(np.finfo(np.float64).eps)


def mixture(
    dim: int, weights: Any, places: Any, widths: Any, prior: float | None = None
) -> Mixture:
    """Round Normals on a diagonal, so far from 0."""
    means = np.array([np.full(dim, place / math.sqrt(dim)) for place in places])
    roots = np.array([width * np.eye(dim) for width in widths])
    return Mixture(np.array(weights), means, roots, prior)


def mode_of(target: Mixture, number: int) -> Mode:
    """A component as a mode with its mass."""
    dim = target.means.shape[1]
    mass = math.log(target.weights[number]) + 0.5 * dim * math.log(2.0 * math.pi)
    return Mode(target.means[number], target.roots[number], mass, 0.0)


def problem_of(target: Mixture, generator: np.random.Generator, **changes: Any) -> Problem:
    """NumPy's own problem, whose prior is that of the mixture."""
    dim = target.means.shape[1]
    evaluate = InPieces(lambda z, _: target.evaluate(z))
    points = starting_points(
        evaluate, dim, generator, lambda number: np.zeros((number, dim)), has_strategy=False
    )

    def prior(number: int, seed: int) -> np.ndarray:
        return target.of_prior(number, np.random.default_rng(seed))

    options: dict[str, Any] = {
        "name": "as written",
        "evaluate": evaluate,
        "dim": dim,
        "epsilon": EPSILON,
        "starting_points": points,
        "coordinates": {"z": slice(0, dim)},
        "values": lambda z: {"z": z},
        "target": WITHOUT_PROGRAM,
        "own": None,
        "data": None,
        "digest": str,
        "prior": prior,
    }
    return Problem(**{**options, **changes})


def searched(target: Mixture, seed: int = 0, **changes: Any) -> tuple[Search, int]:
    """A search from the usual start, and its evaluations."""
    generator = np.random.default_rng(seed)
    problem = problem_of(target, generator, **changes)
    start = find(problem.evaluate, problem.starting_points, generator, EPSILON)
    search, meter = Search(problem, start.modes, generator), Meter(100_000, math.inf)
    search.go_on(meter.of(problem.evaluate))
    return search, meter.evaluations


def climbed(target: Mixture, seed: int = 0, meter: Meter | None = None) -> Climbed:
    generator = np.random.default_rng(seed)
    nothing: Iterator[Problem] = iter(())
    wanted, meter = facts.Wanted(400.0, True, math.inf), meter or Meter(100_000, math.inf)
    return climb(problem_of(target, generator), nothing, generator, wanted, meter)


def test_a_program_whose_draws_lie_in_a_neck_is_fitted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other way has the same density here, and latents of its own; the neck is planted."""
    target = mixture(2, [1.0], [0.0], [1.0])
    wanted = facts.Wanted(400.0, True, math.inf)

    def neck_among(problem: Problem, sites: Any, *_: Any) -> float:
        assert problem.name == "as written" and list(sites) == ["z"]
        return 10.0

    monkeypatch.setattr(ladder, "neck_among", neck_among)
    for budget in (100_000, 1_150):
        generator, meter = np.random.default_rng(0), Meter(budget, math.inf)
        other = problem_of(target, generator, name="non-centred", latents={"z": "z_decentered"})
        other = replace(other, coordinates={"z_decentered": slice(0, 2)})
        written = problem_of(target, generator)
        found = climb(written, iter([other]), generator, wanted, meter)
        starts = [stage.name for stage in found.stages].count("start")
        if budget > 1_150:
            assert found.problem.name == "non-centred" and found.verdict.level == "exact"
            assert starts == 2 and found.evidence.neck == 1.0
        else:
            assert found.problem.name == "as written" and found.verdict.level == "not trusted"
            assert "may be missing" in str(found.verdict)


def share_in(target: Mixture, draws: np.ndarray, number: int) -> float:
    flat = draws.reshape(-1, draws.shape[-1])
    logs = target.log_tops - 0.5 * np.square(target.whitened(flat)).sum(-1)
    return float((logs.argmax(1) == number).mean())


def test_a_normal_explains_its_density_however_far_away_and_no_other() -> None:
    """Newton's step ends at the mean from anywhere; density and score have to agree."""
    root = np.array([[2.0, 0.0], [1.5, 0.1]])
    mean, precision = np.array([1.0, -3.0]), np.linalg.inv(root @ root.T)
    mode = Mode(mean, root, 0.4 + math.log(2.0 * math.pi * 0.2), 0.0)  # 0.4 is the density's top
    points = mean + np.array([[0.0, 0.0], [3.0, 1.0], [-500.0, 800.0]])
    for point in points:
        score = -precision @ (point - mean)
        value = 0.4 + 0.5 * float((point - mean) @ score)
        assert explains(mode, point, value, score)
        assert not explains(mode, point, value + 4.0 + 0.1 * abs(value), score)
        far = np.linalg.norm(point - mean) > 100.0
        assert explains(mode, point, value, -score) == (not score.any())
        # A pull that is a tenth too strong does not lead to the mean from far away.
        assert explains(mode, point, value, 1.1 * score) == (not far)
    diagonal = Mode(mean, np.array([2.0, 0.5]), math.log(2.0 * math.pi), 0.0)
    assert explains(diagonal, mean + np.array([4.0, 1.0]), -4.0, np.array([-1.0, -4.0]))


def test_what_a_mode_gains_on_others_is_the_ratio_of_masses() -> None:
    noise = np.random.default_rng(0).normal(size=(4, 2))
    one = Mode(np.zeros(2), np.eye(2), math.log(3.0), 0.0)
    assert gain(one, (Mode(np.zeros(2), np.eye(2), 0.0, 0.0),), noise) == pytest.approx(math.log(3))
    assert gain(one, (one, one), noise) == pytest.approx(-math.log(2.0))
    within = Mode(np.zeros(2), 0.1 * np.eye(2), math.log(3.0), 0.0)
    expected = math.log(300.0) - 0.5 * (1.0 - 0.01) * np.square(noise).sum(1).mean()
    assert gain(within, (Mode(np.zeros(2), np.eye(2), 0.0, 0.0),), noise) == pytest.approx(expected)


def test_a_needle_within_a_mode_is_a_mode_of_its_own() -> None:
    """Paths end in both; the end in the wide one, and one near its middle, are nothing new."""
    target = mixture(3, [0.6, 0.4], [0.0, 1.0], [1.0, 0.02])
    wide, needle = mode_of(target, 0), mode_of(target, 1)
    near = wide.mean + np.array([[0.5, -0.8, 0.1], [-2.0, 0.3, 0.0]])
    points = np.concatenate([near, needle.mean[None]])
    generator = np.random.default_rng(1)
    (found,), _ = more_modes(target.evaluate, points, (wide,), generator, EPSILON)
    np.testing.assert_allclose(found.mean, needle.mean, atol=1e-3)
    assert found.log_mass == pytest.approx(needle.log_mass, abs=0.05)
    found_more, hits = more_modes(target.evaluate, points, (wide, needle), generator, EPSILON)
    assert not found_more and sum(hits) == len(points)


def test_chains_are_kept_from_where_pairs_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound counts transitions after tuning, which the draws leave out."""
    target, seen = mixture(2, [1.0], [1.0], [1.0]), list[Sampled]()

    def met(problem: Any, start: Any, sampled: Sampled, *_: Any) -> tuple[None, Coupled]:
        seen.append(sampled)
        return None, Coupled(32, transitions=3, slowest=3, bound=0.09)

    monkeypatch.setattr(policy, "is_good", lambda _: False)
    monkeypatch.setattr(policy, "may_adapt", lambda *_: False)
    monkeypatch.setattr(by_chains, "_coupled", met)
    found = climbed(target).sampled
    (before,) = seen
    assert found is not None and found.discarded == before.discarded + 3
    skipped = 3 * before.kernel.draws_of_each
    kept = before.draws[skipped:]
    np.testing.assert_array_equal(found.draws[: len(kept)], kept)
    # They were enough before, and what was left out counts among the transitions at least.
    assert len(found.window.chances) == len(before.window.chances) - 3
    assert len(found.window.values) == len(found.draws)


@pytest.mark.parametrize("budget", [3_000, 5_000, 6_000, 8_000])
def test_a_larger_budget_makes_no_verdict_worse(budget: int) -> None:
    """What buys no search for chains is not begun: it would be cut, and count against the draws."""
    found = climbed(mixture(2, [1.0], [1.0], [1.0]), meter=Meter(budget, math.inf))
    level, _ = levels.judge(found.evidence)
    assert level == ("exact" if budget > 7_000 else "corrected")


def figures_are(
    monkeypatch: pytest.MonkeyPatch,
    normal: tuple[float, float],
    mixtures: tuple[float, float] | None = None,
) -> None:
    """Figures of weights: k-hat and share of the Normals at the modes, and of mixtures if told."""
    measured = corrected.correction_of

    def of(known: Weighted, rounding: float) -> tuple[facts.Correction, np.ndarray]:
        is_first = known.proposal.bend is None and known.proposal.unbent == 0
        given = normal if is_first else mixtures
        if given is None:
            return measured(known, rounding)
        return facts.Correction(*given), np.full(policy.DRAWS, 1.0 / policy.DRAWS)

    monkeypatch.setattr(corrected, "correction_of", of)


@pytest.mark.parametrize("off", [0.0, 3.0])
def test_normals_at_the_mode_are_drawn_as_well_where_draws_given_hyperparameters_are_far(
    monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """A standard Normal, of which a map given the first coordinate is right, or so far off."""
    target = mixture(3, [1.0], [0.0], [1.0])
    generator = np.random.default_rng(0)
    problem, places = problem_of(target, generator), np.array([[-1.0], [0.0], [1.0]])
    given = Given(
        *(np.array([0]), np.zeros(1), np.eye(1), np.array([off, 0.0]), np.eye(2)),
        *(places, np.zeros((3, 2)), np.zeros((3, 3))),
    )
    mode = Mode(np.zeros(3), np.eye(3), 0.0, 1.0)
    proposal = Proposal((mode,), np.ones(1), given=given)
    monkeypatch.setattr(corrected, "hyperparameters", lambda *_: [0])
    monkeypatch.setattr(policy, "is_better", lambda *_: False)
    monkeypatch.setattr(corrected, "given_hyperparameters", lambda *_: (proposal, np.eye(3)))
    evaluate = Meter(10_000, math.inf).of(problem.evaluate)

    def first(limited: Evaluate) -> corrected.Approximation:
        start = Start((mode,), 0)
        return corrected.first_approximation(
            *(evaluate, limited, problem, start, None, EPSILON, generator)
        )

    begun = first(evaluate)
    kinds = [one.proposal.given is not None for one in begun.known]
    assert kinds == ([True] if off == 0.0 else [False, True])
    assert (begun.metric is None) == (off > 0.0)
    assert begun.correction.given == (off == 0.0)
    assert begun.proposal is begun.weighted is begun.known[0].proposal
    # What chains need is not spent on the second draws.
    spent = Meter(0, math.inf).of(problem.evaluate)
    assert [one.proposal.given is not None for one in first(spent).known] == [True]


def test_draws_that_are_no_numbers_count_where_the_approximation_is_dense() -> None:
    """Beyond 2.5 they are far out, and below 0 half of all."""
    generator = np.random.default_rng(0)
    proposal = Proposal((Mode(np.zeros(1), np.eye(1), 0.0, 0.0),), np.ones(1))
    drawn = proposal.draw(2_000, generator)
    for is_nan, near in ((np.abs(drawn[:, 0]) > 2.5, 0.0), (drawn[:, 0] < 0.0, 0.5)):
        values = np.where(is_nan, np.nan, -0.5 * drawn[:, 0] ** 2)
        chains = Chains(drawn, values, -drawn)
        known = Weighted(proposal, chains, proposal.log_ratios(drawn, values))
        correction, _ = corrected.correction_of(known, EPSILON)
        assert correction.undefined == is_nan.mean() > 0.0
        assert correction.undefined_near == pytest.approx(near, abs=0.05)


@pytest.mark.parametrize("share", [1e-6, 0.05])
def test_a_mode_without_mass_is_part_of_what_is_drawn_given_hyperparameters(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Draws are of the first of two modes; how much the second has is told by its Normal."""
    target = mixture(2, [1.0 - share, share], [0.0, 20.0], [1.0, 0.2])
    generator, places = np.random.default_rng(0), np.array([[-1.0], [0.0], [1.0]])
    problem = problem_of(target, generator)
    given = Given(
        *(np.array([0]), np.zeros(1), np.eye(1), np.zeros(1), np.eye(1)),
        *(places, np.zeros((3, 1)), np.zeros((3, 1))),
    )
    # As far as bounds tell the second has next to nothing.
    modes = mode_of(target, 0), replace(mode_of(target, 1), log_mass=-30.0)
    modes = replace(modes[0], spread=1.0), modes[1]
    proposal = Proposal((Mode(np.zeros(2), np.eye(2), 0.0, 0.0),), np.ones(1), given=given)
    monkeypatch.setattr(corrected, "hyperparameters", lambda *_: [0])
    monkeypatch.setattr(corrected, "given_hyperparameters", lambda *_: (proposal, np.eye(2)))
    evaluate = Meter(10_000, math.inf).of(problem.evaluate)
    begun = corrected.first_approximation(
        *(evaluate, evaluate, problem, Start(modes, 0), None, EPSILON, generator)
    )
    assert (begun.proposal.given is None) == (share > 0.01)
    search = Search(problem, modes, generator, joined=modes[1:])
    assert search.start.modes == modes[:1] and search.found.number == 1


def test_a_further_search_waits_for_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture of small k-hat tells that the first was of one Normal's shape alone."""

    def paths(normal: tuple[float, float], mixture_of: tuple[float, float]) -> int:
        figures_are(monkeypatch, normal, mixture_of)
        modes = climbed(mixture(2, [1.0], [1.0], [1.0])).evidence.modes
        assert modes is not None
        return modes.paths

    close = (0.1, 0.8)
    few = paths(close, close)
    assert paths((0.5, 0.6), close) == few
    assert paths((0.5, 0.6), (0.4, 0.7)) > few + 400
    # Weights that are not reliable tell a mixture nothing.
    assert paths((0.8, 0.6), close) > few + 400

    def spent(*_: Any, **__: Any) -> Iterator[corrected.Approximation]:
        yield from ()
        raise SpentError

    # Nor is the search left out where mixtures took what was left for them.
    monkeypatch.setattr(ladder, "better_approximations", spent)
    assert paths((0.5, 0.6), close) > few + 400


def test_jumps_alone_know_whether_they_are_to_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its components are no modes, and give warm chains no metrics."""
    for khat in (0.5, 0.1):
        figures_are(monkeypatch, (khat, 0.8))
        found = climbed(mixture(2, [0.5, 0.5], [-5.0, 5.0], [1.0, 1.0])).sampled
        assert found is not None and not found.kernel.has_trajectories
        assert found.kernel.is_mixture == (khat == 0.5)
        assert (len(found.kernel.proposal.modes) > 2) == (khat == 0.5)


def test_jumps_alone_leave_out_what_pairs_took_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on the distance after so many transitions, and costs an evaluation a start."""
    known = Coupled(64, transitions=7, slowest=7, bound=0.05)
    monkeypatch.setattr(by_chains, "jumps_from", lambda *_: known)
    found = climbed(mixture(2, [1.0], [1.0], [1.0]))
    assert found.sampled is not None and not found.sampled.kernel.has_trajectories
    assert found.sampled.discarded == 7 + 1
    assert found.stages[-1].evaluations == 0


def test_chains_do_not_jump_alone_where_the_normals_lack_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "covers", lambda *_: False)
    found = climbed(mixture(2, [1.0], [1.0], [1.0])).sampled
    assert found is not None and found.kernel.has_trajectories


def test_jumps_are_looked_at_after_an_eighth_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many again would take up to half more than is needed."""
    looked: list[int] = []

    def enough(found: facts.Chained, *_: Any, **__: Any) -> bool:
        looked.append(found.draws)
        return found.draws >= 1_500

    monkeypatch.setattr(agreement, "enough", enough)
    found = climbed(mixture(2, [1.0], [1.0], [1.0])).sampled
    assert found is not None and not found.kernel.has_trajectories
    assert 1_500 <= found.draws.shape[0] * found.draws.shape[1] < 1.13 * 1_500
    assert looked[0] < 1_000


@pytest.mark.parametrize("looks", [(True, False), (False, True), (False, False)])
def test_a_mode_that_is_found_on_the_last_turn_is_told(
    looks: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the look before mixtures or by that after them: no chain starts in it."""
    found = iter(looks)
    monkeypatch.setattr(ladder, "TURNS", 1)
    monkeypatch.setattr(Search, "look", lambda *_: next(found))
    target = mixture(3, [0.5, 0.5], [-0.7, 0.7], [0.3, 0.9])
    climb = climbed(target)
    modes, stages = climb.evidence.modes, [stage.name for stage in climb.stages]
    assert "mixtures" in stages and next(found, None) is None
    assert modes is not None and modes.left == any(looks)


def test_jumps_go_on_to_a_mixture_and_leave_the_density_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A skewed density, of which the Normal at its mode is off; moments to four errors."""
    dim, widths = 8, np.array([[0.9], [1.15]])
    target = mixture(dim, [0.6, 0.4], [-0.5, 0.8], widths[:, 0])
    figures_are(monkeypatch, (0.1, 0.8))
    monkeypatch.setattr(agreement, "enough", lambda found, *_, **__: found.draws >= 8_000)
    monkeypatch.setattr(agreement, "MOST_JUMPS", 100.0)
    climb = climbed(target)
    found = climb.sampled
    assert found is not None and not found.kernel.has_trajectories
    assert climb.evidence.coupled is not None and agreement.is_bounded(climb.evidence.coupled)
    later = found.draws[policy.DRAWS // by_chains.CHAINS :].reshape(-1, dim)
    mean = target.weights @ target.means
    square = target.weights @ (target.means**2 + widths**2)
    for values, right in ((later, mean), (later**2, square)):
        # Of jumps that are taken in six of ten the draws are worth a third.
        error = values.std(0) / math.sqrt(len(values) / 3.0)
        assert (np.abs(values.mean(0) - right) < 4.0 * error).all()
    # What is proposed has more where the Normal has too little.
    assert found.kernel.is_mixture
    own, exact = found.kernel.proposal, target.draw(4_000, np.random.default_rng(0))
    values, normal = target.evaluate(exact)[0], Proposal(own.modes[-1:], np.ones(1))
    ratios = np.stack([values - each.log_density(exact) for each in (normal, own)])
    largest = np.ptp(np.quantile(ratios, [0.5, 0.999], axis=1), axis=0)
    assert largest[1] < 0.7 * largest[0], largest


def test_pairs_that_are_late_go_on_while_chains_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than that chains have to agree as closely as is asked where nothing is known."""
    target, rounds = mixture(2, [1.0], [1.0], [1.0]), list[int]()

    class Late(by_chains.Pairs):
        def go_on(self, transitions: int, has_budget: Any) -> Coupled:
            rounds.append(transitions)
            return super().go_on(transitions, has_budget if len(rounds) > 2 else lambda: False)

    monkeypatch.setattr(policy, "is_good", lambda _: False)
    monkeypatch.setattr(policy, "may_adapt", lambda *_: False)
    monkeypatch.setattr(agreement, "ALONE_R_HAT", 1.0)
    monkeypatch.setattr(by_chains, "Pairs", Late)
    found = climbed(target)
    assert len(rounds) == 3 and rounds[0] < rounds[1] < rounds[2]
    assert found.evidence.coupled is not None and agreement.is_bounded(found.evidence.coupled)


@pytest.mark.parametrize("budget", [9_000, 9_007])
def test_pairs_that_never_meet_end_with_the_budget(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """Where what is left buys no transition, no more rounds are made."""
    never = lambda *_: Coupled(32, apart=32, slowest=9)  # noqa: E731
    monkeypatch.setattr(policy, "is_good", lambda _: False)
    monkeypatch.setattr(policy, "may_adapt", lambda *_: False)
    monkeypatch.setattr(agreement, "ALONE_R_HAT", 1.0)
    monkeypatch.setattr(by_chains.Pairs, "go_on", never)
    found = climbed(mixture(2, [1.0], [1.0], [1.0]), meter=Meter(budget, 10.0))
    assert len(found.stages) < 20 and sum(stage.seconds for stage in found.stages) < 10.0


def test_a_search_ends_with_the_seconds() -> None:
    """It is not done then, and the verdict says so."""
    target, passed = mixture(2, [1.0], [1.0], [1.0]), [0.0]
    generator = np.random.default_rng(0)
    meter = Meter(100_000, 10.0, clock=lambda: passed[0])
    evaluate = meter.of(target.evaluate, timely=True)
    evaluate(np.zeros((1, 2)))
    passed[0] = 11.0
    search = Search(problem_of(target, generator), (mode_of(target, 0),), generator)
    search.go_on(evaluate)
    assert search.found.cut and meter.evaluations == 1


@pytest.mark.parametrize(("slowest", "is_known"), [(20, True), (38, True), (45, False)])
def test_pairs_that_are_late_may_meet_in_half_of_the_transitions(
    monkeypatch: pytest.MonkeyPatch, slowest: int, *, is_known: bool
) -> None:
    """More of them to leave out is cheaper than all that is asked of chains without a bound."""
    target = mixture(2, [1.0], [1.0], [1.0])
    times = np.append(np.full(31, 2.0), slowest + 1.0)

    class Late:
        def __init__(self, *_: Any) -> None:
            """Their kernel and starts do not matter here."""

        def go_on(self, transitions: int, _: Any) -> Coupled:
            last = 2 * transitions + 1
            reached = np.where(times <= last, times, np.inf)
            return Coupled.of(reached, 1, int(min(transitions, reached.max() - 1.0)), last)

    monkeypatch.setattr(by_chains, "Pairs", Late)
    generator = np.random.default_rng(0)
    problem, meter = problem_of(target, generator), Meter(10**6, math.inf)
    start = find(problem.evaluate, problem.starting_points, generator, EPSILON)
    window = Window(*(np.ones(shape) for shape in ((80, 4, 2), (80, 4), 80, (80, 4), (80, 4))))
    kernel = Kernel(target.evaluate, Proposal(start.modes, start.weights), [], start.weights, 1.0)
    sampled = Sampled(window, 0, Chains.at(np.zeros((4, 2)), target.evaluate), kernel)
    meter.evaluations = 10**5
    _, found = by_chains._coupled(problem, start, sampled, generator, meter, 10**6)
    assert agreement.is_bounded(found) == is_known


def test_a_normal_is_searched_by_hundreds_of_paths_of_an_evaluation_each() -> None:
    search, evaluations = searched(mixture(5, [1.0], [2.0], [0.7], prior=50.0))
    assert len(search.modes) == 1 and ENOUGH <= evaluations < ENOUGH + 20
    assert search.paths > 200 and search.from_prior > 100
    (said,) = levels.words_of_search(search.found)
    assert said.startswith(f"Found one mode in {search.paths} searches, ")
    assert f"{search.from_prior} of them from draws of the prior" in said


@pytest.mark.parametrize(("dim", "width"), [(2, 0.5), (10, 0.5), (10, 0.1)])
def test_narrow_modes_are_found_from_draws_of_the_prior(dim: int, width: float) -> None:
    """From the start of all runs, and from far away, paths lead into the wide one."""
    target = mixture(dim, [0.4, 0.6], [0.0, 16.0], [1.0, width])
    search, _ = searched(target)
    assert len(search.modes) == 2
    np.testing.assert_allclose(search.start.weights, [0.6, 0.4], atol=0.03)
    if dim == 10:
        assert len(searched(target, prior=None)[0].modes) == 1


@pytest.mark.parametrize("seed", range(3))
def test_evenly_spaced_modes_are_told_apart(seed: int) -> None:
    """Points between two of them at even distances lie on others."""
    places = 4.0 * np.arange(-6, 7)
    weights = np.exp(-0.5 * np.square(places / 10.0))
    search, _ = searched(mixture(1, weights / weights.sum(), places, np.full(13, 0.2)), seed=seed)
    found = sorted(float(mode.mean[0]) for mode in search.modes)
    missed = weights[[min(abs(place - one) for one in found) > 0.1 for place in places]].sum()
    assert missed < 0.02 * weights.sum()


def _no_draws(number: int, seed: int) -> np.ndarray:
    raise NotImplementedError


def _fails(number: int, seed: int) -> np.ndarray:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (None, "none of them from the prior."),
        (_no_draws, "none of them from the prior, which is improper, or has no draws."),
        (_fails, "none of them from the prior, whose draws failed (RuntimeError)."),
    ],
)
def test_a_prior_without_draws_is_said(prior: Callable[..., np.ndarray] | None, said: str) -> None:
    search, _ = searched(mixture(2, [1.0], [0.0], [1.0]), prior=prior)
    assert levels.words_of_search(search.found)[0].endswith(said)


def test_a_search_that_the_budget_ends_says_so() -> None:
    target = mixture(2, [1.0], [0.0], [1.0])
    generator = np.random.default_rng(0)
    problem = problem_of(target, generator)
    search = Search(problem, (mode_of(target, 0),), generator)
    assert not search.go_on(Meter(10, math.inf).of(problem.evaluate, leaves=0))
    assert search.found.cut
    search.go_on(Meter(1_000, math.inf).of(problem.evaluate, leaves=0))
    assert search.found.paths > 100


def test_the_highest_point_of_chains_is_looked_at() -> None:
    target = mixture(3, [0.6, 0.4], [0.0, 1.0], [1.0, 0.02])
    generator = np.random.default_rng(0)
    wide, needle = mode_of(target, 0), mode_of(target, 1)
    search = Search(problem_of(target, generator), (wide,), generator)
    watched = Watched.beside(target.evaluate, search, search.modes)
    watched(wide.mean + generator.normal(size=(16, 3)))
    assert not watched.has_found() and search.found.last_new == 0.0
    watched(np.stack([wide.mean, needle.mean + 0.01, wide.mean + 1.0]))
    assert watched.has_found() and len(search.modes) == 2
    # One path from where something was seen is no share of paths that find something.
    assert search.found.last_new == 0.0
    # What has been looked at is not looked at again.
    paths = search.paths
    watched(needle.mean[None] + 0.01)
    assert watched.has_found() and search.paths == paths


def test_draws_with_large_ratios_are_looked_at() -> None:
    drawn, log_ratios = np.arange(20.0)[:, None], np.zeros(20)
    assert not len(unexplained(drawn, log_ratios))
    log_ratios[[3, 7]], log_ratios[11] = [6.0, 9.0], -np.inf
    np.testing.assert_array_equal(unexplained(drawn, log_ratios).ravel(), [7.0, 3.0])
    assert not len(unexplained(drawn, np.full(20, -np.inf)))


def test_masses_of_modes_have_errors_that_hold() -> None:
    """Over 200 repetitions: no bias, and the errors are those that there are."""
    target = mixture(2, [0.3, 0.7], [0.0, 12.0], [1.0, 0.5])
    proposal = Proposal((mode_of(target, 0), mode_of(target, 1)), np.array([0.8, 0.2]))
    generator, found = np.random.default_rng(0), []
    for _ in range(200):
        drawn = proposal.draw(400, generator)
        log_ratios = target.evaluate(drawn)[0] - proposal.log_density(drawn)
        found.append(masses(proposal, drawn, log_ratios))
    shares, errors = (np.array([each[k][0] for each in found]) for k in (0, 1))
    assert abs(shares.mean() - 0.3) < 4.0 * shares.std() / math.sqrt(200)
    # The standard deviation of 200 is known to 5 %.
    assert errors.mean() == pytest.approx(shares.std(), rel=0.2)


@pytest.mark.parametrize(
    "target",
    [
        mixture(5, [0.4, 0.6], [0.0, 8.0], [1.0, 0.25]),
        mixture(2, [0.6, 0.4], [0.0, 1.0], [1.0, 0.02]),
    ],
)
def test_chains_hold_modes_of_unlike_widths(target: Mixture) -> None:
    found = climbed(target)
    assert found.verdict.level == "exact" and found.verdict.evaluations < 40_000
    share, right = share_in(target, found.positions, 1), target.weights[1]
    assert abs(share - right) < 4.0 * math.sqrt(right * (1.0 - right) / 400.0)
    told = next(reason for reason in found.verdict.reasons if "searches" in reason)
    assert "2 modes (shares 0." in told and "±" in told


@pytest.mark.slow
def test_a_mode_that_chains_meet_is_sampled() -> None:
    """No path from the prior leads into the needle, but chains fall into it."""
    target = mixture(5, [0.6, 0.4], [0.0, 1.0], [1.0, 0.1], prior=1.0)
    assert target.least_reach() < 0.01
    for seed in range(2):
        found = climbed(target, seed)
        share = share_in(target, found.positions, 1)
        assert found.verdict.level == "exact"
        assert abs(share - 0.4) < 4.0 * math.sqrt(0.24 / 400.0)


def test_programs_are_searched_from_their_prior(backend: Any) -> None:
    """A narrow mode eight deviations off in five dimensions, in both packages."""
    host, dist = backend.host, backend.dist
    target = mixture(5, [0.4, 0.6], [0.0, 8.0], [1.0, 0.5])

    def model() -> None:
        parts = dist.MultivariateNormal(
            backend.array(target.means), scale_tril=backend.array(target.roots)
        )
        shares = dist.Categorical(backend.array(target.weights))
        host.sample("z", dist.MixtureSameFamily(shares, parts))

    fit = fit_of(backend, model, exact=False)
    share = share_in(target, numbers(backend, fit)["z"], 1)
    assert abs(share - 0.6) < 4.0 * math.sqrt(0.24 / 400.0)
    assert any("of them from draws of the prior" in reason for reason in fit.verdict.reasons)


def test_many_correlated_parameters_are_a_normal(backend: Any) -> None:
    """A hundred parameters with correlations over four decades, in single precision: paths are too
    short for the mode, and chains took 10,000 evaluations from where they ended."""
    dim, generator = 100, np.random.default_rng(11)
    vectors = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    covariance = (vectors * np.geomspace(1e-2, 1e2, dim)) @ vectors.T
    root, mean = np.linalg.cholesky(covariance), 3.0 * generator.normal(size=dim)

    def model() -> None:
        normal = backend.dist.MultivariateNormal(
            backend.array(mean), scale_tril=backend.array(root)
        )
        backend.host.sample("x", normal)

    fit = fit_of(backend, model)
    spent = {stage.name: stage.evaluations for stage in fit.verdict.cost}
    assert fit.verdict.level == "exact"
    assert "chains" not in spent and sum(spent.values()) < 4_000
