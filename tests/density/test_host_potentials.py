"""The two targets against each other and against their hosts' own potentials, in float64.

Every model of the zoo is evaluated at the same unconstrained points. The hosts agree on the
bijections of all the supports used, so that flat vectors mean the same; a network's weights are
matched by name and transposed. Tolerances are float64 rounding of sums of a few hundred terms.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of, use_float64
from tests.density_support import rows
from tests.models import zoo

use_float64()

POINTS = 3
ROUNDING = {"rtol": 1e-10, "atol": 1e-9}

BOTH = [name for name, model in zoo.ZOO.items() if model.hosts == ("pyro", "numpyro")]
SUBSAMPLED = [name for name, model in zoo.ZOO.items() if model.subsampled]
HOSTS = ("pyro", "numpyro")


class Case:
    """The target of a model of the zoo, with NumPy arrays in and out."""

    def __init__(
        self, host: str, name: str, data_chunk: int | None = None, num_rows: int | None = None
    ) -> None:
        self.zoo, self.backend = zoo.ZOO[name], backend_of(host)
        self.model = self.backend.models.build(name)
        self.args = self.backend.models.arguments(name)
        if num_rows is not None:
            self.args = tuple(value[:num_rows] for value in self.args)
        self.target, self.data = self.backend.target(
            self.model, self.args, self.zoo.options, data_chunk=data_chunk
        )

    def numpy(self, parts: Any) -> list[np.ndarray]:
        return [self.backend.numpy(part) for part in parts]

    def full(self, z: np.ndarray) -> list[np.ndarray]:
        return self.numpy(self.target.full_score_parts(self.backend.array(z), self.data))

    def batch(self, z: np.ndarray, indices: dict[str, np.ndarray]) -> list[np.ndarray]:
        indices = rows(self.backend, **indices)
        return self.numpy(self.target.score_parts(self.backend.array(z), self.data, indices))

    def score(self, z: np.ndarray) -> list[np.ndarray]:
        return self.numpy(self.target.full_score(self.backend.array(z), self.data))

    def constrained(self, z: np.ndarray) -> dict[str, np.ndarray]:
        values = self.target.constrain(self.backend.array(z), self.data)
        return {site: self.backend.numpy(value) for site, value in values.items()}

    def split(self, z: np.ndarray) -> dict[str, np.ndarray]:
        sites = self.target.layout.split(self.backend.array(z))
        return {site: self.backend.numpy(value) for site, value in sites.items()}


def of_pyro(ours: Case, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density and gradient from Pyro's own potential on all rows."""
    import torch
    from pyro.infer.mcmc.util import initialize_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, potential, _, _ = initialize_model(ours.model, ours.args, dict(ours.zoo.full_options))
    values, gradients = [], []
    for row in torch.tensor(z):
        flat = row.clone().requires_grad_()
        value = -potential(ours.target.layout.split(flat))
        (gradient,) = torch.autograd.grad(value, flat)
        values.append(value.item())
        gradients.append(gradient.numpy())
    return np.array(values), np.array(gradients)


def of_numpyro(ours: Case, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density and gradient from NumPyro's own potential on all rows."""
    import jax
    from numpyro import handlers
    from numpyro.infer.util import potential_energy

    # Flax's initial weights need a key, though the potential does not depend on them.
    model, options = handlers.seed(ours.model, 0), ours.zoo.full_options

    def log_density(flat: Any) -> Any:
        return -potential_energy(model, ours.args, options, ours.target.layout.split(flat))

    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(log_density)))(z)
    return np.asarray(values), np.asarray(gradients)


@cache
def target(host: str, name: str, data_chunk: int | None = None) -> Case:
    return Case(host, name, data_chunk)


def positions(dim: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1.5, 1.5, (POINTS, dim))


def translated(name: str, z: np.ndarray) -> np.ndarray:
    """Pyro's flat vectors, or gradients, in the order and the shapes of NumPyro's."""
    theirs, sites = target("numpyro", name).target.layout, target("pyro", name).split(z)
    for site, (other, axes) in zoo.ZOO[name].numpyro_names.items():
        sites[other] = np.transpose(sites[site], (0, *(axis + 1 for axis in axes)))
    return np.asarray(theirs.join({site: sites[site] for site in theirs.names}))


def host_cases() -> list[tuple[str, str]]:
    """Every model with every host whose own potential is right for it."""
    return [
        (host, name)
        for name, model in zoo.ZOO.items()
        for host in model.hosts
        if getattr(model, f"{host}_potential")
    ]


@pytest.mark.parametrize(("host", "name"), host_cases())
def test_log_density_and_score_agree_with_the_hosts_potential(host: str, name: str) -> None:
    ours = target(host, name)
    z = positions(ours.target.dim)
    score, log_prior, log_likelihood = ours.score(z)
    values, gradients = {"pyro": of_pyro, "numpyro": of_numpyro}[host](ours, z)
    np.testing.assert_allclose(log_prior + log_likelihood, values, **ROUNDING)
    np.testing.assert_allclose(score, gradients, **ROUNDING)


@pytest.mark.parametrize("name", BOTH)
def test_the_two_packages_agree(name: str) -> None:
    pyro, numpyro = target("pyro", name), target("numpyro", name)
    assert pyro.target.dim == numpyro.target.dim
    z = positions(pyro.target.dim)
    # Both parts of the score where other tests ask for them; else what is computed already.
    parts = name in SUBSAMPLED
    ours, theirs = (each.full if parts else each.score for each in (pyro, numpyro))
    one, two = ours(z), theirs(translated(name, z))
    scores = 2 if parts else 1
    for mine, other in zip(one[:scores], two[:scores], strict=True):
        np.testing.assert_allclose(translated(name, mine), other, **ROUNDING)
    for mine, other in zip(one[scores:], two[scores:], strict=True):
        np.testing.assert_allclose(mine, other, **ROUNDING)


@pytest.mark.parametrize("name", BOTH)
def test_constrained_values_agree(name: str) -> None:
    pyro, numpyro = target("pyro", name), target("numpyro", name)
    z = positions(pyro.target.dim)
    names = zoo.ZOO[name].numpyro_names
    ours, theirs = pyro.constrained(z), numpyro.constrained(translated(name, z))
    shapes = {site: tuple(value.shape[1:]) for site, value in ours.items()}
    assert not zoo.ZOO[name].latents or shapes == zoo.ZOO[name].latents
    for site, value in ours.items():
        other, axes = names.get(site, (site, tuple(range(value.ndim - 1))))
        array = np.transpose(value, (0, *(axis + 1 for axis in axes)))
        np.testing.assert_allclose(array, theirs[other], **ROUNDING)


@pytest.mark.parametrize("name", SUBSAMPLED)
@pytest.mark.parametrize("host", HOSTS)
def test_minibatches_average_to_the_full_data(host: str, name: str) -> None:
    # In the N cyclic windows of B rows each row appears B times, as in all subsets of B rows.
    ours = target(host, name)
    z = positions(ours.target.dim)
    plates = zoo.ZOO[name].plates
    windows = [
        [
            (plate, (start + np.arange(size.subsample_size)) % size.size)
            for start in range(size.size)
        ]
        for plate, size in plates.items()
    ]
    batches = [ours.batch(z, dict(chosen)) for chosen in itertools.product(*windows)]
    full = ours.full(z)
    spread = np.std([batch[1] for batch in batches], axis=0).max()
    assert spread > 1e-3, "the batches must differ for their average to say anything"
    for part, expected in enumerate(full):
        average = np.mean([batch[part] for batch in batches], axis=0)
        np.testing.assert_allclose(average, expected, **ROUNDING)


@pytest.mark.parametrize("name", SUBSAMPLED)
@pytest.mark.parametrize("host", HOSTS)
def test_chunked_sweep_equals_one_sweep(host: str, name: str) -> None:
    plates = zoo.ZOO[name].plates
    # Seven rows at a time leave a ragged last chunk of every plate in the zoo.
    chunked = target(host, name, data_chunk=7)
    z = positions(chunked.target.dim)
    whole = chunked.batch(z, {plate: np.arange(size.size) for plate, size in plates.items()})
    sizes = {len(some) for _, indices in chunked.target.sweep() for some in indices.values()}
    assert len(sizes) > 1
    for part, expected in zip(chunked.full(z), whole, strict=True):
        np.testing.assert_allclose(part, expected, **ROUNDING)


@pytest.mark.parametrize("rows_at_first", [15, 60])
@pytest.mark.parametrize("host", HOSTS)
def test_a_batch_passed_as_arguments_is_scaled_to_the_full_data(
    host: str, rows_at_first: int
) -> None:
    # Whether the target was made with a batch or with all rows must not matter.
    name = "logistic_regression_batch_arguments"
    whole = target(host, name)
    z = positions(whole.target.dim)
    full = whole.full(z)
    x, y = whole.args
    ours = Case(host, name, num_rows=rows_at_first)
    assert ours.target.batch_arguments == (rows_at_first < 60)
    batches = []
    for start in range(0, 60, 15):
        some = slice(start, start + 15)
        ours.data = ours.target.bind(x[some], y[some])
        batches.append(ours.full(z))
    for position, expected in enumerate(full):
        average = np.mean([batch[position] for batch in batches], axis=0)
        np.testing.assert_allclose(average, expected, **ROUNDING)
