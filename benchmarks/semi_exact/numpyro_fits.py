"""Programs and runs in NumPyro."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import falling_adam
from benchmarks.kernels.targets import Target
from benchmarks.posteriordb.numpyro_fits import NativeProgram, configure, native, release
from benchmarks.posteriordb.programs.sites import SiteMap
from numpyro_ext import SVGD, kernels
from ppl_ext.start.start import Start

__all__ = ["Fitter", "configure", "flat", "kernels", "native", "release"]


def flat(target: Target) -> NativeProgram:
    """A target of one flat site."""
    return NativeProgram(target.program("numpyro"), SiteMap())


class Fitter:
    """SVGD on a program; runs with other seeds share what is compiled."""

    def __init__(self, program: Any, kernel: Any, particles: int, rate: float, steps: int) -> None:
        optim = falling_adam("numpyro", rate, steps)
        self._engine = SVGD(program.model, optim, kernel, particles)
        self._steps = steps

    def fit(self, seed: int, start: Start) -> NDArray[np.float64]:
        """Particles (P, D) of a run."""
        key = jax.random.key(seed)
        result = self._engine.run(key, self._steps, start=start, progress_bar=False)
        return np.asarray(self._engine.particles(result.state), np.float64)
