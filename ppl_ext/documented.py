"""Docstrings that stand once: at a shared base, of which ``help`` shows them of every class below,
or in a text that the functions of both packages go on with.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from string import Template
from typing import Any, TypeVar

Item = TypeVar("Item", bound=Callable[..., Any])


class Documented:
    """Base of classes whose subclasses have its docstring where they have none of their own."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # `help` shows a class's own docstring alone, `inspect.getdoc` and Sphinx look at bases too.
        inherited = (base.__doc__ for base in cls.__mro__[1:] if base.__doc__)
        cls.__doc__ = cls.__doc__ or next(inherited, None)


def documented(shared: str, **own: str) -> Callable[[Item], Item]:
    """Let a docstring go on with a text that the other package's goes on with as well.

    Parameters
    ----------
    shared : str
        What follows the summary. In it ``$name`` stands for the package's own words, which may be
        several lines where it is a line of its own; without words that line is left out.
    **own : str
        The package's own words.

    Returns
    -------
    callable
        A decorator of functions and classes.

    Raises
    ------
    KeyError
        Words are missing.
    """
    words = {name: inspect.cleandoc(text) if "\n" in text else text for name, text in own.items()}
    lines = []
    for line in inspect.cleandoc(shared).splitlines():
        name = line.strip().removeprefix("$")
        if name == line.strip() or name not in words:
            lines.append(Template(line).substitute(words))
        elif words[name]:
            lines.append(textwrap.indent(words[name], line.partition("$")[0]))
    text = "\n".join(lines)

    def add(item: Item) -> Item:
        item.__doc__ = f"{inspect.cleandoc(item.__doc__ or '')}\n\n{text}\n"
        return item

    return add
