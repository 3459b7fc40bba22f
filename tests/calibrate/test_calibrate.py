"""Simulation-based calibration: right posteriors have uniform ranks, planted wrong ones have not.

A Normal with a Normal prior has a posterior in closed form, so that faults can be planted in exact
draws. Tests of chance are asked for a p-value beyond one in ten thousand either way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from ppl_ext.calibrate import calibrate as module
from ppl_ext.calibrate import uniformity
from ppl_ext.calibrate.calibrate import Simulated
from ppl_ext.calibrate.calibration import LIKELIHOOD, Calibration
from ppl_ext.check.source import Source
from ppl_ext.errors import ArgumentError, ConvergenceWarning

RARE = 1e-4
#: Of the conjugate model: rows, and standard deviations of prior and noise.
ROWS, WIDTH, NOISE = 8, 2.0, 1.0
DEVIATION = (ROWS / NOISE**2 + 1.0 / WIDTH**2) ** -0.5


# -- whether ranks are uniform --------------------------------------------------------------------


@pytest.mark.parametrize(("number", "num_draws"), [(3, 2), (4, 3), (5, 1)])
def test_p_values_are_those_of_all_possible_ranks(number: int, num_draws: int) -> None:
    every = list(itertools.product(range(num_draws + 1), repeat=number))
    found = np.array([uniformity.p_value(np.array(ranks), num_draws) for ranks in every])
    for value in np.unique(found):
        assert (found <= value + 1e-9).mean() == pytest.approx(value)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_bands_hold_all_ranks_with_their_probability_and_agree_with_the_p_value(
    level: float,
) -> None:
    number, num_draws = 5, 3
    low, high = uniformity.band(number, num_draws, level)
    inside, agree = [], []
    for ranks in itertools.product(range(num_draws + 1), repeat=number):
        below = np.cumsum(np.bincount(ranks, minlength=num_draws + 1))[:-1]
        inside.append(((low <= below) & (below <= high)).all())
        agree.append(uniformity.p_value(np.array(ranks), num_draws) > 1.0 - level - 1e-9)
    assert np.mean(inside) >= level
    # No band of the same kind with the same probability is narrower.
    assert np.mean(inside) - np.mean(agree) < 1e-9


def test_ranks_of_many_draws_are_told_from_uniform_ones() -> None:
    generator = np.random.default_rng(0)
    number, num_draws = 1000, 99
    assert uniformity.p_value(generator.integers(0, 100, number), num_draws) > RARE
    low = np.minimum(*generator.integers(0, 100, (2, number)))
    assert uniformity.p_value(low, num_draws) < 1e-10


# -- draws of NumPy's own ------------------------------------------------------------------------


def simulated(
    draws: Callable[[np.random.Generator, float], np.ndarray],
    kind: Any = "draws",
    number: int = 400,
    truth: Callable[[np.random.Generator, int], np.ndarray] | None = None,
) -> Simulated:
    """Data sets that are one number y ~ N(x, 1) with x ~ N(0, 1), and draws given the mean of x."""
    generator = np.random.default_rng(1)
    truths = generator.normal(size=number) if truth is None else truth(generator, number)
    means = 0.5 * (truths + generator.normal(size=number))

    def fit(data_set: int) -> tuple[Source, None]:
        return Source("test", kind, {"x": draws(generator, means[data_set])}), None

    def likelihood(data_set: int, given: dict[str, np.ndarray]) -> np.ndarray:
        return -0.5 * (given["x"] - 2.0 * means[data_set]) ** 2

    return Simulated({"x": truths}, fit, likelihood)


def chain(generator: np.random.Generator, mean: float) -> np.ndarray:
    """A chain of the right posterior: 250 draws that are worth about 15."""
    noise = np.sqrt(1.0 - 0.9**2) * generator.normal(size=250)
    noise[0] /= np.sqrt(1.0 - 0.9**2)
    draws: np.ndarray = mean + np.sqrt(0.5) * lfilter([1.0], [1.0, -0.9], noise)
    return draws


def test_draws_that_depend_on_each_other_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ranks are only a little too extreme, which takes many data sets to see.
    many = simulated(chain, number=4000)
    with pytest.warns(ConvergenceWarning):
        found = module.calibrate(many, np.random.default_rng(2), 99, False)
    assert found.num_draws == 9
    assert found.p_values["x"] > RARE
    monkeypatch.setattr(module, "_worth", lambda source, draws: float(len(draws["x"])))
    blind = module.calibrate(many, np.random.default_rng(2), 99, False)
    assert blind.num_draws == 99
    assert blind.p_values["x"] < RARE


def test_equal_values_have_uniform_ranks() -> None:
    def three(generator: np.random.Generator, number: int) -> np.ndarray:
        return np.round(generator.normal(size=number))

    def same(generator: np.random.Generator, mean: float) -> np.ndarray:
        return np.round(generator.normal(size=200))

    found = module.calibrate(
        simulated(same, truth=three), np.random.default_rng(2), 99, progress_bar=False
    )
    assert found.p_values["x"] > RARE
    constant = module.calibrate(
        simulated(lambda *_: np.ones(200), truth=lambda _, number: np.ones(number)),
        np.random.default_rng(2),
        99,
        progress_bar=False,
    )
    assert constant.p_values["x"] > RARE


def test_chains_that_are_worth_nothing_are_told_of() -> None:
    def stuck(generator: np.random.Generator, mean: float) -> np.ndarray:
        return np.cumsum(generator.normal(size=200)) + mean

    with pytest.warns(ConvergenceWarning, match="worth fewer than 9"):
        module.calibrate(simulated(stuck, number=20), np.random.default_rng(2), 99, False)


@pytest.mark.parametrize(
    ("draws", "match"),
    [
        (lambda g, m: np.full(200, np.nan), "'x' in the fit of data set 0"),
        (lambda g, m: np.zeros(50), "at least num_draws=99 draws, found 50"),
        (lambda g, m: np.zeros((200, 2)), "shape"),
    ],
)
def test_draws_without_a_rank_are_refused(draws: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        module.calibrate(simulated(draws, number=3), np.random.default_rng(2), 99, False)


def right(generator: np.random.Generator, mean: float) -> np.ndarray:
    return mean + np.sqrt(0.5) * generator.normal(size=200)


def test_the_picture_says_what_the_p_value_says() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")

    def narrow(generator: np.random.Generator, mean: float) -> np.ndarray:
        return mean + 0.5 * np.sqrt(0.5) * generator.normal(size=200)

    for draws in (right, narrow):
        found = module.calibrate(simulated(draws), np.random.default_rng(2), 99, False)
        panels = found.plot()
        assert [axis.get_title() for axis in panels] == ["x", LIKELIHOOD]
        number, length = found.num_data_sets, found.num_draws
        low, high = uniformity.band(number, length, 1.0 - 0.05 / found.num_figures)
        uniform = np.arange(1, length + 1) / (length + 1)
        bottom, top = low / number - uniform, high / number - uniform
        leaves = []
        for axis in panels:
            corners = axis.collections[0].get_paths()[0].vertices[:, 1]
            assert set(corners.round(9)) == set(np.concatenate([bottom, top]).round(9))
            line = axis.lines[1].get_ydata()
            leaves.append(bool(((line < bottom - 1e-9) | (line > top + 1e-9)).any()))
        assert any(leaves) == (not found.is_uniform)
        pyplot.close("all")
    assert not found.is_uniform
    assert "draws are too narrow" in str(found)
    with pytest.raises(ArgumentError, match="found \\['z'\\]"):
        found.plot(["z"])


def test_ranks_for_arviz() -> None:
    pytest.importorskip("arviz")
    found = module.calibrate(simulated(right, number=20), np.random.default_rng(2), 9, False)
    idata = found.to_arviz()
    assert idata["prior"]["x"].shape == (1, 20)
    shares = idata["prior_sbc"]["x"].values
    assert ((0.0 < shares) & (shares < 1.0)).all()
    assert set(idata["prior_sbc"].data_vars) == {"x", LIKELIHOOD}


# -- programs of both hosts ----------------------------------------------------------------------


def calibrated(backend: Any, model: Any, *args: Any, **options: Any) -> Calibration:
    keys = () if backend.is_pyro else (backend.key(0),)
    found: Calibration = backend.public.calibrate(
        *keys, model, *args, progress_bar=False, **options
    )
    return found


def conjugate(backend: Any) -> Any:
    def model(rows: int, y: Any = None) -> None:
        mu = backend.host.sample("mu", backend.dist.Normal(0.0, WIDTH))
        with backend.host.plate("rows", rows):
            backend.host.sample("y", backend.dist.Normal(mu, NOISE), obs=y)

    return model


def exact(
    backend: Any, shift: float = 0.0, scale: float = 1.0, blind: bool = False
) -> Callable[..., dict[str, np.ndarray]]:
    """The posterior of the conjugate model, or one with a fault."""
    generator = np.random.default_rng(3)

    def fit(*given: Any) -> dict[str, np.ndarray]:
        rows, y = given[-2:]
        assert rows == ROWS and len(given) == (2 if backend.is_pyro else 3)
        if blind:
            return {"mu": WIDTH * generator.normal(size=200)}
        mean = DEVIATION**2 * backend.numpy(y).sum() / NOISE**2
        return {"mu": mean + DEVIATION * (shift + scale * generator.normal(size=200))}

    return fit


def test_exact_draws_have_uniform_ranks(backend: Any) -> None:
    found = calibrated(
        backend, conjugate(backend), ROWS, fit_function=exact(backend), num_data_sets=400
    )
    assert found.num_data_sets == 400 and found.num_draws == 99
    assert set(found.ranks) == {"mu", LIKELIHOOD}
    assert found.p_value > RARE
    # The data are of the parameters: they would not be without this spread.
    assert 0.8 * WIDTH < found.truths["mu"].std() < 1.2 * WIDTH


@pytest.mark.in_one_package
@pytest.mark.parametrize(
    ("fault", "site", "says"),
    [
        ({"scale": 0.6}, "mu", "draws are too narrow"),
        ({"scale": 2.2}, "mu", "draws are too wide"),
        ({"shift": 0.6}, "mu", "draws are too high"),
        ({"shift": -0.6}, "mu", "draws are too low"),
        ({"blind": True}, LIKELIHOOD, "draws fit the data too badly"),
    ],
)
def test_planted_faults_are_found(
    backend: Any, fault: dict[str, Any], site: str, says: str
) -> None:
    found = calibrated(
        backend, conjugate(backend), ROWS, fit_function=exact(backend, **fault), num_data_sets=200
    )
    assert found.p_values[site] < 1e-6
    assert not found.is_uniform
    line = next(line for line in str(found).splitlines() if line.startswith(site))
    assert line.endswith(says)


def test_draws_of_the_prior_are_found_by_the_likelihood_alone(backend: Any) -> None:
    found = calibrated(
        backend,
        conjugate(backend),
        ROWS,
        fit_function=exact(backend, blind=True),
        num_data_sets=200,
    )
    assert found.p_values["mu"] > RARE


def counts(backend: Any) -> Any:
    """Beta-Binomial in groups; the observed site is not named as its argument is."""

    def model(trials: Any, *, deaths: Any = None) -> None:
        with backend.host.plate("groups", len(trials)):
            rate = backend.host.sample("rate", backend.dist.Beta(2.0, 2.0))
            backend.host.sample("count", backend.dist.Binomial(trials, rate), obs=deaths)

    return model


@pytest.mark.parametrize("given", ["data", "name"])
def test_discrete_observations_in_plates_by_keyword(backend: Any, given: str) -> None:
    trials = backend.array(np.array([5, 10, 20]), "float32" if backend.is_pyro else "int32")
    generator = np.random.default_rng(4)

    def fit(*args: Any, deaths: Any) -> dict[str, Any]:
        seen, total = backend.numpy(deaths), backend.numpy(args[-1])
        assert (seen == seen.round()).all() and (seen <= total).all()
        assert given == "name" or deaths.dtype == data.dtype
        return {"rate": generator.beta(2.0 + seen, 2.0 + total - seen, size=(200, 3))}

    data = backend.array(np.array([1, 2, 3]), "float32") if given == "data" else None
    found = calibrated(
        backend,
        counts(backend),
        trials,
        deaths=data,
        observed=None if given == "data" else {"count": "deaths"},
        fit_function=fit,
        num_data_sets=200,
    )
    assert found.ranks["rate"].shape == (200, 3)
    assert found.plates["rate"] == ("groups",)
    assert found.p_value > RARE
    assert found.num_figures == 4


def test_minibatches_of_the_model_have_data_on_all_rows(backend: Any) -> None:
    def model(y: Any) -> None:
        mu = backend.host.sample("mu", backend.dist.Normal(0.0, WIDTH))
        with backend.host.plate("rows", ROWS, subsample_size=2) as rows:
            backend.host.sample("y", backend.dist.Normal(mu, NOISE), obs=y[rows])

    y = backend.array(np.arange(1.0 * ROWS))
    one = exact(backend)

    def fit(*given: Any) -> Any:
        assert given[-1].shape == (ROWS,)
        return one(*given[:-1], ROWS, given[-1])

    found = calibrated(backend, model, y, fit_function=fit, num_data_sets=200)
    assert found.p_value > RARE


def test_the_default_is_the_fit_with_its_verdicts(backend: Any) -> None:
    found = calibrated(backend, conjugate(backend), ROWS, num_data_sets=3)
    assert found.levels == ("exact",) * 3
    assert (found.effective >= 400).all()
    assert "Verdicts of the fits: exact 3." in str(found)


def test_engines_are_taken_as_check_takes_them(backend: Any) -> None:
    public, model = backend.public, conjugate(backend)

    def fit(*given: Any) -> Any:
        rows, y = given[-2:]
        seeds = {"seed": 0} if backend.is_pyro else {}
        engine = public.GSM(model, backend.autoguide.AutoMultivariateNormal(model), **seeds)
        keys = () if backend.is_pyro else given[:1]
        result = engine.run(*keys, 30, rows, y, progress_bar=False)
        return engine if backend.is_pyro else (engine, result)

    found = calibrated(backend, model, ROWS, fit_function=fit, num_data_sets=4)
    assert (found.effective == 2000).all() and found.num_draws == 99


def test_models_that_cannot_be_simulated_are_refused(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def factor(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        host.sample("y", dist.Normal(mu, 1.0), obs=y)
        host.factor("penalty", -(mu**2))

    def scaled(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        host.sample("y", dist.Normal(mu, 1.0), obs=y / 10.0)

    def unseen() -> None:
        host.sample("mu", dist.Normal(0.0, 1.0))

    y = backend.array(np.array(0.5))
    with pytest.raises(ArgumentError, match="found no observed site"):
        calibrated(backend, unseen)
    with pytest.raises(ArgumentError, match="found factors: \\['penalty'\\]"):
        calibrated(backend, factor, y)
    with pytest.raises(ArgumentError, match="observations of 'y' as they are"):
        calibrated(backend, scaled, y)
    with pytest.raises(ArgumentError, match="no arguments"):
        calibrated(backend, scaled, y, observed={"y": "x"})
    with pytest.raises(ArgumentError, match="num_data_sets"):
        calibrated(backend, scaled, y, num_data_sets=0)
    with pytest.raises(ArgumentError, match="fit_function"):
        calibrated(backend, scaled, y, fit_function=3)
