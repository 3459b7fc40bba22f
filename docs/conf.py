"""Sphinx settings: MyST pages, API pages from docstrings; built with warnings as errors."""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

ROOT = Path(__file__).resolve().parent.parent
# The sources beside this page are documented, whether or not they are installed.
sys.path.insert(0, str(ROOT))

project = "ppl-ext"
author = "the ppl-ext authors"
copyright = f"2026, {author}"
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# A single backtick in a docstring is code here, as it is in Markdown.
default_role = "literal"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
# Attributes of a class stand once, in its field list, not as further entries of their own.
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"{project} {release}"

# ArviZ 0.23 announces 1.x on import; that is no fault of a page.
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor")


class OnePackageDomain(PythonDomain):
    """Names mean those of the package being documented: both packages have a `Kernel`.

    A word that several objects of the package bear, such as "optimizer" in the type of a
    parameter, is prose and becomes no link.
    """

    def find_obj(
        self, env: Any, modname: str | None, classname: str | None, name: str, *rest: Any
    ) -> list[tuple[str, Any]]:
        """The one match in the package of `modname`, or none; all matches outside a package."""
        matches = super().find_obj(env, modname, classname, name, *rest)
        package = (modname or "").partition(".")[0]
        if len(matches) <= 1 or not package:
            return matches
        inside = [match for match in matches if match[0].startswith(f"{package}.")]
        return inside if len(inside) == 1 else []


# Literal text, or emphasis closed on the same line, which keep their markers.
KEPT = re.compile(r"(``.+?``|`[^`]+`_?|\\.|(?<!\*)\*\w[^*]*\w\*(?!\*)|\*\*\w[^*]*\w\*\*)")


def escape_prose(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let `|x - y|` and `*args` in a docstring's prose be the characters that they are."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "..")):
            parts = KEPT.split(line)
            # A star before a space opens nothing: it is a list's bullet or a product.
            parts[::2] = [re.sub(r"(\||\*(?=\S))", r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app: Sphinx) -> None:
    """Register the two adjustments above; after napoleon, which has priority 500."""
    app.add_domain(OnePackageDomain, override=True)
    app.connect("autodoc-process-docstring", escape_prose, priority=600)
