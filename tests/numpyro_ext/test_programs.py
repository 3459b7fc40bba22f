"""Compiled programs: few for a target, and shared by what computes the same and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from numpyro_ext.density import LogDensity
from numpyro_ext.programs import Loop, Program
from numpyro_ext.programs import program as programs

KEY = random.key(0)

_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **details: (
        _compiled.append(str(details.get("fun_name")))
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
)


@contextmanager
def compiled() -> Iterator[list[str]]:
    """The programs compiled in this context."""
    start, names = len(_compiled), []
    yield names
    names.extend(_compiled[start:])


@pytest.fixture(autouse=True)
def _empty() -> None:
    programs._kept.clear()


def normal(loc: Any, scale: float = 1.0) -> Callable[..., None]:
    """A model that closes over ``loc`` and ``scale``."""

    def model(y: jax.Array) -> None:
        z = numpyro.sample("z", dist.Normal(loc, scale))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    return model


Y = np.array([0.5, 1.5, -0.3], np.float32)


def score_at_zero(model: Callable[..., None]) -> float:
    target = LogDensity(model, KEY, (Y,))
    return float(target.score(jnp.zeros((1, 1)), target.bind(Y)).score[0, 0])


def test_the_next_target_of_the_same_model_compiles_nothing() -> None:
    model = normal(0.3)
    first = LogDensity(model, KEY, (Y,))
    data = first.bind(Y)
    z = first.initial_positions(4, KEY, data)
    expected = first.score(z, data).score, first.constrain(z, data)["z"]
    other_key, other_data = random.key(1), Y + 0.0
    with compiled() as names:
        other = LogDensity(model, other_key, (other_data,))
        again = other.initial_positions(4, KEY, data)
        found = other.score(z, data).score, other.constrain(z, data)["z"]
    assert names == []
    np.testing.assert_array_equal(again, z)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


LOCATION = jnp.array(0.3)


def reads_a_global(y: jax.Array) -> None:
    z = numpyro.sample("z", dist.Normal(LOCATION, 1.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def test_what_a_model_closes_over_is_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sum(Y.tolist())
    for loc in (0.3, 0.4, jnp.array(0.5), jnp.array(0.6), np.float32(0.7)):
        assert score_at_zero(normal(loc)) == pytest.approx(float(loc) + own, rel=1e-5)
    for number in (0.3, 2.0):
        # The same function, another global: what a user does in a notebook.
        monkeypatch.setitem(globals(), "LOCATION", jnp.array(number))
        assert score_at_zero(reads_a_global) == pytest.approx(number + own, rel=1e-5)
    array = np.array(0.3, np.float32)
    for number in (0.8, 0.9):
        array[...] = number  # the same array, changed in place
        assert score_at_zero(normal(array)) == pytest.approx(number + own, rel=1e-5)


def test_options_are_never_stale() -> None:
    target = {
        temperature: LogDensity(normal(0.3), KEY, (Y,), likelihood_temperature=temperature)
        for temperature in (1.0, 2.0)
    }
    for temperature, one in target.items():
        found = one.score(jnp.zeros((1, 1)), one.bind(Y)).score[0, 0]
        assert found == pytest.approx(0.3 + sum(Y.tolist()) / temperature, rel=1e-5)

    def held(y: jax.Array) -> None:
        loc = numpyro.param("loc", 0.1)
        normal(loc)(y)

    with pytest.warns(UserWarning, match="held"):
        first = LogDensity(held, KEY, (Y,))
    for loc in (0.1, 0.2):
        other = first.with_held({"loc": jnp.array(loc)})
        found = other.score(jnp.zeros((1, 1)), other.bind(Y)).score[0, 0]
        assert found == pytest.approx(loc + sum(Y.tolist()), rel=1e-5)


def test_programs_that_differ_in_what_their_text_does_not_say() -> None:
    x, y = jnp.ones(3), jnp.full(3, 2.0)
    assert Program(lambda a, b: a + 0.0)(x, y)[0] == 1.0  # which argument is used
    assert Program(lambda a, b: b + 0.0)(x, y)[0] == 2.0
    assert set(Program(lambda a: {"one": a})(x)) == {"one"}  # the names of results
    assert set(Program(lambda a: {"two": a})(x)) == {"two"}

    def calls(number: float) -> Program:  # what Python does
        shape = jax.ShapeDtypeStruct((3,), x.dtype)
        return Program(lambda a: jax.pure_callback(lambda a: np.asarray(a) + number, shape, a))

    assert calls(1.0)(x)[0] == 2.0 and calls(2.0)(x)[0] == 3.0


def test_values_kept_from_another_trace_are_told_by_jax() -> None:
    kept: list[jax.Array] = []
    jax.eval_shape(lambda x: kept.append(x + 1.0), 1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        Program(lambda x: x * kept[0])(1.0)


def test_constants_that_are_arguments_of_the_text_are_not_shared() -> None:
    with jax._src.config.use_simplified_jaxpr_constants(True):
        for number in (1.0, 2.0):
            constant = jnp.full(3, number)
            assert Program(lambda x, constant=constant: x * constant)(1.0)[0] == number


def test_inside_transformations_a_program_is_a_jitted_function() -> None:
    program = Program(lambda x: jnp.sin(x) ** 2, rarely=True)
    x = jnp.arange(3.0)
    np.testing.assert_allclose(program(x), np.sin(x) ** 2, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(program)(x), np.sin(x) ** 2, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: program(x).sum())(x), np.sin(2 * x), rtol=1e-5)
    constant = jax.jit(lambda: program(x))()  # no argument is traced, and yet all is
    np.testing.assert_allclose(constant, np.sin(x) ** 2, rtol=1e-6)


def test_old_programs_and_large_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_KEPT", 2)
    for number in range(3):
        Program(lambda x, number=number: x + number)(1.0)
    assert len(programs._kept) == 2
    programs._kept.clear()
    large = jnp.asarray(random.normal(KEY, (programs.MAX_LENGTH // 8,)))
    Program(lambda x: x + large)(1.0)
    assert not programs._kept


def test_an_option_that_the_compiler_does_not_know_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "_QUICKLY", {"xla_no_such_option": True})
    assert Program(lambda x: x + 1.0, rarely=True)(1.0) == 2.0
    assert not programs._QUICKLY


def _sines(usual: int) -> Loop:
    def run(x: jax.Array, number: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, number, lambda _, x: jnp.sin(x) + 2.0 * x.mean(), x)

    return Loop(run, usual)


def test_the_first_steps_are_taken_by_a_program_that_is_quickly_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = jnp.ones(8)
    loop = _sines(1)
    # More steps of those that read less.
    assert loop.switch(x) > 50 * loop.switch(jnp.ones(1000)) > 0
    monkeypatch.setattr(programs, "LOST_PER_BYTE", 1e10)
    assert _sines(1).switch(x) == 0
    monkeypatch.undo()
    assert _sines(loop.switch(x) + 1).switch(x) == 0
    levels: list[bool] = []
    compile_ = programs._compile

    def noted(lowered: Any, rarely: bool) -> Any:
        levels.append(rarely)
        return compile_(lowered, rarely)

    monkeypatch.setattr(programs, "_compile", noted)
    loop = _sines(1)
    with compiled() as names:
        taken = loop(0, 9, 5, x)
    assert levels == [True] and len(names) == 1
    # Up to the fifth step and no further.
    np.testing.assert_array_equal(taken, loop(2, 3, 5, loop(0, 2, 5, x)))
    loop(5, 4, 5, taken)
    assert levels == [True, False]


def test_settings_for_looking_for_a_mistake_are_followed() -> None:
    """Without programs, and with the place of a value that is not a number."""

    called: list[float] = []

    def square(x: jax.Array) -> jax.Array:
        called.append(float(x))  # which traces do not allow
        return x * x

    with jax.disable_jit():
        assert Program(square)(jnp.array(3.0)) == 9.0 and called == [3.0]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        Program(lambda x: jnp.log(x))(-jnp.ones(3))


def test_copies_and_other_random_numbers_have_programs_of_their_own() -> None:
    drawn = Program(lambda key: random.normal(key, (3,)))
    first = drawn(KEY)
    np.testing.assert_array_equal(copy.deepcopy(drawn)(KEY), first)
    before = jax.config.jax_threefry_partitionable
    with jax.threefry_partitionable(not before):
        np.testing.assert_array_equal(
            drawn(KEY), jax.jit(random.normal, static_argnums=1)(KEY, (3,))
        )
        assert (drawn(KEY) != first).any()
