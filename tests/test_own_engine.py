"""The engine of the page "Write your own engine": the page's code, and what the page says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of, from_zoo
from tests.models import zoo

PAGE = Path(__file__).parent.parent / "docs" / "own-engine.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def code(package: str) -> list[str]:
    """The class and its use, as the page has them for one package."""
    numpyro, pyro = BLOCKS[:2], BLOCKS[2:]
    return {"numpyro": numpyro, "pyro": pyro}[package]


@pytest.fixture(scope="module", params=["pyro", "numpyro"])
def page(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """A backend, and the names that the page's code leaves behind."""
    backend = backend_of(request.param)
    names: dict[str, Any] = {}
    for block in code(backend.name):
        exec(compile(block, PAGE.name, "exec"), names)
    return backend, names


def made(page: tuple[Any, dict[str, Any]], *args: Any, **options: Any) -> Any:
    """An engine of the page."""
    backend, names = page
    if backend.name == "pyro":
        options = {"seed": 0, **options}
    return names["Langevin"](*args, **options)


def run(backend: Any, engine: Any, steps: int, args: tuple[Any, ...], **options: Any) -> Any:
    """Run and return what ``get_samples`` takes: a state, or nothing."""
    if backend.name == "pyro":
        engine.run(steps, *args, progress_bar=False, **options)
        return ()
    return (engine.run(backend.key(0), steps, *args, progress_bar=False, **options).state,)


@pytest.mark.parametrize("package", ["pyro", "numpyro"])
def test_the_class_is_about_forty_lines(package: str) -> None:
    assert len(code(package)) == 2
    assert len(code(package)[0].splitlines()) <= 45


def test_the_page_runs_and_its_draws_go_to_arviz(page: tuple[Any, dict[str, Any]]) -> None:
    _, names = page
    rate = np.asarray(names["draws"]["rate"], float)
    assert rate.shape == names["idata"].posterior["rate"].shape[1:] == (500,)
    # The posterior is Gamma(8, 6). The step is short, so its bias is below the Monte Carlo error.
    assert abs(rate.mean() - 8 / 6) < 4.0 * np.sqrt(8 / 36 / 500)


@pytest.mark.in_one_package
@pytest.mark.parametrize("step_size", [0.2, 0.05])
def test_the_variance_is_that_of_the_recursion(
    page: tuple[Any, dict[str, Any]], step_size: float
) -> None:
    backend, _ = page
    model, args, _ = from_zoo(backend, "conjugate_normal")
    (moment,) = zoo.ZOO["conjugate_normal"].moments()
    mean, variance = float(np.ravel(moment.mean)[0]), float(np.ravel(moment.std)[0]) ** 2
    step = step_size * variance
    # So many that the step's bias at 0.2, a tenth of the variance, is well beyond the error.
    engine = made(page, model, step, 10_000)
    state = run(backend, engine, int(40 / step_size), args)
    draws = backend.numpy(engine.get_samples(*state)["mu"]).astype(float)
    expected = variance / (1.0 - step / (2.0 * variance))
    assert abs(draws.mean() - mean) < 5.0 * np.sqrt(expected / draws.size)
    assert abs(draws.var() / expected - 1.0) < 5.0 * np.sqrt(2.0 / draws.size)


def test_a_saved_state_goes_on_exactly(page: tuple[Any, dict[str, Any]], tmp_path: Path) -> None:
    backend, _ = page
    model, args, _ = from_zoo(backend, "conjugate_normal")
    path = tmp_path / "state"
    whole, half = (made(page, model, 0.01, 5) for _ in range(2))
    expected = whole.get_samples(*run(backend, whole, 20, args))["mu"]
    state = run(backend, half, 10, args)
    half.save(path, *state)
    resumed = made(page, model, 0.01, 5)
    if backend.name == "pyro":
        resumed.load(path)
        found = resumed.get_samples(*run(backend, resumed, 10, args))
    else:
        start = resumed.load(path, *args)
        found = resumed.get_samples(*run(backend, resumed, 10, args, init_state=start))
    np.testing.assert_array_equal(backend.numpy(found["mu"]), backend.numpy(expected))
    other = made(page, model, 0.02, 5)
    with pytest.raises(backend.public.ArgumentError, match="step_size"):
        if backend.name == "pyro":
            other.load(path)
            other.setup(*args)
        else:
            other.load(path, *args)


def test_a_step_that_is_not_finite_leaves_the_state(page: tuple[Any, dict[str, Any]]) -> None:
    backend, _ = page
    model, args, _ = from_zoo(backend, "conjugate_normal")
    engine = made(page, model, float("inf"), 5)
    with pytest.raises(backend.public.NonFiniteError) as caught:
        run(backend, engine, 3, args)
    assert caught.value.step == 1
    state = () if backend.name == "pyro" else (caught.value.state,)
    assert np.isfinite(backend.numpy(engine.get_samples(*state)["mu"])).all()
