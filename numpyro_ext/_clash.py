"""Notice of another distribution, `numpyro-ext`, which installs the same import name `numpyro_ext`.

Installed side by side, each overwrites files of the other, and which of the two a module comes from
depends on the order of installation.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from importlib import metadata

OWN_DISTRIBUTION = "ppl-ext"
OTHER_DISTRIBUTION = "numpyro-ext"


def other_version(path: Iterable[str] | None = None) -> str | None:
    """Version of the installed distribution `numpyro-ext`, or None when it is not installed.

    `path` holds the folders to search, by default `sys.path`.
    """
    folders = sys.path if path is None else list(path)
    # The search normalises names, so metadata filed under "numpyro_ext" are found, too.
    for distribution in metadata.distributions(name=OTHER_DISTRIBUTION, path=folders):
        return distribution.version
    return None


def warn_on_clash(path: Iterable[str] | None = None) -> None:
    """Warn when `numpyro-ext` is installed where this package is imported."""
    if (version := other_version(path)) is not None:
        warnings.warn(
            f"expected {OWN_DISTRIBUTION} alone to provide the package numpyro_ext, found "
            f"{OTHER_DISTRIBUTION} {version} installed as well: both install files under that "
            f"name, so parts of either may be missing or replaced. Uninstall both (pip uninstall "
            f"{OTHER_DISTRIBUTION} {OWN_DISTRIBUTION}), then install the one that is wanted; use "
            "two environments for both.",
            RuntimeWarning,
            stacklevel=3,
        )
