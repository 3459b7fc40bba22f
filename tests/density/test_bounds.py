"""Parameters and observations out of the bounds of their distribution."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Verbs
from tests.stein_support import optimizer

X = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
COUNTS = np.array([0.0, 0.0, 1.0, 0.0, 3.0])
ONES = 1.0 * (COUNTS > 0.0)
#: Positions: the first two columns of each are an intercept and a slope.
Z = np.array([[1.0, 0.5], [0.0, 1.0], [-1.5, 0.0], [1.5, 2.0 + 1e-7]])


def shares(backend: Any, observe: Any) -> dict[tuple[str, str], float]:
    """Of a program that observes something of a line, at the positions above."""

    def model() -> None:
        line = backend.host.sample("line", backend.dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with backend.host.plate("rows", len(X)):
            observe(backend.host, backend.dist, 0.5 + line[0] + line[1] * backend.array(X))

    target, data = backend.target(model)
    found = backend.room("density.replay").out_of_bounds_at(target, data, backend.array(Z))
    shares = {(n, w): float(np.mean(f)) for n, each in found.items() for w, f in each.items()}
    return {at: share for at, share in shares.items() if share > 0.0}


def exponential_after(dist: Any, start: Any, backend: Any) -> Any:
    transforms = backend.dist.transforms
    shift = transforms.AffineTransform(start, 2.0)
    return dist.TransformedDistribution(dist.Exponential(backend.array(1.0)), [shift])


PROGRAMS: dict[str, tuple[Any, dict[tuple[str, str], float]]] = {
    "rate": (
        lambda b: lambda h, d, line: h.sample("y", d.Poisson(line), obs=b.array(COUNTS)),
        {("y", "rate"): 0.5},
    ),
    "probability": (
        lambda b: lambda h, d, line: h.sample("y", d.Bernoulli(probs=line), obs=b.array(ONES)),
        # At some of the positions a probability is 0 or 1 just where the other was observed.
        {("y", "probs"): 1.0, ("y", "held"): 0.75},
    ),
    "logits have no bounds": (
        lambda b: lambda h, d, line: h.sample("y", d.Bernoulli(logits=line), obs=b.array(ONES)),
        {},
    ),
    "start": (
        lambda b: (
            lambda h, d, line: h.sample(
                "y", exponential_after(d, line, b), obs=b.array(np.full(5, 1.2))
            )
        ),
        {("y", "value"): 0.75},
    ),
    "observations of a difference": (
        lambda b: lambda h, d, line: h.sample("y", d.Exponential(b.array(1.0)), obs=1.2 - line),
        {("y", "value"): 0.75},
    ),
    "rows that a mask hides": (
        lambda b: (
            lambda h, d, line: h.sample(
                "y", d.Poisson(line).mask(b.array(X > -1.0)), obs=b.array(COUNTS)
            )
        ),
        {("y", "rate"): 0.25},
    ),
    "rows that a mask of a transformed event hides": (
        lambda b: (
            lambda h, d, line: h.sample(
                "y",
                d.TransformedDistribution(
                    d.Normal(b.xp.stack([line, line], -1), b.array(1.0)).to_event(1),
                    [d.transforms.ExpTransform()],
                ).mask(b.array(X > -1.0)),
                obs=b.array(np.ones((5, 2))),
            )
        ),
        {},
    ),
    "elements of an event": (
        lambda b: (
            lambda h, d, line: h.sample(
                "y",
                d.Poisson(b.xp.stack([line, line + 9.0], -1)).to_event(1),
                obs=b.array(np.stack([COUNTS, COUNTS], -1)),
            )
        ),
        {("y", "rate"): 0.5},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_lies_out_of_bounds_is_told_by_site_and_parameter(backend: Any, name: str) -> None:
    observe, expected = PROGRAMS[name]
    assert shares(backend, observe(backend)) == expected


def test_a_mask_may_have_more_rows_than_its_site_has_plates() -> None:
    pyro = pytest.importorskip("pyro")
    import torch

    from ppl_ext.target.bounds import out_of_bounds
    from pyro_ext.density.outputs import HOST

    for keep in (True, False):
        masks = [(torch.tensor([False, False, keep]), 0)]
        negative = pyro.distributions.Poisson(torch.tensor(-1.0), validate_args=False)
        found = out_of_bounds(HOST, negative, None, masks)
        assert {name: bool(flag) for name, flag in found.items()} == {"rate": keep}
    truth = torch.tensor([True, False])
    of_truth = pyro.distributions.Categorical(torch.ones(2) / 2)
    assert not out_of_bounds(HOST, of_truth, truth)["value"]


def test_a_family_of_the_users_own_is_left_alone(backend: Any) -> None:
    from ppl_ext.target.bounds import out_of_bounds

    class Own(backend.dist.Normal):
        @property
        def support(self) -> Any:
            raise NotImplementedError

    host, one = backend.room("density.outputs").HOST, backend.array(1.0)
    found = out_of_bounds(host, Own(one, one, validate_args=False), one)
    assert {name: bool(flag) for name, flag in found.items()} == {"scale": False}


def test_a_fit_beyond_the_bounds_is_not_trusted(backend: Any) -> None:
    """Rows of zeros pull an unbounded rate below 0, where their probability is above 1."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        level = host.sample("level", dist.Normal(0.0, 1.0))
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", 5):
            host.sample("y", dist.Poisson(0.5 + level + slope * x), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    arrays = backend.arrays((X, COUNTS))
    found = backend.public.fit(*keys, model, *arrays, progress_bar=False, exact=False)
    assert found.verdict.level == "not trusted"
    assert "parameter 'rate' of 'y' lies out of the bounds" in found.verdict.reasons[0]
    judged = backend.public.check(*keys, found.draws, model, *arrays, progress_bar=False)
    assert not judged.trusted and any("out of the bounds" in each for each in judged.reasons)


@pytest.mark.judged
@pytest.mark.parametrize("subsample_size", [None, 3])
def test_an_engine_beyond_the_bounds_is_doubtful(backend: Any, subsample_size: int | None) -> None:
    host, dist = backend.host, backend.dist

    def model(link: Any, x: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", 5, subsample_size=subsample_size) as rows:
            rate = link(0.5 + slope * x[rows])
            host.sample("y", dist.Poisson(rate), obs=y[rows])

    # Counts of zero: a negative rate of another count has no density.
    arrays = backend.arrays((X, np.zeros(5)))
    for link, beyond in ((backend.xp.exp, False), (lambda rate: rate, True)):
        program = partial(model, link)
        engine = backend.public.SVGD(program, optimizer(backend, "adam", 0.05), num_particles=20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", backend.public.DoubtfulFitWarning)
            _, result = Verbs(backend, arrays).run(engine, 40)
        told = "parameter 'rate' of 'y' lies out of the bounds" in str(result.judgement)
        assert told is beyond and (not beyond or result.judgement.doubtful)


def test_an_observation_that_a_discrete_site_may_forbid_is_no_fault(backend: Any) -> None:
    """A count of 3 of n, where n may be 2: the sum over n has no such term."""
    host, dist = backend.host, backend.dist
    sizes = backend.array(np.array([0.0, 0.0, 0.3, 0.4, 0.3]))

    def model(y: Any) -> None:
        share = host.sample("share", dist.Beta(1.0, 1.0))
        number = host.sample("number", dist.Categorical(sizes))
        with host.plate("rows", 3):
            count = 1.0 * number if backend.is_pyro else number
            host.sample("y", dist.Binomial(count, share), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    y = backend.array(np.array([3.0, 2.0, 3.0] if backend.is_pyro else [3, 2, 3]))
    found = backend.public.fit(*keys, model, y, progress_bar=False, exact=False)
    assert found.verdict.trusted
    new = found.predict()
    assert new["number"].min() >= 3 and np.all(new["y"] <= new["number"][:, None])


def test_observations_may_lie_out_of_bounds_that_are_latent(backend: Any) -> None:
    """Near zero in unconstrained space the end is at 1, and observations are farther out."""
    host, dist, y = backend.host, backend.dist, np.array([0.5, 1.2, 2.7, 1.9, 0.3])

    def model(y: Any) -> None:
        end = host.sample("end", dist.LogNormal(0.0, 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Uniform(0.0, end), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    found = backend.public.fit(*keys, model, backend.array(y), progress_bar=False)
    assert found.verdict.trusted
    grid = np.geomspace(y.max(), 1e3, 100_001)
    density = np.exp(-0.5 * np.log(grid) ** 2) * grid**-6.0
    weights = density * np.gradient(grid)
    weights /= weights.sum()
    draws = np.asarray(found.draws["end"], float)
    share = np.interp(draws, grid, weights.cumsum())
    # Shares below a draw are uniform: their mean by the effective number of draws that is asked.
    assert draws.min() >= y.max()
    assert abs(share.mean() - 0.5) < 4.0 / np.sqrt(12.0 * 400.0)


def test_rounding_is_not_out_of_bounds(backend: Any) -> None:
    from ppl_ext.target.bounds import out_of_bounds

    host = backend.room("density.outputs").HOST
    for beyond, expected in ((1e-6, False), (1e-3, True)):
        family = backend.dist.Bernoulli(probs=backend.array(1.0 + beyond), validate_args=False)
        found = out_of_bounds(host, family, backend.array(1.0))
        assert bool(found["probs"]) == expected


def test_truncated_and_inflated_families_have_their_values_by_themselves(backend: Any) -> None:
    from ppl_ext.target.bounds import out_of_bounds

    host, dist = backend.room("density.outputs").HOST, backend.dist
    rate, gate = backend.array(2.0), backend.array(0.3)
    inflated = dist.ZeroInflatedDistribution(dist.Poisson(rate), gate=gate)
    assert not any(out_of_bounds(host, inflated, backend.array(0.0)).values())
    assert out_of_bounds(host, inflated, backend.array(-1.0))["value"]
    if not backend.is_pyro:
        truncated = dist.TruncatedNormal(0.0, 1.0, low=0.5, high=2.0)
        found = (out_of_bounds(host, truncated, backend.array(at))["value"] for at in (0.2, 1.0))
        assert list(map(bool, found)) == [True, False]


@pytest.mark.parametrize("family", ["Bernoulli", "Binomial", "Categorical"])
def test_observations_in_spite_of_probabilities_that_are_held_are_told(
    backend: Any, family: str
) -> None:
    """A success and a failure in one: whichever is unlikely counts for 16 nats, not for 200."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(given: str) -> None:
        line = host.sample("line", dist.Normal(0.0, 1.0))
        with host.plate("rows", 2):
            logits = line * backend.array(np.ones(2))
            share = 1.0 / (1.0 + xp.exp(-logits))
            if family == "Categorical":
                logits, share = (
                    xp.stack(pair, -1) for pair in ((0.0 * logits, logits), (1.0 - share, share))
                )
            total = {"total_count": 3} if family == "Binomial" else {}
            fn = getattr(dist, family)(
                **{given: {"logits": logits, "probs": share}[given]}, **total
            )
            observed = xp.asarray([1, 0] if family == "Categorical" else [1.0, 0.0])
            host.sample("y", fn, obs=observed)

    places = backend.array(np.array([[-200.0], [0.5], [200.0]]))
    for given, expected in (("logits", [0, 0, 0]), ("probs", [1, 0, 1])):
        target, data = backend.target(partial(model, given))
        found = backend.room("density.replay").out_of_bounds_at(target, data, places)
        held = np.asarray(found["y"].get("held", np.zeros(3)), int)
        np.testing.assert_array_equal(held, expected)
