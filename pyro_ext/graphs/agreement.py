"""Whether a graph gives the results of the function that it was traced from, but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

#: Differences from the model that are taken for rounding, relative and absolute.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
#: Positions that tell how much an entry of a result is rounded, and how often that is allowed.
NEAR, ROUNDINGS = 4, 30.0


def elsewhere(z: Tensor) -> Tensor:
    """Other positions than those that a graph was traced at."""
    # A move of another size in each coordinate, the same at every call.
    return z + 0.125 * torch.cos(torch.arange(z.numel(), dtype=z.dtype).reshape(z.shape)).to(z)


def next_to(z: Tensor) -> list[Tensor]:
    """Positions that differ from ``z`` by one or two units in the last place."""
    generator = torch.Generator().manual_seed(0)
    epsilon = torch.finfo(z.dtype).eps
    signs = (
        torch.randint(0, 2, z.shape, generator=generator).to(z) * 2.0 - 1.0 for _ in range(NEAR)
    )
    return [z * (1.0 + epsilon * each) for each in signs]


def close(one: Tensor, two: Tensor) -> bool:
    """Whether two results agree; compared in pieces, since the comparison makes copies."""
    pieces = zip(one.reshape(-1).split(2**20), two.reshape(-1).split(2**20), strict=True)
    return all(
        torch.allclose(*pair, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True) for pair in pieces
    )


def within_rounding(one: Tensor, two: Tensor, *near: Tensor) -> bool:
    """Whether two results differ by no more than what rounding makes of them."""
    if not two.is_floating_point():
        return close(one, two)
    # Positions at which a result is not finite tell nothing of its rounding.
    rounding = torch.stack([(each - two).abs().nan_to_num(0.0, 0.0) for each in near]).amax(0)
    allowed = RELATIVE * two.abs() + ABSOLUTE + ROUNDINGS * rounding
    same = (one == two) | (one.isnan() & two.isnan())
    near_enough = two.isfinite() & ((one - two).abs() <= allowed)
    return bool((same | near_enough).all())
