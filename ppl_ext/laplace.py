"""The Laplace approximation without arrays: which sites have a Gaussian."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_ext.errors import ArgumentError


def sites_of_gaussian(
    names: Sequence[str], sites: Sequence[str] | None, hyperparameters: Sequence[str]
) -> tuple[str, ...]:
    """The latent sites that have a Gaussian: those asked for, or all but the hyperparameters.

    Parameters
    ----------
    names : sequence of str
        All latent sites of the model.
    sites : sequence of str, optional
        Those asked for.
    hyperparameters : sequence of str

    Raises
    ------
    ArgumentError
        A site is not latent, or none is left.
    """
    for label, wanted in (("sites", sites or ()), ("hyperparameters", hyperparameters)):
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise ArgumentError(
                f"Expected {label} among the latent sites {list(names)}, found {unknown}."
            )
    if sites is not None:
        return tuple(sites)
    left = tuple(name for name in names if name not in hyperparameters)
    if not left:
        raise ArgumentError(
            "Expected hyperparameters to leave some latent sites for the Gaussian, found all of "
            f"them, {list(names)}."
        )
    return left
