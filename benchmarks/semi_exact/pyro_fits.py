"""Programs and runs in Pyro."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import falling_adam
from benchmarks.kernels.targets import Target
from benchmarks.posteriordb.programs.sites import SiteMap
from benchmarks.posteriordb.pyro_fits import NativeProgram, configure, native, release
from ppl_ext.start.start import Start
from pyro_ext import SVGD, kernels

__all__ = ["Fitter", "configure", "flat", "kernels", "native", "release"]


def flat(target: Target) -> NativeProgram:
    """A target of one flat site."""
    return NativeProgram(target.program("pyro"), SiteMap())


class Fitter:
    """SVGD on a program."""

    def __init__(self, program: Any, kernel: Any, particles: int, rate: float, steps: int) -> None:
        self._model, self._kernel, self._particles = program.model, kernel, particles
        self._rate, self._steps = rate, steps

    def fit(self, seed: int, start: Start) -> NDArray[np.float64]:
        """Particles (P, D) of a run."""
        optim = falling_adam("pyro", self._rate, self._steps)
        engine = SVGD(self._model, optim, self._kernel, self._particles, seed=seed)
        engine.run(self._steps, start=start, progress_bar=False)
        return engine.particles.double().numpy()
