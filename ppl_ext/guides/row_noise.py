"""Checks of noise by row: that weights were met in linear operations, and that it was sound.

A use of a weight has ``rows``, the length of the first axis of what the weight is applied to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ppl_ext.errors import ArgumentError


def check_met(
    name: str,
    weights: Collection[str],
    sites: Collection[str] | None,
    uses: Mapping[str, Sequence[Any]],
    plain: Mapping[str, Collection[str]],
) -> None:
    """See that the weights that were asked for, or any, were met in a linear operation.

    Parameters
    ----------
    name : str
        Of the objective, for the message.
    weights : collection of str
        Latent sites that the guide has drawn.
    sites : collection of str or None
        Those asked for.
    uses : mapping
        Linear operations by site.
    plain : mapping
        Other operations by site.

    Raises
    ------
    ArgumentError
        They were not.
    """
    missed = sorted(set(weights if sites is None else sites) - set(uses))
    if uses and (sites is None or not missed):
        return
    wanted = "at least one latent site" if sites is None else f"each of {missed}"
    found = {site: sorted(plain.get(site, ())) for site in missed}
    raise ArgumentError(
        f"Expected {wanted} in a matrix product or convolution with rows of data along the first "
        f"axis, found {found} (where each is used). {name} would leave them as they are: apply "
        "the weight itself, as in x @ w, or name other sites."
    )


def check_uses(
    name: str, uses: Mapping[str, Sequence[Any]], plain: Mapping[str, Collection[str]]
) -> None:
    """See that no weight is used with noise by row in one place and without it in another.

    Raises
    ------
    ArgumentError
        One is.
    """
    for site in uses:
        if plain.get(site):
            raise ArgumentError(
                f"Expected {site!r} in linear operations only, found it in "
                f"{sorted(plain[site])} too. There it would be one draw for all rows, which "
                f"{name} cannot know from the others. Name the other sites in sites=."
            )


def check_rows(
    name: str, uses: Mapping[str, Sequence[Any]], shapes: Iterable[tuple[int, ...]]
) -> None:
    """See that the rows of linear operations can be the rows of an observed site.

    Raises
    ------
    ArgumentError
        They cannot.
    """
    lengths = {length for shape in shapes for length in shape}
    for site, of_site in uses.items():
        for use in of_site:
            if lengths and use.rows not in lengths:
                raise ArgumentError(
                    f"Expected the first axis of what {site!r} is applied to, of length "
                    f"{use.rows}, to be the rows of the data, found observed sites with axes of "
                    f"lengths {sorted(lengths)}. {name} is sound only for rows that are "
                    "independent given the weights; name the other sites in sites=."
                )
