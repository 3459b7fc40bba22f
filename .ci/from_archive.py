"""Install the wheel or the source archive into an empty environment and run the quick start there.

    python -m build
    python .ci/from_archive.py --host numpyro --versions lowest --archive wheel

One host at a time, with the newest versions of everything or with the lowest that pyproject.toml
promises. Needs nothing but Python; runs alike on Linux, macOS and Windows. Settings of pip, such as
a source of CPU builds of torch, come from the environment.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = {"wheel": "*.whl", "sdist": "*.tar.gz"}


def lowest(host: str) -> list[str]:
    """Each direct dependency of the host's half, held at the bound that pyproject.toml states."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = project["dependencies"] + project["optional-dependencies"][host]
    bounds = [re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement) for requirement in found]
    assert all(bounds), f"expected name>=version, found {found}"
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def main() -> None:
    """Make the environment, install, run; the exit status is that of what failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", choices=["pyro", "numpyro"], required=True)
    parser.add_argument("--versions", choices=["lowest", "newest"], default="newest")
    parser.add_argument("--archive", choices=list(ARCHIVES), default="wheel")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the archives lie")
    options = parser.parse_args()

    found = sorted(options.dist.glob(ARCHIVES[options.archive]))
    if len(found) != 1:
        sys.exit(f"expected one {options.archive} in {options.dist}, found {len(found)}")
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(
            "\n".join(lowest(options.host)) if options.versions == "lowest" else ""
        )
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        archive = f"ppl-ext[{options.host}] @ {found[0].resolve().as_uri()}"
        for command in (
            [*install, "-c", constraints, archive],
            # Neither the current folder nor PYTHONPATH may stand in for the archive.
            [python, "-I", ROOT / ".ci/quick_start.py", options.host],
        ):
            status = subprocess.run(list(map(str, command)), cwd=folder).returncode
            if status:
                sys.exit(status)


if __name__ == "__main__":
    main()
