"""Deep ensembles with early stopping, by `DeepEnsemble` of both packages, on regression networks.

The recipe is that by which microcanonical Langevin ensembles are started, as their authors' public
code has it for UCI sets (E. Sommer and others, ICLR 2025, https://arxiv.org/abs/2502.06335): Adam
with a step size of 0.001, minibatches of 32 rows, 500 epochs at most, and the end for a member
whose density of held-out rows has not risen for 10 epochs. Here the prior takes the place of their
decay of weights, members start at draws of it, and each is taken where its density was greatest.
An epoch has 40 steps at least: on the smallest sets 500 shorter ones end far from convergence.
"""

from __future__ import annotations

import dataclasses
import importlib
import math

import numpy as np
from scipy.stats import norm

from benchmarks.bnn.protocol import Rows
from benchmarks.network_truth.methods import Recipe
from benchmarks.network_truth.networks import Network, bound
from benchmarks.network_truth.outputs import Floats
from benchmarks.trust.methods import Draws, Fitted, Size
from ppl_ext.fit.ladder.by_chains import CHAINS

#: Members, as many as `fit` has chains; step size, rows of a minibatch, least steps of an epoch,
#: epochs at most, and epochs that are waited for a better one.
MEMBERS, RATE, BATCH, EPOCH, EPOCHS, PATIENCE = CHAINS, 1e-3, 32, 40, 500, 10


def means_of(draws: Draws, x: Floats) -> Floats:
    """Means (S, N) of networks with tanh units at rows x (N, inputs).

    In NumPy, since members are looked at after every epoch.
    """
    layers = sorted({int(name.split(".")[-2]) for name in draws if name.endswith(".bias")})
    found = np.broadcast_to(x, (len(draws["noise"]), *x.shape))
    for layer in layers:
        if f"net.{layer}.weight" in draws:  # torch has the units of the next layer first
            weight, bias = draws[f"net.{layer}.weight"].swapaxes(1, 2), draws[f"net.{layer}.bias"]
        else:
            weight, bias = (draws[f"net.layers.{layer}.{kind}"] for kind in ("kernel", "bias"))
        found = (np.tanh(found) if layer else found) @ weight + bias[:, None]
    means: Floats = found[..., 0]
    return means


class EarlyStopping:
    """Of each member the weights with the greatest density of held-out rows.

    Attributes
    ----------
    draws : dict
    epochs : int
        How often members were looked at.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        self._x, self._y = x, y
        self.draws: Draws = {}
        self.epochs = 0

    def __call__(self, draws: Draws) -> bool:
        """Look at members, an epoch later; True where all have stopped."""
        logs = norm.logpdf(self._y, means_of(draws, self._x), draws["noise"][:, None]).mean(1)
        if not self.draws:
            self.draws = {name: each.copy() for name, each in draws.items()}
            self._best, self._waited = logs, np.zeros(len(logs))
        else:
            better = (logs > self._best) & (self._waited < PATIENCE)
            self._best = np.where(better, logs, self._best)
            self._waited = np.where(better, 0, self._waited + 1)
            for name, each in draws.items():
                self.draws[name][better] = each[better]
        self.epochs += 1
        return bool((self._waited >= PATIENCE).all())


def ensemble(network: Network, backend: str, rows: Rows, seed: int, size: Size) -> Fitted:
    """Members of an ensemble; evaluations are those of all rows, and minibatches their share."""
    module = importlib.import_module(f"benchmarks.network_truth.{backend}_methods")
    program = bound(network, backend, BATCH).program
    stopping = EarlyStopping(*rows.parts["validation"])
    batch = min(BATCH, len(rows.x))
    epoch = max(EPOCH, len(rows.x) // batch)
    recipe = Recipe(
        "",
        engine="DeepEnsemble",
        steps=epoch * size.of(EPOCHS),
        adam=RATE,
        options={"num_particles": MEMBERS},
        run={"start": module.of_prior(program, MEMBERS, seed), "callback_every": epoch},
        watch=stopping,
    )
    found = module.run_engine(recipe, program, seed, Size()).fitted
    spent = math.ceil(stopping.epochs * epoch * MEMBERS * batch / len(rows.x))
    return dataclasses.replace(found, draws=stopping.draws, evaluations=spent)
