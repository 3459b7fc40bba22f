"""The benchmark of programs with discrete latent sites: it runs and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import special

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.discrete.comparison import forward_sums, page_table, paths
from benchmarks.discrete.programs import PROGRAMS, large_mixture
from tests.backends import backend_of
from tests.density_support import positions


def test_the_large_mixture_is_a_density() -> None:
    # Its own entropy is the least that rows can cost on average, whatever is held out.
    y, held_out, best = large_mixture(2000, 4)
    assert len(y) == 2000 and len(held_out) == 10_000
    other = held_out.std()
    normal = -0.5 * np.log(2.0 * np.pi * other**2) - 0.5
    assert normal < best < 0.0


def test_gradients_are_recorded(tmp_path: Path) -> None:
    options = ["--parts", "gradient", "--backend", "pyro", "--programs", "zero_inflated"]
    options += ["--lengths"]
    assert command_line.main(["discrete", *options, "--out", str(tmp_path)]) == 0
    (run,) = records.read(tmp_path / "discrete.jsonl")
    assert run.figures["one beside the host's"] > 0.0 and not run.failed
    assert "zero_inflated" in (tmp_path / "discrete.md").read_text(encoding="utf-8")
    assert command_line.main(["discrete", "--programs", "none", "--out", str(tmp_path)]) == 2


CHAINS = [name for name, each in PROGRAMS.items() if each.steps is not None]


@pytest.mark.parametrize("name", CHAINS)
def test_sums_over_paths_by_hand_are_those_of_the_density(name: str) -> None:
    backend, each = backend_of("numpyro"), PROGRAMS[name]
    target, data = backend.target(each.build(backend), backend.arrays(each.arrays))
    z = backend.array(positions(target, 4))
    draws = {site: backend.numpy(value) for site, value in target.constrain(z, data).items()}
    assert each.steps is not None
    potentials, before, _ = each.steps(draws)
    by_hand = special.logsumexp(forward_sums(potentials, before)[-1], -1).sum(-1)
    found = backend.numpy(target.full_score(z, data)[2])
    # Up to constants of the Normals.
    np.testing.assert_allclose(found - found[0], by_hand - by_hand[0], rtol=1e-4, atol=1e-4)


def test_paths_are_drawn_as_often_as_they_are_probable() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(3, 2, 2))
    logs = one[0, 1][:, None, None] + one[1][:, :, None] + one[2][None]
    drawn = paths(np.tile(one, (20_000, 1, 1, 1, 1)), 1, np.arange(2))[..., 0]
    counts = np.zeros((2, 2, 2))
    np.add.at(counts, tuple(drawn.T), 1.0)
    expected = special.softmax(logs)
    error = np.sqrt(expected * (1.0 - expected) / 20_000)
    assert np.abs(counts / 20_000 - expected).max() < 4.5 * error.max()


def test_labels_in_order_are_those_of_any_order() -> None:
    rng, each = np.random.default_rng(0), PROGRAMS["two_layers"]
    draws = {name: rng.normal(size=(5, 2, 2)) for name in ("location", "slow", "fast")}
    swapped = {
        "location": draws["location"][:, ::-1],
        "slow": draws["slow"][:, ::-1, ::-1],
        "fast": draws["fast"],
    }
    assert each.label_free is not None
    for name, value in each.label_free(draws).items():
        np.testing.assert_array_equal(each.label_free(swapped)[name], value)


def test_fits_are_judged(tmp_path: Path) -> None:
    options = ["--parts", "fit", "nuts", "--backend", "numpyro", "--programs", "zero_inflated"]
    few = ["--long", "200", "--draws", "50", "--ess", "100", "--budget", "20000"]
    assert command_line.main(["discrete", *options, *few, "--out", str(tmp_path)]) == 0
    fit, nuts = records.read(tmp_path / "discrete.jsonl")
    assert fit.figures["verdict"] == "exact" and fit.figures["assignments"] < 0.1
    assert 0.0 < nuts.figures["mean error"] < 1.0 and "assignments" not in nuts.figures


def test_a_fit_that_fails_is_in_the_table() -> None:
    run = records.Record("discrete", "fit", "pyro", "zero_inflated", 0, error="RuntimeError: no")
    assert page_table([run]).count("failed") == 1
