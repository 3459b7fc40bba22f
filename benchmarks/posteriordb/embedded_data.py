"""Makes the data of the embedded database: public facts and simulations from recorded seeds.

`python -m benchmarks.posteriordb.embedded_data` writes the database's entries, all but the Stan
programs and the reference draws (for those see `reference`), into
`benchmarks/posteriordb/embedded/posterior_database/` in posteriordb's official layout. Running it
again gives the same files: simulations use NumPy's `RandomState`, whose stream is frozen (that of
`default_rng` may change between versions), and are rounded to six decimals, so that the last bit of
a platform's mathematical functions does not show.

A simulated data set has the fields, types and layout of the one that posteriordb's model wants,
under a name of its own; its true parameters are stated with it. Sizes are small, so that a
reference can be had in minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.posteriordb.database import EMBEDDED
from benchmarks.records import write_text

DECIMALS = 6
ADDED_BY = "ppl-ext"


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Data of the embedded database: `make` gives the JSON object's entries.

    `truth` are the parameters that a simulation used, None for real data; `seed` is that of its
    random numbers.
    """

    title: str
    description: str
    make: Callable[[], dict[str, Any]]
    urls: tuple[str, ...] = ()
    seed: int | None = None
    truth: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """A posterior of the embedded database.

    `reference` names another posterior whose reference serves this one, too.
    """

    model: str
    data: str
    dimensions: Mapping[str, int]
    reference: str | None = None

    @property
    def name(self) -> str:
        """The posterior's name, made as posteriordb makes them."""
        return f"{self.data}-{self.model}"


def eight_schools() -> dict[str, Any]:
    """Effects of coaching in eight schools and their standard errors (Rubin 1981)."""
    return {
        "J": 8,
        "y": [28, 8, -3, 7, -1, 1, 18, 12],
        "sigma": [15, 10, 16, 11, 9, 11, 10, 18],
    }


def hudson_lynx_hare() -> dict[str, Any]:
    """Pelts in thousands, hare and lynx, Hudson's Bay Company, 1900 (`y_init`) to 1920."""
    hare = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1]
    hare += [40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
    lynx = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4]
    lynx += [8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
    years = [[float(one), float(other)] for one, other in zip(hare, lynx, strict=True)]
    return {"N": 20, "ts": list(range(1, 21)), "y_init": years[0], "y": years[1:]}


AUTOREGRESSION: dict[str, Any] = {"alpha": 0.1, "beta": [0.5, -0.3, 0.2, -0.1, 0.15], "sigma": 0.4}


def autoregression(seed: int) -> dict[str, Any]:
    """An AR(5) series of 200 values after 100 that are thrown away."""
    random = np.random.RandomState(seed)
    beta = np.array(AUTOREGRESSION["beta"])
    order, burn_in, length = len(beta), 100, 200
    noise = random.normal(0.0, AUTOREGRESSION["sigma"], burn_in + length)
    series = np.zeros(order + burn_in + length)
    for step in range(burn_in + length):
        # The newest value comes first: beta[k] goes with lag k.
        lags = series[step : step + order][::-1]
        series[order + step] = AUTOREGRESSION["alpha"] + beta @ lags + noise[step]
    return {"K": order, "T": length, "y": rounded(series[-length:])}


VOLATILITY: dict[str, Any] = {"mu": 2.0, "alpha0": 0.8, "alpha1": 0.4, "beta1": 0.3}


def volatility(seed: int) -> dict[str, Any]:
    """A GARCH(1,1) series of 200 values that starts at the scale `sigma1`."""
    random = np.random.RandomState(seed)
    length, first = 200, 1.2
    noise = random.normal(size=length)
    series = np.zeros(length)
    variance = first**2
    for step in range(length):
        series[step] = VOLATILITY["mu"] + np.sqrt(variance) * noise[step]
        variance = (
            VOLATILITY["alpha0"]
            + VOLATILITY["alpha1"] * (series[step] - VOLATILITY["mu"]) ** 2
            + VOLATILITY["beta1"] * variance
        )
    return {"T": length, "y": rounded(series), "sigma1": first}


MIXTURE: dict[str, Any] = {"mu": [-1.8, 2.1], "sigma": [0.9, 1.2], "theta": 0.4}


def mixture(seed: int) -> dict[str, Any]:
    """300 values of a mixture of two Gaussians; `theta` is the first one's share."""
    random = np.random.RandomState(seed)
    number = 300
    second = (random.uniform(size=number) >= MIXTURE["theta"]).astype(int)
    values = np.array(MIXTURE["mu"])[second] + np.array(MIXTURE["sigma"])[second] * random.normal(
        size=number
    )
    return {"N": number, "y": rounded(values)}


GAUSSIAN_PROCESS: dict[str, Any] = {"rho": 5.0, "alpha": 2.0}


def gaussian_process(seed: int) -> dict[str, Any]:
    """Counts at 11 places; their log rate is a Gaussian process."""
    random = np.random.RandomState(seed)
    places = np.arange(-10.0, 11.0, 2.0)
    distances = places[:, None] - places
    covariance = GAUSSIAN_PROCESS["alpha"] ** 2 * np.exp(
        -0.5 * (distances / GAUSSIAN_PROCESS["rho"]) ** 2
    )
    root = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(places)))
    counts = random.poisson(np.exp(root @ random.normal(size=len(places))))
    return {"N": len(places), "x": places.tolist(), "k": counts.tolist()}


REGRESSION: dict[str, Any] = {"beta": [1.5, -0.7, 0.0, 0.4, 2.0], "sigma": 1.3}


def regression(seed: int) -> dict[str, Any]:
    """60 rows of a linear regression on five correlated features."""
    random = np.random.RandomState(seed)
    number, beta = 60, np.array(REGRESSION["beta"])
    # One shared factor: features correlate by 0.36.
    x = 0.8 * random.normal(size=(number, len(beta))) + 0.6 * random.normal(size=(number, 1))
    x = np.round(x, DECIMALS)
    y = x @ beta + REGRESSION["sigma"] * random.normal(size=number)
    return {"N": number, "D": len(beta), "X": rounded(x), "y": rounded(y)}


HIDDEN_MARKOV: dict[str, Any] = {"theta1": [0.75, 0.25], "theta2": [0.15, 0.85], "mu": [3.2, 8.6]}


def hidden_markov(seed: int) -> dict[str, Any]:
    """100 values whose mean follows a Markov chain of two states; their scale is 1."""
    random = np.random.RandomState(seed)
    number = 100
    transition = np.array([HIDDEN_MARKOV["theta1"], HIDDEN_MARKOV["theta2"]])
    uniforms, noise = random.uniform(size=number), random.normal(size=number)
    state, values = 0, np.zeros(number)
    for step in range(number):
        state = int(uniforms[step] >= transition[state, 0])
        values[step] = HIDDEN_MARKOV["mu"][state] + noise[step]
    return {"N": number, "K": 2, "y": rounded(values)}


COUNTS: dict[str, Any] = {"alpha": 3.4, "beta1": 0.9, "beta2": -0.2, "beta3": -0.25}


def counts(seed: int) -> dict[str, Any]:
    """Counts in 40 years; their log rate is a cubic polynomial of the standardised year."""
    random = np.random.RandomState(seed)
    number = 40
    year = np.arange(number) - (number - 1) / 2
    year = np.round(year / year.std(), DECIMALS)
    log_rate = (
        COUNTS["alpha"]
        + COUNTS["beta1"] * year
        + COUNTS["beta2"] * year**2
        + COUNTS["beta3"] * year**3
    )
    return {"n": number, "C": random.poisson(np.exp(log_rate)).tolist(), "year": rounded(year)}


RADON: dict[str, Any] = {
    "mu_alpha": 1.4,
    "sigma_alpha": 0.35,
    "beta": [0.7, -0.65],
    "sigma_y": 0.75,
}


def radon(seed: int) -> dict[str, Any]:
    """300 houses in 24 counties, of which a few have many houses and most have few."""
    random = np.random.RandomState(seed)
    houses, counties = 300, 24
    alpha = RADON["mu_alpha"] + RADON["sigma_alpha"] * random.normal(size=counties)
    uranium = np.round(random.normal(0.0, 0.35, size=counties), DECIMALS)
    share = 1.0 / np.arange(1, counties + 1)
    # Every county has a house; the rest fall by share.
    others = random.choice(counties, size=houses - counties, p=share / share.sum())
    county = np.sort(np.concatenate([np.arange(counties), others]))
    first_floor = (random.uniform(size=houses) < 0.2).astype(int)
    mean = alpha[county] + RADON["beta"][0] * uranium[county] + RADON["beta"][1] * first_floor
    values = mean + RADON["sigma_y"] * random.normal(size=houses)
    return {
        "N": houses,
        "J": counties,
        "county_idx": (county + 1).tolist(),
        "floor_measure": first_floor.tolist(),
        "log_uppm": rounded(uranium[county]),
        "log_radon": rounded(values),
    }


def rounded(values: NDArray[np.float64]) -> list[Any]:
    """Nested lists of `values` to six decimals."""
    # Adding zero makes -0.0 a plain zero.
    nested: list[Any] = (np.round(values, DECIMALS) + 0.0).tolist()
    return nested


def _simulated(
    title: str, simulate: Callable[[int], dict[str, Any]], seed: int, truth: Mapping[str, Any]
) -> DataSet:
    assert simulate.__doc__ is not None
    return DataSet(title, simulate.__doc__, lambda: simulate(seed), seed=seed, truth=truth)


DATA_SETS: dict[str, DataSet] = {
    "eight_schools": DataSet(
        "Eight schools",
        "Estimated effects of coaching on test scores in eight schools and their standard errors; "
        "Rubin (1981), Journal of Educational Statistics 6, 377-401.",
        eight_schools,
    ),
    "hudson_lynx_hare": DataSet(
        "Hare and lynx pelts, 1900 to 1920",
        "Thousands of pelts of hare and lynx collected by the Hudson's Bay Company; Hewitt (1921), "
        "The Conservation of the Wild Life of Canada.",
        hudson_lynx_hare,
    ),
    "arK_simulated": _simulated("AR(5) series", autoregression, 2101, AUTOREGRESSION),
    "garch_simulated": _simulated("GARCH(1,1) series", volatility, 2102, VOLATILITY),
    "gauss_mix_simulated": _simulated("Mixture of two Gaussians", mixture, 2103, MIXTURE),
    "gp_pois_simulated": _simulated("Counts by place", gaussian_process, 2104, GAUSSIAN_PROCESS),
    "blr_simulated": _simulated("Linear regression", regression, 2105, REGRESSION),
    "hmm_simulated": _simulated("Hidden Markov chain", hidden_markov, 2106, HIDDEN_MARKOV),
    "glm_poisson_simulated": _simulated("Counts by year", counts, 2107, COUNTS),
    "radon_simulated": _simulated("Radon in houses of counties", radon, 2108, RADON),
}

MODELS: dict[str, str] = {
    "eight_schools_noncentered": "Eight schools with standardised effects",
    "eight_schools_centered": "Eight schools with the effects as they are",
    "lotka_volterra": "Predator and prey with multiplicative errors",
    "arK": "Autoregression of order K",
    "garch11": "GARCH(1,1)",
    "low_dim_gauss_mix": "Mixture of two Gaussians on the line",
    "gp_pois_regr": "Gaussian process with Poisson counts",
    "blr": "Linear regression with known features",
    "hmm_example": "Hidden Markov model with two Gaussian states",
    "GLM_Poisson_model": "Poisson regression on a cubic polynomial of time",
    "radon_hierarchical_intercept_noncentered": "Intercepts by county, standardised",
}

_SCHOOLS = {"theta": 8, "mu": 1, "tau": 1}
ENTRIES: tuple[Entry, ...] = (
    Entry("eight_schools_noncentered", "eight_schools", _SCHOOLS),
    Entry(
        "eight_schools_centered",
        "eight_schools",
        _SCHOOLS,
        reference="eight_schools-eight_schools_noncentered",
    ),
    Entry("lotka_volterra", "hudson_lynx_hare", {"theta": 4, "z_init": 2, "sigma": 2}),
    Entry("arK", "arK_simulated", {"alpha": 1, "beta": 5, "sigma": 1}),
    Entry("garch11", "garch_simulated", {"mu": 1, "alpha0": 1, "alpha1": 1, "beta1": 1}),
    Entry("low_dim_gauss_mix", "gauss_mix_simulated", {"mu": 2, "sigma": 2, "theta": 1}),
    Entry("gp_pois_regr", "gp_pois_simulated", {"rho": 1, "alpha": 1, "f": 11}),
    Entry("blr", "blr_simulated", {"beta": 5, "sigma": 1}),
    Entry("hmm_example", "hmm_simulated", {"theta1": 2, "theta2": 2, "mu": 2}),
    Entry(
        "GLM_Poisson_model",
        "glm_poisson_simulated",
        {"alpha": 1, "beta1": 1, "beta2": 1, "beta3": 1},
    ),
    Entry(
        "radon_hierarchical_intercept_noncentered",
        "radon_simulated",
        {"alpha": 24, "beta": 2, "mu_alpha": 1, "sigma_alpha": 1, "sigma_y": 1},
    ),
)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, one line for each entry of an object and each list on its line."""
    write_text(path, _indented(value) + "\n")


def _indented(value: Any, margin: str = "") -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    inner = margin + "  "
    entries = (f"{inner}{json.dumps(key)}: {_indented(value[key], inner)}" for key in value)
    return "{\n" + ",\n".join(entries) + f"\n{margin}}}"


def write_zip(path: Path, value: Any) -> None:
    """Write `value` as the only file, `NAME.json`, of the archive `NAME.json.zip`.

    The archive states one fixed date, so that the same value gives the same bytes.
    """
    member = zipfile.ZipInfo(path.stem, date_time=(1980, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compresslevel=9) as archive:
        archive.writestr(member, json.dumps(value, allow_nan=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    # A reader sees the old file or the new one, never a part.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(path)


def write(root: Path) -> None:
    """Write posteriors, data and information on both and on models below the folder `root`."""
    for name, data in DATA_SETS.items():
        write_zip(root / "data" / "data" / f"{name}.json.zip", data.make())
        information: dict[str, Any] = {
            "name": name,
            "title": data.title,
            "description": data.description,
            "keywords": ["simulated"] if data.truth else [],
            "urls": list(data.urls),
            "data_file": f"data/data/{name}.json",
            "added_by": ADDED_BY,
        }
        if data.truth is not None:
            information["simulation"] = {
                "command": "python -m benchmarks.posteriordb.embedded_data",
                "seed": data.seed,
                "parameters": dict(data.truth),
            }
        write_json(root / "data" / "info" / f"{name}.info.json", information)
    for model, title in MODELS.items():
        write_json(
            root / "models" / "info" / f"{model}.info.json",
            {
                "name": model,
                "title": title,
                "keywords": [],
                "prior": {"keywords": []},
                "model_implementations": {
                    "stan": {"model_code": f"models/stan/{model}.stan", "stan_version": ">=2.26.0"}
                },
                "added_by": ADDED_BY,
            },
        )
    for entry in ENTRIES:
        write_json(
            root / "posteriors" / f"{entry.name}.json",
            {
                "name": entry.name,
                "keywords": ["simulated"] if DATA_SETS[entry.data].truth else [],
                "model_name": entry.model,
                "data_name": entry.data,
                "reference_posterior_name": entry.reference or entry.name,
                "dimensions": dict(entry.dimensions),
                "added_by": ADDED_BY,
            },
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the embedded database's entries; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.posteriordb.embedded_data", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--output", type=Path, default=EMBEDDED, help="folder (default: the embedded database)"
    )
    write(parser.parse_args(argv).output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
