"""One run in a process of its own: `python -m benchmarks.first_result.worker JSON`.

It prints its figures as one line of JSON.

The clock starts when everything is imported and the data are on the device. What JAX compiles is
counted by its own event for one program handed to the backend; with a persistent compilation cache
the event comes as well when the program is found there, and such are counted apart.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from typing import Any

from benchmarks.first_result.problems import MODELS, SMALL, Recipe

COMPILED = "/jax/core/compile/backend_compile_duration"
FOUND = "/jax/compilation_cache/cache_hits"


class Clock:
    """CPU seconds of this process, wall-clock seconds, and programs compiled, since `start`."""

    def __init__(self, backend: str) -> None:
        self.compiled = self.found = 0
        if backend == "numpyro":
            from jax import monitoring

            monitoring.register_event_duration_secs_listener(self._note_duration)
            monitoring.register_event_listener(self._note)

    def _note_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        self.compiled += event == COMPILED

    def _note(self, event: str, **_: Any) -> None:
        self.found += event == FOUND

    def start(self) -> None:
        """Begin."""
        self.compiled = self.found = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Figures since then."""
        return {
            "wall": time.perf_counter() - self._wall,
            "cpu": time.process_time() - self._cpu,
            "programs": self.compiled,
            "found in the cache": self.found,
        }


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Figures of one run: by stage, and means and standard deviations of the draws."""
    import numpy as np

    fits = importlib.import_module(f"benchmarks.first_result.{case['backend']}_fits")
    recipe = SMALL if case["small"] else Recipe()
    data = MODELS[case["model"]]()
    fit = fits.Fit(case["method"], case["model"], data, recipe, case["seed"])
    clock = Clock(case["backend"])
    stages = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clock.start()
        fit.run()
        stages["run"] = clock.read()
        draws = fit.draws()
        stages["draws"] = clock.read()
        if case["diagnostic"] is None:
            fit.to_arviz()
            stages["arviz"] = clock.read()
        else:
            clock.start()
            fit.diagnostic(case["diagnostic"])
            stages["diagnostic"] = clock.read()
    values = {name: np.asarray(value, np.float64) for name, value in draws.items()}
    flat = {name: value.reshape(len(value), -1) for name, value in values.items()}
    return {
        "stages": stages,
        "mean": {name: value.mean(0).tolist() for name, value in flat.items()},
        "sd": {name: value.std(0).tolist() for name, value in flat.items()},
    }


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if chosen["checkout"] is not None:
        # `benchmarks` has been imported from this checkout; the packages come from the other.
        sys.path.insert(0, chosen["checkout"])
    print(json.dumps(measure(chosen)))
