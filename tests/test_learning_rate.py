"""The default learning rate of engines that fit a guide falls along half a cosine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.options import STEPS, GradientSteps
from tests.backends import use_float64
from tests.guides_support import face_of
from tests.score_support import GuideRun, independent, room

use_float64()


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_adam_moves_by_the_rate_of_each_step(
    backend: Any, inner_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every gradient is one, Adam's steps are as long as its rate."""
    face = face_of(backend.name)

    def one(density: Any, parameters: Any, *given: Any) -> tuple[Any, Any]:
        return face.array(0.0), {name: face.ones(*x.shape) for name, x in parameters.items()}

    monkeypatch.setattr(room(face, "score.gradient_steps"), "proximal_gradient", one)
    solver = GradientSteps(num_inner_steps=inner_steps)
    run = GuideRun(face, independent(face), "AutoMultivariateNormal", solver=solver, total_steps=8)
    found = []
    for _ in range(10):
        before = run.flat
        run.step()
        found.append((before - run.flat) / inner_steps)
    # After the last step of the run the rate stays zero.
    done = np.minimum(np.arange(10) / 8, 1.0)
    rate = STEPS["flexible"].learning_rate
    expected = rate * 0.5 * (1.0 + np.cos(np.pi * done))
    assert expected[0] == rate and expected[4] == pytest.approx(rate / 2)
    expected = np.repeat(expected[:, None], len(run.flat), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-14)
