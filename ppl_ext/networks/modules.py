"""What of a network cannot be in a program, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_ext.errors import ModelCheckError


def refuse_batch_statistics(paths: Sequence[str], evaluate: str) -> None:
    """See that no layer normalises by the rows that it is given.

    Parameters
    ----------
    paths : sequence of str
        Of the layers that do.
    evaluate : str
        How to put the module into evaluation mode.

    Raises
    ------
    ModelCheckError
        Some do.
    """
    if paths:
        raise ModelCheckError(
            "Expected layers that treat every row by itself, found normalisation by the batch in "
            f"{list(paths)}: there the output of a row depends on the others, and the likelihood "
            f"is no product over rows. Call {evaluate} to use the statistics kept in training, or "
            "take GroupNorm or LayerNorm."
        )


def refuse_random_layers(paths: Sequence[str], evaluate: str) -> None:
    """See that no layer draws at random.

    Parameters
    ----------
    paths : sequence of str
        Of the layers that do.
    evaluate : str
        How to put the module into evaluation mode.

    Raises
    ------
    ModelCheckError
        Some do.
    """
    if paths:
        raise ModelCheckError(
            f"Expected layers without randomness of their own, found dropout in {list(paths)}: a "
            f"density that changes from call to call is none. Call {evaluate} to switch it off; "
            "the prior takes the place of dropout."
        )
