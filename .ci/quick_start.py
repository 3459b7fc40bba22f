"""Run the README's example of one package as it is written, and see whether its answer is right.

    python .ci/quick_start.py pyro
    python .ci/quick_start.py numpyro

The package is the one that the interpreter finds, installed from a wheel or elsewhere: the folder
of this file is on the path, the repository is not. Exits with status 1 where anything fails.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# The answer has to be right, not only to arrive: posterior means and standard deviations are those
# of quadrature. The posterior is skewed, which a Gaussian guide cannot follow: its own best fit
# misses the means by up to 0.05 and the deviations by up to 0.2 of the deviation, and 64 particles
# miss less. Sampling error of 1,000 draws is 0.03. What `fit` gives is exact.
CHECKS = """
assert fit.verdict.level == "exact", fit.verdict
draws = fit.draws
for site, mean, deviation in (("alpha", 0.950, 0.863), ("beta", 9.983, 4.287)):
    assert abs(float(draws[site].mean()) - mean) < 0.2 * deviation, (site, draws[site].mean())
    assert abs(float(draws[site].std()) / deviation - 1) < 0.2, (site, draws[site].std())
    assert particles[site].shape == (64,), particles[site].shape
    for found in (particles[site], idata.posterior[site]):
        assert abs(float(found.mean()) - mean) < 0.25 * deviation, (site, found.mean())
        assert abs(float(found.std()) / deviation - 1) < 0.35, (site, found.std())
assert replicated.shape[1:] == (4,) and len(replicated) > 100, replicated.shape
for group in ("posterior_predictive", "log_likelihood", "observed_data"):
    assert idata[group]["deaths"].shape[-1] == 4, group
"""


def example_of(package: str) -> str:
    """The README's example that imports `pyro_ext` or `numpyro_ext`."""
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    (text,) = (text for text in blocks if f"import {package}_ext as" in text)
    return text


def main(package: str) -> None:
    """Run the example and the checks; say where the package lies and what it ran with."""
    names: dict[str, object] = {"__name__": "quick_start"}
    exec(compile(example_of(package), str(README), "exec"), names)
    exec(CHECKS, names)
    module = sys.modules[f"{package}_ext"]
    print(names["fit"].verdict)  # type: ignore[attr-defined]
    print(f"{module.__name__} of {Path(str(module.__file__)).parent.parent}")
    hosts = {"pyro": ("torch", "pyro-ppl"), "numpyro": ("jax", "numpyro", "optax", "funsor")}
    for name in (*hosts[package], "arviz", "xarray", "numpy", "scipy"):
        try:
            print(f"  {name} {version(name)}")
        except PackageNotFoundError:
            print(f"  {name}: not installed")


if __name__ == "__main__":
    if sys.argv[1:] not in (["pyro"], ["numpyro"]):
        sys.exit("usage: python .ci/quick_start.py pyro|numpyro")
    main(sys.argv[1])
