"""The targets of both packages, by hand, in float64.

Against the hosts' own potentials, and against each other, they stand in
``test_host_potentials.py`` for every model of the zoo. Tolerances are float64 rounding.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from ppl_ext.errors import ArgumentError, HeldParameterWarning, ModelCheckError
from tests.backends import use_float64
from tests.density_support import positions, rows, single_precision, strategies

use_float64()

X = np.linspace(-1.0, 2.0, 20)
Y = np.sin(3.0 * X) + 0.1 * X**2


def close(backend: Any, found: Any, expected: Any, rounding: float = 1e-10) -> None:
    """See that two arrays of one size agree to rounding."""
    expected = np.asarray(backend.numpy(expected))
    tolerance = rounding * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(backend.numpy(found), expected, rtol=rounding, atol=tolerance)


def supports(backend: Any) -> Any:
    """One site of each kind of support, one of them dependent on another site."""
    host, dist = backend.host, backend.dist

    def model() -> None:
        a = host.sample("a", dist.LogNormal(0.3, 0.7))
        host.sample("b", dist.Uniform(0.0, a))
        host.sample("c", dist.Dirichlet(backend.array([1.0, 2.0, 3.0])))
        host.sample("d", dist.LKJCholesky(3, 2.0))
        with host.plate("rows", 4):
            host.sample("e", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))

    return model


def local(backend: Any) -> Any:
    """A local latent with a Jacobian, whose rows the engine chooses."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        scale = host.sample("scale", dist.LogNormal(0.0, 1.0))
        with host.plate("N", len(x), subsample_size=5) as i:
            weight = host.sample("weight", dist.Gamma(2.0, scale))
            host.sample("y", dist.Normal(weight * x[i], scale), obs=y[i])

    return model


def local_target(backend: Any, **options: Any) -> tuple[Any, Any]:
    return backend.target(local(backend), (backend.array(X), backend.array(Y)), **options)


def test_prior_and_likelihood_are_split_by_kind_of_site(backend: Any) -> None:
    host, dist, y = backend.host, backend.dist, np.array([0.3, -0.4, 1.1])

    def model(y: Any) -> None:
        z = host.sample("z", dist.Exponential(2.0))
        host.factor("outside", -3.0 * z)
        with host.plate("N", len(y), subsample_size=2) as i:
            local = host.sample("local", dist.Exponential(5.0))
            host.factor("inside", -7.0 * local)
            host.sample("y", dist.Normal(z, 1.0), obs=y[i])

    target, data = backend.target(model, (backend.array(y),), likelihood_temperature=0.5)
    u = np.array([0.2, -0.3, 0.1, 0.4])  # log z, log local
    chosen = np.array([2, 0])
    z, local = np.exp(u[0]), np.exp(u[1:])[chosen]
    prior = np.log(2.0) - 2.0 * z + u[0] - 3.0 * z
    prior += 1.5 * np.sum(np.log(5.0) - 5.0 * local + np.log(local))
    likelihood = 1.5 * np.sum(-7.0 * local + stats.norm.logpdf(y[chosen], z))
    at, indices = backend.array(u[None]), rows(backend, N=chosen)
    found = target.score(at, data, indices)
    close(backend, found.log_prior, [prior])
    close(backend, found.log_likelihood, [likelihood])
    for tempered in (target.log_density(at, data, indices), found.log_density(0.5)):
        close(backend, tempered, [prior + likelihood / 0.5])
    parts = target.score_parts(at, data, indices)
    close(backend, found.score, parts.prior + parts.likelihood / 0.5)
    close(backend, parts.score(0.5).score, found.score)
    close(backend, target.full_log_density(at, data), target.full_score(at, data).log_density(0.5))
    for coordinate in range(4):
        shift = np.zeros((1, 4))
        shift[0, coordinate] = 1e-6
        up, down = (
            target.log_density(backend.array(u + step), data, indices) for step in (shift, -shift)
        )
        slope = (backend.numpy(up) - backend.numpy(down)) / 2e-6
        np.testing.assert_allclose(backend.numpy(found.score)[:, coordinate], slope, rtol=1e-6)


def test_nested_plates_scale_mask_and_factor(backend: Any) -> None:
    host, dist, handlers = backend.host, backend.dist, backend.handlers

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        spread = host.sample("spread", dist.Exponential(1.0))
        columns = host.plate("columns", 9, subsample_size=3, dim=-1)
        with host.plate("rows", 8, subsample_size=2, dim=-2) as i, handlers.scale(scale=0.5):
            effect = host.sample("effect", dist.LogNormal(mean, 1.0))
            with columns as j:
                cell = y[i[:, None], j]
                with handlers.mask(mask=cell > -0.5):
                    host.sample("y", dist.Normal(effect, spread), obs=cell)
        host.factor("outer", -(mean**4))

    y = np.random.default_rng(2).normal(size=(8, 9))
    target, data = backend.target(model, (backend.array(y),), data_chunk=6)
    z = positions(target)
    mean, log_spread, effect = z[:, 0], z[:, 1], z[:, 2:]
    prior = stats.norm.logpdf(mean) - mean**4 - np.exp(log_spread) + log_spread
    # The log normal density of exp(u) with its Jacobian u is the normal density of u.
    prior += (0.5 * (stats.norm.logpdf(effect, mean[:, None]) - effect) + effect).sum(-1)
    spread = np.exp(log_spread)[:, None, None]
    likelihood = stats.norm.logpdf(y, np.exp(effect)[..., None], spread)
    likelihood = 0.5 * np.where(y > -0.5, likelihood, 0.0).sum((-1, -2))
    found = target.full_log_prior_and_likelihood(backend.array(z), data)
    close(backend, found[0], prior)
    close(backend, found[1], likelihood)
    # The average over the product of all minibatches is the full log density.
    total = sum(
        backend.numpy(
            target.log_density(backend.array(z), data, rows(backend, rows=i, columns=j)) / 12
        )
        for i in np.arange(8).reshape(4, 2)
        for j in np.arange(9).reshape(3, 3)
    )
    np.testing.assert_allclose(total, prior + likelihood, rtol=1e-10)


def test_handlers_leave_jacobians_alone(backend: Any) -> None:
    """A density that is masked or to a power is that of the site's values, not of positions."""
    handlers, dist = backend.handlers, backend.dist
    keep = np.array([True, False, True])

    def model() -> None:
        with backend.host.plate("rows", 3), handlers.mask(mask=backend.array(keep)):
            with handlers.scale(scale=2.0):
                backend.host.sample("a", dist.LogNormal(0.0, 1.0))

    target, data = backend.target(model)
    z = np.array([[0.3, -1.0, 2.0]])
    expected = 2.0 * stats.lognorm.logpdf(np.exp(z), 1.0)[:, keep].sum(-1) + z.sum(-1)
    close(backend, target.log_density(backend.array(z), data), expected)


@pytest.mark.parametrize("how", ["mask", "scale", "distribution"])
def test_a_flat_prior_is_flat_in_the_values_of_its_site(backend: Any, how: str) -> None:
    """All ways to write it give the Beta posterior, not one that leans to the ends."""
    host, dist, handlers = backend.host, backend.dist, backend.handlers
    array, off = backend.array, backend.array(np.array(False))
    ways: dict[str, Any] = {
        "mask": lambda: handlers.mask(mask=off),
        "scale": lambda: handlers.scale(scale=1e-9),
    }

    def model(y: Any) -> None:
        prior = dist.Beta(array(5.0), array(5.0))
        with ways.get(how, contextlib.nullcontext)():
            p = host.sample("p", prior.mask(off) if how == "distribution" else prior)
        with host.plate("rows", 8):
            host.sample("y", dist.Bernoulli(p), obs=y)

    y = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    target, data = backend.target(model, (array(y),))
    z = np.linspace(-3.0, 3.0, 7)[:, None]
    p = special.expit(z)[:, 0]
    expected = stats.beta.logpdf(p, 8.0, 2.0) + np.log(p * (1.0 - p))
    found = backend.numpy(target.log_density(array(z), data)) - expected
    np.testing.assert_allclose(found, found[0], atol=1e-7)


def test_minibatches_touch_their_rows_of_local_latents_and_average_to_all(backend: Any) -> None:
    target, data = local_target(backend)
    assert target.local_sites == ("weight",)
    assert target.layout.shapes == {"scale": (), "weight": (20,)}
    z = backend.array(positions(target))
    full = target.full_score(z, data)
    parts = np.random.default_rng(1).permutation(20).reshape(4, 5)
    batches = [target.score(z, data, rows(backend, N=part)) for part in parts]
    for name in full._fields:
        mean = sum(backend.numpy(getattr(batch, name)) for batch in batches) / len(batches)
        close(backend, mean, getattr(full, name))
    moved = backend.numpy(batches[0].score)[:, target.layout.slices["weight"]] != 0.0
    np.testing.assert_array_equal(moved, np.isin(np.arange(20), parts[0])[None].repeat(3, 0))


def test_local_latents_with_events_take_their_rows(backend: Any) -> None:
    host, dist, y = backend.host, backend.dist, Y[:6]

    def model(y: Any) -> None:
        with host.plate("rows", len(y), subsample_size=2) as i:
            p = host.sample("p", dist.Dirichlet(backend.array([1.0, 2.0, 3.0])))
            host.sample("y", dist.Normal(p[..., 0] - p[..., 2], 0.5), obs=y[i])

    target, data = backend.target(model, (backend.array(y),))
    z = positions(target)
    p = backend.numpy(target.constrain(backend.array(z), data)["p"])
    assert p.shape == (3, 6, 3)
    # The first sites alone say what each row adds: their differences are free of the Jacobian.
    everything = target.log_prior_and_likelihood(
        backend.array(z), data, rows(backend, rows=range(6))
    )
    by_row = stats.norm.logpdf(y, p[..., 0] - p[..., 2], 0.5)
    close(backend, everything[1], by_row.sum(-1))
    single = [
        target.log_prior_and_likelihood(backend.array(z), data, rows(backend, rows=[row]))
        for row in range(6)
    ]
    for chosen in ([4, 1], [0, 5]):
        found = target.log_prior_and_likelihood(backend.array(z), data, rows(backend, rows=chosen))
        close(backend, found[1], 3.0 * by_row[:, chosen].sum(-1))
        close(backend, found[0], sum(backend.numpy(single[row][0]) for row in chosen) / 2.0)
    close(backend, everything[0], sum(backend.numpy(prior) for prior, _ in single) / 6.0)
    # All rows in any order are the full data.
    backwards = target.score(backend.array(z), data, rows(backend, rows=range(5, -1, -1)))
    close(backend, backwards.score, target.full_score(backend.array(z), data).score)


# Sweeps of seven rows at a time test_host_potentials.py compares for every model of the zoo.
@pytest.mark.parametrize(
    "chunk", [*(pytest.param(each, marks=pytest.mark.slow) for each in (1, 7)), 19]
)
def test_chunked_sweep_equals_a_single_sweep(backend: Any, chunk: int) -> None:
    target, data = local_target(backend, data_chunk=chunk, particle_chunk=2)
    z = backend.array(positions(target))
    single = target.score_parts(z, data, rows(backend, N=range(20)))
    for one, two in zip(single, target.full_score_parts(z, data), strict=True):
        close(backend, two, one)
    for other in (None, 1, 6, 1000):
        swept = target.sweep(other)
        assert sum(weight for weight, _ in swept) == pytest.approx(1.0, abs=1e-14)
        seen = np.concatenate([backend.numpy(indices["N"]) for _, indices in swept])
        np.testing.assert_array_equal(np.sort(seen), np.arange(20))
    by_hand = sum(
        weight * backend.numpy(target.score_parts(z, data, indices).likelihood)
        for weight, indices in target.sweep(6)
    )
    close(backend, by_hand, single.likelihood)


def test_the_sweep_of_several_plates_is_the_product_of_their_chunks(backend: Any) -> None:
    from ppl_ext.target.layouts import DataPlate, sweep_ranges

    plates = {"a": DataPlate("a", 5, 2, -1), "b": DataPlate("b", 4, 3, -2)}
    chunks = sweep_ranges(plates, 9)  # three rows of each
    cells = [cell for _, ranges in chunks for cell in itertools.product(ranges["a"], ranges["b"])]
    assert sorted(cells) == list(itertools.product(range(5), range(4)))
    assert [(len(r["a"]), len(r["b"])) for _, r in chunks] == [(3, 3), (3, 1), (2, 3), (2, 1)]
    np.testing.assert_allclose([weight for weight, _ in chunks], np.array([9, 3, 6, 2]) / 20)
    assert len(sweep_ranges(plates, 20)) == 1 and sweep_ranges({}, 3) == [(1.0, {})]


def test_constrain_and_unconstrain_are_inverse(backend: Any) -> None:
    target, data = backend.target(supports(backend))
    z = 3.0 * positions(target, 20)
    values = target.constrain(backend.array(z), data)
    assert tuple(values) == target.layout.names == ("a", "b", "c", "d", "e")
    assert values["e"].shape == (20, 4, 2)
    a, b = backend.numpy(values["a"]), backend.numpy(values["b"])
    close(backend, a, np.exp(z[:, 0]))
    close(backend, b, a / (1 + np.exp(-z[:, 1])))  # the support of this draw's own a
    close(backend, target.unconstrain(values, data), z, 1e-8)
    target, data = local_target(backend)
    z = positions(target, 4)
    values = target.constrain(backend.array(z), data)
    assert values["weight"].shape == (4, 20)
    close(backend, target.unconstrain(values, data), z)
    del values["weight"]
    with pytest.raises(ArgumentError, match=r"latent sites \['scale', 'weight'\], missing"):
        target.unconstrain(values, data)


def test_layout_splits_and_joins_in_trace_order(backend: Any) -> None:
    def model() -> None:
        backend.host.sample("z", backend.dist.Dirichlet(backend.array(np.ones(3))))
        normal = backend.dist.Normal(backend.array(np.zeros((2, 2))), 1.0)
        backend.host.sample("a", normal.to_event(2))

    layout = backend.target(model)[0].layout
    assert layout.names == ("z", "a") and layout.dim == 6
    assert layout.slices == {"z": slice(0, 2), "a": slice(2, 6)}
    flat = np.arange(12.0).reshape(2, 6)
    sites = layout.split(backend.array(flat))
    np.testing.assert_array_equal(backend.numpy(sites["z"]), [[0, 1], [6, 7]])
    assert sites["a"].shape == (2, 2, 2)
    np.testing.assert_array_equal(backend.numpy(layout.join(sites)), flat)


def test_rows_of_each_position_apart(backend: Any) -> None:
    chosen = np.stack([np.arange(5), np.arange(5) + 3, np.arange(5) * 2])
    modes = ({}, {"particle_chunk": 2}, {"evaluation": "loop"})
    for options in modes if backend.name == "pyro" else modes[:2]:
        target, data = local_target(backend, **options)
        z = backend.array(positions(target))
        found = target.score(z, data, rows(backend, N=chosen))
        for p in range(3):
            alone = target.score(z[p : p + 1], data, rows(backend, N=chosen[p]))
            for one, other in zip(found, alone, strict=True):
                close(backend, one[p], other[0])
    with pytest.raises(ArgumentError, match=r"of shape \(P, rows\) for every plate at P = 3"):
        target.score(z, data, rows(backend, N=chosen[:2]))


def test_wrong_calls_say_what_was_expected(backend: Any) -> None:
    target, data = local_target(backend)
    z = backend.array(positions(target))
    with pytest.raises(ArgumentError, match=r"Expected the rows of plate 'N'.* found none.*full_"):
        target.score(z, data)
    with pytest.raises(ArgumentError, match=r"\['N'\], found \['M'\]"):
        target.score(z, data, rows(backend, M=range(2)))
    with pytest.raises(ArgumentError, match=r"shape \(P, 21\)"):
        target.score(z[0], data, rows(backend, N=range(2)))
    with pytest.raises(ArgumentError, match="missing a required argument: 'y'"):
        target.bind(X)
    with pytest.raises(ArgumentError, match=r"Expected model\(x.*found 3 positional"):
        target.bind(1, 2, 3)
    with pytest.raises(ArgumentError, match="num to be an int >= 1"):
        target.initial_positions(0, backend.key(), data)
    with pytest.raises(ArgumentError, match="chunk to be an int >= 1"):
        target.sweep(0)
    for option, value in (
        ("likelihood_temperature", 0.0),
        ("particle_chunk", 0),
        ("data_chunk", 1.5),
    ):
        with pytest.raises(ArgumentError, match=f"Expected {option} to be"):
            local_target(backend, **{option: value})
    for option in ({"data_chunk": 2}, {"likelihood_temperature": 2.0}):
        model = supports(backend)
        model.parameter_sites = ("a",)
        with pytest.raises(ArgumentError, match="has nothing to divide"):
            backend.target(model, **option)


def test_initial_positions_follow_the_init_strategy(backend: Any) -> None:
    init = strategies(backend)
    model, value = supports(backend), {"a": backend.array(2.0)}
    for strategy in (
        init.init_to_uniform,
        init.init_to_sample,
        init.init_to_value(values=value),
    ):
        target, data = backend.target(model, init_strategy=strategy)
        z, again = (target.initial_positions(6, backend.key(), data) for _ in range(2))
        np.testing.assert_array_equal(backend.numpy(z), backend.numpy(again))
        assert len(np.unique(backend.numpy(z), axis=0)) == 6
        assert np.isfinite(backend.numpy(target.log_density(z, data))).all()
    close(backend, target.constrain(z, data)["a"], np.full(6, 2.0))

    def normal() -> None:
        backend.host.sample("z", backend.dist.LogNormal(0.0, 0.5))

    target, data = backend.target(normal, init_strategy=init.init_to_median(num_samples=2001))
    z = backend.numpy(target.initial_positions(3, backend.key(3), data))
    # The median of 2001 normal draws with sd 0.5 has sd 0.5 * 1.2533 / sqrt(2001) = 0.014.
    assert np.abs(z).max() < 5 * 0.014
    for radius in (0.1, 3.0):
        target, data = backend.target(normal, init_strategy=init.init_to_uniform(radius=radius))
        z = backend.numpy(target.initial_positions(100, backend.key(), data))
        # The largest of 100 uniform numbers is below 0.9 with probability 3e-5.
        assert 0.9 * radius < np.abs(z).max() <= radius


def test_prior_positions_are_draws_of_the_prior_in_unconstrained_space(backend: Any) -> None:
    """Of sites whose supports and distributions depend on each other; data have no part in them."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        scale = host.sample("scale", dist.LogNormal(0.5, 0.3))
        below = host.sample("below", dist.Uniform(0.0, scale))
        with host.plate("rows", 3):
            effects = host.sample("effects", dist.Normal(below, 2.0))
            host.sample("y", dist.Normal(effects, 0.01), obs=y)

    y = backend.array(np.array([50.0, 60.0, 70.0]))
    (target, data), number = backend.target(model, (y,)), 400
    z = backend.numpy(target.prior_positions(number, backend.key(1), data))
    assert z.shape == (number, 5)
    error = 4.0 / np.sqrt(number)
    assert abs(z[:, 0].mean() - 0.5) < 0.3 * error
    assert z[:, 0].std() == pytest.approx(0.3, rel=error)
    # A uniform share of the interval is a logistic draw.
    assert abs(z[:, 1].mean()) < np.pi / np.sqrt(3.0) * error
    effects = z[:, 2:] - (np.exp(z[:, 0]) / (1.0 + np.exp(-z[:, 1])))[:, None]
    assert np.abs(effects.mean(0)).max() < 2.0 * error
    np.testing.assert_allclose(effects.std(0), 2.0, rtol=error)
    again = target.prior_positions(number, backend.key(1), data)
    np.testing.assert_array_equal(z, backend.numpy(again))


def test_prior_positions_draw_discrete_sites_and_need_a_distribution_with_draws(
    backend: Any,
) -> None:
    host, dist = backend.host, backend.dist

    def mixed() -> None:
        infer = {"enumerate": "parallel"}
        which = host.sample("which", dist.Categorical(backend.array([0.25, 0.75])), infer=infer)
        host.sample("x", dist.Normal(10.0 * which, 1.0))

    target, data = backend.target(mixed)
    z = backend.numpy(target.prior_positions(400, backend.key(1), data))
    assert z.shape == (400, 1)
    assert abs((z > 5.0).mean() - 0.75) < 4.0 * np.sqrt(0.1875 / 400)

    def improper() -> None:
        real = dist.constraints.real
        x = host.sample("x", dist.ImproperUniform(real, (), ()))
        host.factor("f", -0.5 * x**2)

    target, data = backend.target(improper)
    with pytest.raises(NotImplementedError):
        target.prior_positions(3, backend.key(), data)


def test_initial_positions_are_drawn_again_until_finite(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(least: float) -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        zero = backend.array(0.0)
        host.factor("positive", xp.where(z > least, zero, zero - np.inf))

    target, data = backend.target(model, (0.0,))
    z = backend.numpy(target.initial_positions(40, backend.key(4), data))
    assert (z > 0.0).all() and len(np.unique(z)) == 40
    with pytest.raises(ModelCheckError, match="Cannot find valid initial parameters") as raised:
        target, data = backend.target(model, (9.0,))
        target.initial_positions(2, backend.key(), data)
    assert "'positive'" in str(raised.value) and "'z'" not in str(raised.value)
    assert "-inf" in str(raised.value)


def test_a_position_that_is_drawn_again_is_independent_of_the_one_before(backend: Any) -> None:
    """Half of the draws are refused for the second site, which says nothing of the first."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        host.sample("first", dist.Normal(0.0, 1.0))
        second = host.sample("second", dist.Normal(0.0, 1.0))
        zero = backend.array(0.0)
        host.factor("positive", xp.where(second > 0.0, zero, zero - np.inf))

    (target, data), number = backend.target(model), 400
    z = backend.numpy(target.initial_positions(number, backend.key(1), data))
    # Uniform between -2 and 2.
    assert abs(z[:, 0].mean()) < 4.0 * 2.0 / np.sqrt(3.0 * number)


def test_improper_uniform_is_a_latent_like_any_other(backend: Any) -> None:
    host, dist, y = backend.host, backend.dist, np.array([1.0, 2.0, 0.5])

    def model(y: Any) -> None:
        z = host.sample("z", dist.ImproperUniform(backend.dist.constraints.positive, (), ()))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(z, 1.0), obs=y)

    target, data = backend.target(model, (backend.array(y),))
    target.initial_positions(2, backend.key(1), data)
    u = np.array([[0.4], [-0.2]])
    expected = np.sum(y - np.exp(u), axis=1, keepdims=True) * np.exp(u) + 1.0  # + Jacobian's
    close(backend, target.score(backend.array(u), data).score, expected)


def test_parameters_without_a_prior_are_held_with_a_warning(backend: Any) -> None:
    host, dist, shift = backend.host, backend.dist, backend.array(np.array([3.0, 0.5]))

    def model(y: Any) -> None:
        held = host.param("shift", shift if backend.is_pyro else lambda key: shift)
        z = host.sample("z", dist.Normal(held[0], 1.0))
        host.sample("y", dist.Normal(z + held[1], 1.0), obs=y)

    if backend.is_pyro:
        host.param("other", backend.array(5.0))
    with pytest.warns(HeldParameterWarning, match="shift"):
        target, data = backend.target(model, (backend.array(0.3),))
    z, expected = backend.array(np.array([[0.9]])), [[-(0.9 - 3.0) + (0.3 - 0.9 - 0.5)]]
    close(backend, target.score(z, data).score, expected)
    if backend.is_pyro:
        # The store is left alone.
        assert list(host.get_param_store()) == ["other"]
        return
    other = target.with_held({"shift": backend.array(np.array([1.0, 2.0]))})
    close(backend, other.score(z, data).score, [[-(0.9 - 1.0) + (0.3 - 0.9 - 2.0)]])
    close(backend, target.score(z, data).score, expected)
    with pytest.raises(ArgumentError, match="shift"):
        target.with_held({})


def test_float32_where_that_is_the_hosts_default(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def scalars(y: Any) -> None:
        scale = host.sample("scale", dist.HalfNormal(2.0))
        host.sample("y", dist.Normal(0.0, 2.0 * scale).expand([3]).to_event(1), obs=y)

    scale = np.exp(0.3)
    by_hand = -(scale**2) / 4 + 1 - 3 + 5.01 / (4 * scale**2)
    with single_precision(backend):
        target, data = backend.target(scalars, (backend.array(np.array([0.1, -1.0, 2.0])),))
        score = target.score(backend.array(np.array([[0.3]])), data).score
        np.testing.assert_allclose(backend.numpy(score), [[by_hand]], rtol=1e-5)
        target, data = local_target(backend, data_chunk=7)
        z = target.initial_positions(2, backend.key(1), data)
        found = backend.numpy(target.full_score(z, data).score)
        z = backend.numpy(z)
        assert backend.numpy(score).dtype == z.dtype == found.dtype == np.float32
    target, data = local_target(backend)
    exact = backend.numpy(target.full_score(backend.array(z.astype(float)), data).score)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_outputs_are_the_observed_distributions_and_differentiable(backend: Any) -> None:
    target, data = local_target(backend)
    chosen = np.array([1, 2, 3, 5, 8])
    indices, z = rows(backend, N=chosen), backend.array(positions(target, 1)[0])

    def locations(z: Any) -> Any:
        return target.outputs(z, data, indices)["y"].parameters["loc"]

    output = target.outputs(z, data, indices)["y"]
    assert output.distribution.__name__ == "Normal"
    assert float(output.scale) == 4.0 and output.event_dim == 0
    close(backend, output.value, Y[chosen])
    expected = np.exp(backend.numpy(target.layout.split(z)["weight"]))[chosen] * X[chosen]
    close(backend, output.parameters["loc"], expected)
    jacobian = backend.numpy(backend.transforms.jacrev(locations)(z))
    jacobian = jacobian[:, target.layout.slices["weight"]][:, chosen]
    close(backend, jacobian, np.diag(expected))


def test_outputs_name_the_parameters_that_the_model_chose(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    one, classes = backend.array(1.0), backend.array(np.array([0, 1, 1]))

    def model() -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        host.sample("u", dist.Bernoulli(logits=a), obs=one)
        host.sample("v", dist.Bernoulli(probs=1.0 / (1.0 + xp.exp(-a))), obs=one)
        both = dist.Categorical(logits=xp.stack([a, 2 * a]))
        host.sample("w", both.expand([3]).to_event(1).mask(True), obs=classes)

    target, data = backend.target(model)
    outputs = target.outputs(backend.array(np.array([0.7])), data)
    found = {name: list(output.parameters) for name, output in outputs.items()}
    assert found == {"u": ["logits"], "v": ["probs"], "w": ["logits"]}
    assert outputs["w"].event_dim == 1


def test_masks_between_event_dimensions_are_of_whole_rows(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    generator = np.random.default_rng(0)
    values, keep = generator.normal(size=(4, 3, 2)), generator.random((4, 3)) < 0.5

    def model() -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        each = dist.Normal(mean, 1.0).expand([4, 3, 2]).to_event(1)
        host.sample("y", each.mask(backend.array(keep)).to_event(1), obs=backend.array(values))

    target, data = backend.target(model)
    z = backend.array(np.array([0.3]))
    output = target.outputs(z, data)["y"]
    elements = np.broadcast_to(keep[..., None], values.shape)
    np.testing.assert_array_equal(backend.numpy(output.mask), elements)
    _, likelihood = target.log_prior_and_likelihood(z[None], data)
    terms = -0.5 * (values - 0.3) ** 2 - 0.5 * np.log(2.0 * np.pi)
    close(backend, likelihood[0], terms[keep].sum())


def test_predictions_leave_out_rows_that_a_mask_inside_an_event_hides(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    keep, values = np.array([[True], [False], [True], [True]]).repeat(3, 1), np.zeros((4, 3, 2))

    def model() -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        rows = dist.Normal(mean, 1.0).expand([4, 3, 2]).to_event(1).mask(backend.array(keep))
        with host.plate("rows", 4):
            host.sample("y", rows.to_event(1), obs=backend.array(values))

    draws = {"mean": backend.array(np.array([0.3, 0.4]))}
    found = backend.public.predictive_distribution(model, draws)
    np.testing.assert_array_equal(found["row"], [0, 2, 3])
    assert found["mean"].shape[:2] == (2, 3)


def test_outputs_rebuild_the_likelihood(backend: Any) -> None:
    host, dist, xp, x = (
        backend.host,
        backend.dist,
        backend.xp,
        np.random.default_rng(0).normal(size=(6, 2)),
    )
    keep = np.array([True, False, True])

    def model(x: Any, batch: int | None = None) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        host.factor("pull", -(w**4).sum())
        with host.plate("N", len(x), subsample_size=batch) as i:
            logits = x[i] * w
            host.sample("b", dist.Bernoulli(logits=logits).to_event(1), obs=xp.ones_like(logits))
        with backend.handlers.mask(mask=backend.array(keep)):
            n = dist.Normal(w[0], xp.exp(w[1])).expand([3])
            host.sample("n", n, obs=backend.array(np.arange(3.0)))

    target, data = backend.target(model, (backend.array(x), 2))
    z, indices = backend.array(np.array([0.3, -0.2])), rows(backend, N=[1, 4])
    outputs = target.outputs(z, data, indices)
    assert set(outputs) == {"b", "n"}
    b, n = outputs["b"], outputs["n"]
    assert b.event_dim == 1 and float(b.scale) == 3.0
    close(backend, b.parameters["logits"], x[[1, 4]] * [0.3, -0.2])
    assert n.distribution.__name__ == "Normal" and n.parameters["scale"].shape == (3,)
    np.testing.assert_array_equal(backend.numpy(n.mask), keep)
    by_row, by_element = (
        backend.numpy(each.distribution(**each.parameters).log_prob(each.value)) for each in (b, n)
    )
    _, likelihood = target.log_prior_and_likelihood(z[None], data, indices)
    close(backend, likelihood[0], 3.0 * by_row.sum() + by_element[keep].sum())
    batched = backend.transforms.vmap(
        lambda z: target.outputs(z, data, indices)["n"].parameters["loc"]
    )
    assert batched(backend.array(np.zeros((5, 2)))).shape == (5, 3)
