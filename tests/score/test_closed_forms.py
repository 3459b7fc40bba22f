"""What all closed forms keep to, in both packages; GSM and BaM where overflows are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.regression.overflow import LENIENCE, SPOILT, WILD
from tests.backends import use_float64
from tests.closed_form_support import GUIDES, ClosedForm, density_of
from tests.score_support import GuideRun, normal_model, room

use_float64()

MEAN = np.array([1.0, -2.0, 0.5, 3.0])
# Of a row and a column factor, so that every family has it.
SCALE = np.array([0.5, 0.1, 1.0, 0.2])
TOTAL = 300


@pytest.mark.parametrize("structure", GUIDES)
def test_a_score_that_overflows_is_left_out(face: Any, structure: str) -> None:
    """The very first draw, one in the search for the target, and one when that has been found."""
    mean, scale, xp = face.array(MEAN), face.array(SCALE), face.backend.xp

    def score(theta: Any, wild: Any) -> tuple[Any, Any]:
        value = -0.5 * (((theta - mean) / scale) ** 2).sum(-1)
        return xp.where(wild, 1e32, (mean - theta) / scale**2), value

    density = density_of(face, structure, 2, 2)
    form = ClosedForm(face, structure, density, score, draws=4)
    sound, spoilt = np.zeros((2, 4, 4), bool)
    spoilt[0, 1] = True
    sound, spoilt = face.array(sound), face.array(spoilt)
    start = density.initial_parameters()
    for wild in (0, 20, 200):
        found = form.fit(start, TOTAL, seed=1, extra=lambda t, w=wild: spoilt if t == w else sound)
        draws = face.draws(density, found, 20_000, seed=2)
        # One per cent of a standard deviation is its Monte Carlo error.
        np.testing.assert_allclose((draws.mean(0) - MEAN) / SCALE, 0.0, atol=0.1)
        np.testing.assert_allclose(draws.std(0) / SCALE, 1.0, atol=0.1)


@pytest.mark.in_one_package
@pytest.mark.parametrize("structure", GUIDES)
def test_a_density_that_changes_is_followed_in_the_end(face: Any, structure: str) -> None:
    """Sharper by so much that its scores look like an overflow: each time more of it is let in."""
    mean, scale, xp = face.array(MEAN), face.array(SCALE), face.backend.xp

    def score(theta: Any, sharper: Any) -> tuple[Any, Any]:
        sharpness = xp.where(sharper, 1e3, 1.0) / scale
        value = -0.5 * (((theta - mean) * sharpness) ** 2).sum(-1)
        return (mean - theta) * sharpness**2, value

    density = density_of(face, structure, 2, 2)
    form = ClosedForm(face, structure, density, score, draws=4)
    changed = [face.array(np.array(later)) for later in (False, True)]

    def after(steps: int) -> np.ndarray:
        options = {"total": TOTAL, "extra": lambda t: changed[t >= 100]}
        found = form.fit(density.initial_parameters(), 100 + steps, **options)
        return np.concatenate([each.ravel() for each in face.numpy(found).values()])

    # Squares are 1e12 times those before, 1e4 times the limit: some 23 times LENIENCE.
    np.testing.assert_array_equal(after(10), after(0))
    assert (after(50) != after(0)).any()


# A hundred steps do not reach this target, which does not matter here.
@pytest.mark.filterwarnings("ignore:(?s).*pull the guide away")
@pytest.mark.parametrize("engine", ["GSM", "BaM"])
def test_matches_leave_it_out(face: Any, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = face.backend.public.Full
    estimate, model = full.estimate, normal_model(face, tuple(MEAN), tuple(SCALE))

    def overflowing(*given: Any) -> Any:
        found, state = estimate(*given)
        wild = np.zeros(found.score.shape, bool)
        wild[0, 1] = True
        score = face.backend.xp.where(face.array(wild), 1e32, found.score)
        return found._replace(score=score), state

    def score_square() -> float:
        return float(run.engine._state.method if run.is_pyro else run.state.algorithm.score_square)

    def again(run: GuideRun) -> GuideRun:
        """Another engine in the same state: a step that is compiled stays what it is."""
        other = GuideRun(face, model, engine=engine)
        other.go_on_from(run)
        return other

    run = GuideRun(face, model, engine=engine).run(100)
    before, seen = run.flat, score_square()
    monkeypatch.setattr(full, "estimate", overflowing)
    run = again(run).run(1)
    assert run.info("rejected")[-1] == 1.0
    np.testing.assert_array_equal(run.flat, before)
    assert score_square() == pytest.approx(LENIENCE * seen)
    monkeypatch.undo()
    assert again(run).run(1).info("rejected")[-1] == 0.0


def test_where_the_limits_are(face: Any) -> None:
    def judged(seen: float, latest: float) -> Any:
        given = (seen, latest) if face.name == "pyro" else map(face.array, (seen, latest))
        return room(face, "score.overflow").judged(*given)

    assert judged(1.0, 0.9 * WILD).sound and judged(1.0, 1.1 * WILD).wild
    assert judged(0.9 * SPOILT, 1.0).sound and judged(1.1 * SPOILT, 1.0).spoilt
    # Flat densities, and the first scores.
    assert judged(0.0, 1.0).sound and judged(1.0, 0.0).sound


@pytest.mark.formula
@pytest.mark.parametrize("structure", GUIDES)
def test_closed_forms_follow_trust_decay_and_the_length_of_the_run(
    face: Any, structure: str
) -> None:
    mean, scale = face.array(np.arange(6.0)), face.array(np.linspace(0.3, 2.0, 6))

    def score(theta: Any, noise: Any) -> tuple[Any, Any]:
        value = -0.5 * (((mean - theta) / scale) ** 2).sum(-1)
        return (mean - theta) / scale**2 + noise, value

    density = density_of(face, structure, 2, 3)
    form, start = ClosedForm(face, structure, density, score, draws=4), density.initial_parameters()

    def after_fifteen(**options: Any) -> np.ndarray:
        """All parameters of the guide after fifteen steps with noisy scores."""
        generator = np.random.default_rng(0)
        options["extra"] = lambda t: face.array(generator.normal(size=(4, 6)))
        found = face.numpy(form.fit(start, 15, **options))
        return np.concatenate([value.ravel() for value in found.values()])

    found = after_fifteen()
    np.testing.assert_array_equal(after_fifteen(), found)

    def difference(**options: Any) -> float:
        return float(np.abs(after_fifteen(**options) - found).max())

    assert difference(trust=1.001) > 1e-3
    assert (difference(decay=0.5) > 1e-3) == (structure != "mixture")
    assert (difference(total=0) > 1e-3) == (structure not in ("low_rank", "layer_low_rank"))
