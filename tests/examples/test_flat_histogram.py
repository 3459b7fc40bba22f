"""A flat histogram of energies gives far modes their masses, and its update is what it says."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from docs.examples import flat_histogram_report as shared


def test_an_update_follows_the_histogram_within_its_steepness() -> None:
    options = shared.Options(lowest=0.0, highest=4.0, bins=4, gain=1.0, decay=0.0, steepest=10.0)
    # One energy of each edge and one between the first two: edges 0 and 1 have 1.5 of 6.
    energies = np.array([[0.0, 1.0, 2.0], [3.0, 9.0, 0.5]])
    found = shared.updated(options, np.zeros(5), energies, 1)
    np.testing.assert_allclose(found, np.array([0.0, 0.0, -0.5, -0.5, -0.5]) / 6.0)
    steep = shared.updated(options, np.array([0.0, 50.0, 50.0, 50.0, 0.0]), energies, 1)
    assert np.abs(np.diff(steep)).max() <= 10.0 * options.width


def test_the_error_of_a_share_is_that_over_chains() -> None:
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        far = generator.uniform(size=(40, 25)) < 0.3
        found = shared.judged(np.where(far, 10.0, 0.0), np.zeros(far.shape))
        shares.append(found["share"])
    assert found["its error"] == pytest.approx(np.std(shares), rel=0.5)
    assert found["share"] == found["unweighted"]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["pyro", "numpyro"])
def test_far_modes_have_their_masses(host: str, tmp_path: Path) -> None:
    example = importlib.import_module(f"docs.examples.{host}_examples.flat_histogram")
    found = example.main(["--out", str(tmp_path)])
    # Steps of this size leave a bias of about 0.02, and chains that stay have a share of 0.
    assert abs(found["share"] - shared.MASSES[1]) < 4.0 * found["its error"] + 0.02
    assert found["its error"] < 0.04
    assert (tmp_path / "flat-histogram.jsonl").exists()
