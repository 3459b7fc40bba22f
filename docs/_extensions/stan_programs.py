"""Pages with Stan programs run where these can be compiled, and say so where they cannot.

A page is named in `PAGES`. Where a tool is missing it is not run, its directive `stan-note` gives
a sentence that says so, and the build log has the reason.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from stan_compiler import missing

PAGES = ("tutorials/stan-program.md",)


class StanNote(SphinxDirective):
    """A note where the page was not run, and nothing where it was."""

    def run(self) -> list[nodes.Node]:
        """The note, or nothing."""
        if missing() is None:
            return []
        text = (
            "These pages were built where Stan programs cannot be compiled, so the code below "
            "was not run here, and what it prints and draws is not shown."
        )
        return [nodes.note("", nodes.paragraph("", text))]


def leave_out(app: Sphinx, config: Config) -> None:
    """Do not run the pages where Stan programs cannot be compiled."""
    reason = missing()
    if reason is not None:
        config.nb_execution_excludepatterns = [*config.nb_execution_excludepatterns, *PAGES]
        logging.getLogger(__name__).info("%s not run: %s", ", ".join(PAGES), reason)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both; before MyST-NB reads its options."""
    app.add_directive("stan-note", StanNote)
    app.connect("config-inited", leave_out, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
