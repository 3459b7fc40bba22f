"""Options of a mixture guide, and the widths at which its components start."""

from __future__ import annotations

import math

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, check_number, is_number

COVARIANCES = ("diag", "full", "low_rank")


def initial_scales(num_components: int, init_scale: float, init_spread: float) -> list[float]:
    """Standard deviations at which the components start, from the narrowest to the widest."""
    if num_components == 1:
        return [init_scale]
    steps = (2.0 * k / (num_components - 1) - 1.0 for k in range(num_components))
    return [init_scale * init_spread**step for step in steps]


def check_options(
    num_components: int,
    covariance: str,
    rank: int | None,
    init_scale: float,
    init_spread: float,
    temperature: float,
) -> None:
    """See that the options of a mixture guide are in range and fit each other.

    Raises
    ------
    ArgumentError
        They are not.
    """
    check_count("num_components", num_components)
    check_choice("covariance", covariance, COVARIANCES)
    if rank is not None and covariance != "low_rank":
        raise ArgumentError(
            f"Expected no rank with covariance={covariance!r}, found rank={rank!r}. Leave it out, "
            "or use covariance='low_rank'."
        )
    check_count("rank", rank, optional=True)
    check_number("init_scale", init_scale)
    if not is_number(init_spread) or not 1.0 <= init_spread < math.inf:
        raise ArgumentError(f"Expected a finite init_spread >= 1, found {init_spread!r}.")
    check_number("temperature", temperature)


def initial_rank(rank: int | None, dim: int) -> int:
    """Columns r of W for D coordinates: those asked for, or the square root of D, rounded.

    Raises
    ------
    ArgumentError
        There are more columns than coordinates.
    """
    found = round(dim**0.5) if rank is None else rank
    if found > dim:
        raise ArgumentError(
            f"Expected a rank of at most the number of latents, {dim}, found rank={found}."
        )
    return found
