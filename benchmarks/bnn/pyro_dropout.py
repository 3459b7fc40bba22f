"""Networks with dropout in Pyro."""

from __future__ import annotations

from collections.abc import Callable

from pyro.infer.autoguide import AutoDelta, AutoGuide

from benchmarks.bnn.dropout import RATE, masked
from benchmarks.bnn.methods import GUIDE_DRAWS, Floats, Method, Setting
from benchmarks.bnn.pyro_network import VariationalTrainer, program, start


class Trainer(VariationalTrainer):
    """Runs to the mode of the weights, with new units left out for each row in every step."""

    def _model_and_guide(self, setting: Setting) -> tuple[Callable[..., None], AutoGuide]:
        model = program(setting, RATE)
        return model, AutoDelta(model, init_loc_fn=start)

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        network = {name: value.detach().numpy() for name, value in self._guide.median().items()}
        return masked(network, GUIDE_DRAWS, seed=1)


def trainer(method: Method, setting: Setting) -> Trainer:
    """Runs of a method."""
    return Trainer(method, setting)
