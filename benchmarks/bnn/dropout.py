"""Networks whose units are left out at random: the rate, and draws of their weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.bnn.methods import Floats

#: Share of the units of every hidden layer that are left out, one of the two rates of Y. Gal and
#: Z. Ghahramani, "Dropout as a Bayesian approximation" (2016), for these sets.
RATE = 0.05


def masked(network: Mapping[str, Floats], number: int, seed: int) -> dict[str, Floats]:
    """Draws, ``number`` of them, of one network with units left out.

    What a unit that is left out gives to the next layer is nothing, and what the others give is
    divided by the share of those that stay: the rows of the next layer's weights. A draw has the
    same units for all inputs.

    Parameters
    ----------
    network : mapping of str to array
        Weights w1 (features, units), w2, ..., biases, and the noise, if any, of one network.
    number, seed : int
    """
    generator = np.random.default_rng(seed)
    draws = {
        name: np.repeat(np.asarray(value)[None], number, axis=0) for name, value in network.items()
    }
    layers = sum(name.startswith("w") for name in network)
    for layer in range(2, layers + 1):
        name = f"w{layer}"
        stay = generator.random((number, draws[name].shape[1], 1)) >= RATE
        draws[name] = draws[name] * (stay / (1.0 - RATE)).astype(draws[name].dtype)
    return draws
