"""Host optimizers on tensors that an engine owns."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from pyro_ext.optim import Coordinates, EngineOptimizer

SHAPE = (2, 5, 3)


def adam(fused: bool) -> Any:
    return functools.partial(torch.optim.Adam, lr=0.1, fused=fused)


def after_steps(optim: Any, coordinates: Coordinates | None, transposed: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    optimizer = EngineOptimizer(optim, {"factor": tensor}, coordinates)
    for _ in range(3):
        gradient = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).transpose(1, 2)
        optimizer.step({"factor": gradient if transposed else gradient.contiguous()})
    return tensor.detach()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_site", [False, True])
def test_fused_steps_know_which_entry_is_which(by_site: bool, transposed: bool) -> None:
    """torch's own go by the order of memory, which a view or a transposed gradient changes."""
    sites = {"a": slice(0, 2), "b": slice(2, 5)}
    coordinates = Coordinates(sites, {"factor": -2}) if by_site else None
    found, expected = (
        after_steps(
            {"a": adam(fused), "b": adam(fused)} if by_site else adam(fused),
            coordinates,
            transposed,
        )
        for fused in (True, False)
    )
    torch.testing.assert_close(found, expected)
