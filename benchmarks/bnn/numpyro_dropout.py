"""Networks with dropout in NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpyro.infer.autoguide import AutoDelta, AutoGuide

from benchmarks.bnn.dropout import RATE, masked
from benchmarks.bnn.methods import GUIDE_DRAWS, Floats, Method, Setting
from benchmarks.bnn.numpyro_network import VariationalTrainer, program, start


class Trainer(VariationalTrainer):
    """Runs to the mode of the weights, with new units left out for each row in every step."""

    def _model_and_guide(self, setting: Setting) -> tuple[Callable[..., None], AutoGuide]:
        model = program(setting, RATE)
        # Strategies are called without a site first, unless they are partial.
        return model, AutoDelta(model, init_loc_fn=partial(start))

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        median = self._guide.median(self._svi.get_params(self._state))
        network = {name: np.asarray(value) for name, value in median.items()}
        return masked(network, GUIDE_DRAWS, seed=1)


def trainer(method: Method, setting: Setting) -> Trainer:
    """Runs of a method."""
    return Trainer(method, setting)
