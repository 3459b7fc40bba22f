"""Scores with noise added."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from pyro_ext.engine import seeded_generator
from pyro_ext.gradients import Full, Minibatch, Noisy

torch.set_default_dtype(torch.float64)

Y = torch.arange(11.0)


def subsampled(y: torch.Tensor) -> None:
    a = pyro.sample("a", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("N", len(y), subsample_size=3) as rows:
        pyro.sample("y", dist.Normal(a[0] + 2.0 * a[1], 1.0), obs=y[rows])


def test_noise_is_normal_and_as_large_as_the_largest_entry() -> None:
    target = LogDensity(subsampled, (Y,))
    data = target.bind(Y)
    estimator, generator = Noisy(Full(), level=0.5), seeded_generator(0)
    z = torch.tensor([[0.5, 1.0, -2.0], [30.0, 0.0, 0.0]]).repeat_interleave(20_000, 0)
    exact = target.full_score(z, data)
    state = estimator.init(target, data, generator)
    found, state = estimator.estimate(target, state, z, data, generator)
    for part in ("log_prior", "log_likelihood"):
        assert torch.equal(getattr(found, part), getattr(exact, part))
    noise = ((found.score - exact.score) / exact.score.abs().amax(-1, keepdim=True)).view(2, -1, 3)
    # Means and second moments of 20,000 standard normal draws, times the level, in every
    # coordinate and in every pair of coordinates.
    error = 5 / 20_000**0.5
    assert (noise.mean(1).abs() < 0.5 * error).all()
    second = noise.mT @ noise / 20_000
    assert ((second - 0.25 * torch.eye(3)).abs() < 0.25 * 2**0.5 * error).all()
    # Particles and steps have noise of their own.
    assert (noise[0] * noise[1]).mean().abs() < 0.25 * error
    again, _ = estimator.estimate(target, state, z, data, generator)
    assert (again.score != found.score).all()


def test_level_zero_and_the_estimator_beneath() -> None:
    target = LogDensity(subsampled, (Y,))
    data, z = target.bind(Y), torch.tensor([[0.5, 1.0, -2.0]])
    plain, noisy = Minibatch(), Noisy(level=0.0)
    generators = seeded_generator(3), seeded_generator(3)
    state = plain.init(target, data, generators[0])
    ours = noisy.init(target, data, generators[1])
    expected, _ = plain.estimate(target, state, z, data, generators[0])
    found, ours = noisy.estimate(target, ours, z, data, generators[1])
    assert torch.equal(found.score, expected.score)  # the default is the engines' own
    assert ours["N"]["position"] == 3  # whose state goes on
    assert noisy.evaluations_per_step(target) == pytest.approx(3 / 11)
    assert Noisy(Full(), level=1.0).evaluations_per_step(target) == 1.0


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="level >= 0, found -1"):
        Noisy(level=-1.0)
    with pytest.raises(ArgumentError, match=r"found float.*Noisy\(level=0.5\)"):
        Noisy(0.5, level=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="level"):
        Noisy()  # type: ignore[call-arg]
