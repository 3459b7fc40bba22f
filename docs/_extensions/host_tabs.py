"""Cells of a tutorial that are tagged `pyro` and `numpyro` and stand together become tabs.

MyST-NB reads the cells of a text notebook at the top level of a page only, so that they cannot be
written inside sphinx-design's `tab-set`. Here each run of neighbouring cells with one of these tags
is put into a tab set after the page was executed. All tab sets of the pages switch together.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx_design.shared import create_component

LABELS = {"pyro": "Pyro", "numpyro": "NumPyro"}


def host_of(node: nodes.Node) -> str | None:
    """The host that a cell is tagged with, or None."""
    classes = node.get("classes", []) if isinstance(node, nodes.Element) else []
    return next((host for host in LABELS if "cell" in classes and f"tag_{host}" in classes), None)


def tab(host: str, cells: list[nodes.Node]) -> nodes.Element:
    """A tab of sphinx-design that holds the cells."""
    label = nodes.rubric(LABELS[host], nodes.Text(LABELS[host]), classes=["sd-tab-label"])
    label["sync_group"], label["sync_id"] = "host", host
    content = create_component("tab-content", classes=["sd-tab-content"], children=cells)
    return create_component("tab-item", classes=["sd-tab-item"], children=[label, content])


class HostTabs(SphinxTransform):
    """Put runs of cells into tab sets."""

    default_priority = 800

    def apply(self, **kwargs: Any) -> None:
        """Look at every section of the page."""
        sections = [self.document, *self.document.findall(nodes.section)]
        for section in sections:
            children: list[nodes.Node] = []
            run: dict[str, list[nodes.Node]] = {}
            for child in [*section.children, None]:
                host = host_of(child) if child is not None else None
                if host is not None:
                    run.setdefault(host, []).append(child)
                    continue
                if run:
                    tabs = [tab(host, run[host]) for host in LABELS if host in run]
                    children.append(
                        create_component("tab-set", classes=["sd-tab-set"], children=tabs)
                    )
                    run = {}
                if child is not None:
                    children.append(child)
            section.children = []
            section.extend(children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(HostTabs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
