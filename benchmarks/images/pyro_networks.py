"""The classifier of the image benchmark in Pyro."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from benchmarks.images.pyro_training import PyroTrainer, make_bayesian, release_programs

BACKEND = "Pyro"
Trainer = PyroTrainer
release = release_programs


class Classifier(PyroModule):
    """Bayesian multilayer perceptron with ReLU units.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, hidden layers, classes.
    num_rows : int
        Rows of the training data, of which the model is given minibatches.
    temperature : float
        The log likelihood is divided by it.
    """

    def __init__(self, sizes: Sequence[int], num_rows: int, temperature: float) -> None:
        super().__init__()
        layers = [
            PyroModule[torch.nn.Linear](inputs, outputs) for inputs, outputs in pairwise(sizes)
        ]
        self.layers = PyroModule[torch.nn.ModuleList](layers)
        self.num_rows, self.temperature = num_rows, temperature
        make_bayesian(self, gain=2.0)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        logits = self.layers[-1](x)
        if y is None:
            pyro.deterministic("prediction", logits, event_dim=1)
            return
        rows = pyro.plate("rows", self.num_rows, subsample_size=len(x))
        with rows, poutine.scale(scale=1.0 / self.temperature):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
