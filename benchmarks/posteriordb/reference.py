"""Long runs of NUTS that give the embedded database its reference draws and moments.

`python -m benchmarks.posteriordb.reference [NAME ...]` samples the native NumPyro program of every
posterior of the embedded database, or of those named, in float64, and writes draws, moments and
how they came about in posteriordb's official layout. A reference that is there is kept unless
`--again` is given. Nothing is written of a run that fails a check: `R_HAT`, `EFFECTIVE_DRAWS` and
`DIVERGENCES` below, on all draws and, the first two, on those that are kept as well.

Ten chains of `Settings.draws` draws each give the moments. Every `Settings.thin`-th draw is kept,
which leaves them nearly independent; the lag-one autocorrelation is stated with them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.posteriordb.database import (
    EMBEDDED,
    Database,
    DatabaseError,
    FolderFiles,
    Posterior,
    scatter,
)
from benchmarks.posteriordb.embedded_data import ADDED_BY, write_json, write_zip
from benchmarks.records import versions

CHAINS = 10
#: The worst rank-normalised split R-hat that a reference may have.
R_HAT = 1.01
#: The fewest effective draws, bulk and tail, of any parameter.
EFFECTIVE_DRAWS = 1_000
#: The most divergent transitions of all chains together.
DIVERGENCES = 5


class UnfitError(RuntimeError):
    """A run is not fit to be a reference; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of one run; `draws` and `warmup` are by chain, `draws` before thinning.

    `initial` is where chains start: "uniform" on (-2, 2) of the unconstrained space, or "median",
    of 15 draws of the prior. `digits` are the significant ones of the kept draws.
    """

    seed: int = 5501
    warmup: int = 2_000
    draws: int = 5_000
    thin: int = 25
    target_accept: float = 0.9
    max_tree_depth: int = 10
    initial: str = "uniform"
    digits: int = 8


DEFAULT = Settings()
#: By posterior, what differs from `DEFAULT`.
SETTINGS: dict[str, Settings] = {
    "eight_schools-eight_schools_noncentered": Settings(target_accept=0.98),
    # Neighbouring values of the process nearly determine each other, and programs that sample it
    # standardised divide by what is left.
    "gp_pois_simulated-gp_pois_regr": Settings(target_accept=0.98, digits=12),
    "hudson_lynx_hare-lotka_volterra": Settings(initial="median"),
}


def data_digest(data: Mapping[str, Any]) -> str:
    """A hash of a posterior's data, stated with its reference, so that the two go together."""
    plain = {key: np.asarray(value).tolist() for key, value in sorted(data.items())}
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def run_nuts(
    program: Callable[..., Any], data: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64], NDArray[np.float64]]:
    """Sample a NumPyro program.

    Returns
    -------
    Draws of all sites, site -> (chains, draws, ...); divergent transitions by chain (chains,); the
    fraction of missing information of the energy by chain (chains,), good above 0.3.
    """
    import jax
    from numpyro.infer import MCMC, NUTS, init_to_median, init_to_uniform

    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise UnfitError("expected float64: call numpyro.enable_x64() before any computation")
    initial = {"uniform": init_to_uniform, "median": init_to_median(num_samples=15)}
    kernel = NUTS(
        functools.partial(program, data),
        target_accept_prob=settings.target_accept,
        max_tree_depth=settings.max_tree_depth,
        init_strategy=initial[settings.initial],
    )
    sampler = MCMC(
        kernel,
        num_warmup=settings.warmup,
        num_samples=settings.draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(settings.seed), extra_fields=("diverging", "energy"))
    sites = {
        name: np.asarray(values, dtype=np.float64)
        for name, values in sampler.get_samples(group_by_chain=True).items()
    }
    extra = sampler.get_extra_fields(group_by_chain=True)
    energy = np.asarray(extra["energy"])
    information = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.var(energy, axis=1)
    return sites, np.asarray(extra["diverging"]).sum(1), information


def _arviz() -> Any:
    with warnings.catch_warnings():
        # ArviZ announces its successor when it is first imported on a day.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def diagnose(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Diagnostics of draws, column -> (chains, draws), in the fields of posteriordb.

    R-hat is the rank-normalised split one; effective sample sizes are those of bulk and tail; the
    lag-one autocorrelation is the mean over chains. One value for each column.
    """
    az = _arviz()

    def of_each(statistic: Callable[[NDArray[np.float64]], Any]) -> list[float]:
        return [float(statistic(draws)) for draws in columns.values()]

    def lag_one(draws: NDArray[np.float64]) -> float:
        centred = draws - draws.mean(1, keepdims=True)
        products = (centred[:, 1:] * centred[:, :-1]).mean(1)
        return float(np.mean(products / (centred**2).mean(1)))

    chains, length = next(iter(columns.values())).shape
    return {
        "diagnostic_information": {"names": list(columns)},
        "ndraws": chains * length,
        "nchains": chains,
        "effective_sample_size_bulk": of_each(lambda draws: az.ess(draws, method="bulk")),
        "effective_sample_size_tail": of_each(lambda draws: az.ess(draws, method="tail")),
        "r_hat": of_each(lambda draws: az.rhat(draws, method="rank")),
        "mean_lag1_ac": of_each(lag_one),
    }


def means(columns: Mapping[str, NDArray[np.float64]]) -> tuple[list[float], list[float]]:
    """Means of draws, column -> (chains, draws), and their Monte Carlo standard errors."""
    az = _arviz()
    values = [float(draws.mean()) for draws in columns.values()]
    return values, [float(az.mcse(draws, method="mean")) for draws in columns.values()]


def check(name: str, diagnostics: Mapping[str, Any], divergences: int) -> None:
    """Refuse draws that are not fit to be a reference.

    Raises
    ------
    UnfitError
        When an R-hat is above `R_HAT`, an effective sample size below `EFFECTIVE_DRAWS` or there
        are more than `DIVERGENCES` divergences.
    """
    columns = diagnostics["diagnostic_information"]["names"]
    kind = f"{name}, {diagnostics['ndraws']:,} draws"
    if divergences > DIVERGENCES:
        raise UnfitError(
            f"{kind}: expected at most {DIVERGENCES} divergences, found {divergences}; raise the "
            "target acceptance rate"
        )
    # "not below" rather than "above", so that NaN, of a parameter that never moved, is refused.
    worst = int(np.argmax(np.nan_to_num(diagnostics["r_hat"], nan=np.inf)))
    if not diagnostics["r_hat"][worst] <= R_HAT:
        raise UnfitError(
            f"{kind}: expected R-hat of at most {R_HAT}, found {diagnostics['r_hat'][worst]:.4f} "
            f"for {columns[worst]}; run longer"
        )
    for part in ("bulk", "tail"):
        sizes = diagnostics[f"effective_sample_size_{part}"]
        worst = int(np.argmin(np.nan_to_num(sizes, nan=-np.inf)))
        if not sizes[worst] >= EFFECTIVE_DRAWS:
            raise UnfitError(
                f"{kind}: expected an effective sample size of at least {EFFECTIVE_DRAWS} in the "
                f"{part}, found {sizes[worst]:.0f} for {columns[worst]}; run longer or thin more"
            )


def parameters_of(
    posterior: Posterior, sites: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Turn draws of a program's sites into the posterior's parameters, (chains, draws, *shape).

    Raises
    ------
    UnfitError
        When the program's sites do not give the parameters that the posterior states.
    """
    from benchmarks.posteriordb.programs import site_map

    leading = next(iter(sites.values())).shape[:2]
    flat = {name: draws.reshape(-1, *draws.shape[2:]) for name, draws in sites.items()}
    try:
        found = site_map(posterior.model_name).parameters(flat)
    except KeyError as error:
        raise UnfitError(f"{posterior.name}: its program has no site {error}") from error
    given = {name: int(np.prod(found[name].shape[1:])) for name in found}
    wanted = posterior.dimensions
    if {name: given.get(name) for name in wanted} != wanted:
        raise UnfitError(
            f"{posterior.name}: expected parameters of the sizes {wanted}, found {given}"
        )
    return {name: found[name].reshape(*leading, *found[name].shape[1:]) for name in wanted}


def rounded(draws: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """The nearest numbers of so many significant digits."""
    return np.array([float(f"{value:.{digits}g}") for value in draws.flat]).reshape(draws.shape)


def make(posterior: Posterior, root: Path, settings: Settings) -> dict[str, Any]:
    """Sample a posterior and write its reference below `root`; returns the kept draws' diagnostics.

    Raises
    ------
    UnfitError
        When the run fails a check; nothing is written then.
    """
    from benchmarks.posteriordb.programs import numpyro_program

    data = posterior.data()
    sites, divergences, information = run_nuts(
        numpyro_program(posterior.model_name), data, settings
    )
    every = scatter(parameters_of(posterior, sites), rank=2)
    kept = {
        name: rounded(draws[:, settings.thin - 1 :: settings.thin], settings.digits)
        for name, draws in every.items()
    }
    before, after = diagnose(every), diagnose(kept)
    for diagnostics in (before, after):
        check(posterior.name, diagnostics, int(divergences.sum()))
        diagnostics["divergent_transitions"] = divergences.tolist()
        diagnostics["expected_fraction_of_missing_information"] = information.tolist()

    name = posterior.name
    stated = {
        "name": name,
        "inference": {
            "method": "numpyro_nuts",
            "method_arguments": {
                "chains": CHAINS,
                **dataclasses.asdict(settings),
                "precision": "float64",
                "command": f"python -m benchmarks.posteriordb.reference --again {name}",
            },
        },
        "data_sha256": data_digest(data),
        "comments": "divergent transitions and energies are those of all draws",
        "added_by": ADDED_BY,
        "versions": versions(("numpy", "jax", "jaxlib", "numpyro", "arviz")),
    }
    folder = root / "reference_posteriors"
    write_zip(
        folder / "draws" / "draws" / f"{name}.json.zip",
        [{column: kept[column][chain].tolist() for column in kept} for chain in range(CHAINS)],
    )
    write_json(folder / "draws" / "info" / f"{name}.info.json", stated | {"diagnostics": after})
    squares = {column: draws**2 for column, draws in every.items()}
    for statistic, columns in {"mean_value": every, "mean_squared_value": squares}.items():
        values, errors = means(columns)
        summary = folder / "summary_statistics" / statistic
        write_json(
            summary / statistic / f"{name}.json",
            {"names": list(columns), statistic: values, "mcse_mean": errors},
        )
        write_json(summary / "info" / f"{name}.info.json", stated | {"diagnostics": before})
    return {"before": before, "after": after}


def report(name: str, seconds: float, diagnostics: Mapping[str, Any]) -> str:
    """One line on a finished run."""
    before, after = diagnostics["before"], diagnostics["after"]

    def line(part: Mapping[str, Any]) -> str:
        return (
            f"R-hat {max(part['r_hat']):.4f}, bulk {min(part['effective_sample_size_bulk']):,.0f}, "
            f"tail {min(part['effective_sample_size_tail']):,.0f}"
        )

    return (
        f"{name}: {seconds:.0f} s, {sum(before['divergent_transitions'])} divergences; of "
        f"{before['ndraws']:,} draws {line(before)}; of {after['ndraws']:,} kept {line(after)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Make the references of the embedded database; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.posteriordb.reference", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="posteriors (default: all)")
    parser.add_argument("--again", action="store_true", help="make those that are there anew")
    parser.add_argument(
        "--output", type=Path, default=EMBEDDED, help="folder (default: the embedded database)"
    )
    arguments = parser.parse_args(argv)

    import numpyro

    numpyro.enable_x64()
    database = Database(FolderFiles(EMBEDDED))
    failed = False
    for name in arguments.names or database.names():
        try:
            posterior = database[name]
            if posterior.reference_name != name:
                print(f"{name}: has the reference of {posterior.reference_name}")
                continue
            there = arguments.output / "reference_posteriors" / "draws" / "info"
            if not arguments.again and (there / f"{name}.info.json").is_file():
                print(f"{name}: is there; --again makes it anew")
                continue
            started = time.perf_counter()
            diagnostics = make(posterior, arguments.output, SETTINGS.get(name, DEFAULT))
            print(report(name, time.perf_counter() - started, diagnostics), flush=True)
        except (DatabaseError, UnfitError, LookupError) as error:
            failed = True
            print(f"error: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
