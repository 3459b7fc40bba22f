"""The density of programs with discrete latent sites, in float64: the marginal one.

Tolerances are float64 rounding of sums of a few hundred terms.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from benchmarks.discrete.programs import PROGRAMS, SERIES, K, Program, Written
from ppl_ext.errors import EvaluationWarning
from tests.backends import use_float64
from tests.density_support import positions, rows

use_float64()

ROUNDING = {"rtol": 1e-10, "atol": 1e-9}
SUBSAMPLED = ["mixture", "item_difficulty", "topics"]


def target_of(backend: Any, each: Program, *, full: bool = True, **options: Any) -> Any:
    """Target and data of a program, on all rows or with minibatches."""
    kwargs = {} if full else each.options
    args = backend.arrays(each.arrays)
    return backend.target(each.build(backend), args, kwargs, **options)


def of_pyro(model: Callable[..., None], args: Any, split: Any, z: np.ndarray) -> Any:
    """Log density and gradient by Pyro's own potential."""
    import torch
    from pyro.infer.mcmc.util import initialize_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, potential, _, _ = initialize_model(model, args)
    values, gradients = [], []
    for row in torch.tensor(z):
        flat = row.clone().requires_grad_()
        value = -potential(split(flat))
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, flat)[0].numpy())
    return np.array(values), np.array(gradients)


def of_numpyro(model: Callable[..., None], args: Any, split: Any, z: np.ndarray) -> Any:
    """Log density and gradient by NumPyro's own potential, as one compiled program."""
    import jax
    from numpyro import handlers
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.infer.util import _guess_max_plate_nesting, potential_energy

    seeded = handlers.seed(model, 0)
    nesting = _guess_max_plate_nesting(handlers.trace(seeded).get_trace(*args))
    every = enum(config_enumerate(seeded), -nesting - 1)

    def log_density(position: Any) -> Any:
        return -potential_energy(every, args, {}, split(position), enum=True)

    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(log_density)))(z)
    return np.asarray(values), np.asarray(gradients)


#: Programs whose sums are made as those of others here, and take longest to compile.
LIKE_OTHERS = ("neural_emission", "item_difficulty", "topics", "latent_class", "regressions")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_OTHERS else [])
        for name in PROGRAMS
    ],
)
def test_log_density_and_score_agree_with_the_hosts_potential(backend: Any, name: str) -> None:
    each = PROGRAMS[name]
    target, data = target_of(backend, each)
    z = positions(target)
    if backend.is_pyro and name == "hidden_number":
        # Pyro reads a binomial's number of trials, which a graph cannot.
        with pytest.warns(EvaluationWarning, match="could not be traced"):
            target.full_score(backend.array(z), data)
    found = [backend.numpy(part) for part in target.full_score(backend.array(z), data)]
    host = of_pyro if backend.is_pyro else of_numpyro
    args = backend.arrays(each.arrays)
    values, gradients = host(each.build(backend), args, target.layout.split, z)
    np.testing.assert_allclose(found[1] + found[2], values, **ROUNDING)
    np.testing.assert_allclose(found[0], gradients, **ROUNDING)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "item_difficulty" else [])
        for name in SUBSAMPLED
    ],
)
def test_minibatches_average_to_the_full_data(backend: Any, name: str) -> None:
    each = PROGRAMS[name]
    (plate, size), batch = next(iter(each.plates.items())), each.options["subsample_size"]
    full, everything = target_of(backend, each)
    target, data = target_of(backend, each, full=False, data_chunk=2)
    z = positions(target)
    flat = backend.array(z)
    expected = [backend.numpy(part) for part in full.full_score_parts(flat, everything)]
    # Two rows at a time leave a ragged last chunk of most plates.
    for part, whole in zip(target.full_score_parts(flat, data), expected, strict=True):
        np.testing.assert_allclose(backend.numpy(part), whole, **ROUNDING)
    batches = []
    for start in range(size):
        some = rows(backend, **{plate: (start + np.arange(batch)) % size})
        parts = target.score_parts(flat, data, some)
        batches.append([backend.numpy(part) for part in parts])
    assert np.std([one[1] for one in batches], axis=0).max() > 1e-3, "the batches must differ"
    for part, whole in enumerate(expected):
        average = np.mean([one[part] for one in batches], axis=0)
        np.testing.assert_allclose(average, whole, **ROUNDING)


def test_what_is_summed_belongs_to_the_likelihood(backend: Any) -> None:
    target, data = target_of(backend, PROGRAMS["mixture"])
    z = positions(target)
    prior, likelihood = target.full_log_prior_and_likelihood(backend.array(z), data)
    values = target.constrain(backend.array(z), data)
    w, location, scale = (backend.numpy(values[name]) for name in ("weights", "location", "scale"))
    terms = np.log(w)[:, None] + stats.norm.logpdf(
        SERIES[:, None], location[:, None], scale[:, None]
    )
    expected = special.logsumexp(terms, -1).sum(-1)
    np.testing.assert_allclose(backend.numpy(likelihood), expected, **ROUNDING)
    warm, data = target_of(backend, PROGRAMS["mixture"], likelihood_temperature=4.0)
    tempered = backend.numpy(warm.log_density(backend.array(z), data))
    np.testing.assert_allclose(tempered, backend.numpy(prior) + expected / 4.0, **ROUNDING)


def test_many_positions_at_once_are_each_its_own(backend: Any) -> None:
    target, data = target_of(backend, PROGRAMS["mixture"])
    z = positions(target, 4)
    together = backend.numpy(target.full_score(backend.array(z), data).score)
    alone = [backend.numpy(target.full_score(backend.array(one[None]), data).score) for one in z]
    np.testing.assert_allclose(together, np.concatenate(alone), **ROUNDING)


def test_values_are_those_of_the_support(backend: Any) -> None:
    # NumPyro's own enumeration counts from zero.
    h = Written(backend)

    def model() -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        if backend.is_pyro:
            number = 2 + h.sample("number", h.dist.Categorical(h.full(K, 1.0 / K)))
        else:
            number = h.sample("number", h.dist.DiscreteUniform(2, K + 1))
        h.sample("y", h.dist.Normal(mean * number, 1.0), obs=h.full((), 1.5))

    target, data = backend.target(model)
    z = positions(target)
    _, found = target.full_log_prior_and_likelihood(backend.array(z), data)
    terms = stats.norm.logpdf(1.5, z * np.arange(2, K + 2), 1.0) - np.log(K)
    np.testing.assert_allclose(backend.numpy(found), special.logsumexp(terms, -1), **ROUNDING)


def test_observations_without_a_plate_are_one(backend: Any) -> None:
    h = Written(backend)
    numbers = np.array([0.5, -1.0])

    def model(y: Any) -> None:
        share = h.sample("share", h.dist.Normal(0.0, 1.0))
        z = h.sample("z", h.dist.Bernoulli(logits=share))
        h.sample("y", h.dist.Normal(h.number(z), h.full(2)), obs=y)

    target, data = backend.target(model, (backend.array(numbers),))
    z = positions(target)
    _, found = target.full_log_prior_and_likelihood(backend.array(z), data)
    terms = [
        np.log(special.expit(sign * z[:, 0])) + stats.norm.logpdf(numbers, mean).sum()
        for sign, mean in ((-1.0, 0.0), (1.0, 1.0))
    ]
    np.testing.assert_allclose(backend.numpy(found), np.logaddexp(*terms), **ROUNDING)


def test_latent_vectors_without_a_plate_stand_before_plates(backend: Any) -> None:
    """NumPyro's enumeration took their dimension for that of a plate to come, which failed."""
    h = Written(backend)
    numbers = np.array([0.5, -1.0, 2.0])

    def model(y: Any) -> None:
        with backend.handlers.mask(mask=backend.array(np.array([True, False]))):
            scales = h.sample("scales", h.dist.HalfNormal(h.full(2)))
        with h.plate("rows", 3):
            z = h.sample("z", h.dist.Categorical(h.full(2) / 2.0))
            h.sample("y", h.dist.Normal(0.0, scales[z]), obs=y)

    target, data = backend.target(model, (backend.array(numbers),))
    z = positions(target)
    prior, found = target.full_log_prior_and_likelihood(backend.array(z), data)
    scales = np.exp(z)
    terms = stats.norm.logpdf(numbers[:, None, None], 0.0, scales) - np.log(2.0)
    expected = special.logsumexp(terms, -1).sum(0)
    np.testing.assert_allclose(backend.numpy(found), expected, **ROUNDING)
    expected = stats.halfnorm.logpdf(scales[:, 0]) + z.sum(-1)
    np.testing.assert_allclose(backend.numpy(prior), expected, **ROUNDING)


def test_arguments_with_another_discrete_site_are_not_followed(backend: Any) -> None:
    """Nor those with more plates, which would meet the values of the sites that are known."""
    host, dist = backend.host, backend.dist
    y = backend.array(np.array([0.3, 1.2, -0.4]))

    def model(y: Any, sites: int, deep: bool = False) -> None:
        m = host.sample("m", dist.Normal(0.0, 1.0))
        with host.plate("rows", 3, dim=-1):
            for number in range(sites):
                half = backend.array(np.full(2, 0.5))
                m = m + host.sample(f"k{number}", dist.Categorical(probs=half))
            with host.plate("deep", 2, dim=-2) if deep else contextlib.nullcontext():
                host.sample("y", dist.Normal(m, 1.0), obs=y)

    for known, later, follows in [
        ((y, 0), (y, 1), False),
        ((y, 1), (y, 2), False),
        ((y, 1), (y, 0), True),
        ((y, 1), (y + 1.0, 1), True),
        ((y, 1), (y, 1, True), False),
    ]:
        one, two = (backend.target(model, args)[0].bound for args in (known, later))
        assert one.has_structure(two) is follows
    # A target that is asked by itself would draw the site's values, other ones in every run.
    target, _ = backend.target(model, (y, 0))
    with pytest.raises(backend.public.ModelCheckError, match="found 'k0', which these arguments"):
        target.full_log_density(backend.array(np.zeros((1, 1))), target.bind(y, 1))


def test_a_sum_over_all_assignments_of_two_sites(backend: Any) -> None:
    # One site over all rows and one of each row, which have no closed form of einsum to lean on.
    h = Written(backend)
    numbers = np.array([0.3, -0.7, 1.1])

    def model(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        a = h.sample("a", h.dist.Bernoulli(h.full((), 0.3)))
        with h.plate("rows", len(y)):
            b = h.sample("b", h.dist.Bernoulli(0.2 + 0.5 * a))
            h.sample("y", h.dist.Normal(mean + a - 2.0 * b, 1.0), obs=y)

    target, data = backend.target(model, (backend.array(numbers),))
    z = positions(target)
    _, found = target.full_log_prior_and_likelihood(backend.array(z), data)
    terms = []
    for a, *bs in itertools.product((0, 1), repeat=4):
        b = np.array(bs)
        term = stats.bernoulli.logpmf(a, 0.3) + stats.bernoulli.logpmf(b, 0.2 + 0.5 * a).sum()
        terms.append(term + stats.norm.logpdf(numbers, z + a - 2.0 * b, 1.0).sum(-1))
    np.testing.assert_allclose(backend.numpy(found), special.logsumexp(terms, 0), **ROUNDING)


#: What mixes the places of a plate: by name, what a row's mean is made of.
MIXED: dict[str, Any] = {
    "sum": lambda xp, z: z.sum(-1),
    "mean over values": lambda xp, z: z.mean(0),
    "sum of all": lambda xp, z: z.sum(),
    "cumulative sum": lambda xp, z: xp.cumsum(z, -1),
    "roll": lambda xp, z: xp.roll(z, 1, -1),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_values_outside_of_their_places_are_refused(backend: Any, mixed: str) -> None:
    h = Written(backend)

    def model(y: Any) -> None:
        slope = h.sample("slope", h.dist.Normal(0.0, 1.0))
        with h.plate("rows", 6):
            z = h.sample("z", h.dist.Bernoulli(0.3))
            if "sum of" not in mixed and mixed != "sum":
                mean = slope * MIXED[mixed](h.xp, h.number(z))
                h.sample("y", h.dist.Normal(mean, 1.0), obs=y)
        if "sum of" in mixed or mixed == "sum":
            h.sample("total", h.dist.Normal(slope * MIXED[mixed](h.xp, z), 1.0), obs=y[0])

    y = backend.array(np.random.default_rng(0).normal(size=6))
    with pytest.raises(backend.public.ModelCheckError, match="'z' have all their values at once"):
        backend.target(model, (y,))


def test_a_lookup_of_groups_is_refused(backend: Any) -> None:
    h, groups = Written(backend), backend.array(np.array([0, 0, 1, 1, 2, 2]))

    def model(y: Any) -> None:
        slope = h.sample("slope", h.dist.Normal(0.0, 1.0))
        with h.plate("groups", 3):
            z = h.sample("z", h.dist.Bernoulli(0.3))
        with h.plate("rows", 6):
            h.sample("y", h.dist.Normal(slope * z[..., groups], 1.0), obs=y)

    y = backend.array(np.random.default_rng(0).normal(size=6))
    with pytest.raises(backend.public.ModelCheckError, match="'z' have all their values at once"):
        backend.target(model, (y,))


def test_steps_that_mix_the_places_of_a_plate_are_refused(backend: Any) -> None:
    """Of a ``scan`` as well, whose first step stands apart."""
    h = Written(backend)

    def model(y: Any, mixed: str) -> None:
        slope = h.sample("slope", h.dist.Normal(0.0, 1.0))
        chances, series = (
            backend.array(np.array([[0.6, 0.4], [0.1, 0.9]])),
            h.plate_of_steps("series", 3),
        )

        def step(name: Any, z: Any, row: Any) -> Any:
            with series():
                before = h.xp.roll(z, 1, -1) if mixed == "states" else z
                z = h.sample(name("z"), h.dist.Categorical(chances[before]))
                shift = h.xp.cumsum(z, -1) if mixed == "observations" else z
                h.sample(name("y"), h.dist.Normal(slope * shift, 1.0), obs=row)
            return z

        h.chain(step, h.arange(3) * 0, y)

    y = backend.array(np.random.default_rng(0).normal(size=(4, 3)))
    backend.target(model, (y, "nothing"))
    for mixed in ("observations", "states"):
        with pytest.raises(backend.public.ModelCheckError, match="have all their values at once"):
            backend.target(model, (y, mixed))


@pytest.mark.parametrize(
    ("family", "steps"),
    [(stats.norm, 4), (stats.halfnorm, 4), (stats.halfnorm, 1)],
    ids=["real", "positive", "one step"],
)
def test_continuous_sites_of_steps_with_a_discrete_one(
    backend: Any, family: Any, steps: int
) -> None:
    """Of a ``scan``, whose first step stands apart, and may be the only one."""
    h, chances = Written(backend), np.array([[0.8, 0.2], [0.3, 0.7]])
    numbers, positive = np.array([0.1, 0.5, 2.0, 1.9])[:steps], family is stats.halfnorm

    def model(y: Any) -> None:
        m = h.sample("m", h.dist.Normal(backend.xp.zeros(2), 2.0).to_event(1))

        def step(name: Any, z: Any, row: Any) -> Any:
            own = h.dist.HalfNormal(1.0) if positive else h.dist.Normal(0.0, 1.0)
            u = h.sample(name("u"), own)
            z = h.sample(name("z"), h.dist.Categorical(backend.array(chances)[z]))
            h.sample(name("y"), h.dist.Normal(m[z] + h.xp.exp(u), 1.0), obs=row)
            return z

        h.chain(step, 0, y)

    target, data = backend.target(model, (backend.array(numbers),))
    z = positions(target, 3)
    split = target.full_log_prior_and_likelihood(backend.array(z), data)
    prior, likelihood = (backend.numpy(part) for part in split)
    for row, *found in zip(z, prior, likelihood, strict=True):
        split = target.layout.split(backend.array(row))
        parts = {name: backend.numpy(value) for name, value in split.items()}
        m, logs = parts["m"], np.concatenate([np.ravel(parts[n]) for n in parts if n[0] == "u"])
        logs, log_determinant = (np.exp(logs), logs.sum()) if positive else (logs, 0.0)
        constrained = target.constrain(backend.array(row[None]), data)
        given = [backend.numpy(constrained[n]) for n in constrained if n[0] == "u"]
        np.testing.assert_allclose(np.concatenate([np.ravel(each) for each in given]), logs)
        again = target.unconstrain(constrained, data)
        np.testing.assert_allclose(backend.numpy(again), row[None], **ROUNDING)
        expected = stats.norm.logpdf(m, scale=2.0).sum() + family.logpdf(logs).sum()
        expected += log_determinant
        paths = []
        for path in itertools.product((0, 1), repeat=steps):
            before = (0, *path[:-1])
            density = stats.norm.logpdf(numbers, m[list(path)] + np.exp(logs)).sum()
            paths.append(density + np.log(chances[before, path]).sum())
        np.testing.assert_allclose(found, [expected, special.logsumexp(paths)], **ROUNDING)


@pytest.mark.parametrize("inside", [True, False])
def test_places_mixed_by_a_discrete_site_are_refused(backend: Any, inside: bool) -> None:
    """Nothing that is observed mixes them: another discrete site's probabilities do."""
    h = Written(backend)

    def model(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        with h.plate("rows", 3):
            a = h.sample("a", h.dist.Bernoulli(h.full((), 0.3)))
            if inside:
                b = h.sample("b", h.dist.Bernoulli(logits=h.xp.cumsum(a, -1) - 1.0))
                h.sample("y", h.dist.Normal(mean + 2.0 * b, 1.0), obs=y)
        if not inside:
            b = h.sample("b", h.dist.Bernoulli(logits=a.sum(-1) - 1.0))
            h.sample("y", h.dist.Normal(mean + 2.0 * b, 1.0), obs=y[0])

    y = backend.array(np.random.default_rng(0).normal(size=3))
    with pytest.raises(backend.public.ModelCheckError, match="have all their values at once"):
        backend.target(model, (y,))


def test_values_of_which_some_are_all_but_impossible(backend: Any) -> None:
    """Outliers in single precision's sense, and sites where nothing can be seen, are no fault."""
    h, numbers = Written(backend), np.array([1.2, 0.3, -2.5, 3.0, 0.1, 250.0])

    def outliers(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 5.0))
        with h.plate("rows", len(y)):
            z = h.sample("z", h.dist.Bernoulli(h.full((), 0.9)))
            deviation = h.xp.where(z == 1, h.full((), 0.1), h.full((), 10.0))
            h.sample("y", h.dist.Normal(mean, deviation), obs=y)

    def occupancy(seen: Any) -> None:
        chance = h.sample("chance", h.dist.Normal(0.0, 1.0))
        seen_there = 1.0 / (1.0 + h.xp.exp(-chance))
        with h.plate("places", len(seen)):
            z = h.sample("z", h.dist.Bernoulli(h.full((), 0.6)))
            h.sample("y", h.dist.Binomial(3, h.number(z) * seen_there), obs=seen)

    z = backend.array([[0.3]])
    target, data = backend.target(outliers, (backend.array(numbers),))
    shares = np.log([[0.1], [0.9]])
    terms = shares + stats.norm.logpdf(numbers, 0.3, np.array([[10.0], [0.1]]))
    expected = stats.norm.logpdf(0.3, 0.0, 5.0) + special.logsumexp(terms, 0).sum()
    np.testing.assert_allclose(backend.numpy(target.log_density(z, data))[0], expected)
    counts = np.array([0.0, 2.0, 0.0, 3.0])
    target, data = backend.target(occupancy, (backend.array(counts),))
    rows = 0.6 * stats.binom.pmf(counts, 3, special.expit(0.3)) + 0.4 * (counts == 0)
    expected = stats.norm.logpdf(0.3) + np.log(rows).sum()
    np.testing.assert_allclose(backend.numpy(target.log_density(z, data))[0], expected)


def test_totals_of_a_binomial(backend: Any) -> None:
    """Those that differ have no list of values."""
    h = Written(backend)

    def model(total: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        with h.plate("rows", 3):
            k = h.sample("k", h.dist.Binomial(total, h.full((), 0.3)))
            h.sample("y", h.dist.Normal(mean + k, 1.0), obs=y)

    numbers = np.array([0.3, 1.9, 2.5])
    y = backend.array(numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationWarning)
        target, data = backend.target(model, (3,))
        found = backend.numpy(target.log_density(backend.array([[0.5]]), data))[0]
    values = np.arange(4.0)[:, None]
    terms = stats.binom.logpmf(values, 3, 0.3) + stats.norm.logpdf(numbers, 0.5 + values)
    expected = stats.norm.logpdf(0.5) + special.logsumexp(terms, 0).sum()
    np.testing.assert_allclose(found, expected)
    with pytest.raises(backend.public.ModelCheckError, match="'k' cannot be listed.*Categorical"):
        backend.target(model, (backend.array(np.array([1, 2, 3])),))
