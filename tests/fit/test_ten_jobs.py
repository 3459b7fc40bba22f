"""The ten jobs of the page "Ten jobs, one line each": this package's lines and NumPyro's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "ten-jobs.md"
X, Y = np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.7, 2.6, 4.4, 6.9, 8.3])

pytestmark = [
    pytest.mark.filterwarnings(rule)
    for rule in (
        *("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"),
        *("ignore::FutureWarning", "ignore::UserWarning"),
    )
]


def jobs(column: int) -> dict[str, str]:
    """By job the lines of a column of the table."""
    table = PAGE.read_text(encoding="utf-8").partition("<!-- jobs -->\n")[2]
    rows = [row.strip("| ").split(" | ") for row in table.partition("<!--")[0].splitlines()[2:]]
    return {row[0]: row[column].strip().strip("`") for row in rows if len(row) > 1}


def models(backend: Any) -> tuple[Any, Any]:
    host, dist = backend.host, backend.dist

    def line(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(slope * x, 0.5), obs=y)

    def flat(x: Any, y: Any = None) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(mean, 3.0), obs=y)

    return line, flat


def names(backend: Any, path: Path) -> dict[str, Any]:
    line, _ = models(backend)
    return {
        "az": az,
        "np": np,
        "model": line,
        "x": backend.array(X),
        "y": backend.array(Y),
        "x_new": backend.array(np.array([10.0, 20.0])),
        "Predictive": backend.host.infer.Predictive,
        "path": path / "fit.npz",
    }


def test_the_table_has_ten_jobs() -> None:
    assert len(jobs(1)) == 10
    for column in (1, 2, 3):
        assert all(jobs(column).values())


@pytest.mark.slow
def test_the_lines_of_this_package(backend: Any, tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    known = names(backend, tmp_path)
    key = () if backend.is_pyro else (backend.key(),)
    known |= {"ext": backend.public, "key": key}
    known["other"] = backend.public.fit(*key, models(backend)[1], known["x"], known["y"])
    for job, line in jobs(1).items():
        assert line.count(";") <= 1, job
        exec(line, known)
    fit = known["fit"]
    assert fit.verdict.trusted and abs(fit["slope"].mean() - 2.12) < 0.1
    assert fit.history[-1].name == "more chains"
    plt.close("all")


@pytest.mark.slow
def test_the_lines_of_numpyro(backend: Any, tmp_path: Path) -> None:
    if backend.is_pyro:
        pytest.skip("the table has NumPyro's own lines")
    plt = pytest.importorskip("matplotlib.pyplot")
    from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    own = (MCMC, NUTS, SVI, Trace_ELBO, AutoNormal, Adam)
    known = names(backend, tmp_path) | {each.__name__: each for each in own}
    known["key"] = backend.key()
    other = MCMC(NUTS(models(backend)[1]), num_warmup=200, num_samples=200, progress_bar=False)
    other.run(backend.key(), known["x"], known["y"])
    known["other_mcmc"] = other
    for line in jobs(3).values():
        exec(line.replace("MCMC(NUTS(model), ", "MCMC(NUTS(model), progress_bar=False, "), known)
    assert abs(float(known["draws"]["slope"].mean()) - 2.12) < 0.1
    plt.close("all")


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # PyMC compiles each model
def test_the_lines_of_pymc(tmp_path: Path) -> None:
    pm = pytest.importorskip("pymc")
    plt = pytest.importorskip("matplotlib.pyplot")
    few = {"draws": 200, "tune": 200, "chains": 2, "cores": 1, "progressbar": False}
    with pm.Model():
        pm.Normal("y", pm.Normal("mean", 0.0, 10.0), 3.0, observed=Y)
        other = pm.sample(**few)
        pm.compute_log_likelihood(other, progressbar=False)
    known = {"pm": pm, "az": az, "other": other, "x_new": np.array([10.0, 20.0])}
    known["path"] = tmp_path / "fit.nc"
    lines = {job: line.removeprefix("none: `").partition("`")[0] for job, line in jobs(2).items()}
    for line in lines.values():
        # A model for each: PyMC's functions change the one that they are called in.
        with pm.Model():
            x = pm.Data("x", X)
            pm.Normal("y", pm.Normal("slope", 0.0, 10.0) * x, 0.5, observed=Y, shape=x.shape)
            exec(line.replace("pm.sample(", "pm.sample(tune=200, chains=2, cores=1, "), known)
    assert abs(float(known["idata"].posterior["slope"].mean()) - 2.12) < 0.1
    plt.close("all")
