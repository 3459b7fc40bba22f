"""What does not depend on the numbers in a program's arguments, made once for many data sets.

It is targets and evaluations, whose compiled programs all fits then share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Programs:
    """Parts by name, each of which is made when it is first asked for.

    Examples
    --------
    >>> once = Programs()
    >>> once("target", lambda: [1]) is once("target", lambda: [2])
    True
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __call__(self, name: str, make: Callable[[], Made]) -> Made:
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made
