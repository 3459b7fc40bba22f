"""Sphinx settings: MyST pages, API pages from docstrings; built with warnings as errors."""

from __future__ import annotations

import importlib
import inspect
import os
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
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
# Notebooks run in processes of their own, and pictures without a screen.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")

project = "ppl-ext"
author = "the ppl-ext authors"
copyright = f"2026, {author}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
release = version = PROJECT["version"]

extensions = [
    "gallery",
    "host_tabs",
    "leaderboard_page",
    "myst_nb",
    "reachable_links",
    "reference",
    "stan_programs",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# A single backtick in a docstring is code here, as it is in Markdown.
default_role = "literal"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
# Pages and tabs say which package is meant.
add_module_names = False
autodoc_typehints = "signature"
napoleon_google_docstring = False
# Attributes of a class stand once, in its field list, not as further entries of their own.
napoleon_use_ivar = True

# Tutorials are run when the pages are built, and again only when their code has changed:
# `make clean` forgets what they gave.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
# Progress bars, and what hosts announce when they are imported.
nb_output_stderr = "remove"

# The hosts' own pages. Their lists of names are fetched where the pages are published; a build
# without network has the same pages with fewer links.
if os.environ.get("READTHEDOCS") or os.environ.get("PPL_EXT_INTERSPHINX"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "pyro": ("https://docs.pyro.ai/en/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "numpyro": ("https://num.pyro.ai/en/stable", None),
        "arviz": ("https://python.arviz.org/en/stable", None),
    }

# `make linkcheck`. The repository's own address is looked at when there is one.
linkcheck_ignore = [PROJECT["urls"]["Homepage"] + ".*", PROJECT["urls"]["Documentation"] + ".*"]
linkcheck_timeout = 20

# Prompts and what follows them are no part of what is copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_theme_options = {
    "source_repository": PROJECT["urls"]["Homepage"] + "/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["tabs.js"]
html_search_scorer = str(Path(__file__).parent / "_extensions" / "scorer.js")

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
        look = super().find_obj
        matches = look(env, modname, classname, name, *rest) or look(
            env, modname, classname, defined_at(name), *rest
        )
        package = (modname or "").partition(".")[0]
        if len(matches) <= 1 or not package:
            return matches
        inside = [match for match in matches if match[0].startswith(f"{package}.")]
        return inside if len(inside) == 1 else []

    def note_object(self, name: str, objtype: str, node_id: str, *rest: Any, **more: Any) -> None:
        """Where both packages name again what they share, the name's first place is kept."""
        if not (more.get("aliased") and name in self.objects):
            super().note_object(name, objtype, node_id, *rest, **more)


def defined_at(name: str) -> str:
    """Where a class or function is defined that a package's folder names again, or the name."""
    module, _, last = name.rpartition(".")
    item = getattr(sys.modules.get(module), last, None)
    if inspect.isclass(item) or inspect.isroutine(item):
        return f"{item.__module__}.{item.__qualname__}"
    return name


# The packages that are documented.
PACKAGES = ("pyro_ext", "numpyro_ext", "ppl_ext")

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


# What stands in an engine's docstring for the options that it shares with all others.
SHARED = re.compile(
    r"^\s*Options of every engine(?: but ``(?P<without>\w+)``)?; "
    r"see :class:`~?(?P<engine>[\w.]+)`\."
)
# The first line of a parameter's entry.
ENTRY = re.compile(r"^(?P<names>[\w, ]+) : ")


def show_options(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Have the options that all engines share on the page of each, from `Engine`'s docstring."""
    for number, line in enumerate(lines):
        found = SHARED.match(line)
        if found is None or lines[number - 1].strip() != "**options":
            continue
        module, _, engine = found["engine"].rpartition(".")
        shared = inspect.getdoc(getattr(importlib.import_module(module), engine)) or ""
        section = shared.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        known = {each["names"] for each in map(ENTRY.match, lines) if each}
        known |= {"model", "optim", str(found["without"])}
        taken, keep = [], False
        for text in section.splitlines():
            if entry := ENTRY.match(text):
                keep = entry["names"] not in known
            taken += [text] * keep
        lines[number - 1 : number + 1] = taken
        return


def skip_foreign(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members that are another library's functions, such as `softmax = jax.nn.softmax`.

    Their docstrings are written for other pages.
    """
    package = (getattr(obj, "__module__", None) or "").partition(".")[0]
    is_foreign = inspect.isroutine(obj) and package not in ("", *PACKAGES)
    return True if is_foreign else None


def setup(app: Sphinx) -> None:
    """Register the adjustments above; napoleon, between them, has priority 500."""
    app.add_domain(OnePackageDomain, override=True)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", show_options, priority=400)
    app.connect("autodoc-process-docstring", escape_prose, priority=600)
