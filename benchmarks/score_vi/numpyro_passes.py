"""Passes over memory in NumPyro, read from the text of the compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest import mock

import jax

from benchmarks.score_vi import numpyro_memory
from benchmarks.score_vi.memory import num_parameters
from benchmarks.score_vi.passes import (
    DRAW,
    OTHER,
    PARTS,
    SCORE,
    STEPS,
    Moved,
    in_vectors,
    longest_short,
)
from numpyro_ext.gradients import Minibatch
from numpyro_ext.guides.normal import DiagonalNormalDensity
from numpyro_ext.score import gradient_steps

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_HEAD = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_LINE = re.compile(
    r"^  (?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<kind>[\w-]+)\("
    r"(?P<operands>.*?)\)(?P<rest>(?:, \w+=.*)?)$"
)
#: Operations that move nothing: what they give is a name of what there is.
_NAMES = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


class _Operation(NamedTuple):
    name: str
    shape: str
    kind: str
    operands: list[str]
    rest: str
    is_root: bool

    @property
    def entries(self) -> int:
        """Of the array; 0 of a tuple."""
        found = re.match(r"\w+\[([\d,]*)\]", self.shape)
        return 0 if found is None else math.prod(int(n) for n in found[1].split(",") if n)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.entries * _BYTES.get(self.shape.partition("[")[0], 0)


Program = dict[str, dict[str, _Operation]]


def count(text: str, longest: int) -> Counter[tuple[str, str]]:
    """Bytes of long arrays that a compiled program reads and writes, by part and kind.

    A loop takes long arrays slice by slice, and passes over each of them once: what it reads again
    of a slice is in the cache. A loop that only looks, and writes none, is left out: the steps have
    one for scales so small that a bound cannot tell whether all will be finite.

    Parameters
    ----------
    text : str
        Of the optimised program.
    longest : int
        Entries of the longest array that is left out.
    """
    program = _read(text)
    entry = re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)
    assert entry is not None
    return _moved(program, program[entry[1]], longest)


def _read(text: str) -> Program:
    program: Program = {}
    inside: dict[str, _Operation] = {}
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            inside = program.setdefault(head["name"], {})
        elif (found := _LINE.match(line)) is not None:
            names = re.findall(r"%([\w.-]+)", found["operands"])
            if found["kind"] == "parameter":
                names = [found["operands"]]
            inside[found["name"]] = _Operation(
                found["name"],
                found["shape"],
                found["kind"],
                names,
                found["rest"],
                found["root"] is not None,
            )
    return program


def _moved(
    program: Program, inside: dict[str, _Operation], longest: int, in_loop: bool = False
) -> Counter[tuple[str, str]]:
    moved: Counter[tuple[str, str]] = Counter()
    part, in_cache = OTHER, set()
    for each in inside.values():
        if each.kind in _NAMES:
            continue
        # What the compiler has made itself has no name; it stands beside what it is for.
        part = next((name for name in PARTS if f"/{name}/" in each.rest), part)
        called = re.search(r"(?:calls|body|to_apply)=%?([\w.-]+)", each.rest)
        if each.kind in ("while", "call") and called is not None:
            within = _moved(program, program[called[1]], longest, each.kind == "while" or in_loop)
            if each.kind == "call" or any(kind == "written" for _, kind in within):
                moved += within
            continue
        body = program[called[1]] if each.kind == "fusion" and called is not None else None
        for number, name in enumerate(each.operands):
            if inside[name].entries > longest and name not in in_cache:
                size = _bytes_read(each, number, inside[name], body)
                moved[part, "read"] += inside[name].size if size and in_loop else size
                if size and in_loop:
                    in_cache.add(name)
        written = each if in_loop else _written(each, inside, body)
        if written.entries > longest:
            moved[part, "written"] += written.size
    return +moved


def _written(
    user: _Operation, around: dict[str, _Operation], body: dict[str, _Operation] | None
) -> _Operation:
    """What an operation writes: its array, or the slice that it writes over one.

    In a loop the slices are the array, which is passed over once.
    """
    last = user
    if body is not None:
        last, around = next(each for each in body.values() if each.is_root), body
    if last.kind != "dynamic-update-slice":
        return user
    over, slice_ = (around[name] for name in last.operands[:2])
    # An array that is computed in the same operation is written as a whole.
    return slice_ if body is None or over.kind == "parameter" else user


def _bytes_read(
    user: _Operation, number: int, operand: _Operation, body: dict[str, _Operation] | None
) -> int:
    """Bytes of an operand that an operation reads; none where it only writes slices over it."""
    if body is None:
        return 0 if user.kind == "dynamic-update-slice" and number == 0 else operand.size
    wanted = ("parameter", [str(number)])
    names = {each.name for each in body.values() if (each.kind, each.operands) == wanted}
    found = 0
    for each in body.values():
        if each.kind == "parameter" or not names.intersection(each.operands):
            continue
        if each.kind == "bitcast":
            names.add(each.name)
        elif each.kind in ("slice", "dynamic-slice"):
            found += each.size
        elif each.kind != "dynamic-update-slice" or each.operands[0] not in names:
            return operand.size
    return min(found, operand.size)


def passes(method: str, layers: tuple[int, ...], x: Any, y: Any) -> tuple[Moved, float]:
    """Vectors that a step reads and writes, by part, and vectors that the program holds at peak."""
    with _named_parts():
        step = numpyro_memory.CASES[method](layers, x, y)
        compiled = step.update.lower(step.state).compile()
    dim = num_parameters(layers)
    needs = compiled.memory_analysis()
    held = needs.argument_size_in_bytes + needs.temp_size_in_bytes
    held += needs.output_size_in_bytes - needs.alias_size_in_bytes
    return in_vectors(count(compiled.as_text(), longest_short(dim)), dim), held / (4 * dim)


@contextmanager
def _named_parts() -> Iterator[None]:
    """Parts of the step are named in programs that are traced inside."""
    parts = (
        (DiagonalNormalDensity, "sample", DRAW),
        (Minibatch, "estimate", SCORE),
        (gradient_steps, "steps_by_part", STEPS),
    )
    with ExitStack() as stack:
        for owner, name, part in parts:
            named = _named(getattr(owner, name), part)
            stack.enter_context(mock.patch.object(owner, name, named))
        yield


def _named(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    @wraps(function)
    def named(*args: Any, **options: Any) -> Any:
        with jax.named_scope(part):
            return function(*args, **options)

    return named
