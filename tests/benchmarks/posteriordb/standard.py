"""What is tested of every program: a test module defines `PROGRAMS` and `WRONG` and imports these.

`PROGRAMS` maps a model's name to its :class:`Program`; `WRONG` lists errors that the check of mean
scores must see, as `(where, posterior, change)`, see :func:`checks.planted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from pyro_ext.density import LogDensity
from tests.benchmarks.posteriordb import checks, plain

__all__ = [
    "Change",
    "Program",
    "backends",
    "pytest_generate_tests",
    "test_minibatches_cover_the_data_once",
    "test_the_check_sees_a_wrong_density",
    "test_the_density_is_the_plain_one_in_both_hosts",
    "test_the_difference_to_stan_is_constant",
    "test_the_mean_score_over_reference_draws_is_zero",
]

Change = Callable[[Any, Callable[[Any], Any], Any], Any]

backends = pytest.mark.parametrize("backend", checks.BACKENDS)


@dataclass(frozen=True)
class Program:
    """How a model's programs are tested.

    Parameters
    ----------
    plain : callable
        See :func:`plain.density_is`; likewise `centre`, `spread`, and as its tolerances `error` of
        the density and `rounding` between the hosts.
    draws, draws_if_wrong : int
        Reference draws over which the mean score is taken; those of the programs in `WRONG`.
    batch : int or None
        Rows of the minibatches, for programs that draw them.
    stan : float or None
        Largest error of the difference to Stan's log density, for models that Stan has here.
    wide : bool
        Compare with Stan far from the reference draws as well.
    graph : bool
        Trace the Pyro program. A graph of thousands of operations is traced in the time of
        hundreds of evaluations, of which there are few here.
    once : bool
        Density and mean score of one posterior only, the official one where it is at hand.
    """

    plain: plain.Density
    error: float = 1e-11
    rounding: float = 1e-11
    centre: Mapping[str, Any] = field(default_factory=dict)
    spread: float = 0.5
    draws: int = 10_000
    draws_if_wrong: int = 10_000
    batch: int | None = None
    stan: float | None = 1e-11
    wide: bool = True
    graph: bool = True
    once: bool = False

    def native_of(self, backend: str, where: str, name: str) -> checks.Native:
        """The native program of a posterior."""
        return self._traced_or_not(checks.native_of(backend, where, name))

    def wrong(self, backend: str, posterior: Any, change: Change) -> checks.Native:
        """The program with an error."""
        program = checks.planted(backend, posterior.model_name, change)
        return self._traced_or_not(checks.Native(backend, program, posterior.data()))

    def _traced_or_not(self, native: checks.Native) -> checks.Native:
        if native.backend == "pyro" and not self.graph and native.target.evaluation == "graph":
            native.target = LogDensity(native.model, evaluation="handlers")
        return native


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its posteriors."""
    programs: dict[str, Program] = metafunc.module.PROGRAMS
    chosen = {
        "density_case": lambda: _cases(programs, with_draws=False),
        "draws_case": lambda: _cases(programs, with_draws=True),
        "batch_case": lambda: [
            case
            for name, each in programs.items()
            if each.batch
            for case in checks.cases([name])[:1]
        ],
        "stan_case": lambda: checks.cases([name for name, each in programs.items() if each.stan]),
        "wrong_case": lambda: [
            pytest.param(*case, id=f"{case[1]}-{case[2].__name__}")
            for case in metafunc.module.WRONG
        ],
    }
    for fixture, cases in chosen.items():
        if fixture in metafunc.fixturenames:
            found = [pytest.param(case.values, id=case.id, marks=case.marks) for case in cases()]
            metafunc.parametrize(fixture, found)


def _cases(programs: Mapping[str, Program], with_draws: bool) -> list[Any]:
    found = []
    for name, program in programs.items():
        cases = checks.cases([name], with_draws=with_draws)
        at_hand = [case for case in cases if not case.marks]
        found += (at_hand or cases)[-1:] if program.once else cases
    return found


def _program(request: pytest.FixtureRequest, name: str) -> Program:
    found: Program = request.module.PROGRAMS[name.partition("-")[2]]
    return found


def test_the_density_is_the_plain_one_in_both_hosts(
    density_case: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    program = _program(request, density_case[1])
    program.native_of("pyro", *density_case)
    plain.density_is(
        program.plain,
        *density_case,
        program.error,
        centre=program.centre,
        spread=program.spread,
        agreement=program.rounding,
    )


@backends
def test_the_mean_score_over_reference_draws_is_zero(
    backend: str, draws_case: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    where, name = draws_case
    program, posterior = _program(request, name), checks.open_database(where)[name]
    if posterior.reference_draws() is None:
        pytest.skip(f"{name} has means of a reference, but no draws")
    native = program.native_of(backend, where, name)
    found = checks.mean_score_is_zero(backend, posterior, draws=program.draws, native=native)
    print(f"{where} {name} {backend}: {found.worst:.2f} standard errors at most")


@backends
def test_the_check_sees_a_wrong_density(
    backend: str, wrong_case: tuple[str, str, Change], request: pytest.FixtureRequest
) -> None:
    where, name, change = wrong_case
    if where == "official" and (reason := checks.why_not_official()):
        pytest.skip(reason)
    program, posterior = _program(request, name), checks.open_database(where)[name]
    wrong = program.wrong(backend, posterior, change)
    with pytest.raises(AssertionError, match="standard error"):
        checks.mean_score_is_zero(backend, posterior, draws=program.draws_if_wrong, native=wrong)


@backends
def test_minibatches_cover_the_data_once(
    backend: str, batch_case: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    where, name = batch_case
    program, posterior = _program(request, name), checks.open_database(where)[name]
    native = program.native_of(backend, where, name)
    drawing = partial(
        checks.program_of(backend, posterior.model_name), subsample_size=program.batch
    )
    batched = checks.Native(backend, drawing, posterior.data())
    z = plain.positions(native, 3, program.centre, program.spread)
    np.testing.assert_allclose(batched.full_score(z), native.score(z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@backends
def test_the_difference_to_stan_is_constant(
    backend: str, stan_case: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    if reason := checks.why_no_stan():
        pytest.skip(reason)
    where, name = stan_case
    program, posterior = _program(request, name), checks.open_database(where)[name]
    assert program.stan is not None
    native = program.native_of(backend, where, name)
    found = checks.stan_difference_is_constant(
        backend, posterior, program.stan, wide=program.wide, native=native
    )
    print(f"{where} {name} {backend}: {found:.1e}")
