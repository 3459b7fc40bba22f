"""Compiled programs: quickly compiled where they run a few times, and compiled once for all that
are the same.

``jax.jit`` keeps programs by function, and every engine and target has functions of its own. Here
a program is known by what it computes, its lowered text with every constant that it closes over,
and the text by the operations and constants that were traced, where these tell all. So a second
engine of the same model and shapes finds the programs of the first, and one whose model closes
over other arrays, or reads another global, does not.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from numpyro_ext.programs.callbacks import raised_as_it_is
from numpyro_ext.programs.operations import digest_of_program
from numpyro_ext.sharding import check_not_forked, is_tracing, mesh_of, on_mesh

#: XLA spends most of a small program's compile time on making it fast. On processors these make
#: it about five times shorter, and some programs several times slower to run.
_QUICKLY: dict[str, bool | int | float | str] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}

#: Programs that are kept for others to find; the one that was not asked for longest makes room.
MAX_KEPT = 256
#: Texts of which the digest is kept, a hundred bytes each.
MAX_TEXTS = 4096
#: Programs with longer texts hold large constants, which must not outlive their engine.
MAX_LENGTH = 2**21
#: The same of programs that run a few times: a network's, which look at its start, have many
#: operations, and compiled take fifty times the memory of their text.
MAX_LENGTH_RARELY = 2**19

#: What a program that is not optimised saves for each line of its text, and what it loses each time
#: that it runs for each byte that its operations read or write, in seconds. Measured; of the order
#: on any present processor.
SAVED_PER_LINE, LOST_PER_BYTE = 1e-3, 1e-10
#: What a triangular solve loses for each of its multiplications, in bytes: for several matrices at
#: once it is loops of small operations, 15 to 20 times as slow.
BYTES_PER_SOLVE = 80

#: Settings under which a function becomes another program.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
#: Settings with which a user looks for a mistake; ``jax.jit`` itself knows what to do then.
_DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")

_kept: OrderedDict[Hashable, Any] = OrderedDict()
#: Texts of programs by their operations: what was lowered once is not lowered again to be found.
_texts: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


class _Text(NamedTuple):
    digest: bytes
    lines: int


def concretely() -> AbstractContextManager[Any]:
    """A context in which values are computed at once, whether or not something is being traced.

    Outside of traces it does nothing: JAX would compute every operation without tracers one by one
    there, also those of the functions that are traced inside.
    """
    return jax.ensure_compile_time_eval() if is_tracing() else nullcontext()


class Program:
    """A function under ``jax.jit`` whose compiled program others find as well.

    Called while something is being traced it is part of that, as any function under ``jax.jit``.
    Where one of its arguments lies on a mesh, all do, and every value is whole on every device.

    Parameters
    ----------
    function : callable
        A pure function of pytrees of arrays.
    rarely : bool
        Whether it will run a few times only, so that time to compile counts and not time to run.
    donate_argnums : tuple of int
        As for ``jax.jit``.
    whole : bool
        Leave it out where the function itself says how its values lie on a mesh.

    Attributes
    ----------
    jitted : callable
        The function as ``jax.jit`` gives it, for use inside of other programs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        rarely: bool = False,
        donate_argnums: tuple[int, ...] = (),
        whole: bool = True,
    ) -> None:
        self._function, self._donated, self._whole = function, donate_argnums, whole
        # Arguments that are not used would not be seen in the text.
        self.jitted = jax.jit(function, keep_unused=True, donate_argnums=donate_argnums)
        self._rarely = rarely
        self._compiled: dict[Hashable, Any] = {}
        self._meshes: dict[Hashable, Any] = {}
        self._digests: dict[Hashable, bytes | None] = {}

    def __call__(self, *args: Any) -> Any:
        """The function's value."""
        check_not_forked()
        if is_tracing():
            return self.jitted(*args)
        if _is_debugging():
            return _with_callbacks(self.jitted)(*args)
        signature = _signature(args)
        compiled = self._compiled.get(signature)
        if compiled is None:
            mesh = self._meshes[signature] = mesh_of(jax.tree.leaves(args))
            found = self._find(signature, self._placed(signature, args), mesh)
            compiled = self._compiled[signature] = found
        return compiled(*self._placed(signature, args))

    def _placed(self, signature: Hashable, args: tuple[Any, ...]) -> tuple[Any, ...]:
        mesh = self._meshes[signature]
        return args if mesh is None else on_mesh(args, mesh)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        """A copy that finds its programs again: compiled ones cannot be copied."""
        function = copy.deepcopy(self._function, memo)
        donated, whole = self._donated, self._whole
        return Program(function, rarely=self._rarely, donate_argnums=donated, whole=whole)

    def optimised(self) -> Program:
        """The same function, traced once for both, as a program that runs often."""
        other = copy.copy(self)
        # The digests of what was traced are shared, as they say nothing of how it is compiled.
        other._rarely, other._compiled, other._meshes = False, {}, {}
        return other

    def _find(self, signature: Hashable, args: tuple[Any, ...], mesh: Any) -> Any:
        jitted: Any = self.jitted
        layout: dict[str, Any] = {}
        if mesh is not None and self._whole:
            layout = {"out_shardings": NamedSharding(mesh, PartitionSpec())}
            jitted = jax.jit(
                self._function, keep_unused=True, donate_argnums=self._donated, **layout
            )
        traced = jitted.trace(*args)
        outputs = (jax.tree.structure(traced.out_info), tuple(traced.jaxpr.out_avals))
        # What the text does not say: how it is compiled, and the trees of what goes in and comes
        # out.
        rest = (self._rarely, signature, outputs)
        # A mesh may lay values out in ways that no operation names.
        operations = self._operations(signature, traced) if mesh is None else None
        known = None if operations is None else _get(_texts, operations)
        found = None if known is None else _get(_kept, (known.digest, *rest))
        if found is not None:
            return found
        lowered = traced.lower()
        text = lowered.as_text()
        # Arguments of the text's main function, which are the leaves of ours.
        inputs = text.partition("@main(")[2].partition(") ->")[0].count("%arg")
        if inputs != len(jax.tree.leaves(args)):
            # Constants that became arguments, whose values the text does not say; or values kept
            # from another trace, of which the function says better than the program what is wrong.
            return _with_callbacks(jitted) if "callback" in text else jitted
        if "callback" in text:
            # It does not say to what. It can fail halfway, and must not have taken over by then
            # what the caller would go on from.
            if self._donated:
                lowered = jax.jit(self._function, keep_unused=True, **layout).lower(*args)
            return _with_callbacks(_compile(lowered, self._rarely))
        if len(text) > (MAX_LENGTH_RARELY if self._rarely else MAX_LENGTH):
            return _compile(lowered, self._rarely)
        digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
        if operations is not None:
            _put(_texts, operations, _Text(digest, text.count("\n")), MAX_TEXTS)
        found = _get(_kept, (digest, *rest))
        if found is None:
            found = _compile(lowered, self._rarely)
            _put(_kept, (digest, *rest), found, MAX_KEPT)
        return found

    def num_lines(self, *args: Any) -> int:
        """Lines of the program's text."""
        traced = self.jitted.trace(*args)
        operations = self._operations(_signature(args), traced)
        known = None if operations is None else _get(_texts, operations)
        return traced.lower().as_text().count("\n") if known is None else known.lines

    def _operations(self, signature: Hashable, traced: Any) -> Hashable | None:
        """What the text will say, as a key; None where only the text itself can tell."""
        if signature not in self._digests:
            self._digests[signature] = digest_of_program(traced.jaxpr, MAX_LENGTH)
        digest = self._digests[signature]
        return None if digest is None else (digest, self._donated, signature)


class Loop:
    """A function that takes many steps, the first of them by a program that is quickly compiled.

    XLA takes seconds to optimise what many runs need for milliseconds. So the first steps are
    taken by a program that is not optimised, as many as lose about the time that it saves, and
    later ones by one that is. The number depends on the program alone, so that a run's steps are
    taken by the same programs however it is cut.

    Parameters
    ----------
    function : callable
        A pure function of pytrees of arrays and, last, of the number of steps. Its text holds one
        step, as a loop's does.
    usual : int
        Steps of a usual run. Where the time saved would be lost earlier, all steps are taken by
        the optimised program.
    donate_argnums, whole
        As for :class:`Program`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        usual: int,
        *,
        donate_argnums: tuple[int, ...] = (),
        whole: bool = True,
    ) -> None:
        self._usual = usual
        options: Any = {"donate_argnums": donate_argnums, "whole": whole}
        self._quick = Program(function, rarely=True, **options)
        self._optimised = self._quick.optimised()
        self._switches: dict[Hashable, int] = {}

    def __call__(self, first: int, count: int, switch: int, *args: Any) -> Any:
        """The function's value after ``count`` steps, or fewer, where ``first`` have been taken.

        ``switch`` is :meth:`switch` of these arguments, or of those of one of several batches.
        """
        if first >= switch:
            return self._optimised(*args, np.int32(count))
        return self._quick(*args, np.int32(min(count, switch - first)))

    def whole(self, first: int, count: int, *args: Any) -> Any:
        """The function's value after ``count`` steps, all by the program of the first."""
        program = self._optimised if first >= self.switch(*args) else self._quick
        return program(*args, np.int32(count))

    def __deepcopy__(self, memo: dict[int, Any]) -> Loop:
        other = copy.copy(self)
        other._quick, other._switches = copy.deepcopy(self._quick, memo), {}
        other._optimised = other._quick.optimised()
        return other

    def switch(self, *args: Any) -> int:
        """The step from which on steps are taken by the optimised program."""
        signature = _signature(args)
        if signature not in self._switches:
            self._switches[signature] = 0
            if _QUICKLY and not _is_debugging() and jax.default_backend() == "cpu":
                traced = self._quick.jitted.trace(*args, np.int32(1))
                saved = SAVED_PER_LINE * self._quick.num_lines(*args, np.int32(1))
                lost = LOST_PER_BYTE * max(_num_bytes(traced.jaxpr), 1)
                # Steps after which the quick program has lost the seconds that it saved.
                steps = int(min(saved / lost, 2.0**31 - 1.0))
                self._switches[signature] = steps if steps >= self._usual else 0
        return self._switches[signature]


def _get(kept: OrderedDict[Hashable, Any], key: Hashable) -> Any:
    with _lock:
        if key in kept:
            kept.move_to_end(key)
        return kept.get(key)


def _put(kept: OrderedDict[Hashable, Any], key: Hashable, value: Any, most: int) -> None:
    with _lock:
        kept[key] = value
        while len(kept) > most:
            kept.popitem(last=False)


def _with_callbacks(compiled: Any) -> Callable[..., Any]:
    """A compiled program that waits for its callbacks and raises what they raise."""

    def call(*args: Any) -> Any:
        with raised_as_it_is():
            return jax.block_until_ready(compiled(*args))

    return call


def _is_debugging() -> bool:
    return any(getattr(jax.config, name) for name in _DEBUGGING)


def _num_bytes(program: Any) -> int:
    """Bytes that a program's operations read or write, those of a loop counted once."""
    program = getattr(program, "jaxpr", program)
    total = 0
    for operation in program.eqns:
        parts = [
            part
            for part in jax.tree.leaves(
                list(operation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")
            )
            if hasattr(part, "eqns")
        ]
        total += sum(map(_num_bytes, parts))
        if not parts:
            values = (each.aval for each in (*operation.invars, *operation.outvars))
            total += sum(each.size * each.dtype.itemsize for each in values if each.shape)
            if operation.primitive.name == "triangular_solve":
                matrices, right_sides = (each.aval for each in operation.invars)
                total += BYTES_PER_SOLVE * right_sides.size * matrices.shape[-1] // 2
    return total


def _signature(args: tuple[Any, ...]) -> Hashable:
    """What of the arguments, and of JAX's settings, a program depends on."""
    leaves, tree = jax.tree.flatten(args)
    return (
        tree,
        tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves),
        *(getattr(jax.config, name) for name in _SETTINGS),
    )


def _compile(lowered: Any, rarely: bool) -> Any:
    if rarely and _QUICKLY:
        try:
            return lowered.compile(compiler_options=_QUICKLY)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            _QUICKLY.clear()  # another version of XLA
    return lowered.compile()
