"""Discrete latent sites after the fit, in float64: their posterior given draws of the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from benchmarks.discrete.programs import PROGRAMS, SERIES, K, Written
from tests.backends import use_float64

use_float64()

DRAWS = 400


def at_one_place(backend: Any, name: str, num: int) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Target and data of a program, and the same draw many times."""
    each = PROGRAMS[name]
    target, data = backend.target(each.build(backend), backend.arrays(each.arrays), each.options)
    z = np.random.default_rng(2).uniform(-1.0, 1.0, (1, target.dim))
    values = target.constrain(backend.array(z), data)
    return target, data, {k: np.repeat(backend.numpy(v), num, 0) for k, v in values.items()}


def replayed(backend: Any, name: str, num: int, **options: Any) -> tuple[Any, dict[str, Any]]:
    """What a program computes at the draw, and the draw."""
    target, data, draws = at_one_place(backend, name, num)
    found = backend.room("density.replay").replay(target, draws, data, **options)
    return found, {site: value[0] for site, value in draws.items()}


def logits(at: dict[str, Any]) -> np.ndarray:
    """Log joint density of each row and its component."""
    each = stats.norm.logpdf(SERIES[:, None], at["location"], at["scale"])
    return np.asarray(np.log(at["weights"]) + each)


def assert_shares(found: np.ndarray, expected: np.ndarray, draws: int = DRAWS) -> None:
    """See that means of indicators are shares, to five standard errors."""
    error = np.sqrt(expected * (1.0 - expected) / draws)
    assert np.all(np.abs(found - expected) < 5.0 * error + 1e-3), (found, expected)


def test_assignments_of_a_mixture(backend: Any) -> None:
    found, at = replayed(backend, "mixture", DRAWS, groups=("discrete", "log_likelihood"))
    terms = logits(at)
    drawn = np.stack([(found.discrete["z"] == value).mean(0) for value in range(K)], -1)
    assert_shares(drawn, special.softmax(terms, -1))
    np.testing.assert_allclose(found.log_likelihood["y"][0], special.logsumexp(terms, -1))
    assert found.sites["y"].likelihood == ((len(SERIES),), ("rows",))
    options = {"groups": ("discrete",), "discrete": "most probable"}
    best, _ = replayed(backend, "mixture", 1, **options)
    np.testing.assert_array_equal(best.discrete["z"][0], terms.argmax(-1))


def test_paths_of_a_hidden_markov_model(backend: Any) -> None:
    def path(found: Any) -> np.ndarray:
        if not backend.is_pyro:
            return np.asarray(found.discrete["z"])
        return np.stack([found.discrete[f"z_{t}"] for t in range(len(SERIES))], -1)

    found, at = replayed(backend, "hidden_markov", DRAWS, groups=("discrete", "log_likelihood"))
    moves, emissions = np.log(at["transitions"]), logits({**at, "scale": 1.0, "weights": 1.0})
    paths = np.array(list(itertools.product(range(K), repeat=len(SERIES))))
    terms = sum(
        moves[paths[:, t - 1] if t else 0, paths[:, t]] + emissions[t, paths[:, t]]
        for t in range(len(SERIES))
    )
    (log_likelihood,) = found.log_likelihood.values()
    np.testing.assert_allclose(log_likelihood[0], special.logsumexp(terms))
    weights, drawn = special.softmax(terms), path(found)
    # Pairs of neighbours, so that a draw of each step by itself would show.
    for t in range(1, len(SERIES)):
        for a, b in itertools.product(range(K), repeat=2):
            expected = weights @ ((paths[:, t - 1] == a) & (paths[:, t] == b))
            share = ((drawn[:, t - 1] == a) & (drawn[:, t] == b)).mean()
            assert_shares(np.asarray(share), np.asarray(expected))
    options = {"groups": ("discrete",), "discrete": "most probable"}
    best, _ = replayed(backend, "hidden_markov", 1, **options)
    np.testing.assert_array_equal(path(best)[0], paths[np.argmax(terms)])


def test_equally_probable_values_are_of_one_assignment(backend: Any) -> None:
    """One of two coins shows heads, and nothing says which: both or neither is no answer."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        half = backend.array(np.float32(0.5))
        first, second = (host.sample(name, dist.Bernoulli(half)) for name in ("first", "second"))
        loc = xp.where(first != second, backend.array(5.0), backend.array(0.0))
        with host.plate("rows", 3):
            host.sample("y", dist.Normal(loc + mean, 1.0), obs=y)

    target, data = backend.target(model, (backend.array(np.full(3, 5.0, np.float32)),))
    found = backend.room("density.replay").replay(
        target,
        {"mean": np.zeros(2, np.float32)},
        data,
        groups=("discrete",),
        discrete="most probable",
    )
    np.testing.assert_array_equal(found.discrete["first"] + found.discrete["second"], [1.0, 1.0])


def test_to_arviz_has_them_as_integers(backend: Any) -> None:
    each = PROGRAMS["mixture"]
    args = backend.arrays(each.arrays)
    fit = backend.fit(
        "SVGD",
        each.build(backend),
        backend.adam(0.05),
        num_particles=4,
        steps=2,
        args=args,
        kwargs=each.options,
    )
    state = () if backend.is_pyro else (fit.state,)
    plain = backend.public.to_arviz(fit.engine, *state, *args, **each.options)
    assert "z" not in plain.posterior
    assert plain.log_likelihood["y"].dims == ("chain", "draw", "rows")
    found = backend.public.to_arviz(
        fit.engine, *state, *args, discrete="most probable", **each.options
    )
    z = found.posterior["z"]
    assert z.dims == ("chain", "draw", "rows") and z.dtype.kind == "i"
    draw = {name: fit.samples[name][3] for name in ("weights", "location", "scale")}
    np.testing.assert_array_equal(z.values[0, 3], logits(draw).argmax(-1))
    with pytest.raises(backend.public.ArgumentError, match="discrete to be one of 'sample'"):
        backend.public.to_arviz(fit.engine, *state, *args, discrete="all", **each.options)


def test_predictions_average_over_the_prior_of_discrete_sites(backend: Any) -> None:
    # Rows are yet to be seen: z and y are both without values.
    h = Written(backend)

    def model(y: Any = None) -> None:
        share = h.sample("share", h.dist.Beta(1.0, 1.0))
        with h.plate("rows", 3):
            z = h.sample("z", h.dist.Bernoulli(share))
            h.sample("y", h.dist.Normal(2.0 * z, 1.0), obs=y)

    draws = {"share": backend.array(np.full(DRAWS, 0.3))}
    found = backend.public.predictive_distribution(model, draws)
    means = found["mean"].values
    assert set(np.unique(means)) == {0.0, 2.0}
    assert_shares((means == 2.0).mean(0), np.full(3, 0.3))


def shared_program(h: Written) -> Any:
    """One label for four rows and one for each group of three; a label of each row beside them."""
    where = h.xp.where

    def model(y: Any = None, groups: Any = None, rows: Any = None) -> None:
        level = h.sample("level", h.dist.Normal(0.0, 1.0))
        one = h.sample("one", h.dist.Bernoulli(0.3))
        with h.plate("rows", 4):
            own = h.sample("own", h.dist.Bernoulli(0.2))
            h.sample("y", h.dist.Normal(level + 1.0 * one, 2.0), obs=y)
            h.sample("x", h.dist.Normal(8.0 * own, 1.0), obs=rows)
        with h.plate("groups", 2):
            label = h.sample("label", h.dist.Bernoulli(0.6))
            with h.plate("each", 3):
                h.sample("g", h.dist.Normal(where(label > 0.5, 3.0, -3.0), 4.0), obs=groups)

    return model


SHARED = {
    "y": np.array([1.9, 2.4, 0.4, 2.0]),
    "groups": np.array([[2.0, -1.0], [-2.0, 0.5], [3.0, -4.0]]),
    "rows": np.array([8.0, 8.0, 8.0, 0.0]),
}


def shares_of_shared() -> dict[str, Any]:
    """Probabilities of 1 for the shared labels, at level 0.5."""

    def of(ones: Any, zeros: Any, prior: float) -> Any:
        log_odds = np.log(prior / (1.0 - prior)) + (ones - zeros).sum(0)
        return special.expit(log_odds)

    y, g = (stats.norm(each, sd).logpdf for each, sd in (([1.5, 0.5], 2.0), ([3.0, -3.0], 4.0)))
    by_row, by_group = y(SHARED["y"][:, None]), g(SHARED["groups"][..., None])
    return {
        "one": of(by_row[:, 0], by_row[:, 1], 0.3),
        "label": of(by_group[..., 0], by_group[..., 1], 0.6),
    }


@pytest.mark.parametrize("given", [("y", "groups", "rows"), ()])
def test_new_rows_share_the_labels_that_the_observed_ones_share(
    backend: Any, given: tuple[str, ...]
) -> None:
    """Labels that several rows share are the posterior's, also for rows without observations."""
    model, number = shared_program(Written(backend)), 2_000
    arrays = {name: backend.array(each) for name, each in SHARED.items()}
    draws = {"level": backend.array(np.full(number, 0.5))}
    predict = backend.room("diagnostics.predictive").predictions
    new = {name: arrays[name] for name in given}
    found = {k: np.asarray(v) for k, v in predict(model, draws, (), new, 0, ((), arrays)).items()}
    expected = shares_of_shared()
    assert 0.35 < expected["one"] < 0.65 and expected["label"][0] > 0.65
    for name, share in expected.items():
        assert_shares(found[name].astype(float).mean(0), share, number)
    assert_shares(found["own"].astype(float).mean(0), np.full(4, 0.2), number)
    # Noise is independent of the label: so is the variance the sum of both.
    share, error = expected["one"], 4.0 * np.sqrt(2.0 / number)
    spread = 4.0 + share * (1.0 - share)
    assert np.all(np.abs(found["y"].var(0) - spread) < 5.0 * error)
    assert np.all(np.abs(found["y"].mean(0) - 0.5 - share) < 5.0 * np.sqrt(spread / number))
    ones = found["one"].astype(float)
    assert np.all(np.abs(found["y"][ones == 1].mean(0) - 1.5) < 5.0 * 2.0 / np.sqrt(ones.sum()))


def test_other_groups_have_labels_of_their_own(backend: Any) -> None:
    """Of as many groups as were fitted the labels are those of the fit; of others they are new."""
    h = Written(backend)
    kinds = backend.array([0.2, 0.3, 0.5])

    def model(number: int = 2, y: Any = None) -> None:
        level = h.sample("level", h.dist.Normal(0.0, 1.0))
        with h.plate("groups", number, dim=-1):
            if backend.is_pyro:
                last = h.sample("kind", h.dist.OneHotCategorical(kinds))[..., 2]
            else:  # which has no such family
                last = h.sample("kind", h.dist.Categorical(kinds)) == 2
            with h.plate("rows", 2, dim=-2):
                h.sample("y", h.dist.Normal(level + 20.0 * last, 1.0), obs=y)

    y, number = np.array([[0.3, 20.3], [-0.2, 19.9]]), 600
    draws = {"level": backend.array(np.zeros(number))}
    predict = backend.room("diagnostics.predictive").predictions
    like = ((2, backend.array(y)), {})
    same = np.asarray(predict(model, draws, (2,), {}, 0, like)["y"])
    assert np.all(same[:, :, 0] < 10.0) and np.all(same[:, :, 1] > 10.0)
    new = np.asarray(predict(model, draws, (5,), {}, 0, like)["y"])
    assert new.shape == (number, 2, 5)
    assert_shares((new[:, 0] > 10.0).mean(0), np.full(5, 0.5), number)


def test_new_observations_of_to_arviz_share_them_too(backend: Any) -> None:
    model, number = shared_program(Written(backend)), 2_000
    target, data = backend.target(model, (), {n: backend.array(v) for n, v in SHARED.items()})
    draws = {"level": np.full(number, 0.5)}
    replay = backend.room("density.replay").replay
    found = replay(target, draws, data, groups=("predictive", "log_likelihood"))
    share = shares_of_shared()["one"]
    mean = found.predictive["y"].mean(0) - 0.5
    assert np.all(np.abs(mean - share) < 5.0 * np.sqrt((4.0 + 0.25) / number))
    before = replay(target, draws, data, groups=("log_likelihood",)).log_likelihood
    for name, terms in before.items():
        np.testing.assert_allclose(found.log_likelihood[name], terms)
    said = replay(target, draws, data, groups=("prediction",)).prediction["mean"]["y"]
    assert_shares((said[:, 0] > 1.0).mean(0), share, number)


def test_a_discrete_observation_is_still_what_is_predicted(backend: Any) -> None:
    h = Written(backend)

    def guess() -> None:
        share = h.sample("share", h.dist.Beta(1.0, 1.0))
        with h.plate("rows", 3):
            h.sample("y", h.dist.Bernoulli(share))

    found = backend.public.predictive_distribution(guess, {"share": backend.array([0.3, 0.6])})
    np.testing.assert_allclose(found["probabilities"].values[..., 1], [[0.3] * 3, [0.6] * 3])


#: Components between which rows are in doubt, of different widths.
DOUBT = {
    "weights": np.array([0.3, 0.3, 0.4]),
    "location": np.array([-3.0, -2.5, 2.0]),
    "scale": np.array([1.0, 0.4, 0.7]),
}


def predicted(backend: Any, num: int, **options: Any) -> Any:
    """Predictions of the mixture's own rows, in chunks, at these components many times."""
    each = PROGRAMS["mixture"]
    draws = {name: backend.array(np.repeat(v[None], num, 0)) for name, v in DOUBT.items()}
    args = backend.arrays(each.arrays)
    return backend.public.predictive_distribution(
        each.build(backend), draws, *args, data_chunk=5, **each.options, **options
    )


def test_predictions_given_values_drawn_from_the_posterior(backend: Any) -> None:
    found, terms = predicted(backend, 150, discrete="sample"), logits(DOUBT)
    z = found["z"]
    assert z.dims == ("draw", "row") and z.dtype.kind == "i"
    drawn = np.stack([(z.values == value).mean(0) for value in range(K)], -1)
    assert_shares(drawn, special.softmax(terms, -1), 150)
    np.testing.assert_allclose(found["mean"].values, DOUBT["location"][z.values])
    np.testing.assert_allclose(found["variance"].values, DOUBT["scale"][z.values] ** 2)
    # That of a row, whatever its component.
    likelihood = np.broadcast_to(special.logsumexp(terms, -1), z.shape)
    np.testing.assert_allclose(found["log_likelihood"].values, likelihood)


def test_predictions_given_the_most_probable_values(backend: Any) -> None:
    found = predicted(backend, 2, discrete="most probable")
    best = logits(DOUBT).argmax(-1)
    assert len(set(best)) == K
    np.testing.assert_array_equal(found["z"].values, [best, best])


def test_what_is_observed_tells_of_what_is_not(backend: Any) -> None:
    # A row's first observation is there, its second is to be predicted.
    h = Written(backend)
    first, seen = backend.array(np.array([0.3, 1.9])), np.array([0.3, 1.9])

    def model(first: Any, second: Any = None) -> None:
        share = h.sample("share", h.dist.Beta(1.0, 1.0))
        with h.plate("rows", 2):
            z = h.sample("z", h.dist.Bernoulli(share))
            h.sample("first", h.dist.Normal(2.0 * z, 1.0), obs=first)
            h.sample("second", h.dist.Normal(5.0 - 3.0 * z, 1.0), obs=second)

    draws = {"share": backend.array(np.full(DRAWS, 0.3))}
    found = backend.public.predictive_distribution(
        model, draws, first, site="second", discrete="sample"
    )
    odds = 0.3 / 0.7 * np.exp(stats.norm.logpdf(seen, 2.0) - stats.norm.logpdf(seen, 0.0))
    assert_shares(found["z"].values.mean(0), odds / (1.0 + odds))
    np.testing.assert_allclose(found["mean"].values, 5.0 - 3.0 * found["z"].values)


def test_an_observation_of_a_value_that_stands_in_is_refused(backend: Any) -> None:
    h, given = Written(backend), backend.array(np.array([0.3, 1.9]))

    def model(last: Any, middle: Any = None, by_middle: bool = True) -> None:
        share = h.sample("share", h.dist.Beta(1.0, 1.0))
        with h.plate("rows", 2):
            z = h.sample("z", h.dist.Bernoulli(share))
            value = h.sample("middle", h.dist.Normal(2.0 * z, 1.0), obs=middle)
            # Counts for one of the values of z alone.
            mean = z * value if by_middle else 3.0 * z
            h.sample("last", h.dist.Normal(mean, 1.0), obs=last)

    draws = {"share": backend.array([0.4, 0.6])}

    def predict(**options: Any) -> Any:
        return backend.public.predictive_distribution(
            model, draws, given, site="middle", discrete="sample", **options
        )

    with pytest.raises(backend.public.ArgumentError, match=r"depends on 'middle'.*\['last'\]"):
        predict()
    assert predict(by_middle=False).sizes == {"draw": 2, "row": 2}
    assert predict(middle=given).sizes["row"] == 2


def test_values_without_a_row_of_their_own(backend: Any) -> None:
    each = PROGRAMS["change_point"]
    counts = backend.arrays(each.arrays)
    draws = {"before": backend.array([1.0, 6.0]), "after": backend.array([6.0, 1.0])}
    model = each.build(backend)
    found = backend.public.predictive_distribution(model, draws, *counts, discrete="most probable")
    at = np.arange(len(each.arrays[0]))
    is_before = at < at[:, None]
    rates = np.stack([np.where(is_before, a, b) for a, b in ((1.0, 6.0), (6.0, 1.0))])
    terms = stats.poisson.logpmf(each.arrays[0], rates).sum(-1)
    assert found["when"].dims == ("draw",)
    # All rows have one likelihood together.
    assert "log_likelihood" not in found and "observed" in found
    with pytest.raises(backend.public.ArgumentError, match="rows that share a discrete"):
        backend.public.predictive_metrics(found)
    np.testing.assert_array_equal(found["when"].values, terms.argmax(-1))


def test_two_sites_of_a_row_are_drawn_together(backend: Any) -> None:
    """One of two, or neither: draws of each by itself would have both."""
    h = Written(backend)

    def model(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        with h.plate("rows", 4):
            a, b = (h.sample(name, h.dist.Bernoulli(h.full((), 0.5))) for name in ("a", "b"))
            h.sample("y", h.dist.Normal(mean + 3.0 * h.number(a != b), 0.3), obs=y)

    y = backend.array(np.array([3.0, 3.0, 0.0, 0.0]))
    target, data = backend.target(model, (y,))
    draws = {"mean": np.zeros(200)}
    found = backend.room("density.replay").replay(target, draws, data, groups=("discrete",))
    a, b = found.discrete["a"], found.discrete["b"]
    np.testing.assert_array_equal((a == b).mean(0), [0.0, 0.0, 1.0, 1.0])
    assert_shares(a.mean(0), np.full(4, 0.5), 200)


def test_rows_with_a_continuous_latent_of_their_own(backend: Any) -> None:
    """Its density counts among the assignments' and not among the observations'."""
    h = Written(backend)

    def model(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))
        with h.plate("rows", 4):
            z = h.sample("z", h.dist.Bernoulli(h.full((), 0.3)))
            u = h.sample("u", h.dist.Normal(mean + 2.0 * z, 1.0))
            h.sample("y", h.dist.Normal(u + z, 0.5), obs=y)

    numbers, u = np.array([0.1, 2.2, -0.3, 1.0]), np.array([0.5, 1.5, 0.0, 1.0])
    target, data = backend.target(model, (backend.array(numbers),))
    draws = {"mean": np.zeros(1), "u": u[None]}
    found = backend.room("density.replay").replay(target, draws, data, groups=("log_likelihood",))
    values = np.array([[0.0], [1.0]])
    locals_ = stats.bernoulli.logpmf(values, 0.3) + stats.norm.logpdf(u, 2.0 * values)
    both = locals_ + stats.norm.logpdf(numbers, u + values, 0.5)
    expected = special.logsumexp(both, 0) - special.logsumexp(locals_, 0)
    np.testing.assert_allclose(found.log_likelihood["y"][0], expected)


def test_steps_with_a_continuous_latent_of_their_own(backend: Any) -> None:
    h, chances = Written(backend), np.array([[0.8, 0.2], [0.3, 0.7]])

    def model(y: Any) -> None:
        mean = h.sample("mean", h.dist.Normal(0.0, 1.0))

        def step(name: Any, z: Any, row: Any) -> Any:
            z = h.sample(name("z"), h.dist.Categorical(backend.array(chances)[z]))
            u = h.sample(name("u"), h.dist.Gamma(h.full((), 2.0), 1.0))
            h.sample(name("y"), h.dist.Normal(mean + 2.0 * z, u), obs=row)
            return z

        h.chain(step, 0, y)

    numbers, u = np.array([0.1, 2.2, -0.3]), np.array([0.5, 1.5, 0.7])
    target, data = backend.target(model, (backend.array(numbers),))
    if backend.is_pyro:
        draws = {"mean": np.full(DRAWS, 0.2), **{f"u_{t}": np.full(DRAWS, u[t]) for t in range(3)}}
    else:
        draws = {"mean": np.full(DRAWS, 0.2), "u": np.tile(u, (DRAWS, 1))}
    groups = ("log_likelihood", "log_prior", "discrete", "predictive")
    found = backend.room("density.replay").replay(target, draws, data, groups=groups)

    def steps(values: Any, site: str) -> np.ndarray:
        names = [f"{site}_{t}" for t in range(3)] if backend.is_pyro else [site]
        return np.column_stack([values[name] for name in names])

    paths = np.array(list(itertools.product((0, 1), repeat=3)))
    before = np.column_stack([np.zeros(8, int), paths[:, :-1]])
    prior = np.log(chances[before, paths]).sum(1)
    terms = prior + stats.norm.logpdf(numbers, 0.2 + 2.0 * paths, u).sum(1)
    (log_likelihood,) = found.log_likelihood.values()
    np.testing.assert_allclose(log_likelihood[0], special.logsumexp(terms))
    np.testing.assert_allclose(steps(found.log_prior, "u")[0], stats.gamma(2.0).logpdf(u))
    assert_shares(steps(found.discrete, "z").mean(0), special.softmax(terms) @ paths)
    shares = np.exp(prior) @ paths
    spread = np.sqrt(4.0 * shares * (1.0 - shares) + u**2)
    off = steps(found.predictive, "y").mean(0) - (0.2 + 2.0 * shares)
    assert (np.abs(off) < 5.0 * spread / np.sqrt(DRAWS)).all(), off / spread


def test_a_factor_beside_an_observation_is_part_of_the_prior(backend: Any) -> None:
    """The log likelihood is that of the data alone, given the factor, as without discrete sites."""
    host, dist, array = backend.host, backend.dist, backend.array
    y = np.array([0.3, -1.2, 2.0])

    def model(y: Any) -> None:
        m = host.sample("m", dist.Normal(array(0.0), 1.0))
        with host.plate("rows", 3):
            z = host.sample("z", dist.Bernoulli(array(0.3)), infer={"enumerate": "parallel"})
            host.sample("y", dist.Normal(m + 2.0 * z, 1.0), obs=y)
            host.factor("f", -(m**2) * z)

    target, data = backend.target(model, (array(y),))
    replay = backend.room("density.replay").replay
    draws = {"m": array(np.array([0.5]))}
    found = replay(target, draws, data, groups=("log_likelihood", "log_prior"))
    prior = np.log([0.7, 0.3]) + np.array([0.0, -0.25])
    terms = stats.norm.logpdf(y[:, None], [0.5, 2.5]) + prior - special.logsumexp(prior)
    assert set(found.log_likelihood) == {"y"} and set(found.log_prior) == {"m"}
    np.testing.assert_allclose(found.log_likelihood["y"][0], special.logsumexp(terms, -1))
