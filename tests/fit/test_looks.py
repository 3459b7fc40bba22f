"""What a fit shows of itself: a table, ArviZ, predictions, pictures, a page of a notebook."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

from ppl_ext.diagnostics.posterior import numbers_of_draws, table
from ppl_ext.diagnostics.tables import Table
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after.looks import KINDS
from ppl_ext.fit.after.saved import names_as_tree, names_from_tree
from ppl_ext.fit.fit import Fit, ends
from ppl_ext.fit.problem.naming import told_with_labels
from ppl_ext.fit.problem.views import Names
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.fit.verdict.verdict import Stage, Verdict
from ppl_ext.running import state_files

X = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
Y = np.array([0.7, 2.6, 4.4, 6.9, 8.3, 10.6])
TOWNS = ["Ulm", "Bonn", "Trier", "Mainz", "Gera", "Jena"]


def line(backend: Any) -> Any:
    """A line through six points, with known noise and the mean of each row as a site."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("town", len(x)):
            mean = host.deterministic("mean", slope * x)
            host.sample("y", dist.Normal(mean, 0.5), obs=y)

    return model


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """One fit for each package, which the tests look at."""
    return {}


@pytest.fixture
def fit(backend: Any, kept: dict[str, Any]) -> Any:
    if backend.name not in kept:
        keys = () if backend.is_pyro else (backend.key(),)
        kept[backend.name] = backend.public.fit(
            *keys,
            line(backend),
            backend.array(X),
            backend.array(Y),
            progress_bar=False,
            dims={"mean": ["town"], "x": ["town"]},
            coords={"town": TOWNS, "of another model": [1, 2]},
        )
    return kept[backend.name]


def of_slope() -> tuple[float, float]:
    """Exact mean and standard deviation of the slope."""
    precision = 0.01 + (X**2).sum() / 0.25
    return (X * Y).sum() / 0.25 / precision, precision**-0.5


def test_the_summary_has_a_row_for_each_number_by_its_label(fit: Any) -> None:
    table = fit.summary()
    assert list(table.index) == ["slope", *(f"mean[{town}]" for town in TOWNS)]
    mean, sd = of_slope()
    row = table.loc["slope"]
    assert abs(row["mean"] - mean) < 4.0 * sd / np.sqrt(row["ess_bulk"])
    assert row["sd"] == pytest.approx(sd, rel=4.0 / np.sqrt(2.0 * row["ess_bulk"]))
    # A Normal's quantiles; errors of quantiles are about twice those of the mean.
    error = 8.0 * sd / np.sqrt(row["ess_bulk"])
    assert abs(row["5%"] - (mean - 1.645 * sd)) < error
    assert abs(row["95%"] - (mean + 1.645 * sd)) < error
    assert row["mcse_mean"] == pytest.approx(row["sd"] / np.sqrt(row["ess_bulk"]))
    assert row["r_hat"] < 1.01
    np.testing.assert_allclose(table["mean"].iloc[1:], row["mean"] * X, rtol=1e-5, atol=1e-6)
    # The axes of a constant are named too, where it is and where it is left out, as in tables.
    assert fit.to_arviz()["constant_data"]["x"].dims == ("town",)
    narrow = fit.summary(["slope"], probability=0.5)
    assert list(narrow.index) == ["slope"] and {"25%", "75%"} <= set(narrow.columns)
    with pytest.raises(ArgumentError, match=r"Expected some of the sites .*'slope'.*found \['b'\]"):
        fit.summary(["b"])


def test_a_row_of_booleans_has_their_share() -> None:
    held = np.random.default_rng(0).uniform(size=400) < 0.7
    found = table(
        numbers_of_draws({"held": held}, {}),
        None,
        0.9,
        lambda row, x: (x.mean(), x.std(), *5 * [0.0]),
    )
    assert found.loc["held", "mean"] == held.mean()
    assert list(found.loc["held", ["5%", "95%"]]) == [0.0, 1.0]


def test_figures_of_a_site_are_those_of_its_draws() -> None:
    generator = np.random.default_rng(0)
    # Four chains, one after the other; a constant has no figures.
    draws = generator.normal(3.0, 2.0, (4_000, 2, 3))
    draws[:, 0, 0] = 1.0
    found = site_figures("w", draws, 4, 1.0)
    assert [value.name for value in found.values] == [
        f"w[{i}, {j}]" for i in range(2) for j in range(3)
    ]
    assert found.size == 6 and np.isnan(found.values[0].r_hat)
    second = found.values[1]
    assert second.mean == pytest.approx(draws[:, 0, 1].mean())
    assert second.sd == pytest.approx(draws[:, 0, 1].std())
    assert second.mean_error == pytest.approx(second.sd / np.sqrt(second.ess_bulk))
    # Four chains know their own effective number to a half.
    assert second.sd_error == pytest.approx(2.0 / np.sqrt(2.0 * 4_000), rel=1.5)
    # Independent draws, a quarter of which counts: the standard deviation's error is that of so
    # many draws of a Normal.
    alone = site_figures("w", draws, 1, 0.25).values[1]
    assert alone.ess_bulk == 1_000.0 and np.isnan(alone.r_hat)
    assert alone.mean_error == pytest.approx(second.sd / np.sqrt(1_000.0))
    assert alone.sd_error == pytest.approx(second.sd / np.sqrt(2.0 * 1_000.0), rel=0.05)
    # Nothing is known of a mean by draws that are worth nothing, and nothing warns.
    assert site_figures("w", draws, 1, 0.0).values[1].mean_error == np.inf
    # Of many numbers the least certain is shown.
    slow = np.repeat(generator.normal(size=(40, 1)), 100, axis=0)
    many = np.concatenate([generator.normal(size=(4_000, 20)), slow], axis=1)
    (worst,) = site_figures("z", many, 4, 1.0).values
    assert worst.name == "z[20]" and worst.ess_bulk < 200.0


def test_arviz_and_predictions_take_the_arguments_of_the_fit(backend: Any, fit: Any) -> None:
    tree = fit.to_arviz()
    assert tree["posterior"]["mean"].dims == ("chain", "draw", "town")
    assert list(tree["posterior"]["town"].values) == TOWNS
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "town")
    np.testing.assert_allclose(tree["observed_data"]["y"].values, Y, rtol=1e-6)
    other = fit.to_arviz(num_samples=32, coords={"town": range(6)}, log_likelihood=False)
    assert other["posterior"].sizes["draw"] * fit.num_chains == 32
    assert "log_likelihood" not in other and list(other["posterior"]["town"].values) == [*range(6)]
    same = backend.public.to_arviz(fit)
    np.testing.assert_array_equal(same["posterior"]["slope"], tree["posterior"]["slope"])


def test_predictions_have_the_distribution_of_new_rows(backend: Any, fit: Any) -> None:
    new = np.array([10.0, -3.0, 0.0])
    found = fit.predict(backend.array(new))
    assert list(found) == ["mean", "y"] and found["y"].shape == (len(fit["slope"]), 3)
    np.testing.assert_allclose(found["mean"], fit["slope"][:, None] * new, rtol=1e-5)
    some = fit.predict(backend.array(new), return_sites=["slope", "y"])
    np.testing.assert_array_equal(some["slope"], fit["slope"])
    np.testing.assert_array_equal(some["y"], found["y"])
    with pytest.raises(ArgumentError, match=r"return_sites=\['mean'\]"):
        fit.predict(return_sites="mean")
    with pytest.raises(ArgumentError, match=r"return_sites of \['mean', 'slope', 'y'\], found"):
        fit.predict(return_sites=["slop"])
    mean, sd = of_slope()
    spread, number = np.hypot(0.5, new * sd), len(found["y"])
    error = np.sqrt(spread**2 / number + (new * sd) ** 2 / 400)
    assert (abs(found["y"].mean(0) - mean * new) < 4.5 * error).all()
    np.testing.assert_allclose(found["y"].std(0), spread, rtol=4.5 / np.sqrt(2 * 400))
    # No two draws have the same noise, and it does not depend on the row.
    noise = found["y"] - fit["slope"][:, None] * new
    assert len(np.unique(noise[:, 0])) > 0.9 * number
    assert abs(np.corrcoef(noise.T)[0, 1]) < 4.5 / np.sqrt(number)
    again, others = fit.predict(backend.array(new)), fit.predict(backend.array(new), seed=1)
    np.testing.assert_array_equal(again["y"], found["y"])
    assert (others["y"] != found["y"]).any()
    # Without arguments those of the fit; so many draws as are asked for, and in ArviZ's object,
    # where chains have as many, so many at least.
    assert fit.predict(num_samples=30)["y"].shape == (30, 6)
    assert dict(fit.to_arviz(num_samples=30)["posterior"].sizes) == {
        "chain": 16,
        "draw": 2,
        "town": 6,
    }


def test_draws_are_found_by_the_name_of_their_site(backend: Any, fit: Any) -> None:
    np.testing.assert_array_equal(fit["slope"], backend.numpy(fit.draws["slope"]))
    np.testing.assert_allclose(fit["mean"], fit["slope"][:, None] * X, rtol=1e-5, atol=1e-6)
    assert list(fit) == ["slope"] and "slope" in fit and "mean" not in fit
    with pytest.raises(ArgumentError, match="Expected one of the sites .*'slope'.* found 'alpha'"):
        fit["alpha"]


def test_errors_of_the_model_at_new_rows_tell_of_other_columns(backend: Any, fit: Any) -> None:
    with pytest.raises(Exception) as caught:
        fit.predict(backend.array(np.ones((4, 3))))
    assert "Argument args[0] has shape (4, 3), and had (6,) in the fit." in caught.value.__notes__


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
@pytest.mark.parametrize("kind", KINDS)
def test_pictures(fit: Any, kind: str) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    names = ["slope", "mean"] if kind == "pair" else ["slope"]
    options = {} if kind in ("predictive", "history") else {"var_names": names}
    assert fit.plot(kind, **options) is not None
    plt.close("all")


def test_pictures_of_other_kinds_are_refused(fit: Any) -> None:
    with pytest.raises(ArgumentError, match="kind.*'posterior'.*found 'density'"):
        fit.plot("density")


def test_a_fit_without_its_program_shows_its_draws(backend: Any, fit: Any, tmp_path: Path) -> None:
    fit.save(tmp_path / "fit")
    alone = backend.public.load_fit(tmp_path / "fit")
    assert list(alone.summary().index) == ["slope"]
    np.testing.assert_array_equal(alone["slope"], fit["slope"])
    assert alone._repr_html_() == fit._repr_html_()
    for look in (alone.to_arviz, alone.predict, lambda: alone.plot("trace")):
        with pytest.raises(ArgumentError, match="loaded without. Give load_fit"):
            look()
    whole = backend.public.load_fit(
        tmp_path / "fit",
        line(backend),
        backend.array(X),
        backend.array(Y),
        coords={"town": TOWNS},
    )
    assert list(whole.summary().index) == list(fit.summary().index)


def test_too_many_panels_are_told(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise ValueError("Requested 49 subplots, which exceeds rcParams['plot.max_subplots']=40.")

    monkeypatch.setattr("arviz.plot_pair", refuses)
    with pytest.raises(ArgumentError, match=r"plot\('pair', var_names=\['slope'\]\)"):
        fit.plot("pair")


def test_sentences_name_numbers_by_their_labels() -> None:
    labels = {"m": [["a", "b"], [2001, 2002]], "n": [["x", "y"]]}
    said = ("that of 'm[1, 0]', beside 'n[1]'", "'p[1]', 'n[1, 1]', 'n' and n[0]")
    told = ("that of 'm[b, 2001]', beside 'n[y]'", said[1])
    assert told_with_labels(said, labels) == told


def test_a_pickled_fit_has_its_labels(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        with host.plate("town", len(TOWNS)):
            mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
            host.sample("y", dist.Normal(mean, 0.5), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    options: dict[str, Any] = {"coords": {"town": TOWNS}, "exact": False, "progress_bar": False}
    fit = backend.public.fit(*keys, model, backend.array(Y), **options)
    found = pickle.loads(pickle.dumps(fit))
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert list(each.summary().index) == [f"mean[{town}]" for town in TOWNS]


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b"],
        [1, 2],
        [0.5, 1.5],
        [True, False],
        list(np.array(["2020-01-01", "2021-05-03"], "datetime64[ns]")),
        list(np.array(["2020-01-01", "2021-05-03"], "datetime64[D]")),
        list(np.array([1, 2], "timedelta64[ns]")),
        list(pd.to_datetime(["2020-01-01 09:00", "2021-05-03 10:00"])),
        [
            pd.Timestamp("2020-01-01 00:00:00.123456789"),
            pd.Timestamp("2020-01-01 00:00:00.123456790"),
        ],
        [pd.Timestamp("2020-01-01"), pd.NaT],
        [datetime(2020, 1, 1), datetime(2021, 5, 3, 10)],
        [date(1500, 1, 1), date(2021, 5, 3)],
        ["a", 1],
        [],
    ],
    ids=str,
)
def test_a_file_has_labels_as_they_were_given(labels: list[Any], tmp_path: Path) -> None:
    names = Names(coords={"axis": labels}, labels={"site": [labels]})
    kind: dict[str, Any] = {"engine": "names", "settings": {}, "tuning": {}, "sites": []}
    path = tmp_path / "names"
    state_files.save(path, kind, {"names": names_as_tree(names)}, lambda each: (each, {}))
    _, state = state_files.load(path, "names", lambda array, _: array)
    found = names_from_tree(state["names"])
    given = xarray.Variable("axis", labels).values
    for each in (found.coords["axis"], found.labels["site"][0]):
        again = xarray.Variable("axis", list(each)).values
        assert list(map(str, again)) == list(map(str, given))  # as a table names its rows
        if given.dtype.kind != "O":
            np.testing.assert_array_equal(again, given)


def test_data_that_were_changed_in_place_are_not_shown(backend: Any) -> None:
    x, y = X.astype(np.float32), Y.astype(np.float32)
    keys = () if backend.is_pyro else (backend.key(),)
    wrapped = backend.array if backend.is_pyro else np.asarray
    given = wrapped(x), wrapped(y)
    fit = backend.public.fit(*keys, line(backend), *given, progress_bar=False, exact=False)
    given[1][0] += 1.0
    for look in (fit.to_arviz, fit.predict):
        with pytest.raises(ArgumentError, match="changed in place"):
            look()


def test_what_does_not_fit_into_memory_is_refused_before_it_is_computed(
    fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six rows each of a log likelihood, predictions and a mean, and the prior of one number.
    number, room = len(fit["slope"]), 100 * 4 * (3 * 6 + 1) / 0.8
    monkeypatch.setattr("ppl_ext.diagnostics.replay.free_memory", lambda: room)
    with pytest.raises(ArgumentError, match=f"for {number:,} draws.*Pass num_samples=96 or fewer"):
        fit.to_arviz()
    assert "posterior" in fit.to_arviz(num_samples=96)


def test_groups_of_very_many_numbers_have_fewer_draws_and_say_so(
    backend: Any, fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six rows: two draws of each of 16 chains are 192 numbers.
    number, whole = len(fit["slope"]), fit.to_arviz()
    monkeypatch.setattr("ppl_ext.diagnostics.thinning.MOST_NUMBERS", 192)
    monkeypatch.setattr("ppl_ext.diagnostics.thinning.LEAST_DRAWS", 1)
    with pytest.warns(UserWarning, match=f"Of the {number:,} draws 32, .*num_samples={number} "):
        tree = fit.to_arviz()
    for name in ("log_likelihood", "posterior_predictive"):
        assert dict(tree[name].sizes) == {"chain": 16, "draw": 2, "town": 6}
    # The others have all draws, by whose numbers those of the few are known.
    posterior = tree["posterior"]
    np.testing.assert_array_equal(posterior["mean"].values, whole["posterior"]["mean"].values)
    assert tree["sample_stats"].sizes["draw"] * 16 == number
    few, all_of_them = tree["log_likelihood"]["y"], whole["log_likelihood"]["y"]
    np.testing.assert_allclose(few, all_of_them.sel(draw=few["draw"]), rtol=1e-5)
    noise = tree["posterior_predictive"]["y"] - posterior["mean"].sel(draw=few["draw"])
    assert abs(noise.values.std() / 0.5 - 1.0) < 4.5 / np.sqrt(2 * 192)
    # So many as are asked for are there, and what is not wanted is not thinned.
    asked = fit.to_arviz(num_samples=number)
    assert asked["log_likelihood"].sizes["draw"] * 16 == number
    without = {"log_likelihood": False, "posterior_predictive": False}
    assert fit.to_arviz(**without)["posterior"].sizes["draw"] * 16 == number


def test_many_rows_are_computed_draw_by_draw_as_few_are(
    backend: Any, fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit.to_arviz()
    for module in ("replay", "fit_groups"):
        monkeypatch.setattr(f"ppl_ext.diagnostics.{module}.TOGETHER", 24)
    monkeypatch.setattr("ppl_ext.diagnostics.fit_groups.LEAST_TOGETHER", 3)
    parts = fit.to_arviz()
    for group, name in (("log_likelihood", "y"), ("posterior", "mean"), ("sample_stats", "log_p")):
        np.testing.assert_allclose(parts[group][name], whole[group][name], rtol=1e-4)
    if not backend.is_pyro:  # Draws have keys of their own.
        found = (each["posterior_predictive"]["y"] for each in (parts, whole))
        np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("what", ["dims", "coords"])
def test_names_are_checked_before_anything_is_computed(backend: Any, what: str) -> None:
    keys = () if backend.is_pyro else (backend.key(),)

    def model() -> None:
        raise AssertionError

    with pytest.raises(ArgumentError, match=f"Expected {what}.'town'. to be a list"):
        backend.public.fit(*keys, model, **{what: {"town": "Ulm"}})


def test_other_rows_of_a_plate_with_latents_are_refused_with_what_helps(backend: Any) -> None:
    keys = () if backend.is_pyro else (backend.key(),)
    args = [backend.array(np.stack([X, X**2], 1)), backend.array(Y)]
    fit = backend.public.fit(*keys, slopes(backend), *args, progress_bar=False, exact=False)
    assert fit.predict(args[0])["y"].shape[1:] == (6,)
    with pytest.raises(ArgumentError, match="'shift' in shape .2,., found .6.*a plate of groups"):
        fit.predict(args[0][:2])


def test_what_a_look_does_not_take_is_told(backend: Any, fit: Any) -> None:
    new = backend.array(X)
    for given, options in (((new,), {}), ((), {"x": new})):
        with pytest.raises(ArgumentError, match=r"found .* Type fit\.to_arviz\(\), fit\.predict"):
            fit.to_arviz(*given, **options)
    with pytest.raises(ArgumentError, match=r"found dims=\. Type fit\(model, \*args, dims="):
        fit.summary(dims={"slope": []})
    with pytest.raises(
        ArgumentError, match="arguments of summary among sites=, probability=, but too"
    ):
        fit.summary(["slope"], 0.9)
    with pytest.raises(
        ArgumentError, match="arguments of more among num_draws=.* but missing .*'num_draws'"
    ):
        fit.more(number=3)


def slopes(backend: Any) -> Any:
    """A plane through six points, with two slopes and a shift of each town."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(backend.array(np.zeros(2)), 10.0).to_event(1))
        with host.plate("town", len(x)):
            shift = host.sample("shift", dist.Normal(0.0, 1.0))
            host.sample("y", dist.Normal(x @ w + shift, 0.5), obs=y)

    return model


NAMES = {"dims": {"w": ["feature"]}, "coords": {"feature": ["age", "height"], "town": TOWNS}}


def test_names_of_axes_are_kept_in_the_verdict_and_in_a_file(backend: Any, tmp_path: Path) -> None:
    keys = () if backend.is_pyro else (backend.key(),)
    model, args = slopes(backend), (backend.array(np.stack([X, X**2], 1)), backend.array(Y))
    fit = backend.public.fit(*keys, model, *args, progress_bar=False, **NAMES)
    without = backend.public.fit(*keys, model, *args, progress_bar=False)
    np.testing.assert_array_equal(fit["w"], without["w"])
    rows = ["w[age]", "w[height]", *(f"shift[{town}]" for town in TOWNS)]
    assert [value.name for name in fit for value in fit.verdict.by_site[name].values] == rows
    assert "w[height]" in str(fit.verdict) and fit.verdict.worst.name in rows
    fit.save(tmp_path / "fit")
    alone = backend.public.load_fit(tmp_path / "fit")
    assert list(alone.summary().index) == rows and "shift[Bonn]" in str(alone.verdict)
    alone.save(tmp_path / "again")
    assert list(backend.public.load_fit(tmp_path / "again").summary().index) == rows
    whole = backend.public.load_fit(tmp_path / "fit", model, *args)
    assert list(whole.to_arviz()["posterior"]["feature"].values) == ["age", "height"]
    assert [value.name for value in whole.verdict.by_site["w"].values] == rows[:2]
    other = {"coords": {"town": [1, 2, 3, 4, 5, 6]}}
    found = backend.public.load_fit(tmp_path / "fit", model, *args, **other)
    assert [value.name for value in found.verdict.by_site["shift"].values][-1] == "shift[6]"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"dims": {"v": ["feature"]}}, r"dims names \['v'\], which are no variables.*'w'"),
        ({"dims": {"w": ["feature", "town"]}}, "Expected 1 dims for 'w' in group posterior"),
        ({"dims": {"y": ["town", "other"]}}, "Expected 1 dims for 'y'"),
        ({"coords": {"town": TOWNS[1:]}}, "Expected 6 labels along dimension 'town', found 5"),
        ({"coords": {"town": ["Ulm", *TOWNS[:5]]}}, "'town'. to have a label .* 'Ulm' twice"),
    ],
)
def test_names_that_do_not_fit_the_program_are_refused_before_it_is_fitted(
    backend: Any, monkeypatch: pytest.MonkeyPatch, names: Any, told: str
) -> None:
    def climb(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("ppl_ext.fit.fit.climb", climb)
    keys = () if backend.is_pyro else (backend.key(),)
    args = backend.array(np.stack([X, X**2], 1)), backend.array(Y)
    with pytest.raises(ArgumentError, match=told):
        backend.public.fit(*keys, slopes(backend), *args, progress_bar=False, **names)


VERDICT = Verdict(
    "exact",
    ("Least certain is 'b'. Give more seconds.", "Give more seconds.", "All <is> well."),
    {"b": site_figures("b", np.random.default_rng(1).normal(3.0, 0.2, 4_000), 4, 1.0)},
    (Stage("chains", 4_000, 1.0, "4 chains"),),
    num_chains=4,
)


def test_the_bar_says_how_a_fit_ended() -> None:
    class Bar:
        def set_description_str(self, text: str) -> None:
            self.description = text

        def set_postfix_str(self, text: str) -> None:
            self.postfix = text

    bar = Bar()
    ends(bar, VERDICT)
    assert bar.description == "exact" and bar.postfix.startswith("ESS ")
    # What the draws seemed to be worth on the way is no figure of draws that are not trusted.
    ends(bar, Verdict("not trusted", ("Chains disagree: R-hat 1.2. Give more seconds.",)))
    assert (bar.description, bar.postfix) == ("not trusted", "Chains disagree: R-hat 1.2.")


def test_a_verdict_says_what_was_found_and_what_to_do_apart() -> None:
    assert VERDICT.findings == ("Least certain is 'b'.", "All <is> well.")
    assert VERDICT.advice == ("Give more seconds.",)
    more = (
        "Chains were not run. Give a larger budget=.",
        "R-hat 1.2. Give a larger budget= or seconds=.",
    )
    assert replace(VERDICT, reasons=more).advice == ("Give a larger budget= or seconds=.",)
    lines = str(VERDICT).splitlines()
    assert lines[0] == "exact: 4 chains agree" and lines[3:5] == [
        "What to do:",
        "  1. Give more seconds.",
    ]
    (row,) = (each.split() for each in lines if each.startswith("b "))
    assert float(row[1]) == pytest.approx(3.0, abs=0.02)
    assert float(row[4]) == pytest.approx(0.2, abs=0.02)
    assert [float(each) for each in row[7:9]] == pytest.approx([2.67, 3.33], abs=0.03)
    page = VERDICT._repr_html_()
    assert page.count("<table") == 2 and "<ol" in page and "All &lt;is&gt; well." in page
    assert "<pre" not in page and "color:#" not in page
    # On a phone texts are wrapped between words, and a table that is wider scrolls by itself.
    assert "white-space:normal" in page and page.count("overflow-x:auto") == 2


def test_errors_are_shown_only_where_they_are_known() -> None:
    def shown(verdict: Verdict) -> list[str]:
        table = verdict.table()
        assert table is not None
        return list(table.rows[0])

    def changed(**fields: Any) -> Verdict:
        return Verdict(**{**vars(VERDICT), **fields})

    trusted, refused = shown(VERDICT), shown(changed(level="not trusted"))
    assert [each.split(" ± ")[0] for each in trusted] == refused
    assert [" ± " in each for each in trusted] == [False, True, True, *[False] * 4]
    site = VERDICT.by_site["b"]
    bound = {"b": replace(site, mean_bound=0.1)}
    found = shown(changed(level="approximate", confirmed=True, by_site=bound))
    assert " ± <" in found[1] and " ± <" in found[2]
    (value,) = site.values
    heavy = {"b": replace(site, values=(replace(value, sd_error=np.inf),))}
    assert shown(changed(by_site=heavy))[2] == f"{refused[2]} (heavy tails)"
    assert shown(changed(by_site=heavy, level="not trusted"))[2] == refused[2]


def test_the_table_has_quantiles_and_fits_a_line() -> None:
    draws = np.random.default_rng(2).normal(3.0, 0.2, (4_000, 3))
    (value, *_) = site_figures("b", draws, 4, 1.0).values
    assert (value.lower, value.upper) == tuple(np.quantile(draws[:, 0], [0.05, 0.95]))
    wide = site_figures("coefficients_of_towns", np.tile(draws, (1, 400)), 4, 1.0)
    table = Verdict("exact", (), {"coefficients_of_towns": wide}, num_chains=4).table()
    assert table is not None and table.header[3:5] == ("5%", "95%")
    assert max(map(len, str(table).splitlines())) <= 100


def test_tails_are_heavy_where_they_are() -> None:
    """And not in all numbers of a site of which one has such tails."""
    generator = np.random.default_rng(3)
    draws = np.stack([generator.normal(size=4_000), generator.standard_cauchy(4_000)], 1)
    found = site_figures("b", draws, 4, 1.0)
    assert found.is_heavy and np.isinf(found.values[1].sd_error)
    assert found.values[0].sd_error < 0.1


def test_a_verdict_for_programs_is_plain_values() -> None:
    found = VERDICT.as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {
        *("schema", "level", "trusted", "confirmed", "num_chains", "headline", "reasons"),
        *("findings", "advice", "worst", "sites", "stages", "evaluations", "seconds"),
        "total_variation",
    }
    assert found["schema"] == 1 and found["trusted"] is True and found["worst"] == "b"
    (value,) = found["sites"]["b"]["values"]
    assert value["mean"] == pytest.approx(3.0, abs=0.02)
    assert Verdict.from_json(VERDICT.as_json()) == VERDICT
    # Of independent draws there is no R-hat.
    alone = Verdict("corrected", (), {"b": site_figures("b", np.arange(9.0), 1, 1.0)})
    assert alone.as_dict()["sites"]["b"]["r_hat"] is None


def test_a_fit_made_by_hand_has_no_arguments() -> None:
    fit = Fit({"x": np.arange(8.0)}, Verdict("corrected", ()), 1)
    assert list(fit.summary().index) == ["x"] and fit["x"][3] == 3.0
    assert "8 draws of x" in fit._repr_html_()
    with pytest.raises(ArgumentError, match="loaded without"):
        fit.to_arviz()


def test_columns_of_a_table_end_where_figures_end() -> None:
    table = Table(("site", "mean"), [("b", "10.25"), ("intercept", "0.5")])
    assert str(table).splitlines() == ["site        mean", "b          10.25", "intercept    0.5"]
    assert table.as_html().count("<tr>") == 3
