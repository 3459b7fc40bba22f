"""Docstrings that stand once, at a shared base: ``help`` shows them of every class below it."""

from __future__ import annotations

from typing import Any, TypeVar

Kind = TypeVar("Kind")


def documents_subclasses(base: type[Kind]) -> type[Kind]:
    """Let subclasses have a class's docstring where they have none of their own."""

    def complete(cls: type, **keywords: Any) -> None:
        super(base, cls).__init_subclass__(**keywords)  # type: ignore[misc]
        # `help` shows a class's own docstring alone, `inspect.getdoc` and Sphinx look at bases too.
        if not cls.__doc__:
            cls.__doc__ = next((each.__doc__ for each in cls.__mro__[1:] if each.__doc__), None)

    base.__init_subclass__ = classmethod(complete)  # type: ignore[assignment]
    return base
