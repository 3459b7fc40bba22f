"""Minibatch scores: the engine owns the row indices, one set a step for all particles or not."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from ppl_ext.gradients import minibatch
from ppl_ext.gradients.minibatch import Sampling
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator


class Minibatch(minibatch.Minibatch, GradientEstimator):
    position_axes = ()

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check_plates(target)
        if self.sampling == "replacement":
            return {}
        if self.sampling == "cyclic":
            return {name: {"position": 0} for name in target.plates}
        # A position past the end makes the first step shuffle.
        return {
            name: {"order": torch.arange(plate.size), "position": plate.size}
            for name, plate in target.plates.items()
        }

    def draw(
        self,
        target: LogDensity,
        state: EstimatorState,
        generator: torch.Generator,
        num_positions: int = 1,
    ) -> tuple[dict[str, Int[Tensor, "*P B"]], EstimatorState]:
        lead = (num_positions,) if self.own_rows else ()
        indices, following = {}, {}
        for name, plate in target.plates.items():
            size, count = plate.size, plate.subsample_size
            if self.sampling == "replacement":
                rows = torch.randint(size, (*lead, count), generator=generator)
            elif self.sampling == "cyclic":
                position = state[name]["position"]
                rows = (position + torch.arange(count)) % size
                following[name] = {"position": (position + count) % size}
            else:
                order, position = state[name]["order"], state[name]["position"]
                if position + count > size:
                    order, position = shuffled(size, lead, generator), 0
                rows = order[..., position : position + count]
                following[name] = {"order": order, "position": position + count}
            indices[name] = rows.to(target.device)
        return indices, following


def shuffled(
    size: int, lead: tuple[int, ...], generator: torch.Generator
) -> Int[Tensor, "*P size"]:
    """A permutation of so many numbers, or ``lead`` of them."""
    if not lead:
        return torch.randperm(size, generator=generator)
    return torch.stack([torch.randperm(size, generator=generator) for _ in range(lead[0])])


__all__ = ["Minibatch", "Sampling", "shuffled"]
