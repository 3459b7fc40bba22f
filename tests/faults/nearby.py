"""Kin of the faults that practitioners met: files, budgets, missing rows, angles, names, draws."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.programs import Y, mean
from tests.faults.table import REFUSED, RUNS, Trial, fault

MISSING = "Missing rows"
BUDGETS = "Budgets and times"
LABELS = "Labels"
FITS = "Files of fits"
DRAWS = "Draws that are given"
OPTIONS = "Options of a run, given elsewhere"
NAMES = "Names of axes"
SUPPORTS = "Latent sites that hosts find hard"
COLUMNS = "Columns of data frames"
GRADIENTS = "Gradients"

ROWS = np.linspace(-1.0, 2.0, 12)
SEEN = np.arange(12) % 3 > 0


def fit_of(trial: Trial, model: Any, *args: Any, **options: Any) -> Any:
    """A fit of few evaluations."""
    keys = () if trial.is_pyro else (trial.backend.key(),)
    return trial.public.fit(*keys, model, *args, **{"progress_bar": False, **options})


def in_silence(call: Callable[[], Any]) -> Any:
    """What a call gives, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


# -- missing rows ----------------------------------------------------------------------------------


def with_missing(backend: Any) -> Callable[[Any, Any], None]:
    """A mean of rows, some of which are missing."""
    host, dist = backend.host, backend.dist

    def model(y: Any, seen: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)

    return model


#: A mask of rows, and the words of its refusal.
MASKS: dict[str, tuple[Any, str]] = {
    "`obs_mask` of zeros and ones": (SEEN.astype(float), "array of bool.*Write obs_mask=seen != 0"),
    "`obs_mask` of whole numbers": (SEEN.astype(int), "array of bool.*found numbers of type"),
    "`obs_mask` for fewer rows than there are": (SEEN[:5], r"a place for each.*found shape \(5,\)"),
    "`obs_mask` that is a text": ("seen", "array of bool, True where a row is seen, found 'seen'"),
}


def _mask(mask: Any, words: str, trial: Trial) -> None:
    given = mask if isinstance(mask, str) else trial.backend.array(mask)
    with trial.refused(f"Expected obs_mask of site 'y' to (be an|have).*{words}|{words}"):
        trial.run(trial.svgd(with_missing(trial.backend)), 2, trial.backend.array(ROWS), given)


for _given, (_value, _words) in MASKS.items():
    fault(MISSING, _given)(partial(_mask, _value, _words))


def _right_without_rows(trial: Trial, rows: Any, seen: Any) -> None:
    """See that the posterior is that of the rows which are seen."""
    fit = in_silence(lambda: fit_of(trial, with_missing(trial.backend), rows, seen))
    precision = SEEN.sum() + 0.01
    right, deviation = ROWS[SEEN].sum() / precision, precision**-0.5
    found = trial.backend.numpy(fit.draws["mu"])
    assert fit.verdict.trusted
    np.testing.assert_allclose(found.mean(), right, atol=0.25 * deviation)
    np.testing.assert_allclose(found.std(), deviation, rtol=0.2)


@fault(MISSING, "NaN at rows that `obs_mask` leaves out", RUNS)
def _hidden_nan(trial: Trial) -> None:
    rows = np.where(SEEN, ROWS, np.nan)
    _right_without_rows(trial, trial.backend.array(rows), trial.backend.array(SEEN))


@fault(MISSING, "`obs_mask` that is NumPy's", RUNS, slow=True)
def _numpy_mask(trial: Trial) -> None:
    _right_without_rows(trial, trial.backend.array(ROWS), SEEN)


@fault(MISSING, "NaN at rows that are seen, beside `obs_mask`")
def _seen_nan(trial: Trial) -> None:
    rows = np.where(SEEN, np.nan, ROWS)
    model = with_missing(trial.backend)
    with trial.refused("y", "ModelCheckError"):
        trial.run(trial.svgd(model), 2, trial.backend.array(rows), trial.backend.array(SEEN))


@fault(MISSING, "counts without an end that `obs_mask` leaves out")
def _hidden_counts(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any, seen: Any) -> None:
        rate = host.sample("rate", dist.Gamma(trial.backend.array(2.0), 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Poisson(rate), obs=y, obs_mask=seen)

    rows = trial.backend.array(np.arange(12.0))
    with trial.refused("the rows that are seen alone", "ModelCheckError"):
        trial.run(trial.svgd(model), 2, rows, trial.backend.array(SEEN))


# -- budgets ---------------------------------------------------------------------------------------


def _budget(options: dict[str, Any], words: str, trial: Trial) -> None:
    y = trial.backend.array(Y)
    with trial.refused(words):
        fit_of(trial, mean(trial.backend), y, **options)


#: Options of ``fit``, and the words of the refusal.
SPENT: dict[str, tuple[dict[str, Any], str]] = {
    "a budget that buys no search for a start": (
        {"budget": 10},
        "Expected a budget that buys a search for a start, found budget=10.*Give a larger budget=",
    ),
    "a budget of 0, below 0, True, or with a fraction": (
        {"budget": 1.5},
        "Expected budget to be an int >= 1, found 1.5",
    ),
    "a budget that is infinite": (
        {"budget": float("inf")},
        "Expected budget to be an int >= 1, found inf",
    ),
    "no seconds, or seconds that are infinite or NaN": (
        {"seconds": float("nan")},
        "Expected seconds to be a finite number > 0, found nan",
    ),
    "a number of draws, `num_samples=`, for `fit`": (
        {"num_samples": 10_000},
        r"found num_samples=.*target_ess=1000 asks for more, and fit\.more\(1000\)",
    ),
}
for _given, (_given_options, _words) in SPENT.items():
    fault(BUDGETS, _given)(partial(_budget, _given_options, _words))


@fault(BUDGETS, "`Fit.refit` with a budget that buys no start")
def _refit_budget(trial: Trial) -> None:
    y = trial.backend.array(Y)
    fit = fit_of(trial, mean(trial.backend), y, budget=2_000)
    with trial.refused("Expected a budget that buys a search for a start"):
        fit.refit(trial.backend.array(Y + 30.0), budget=1, progress_bar=False)


@fault(BUDGETS, "`Fit.more` with no draws, fewer than none, or a fraction of them")
def _no_more(trial: Trial) -> None:
    fit = fit_of(trial, mean(trial.backend), trial.backend.array(Y), budget=2_000)
    for number in (0, -5, 10.0):
        with trial.refused("Expected num_draws to be an int >= 1"):
            fit.more(number, progress_bar=False)


@fault(BUDGETS, "`Fit.more` of a fit that ended without chains")
def _more_without_chains(trial: Trial) -> None:
    fit = fit_of(trial, mean(trial.backend), trial.backend.array(Y), exact=False)
    with trial.refused("Expected a fit with chains.*Fit again with exact=True"):
        fit.more(10, progress_bar=False)


@fault(BUDGETS, "a budget for `Fit.more` that is smaller than an evaluation for each chain")
def _small_more(trial: Trial) -> None:
    fit = fit_of(trial, mean(trial.backend), trial.backend.array(Y))
    with trial.refused("Expected a budget of 16 at least, an evaluation for each chain, found bud"):
        fit.more(100, budget=15, progress_bar=False)


@fault(BUDGETS, "a budget below 1 for `check`")
def _check_budget(trial: Trial) -> None:
    keys = () if trial.is_pyro else (trial.backend.key(),)
    draws = {"mu": trial.backend.array(np.random.default_rng(0).normal(size=50))}
    for budget in (0, -1, 2.5):
        with trial.refused("Expected budget to be an int >= 1"):
            trial.public.check(
                *keys, draws, mean(trial.backend), trial.backend.array(Y), budget=budget
            )


# -- labels ----------------------------------------------------------------------------------------


def two_kinds(backend: Any, locs: Any, shares: Any, scales: Any) -> Callable[[Any], None]:
    """A mixture of two Normals whose labels are told apart by priors that differ."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(y: Any) -> None:
        means = host.sample("means", dist.Normal(backend.array(locs), 1.0).to_event(1))
        w = host.sample("w", dist.Dirichlet(backend.array(shares)))
        parts = dist.Normal(means, backend.array(scales) * xp.ones(2))
        with host.plate("rows", len(y)):
            host.sample("y", dist.MixtureSameFamily(dist.Categorical(w), parts), obs=y)

    return model


def _anchored(locs: Any, shares: Any, scales: Any, trial: Trial) -> None:
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2.0, scales[0], 20), rng.normal(2.0, scales[1], 20)])
    model = two_kinds(trial.backend, locs, shares, scales)
    fit = in_silence(lambda: fit_of(trial, model, trial.backend.array(y)))
    assert fit.verdict.trusted
    found = trial.backend.numpy(fit.draws["means"]).mean(0)
    np.testing.assert_allclose(found, [-2.0, 2.0], atol=0.9)


for _given, _anchors in {
    "labels that prior means tell apart": ([-2.0, 2.0], [1.0, 1.0], [1.0, 1.0]),
    "labels that scales tell apart, under means that do so weakly": (
        [-0.5, 0.5],
        [1.0, 1.0],
        [0.5, 1.5],
    ),
}.items():
    fault(LABELS, _given, RUNS, slow=True)(partial(_anchored, *_anchors))


# -- files -----------------------------------------------------------------------------------------


def _fit_saved(trial: Trial) -> tuple[Any, Path]:
    fit = fit_of(trial, mean(trial.backend), trial.backend.array(Y), budget=2_000)
    path = trial.folder / "fit"
    fit.save(path)
    return fit, path


def _load(trial: Trial, path: Any) -> Any:
    return trial.public.load_fit(path, mean(trial.backend), trial.backend.array(Y))


@fault(FITS, "`Fit.save` into an absent folder, a folder, a device, a pipe, or under no name")
def _unwritable(trial: Trial) -> None:
    fit, _ = _fit_saved(trial)
    pipe = trial.folder / "pipe"
    os.mkfifo(pipe)
    for path in (trial.folder / "absent" / "fit", trial.folder, "/dev/null", pipe, ""):
        with trial.refused("Expected path to be a file that can be written"):
            fit.save(path)
    assert pipe.is_fifo()


@fault(FITS, "`Fit.save` to None, a number or True")
def _no_path(trial: Trial) -> None:
    fit, _ = _fit_saved(trial)
    for path in (None, 3, True):
        with trial.refused("Expected path to be the path of a file"):
            fit.save(path)


@fault(FITS, "`Fit.save` to a name that is longer than names may be")
def _long_name(trial: Trial) -> None:
    fit, _ = _fit_saved(trial)
    with trial.refused("Expected path to be a file that can be written"):
        fit.save(trial.folder / ("n" * 300))


@fault(FITS, "`Fit.save` through a link, also one whose file is not there yet", RUNS)
def _linked(trial: Trial) -> None:
    fit, path = _fit_saved(trial)
    links = {"link": path, "early": trial.folder / "later"}
    for name, target in links.items():
        (trial.folder / name).symlink_to(target)
        fit.save(trial.folder / name)
        assert (trial.folder / name).is_symlink() and not target.is_symlink()
        found = _load(trial, target)
        assert found.draws["mu"].tolist() == fit.draws["mu"].tolist()


@fault(FITS, "`Fit.save` over a file that only its owner may read", RUNS)
def _private(trial: Trial) -> None:
    fit, path = _fit_saved(trial)
    path.chmod(0o600)
    fit.save(path)
    assert path.stat().st_mode & 0o777 == 0o600


@fault(FITS, "`load_fit` from a pipe or a device, which may have no end")
def _endless_file(trial: Trial) -> None:
    pipe = trial.folder / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/null", pipe, "/dev/zero"):
        with trial.refused("is not one .it is a device or a pipe"):
            _load(trial, path)


@fault(FITS, "`load_fit` from None or a number")
def _load_nothing(trial: Trial) -> None:
    for path in (None, 3):
        with trial.refused("Expected path to be the path of a file"):
            _load(trial, path)


@fault(FITS, "`load_fit` of an engine's state, and an engine's `load` of a fit")
def _of_another_kind(trial: Trial) -> None:
    from tests.engine_support import Verbs

    _, path = _fit_saved(trial)
    engine, other = trial.svgd(mean(trial.backend)), trial.folder / "state"
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    state, _ = in_silence(lambda: verbs.run(engine, 1))
    verbs.save(engine, state, other)
    with trial.refused("Expected a state of fit, found one of SVGD"):
        _load(trial, other)
    with trial.refused("Expected a state of SVGD, found one of fit"):
        verbs.load(engine, path)


# -- draws -----------------------------------------------------------------------------------------


def _check(trial: Trial, draws: Any) -> Any:
    keys = () if trial.is_pyro else (trial.backend.key(),)
    return trial.public.check(
        *keys, draws, mean(trial.backend), trial.backend.array(Y), budget=500, progress_bar=False
    )


#: Draws of ``mu``, and the words of the refusal.
GIVEN: dict[str, tuple[Any, str]] = {
    "no draws at all for `check`": (np.zeros(0), "and some, found .0."),
    "one number for `check`": (np.zeros(()), r"with shape \(draws, \), found \(\)"),
    "chains and draws in two axes for `check`": (np.zeros((2, 30)), "Chains are one axis with"),
}


def _given_draws(values: Any, words: str, trial: Trial) -> None:
    with trial.refused(words):
        _check(trial, {"mu": trial.backend.array(values)})


for _given, (_value, _words) in GIVEN.items():
    fault(DRAWS, _given)(partial(_given_draws, _value, _words))


@fault(DRAWS, "draws that are all one number, given to `check`", '"not trusted", with what to do')
def _one_number(trial: Trial) -> None:
    verdict = _check(trial, {"mu": trial.backend.array(np.full(50, 0.5))})
    assert verdict.level == "not trusted"
    assert "All draws of 'mu' are one number" in str(verdict)
    assert "Give draws, and not a point" in str(verdict)


@fault(DRAWS, "draws of another site than the program has, given to `check`")
def _other_site(trial: Trial) -> None:
    with trial.refused("Expected draws of every latent site, found none of 'mu'"):
        _check(trial, {"nu": trial.backend.array(np.zeros(50))})


# -- options ---------------------------------------------------------------------------------------

#: Options of ``run`` among those of an engine.
OF_RUN = {"progress_bar": False, "num_steps": 100, "checkpoint": "state", "callback": print}


def _of_run(name: str, trial: Trial) -> None:
    with trial.refused(rf"Expected {name}= in run, found it among the options of SVGD"):
        trial.svgd(mean(trial.backend), **{name: OF_RUN[name]})


for _name in OF_RUN:
    fault(OPTIONS, f"`{_name}=` among the options of an engine")(partial(_of_run, _name))


@fault(OPTIONS, "`num_particles=`, an option of an engine, among those of a run")
def _of_engine(trial: Trial) -> None:
    engine = trial.svgd(mean(trial.backend))
    with trial.refused("got an unexpected keyword argument 'num_particles'"):
        trial.run(engine, 2, trial.backend.array(Y), num_particles=10)


@fault(OPTIONS, "a learning rate in place of an optimizer")
def _rate(trial: Trial) -> None:
    with trial.refused("Expected.*optimizer"):
        trial.svgd(mean(trial.backend), optim=0.1)


# -- names -----------------------------------------------------------------------------------------


def _axes(trial: Trial, names: Any) -> Any:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(y: Any) -> None:
        infer = {"event_dims": names}
        b = host.sample("b", dist.Normal(xp.zeros(3), 1.0).to_event(1), infer=infer)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(b.sum(), 1.0), obs=y)

    y = trial.backend.array(Y)
    fit = fit_of(trial, model, y, exact=False)
    return in_silence(lambda: trial.public.to_arviz(fit, y))


@fault(NAMES, 'one name of an axis as a text: `infer={"event_dims": "feature"}`', RUNS)
def _text_axis(trial: Trial) -> None:
    assert _axes(trial, "feature").posterior["b"].dims[2:] == ("feature",)


@fault(NAMES, '`infer={"event_dims": [...]}` with more names than axes')
def _many_axes(trial: Trial) -> None:
    with trial.refused("Expected at most 1 names in infer=.*of site 'b'"):
        _axes(trial, ["feature", "other"])


@fault(NAMES, "a plate that is called as an argument, as ArviZ's `chain`, or as a site", RUNS)
def _plate_names(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(school: Any) -> None:
        with host.plate("school", len(school)):
            theta = host.sample("theta", dist.Normal(0.0, 1.0))
            host.sample("obs", dist.Normal(theta, 1.0), obs=school)
        with host.plate("chain", 2):
            host.sample("free", dist.Normal(0.0, 1.0))

    y = trial.backend.array(Y)
    tree = in_silence(lambda: trial.public.to_arviz(fit_of(trial, model, y, exact=False), y))
    assert tree.posterior["theta"].dims == ("chain", "draw", "school")
    assert tree.posterior["free"].sizes["chain"] == tree.posterior["theta"].sizes["chain"]
    assert tree.posterior["free"].ndim == 3


# -- supports --------------------------------------------------------------------------------------


@fault(SUPPORTS, "an angle whose posterior is around the cut at pi", RUNS, slow=True)
def _angle(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    array = trial.backend.array
    y = (np.random.default_rng(2).vonmises(3.0, 2.0, 20) + np.pi) % (2.0 * np.pi) - np.pi

    def model(y: Any) -> None:
        angle = host.sample("angle", dist.VonMises(array(0.0), array(0.5)))
        with host.plate("rows", len(y)):
            host.sample("y", dist.VonMises(angle, array(2.0)), obs=y)

    fit = in_silence(lambda: fit_of(trial, model, array(y)))
    found = trial.backend.numpy(fit.draws["angle"])
    right = np.angle(2.0 * np.exp(1j * y).sum() + 0.5)
    assert fit.verdict.trusted and np.abs(found).max() < 3.1416
    np.testing.assert_allclose(np.angle(np.exp(1j * (found - right)).mean()), 0.0, atol=0.05)


def mixed(backend: Any, family: str) -> Any:
    """A mixture as the prior of a latent site."""
    dist, array = backend.dist, backend.array
    parts = {
        "Gamma": lambda: dist.Gamma(array([2.0, 5.0]), array([1.0, 1.0])),
        "Beta": lambda: dist.Beta(array([2.0, 8.0]), array([8.0, 2.0])),
        "Dirichlet": lambda: dist.Dirichlet(array([[5.0, 1.0, 1.0], [1.0, 1.0, 5.0]])),
    }[family]()
    return dist.MixtureSameFamily(dist.Categorical(array([0.3, 0.7])), parts)


#: Means of the priors.
MEANS = {
    "Gamma": [0.3 * 2.0 + 0.7 * 5.0],
    "Beta": [0.3 * 0.2 + 0.7 * 0.8],
    "Dirichlet": [2.2 / 7.0, 1.0 / 7.0, 3.8 / 7.0],
}


def _mixed(family: str, trial: Trial) -> None:
    host = trial.backend.host

    def model() -> None:
        host.sample("x", mixed(trial.backend, family))

    found = trial.backend.numpy(in_silence(lambda: fit_of(trial, model)).draws["x"])
    found = found.reshape(len(found), -1)
    error = 0.15 * found.std(0)
    assert (np.abs(found.mean(0) - MEANS[family]) < error).all(), found.mean(0)


for _family in MEANS:
    fault(SUPPORTS, f"a latent site that is a mixture of `{_family}`s", RUNS, slow=True)(
        partial(_mixed, _family)
    )


@fault(
    SUPPORTS,
    "a mixture of components of unlike supports, as `Uniform`s to 1 and to 3",
    numpyro=None,
)
def _unlike(trial: Trial) -> None:
    host, dist, array = trial.backend.host, trial.backend.dist, trial.backend.array

    def model(y: Any) -> None:
        parts = dist.Uniform(array([0.0, 0.0]), array([1.0, 3.0]))
        x = host.sample("x", dist.MixtureSameFamily(dist.Categorical(array([0.3, 0.7])), parts))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(x, 1.0), obs=y)

    with trial.refused("'x'", "ModelCheckError"):
        trial.run(trial.svgd(model), 2, array(Y))


# -- columns of data frames ------------------------------------------------------------------------


def _frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {
            "x": np.linspace(-1.0, 1.0, 12),
            "y": (ROWS > 0.3).astype(float),
            "kind": pandas.Categorical(["a", "b"] * 6),
            "day": pandas.date_range("2020-01-01", periods=12),
            "some": pandas.array([1, None] * 6, dtype="Int64"),
        }
    )


def odds(backend: Any) -> Callable[..., None]:
    """A line for logarithms of odds."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Bernoulli(logits=w * x), obs=y)

    return model


@fault(COLUMNS, "columns to `find_start`, `warm_chains`, `to_arviz` and `predict`", RUNS)
def _every_door(trial: Trial) -> None:
    frame, model = _frame(), odds(trial.backend)
    keys = () if trial.is_pyro else (trial.backend.key(),)
    own = [trial.backend.array(frame[name].to_numpy().copy()) for name in "xy"]
    start = trial.public.find_start(*keys, model, frame.x, frame.y)
    np.testing.assert_allclose(start.mean, trial.public.find_start(*keys, model, *own).mean)
    fit = fit_of(trial, model, frame.x, frame.y, exact=False)
    tree = in_silence(lambda: trial.public.to_arviz(fit, frame.x, frame.y))
    assert tree.observed_data["y"].values.tolist() == frame.y.tolist()
    assert fit.predict(frame.x.iloc[:3])["y"].shape[1:] == (3,)
    few = {"num_samples": 5, "num_warmup": 5, "num_chains": 2, "progress_bar": False}
    chains = in_silence(
        lambda: trial.public.warm_chains(*keys, model, start, frame.x, frame.y, **few)
    )
    assert trial.backend.numpy(chains.get_samples()["w"]).shape == (10,)


@fault(COLUMNS, "a column of categories, of days, or of whole numbers with gaps, to `fit`")
def _no_numbers(trial: Trial) -> None:
    frame, model = _frame(), odds(trial.backend)
    with trial.refused("Argument.*'y' is a pandas"):
        fit_of(trial, model, frame.x, frame.kind)
    with trial.refused("Argument.*'x' is a pandas"):
        fit_of(trial, model, frame.day, frame.y)
    with trial.refused("NaN or infinite entries are in argument 'y' .6 of 12", "ModelCheckError"):
        fit_of(trial, model, frame.x, frame.some)


# -- Stan ------------------------------------------------------------------------------------------


@fault("Stan programs", "a masked array among the data, or in a list of arrays", REFUSED)
def _masked_data(trial: Trial) -> None:
    program = "data { int N; vector[N] y; } parameters { real m; } model { y ~ normal(m, 1); }"
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    for y in (hidden, [hidden]):
        with trial.refused("Stan data 'y', found a masked array"):
            trial.public.stan.model(program, {"N": 2, "y": y})


@fault("Stan programs", "data in a file that is no UTF-8, or of no JSON object", REFUSED)
def _other_text(trial: Trial) -> None:
    program, path = "parameters { real m; } model { m ~ normal(0, 1); }", trial.folder / "data.json"
    for content, words in (
        ('{"N": 3}'.encode("utf-16"), "it is no UTF-8 text"),
        (b"[1, 2]", "as a JSON object, found a list"),
        (b"{N: 3}", "that is no JSON"),
    ):
        path.write_bytes(content)
        with trial.refused(words):
            trial.public.stan.model(program, path)


# -- gradients -------------------------------------------------------------------------------------

DETACHED = "`DoubtfulFitWarning`: scores are not slopes of the log density"


def _held(trial: Trial, value: Any) -> Any:
    if trial.is_pyro:
        return value.detach()
    import jax

    return jax.lax.stop_gradient(value)


def _detached(name: str, trial: Trial) -> None:
    host, dist, detach = trial.backend.host, trial.backend.dist, partial(_held, trial)

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(detach(mu), 1.0), obs=y)

    if name == "SVGD":
        engine = trial.svgd(model, num_particles=20)
    else:
        guide = trial.backend.autoguide.AutoDiagonalNormal(model)
        engine = trial.engine(name, model, guide)
    engine._judges = True  # as users have it; other tests do without
    with trial.warned("Scores are not slopes", trial.public.DoubtfulFitWarning):
        trial.run(engine, 200, trial.backend.array(Y))


for _name in ("SVGD", "ProximalScoreVI"):
    fault(
        GRADIENTS, f"a likelihood that is detached from its latent sites, to `{_name}`", DETACHED
    )(partial(_detached, _name))


@fault(GRADIENTS, "a likelihood of which one of two sites is detached, to `fit`")
def _detached_in_part(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)
            host.sample("other", dist.Normal(_held(trial, mu), 1.0), obs=y)

    with trial.refused("they miss .* of them. .*Let their gradients through", "ModelCheckError"):
        fit_of(trial, model, trial.backend.array(Y))


@fault(
    GRADIENTS, "a number that is detached without being off, as a maximum that is subtracted", RUNS
)
def _harmless(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        held = _held(trial, mu)
        top = held.clamp(min=0.0) if trial.is_pyro else xp.maximum(held, 0.0)
        # mu again, in a way that does not overflow where mu is large.
        same = top + xp.log(xp.exp(mu - top))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(same, 1.0), obs=y)

    engine = trial.engine("GSM", model)
    engine._judges = True
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trial.run(engine, 200, trial.backend.array(Y))
    assert not [each for each in found if "not slopes" in str(each.message)]


# -- ends ------------------------------------------------------------------------------------------

EXACT = "ends at the step, and with the bits, of a run that nothing has stopped"


@fault("Ends of runs", 'a run of `SVGD` with `until="settled"` that is killed and goes on', EXACT)
def _settles_after_a_kill(trial: Trial) -> None:
    from tests.engine_support import Verbs

    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    make = partial(trial.svgd, mean(trial.backend), num_particles=10)
    engine = make()
    state, whole = verbs.run(engine, 3_000, until="settled")
    steps = len(whole.losses)
    assert whole.settled and steps < 3_000

    def kill(step: int, *_: Any) -> None:
        if step >= at:
            raise OSError("killed")

    for at in (steps // 2, steps - 1):
        path = trial.folder / f"state{at}"
        options = {"until": "settled", "checkpoint": path, "checkpoint_every": 7}
        with pytest.raises(OSError, match="killed"):
            verbs.run(make(), 3_000, callback=kill, callback_every=1, **options)
        other = make()
        loaded = verbs.load(other, path)
        left = 3_000 - verbs.taken(other, loaded)
        found, rest = verbs.run(other, left, loaded, until="settled")
        assert rest.settled and rest.settling == whole.settling
        assert verbs.algorithm(other, found) == verbs.algorithm(engine, state)
