"""The README's Python examples run as they are written, each in an interpreter of its own."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def imported(source: str) -> set[str]:
    """Top-level names of the modules that `source` imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_there_is_one_example_per_package() -> None:
    packages = [imported(example) & {"pyro_ext", "numpyro_ext"} for example in EXAMPLES]
    assert packages == [{"pyro_ext"}, {"numpyro_ext"}]


@pytest.mark.docs
@pytest.mark.parametrize("example", EXAMPLES, ids=["pyro", "numpyro"])
def test_example_runs_as_written(example: str, tmp_path: Path) -> None:
    missing = sorted(name for name in imported(example) if not importlib.util.find_spec(name))
    if missing and not os.environ.get("CI"):
        pytest.skip(f"the example imports {', '.join(missing)}, not installed here")
    # The answer has to be right, not only to arrive: posterior means and standard deviations are
    # those of quadrature. The posterior is skewed, which a Gaussian guide cannot follow: its own
    # best fit misses the means by up to 0.05 and the deviations by up to 0.2 of the deviation, and
    # 64 particles miss less. Sampling error of 1,000 draws is 0.03.
    closing = """
for site, mean, deviation in (("alpha", 0.950, 0.863), ("beta", 9.983, 4.287)):
    assert particles[site].shape == (64,), particles[site].shape
    for draws in (particles[site], idata.posterior[site]):
        assert abs(float(draws.mean()) - mean) < 0.25 * deviation, (site, draws.mean())
        assert abs(float(draws.std()) / deviation - 1) < 0.35, (site, draws.std())
assert replicated.shape == (64, 4), replicated.shape
for group in ("posterior_predictive", "log_likelihood", "observed_data"):
    assert idata[group]["deaths"].shape[-1] == 4, group
"""
    run = subprocess.run(
        [sys.executable, "-c", example + closing],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
