"""Docstrings of functions and classes that both packages have: what they share stands once."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from string import Template
from typing import Any, TypeVar

Documented = TypeVar("Documented", bound=Callable[..., Any])


def documented(shared: str, **own: str) -> Callable[[Documented], Documented]:
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
    words = {name: inspect.cleandoc(text) for name, text in own.items()}
    lines = []
    for line in inspect.cleandoc(shared).splitlines():
        name = line.strip().removeprefix("$")
        if name == line.strip() or name not in words:
            lines.append(Template(line).substitute(words))
        elif words[name]:
            lines.append(textwrap.indent(words[name], line.partition("$")[0]))
    text = "\n".join(lines)

    def add(item: Documented) -> Documented:
        item.__doc__ = f"{inspect.cleandoc(item.__doc__ or '')}\n\n{text}\n"
        return item

    return add
