"""What every public engine keeps to, in both packages, for each row of the registry.

A run that was killed goes on to the last bit; a step that is not finite leaves the state; nothing
is traced again after the first step; and states that belong elsewhere are refused before anything
is overwritten. Engines whose state has more to it (cached curvature, draws used again) say so in
tests of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of
from tests.engine_support import Verbs
from tests.registry import REGISTRY

pytestmark = pytest.mark.filterwarnings("ignore::ppl_ext.errors.EvaluationWarning")

STEPS, SAVED, KILLED = 4, 2, 3
Y = np.linspace(-1.0, 2.0, 12)
#: Rows whose engines want exact scores.
EXACT = {"GSM", "BaM", "FisherVI", "SteinDiscrepancyVI"}
#: One for each engine and solver.
ROWS = [name for name in REGISTRY if name not in ("BaM, constant weight", "FisherVI, covariance")]
#: Rows whose state is that of SVGD, SVN or BaM and is kept by the same code, and one whose solver
#: test_proximal.py takes through these tests; the slow tests run them here too. The state of SVGDVR
#: is SVGD's with an estimator's, which test_variance_reduction.py resumes.
LIKE_OTHERS = (
    "WGD",
    "DeepEnsemble",
    "SVN, block diagonal",
    "GSM",
    "ProximalScoreVI, gradient",
    "SVGDVR",
)


class Killed(Exception):
    """Stands for the end of a process."""


class Case(Verbs):
    """An engine of a row on a small program, with the verbs of both packages as one."""

    def __init__(self, package: str, row: str) -> None:
        backend, self.row = backend_of(package), REGISTRY[row]
        options = {} if self.row.engine in EXACT else {"batch": 4}
        super().__init__(backend, (backend.array(Y),), **options)
        self.calls = 0
        self._shared: dict[str, Any] = {}

    def model(self, y: Any, batch: int | None = None) -> None:
        """Two latents of different supports, so that sites and Jacobians have a part."""
        self.calls += 1
        host, dist = self.backend.host, self.backend.dist
        mean = host.sample("mean", dist.Normal(0.0, 2.0))
        scale = host.sample("scale", dist.LogNormal(0.0, 0.5))
        with host.plate("rows", len(y), subsample_size=batch) as rows:
            host.sample("y", dist.Normal(mean, scale), obs=y if batch is None else y[rows])

    def engine(self, name: str) -> Any:
        """An engine: where it holds no state one for all tests, which trace its programs once."""
        if self.is_pyro or name not in self._shared:
            self._shared[name] = self.make()
        return self._shared[name]

    def make(self, model: Any = None, **set_options: Any) -> Any:
        """A new engine, as after a restart."""
        model = self.model if model is None else model
        engine = self.row.made(self.backend.name, model, STEPS)
        if self.row.engine == "SVGD":
            engine.annealing = lambda step: 0.5 + 0.05 * step
        for name, value in set_options.items():
            assert hasattr(engine, name)
            setattr(engine, name, value)
        return engine

    def broken(self) -> Any:
        """Data of the same shape at which no score is finite."""
        return self.backend.array(np.full_like(Y, np.inf))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_OTHERS else []) for name in ROWS
    ],
)
def row(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["pyro", "numpyro"])
def case(request: pytest.FixtureRequest, row: str) -> Case:
    return Case(request.param, row)


def test_a_killed_run_goes_on_to_the_last_bit(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "state"
    whole = case.engine("first")
    expected, result = case.run(whole, STEPS)

    def kill(step: int, engine_or_state: Any, figures: Mapping[str, float]) -> None:
        if step == KILLED:
            raise Killed

    options = {"callback": kill, "checkpoint": path, "checkpoint_every": SAVED}
    with pytest.raises(Killed):
        case.run(case.engine("first"), STEPS, **options)
    fresh = case.engine("second")
    state = case.load(fresh, path)
    found, rest = case.run(fresh, STEPS - SAVED, state)
    assert case.bits(fresh, found) == case.bits(whole, expected)
    np.testing.assert_array_equal(rest.losses, result.losses[SAVED:])
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_step_that_is_not_finite_leaves_the_state(case: Case) -> None:
    engine, twin = case.engine("first"), case.engine("second")
    state, _ = case.run(engine, 2)
    other, _ = case.run(twin, 2)
    before = case.bits(engine, state)
    with pytest.raises(case.backend.public.NonFiniteError, match="step 3 of") as caught:
        case.step(engine, state, case.broken())
    assert caught.value.step == 3
    # Nothing of it stays, not even its minibatch: the next step is as if it had not been.
    assert case.bits(engine, state) == before
    state, loss = case.step(engine, state)
    other, expected = case.step(twin, other)
    assert float(loss) == float(expected)
    assert case.bits(engine, state) == case.bits(twin, other)


def test_a_step_that_is_not_finite_may_be_skipped(case: Case) -> None:
    engine = case.make(on_nonfinite="skip")
    state, _ = case.step(engine, case.start(engine))
    before = case.algorithm(engine, state)
    state, loss = case.step(engine, state, case.broken())
    assert np.isnan(float(loss)) and case.skipped(engine, state) == 1
    assert case.algorithm(engine, state) == before
    state, loss = case.step(engine, state)
    assert np.isfinite(float(loss)) and case.skipped(engine, state) == 1
    assert case.algorithm(engine, state) != before


def test_a_run_looks_at_the_model_once_and_a_step_never(case: Case) -> None:
    engine = case.engine("first")
    state, _ = case.run(engine, 3)
    state, _ = case.step(engine, state)
    case.calls = 0
    # However many pieces the run has.
    case.run(engine, 4, state, callback=lambda *_: None, callback_every=3)
    assert case.calls == 1
    state, _ = case.step(engine, state, case.backend.array(Y + 1.0))
    assert case.calls == 1


def test_states_that_belong_elsewhere_are_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "state"
    engine = case.engine("first")
    state = case.start(engine)
    case.save(engine, state, path)

    def renamed(y: Any, batch: int | None = None) -> None:
        host, dist = case.backend.host, case.backend.dist
        mean = host.sample("location", dist.Normal(0.0, 2.0))
        with host.plate("rows", len(y), subsample_size=batch) as rows:
            host.sample("y", dist.Normal(mean, 1.0), obs=y if batch is None else y[rows])

    error = case.backend.public.ArgumentError
    tempered = case.make(likelihood_temperature=0.5)
    kept = case.start(tempered)
    before = case.bits(tempered, kept)
    with pytest.raises(error, match=r"another likelihood_temperature: expected 0\.5, found 1\.0"):
        case.load(tempered, path)
    assert case.bits(tempered, kept) == before
    with pytest.raises(error, match="another model"):
        case.load(case.make(renamed), path)
    different = next(name for name in ROWS if REGISTRY[name].engine != case.row.engine)
    elsewhere = Case(case.backend.name, different)
    with pytest.raises(error, match=f"of {elsewhere.row.engine}, found one of {case.row.engine}"):
        elsewhere.load(elsewhere.make(), path)
