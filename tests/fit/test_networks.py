"""Fits of networks are judged by their outputs, here against a posterior in closed form.

The first layer is held, so that the outputs of the second are those of a linear model with known
noise: Normal, with a covariance that is known.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray
from scipy.stats import norm

from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.fit.networks import networks, outputs, pace, run
from ppl_ext.fit.networks.rows_seen import RowsSeen
from ppl_ext.fit.problem.observed import Observed
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.problem.views import NO_NAMES, Views
from ppl_ext.fit.verdict import facts, policy
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.networks.random_module import watched
from ppl_ext.start.rows import Minibatches
from ppl_ext.start.search import InPieces
from ppl_ext.target.layouts import DataPlate
from ppl_ext.target.log_density import NOTHING, UNTOUCHED
from tests.backends import from_zoo

GENERATOR = np.random.default_rng(5)
INPUTS, UNITS, ROWS, NOISE, BATCH = 4, 10, 60, 0.3, 10
FIRST = GENERATOR.normal(size=(INPUTS, UNITS)), GENERATOR.normal(size=UNITS)
X = GENERATOR.normal(size=(ROWS + 40, INPUTS))


def features(x: np.ndarray) -> np.ndarray:
    """The hidden units (N, H), and one for the bias."""
    return np.column_stack([np.tanh(x @ FIRST[0] + FIRST[1]), np.ones(len(x))])


Y = features(X) @ GENERATOR.normal(size=UNITS + 1) + NOISE * GENERATOR.normal(size=len(X))
TRAIN, HELD_OUT = (X[:ROWS], Y[:ROWS]), (X[ROWS:], Y[ROWS:])
HELD_OUT_ROWS: Any = (HELD_OUT, {})


def posterior(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the outputs (N,), weights being standard Normal."""
    known, at = features(TRAIN[0]), features(x)
    covariance = np.linalg.inv(known.T @ known / NOISE**2 + np.eye(UNITS + 1))
    mean = covariance @ known.T @ TRAIN[1] / NOISE**2
    return at @ mean, np.sqrt(np.einsum("nk,kl,nl->n", at, covariance, at))


def problem(bend: float = 1.0, apart: float = 0.0) -> Problem:
    """The network in NumPy; scores are wrong by the factor ``bend``.

    With ``apart`` there are two posteriors, whose first weights lie so far apart, and no way in
    between.
    """
    known = features(TRAIN[0])

    def one(z: np.ndarray, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        away, times = (TRAIN[1] - z @ known.T)[:, rows], ROWS / len(known[rows])
        value = -0.5 * np.square(z).sum(1) - 0.5 * times * np.square(away / NOISE).sum(1)
        return value, -z + times * away @ known[rows] / NOISE**2

    def pieces(rows: Any) -> Any:
        def piece(z: np.ndarray, _: int) -> tuple[np.ndarray, np.ndarray]:
            moved = z.copy()
            moved[:, 0] -= np.where(z[:, 0] > 0.5 * apart, apart, 0.0)
            value, score = one(moved, slice(None) if rows is None else rows["rows"])
            return value, bend * score

        return piece

    def predictor(_: Any, args: tuple[Any, ...], __: Any, site: str) -> Any:
        x, y = (*args, None)[:2]

        def predict(draws: Any, return_sites: tuple[str, ...]) -> xarray.Dataset:
            mean = draws["w"] @ features(x).T
            spread = np.full_like(mean, NOISE**2)
            found: dict[str, Any] = {
                "mean": (("draw", "row"), mean),
                "variance": (("draw", "row"), spread),
            }
            if y is not None:
                found["cdf"] = ("draw", "row"), norm.cdf((y - mean) / NOISE)
                found["observed"] = ("row",), y
            return xarray.Dataset(found, {"row": np.arange(len(x))}, {"site": site})

        return predict

    generator = np.random.default_rng(0)
    target = SimpleNamespace(
        observed_sites=("y",), layout=SimpleNamespace(improper=(), families={}, names=("w",))
    )

    def prior(number: int, seed: int) -> np.ndarray:
        drawn = np.random.default_rng(seed).normal(size=(number, UNITS + 1))
        drawn[::2, 0] += apart
        return drawn

    return Problem(
        "as written",
        InPieces(pieces(None)),
        UNITS + 1,
        1e-7,
        lambda number: generator.normal(size=(number, UNITS + 1)),
        {"w": slice(0, UNITS + 1)},
        lambda z: {"w": z},
        target,
        target,
        None,
        str,
        minibatches=Minibatches({"rows": DataPlate("rows", ROWS, BATCH, -1)}, pieces),
        prior=prior,
        views=Views(TRAIN, {}, dict, dict, NO_NAMES, None, predictor),
    )


def sampled(
    of: Problem,
    held_out: Any = None,
    *,
    exact: bool = True,
    budget: int = 100_000,
    seconds: float = 600.0,
) -> tuple[np.ndarray, Verdict]:
    """Draws of the weights, and the verdict."""
    rows = outputs.held_out_arguments(held_out)
    judged = outputs.outputs_of(of, None, rows, is_network=True, seconds=seconds)
    assert judged is not None
    wanted = facts.Wanted(400.0, exact, 600.0)
    found, verdict = networks.sampled(
        judged, np.random.default_rng(1), wanted, Meter(budget, 600.0)
    )
    assert sum(stage.evaluations for stage in verdict.cost) <= budget
    return np.asarray(found.draws["w"]), verdict


def check_right(found: np.ndarray, x: np.ndarray, *, worst: float, sd: float) -> None:
    """Errors of outputs (S, N): of means in standard deviations, and of these as a share."""
    mean, deviation = posterior(x)
    assert np.abs((found.mean(0) - mean) / deviation).max() < worst
    assert np.abs(found.std(0) / deviation - 1.0).max() < sd


def test_adjusted_chains_whose_outputs_agree_are_exact() -> None:
    draws, verdict = sampled(problem())
    assert verdict.level == "exact" and verdict.trusted
    assert verdict.headline == "exact: 16 chains agree in predictions"
    # Four errors of 400 effective draws.
    check_right(draws @ features(HELD_OUT[0]).T, HELD_OUT[0], worst=0.2, sd=0.15)


def test_held_out_rows_confirm_chains_that_are_not_adjusted() -> None:
    draws, verdict = sampled(problem(), HELD_OUT)
    assert verdict.level == "approximate" and verdict.trusted
    assert "predictions confirmed" in verdict.headline
    assert "y: mean, held out" in verdict.by_site
    # Four errors of 100 effective draws.
    check_right(draws @ features(HELD_OUT[0]).T, HELD_OUT[0], worst=0.4, sd=0.3)


def test_without_held_out_rows_nothing_confirms_them() -> None:
    _, verdict = sampled(problem(), exact=False)
    assert verdict.level == "approximate" and not verdict.trusted
    assert "Give held_out=, rows by which the predictions are judged." in verdict.reasons


def test_chains_that_cannot_be_adjusted_go_on_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They had ended early, for adjusted ones to begin."""
    monkeypatch.setattr(networks, "_cost", lambda _: 1e9)
    _, verdict = sampled(problem())
    assert verdict.level == "approximate"
    assert any("Chains stayed unadjusted" in reason for reason in verdict.reasons)
    assert not any("Expected" in reason for reason in verdict.reasons)
    assert verdict.cost[-1].name == "more chains"


def test_few_held_out_rows_are_told_to_be_few() -> None:
    x, y = HELD_OUT
    _, verdict = sampled(problem(), (x[:19], y[:19]), exact=False)
    assert any("Give 20 held-out rows at least, found 19." in each for each in verdict.reasons)


def test_held_out_rows_that_are_not_as_predicted_refuse_them() -> None:
    x, y = HELD_OUT
    _, verdict = sampled(problem(), (x, 3.0 * y), exact=False)
    assert verdict.level == "not trusted"
    assert any("calibration error" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("held_out", [None, HELD_OUT], ids=["no rows held out", "rows held out"])
def test_scores_of_another_density_are_not_trusted(
    held_out: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelCheckError, match="Scores are not slopes"):
        sampled(problem(bend=1.5), held_out, budget=35_000)
    # Chains tell of it as well.
    monkeypatch.setattr(networks, "look_at_slopes", lambda *_: None)
    _, verdict = sampled(problem(bend=1.5), held_out, budget=35_000)
    assert verdict.level == "not trusted"


def test_members_that_stay_where_they_started_are_not_trusted() -> None:
    _, verdict = sampled(problem(apart=30.0), HELD_OUT, budget=30_000)
    assert verdict.level == "not trusted"
    assert any("Chains disagree" in reason for reason in verdict.reasons)


def test_rows_that_are_too_many_are_seen_in_minibatches() -> None:
    draws, verdict = sampled(problem(), HELD_OUT, seconds=1e-9)
    assert verdict.level == "approximate" and verdict.trusted, verdict
    assert "minibatches of 10 rows" in verdict.cost[0].note
    assert any("noise of minibatches of 10 rows" in reason for reason in verdict.reasons)
    # Of many rows those that are held out are enough.
    assert list(verdict.by_site) == ["y: mean, held out"]
    # Four errors of 100 effective draws, and what noise adds.
    check_right(draws @ features(HELD_OUT[0]).T, HELD_OUT[0], worst=0.4, sd=0.3)


def test_scores_by_minibatches_have_reduced_variance_and_no_bias() -> None:
    given = problem()
    meter, generator = Meter(10**6, 600.0), np.random.default_rng(0)
    rows = RowsSeen.of(given, meter)
    assert rows.moves == ROWS // BATCH
    z = generator.normal(size=(3, UNITS + 1))
    anchor, evaluate = rows.of_move(None, z, 5, generator)
    assert anchor is not None
    for found, whole in zip(evaluate(z), given.evaluate(z), strict=True):
        np.testing.assert_allclose(found, whole, rtol=1e-10, atol=1e-8)
    # Away from the anchor: the mean of many minibatches, and all evaluations of one move of the
    # same rows.
    near, scores, plain = z + 0.01, [], []
    for number in range(1, 6):
        for _ in range(400):
            same, evaluate = rows.of_move(anchor, near, number, generator)
            assert same is anchor
            scores.append(evaluate(near)[1])
            np.testing.assert_array_equal(evaluate(near)[1], scores[-1])
            plain.append(rows.few(near)[1])
    whole = given.evaluate(near)[1]
    error = np.std(scores, axis=0) / np.sqrt(len(scores))
    assert (np.abs(np.mean(scores, axis=0) - whole) < 5.0 * error).all()
    assert (np.std(scores, axis=0) < 0.1 * np.std(plain, axis=0)).all()
    # After a pass the anchor is where the chains are.
    moved, _ = rows.of_move(anchor, near, ROWS // BATCH, generator)
    assert moved is not None
    np.testing.assert_array_equal(moved.z, near)
    np.testing.assert_array_equal(moved.scores, whole)


def test_minibatches_count_as_the_share_of_rows_that_they_are() -> None:
    given, meter = problem(), Meter(10**6, 600.0)
    rows = RowsSeen.of(given, meter)
    for _ in range(ROWS // BATCH):
        rows.few(np.zeros((7, UNITS + 1)))
    assert meter.evaluations + meter._rest == pytest.approx(7.0)


@pytest.mark.parametrize("budget", [1, 3_000, 5_700])
def test_a_budget_without_chains_says_what_they_take(budget: int) -> None:
    """Before a member of the ensemble is evaluated."""
    of = replace(problem(), minibatches=None)
    with pytest.raises(ArgumentError, match="takes 5,712 evaluations, and .* draws 192 more"):
        sampled(of, budget=budget)
    assert of.evaluate.calls == 0


@pytest.mark.parametrize(
    ("observed", "words", "is_trusted"),
    [
        (Observed(sees_data=False), NOTHING, True),
        (Observed(touches=False), UNTOUCHED, True),
        (Observed(batches={"rows": DataPlate("rows", 600, 60, -1)}), "each counts 10 times", False),
    ],
    ids=["nothing observed", "nothing touched", "a batch of the rows"],
)
def test_verdicts_say_what_of_the_data_they_are_of(
    observed: Observed, words: str, is_trusted: bool
) -> None:
    of = replace(problem(), observed=observed)
    judged = outputs.outputs_of(of, None, HELD_OUT_ROWS, is_network=True, seconds=600.0)
    assert judged is not None
    wanted, meter = facts.Wanted(400.0, False, 600.0), Meter(100_000, 600.0)
    found, verdict = networks.sampled(judged, np.random.default_rng(1), wanted, meter)
    _, longer = networks.further(found, 5, Meter(100_000, 600.0))
    for each in (verdict, longer):
        assert sum(words in reason for reason in each.reasons) == 1
        assert each.trusted is is_trusted and each.confirmed is is_trusted


def test_a_budget_that_ends_in_a_second_warm_up_gives_back_the_draws_before_it() -> None:
    # The first looks are over after 16 x (100 + 250 + 1,000) evaluations or more, of which the last
    # look makes it 1,140; the next warm-up takes 16 x 500.
    _, verdict = sampled(problem(apart=30.0), HELD_OUT, budget=30_000)
    assert verdict.level == "not trusted"
    assert any("Chains disagree" in reason for reason in verdict.reasons)
    assert sum(stage.evaluations for stage in verdict.cost) > 29_000


def test_memory_is_stated_of_so_many_weights() -> None:
    assert run.memory_of(602) == "16 chains of 602 weights take about 32 MB"
    assert run.kept_of(10_000_000) == run.LEAST_KEPT


def test_rows_that_are_fitted_do_not_confirm() -> None:
    for given in (TRAIN, {"x": TRAIN[0], "y": TRAIN[1].copy()}):
        with pytest.raises(ArgumentError, match="found those that are: they confirm nothing"):
            sampled(problem(), given)


def test_rows_are_compared_whatever_they_are() -> None:
    same = outputs._are_same
    x, y = TRAIN
    assert same(((), {"x": x, "y": y}), ((), {"y": y, "x": x}))
    assert not same(((), {}), ((), {}))
    assert not same(((x, {"a": x}), {}), ((x, {"a": x.copy()}), {}))
    assert not same(((x, [[1], [1, 2]]), {}), ((x, [[1], [1, 2]]), {}))
    torch = pytest.importorskip("torch")
    with_gradient = torch.tensor(x, requires_grad=True)
    assert same(((with_gradient,), {}), ((with_gradient.clone(),), {}))
    coarse = torch.tensor(x, dtype=torch.bfloat16)
    assert not same(((coarse,), {}), ((coarse.clone(),), {}))


def test_held_out_arguments_with_which_the_model_fails_are_refused() -> None:
    with pytest.raises(ArgumentError, match="failed with the arguments of held_out: ValueError"):
        sampled(problem(), (None, None))


def test_rows_of_a_loader_are_not_judged() -> None:
    given = problem()
    assert given.views is not None
    given = replace(given, views=replace(given.views, batches=[1]))
    options: Any = {"is_network": True, "seconds": 600.0}
    assert outputs.outputs_of(given, None, None, **options) is None
    with pytest.raises(ArgumentError, match="Pass the rows as arguments"):
        outputs.outputs_of(given, "outputs", None, **options)


@pytest.mark.parametrize("held_out", [np.zeros(3), "rows"])
def test_held_out_rows_are_arguments(held_out: Any) -> None:
    with pytest.raises(ArgumentError, match="held_out"):
        outputs.held_out_arguments(held_out)


def model_of(backend: Any, batch: int | None = None) -> Any:
    """The same network as a program, by ``random_module``, with minibatches of so many rows."""
    px, weight, bias = backend.public, backend.array(FIRST[0]), backend.array(FIRST[1])
    module: Any
    if backend.is_pyro:
        import torch

        module = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, UNITS), torch.nn.Tanh(), torch.nn.Linear(UNITS, 1)
        )
        module.load_state_dict(
            {**module.state_dict(), "0.weight": weight.T.contiguous(), "0.bias": bias}
        )
        held = "0.*"
    else:
        import jax.numpy as jnp
        from flax import nnx

        rngs = nnx.Rngs(0)
        layers: Any = nnx.Linear(INPUTS, UNITS, rngs=rngs), nnx.Linear(UNITS, 1, rngs=rngs)
        layers[0].kernel.set_value(weight)
        layers[0].bias.set_value(bias)
        module = nnx.Sequential(layers[0], jnp.tanh, layers[1])
        held = "layers.0.*"

    def model(x: Any, y: Any = None) -> None:
        prior = {held: None, "*": backend.dist.Normal(0.0, 1.0)}
        net = px.random_module("net", module, prior)
        with backend.host.plate("rows", len(x), subsample_size=batch) as rows:
            if batch is not None:
                x, y = x[rows], None if y is None else y[rows]
            backend.host.sample("y", backend.dist.Normal(net(x)[:, 0], NOISE), obs=y)

    return model


def test_programs_with_rows_that_are_too_many_go_by_minibatches(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And go on afterwards as they would have gone on by themselves."""
    monkeypatch.setattr(policy, "CHAIN_EVALUATIONS", 10**12)
    monkeypatch.setattr(pace, "BY_MINIBATCHES", pace.Pace(300, 0.03, 700, 400))
    single = [[backend.array(each.astype(np.float32)) for each in of] for of in (TRAIN, HELD_OUT)]
    train, held_out = map(tuple, single)
    model, fit = model_of(backend, BATCH), backend.public.fit
    if not backend.is_pyro:
        import jax

        fit = partial(fit, jax.random.key(0))
    found, again = (fit(model, *train, held_out=held_out, progress_bar=False) for _ in range(2))
    assert found.verdict.trusted and "minibatches" in found.history[0].note, found.verdict
    prefix, last = ("net.2", "weight") if backend.is_pyro else ("net.layers.2", "kernel")
    weight = found[f"{prefix}.{last}"].reshape(-1, UNITS)
    draws = np.column_stack([weight, found[f"{prefix}.bias"].reshape(-1, 1)])
    check_right(draws @ features(HELD_OUT[0]).T, HELD_OUT[0], worst=0.4, sd=0.3)

    found.more(32, progress_bar=False).more(48, progress_bar=False)
    again.more(80, progress_bar=False)
    for name, each in found.draws.items():
        np.testing.assert_array_equal(backend.numpy(each), backend.numpy(again.draws[name]))


def test_networks_by_the_hosts_own_modules_are_known(backend: Any) -> None:
    """Two layers with random weights are a network, one alone is a regression."""
    names = ["bnn"] if backend.is_pyro else ["bnn", "bnn_linen", "bnn_equinox"]
    for name in names:
        model, args, _ = from_zoo(backend, name)
        with watched() as found:
            backend.target(model, args)
        assert found, name
    x = np.ones((5, 2), np.float32)
    if backend.is_pyro:
        import torch
        from pyro.nn import PyroModule, PyroSample

        line = PyroModule[torch.nn.Linear](2, 1, bias=False)
        line.weight = PyroSample(backend.dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
    else:
        from flax import nnx
        from numpyro.contrib.module import random_nnx_module

        module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    def model_of_one(x: Any, y: Any) -> None:
        net: Any = line if backend.is_pyro else None
        if net is None:
            net = random_nnx_module("net", module, prior=backend.dist.Normal(0.0, 1.0))
        mean = net(x)[:, 0]
        with backend.host.plate("rows", len(x)):
            backend.host.sample("y", backend.dist.Normal(mean, 1.0), obs=y)

    with watched() as found:
        backend.target(model_of_one, (backend.array(x), backend.array(x[:, 0])))
    assert not found


def test_programs_of_random_modules_are_judged_by_outputs(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = [[backend.array(each.astype(np.float32)) for each in of] for of in (TRAIN, HELD_OUT)]
    model, train, held_out = model_of(backend), *map(tuple, single)
    fit: Any = backend.public.fit
    if not backend.is_pyro:
        import jax

        fit = partial(fit, jax.random.key(0))
    found = fit(model, *train, held_out=held_out, progress_bar=False)
    assert found.verdict.of_outputs and found.verdict.trusted, found.verdict
    prefix, last = ("net.2", "weight") if backend.is_pyro else ("net.layers.2", "kernel")
    weight = found[f"{prefix}.{last}"].reshape(-1, UNITS)
    draws = np.column_stack([weight, found[f"{prefix}.bias"].reshape(-1, 1)])
    check_right(draws @ features(HELD_OUT[0]).T, HELD_OUT[0], worst=0.4, sd=0.3)
    assert found.log_evidence.value is None

    again = fit(model, *train, held_out=held_out, progress_bar=False)
    number = len(weight)
    found.more(32, progress_bar=False).more(48, progress_bar=False)
    again.more(80, progress_bar=False)
    for name, each in found.draws.items():
        np.testing.assert_array_equal(backend.numpy(each), backend.numpy(again.draws[name]))
        assert len(each) == number + 80
    assert found.verdict.reasons == again.verdict.reasons

    # Fewer rows: chains go on from where they are, and the held-out rows are looked at again.
    x, y = train
    other = found.refit(x[:40], y[:40], progress_bar=False)
    assert other.verdict.of_outputs and other.verdict.trusted, other.verdict
    assert [stage.name for stage in other.history] == ["refit", "network chains"]
    assert "y: mean, held out" in other.verdict.by_site

    # A file has no chains of networks to go on from. It is fitted from anew, which is said.
    found.save(tmp_path / "fit")
    loaded = backend.public.load_fit(tmp_path / "fit", model, *train)

    def stopped(*given: Any) -> Any:
        raise InterruptedError(given[-1])

    monkeypatch.setattr(networks, "sampled", stopped)
    with pytest.raises(InterruptedError, match="neither its chains nor the rows that it held out"):
        loaded.refit(x[:40], y[:40], progress_bar=False)


def test_a_network_that_is_fitted_from_anew_says_why() -> None:
    judged = outputs.outputs_of(problem(), None, None, is_network=True, seconds=600.0)
    assert judged is not None
    wanted, meter = facts.Wanted(100.0, False, 600.0), Meter(100_000, 600.0)
    generator = np.random.default_rng(1)
    _, verdict = networks.sampled(judged, generator, wanted, meter, None, "files have no chains")
    assert verdict.cost[0].note == "from anew: files have no chains"


def test_outputs_are_predicted_in_whole_pieces() -> None:
    """What fills a piece up is no draw, and the model is looked at once for all looks."""
    found, made = problem(), list[str]()
    assert found.views is not None and found.views.predictor is not None
    before = found.views.predictor

    def predictor(draws: Any, args: Any, kwargs: Any, site: str) -> Any:
        made.append(site)
        return before(draws, args, kwargs, site)

    found = replace(found, views=replace(found.views, predictor=predictor))
    looked_at = outputs.Outputs(found, {"": (TRAIN, {})})
    positions = found.starting_points(outputs.PIECE + 3)
    whole = looked_at.columns(positions)["y: mean"]
    few = looked_at.columns(positions[:-2])["y: mean"]
    assert made == ["y"]
    np.testing.assert_allclose(whole, positions @ features(TRAIN[0]).T, rtol=1e-6)
    np.testing.assert_array_equal(few, whole[:-2])


def test_outputs_that_are_no_numbers_are_told_and_not_judged() -> None:
    draws = np.random.default_rng(0).normal(size=(20, 3))
    broken = draws.copy()
    broken[:5, 1], broken[3, 2] = np.nan, np.inf
    kept, told = outputs.finite_columns({"y: mean": draws, "z: mean": broken})
    assert [each.shape[1] for each in kept.values()] == [3, 1]
    assert len(told) == 1 and told[0].startswith(
        "2 of 3 outputs 'z: mean' are NaN or infinite in 25% of the draws, and are not judged."
    )
    found = problem()
    assert found.views is not None and found.views.predictor is not None
    before = found.views.predictor

    def predictor(*args: Any, **options: Any) -> Any:
        return lambda *given, **more: before(*args, **options)(*given, **more) * np.nan

    found = replace(found, views=replace(found.views, predictor=predictor))
    with pytest.raises(ArgumentError, match="60 outputs 'y: mean' are NaN .* 100% of the draws"):
        outputs.outputs_of(found, "outputs", None, is_network=True, seconds=600.0)
