"""nutpie on a program of NumPyro: one chain, whose warm-up is part of the budget."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.posteriordb.methods import Draws, Floats, Look, uniform, warm_up


class NutpieFitter:
    """See :class:`~benchmarks.posteriordb.methods.Fitter`."""

    def __init__(self, program: Any, budget: int) -> None:
        self._dim, self._budget = program.dim, budget
        target, data = program.target, program.data
        self._value_and_score = jax.jit(
            jax.value_and_grad(lambda z: target.log_density(z[None], data)[0])
        )

    def fit(self, seed: int, rate: float | None, start: Any, points: list[int], look: Look) -> None:
        """See the protocol."""
        # Not imported with the module: of all methods this one alone needs it.
        import nutpie
        from nutpie.compiled_pyfunc import from_pyfunc

        jax.block_until_ready(self._value_and_score(np.zeros(self._dim)))
        ended: list[float] = []

        def log_density(z: Floats) -> tuple[float, Floats]:
            ended.append(time.perf_counter())
            if len(ended) > self._budget:
                # nutpie has no budget: what is left are divergences at once, and dropped below.
                return -np.inf, np.zeros_like(z)
            value, score = self._value_and_score(z)
            return float(value), np.asarray(score, np.float64)

        compiled = from_pyfunc(
            self._dim,
            lambda: log_density,
            lambda *_: lambda z: {"z": np.asarray(z)},
            [np.dtype(np.float64)],
            [(self._dim,)],
            ["z"],
            make_initial_point_fn=lambda _: uniform(self._dim, seed, 1)[0],
        )
        options: dict[str, Any] = {"tune": warm_up(self._budget), "draws": self._budget}
        began = time.perf_counter()
        found = nutpie.sample(compiled, chains=1, seed=seed, progress_bar=False, **options)
        steps = found.sample_stats["n_steps"].values[0]
        # What was evaluated before the first draw, the search for a step size among it.
        spent = len(ended) - int(steps.sum()) + np.cumsum(steps)
        positions = found.posterior["z"].values[0]
        for point in points:
            kept = positions[spent <= point]
            # A chain that still warms up has nothing to show.
            if len(kept) > 1:
                seconds = ended[min(point, len(ended)) - 1] - began
                if look(point, seconds, partial(_all, Draws(kept, before=int(spent[0])))):
                    return


def _all(drawn: Draws, number: int) -> Draws:
    """What a chain has, however many draws are asked for."""
    return drawn
