"""Digests of traced programs: equal for what computes the same, and different for all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from numpyro_ext.programs import Loop, Program
from numpyro_ext.programs.operations import digest_of_program

X = jnp.arange(4.0)


def digest(function: Callable[..., Any], *args: Any, longest: int = 1000) -> bytes | None:
    return digest_of_program(jax.make_jaxpr(function)(*args), longest)


def looped(step: Callable[[Any], Any], times: int = 3) -> Callable[..., Any]:
    return lambda x: lax.fori_loop(0, times, lambda _, x: step(x), x)


def closing_over(array: Any) -> Callable[..., Any]:
    return lambda x: x * array


def filled(number: float) -> Callable[..., Any]:
    return lambda x: x.at[jnp.array([5])].get(mode="fill", fill_value=number)


def with_rule(rule: float) -> Callable[..., Any]:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.defjvp(lambda primals, tangents: (function(*primals), rule * tangents[0]))
    return function


# Programs that compute different things, each written anew for each of two digests.
DIFFERENT: dict[str, Callable[[], tuple[Callable[..., Any], Any]]] = {
    "a primitive": lambda: (jnp.sin, X),
    "another": lambda: (jnp.cos, X),
    "a type": lambda: (jnp.sin, jnp.arange(4.0, dtype=jnp.float16)),
    "a shape": lambda: (jnp.sin, jnp.arange(3.0)),
    "an order of arguments": lambda: (lambda x: x[0] - x[1], (X, X)),
    "the other order": lambda: (lambda x: x[1] - x[0], (X, X)),
    "another result": lambda: (lambda x: (x[1] - x[0], x[1])[1], (X, X)),
    "a number": lambda: (lambda x: x * 2.0, X),
    "another number": lambda: (lambda x: x * 3.0, X),
    "zero": lambda: (lambda x: lax.mul(x, np.full(4, 0.0, np.float32)), X),
    "its negative": lambda: (lambda x: lax.mul(x, np.full(4, -0.0, np.float32)), X),
    "a constant": lambda: (closing_over(jnp.array([1.0, 2.0, 3.0, 4.0])), X),
    "another constant": lambda: (closing_over(jnp.array([1.0, 2.0, 3.0, 5.0])), X),
    "an option": lambda: (lambda x: jnp.cumsum(x), X),
    "another option": lambda: (lambda x: jnp.cumsum(x[::-1])[::-1], X),
    "a loop": lambda: (looped(jnp.sin), X),
    "a longer loop": lambda: (looped(jnp.sin, 4), X),
    "a loop of something else": lambda: (looped(jnp.cos), X),
    "a loop with a constant": lambda: (looped(closing_over(jnp.full(4, 2.0))), X),
    "a loop with another": lambda: (looped(closing_over(jnp.full(4, 3.0))), X),
    "a draw": lambda: (lambda key: random.normal(key, (3,)), random.key(0)),
    "another draw": lambda: (lambda key: random.uniform(key, (3,)), random.key(0)),
    "a draw by another generator": lambda: (
        lambda key: random.normal(key, (3,)),
        random.key(0, impl="rbg"),
    ),
    "a gradient": lambda: (jax.grad(lambda x: with_rule(1.0)(x).sum()), X),
    "a gradient by another rule": lambda: (jax.grad(lambda x: with_rule(2.0)(x).sum()), X),
    "zero for rows that are not there": lambda: (filled(0.0), X),
    "its negative for them": lambda: (filled(-0.0), X),
    "rows": lambda: (lambda x: x[jnp.array([0, 1])], X),
    "other rows": lambda: (lambda x: x[jnp.array([0, 2])], X),
}


def test_digests_are_equal_for_the_same_program_and_for_no_other() -> None:
    first, again = ([digest(*make()) for make in DIFFERENT.values()] for _ in range(2))
    assert None not in first
    assert first == again
    names: dict[Any, str] = {}
    for name, each in zip(DIFFERENT, first, strict=True):
        assert names.setdefault(each, name) == name


def test_rules_of_derivatives_that_are_not_asked_for_make_no_difference() -> None:
    assert digest(with_rule(1.0), X) == digest(with_rule(2.0), X) is not None


def test_what_a_digest_cannot_say_has_none() -> None:
    def calls(x: Any) -> Any:
        return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct((4,), x.dtype), x)

    kept: list[Any] = []
    jax.eval_shape(lambda x: kept.append(x + 1.0), 1.0)
    assert digest(calls, X) is None
    assert digest(looped(calls), X) is None
    assert digest(lambda x: x * kept[0], X) is None
    long = np.arange(300.0, dtype=np.float32)
    assert digest(lambda x: x.sum() * long, X) is None
    assert digest(lambda x: x.sum() * long, X, longest=1200) is not None


def test_a_program_that_was_compiled_is_found_without_being_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(number: float, donated: tuple[int, ...] = ()) -> Program:
        return Program(lambda x: jnp.tan(x) * number, donate_argnums=donated)

    def loop() -> Loop:
        return Loop(lambda x, number: lax.fori_loop(0, number, lambda _, x: jnp.tan(x), x), 1)

    lowered: list[Any] = []
    lower = jax.stages.Traced.lower

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        lowered.append(self)
        return lower(self, *args, **options)

    monkeypatch.setattr(jax.stages.Traced, "lower", noted)
    found, taken = program(2.0)(X), loop()(0, 3, loop().switch(X), X)
    before = len(lowered)
    np.testing.assert_array_equal(program(2.0)(X), found)
    np.testing.assert_array_equal(loop()(0, 3, loop().switch(X), X), taken)
    assert len(lowered) == before
    np.testing.assert_array_equal(program(3.0)(X), jnp.tan(X) * 3.0)
    given = X + 0.0
    program(2.0, donated=(0,))(given)
    assert given.is_deleted()  # by a program of its own
    assert len(lowered) == before + 2
