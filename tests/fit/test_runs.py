"""The result of a run is looked at as a fit is, and other libraries' words are answered."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.many import Fits
from ppl_ext.fit.verdict.verdict import Verdict

X = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
Y = np.array([0.7, 2.6, 4.4, 6.9, 8.3, 10.6], np.float32)


def line(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("town", len(x)):
            mean = host.deterministic("mean", slope * x)
            host.sample("y", dist.Normal(mean, 0.5), obs=y)

    return model


def ran(backend: Any, steps: int = 200) -> tuple[Any, Any]:
    seeds = {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.SVGD(line(backend), backend.adam(0.1), num_particles=20, **seeds)
    keys = () if backend.is_pyro else (backend.key(),)
    x, y = backend.array(X), backend.array(Y)
    return engine, engine.run(*keys, steps, x, y, progress_bar=False)


def test_a_run_has_the_views_of_a_fit(backend: Any) -> None:
    _, result = ran(backend)
    draws = backend.numpy(result.get_samples()["slope"])
    np.testing.assert_array_equal(result["slope"], draws)
    np.testing.assert_allclose(result["mean"], draws[:, None] * X, rtol=1e-6)
    table = result.summary()
    assert list(table.index) == ["slope", *(f"mean[{k}]" for k in range(6))]
    row = table.loc["slope"]
    # 20 particles fill their posterior, whose mean is sum(x y) / (sum(x²) + 0.0025).
    assert abs(row["mean"] - (X * Y).sum() / (X**2).sum()) < 0.05
    np.testing.assert_allclose(row["95%"], np.quantile(draws, 0.95), rtol=1e-6)
    assert np.isnan(row[["mcse_mean", "ess_bulk", "r_hat"]]).all()
    assert list(result.summary("slope", probability=0.5).columns[2:4]) == ["25%", "75%"]

    tree = result.to_arviz(log_likelihood=False)
    np.testing.assert_array_equal(tree["posterior"]["slope"][0], draws)
    np.testing.assert_allclose(tree["observed_data"]["y"], Y)
    assert tree["optimization"].sizes["step"] == 200
    again = backend.public.to_arviz(result, log_likelihood=False)
    np.testing.assert_array_equal(again["posterior"]["slope"], tree["posterior"]["slope"])

    new = result.predict([10.0, 20.0, 30.0])["y"]
    assert new.shape == (20, 3)
    # Noise of 0.5 on lines through the draws.
    assert np.abs(new - draws[:, None] * [10.0, 20.0, 30.0]).max() < 0.5 * 5.0
    assert result.predict(seed=1)["y"].shape == (20, 6)


# Matplotlib's deprecations are ArviZ's affair.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_is_checked_and_drawn(backend: Any) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    _, result = ran(backend, 20)
    axes = result.plot("history")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), result.losses)
    result.plot("posterior", var_names=["slope"])
    plt.close("all")
    keys = () if backend.is_pyro else (backend.key(),)
    x, y = backend.array(X), backend.array(Y)
    verdict = backend.public.check(*keys, result, line(backend), x, y, progress_bar=False)
    assert verdict.level in ("approximate", "not trusted")


def test_a_result_says_when_its_engine_is_gone_or_has_gone_on(backend: Any) -> None:
    engine, result = ran(backend, 20)
    before = result["slope"]
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        np.testing.assert_array_equal(other.losses, result.losses)
        with pytest.raises(ArgumentError, match=r"knows its engine, .*to_arviz\(engine, result"):
            other.summary()
    keys = () if backend.is_pyro else (backend.key(1),)
    engine.run(*keys, 5, backend.array(X), backend.array(Y), progress_bar=False)
    if backend.is_pyro:  # whose engines hold their state
        with pytest.raises(ArgumentError, match="that of 20 steps, .* taken 25 since"):
            result.summary()
    else:
        np.testing.assert_array_equal(result["slope"], before)


def test_a_run_of_a_loader_asks_for_rows(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("rows", 6, subsample_size=len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    seeds = {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.SVGD(model, backend.adam(0.1), num_particles=4, **seeds)
    keys = () if backend.is_pyro else (backend.key(),)
    result = engine.run(*keys, 4, batches=[(Y[:3],), (Y[3:],)], progress_bar=False)
    for look in (result.summary, result.predict):
        with pytest.raises(ArgumentError, match="rows came from a loader"):
            look()
    assert result.to_arviz(backend.array(Y))["observed_data"]["y"].shape == (6,)


FIT = Fit({"alpha": np.arange(4.0)}, Verdict("corrected", ("The weights are even.",)), 1)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("alpha", 'fit["alpha"]'),
        ("idata", "fit.to_arviz()"),
        ("posterior", 'fit.to_arviz()["posterior"]'),
        ("samples", "fit.get_samples()"),
        ("mean", "fit.summary()"),
        ("to_dataframe", "fit.summary()"),
        ("plot_trace", 'fit.plot("trace")'),
        ("sample_posterior_predictive", "fit.predict(*args)"),
        ("loo", "arviz.loo(fit.to_arviz())"),
        ("trusted", "fit.verdict.trusted"),
        ("resume", "fit.more(1000)"),
        ("to_netcdf", "fit.save(path), or fit.to_arviz().to_netcdf(path)"),
    ],
)
def test_words_of_other_libraries_for_a_fit(name: str, word: str) -> None:
    assert not hasattr(FIT, name)
    with pytest.raises(AttributeError) as caught:
        getattr(FIT, name)
    assert f"no attribute {name!r}. Type {word}" in str(caught.value)


def test_other_attributes_are_missing_as_usual() -> None:
    with pytest.raises(AttributeError, match="no attribute 'elsewhere'$"):
        getattr(FIT, "elsewhere")  # noqa: B009
    with pytest.raises(AttributeError, match=r"Type verdict\.as_dict\(\)"):
        FIT.verdict.to_dict()
    with pytest.raises(AttributeError, match=r"Type verdict\.level and .* it is the verdict"):
        FIT.verdict.verdict  # noqa: B018
    with pytest.raises(AttributeError, match=r"Type \[each\.summary for each in fits\]"):
        Fits((FIT,)).summary()


def test_words_of_other_libraries_for_a_run(backend: Any) -> None:
    _, result = ran(backend, 5)
    for name, word in (
        ("slope", 'result["slope"]'),
        ("samples", "result.get_samples()"),
        ("verdict", "result.judgement, or check"),
        ("loss", "result.losses"),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(result, name)
        assert f"Type {word}" in str(caught.value)
    with pytest.raises(ArgumentError, match=r"found var_names=. Type summary\(sites"):
        result.summary(var_names=["slope"])


def test_keywords_of_other_libraries_of_a_fit() -> None:
    with pytest.raises(ArgumentError, match=r"found hdi_prob=. Type summary\(probability=0.9\)"):
        FIT.summary(hdi_prob=0.9)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"found draws=. Type more\(1000\)"):
        FIT.more(draws=10)  # type: ignore[call-arg]


def test_a_fit_is_pickled_without_its_program() -> None:
    found = pickle.loads(pickle.dumps(FIT))
    np.testing.assert_array_equal(found["alpha"], FIT["alpha"])
    assert found.verdict == FIT.verdict and not found.has_program
    for other in (copy.copy(FIT), copy.deepcopy(FIT)):
        assert vars(other).keys() == vars(FIT).keys() and other.draws.keys() == {"alpha"}


def test_a_number_of_draws_may_stand_without_its_name() -> None:
    assert len(FIT.get_samples(2)["alpha"]) == 2
    # A state and a key, which engines of NumPyro take, are of no account.
    assert len(FIT.get_samples(None)["alpha"]) == 4


def test_rows_to_predict_are_like_those_of_the_fit(backend: Any) -> None:
    keys = () if backend.is_pyro else (backend.key(),)
    x, y = backend.array(X), backend.array(Y)
    fit = backend.public.fit(*keys, line(backend), x, y, exact=False, progress_bar=False)
    asked = fit.predict(backend.array(np.array([10.0, 20.0], np.float32)), num_samples=32)["y"]
    for given in ([10.0, 20.0], np.array([10.0, 20.0])):
        np.testing.assert_array_equal(fit.predict(given, num_samples=32)["y"], asked)
        np.testing.assert_array_equal(fit.predict(x=given, num_samples=32)["y"], asked)
    with pytest.raises(ArgumentError, match="an array with 1 axis for 'x', .* found 5"):
        fit.predict(5)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ArgumentError, match=r'for \'x\', .*frame\["x"\] of a data frame'):
        fit.predict(pandas.DataFrame({"x": [1.0]}))


def test_fits_by_place_or_keyword_are_no_mapping(backend: Any) -> None:
    compare = backend.public.compare
    for call in (lambda: compare(FIT, FIT), lambda: compare(a=FIT, b=FIT), lambda: compare(FIT)):
        with pytest.raises(ArgumentError, match="Expected a mapping of names to fits"):
            call()


def test_data_sets_in_a_list_are_refused(backend: Any) -> None:
    keys = () if backend.is_pyro else (backend.key(),)
    many, x = backend.public.fit_many, backend.array(X)
    with pytest.raises(ArgumentError, match="argument 'y' in one array, found a list of 2"):
        many(*keys, line(backend), x, [x, x])
    with pytest.raises(ArgumentError, match="Expected model to be a callable"):
        many(*keys, [line(backend)], x, x)


def test_an_arviz_object_is_no_draws(backend: Any) -> None:
    _, result = ran(backend, 5)
    keys = () if backend.is_pyro else (backend.key(),)
    with pytest.raises(ArgumentError, match="found an ArviZ object"):
        backend.public.check(*keys, result.to_arviz(), line(backend), backend.array(X))
