"""Docstrings that stand once, at a shared base, and that ``help`` shows of every class below it."""

from __future__ import annotations

from typing import Any


class Documented:
    """Base of classes whose subclasses have its docstring where they have none of their own."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # `help` shows a class's own docstring alone, `inspect.getdoc` and Sphinx look at bases too.
        inherited = (base.__doc__ for base in cls.__mro__[1:] if base.__doc__)
        cls.__doc__ = cls.__doc__ or next(inherited, None)
