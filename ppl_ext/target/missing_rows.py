"""What the hosts do with ``sample(..., obs_mask=)``, where it makes a posterior improper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described

#: How the hosts' name ends of the latent site of ``sample(..., obs_mask=)``.
UNOBSERVED = "_unobserved"


class MissingRows:
    """Context in which all rows of what ``obs_mask`` leaves out have their density.

    The hosts make two sites of ``sample(..., obs_mask=mask)``, and mask each where the other
    counts. The latent one is then flat at the rows that are seen, where nothing uses it, and the
    posterior improper. With its own density there it integrates to one, which leaves all else as
    it is.

    Parameters
    ----------
    primitives : module
        The host's.
    without_mask : callable
        Of a name: the context in which the mask is taken off its site.
    as_mask : callable
        The framework's array of something, as a mask; one of another type is refused here.
    filled : callable, optional
        Of a distribution, its observations and the mask: the observations with values of the
        support at rows that are not seen, where the host evaluates these as well.
    """

    def __init__(
        self,
        primitives: Any,
        without_mask: Callable[[str], AbstractContextManager[Any]],
        as_mask: Callable[[Any], Any],
        filled: Callable[[Any, Any, Any], Any] = lambda _, obs, __: obs,
    ) -> None:
        self._primitives, self._without_mask = primitives, without_mask
        self._as_mask, self._filled = as_mask, filled
        self._observe = primitives._masked_observe

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enter it."""
        # What was there before is put back, not the host's: contexts may stand in each other.
        before = self._primitives._masked_observe
        self._primitives._masked_observe = self._observe_some
        try:
            yield
        finally:
            self._primitives._masked_observe = before

    def _observe_some(
        self, name: str, fn: Any, obs: Any, obs_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        mask = self._checked(name, fn, obs, obs_mask)
        if obs is not None:
            obs = self._filled(fn, obs, mask)
        with self._without_mask(f"{name}{UNOBSERVED}"):
            return self._observe(name, fn, obs, mask, *args, **kwargs)

    def _checked(self, name: str, fn: Any, obs: Any, obs_mask: Any) -> Any:
        try:
            mask = self._as_mask(obs_mask)
        except (TypeError, ValueError):
            mask = None
        # The name of the type, which is "bool" in NumPy and JAX and "torch.bool" in torch.
        if mask is None or not str(mask.dtype).endswith("bool"):
            found = described(obs_mask) if mask is None else f"numbers of type {mask.dtype}"
            raise ArgumentError(
                f"Expected obs_mask of site '{name}' to be an array of bool, True where a row is "
                f"seen, found {found}. Write obs_mask=seen != 0."
            )
        shape = np.shape(obs)
        rows = shape[: len(shape) - fn.event_dim]
        try:
            np.broadcast_shapes(tuple(mask.shape), rows)
        except ValueError:
            raise ArgumentError(
                f"Expected obs_mask of site '{name}' to have a place for each of its rows, "
                f"{rows}, found shape {tuple(mask.shape)}."
            ) from None
        return mask
