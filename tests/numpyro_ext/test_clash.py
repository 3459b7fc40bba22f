"""An installed `numpyro-ext` distribution is told of; its absence is silent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numpyro_ext import _clash


def install(folder: Path, name: str, version: str) -> None:
    """Lay down the metadata that an installed distribution leaves."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_other_distribution_is_found_and_told(tmp_path: Path) -> None:
    install(tmp_path, "numpyro_ext", "1.2.3")
    assert _clash.other_version([str(tmp_path)]) == "1.2.3"
    with pytest.warns(RuntimeWarning, match=r"found numpyro-ext 1\.2\.3 installed as well"):
        _clash.warn_on_clash([str(tmp_path)])


def test_silence_without_it(tmp_path: Path) -> None:
    install(tmp_path, "ppl_ext", "0.1.0")
    install(tmp_path, "numpyro", "0.22.0")
    assert _clash.other_version([str(tmp_path)]) is None
    _clash.warn_on_clash([str(tmp_path)])


def test_importing_tells(tmp_path: Path) -> None:
    """`import numpyro_ext` itself makes the check: seen in a fresh interpreter."""
    install(tmp_path, "numpyro_ext", "0.0.1")
    search = [str(tmp_path), *filter(None, sys.path)]
    run = subprocess.run(
        [sys.executable, "-c", "import numpyro_ext"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    # That it is silent otherwise every other test sees, to which warnings are errors.
    assert "found numpyro-ext 0.0.1 installed as well" in run.stderr
