"""Keep the names of a tutorial's Pyro cells apart from those of its NumPyro cells.

An extension of IPython, loaded in a hidden first cell by `%load_ext two_hosts`. Both tabs of a
tutorial can then call their model `model` and their fit `fit`. Which host a cell is of is seen by
the names in it; a cell that names neither or both finds no names at all, and fails.
"""

from __future__ import annotations

import re
from typing import Any

WORDS = {
    "pyro": re.compile(r"\b(px|pyro|torch)\b"),
    "numpyro": re.compile(r"\b(nx|numpyro|jax|jnp)\b"),
}


def host_of(cell: str) -> str:
    """The one host that a cell names, or an empty word."""
    found = [host for host, words in WORDS.items() if words.search(cell)]
    return found[0] if len(found) == 1 else ""


def load_ipython_extension(shell: Any) -> None:
    """Change the names before each cell to those of its host."""
    common = set(shell.user_ns)
    kept: dict[str, dict[str, Any]] = {}
    present = ""

    def own_names() -> dict[str, Any]:
        return {
            name: value
            for name, value in shell.user_ns.items()
            if name not in common and not name.startswith("_")
        }

    def switch(info: Any) -> None:
        nonlocal present
        host = host_of(info.raw_cell)
        if host != present:
            kept[present] = own_names()
            for name in kept[present]:
                del shell.user_ns[name]
            shell.user_ns.update(kept.get(host, {}))
            present = host

    shell.events.register("pre_run_cell", switch)
