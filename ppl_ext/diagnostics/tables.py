"""Tables of figures, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

#: Font and lines of a table in a notebook. Colours are the page's own, light or dark.
_CELL = (
    "padding:0.15em 0.35em;border:none;text-align:{};vertical-align:top;white-space:normal;"
    "font-variant-numeric:tabular-nums"
)
_HEAD = ";border-bottom:1px solid currentColor;font-weight:600"


@dataclass(frozen=True)
class Table:
    """Rows of texts under a header.

    Attributes
    ----------
    header : sequence of str
    rows : sequence of sequence of str
    left : sequence of int
        Columns that begin at the left; the others end at the right, as figures do.

    Examples
    --------
    >>> print(Table(("site", "mean"), [("mu", "4.4"), ("tau", "12.0")]))
    site  mean
    mu     4.4
    tau   12.0
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)

    def __str__(self) -> str:
        columns = zip(self.header, *self.rows, strict=True)
        widths = [max(map(len, column)) for column in columns]
        lines = []
        for row in (self.header, *self.rows):
            cells = [
                f"{text:{width}}" if place in self.left else f"{text:>{width}}"
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def as_html(self) -> str:
        """The table for a notebook."""

        def cells(row: Sequence[str], tag: str, more: str = "") -> str:
            return "".join(
                f'<{tag} style="{_CELL.format("left" if k in self.left else "right")}{more}">'
                f"{html.escape(text)}</{tag}>"
                for k, text in enumerate(row)
            )

        head = f"<tr>{cells(self.header, 'th', _HEAD)}</tr>"
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        # On a phone texts are wrapped, and where that is not enough the table alone scrolls.
        style = "border-collapse:collapse;margin:0.5em 0;display:block;overflow-x:auto"
        style += ";font-size:min(1em,3.2vw)"
        return f'<table style="{style}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def paragraph(text: str, *, bold: bool = False) -> str:
    """A paragraph for a notebook."""
    weight = "600" if bold else "normal"
    return f'<p style="margin:0.3em 0;font-weight:{weight}">{html.escape(text)}</p>'


def listed(items: Sequence[str], *, numbered: bool = False) -> str:
    """A list for a notebook; empty where there are no items."""
    if not items:
        return ""
    tag, inner = "ol" if numbered else "ul", "".join(f"<li>{html.escape(x)}</li>" for x in items)
    return f'<{tag} style="margin:0.3em 0 0.3em 1.5em;padding:0">{inner}</{tag}>'


def block(*parts: str) -> str:
    """Parts of a notebook's page as one."""
    text = "".join(part for part in parts if part)
    style = "font-family:ui-monospace,monospace;overflow-wrap:break-word;max-width:100%"
    return f'<div style="{style}">{text}</div>'
