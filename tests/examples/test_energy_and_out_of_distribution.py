"""The examples run in their small form, and what they show is there to be seen."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import records
from benchmarks.datasets import Images, shipped
from docs.examples import out_of_distribution_report as report
from docs.examples import score_matching_report as score_matching
from tests import arviz_support as support

# xarray uses what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

HOSTS = ("pyro", "numpyro")


@pytest.mark.parametrize("host", HOSTS)
def test_energy_is_low_and_samples_are_where_the_data_are(host: str, tmp_path: Path) -> None:
    example = importlib.import_module(f"docs.examples.{host}_examples.energy_based_model")
    found = example.main(["--small", "--out", str(tmp_path)])
    # The base alone gives uniform noise less than half a nat more than the data.
    assert found["energy_gap"] > 2.0
    assert found["near_share"] > found["noise_near_share"] + 0.25
    # Both moons, of half the mass each.
    assert abs(found["upper_share"] - found["upper_share_data"]) < 0.2
    assert (tmp_path / f"energy-based-model-{host}.png").stat().st_size > 10_000


@pytest.mark.parametrize("host", HOSTS)
def test_samples_by_learnt_scores_cannot_be_told_from_the_moons(host: str, tmp_path: Path) -> None:
    example = importlib.import_module(f"docs.examples.{host}_examples.score_matching")
    found = example.main(["--small", "--out", str(tmp_path)])
    # What a short training leaves, besides what two samples of one distribution differ in.
    assert found["energy_distance"] < found["energy_distance_99"] + 0.01
    assert found["energy_distance"] < 0.7 * found["energy_distance_of_normal"]
    # Without a tilt the loss is that of the Normal: the mean of s^2 (x - s e)^2 over both parts.
    assert found["loss"] < 1.6
    assert (tmp_path / f"score-matching-moons-{host}.png").stat().st_size > 10_000


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("corrections", [0, 1])
def test_a_known_diffusion_is_reversed(host: str, corrections: int, tmp_path: Path) -> None:
    """Without a tilt the data are a standard Normal, and every step's variance is known."""
    example = importlib.import_module(f"docs.examples.{host}_examples.score_matching")
    options = score_matching.read_options("", ["--small", "--sampler", "predictor-corrector"])
    options = dataclasses.replace(options, levels=20, langevin_steps=corrections, out=tmp_path)
    if host == "numpyro":
        import jax

        parameters = example.initial_parameters(jax.random.key(0), 2, 8)
        parameters[-1] = (0.0 * parameters[-1][0], parameters[-1][1])
        samples = example.generate(options, parameters, 2, jax.random.key(1))
    else:
        import torch

        torch.manual_seed(0)
        parameters = example.initial_parameters(2, 8)
        parameters[-1] = (0.0 * parameters[-1][0], parameters[-1][1])
        samples = example.generate(options, parameters, 2)
    levels = np.array(options.noise_levels())
    variance = 1.0 + levels[0] ** 2
    for wide, narrow in zip((levels[0], *levels[:-1]), levels, strict=True):
        lost = wide**2 - narrow**2
        variance = variance * (1.0 - lost / (1.0 + wide**2)) ** 2 + lost
        for _ in range(corrections):
            step = options.step_size * narrow**2
            variance = variance * (1.0 - 0.5 * step / (1.0 + narrow**2)) ** 2 + step
    found = np.asarray(samples, np.float64).var(axis=0)
    # Of 1,000 draws the variance has a relative error of 0.045.
    np.testing.assert_allclose(found, variance, rtol=4.0 * (2.0 / len(samples)) ** 0.5)
    # Nor is it far from that of the data with the noise of the last level.
    assert abs(variance / (1.0 + levels[-1] ** 2) - 1.0) < 0.2


def stand_in(name: str) -> Images:
    """Small digits drawn large for "mnist", and patchwork for clothes: no file is needed."""
    digits = shipped("digits")
    order = np.random.default_rng(0).permutation(len(digits.y))
    if name == "mnist":
        pixels = 255.0 / 16.0 * digits.x[order].reshape(-1, 8, 8)
        large = np.pad(pixels.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
    else:
        patches = np.random.default_rng(1).uniform(0.0, 255.0, (len(order), 4, 4))
        large = patches.repeat(7, 1).repeat(7, 2)
    x, y, train = large.astype(np.uint8), digits.y[order], 1000
    return Images(name, x[:train], y[:train], x[train:], y[train:], source="made up")


@pytest.mark.parametrize("host", HOSTS)
def test_seven_methods_learn_digits_and_doubt_patchwork(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "images", stand_in)
    example = importlib.import_module(f"docs.examples.{host}_examples.out_of_distribution")
    found = example.main(["--small", "--out", str(tmp_path)])
    stem = tmp_path / f"out-of-distribution-{host}"
    written = records.read(stem.with_suffix(".jsonl"))
    names = [record.method for record in written]
    assert names == [record.method for record in found] and len(set(names)) == 7
    table = stem.with_suffix(".md").read_text()
    assert all(f"| {name} " in table for name in names)
    assert stem.with_suffix(".png").stat().st_size > 20_000
    for record in written:
        figures = record.figures
        # Chance is 0.1, and log 10 = 2.3 nats.
        assert figures["accuracy"] > 0.5 and figures["nll"] < 1.8, record.method
        assert 0.0 <= figures["ece"] <= 1.0 and 0.0 <= figures["brier"] < 0.9, record.method
    areas = np.array(
        [[r.figures["auroc_entropy"], r.figures["auroc_mutual_information"]] for r in written]
    )
    assert ((areas > 0.5).sum(0) >= 5).all(), areas
