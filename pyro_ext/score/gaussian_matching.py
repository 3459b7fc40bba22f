"""What ``GSM`` and ``BaM`` share: closed-form updates of a full Normal guide from exact scores.

See :mod:`ppl_ext.score_matching.matching`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ppl_ext.score_matching.matching import RECENT, pull
from ppl_ext.score_matching.regression.overflow import LENIENCE
from pyro_ext.density import Data
from pyro_ext.descent import all_finite
from pyro_ext.engine import Update
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from pyro_ext.score.overflow import judged


def first_state(engine: Any, plan: GuidePlan, data: Data) -> GuideState:
    """The state before the first step."""
    # Mean square of the scores seen, whitened by the guide; 0 before there are any.
    state: GuideState = GuideEngine._initialize(engine, plan, data)
    return state._replace(method=0.0)


def step(engine: Any, plan: GuidePlan, state: GuideState, data: Data) -> Update:
    """One step."""
    density, parameters = plan.density, plan.parameters
    with torch.no_grad():
        theta = density.sample(parameters, engine._generator, plan.num_samples)
        log_prob, present = density.log_prob_and_score(parameters, theta)
        log_q = log_prob.mean()
    found = engine._score(theta, data)
    log_p = found.log_density(plan.target.likelihood_temperature).mean()
    loss = float((present - found.score).square().sum(-1).mean())
    info = {"log_p": float(log_p), "log_q": float(log_q), "pull": math.nan, "rejected": 0.0}
    finite = math.isfinite(loss) and math.isfinite(info["log_p"])
    if finite:
        with torch.no_grad():
            moments = density.moments(parameters)
            whitened = found.score @ moments.scale
            latest = float(whitened.square().sum(-1).mean())
            info["pull"] = float(pull(whitened))
            sound, score_square = _screened(state.method, latest)
            moments = engine._matched(moments, theta, found.score, engine.num_steps_taken)
            matched = density.set_moments(parameters, moments)
        state = state._replace(method=score_square)
        if sound and all_finite(matched):
            engine._write(plan, matched)
        else:
            info["rejected"] = 1.0
    return Update(loss, info, finite, state)


def _screened(seen: float, latest: float) -> tuple[bool, float]:
    """Whether scores of this mean square do not come from an overflow; and the next mean square."""
    verdict = judged(seen, latest)
    after = seen + RECENT * (latest - seen) if seen > 0.0 else latest
    return not verdict.wild, verdict.choose(lambda: LENIENCE * seen, lambda: latest, lambda: after)
