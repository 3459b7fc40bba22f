"""Host optimizers on tensors that an engine owns."""

from __future__ import annotations

import functools
from typing import Any

import pyro
import pytest
import torch

from pyro_ext.optim import Coordinates, EngineOptimizer, Undo

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


@pytest.mark.parametrize("kind", ["first step", "later", "a schedule", "no state of torch's own"])
def test_a_step_is_put_back_to_the_last_bit(kind: str) -> None:
    """Tensors, moments, counters and rates: the next step is the one of an optimizer without."""

    class Own(torch.optim.Adam):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict()

    adam_or_own = Own if kind == "no state of torch's own" else torch.optim.Adam
    optim: Any = functools.partial(adam_or_own, lr=0.1)
    if kind == "a schedule":
        options = {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.5}
        optim = pyro.optim.ExponentialLR(options)
    gradients = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    ends = []
    for puts_back in (False, True):
        tensor = torch.ones(4)
        optimizer = EngineOptimizer(optim, {"z": tensor})
        for number, gradient in enumerate(gradients):
            if puts_back and number == (0 if kind == "first step" else 3):
                with pytest.raises(KeyboardInterrupt), Undo([tensor], optimizer):
                    optimizer.step({"z": 7.0 - gradient})
                    raise KeyboardInterrupt
            optimizer.step({"z": gradient})
        ends.append(tensor.detach())
    assert torch.equal(*ends)
