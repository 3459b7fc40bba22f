"""What users of other libraries write first is understood, or answered by what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.habits import WORDS, as_fitted
from ppl_ext.fit.verdict.levels import OWN_CHAINS


def normal(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


Y = np.array([1.0, 2.0, 2.0, 3.0])


def fit_of(backend: Any, *args: Any, **options: Any) -> Any:
    keys = () if backend.is_pyro else (backend.key(),)
    return backend.public.fit(*keys, *args, progress_bar=False, **options)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("chains", "Leave chains= out"),
        ("draws", r"fit\.more\(1000\)"),
        ("num_samples", "target_ess=1000"),
        ("num_warmup", "tunes by itself"),
        ("num_steps", r"budget=\.\.\."),
        ("timeout", r"seconds=\.\.\."),
        ("method", 'engine="SVGD"'),
        ("learning_rate", r"SVGD\(model, optim\)"),
        ("verbose", "progress_bar=False"),
        ("random_seed", None),
    ],
)
def test_keywords_of_other_libraries(backend: Any, name: str, word: str | None) -> None:
    if word is None:
        word = "seed=0" if backend.is_pyro else r"fit\(jax\.random\.key\(0\), model"
    with pytest.raises(ArgumentError, match=f"found {name}=, which is neither. .*{word}"):
        fit_of(backend, normal(backend), backend.array(Y), **{name: 4})


def test_a_key_of_the_other_package(backend: Any) -> None:
    name = "rng_key" if backend.is_pyro else "seed"
    with pytest.raises(ArgumentError, match=f"found {name}=, which is neither"):
        fit_of(backend, normal(backend), backend.array(Y), **{name: 0})


def test_keywords_of_the_model_are_the_models(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    seen = []

    def model(y: Any, chains: int, **more: Any) -> None:
        seen.append((chains, more))
        host.sample(
            "y", dist.Normal(host.sample("a", dist.Normal(backend.array(0.0), 1.0)), 1.0), obs=y
        )

    fit_of(backend, model, backend.array(np.array(0.5)), chains=3, method="own", exact=False)
    assert set(map(str, seen)) == {"(3, {'method': 'own'})"}
    assert {"chains", "draws", "num_samples"} <= set(WORDS)


def test_a_key_that_was_forgotten(backend: Any) -> None:
    if backend.is_pyro:
        pytest.skip("Pyro has no keys")
    with pytest.raises(ArgumentError, match=r"comes first: fit\(jax\.random\.key\(0\), model"):
        backend.public.fit(normal(backend), backend.array(Y))


@pytest.mark.parametrize("way", ["name", "lower", "class"])
def test_an_engine_by_its_name_or_class(backend: Any, way: str) -> None:
    cls = backend.public.GSM
    engine = {"name": "GSM", "lower": "gsm", "class": cls}[way]
    fit = fit_of(backend, normal(backend), backend.array(Y), engine=engine)
    assert fit.history[-1].name == "engine" and "GSM" in fit.history[-1].note
    # The posterior's mean is 8 / 4.01, its standard deviation about a half.
    assert abs(fit["mean"].mean() - 8.0 / 4.01) < 0.1


def test_an_engine_that_there_is_not(backend: Any) -> None:
    model, y = normal(backend), backend.array(Y)
    with pytest.raises(ArgumentError, match=r"one of the engines .*'SVGD'.*NUTS is warm_chains"):
        fit_of(backend, model, y, engine="NUTS")
    with pytest.raises(ArgumentError, match="to be an engine of this package"):
        fit_of(backend, model, y, engine=3)
    # What engines stand on is none.
    with pytest.raises(ArgumentError, match="one of the engines") as told:
        fit_of(backend, model, y, engine="ParticleEngine")
    assert "GuideEngine" not in str(told.value)


def test_engines_get_what_they_have_no_default_of(backend: Any) -> None:
    fit = fit_of(backend, normal(backend), backend.array(Y), engine="SVGD", budget=20_000)
    assert abs(fit["mean"].mean() - 8.0 / 4.01) < 0.25


FRAMES = pytest.mark.parametrize("library", ["pandas", "polars"])


def frame_of(library: str, columns: dict[str, Any]) -> Any:
    made = pytest.importorskip(
        library, reason=f"{library} is not installed (pip install {library})"
    )
    return made.DataFrame(columns)


@FRAMES
def test_columns_of_a_data_frame_are_arrays(backend: Any, library: str) -> None:
    y = frame_of(library, {"y": Y, "name": list("abcd")})["y"]
    keys = () if backend.is_pyro else (backend.key(),)
    fit = fit_of(backend, normal(backend), y, exact=False)
    assert abs(fit["mean"].mean() - 8.0 / 4.01) < 0.15
    np.testing.assert_allclose(fit.to_arviz()["observed_data"]["y"].values, Y)
    assert fit.predict(y)["y"].shape[1:] == (4,)
    moved = fit.refit(frame_of(library, {"y": Y + 1.0})["y"], progress_bar=False)
    assert abs(moved["mean"].mean() - 12.0 / 4.01) < 0.15
    told = backend.public.check(*keys, fit, normal(backend), y, progress_bar=False)
    assert told.trusted


@FRAMES
def test_engines_run_on_columns_of_a_data_frame(backend: Any, library: str) -> None:
    keys, y = () if backend.is_pyro else (backend.key(),), frame_of(library, {"y": Y})["y"]

    def run(*args: Any, **kwargs: Any) -> Any:
        options = {"seed": 0} if backend.is_pyro else {}
        engine = backend.public.SVGD(
            normal(backend), backend.adam(0.05), num_particles=4, **options
        )
        return engine.run(*keys, 5, *args, progress_bar=False, **kwargs)

    expected, found = run(backend.array(Y)), run(y)
    np.testing.assert_array_equal(np.asarray(found["mean"]), np.asarray(expected["mean"]))
    np.testing.assert_array_equal(np.asarray(run(y=y)["mean"]), np.asarray(expected["mean"]))
    assert found.predict(y)["y"].shape == (4, 4)
    draws = {"mean": backend.array(Y)}
    predicted = backend.public.predictive_distribution(normal(backend), draws, y)
    assert predicted.sizes["row"] == 4


@FRAMES
def test_a_whole_frame_is_the_models_own_and_predicts(backend: Any, library: str) -> None:
    host, dist = backend.host, backend.dist

    def model(frame: Any, predict: bool = False) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
        y = backend.array(frame["y"].to_numpy().copy())
        host.sample("y", dist.Normal(mean, 1.0).expand([len(y)]).to_event(1), obs=y)

    frame = frame_of(library, {"y": Y})
    fit = fit_of(backend, model, frame, exact=False)
    assert fit.predict()["y"].shape[1:] == fit.predict(frame)["y"].shape[1:] == (4,)


@FRAMES
@pytest.mark.parametrize("name", ["to_numpy", "values"])
def test_a_model_that_takes_an_array_for_a_column_is_told_so(
    backend: Any, library: str, name: str
) -> None:
    def model(y: Any) -> None:
        mean = backend.host.sample("mean", backend.dist.Normal(backend.array(0.0), 1.0))
        own = backend.dist.Normal(mean, 1.0).expand([4]).to_event(1)
        given = getattr(y, name)
        backend.host.sample("y", own, obs=backend.xp.as_tensor(given) if backend.is_pyro else given)

    y = frame_of(library, {"y": Y})["y"]
    with pytest.raises(ArgumentError, match=rf"asks an array for \.{name}, .* whole frame"):
        fit_of(backend, model, y)


def test_an_argument_may_be_a_distribution(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(prior: Any, y: Any) -> None:
        mean = host.sample("mean", prior)
        host.sample("y", dist.Normal(mean, 1.0).expand([4]).to_event(1), obs=y)

    prior = dist.Normal(backend.array(0.0), 10.0)
    fit = fit_of(backend, model, prior, backend.array(Y), exact=False)
    assert fit.predict()["y"].shape[1:] == (4,)


@FRAMES
def test_columns_lose_no_digits_unseen(backend: Any, library: str) -> None:
    y = frame_of(library, {"y": 1.7e11 + Y})["y"]
    with pytest.raises(ArgumentError, match="rounding argument 'y'"):
        fit_of(backend, normal(backend), y)


@FRAMES
def test_columns_in_a_dictionary(backend: Any, library: str) -> None:
    y = frame_of(library, {"y": Y})["y"]
    fit = fit_of(backend, lambda data: normal(backend)(data["y"]), {"y": y}, exact=False)
    assert abs(fit["mean"].mean() - 8.0 / 4.01) < 0.15


@pytest.mark.parametrize("name", ["max_iter", "inference_method"])
def test_more_keywords_of_other_libraries(backend: Any, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"found {name}=, which is neither"):
        fit_of(backend, normal(backend), backend.array(Y), **{name: 4})


def test_a_fit_by_keywords_alone(backend: Any) -> None:
    keys = {} if backend.is_pyro else {"rng_key": backend.key()}
    fit = backend.public.fit(
        **keys, model=normal(backend), y=backend.array(Y), exact=False, progress_bar=False
    )
    assert abs(fit["mean"].mean() - 8.0 / 4.01) < 0.15


def test_a_key_that_was_forgotten_before_draws(backend: Any) -> None:
    if backend.is_pyro:
        pytest.skip("Pyro has no keys")
    draws = {"mean": backend.array(Y)}
    with pytest.raises(ArgumentError, match=r"comes first: check\(jax\.random\.key\(0\), draws"):
        backend.public.check(draws, normal(backend), backend.array(Y))


def test_an_engine_that_is_wrong_names_the_chains(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        rate = host.sample("rate", dist.Exponential(backend.array(1.0)))
        host.sample("y", dist.Poisson(rate), obs=y)

    # The posterior is exponential, whose logarithm is far from Normal.
    fit = fit_of(backend, model, backend.array(0.0), engine="LaplaceGGN")
    assert fit.verdict.level == "not trusted"
    assert fit.verdict.advice == (OWN_CHAINS,)
    with pytest.raises(ArgumentError, match="fit without engine= and guide="):
        fit.more(10)


def test_a_program_for_arrays_is_given_arrays_by_every_door(backend: Any, tmp_path: Path) -> None:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 1.0))
        with host.plate("rows", x.shape[0]):
            host.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    def summed(x: Any, y: Any = None) -> None:
        assert isinstance(x, np.ndarray)
        model(backend.array(np.array(x)), y)

    arrays = np.array([1.0, 2.0, 3.0, 4.0]), Y
    kept = fit_of(backend, model, *map(backend.array, arrays))
    lists = [each.tolist() for each in arrays]
    # One of NumPy's and one of the package, which NumPy would take without a gradient.
    mixed = arrays[0], backend.array(Y)
    for args in (arrays, lists, mixed):
        fit = fit_of(backend, model, *args)
        np.testing.assert_allclose(fit["slope"], kept["slope"], rtol=1e-4)
        assert fit.predict(args[0])["y"].shape[1:] == (4,)
        assert fit.refit(*args, progress_bar=False).verdict.trusted
    fit.save(tmp_path / "fit")
    assert backend.public.load_fit(tmp_path / "fit", model, *mixed).has_program
    keys = () if backend.is_pyro else (backend.key(),)
    assert backend.public.check(*keys, kept, model, *lists, progress_bar=False).trusted
    # A model that is written for NumPy's gets them as they are; NumPyro makes arrays of them.
    if backend.is_pyro:
        assert fit_of(backend, summed, arrays[0], backend.array(Y)).verdict.trusted


@FRAMES
def test_columns_of_text_and_lists_of_texts_are_named(backend: Any, library: str) -> None:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    with pytest.raises(ArgumentError, match="Argument 'x' is a list of numbers.* Pass"):
        backend.public.SVGD(model, backend.adam(0.1), num_particles=4).run(
            *keys, 1, Y.tolist(), backend.array(Y), progress_bar=False
        )
    frame = frame_of(library, {"name": list("abcd")})
    with pytest.raises(ArgumentError, match=rf"Argument 'x' is a {library}\.Series.* Pass"):
        fit_of(backend, model, frame["name"], backend.array(Y))


@pytest.mark.parametrize("kind", ["array", "column", "dates"])
def test_a_model_may_count_names_and_take_codes_of_them(backend: Any, kind: str) -> None:
    host, dist = backend.host, backend.dist
    names = np.array(["b", "a", "b", "c"])
    if kind == "column":
        names = frame_of("pandas", {"name": names})["name"]
    elif kind == "dates":
        names = np.array(["2020-02-01", "2020-01-01", "2020-02-01", "2020-03-01"], "datetime64[D]")

    def model(names: Any, y: Any) -> None:
        kinds, codes = np.unique(names, return_inverse=True)
        levels = host.sample("levels", dist.Normal(backend.xp.zeros(len(kinds)), 1.0).to_event(1))
        host.sample("y", dist.Normal(levels[codes], 1.0).to_event(1), obs=y)

    keys = () if backend.is_pyro else (backend.key(),)
    target = backend.public.LogDensity(model, *keys, (names, backend.array(Y)))
    z = backend.array(np.zeros((1, 3)))
    score = np.asarray(target.score(z, target.bind(names, backend.array(Y))).score)
    np.testing.assert_allclose(score, [[2.0, 3.0, 3.0]], rtol=1e-5)


def test_lists_are_new_rows_of_arrays() -> None:
    fitted = np.array([1.0, 2.0]), np.array([1, 2]), np.array(["a", "b"])
    args, kwargs = as_fitted(
        lambda x, number, name: None, ([1, 2, 3], [4, 5]), {"name": ["b"]}, (fitted, {}), np.array
    )
    assert [each.dtype.kind for each in (*args, kwargs["name"])] == ["f", "i", "U"]


@FRAMES
def test_data_frames_are_named(library: str) -> None:
    import pyro
    import pyro.distributions as dist

    import pyro_ext as px

    def model(y: Any) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(y, 1.0), obs=mean)

    with pytest.raises(ArgumentError, match=rf"Argument 'y' is a {library}\.DataFrame.* Pass"):
        px.fit(model, frame_of(library, {"y": Y}), progress_bar=False)


def test_too_few_draws_of_particles_are_counted_by_one_number(backend: Any) -> None:
    model, y, keys = normal(backend), backend.array(Y), () if backend.is_pyro else (backend.key(),)
    engine = backend.public.SVGD(model, backend.adam(0.05), num_particles=16)
    result = engine.run(*keys, 20, y, progress_bar=False)
    told = backend.public.check(*keys, result, model, y, progress_bar=False)
    assert told.reasons[0].startswith("16 draws are too few to tell: 20 are the least.")
    assert told.advice == ("Take more draws, of particles by num_particles=.",)
