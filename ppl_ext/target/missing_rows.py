"""What the hosts do with ``sample(..., obs_mask=)``, where it makes a posterior improper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

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
    """

    def __init__(
        self, primitives: Any, without_mask: Callable[[str], AbstractContextManager[Any]]
    ) -> None:
        self._primitives, self._without_mask = primitives, without_mask
        self._observe = primitives._masked_observe

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enter it."""
        before = self._primitives._masked_observe
        self._primitives._masked_observe = self._observe_some
        try:
            yield
        finally:
            self._primitives._masked_observe = before

    def _observe_some(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._without_mask(f"{name}{UNOBSERVED}"):
            return self._observe(name, *args, **kwargs)
