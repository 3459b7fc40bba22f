"""The embedded database: data as their generator makes them, references as they are stated."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from benchmarks.posteriordb import embedded_data, reference
from benchmarks.posteriordb.database import EMBEDDED, Database, Posterior, scatter
from benchmarks.posteriordb.embedded_data import DATA_SETS, ENTRIES, write_json, write_zip
from benchmarks.posteriordb.reference import (
    DIVERGENCES,
    EFFECTIVE_DRAWS,
    Settings,
    UnfitError,
    check,
    data_digest,
    diagnose,
)

jax.config.update("jax_enable_x64", True)

DATABASE = Database.open("embedded")
NAMES = [entry.name for entry in ENTRIES]
OWN = [entry.name for entry in ENTRIES if entry.reference is None]


def contents(root: Path) -> dict[str, Any]:
    """Every file that the generator is answerable for, by its path below `root`."""
    found: dict[str, Any] = {}
    for folder in ("posteriors", "data", "models/info"):
        for path in sorted((root / folder).rglob("*.*")):
            name = path.relative_to(root).as_posix()
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    found[name] = {
                        member: json.loads(archive.read(member)) for member in archive.namelist()
                    }
            else:
                found[name] = path.read_text(encoding="utf-8")
    return found


def columns_of(posterior: Posterior) -> dict[str, np.ndarray]:
    """Kept draws of a reference by column, (chains, draws)."""
    draws = posterior.reference_draws()
    assert draws is not None
    return scatter(draws, rank=2)


def stated(posterior: Posterior) -> dict[str, Any]:
    information = posterior.reference_information()
    assert information is not None
    return information


def test_the_generator_gives_the_files_that_are_shipped(tmp_path: Path) -> None:
    assert embedded_data.main(["--output", str(tmp_path)]) == 0
    made, shipped = contents(tmp_path), contents(EMBEDDED)
    assert len(made) == 2 * len(DATA_SETS) + len(embedded_data.MODELS) + len(ENTRIES)
    assert made.keys() == shipped.keys()
    assert [name for name in made if made[name] != shipped[name]] == []


def test_archives_do_not_depend_on_the_clock(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "x.json.zip", tmp_path / "b" / "x.json.zip"
    write_zip(first, {"y": [1.5]})
    write_zip(second, {"y": [1.5]})
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert archive.getinfo("x.json").date_time == (1980, 1, 1, 0, 0, 0)


def test_the_database_is_small_and_has_a_reference_for_each_posterior() -> None:
    assert DATABASE.names() == sorted(NAMES) and len(NAMES) >= 8
    for name in NAMES:
        draws = DATABASE[name].reference_draws()
        assert draws is not None, name
        assert {key: int(np.prod(draws[key].shape[2:])) for key in draws} == DATABASE[
            name
        ].dimensions
    size = sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file())
    assert size < 3e6


def test_every_file_of_a_reference_belongs_to_a_posterior() -> None:
    files = [path for path in (EMBEDDED / "reference_posteriors").rglob("*.*") if path.is_file()]
    assert {path.name.partition(".")[0] for path in files} == set(OWN)
    # Draws, mean values and mean squares, each with information.
    assert len(files) == 6 * len(OWN)


def test_the_schools_share_a_reference() -> None:
    centred = DATABASE["eight_schools-eight_schools_centered"]
    assert centred.reference_name == "eight_schools-eight_schools_noncentered"
    assert centred.data() and centred.model_name == "eight_schools_centered"


@pytest.mark.parametrize("name", ["eight_schools", "hudson_lynx_hare"])
def test_public_facts_are_those_of_posteriordb(name: str) -> None:
    """Sums of the published figures, and the first and last years of the pelts."""
    data = {key: np.asarray(value) for key, value in DATA_SETS[name].make().items()}
    if name == "eight_schools":
        assert (data["y"].sum(), data["sigma"].sum()) == (70, 100)
        assert data["y"].tolist()[:3] == [28, 8, -3]
    else:
        assert data["y"].shape == (20, 2) and data["y_init"].tolist() == [30.0, 4.0]
        assert np.allclose(data["y"].sum(0), [685.7, 419.5])
        assert data["y"][-1].tolist() == [24.7, 8.6] and data["ts"].tolist()[-1] == 20


@pytest.mark.parametrize("name", OWN)
def test_a_reference_is_of_the_data_that_are_shipped(name: str) -> None:
    posterior = DATABASE[name]
    assert stated(posterior)["data_sha256"] == data_digest(posterior.data())


@pytest.mark.parametrize("name", OWN)
def test_diagnostics_that_are_stated_are_those_of_the_kept_draws(name: str) -> None:
    posterior = DATABASE[name]
    said, columns = stated(posterior)["diagnostics"], columns_of(posterior)
    found = diagnose(columns)
    assert said["diagnostic_information"]["names"] == list(columns)
    assert (said["nchains"], said["ndraws"]) == (10, 2_000)
    # Versions of ArviZ may differ in details.
    assert found["r_hat"] == pytest.approx(said["r_hat"], abs=1e-3)
    for part in ("effective_sample_size_bulk", "effective_sample_size_tail"):
        assert found[part] == pytest.approx(said[part], rel=0.05)
    assert found["mean_lag1_ac"] == pytest.approx(said["mean_lag1_ac"], abs=1e-3)
    # Nearly independent: errors of means may be taken from the number of draws.
    assert np.max(np.abs(said["mean_lag1_ac"])) < 0.1
    check(name, found, sum(said["divergent_transitions"]))


@pytest.mark.parametrize("name", OWN)
def test_diagnostics_before_thinning_pass_the_checks(name: str) -> None:
    folder = EMBEDDED / "reference_posteriors" / "summary_statistics"
    for statistic in ("mean_value", "mean_squared_value"):
        path = folder / statistic / "info" / f"{name}.info.json"
        said = json.loads(path.read_text(encoding="utf-8"))["diagnostics"]
        assert said["ndraws"] >= 10_000
        check(name, said, sum(said["divergent_transitions"]))
        assert min(said["expected_fraction_of_missing_information"]) > 0.3


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("power", [1, 2])
def test_stated_moments_are_those_of_the_draws(name: str, power: int) -> None:
    posterior = DATABASE[name]
    moments = posterior.reference_moments(power)
    assert moments is not None
    means, errors = (scatter(part, rank=0) for part in moments)
    sizes = stated(posterior)["diagnostics"]["effective_sample_size_bulk"]
    for (column, draws), size in zip(columns_of(posterior).items(), sizes, strict=True):
        values = draws**power
        error = values.std() / np.sqrt(min(size, values.size))
        assert abs(values.mean() - means[column]) < 5 * error, column
        # The moments rest on every draw of the run, hence are the more certain.
        assert errors[column] < error, column


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES if DATA_SETS[entry.data].truth])
def test_the_posterior_covers_the_parameters_of_the_simulation(name: str) -> None:
    """Wrong order of lags, of states or of features would put the truth far outside."""
    posterior = DATABASE[name]
    draws, truth = posterior.reference_draws(), DATA_SETS[posterior.data_name].truth
    assert draws is not None and truth is not None and truth.keys() <= draws.keys()
    for key, value in truth.items():
        flat = draws[key].reshape(2_000, -1)
        distance = np.abs(flat.mean(0) - np.ravel(value)) / flat.std(0)
        assert np.all(distance < 4.0), f"{key}: {distance}"


# The runner.


def chains(shift: float = 0.0, correlation: float = 0.0, draws: int = 400) -> np.ndarray:
    """Ten autoregressive chains of variance 1, the first moved by `shift`."""
    noise = np.random.default_rng(3).normal(size=(10, draws))
    values = noise.copy()
    for step in range(1, draws):
        values[:, step] = (
            correlation * values[:, step - 1] + np.sqrt(1 - correlation**2) * noise[:, step]
        )
    values[0] += shift
    return values


def test_independent_draws_pass() -> None:
    found = diagnose({"mu": chains()})
    assert found["ndraws"] == 4_000 and found["nchains"] == 10
    assert found["r_hat"][0] < 1.005
    assert found["effective_sample_size_bulk"][0] == pytest.approx(4_000, rel=0.1)
    check("x", found, DIVERGENCES)


def test_autocorrelation_is_measured() -> None:
    found = diagnose({"mu": chains(correlation=0.6)})
    # (1 - r) / (1 + r) of 4,000 draws.
    assert found["effective_sample_size_bulk"][0] == pytest.approx(1_000, rel=0.15)
    assert found["mean_lag1_ac"][0] == pytest.approx(0.6, abs=0.04)


def test_unfit_draws_are_refused() -> None:
    good = diagnose({"mu": chains()})
    with pytest.raises(UnfitError, match=r"at most 5 divergences, found 6; raise the target"):
        check("x", good, DIVERGENCES + 1)
    with pytest.raises(UnfitError, match=r"x, 4,000 draws: expected R-hat .* for theta\[2\]"):
        check("x", diagnose({"mu": chains(), "theta[2]": chains(shift=1.0)}), 0)
    with pytest.raises(UnfitError, match="at least 1000 in the bulk, found 8.. for mu"):
        check("x", diagnose({"mu": chains(draws=85)}), 0)
    for part in ("bulk", "tail"):
        for size in (EFFECTIVE_DRAWS - 1.0, float("nan")):
            with pytest.raises(UnfitError, match=f"in the {part}"):
                check("x", good | {f"effective_sample_size_{part}": [size]}, 0)
    with pytest.raises(UnfitError, match="expected R-hat"):
        check("x", good | {"r_hat": [float("nan")]}, 0)


ROWS = {"y": np.array([2.0, 1.0, 3.0])}
# Three rows that sum to 6 and a prior of precision 1: the mean has mean 6/4 and variance 1/4; the
# scale, Gamma(3, 2), is not touched by the rows.
EXACT = {1: {"mu": 1.5, "scale": 1.5}, 2: {"mu": 1.5**2 + 0.25, "scale": 1.5**2 + 0.75}}


def conjugate(data: Any) -> None:
    """A mean with a Gaussian prior and two scales of which the data say nothing."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("scale", dist.Gamma(3.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(data["y"])):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=data["y"])


def test_a_run_writes_draws_and_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With independent draws of the exact posterior in place of a chain's."""
    entry = {
        "model_name": "conjugate",
        "data_name": "rows",
        "reference_posterior_name": "rows-conjugate",
        "dimensions": {"mu": 1, "scale": 2},
    }
    write_json(tmp_path / "posteriors" / "rows-conjugate.json", entry)
    write_zip(tmp_path / "data" / "data" / "rows.json.zip", {"y": ROWS["y"].tolist()})
    random = np.random.default_rng(5)
    sites = {
        "scale": random.gamma(3.0, 1 / 2, size=(10, 1_000, 2)),
        "mu": random.normal(1.5, 0.5, size=(10, 1_000)),
        "shifted": random.normal(size=(10, 1_000)),
    }
    monkeypatch.setattr(
        reference, "run_nuts", lambda *args: (sites, np.eye(10, dtype=int)[0], np.ones(10))
    )
    programs = {"conjugate": conjugate}
    monkeypatch.setattr("benchmarks.posteriordb.programs.numpyro_program", programs.__getitem__)
    posterior = Database.open(tmp_path)["rows-conjugate"]
    found = reference.make(posterior, tmp_path, Settings(seed=2, thin=5))
    assert found["before"]["ndraws"] == 10_000 and found["after"]["ndraws"] == 2_000
    columns = columns_of(posterior)
    # What the posterior does not state is left out, and the order is that of its dimensions.
    assert list(columns) == ["mu", "scale[1]", "scale[2]"]
    assert columns["scale[2]"] == pytest.approx(sites["scale"][:, 4::5, 1], rel=1e-7)
    assert all(float(f"{value:.8g}") == value for value in columns["mu"][0])
    for power in (1, 2):
        moments = posterior.reference_moments(power)
        assert moments is not None
        for name, value in EXACT[power].items():
            error = moments[1][name]
            assert np.all(np.abs(moments[0][name] - value) < 4.5 * error), (power, name)
            # The standard error of 10,000 independent draws.
            exact = (sites[name] ** power).std((0, 1)) / 100.0
            assert error == pytest.approx(exact, rel=0.1)
    said = stated(posterior)
    assert said["inference"]["method_arguments"]["seed"] == 2
    assert said["diagnostics"]["divergent_transitions"] == [1] + 9 * [0]
    assert said["data_sha256"] == data_digest(posterior.data())
    assert {"numpyro", "jax", "arviz"} <= said["versions"].keys()


@pytest.mark.slow
def test_chains_draw_from_the_posterior() -> None:
    settings = Settings(seed=2, warmup=300, draws=1_000)
    sites, divergences, information = reference.run_nuts(conjugate, ROWS, settings)
    assert sites["mu"].shape == (10, 1_000) and sites["scale"].shape == (10, 1_000, 2)
    assert sites["mu"].dtype == np.float64 and divergences.tolist() == 10 * [0]
    assert information.shape == (10,) and information.min() > 0.6
    columns = scatter(sites, rank=2)
    check("rows", diagnose(columns), 0)
    for power in (1, 2):
        values, errors = reference.means({key: draws**power for key, draws in columns.items()})
        exact = [EXACT[power][column.partition("[")[0]] for column in columns]
        assert np.all(np.abs(np.subtract(values, exact)) < 4.5 * np.array(errors))


def test_a_run_that_fails_a_check_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = {"mu": chains(shift=1.0), "tau": chains()}
    draws["theta_raw"] = np.stack([chains()] * 8, axis=-1)
    monkeypatch.setattr(
        reference, "run_nuts", lambda *args: (draws, np.zeros(10, dtype=int), np.ones(10))
    )
    with pytest.raises(UnfitError, match="R-hat"):
        reference.make(
            DATABASE["eight_schools-eight_schools_noncentered"], tmp_path, Settings(thin=1)
        )
    assert list(tmp_path.iterdir()) == []
    del draws["tau"]
    with pytest.raises(UnfitError, match="no site 'tau'"):
        reference.make(DATABASE["eight_schools-eight_schools_noncentered"], tmp_path, Settings())


def test_single_precision_is_refused() -> None:
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(UnfitError, match="float64"):
            reference.run_nuts(conjugate, {"y": np.zeros(3)}, Settings())
    finally:
        jax.config.update("jax_enable_x64", True)


def test_the_command_keeps_what_is_there_and_names_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schools = "eight_schools-eight_schools_"
    there = tmp_path / "reference_posteriors" / "draws" / "info" / f"{schools}noncentered.info.json"
    write_json(there, {})
    monkeypatch.setattr(reference, "make", lambda *args: pytest.fail("sampled"))
    options = ["--output", str(tmp_path)]
    assert reference.main([f"{schools}noncentered", f"{schools}centered", *options]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "--again" in said[0] and said[1].endswith(f"has the reference of {schools}noncentered")
    assert reference.main(["eight_schools", *options]) == 1
    assert "near names: eight_schools" in capsys.readouterr().err
