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
Kind = TypeVar("Kind")


#: The section of a docstring that packages write for themselves, as their hosts differ.
EXAMPLES = "Examples\n--------\n"


def documents_subclasses(base: type[Kind]) -> type[Kind]:
    """Let subclasses have a class's docstring where they have none of their own.

    A docstring that has examples alone goes on from the inherited one.
    """

    def complete(cls: type, **keywords: Any) -> None:
        super(base, cls).__init_subclass__(**keywords)  # type: ignore[misc]
        # `help` shows a class's own docstring alone, `inspect.getdoc` and Sphinx look at bases too.
        inherited = next((each.__doc__ for each in cls.__mro__[1:] if each.__doc__), None)
        own = inspect.cleandoc(cls.__doc__ or "")
        if not own:
            cls.__doc__ = inherited
        elif own.startswith(EXAMPLES):
            cls.__doc__ = f"{inspect.cleandoc(inherited or '')}\n\n{own}\n"

    base.__init_subclass__ = classmethod(complete)  # type: ignore[assignment]
    return base


def documented(shared: str, **own: str) -> Callable[[Item], Item]:
    """Let a docstring go on with a text that the other package's goes on with as well.

    Examples, which differ by package, stand in the docstring and come after that text.

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
        # A line that is a name alone may stand for several lines, which take its indentation.
        name = line.strip().removeprefix("$")
        if name == line.strip() or name not in words:
            lines.append(Template(line).substitute(words))
        elif words[name]:
            lines.append(textwrap.indent(words[name], line.partition("$")[0]))
    text = "\n".join(lines)

    def add(item: Item) -> Item:
        begin, *examples = inspect.cleandoc(item.__doc__ or "").split(f"\n\n{EXAMPLES}")
        item.__doc__ = f"\n\n{EXAMPLES}".join([f"{begin}\n\n{text}", *examples]) + "\n"
        return item

    return add
