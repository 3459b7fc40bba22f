"""The proximal step in closed form (``Regression``), for Normals and mixtures of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ppl_ext.score_matching.proximal import RegressionExecutor
from ppl_ext.score_matching.regression.base import Observed
from pyro_ext.density import Data
from pyro_ext.descent import all_finite, run_length
from pyro_ext.engine import Update
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from pyro_ext.score.regression.base import restored, saved


class RegressionSolver(RegressionExecutor):
    def initial(self, engine: GuideEngine, plan: GuidePlan) -> GuideState:
        """The engine's state before the first iteration."""
        return GuideState(method=self.form.initial(plan.parameters))

    def saved(self, state: Any) -> Any:
        """A state as plain containers, for a file."""
        return saved(state)

    def restored(self, state: Any, found: Any) -> Any:
        """Inverse of :meth:`saved`; ``state`` is one of the same form."""
        return restored(state, found)

    # Forms may compute by NumPy, and torch says nothing of overflows either.
    @np.errstate(all="ignore")
    @torch.no_grad()
    def update(self, engine: GuideEngine, plan: GuidePlan, state: GuideState, data: Data) -> Update:
        """One iteration."""
        form, parameters = self.form, plan.parameters
        draws = form.evaluated_draw(parameters, engine._generator, plan.num_samples)
        found = engine._score(form.arrays.to_tensor(draws.theta), data)
        log_p = form.arrays.to_array(found.log_density(plan.target.likelihood_temperature))
        score = form.arrays.to_array(found.score)
        found_loss, figures = form.figures(parameters, draws, score, log_p)
        loss, info = float(found_loss), {name: float(each) for name, each in figures.items()}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite:
            total = run_length(engine) or 0
            given = Observed(draws.theta, score, total, log_p, draws.known)
            updated, moved = form.update(state.method, parameters, given)
            finite = all_finite(moved)
            if finite:
                engine._write(plan, moved)
                state = state._replace(method=updated)
        return Update(loss, info, finite, state)
