"""The objective and the samplers, in both packages, against what they are in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.diagnostics.stein_discrepancy import stein_discrepancy as diagnostic
from ppl_ext.errors import ArgumentError
from ppl_ext.implicit.noise import moments_of, normals_of_start
from ppl_ext.implicit.objective import stein_discrepancy
from ppl_ext.implicit.samplers import NATS, PushForward, Sampler, SemiImplicit, UnrolledSGLD
from ppl_ext.start.start import Mode, Start
from tests.backends import use_float64
from tests.implicit_support import drawn, functions_of, normals, numbers

use_float64()

NUMBER, SCALES = 40, np.array([0.7, 1.9])


def points(number: int = NUMBER, seed: int = 0) -> np.ndarray:
    return 3.0 + np.random.default_rng(seed).normal(size=(number, 2))


def objective(backend: Any, z: Any, s: Any, lengths: tuple[float, ...] = (0.4, 1.1)) -> Any:
    return stein_discrepancy(functions_of(backend), z, s, backend.array(SCALES), lengths)


def test_objective_is_the_u_statistic_of_the_diagnostic(backend: Any) -> None:
    z, s = points(), points(seed=1)
    found = objective(backend, *backend.arrays((z, s)))
    of = [
        length * diagnostic(z, s, statistic="U", metric=SCALES, scale=length).squared
        for length in (0.4, 1.1)
    ]
    np.testing.assert_allclose(backend.numpy(found), np.mean(of), rtol=1e-9)


def test_gradient_goes_through_draws_and_scores(backend: Any) -> None:
    """Of draws m + d u of a standard Normal's scores, by differences in m and d."""
    u = points() - 3.0

    def value(parameters: Any) -> Any:
        z = parameters[0] + parameters[1] * backend.array(u)
        return objective(backend, z, -z)

    at, step = np.array([0.5, 0.6]), 1e-5
    found = backend.numpy(backend.transforms.grad(value)(backend.array(at)))
    moved = [
        (value(backend.array(at + e)) - value(backend.array(at - e))) / (2 * step)
        for e in step * np.eye(2)
    ]
    np.testing.assert_allclose(found, [float(each) for each in moved], rtol=1e-5)
    # Downhill is towards the target: the mean is too large and the deviation too small.
    assert found[0] > 0 > found[1]


def test_objective_is_zero_in_the_mean_for_draws_of_the_target(backend: Any) -> None:
    """Within four standard errors; pairs of a draw with itself would make it 0.1 and more."""
    compiled = backend.compiled(lambda z: objective(backend, z, -z))
    draws = np.random.default_rng(2).normal(size=(400, 20, 2))
    values = np.array([float(compiled(backend.array(each))) for each in draws])
    assert abs(values.mean()) < 4 * values.std() / 20


@pytest.mark.parametrize("kind", [PushForward, SemiImplicit])
def test_networks_of_noise(backend: Any, kind: type[Sampler]) -> None:
    sampler = kind((5, 4), extra_noise=3)  # type: ignore[call-arg]
    weights = numbers(sampler.parameter_shapes(2), 1)
    noise = numbers(sampler.noise_shapes(NUMBER, 2), 2)
    found = drawn(backend, sampler, backend.arrays(weights), noise, lambda z: z)

    mixture = normals()
    mean, scale = moments_of(np, mixture)
    x = of_mixture(mixture, noise)
    h = np.concatenate([(x - mean) / scale, noise["extra"]], 1)
    for layer in range(2):
        h = np.tanh(h @ weights[f"weight{layer}"] + weights[f"bias{layer}"])
    h = h @ weights["weight2"] + weights["bias2"]
    if kind is SemiImplicit:
        h = h[:, :2] + np.exp(h[:, 2:] - 2.0) * noise["normal"]
    np.testing.assert_allclose(backend.numpy(found), x + scale * h, rtol=1e-9)


def of_mixture(mixture: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> np.ndarray:
    from scipy.special import ndtr

    which = np.searchsorted(np.cumsum(mixture["weights"]), ndtr(noise["which"]))
    moved = np.einsum("sij,sj->si", mixture["factors"][which], noise["base"])
    return mixture["means"][which] + moved


def test_langevin_steps(backend: Any) -> None:
    sampler = UnrolledSGLD(3, step_size=0.2)
    weights = numbers(sampler.parameter_shapes(2), 1)
    noise = numbers(sampler.noise_shapes(NUMBER, 2), 2)
    found = drawn(backend, sampler, backend.arrays(weights), noise, lambda z: -(z**3))

    mixture = normals()
    _, scale = moments_of(np, mixture)
    z = of_mixture(mixture, noise)
    for step in range(3):
        variance = 0.2 * np.exp(NATS * weights["log_step"][step])
        drift = -0.5 * variance * scale * z**3
        z = z + scale * (drift / (1 + np.abs(drift)) + np.sqrt(variance) * noise["steps"][step])
    np.testing.assert_allclose(backend.numpy(found), z, rtol=1e-9)


def test_steps_that_begin_at_a_network(backend: Any) -> None:
    """Without length they are the network's draws."""
    network = PushForward((3,))
    sampler = UnrolledSGLD(2, step_size=1e-30, begin=network)
    weights = backend.arrays(sampler.initial(numbers(sampler.parameter_shapes(2), 3)))
    noise = numbers(sampler.noise_shapes(NUMBER, 2), 4)
    found = drawn(backend, sampler, weights, noise, lambda z: -z)
    expected = drawn(backend, network, weights, noise, lambda z: z)
    np.testing.assert_allclose(backend.numpy(found), backend.numpy(expected), atol=1e-12)


def test_networks_begin_at_the_start() -> None:
    sampler = PushForward((5,))
    weights = sampler.initial(numbers(sampler.parameter_shapes(2), 1))
    assert not weights["weight1"].any() and not weights["bias0"].any()
    assert weights["weight0"].any()


def test_descriptions_tell_samplers_of_other_draws_apart() -> None:
    """A state with the same parameters belongs to one of them only."""
    samplers = [UnrolledSGLD(3), UnrolledSGLD(3, step_size=0.2), UnrolledSGLD(3, spread=2.0)]
    samplers.append(UnrolledSGLD(3, begin=PushForward()))
    assert len({each.description for each in samplers}) == len(samplers)


@pytest.mark.parametrize("modes", [1, 3, 12])
def test_normals_of_a_start(modes: int) -> None:
    """The modes of most mass, with their shares; diagonal where the dimension is high."""
    rng = np.random.default_rng(0)
    found = [
        Mode(rng.normal(size=2), np.diag(rng.uniform(0.5, 1.0, size=2)), -float(k), 0.0)
        for k in range(modes)
    ]
    made = normals_of_start(Start(tuple(found), 0), spread=2.0)
    assert made["means"].shape == (8, 2) and made["factors"].shape == (8, 2, 2)
    shares = np.exp(-np.arange(min(modes, 8)))
    np.testing.assert_allclose(made["weights"][: len(shares)], shares / shares.sum())
    np.testing.assert_allclose(made["weights"].sum(), 1.0)
    np.testing.assert_allclose(made["factors"][0], 2.0 * found[0].factor)
    high = Mode(np.zeros(300), np.ones(300), 0.0, 0.0)
    assert normals_of_start(Start((high,), 0), 1.0)["factors"].shape == (8, 300)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PushForward(network=5),
        lambda: PushForward((0,)),
        lambda: PushForward(extra_noise=-1),
        lambda: SemiImplicit(spread=0.0),
        lambda: UnrolledSGLD(0),
        lambda: UnrolledSGLD(step_size=-1.0),
        lambda: UnrolledSGLD(begin="network"),  # type: ignore[arg-type]
        lambda: UnrolledSGLD(begin=UnrolledSGLD(2)),
    ],
)
def test_options_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        make()
