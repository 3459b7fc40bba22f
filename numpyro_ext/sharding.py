"""``Sharding``: how positions and rows are split over JAX's devices, of one process or several.

The programs stay those of one device. JAX's compiler divides them by where their arrays lie and by
the constraints that are put on a few: on positions and rows where the density is evaluated, on the
particles that a kernel sees, and on an engine's state between steps. Axes of the mesh may be
explicit or automatic; arrays are moved to the same devices with automatic axes, since models are
written without types of shardings.

With several processes (``jax.distributed``) every process runs the same program on the same
arguments. What a program gives to Python is whole on every device, so that each process can read
it; see :class:`~numpyro_ext.programs.Program`.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax._src import xla_bridge
from jax.experimental import multihost_utils
from jax.extend.core import get_opaque_trace_state
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.sharding import Sharding as Placement

from ppl_ext import arguments
from ppl_ext.errors import ArgumentError, RankLostError
from ppl_ext.process import between_steps
from ppl_ext.running.sharding import FIRST_BATCH, ShardingShell, check_agreement, lost_rank

Verb = TypeVar("Verb", bound=Callable[..., Any])
#: Positional and keyword arguments.
Call: TypeAlias = tuple[Any, Any]
#: What processes have agreed on so far, which numbers their next agreement.
_agreements = itertools.count()


def _trace_state() -> Any:
    return get_opaque_trace_state(convention="numpyro_ext")


_NO_TRACE = _trace_state()


def is_tracing() -> bool:
    """Whether something is being traced."""
    return bool(_trace_state() != _NO_TRACE)


class Sharding(ShardingShell):
    """How positions and rows are split over the devices of a mesh.

    Parameters
    ----------
    mesh : mesh of the host
        A grid of devices whose axes have names.
    particles : str, optional
        Axis over which particles, chains and draws are split.
    rows : str, optional
        Axis over which rows of the data are split.
    exchange : {"all-gather", "all-to-all"}
        How a kernel gets to see all particles; see :mod:`ppl_ext.running.sharding`.
    timeout : float
        Seconds after which a run with several processes ends with
        :class:`~ppl_ext.errors.RankLostError` when one of them does not come along.

    Raises
    ------
    ArgumentError
        The mesh is not one of this package's, has no such axis, or neither axis is named.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> mesh = jax.make_mesh((1,), ("p",))  # here one device; jax.device_count() tells of how many
    >>> sharding = nx.Sharding(mesh, particles="p")
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.3), num_particles=20, sharding=sharding)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> print(f"{engine.get_samples(result.state)['mean'].mean():.1f}")
    2.0
    """

    _host = "NumPyro"
    _mesh_form = "a jax.sharding.Mesh, such as jax.make_mesh((4,), ('p',))"

    def __init__(self, mesh: Mesh, *args: Any, **options: Any) -> None:
        super().__init__(mesh, *args, **options)
        self._auto = _automatic(mesh)

    @staticmethod
    def _axes_of(mesh: Any) -> Mapping[str, int] | None:
        return dict(mesh.shape) if isinstance(mesh, Mesh) else None

    # Devices can neither be copied nor pickled.
    def __deepcopy__(self, memo: dict[int, Any]) -> Sharding:
        return self

    def __reduce__(self) -> Any:
        names = [each.name for each in self.mesh.axis_types]
        ids = [device.id for device in self.mesh.devices.flat]
        grid = (ids, self.mesh.devices.shape, self.mesh.axis_names, names)
        return _again, (grid, self.particles, self.rows, self.exchange, self.timeout)

    def on_automatic_axes(self) -> AbstractContextManager[Any]:
        """A context in which a user's ``jax.set_mesh`` with explicit axes does not hold."""
        present = jax.sharding.get_abstract_mesh()
        # What is being traced is on the axes of who traces it.
        explicit = any(kind != AxisType.Auto for kind in present.axis_types) and not is_tracing()
        return jax.set_mesh(self._auto) if explicit else nullcontext()

    def on_first_device(self) -> AbstractContextManager[Any]:
        """A context in which arrays that lie on the first device alone may be used.

        A mesh that is set around a run counts as where its programs run.
        """
        if jax.sharding.get_abstract_mesh().empty:
            return nullcontext()
        return jax.set_mesh(Mesh(self._auto.devices.flatten()[:1], ("first",)))

    def of_rows_alone(self) -> Sharding | None:
        """The same for rows alone; None where they are not split."""
        if self.rows is None:
            return None
        return Sharding(self.mesh, rows=self.rows, timeout=self.timeout)

    # -- where arrays lie ---------------------------------------------------------------------

    def whole(self, tree: Any) -> Any:
        """The same arrays, each whole on every device."""
        return jax.tree.map(self._whole, tree)

    def _whole(self, leaf: Any) -> Array:
        return _laid(leaf, NamedSharding(self._auto, PartitionSpec()))

    def alone(self, tree: Any) -> Any:
        """The same arrays, whole on the first device alone."""
        first = jax.sharding.SingleDeviceSharding(self._auto.devices.flat[0])
        return jax.tree.map(lambda leaf: put(leaf, first), tree)

    def split(self, tree: Any, number: int | None = None) -> Any:
        """The same arrays, of which the first axis is split over the axis of particles.

        With ``number``, that of arrays with so many entries along it and further axes, such as
        particles (P, D); the others are whole.
        """
        named = NamedSharding(self._auto, PartitionSpec(self.particles))

        def one(leaf: Any) -> Array:
            shape = np.shape(leaf)
            fits = len(shape) > 0 if number is None else len(shape) > 1 and shape[0] == number
            return _laid(leaf, named) if fits else self._whole(leaf)

        return jax.tree.map(one, tree)

    def exchanged(self, tree: Any) -> Any:
        """Arrays (P, D) as a kernel sees them: whole, or some coordinates of all particles."""
        if self.exchange == "all-gather" or self.particles is None:
            return self.whole(tree)
        named = NamedSharding(self._auto, PartitionSpec(None, self.particles))
        return jax.tree.map(lambda leaf: _laid(leaf, named), tree)

    def split_rows(self, indices: Mapping[str, Array]) -> dict[str, Array]:
        """Row numbers, (rows,) or (P, rows), split over the axis of rows, and that of particles."""
        if self.rows is None:
            return dict(indices)
        specs = {1: PartitionSpec(self.rows), 2: PartitionSpec(self.particles, self.rows)}
        return {
            name: _laid(rows, NamedSharding(self._auto, specs[rows.ndim]))
            for name, rows in indices.items()
        }

    def rehomed(self, tree: Any) -> Any:
        """The same arrays, those that lie on a mesh with explicit axes on automatic ones.

        Raises
        ------
        ArgumentError
            An array lies on other devices than those of the mesh.
        """

        def one(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
                return leaf
            found = leaf.sharding
            if not isinstance(found, NamedSharding):
                if leaf.committed and not found.device_set <= set(self._auto.devices.flat):
                    raise self._elsewhere(leaf)
                return leaf
            if list(found.mesh.devices.flat) != list(self._auto.devices.flat):
                raise self._elsewhere(leaf)
            return put(leaf, NamedSharding(_automatic(found.mesh), found.spec))

        return jax.tree.map(one, tree)

    def of_rows(
        self, arrays: tuple[Any, ...], sizes: Collection[int], ragged: bool = False
    ) -> tuple[Any, ...]:
        """A model's arrays: those with rows split over the axis of rows, the others whole.

        Arrays that are split over these devices already stay as they are.

        Parameters
        ----------
        arrays : tuple of arrays
        sizes : collection of int
            Numbers of rows: an array that has one of them along its first axis has rows.
        ragged : bool
            Whether rows that do not split evenly are whole on every device.

        Raises
        ------
        ArgumentError
            No array has rows, or none with rows splits evenly.
        """
        own = [self._is_split(array) for array in arrays]
        rows = [len(np.shape(each)) > 0 and np.shape(each)[0] in sizes for each in arrays]
        even = [has and np.shape(arrays[i])[0] % self.row_parts == 0 for i, has in enumerate(rows)]
        if self.rows is not None and not any(own):
            if not any(rows):
                raise ArgumentError(
                    f"Expected arguments of the model with rows to split over axis '{self.rows}' "
                    f"of the mesh, found arrays of shapes {[np.shape(each) for each in arrays]} "
                    f"and rows by the number of {sorted(sizes)} in plates and observed sites. Pass "
                    "the data as arguments of the model, with rows along the first axis, or leave "
                    "rows out of the Sharding."
                )
            if not any(even) and not ragged:
                self.check_rows({np.shape(arrays[i])[0] for i, has in enumerate(rows) if has})
        named = NamedSharding(self._auto, PartitionSpec(self.rows))
        return tuple(
            array if is_split else _laid(array, named) if is_even else self._whole(array)
            for array, is_split, is_even in zip(arrays, own, even, strict=True)
        )

    @staticmethod
    def _is_split(array: Any) -> bool:
        found = getattr(array, "sharding", None)
        return isinstance(found, NamedSharding) and any(axis is not None for axis in found.spec)

    def _elsewhere(self, array: Any) -> ArgumentError:
        found = sorted(device.id for device in array.sharding.device_set)
        own = [device.id for device in self._auto.devices.flat]
        return ArgumentError(
            f"Expected arrays on the devices of the mesh, {own}, found one of shape {array.shape} "
            f"on devices {found}. Make the Sharding of the mesh that the arrays lie on, or pass "
            "NumPy's arrays."
        )

    # -- several processes --------------------------------------------------------------------

    @property
    def has_processes(self) -> bool:
        """Whether the devices belong to several processes."""
        return len({device.process_index for device in self._auto.devices.flat}) > 1

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes files."""
        return jax.process_index() == min(d.process_index for d in self._auto.devices.flat)

    def agreed(self, number: float, reached: str) -> float:
        """The first process's number, once all processes have come to the same place.

        Raises
        ------
        RankLostError
            One has not come in time.
        """
        client = _client()
        if client is None or not self.has_processes:
            return number
        # Processes that have come to other places wait for each other in vain, and say so.
        name, milliseconds = f"ppl_ext/{next(_agreements)}/{reached}", int(1000 * self.timeout)
        try:
            if self.writes:
                # `repr` says a float to the last bit.
                client.key_value_set(name, repr(float(number)))
            found = float(client.blocking_key_value_get(name, milliseconds))
            # The number is deleted only when all have read it.
            client.wait_at_barrier(f"{name}/all", milliseconds)
            if self.writes:
                client.key_value_delete(name)
        except jax.errors.JaxRuntimeError as error:
            raise RankLostError(lost_rank(reached, self.timeout, error)) from error
        return found

    def check_batch(self, rows: int, digest: str) -> None:
        """See that batches of so many rows split evenly, and that all processes read the same.

        Raises
        ------
        ArgumentError
            They do not.
        """
        parts = self.row_parts
        if rows % parts:
            raise ArgumentError(
                f"Expected batches of a multiple of {parts} rows, the size of axis '{self.rows}' "
                f"of the mesh, found {rows}. Take batches of {-(-rows // parts) * parts}, or leave "
                "rows out of the Sharding."
            )
        # 48 bits, which a float holds exactly.
        own = float(int(digest[:12], 16))
        if self.agreed(own, "the first batch") != own:
            check_agreement({FIRST_BATCH: [jax.process_index()]})

    def clock(self) -> float:
        """Seconds by the first process's clock, by which all decide alike."""
        return self.agreed(time.perf_counter(), "a look at the clock")

    def on_host(self, leaf: Any) -> Any:
        """An array that every process can read; every process has to ask for it."""
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if _is_key(leaf) or leaf.is_fully_replicated:
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)


#: The process that first used JAX, of those that have made another by ``os.fork``.
_used_by: int | None = None


def _note_use() -> None:
    global _used_by
    if _used_by is None and xla_bridge.backends_are_initialized():
        _used_by = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_note_use)


def check_not_forked() -> None:
    """See that JAX can compute in this process: a fork has none of its threads, and waits for ever.

    Raises
    ------
    ArgumentError
        It cannot.
    """
    if _used_by not in (None, os.getpid()):
        raise ArgumentError(
            f"Expected a process of its own, found one that was forked from process {_used_by}, "
            "which had used JAX: computations would wait for ever. Start processes by 'spawn', as "
            "multiprocessing.get_context('spawn') does, or fork before anything uses JAX."
        )


def entry(verb: Verb) -> Verb:
    """An entry point, see :func:`ppl_ext.arguments.entry`, that refuses forked processes."""

    def own_process(*call: Any) -> AbstractContextManager[Call]:
        check_not_forked()
        return nullcontext(call)

    return cast("Verb", arguments.entry(verb, own_process))


def entry_on_own_axes(verb: Verb) -> Verb:
    """An :func:`entry` point that runs :func:`on_own_axes`."""
    return cast("Verb", arguments.entry(verb, on_own_axes))


@contextmanager
def on_own_axes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
    """Context in which what has a ``sharding``, or a function of one, runs on automatic axes.

    Around it the user may have a mesh with explicit axes, which models are not written for. It
    gives the arguments as they lie on the own axes.
    """
    check_not_forked()
    # The first parameter may be given by keyword as well, as all of them may.
    first = next(iter((*args, *kwargs.values())), None)
    sharding = kwargs.get("sharding") or getattr(first, "sharding", None)
    if not isinstance(sharding, Sharding):
        yield args, kwargs
        return
    with sharding.on_automatic_axes():
        yield sharding.rehomed((args, kwargs))


def verb_on_own_axes(verb: Verb) -> Verb:
    """A method without arguments of the model, which runs :func:`on_own_axes`."""

    @functools.wraps(verb)
    def on_axes(*args: Any, **kwargs: Any) -> Any:
        with between_steps(), on_own_axes(args, kwargs) as (args, kwargs):
            return verb(*args, **kwargs)

    return cast("Verb", on_axes)


def _laid(leaf: Any, to: NamedSharding) -> Array:
    """An array that lies so; a tracer, with a constraint to lie so."""
    if isinstance(leaf, jax.core.Tracer):
        return lax.with_sharding_constraint(leaf, to)
    return put(leaf, to)


def put(leaf: Any, to: Placement) -> Array:
    """An array, of this process alone or of all, on the devices of a mesh.

    Where an axis does not split evenly it is whole on every device.
    """
    if isinstance(leaf, jax.Array) and leaf.sharding == to:
        return leaf
    if isinstance(to, NamedSharding):
        try:
            to.shard_shape(np.shape(leaf))
        except ValueError:
            to = NamedSharding(to.mesh, PartitionSpec())
    if to.is_fully_addressable:
        return jax.device_put(leaf, to)
    if isinstance(leaf, jax.Array):
        if _is_key(leaf):
            kind = random.key_impl(leaf)
            return random.wrap_key_data(put(random.key_data(leaf), to), impl=kind)
        if not leaf.is_fully_addressable:
            # Devices of several processes exchange what they have in a program that all of them
            # run.
            return jax.jit(lambda each: each, out_shardings=to)(leaf)
    # Every process has the whole array, and hands over what its own devices are to have.
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, to, lambda index: host[index])


def _is_key(leaf: Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def mesh_of(leaves: list[Any]) -> Mesh | None:
    """The mesh with automatic axes on which one of some arrays lies, if there is one."""
    for leaf in leaves:
        found = getattr(leaf, "sharding", None)
        if isinstance(found, NamedSharding) and isinstance(found.mesh, Mesh):
            if all(kind == AxisType.Auto for kind in found.mesh.axis_types):
                return found.mesh
    return None


def on_mesh(tree: Any, mesh: Mesh) -> Any:
    """The same arrays, those that do not lie on the mesh whole on every device of it."""
    to = NamedSharding(mesh, PartitionSpec())

    def one(leaf: Any) -> Any:
        found = getattr(leaf, "sharding", None)
        there = isinstance(found, NamedSharding) and found.mesh == mesh
        return leaf if there else put(leaf, to)

    return jax.tree.map(one, tree)


def _automatic(mesh: Any) -> Mesh:
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def _client() -> Any:
    """The process's connection to the service that knows of all processes; None without one."""
    # JAX has no public name for it; Orbax and Flax look there as well.
    from jax._src import distributed

    return distributed.global_state.client


def _again(grid: Any, *options: Any) -> Sharding:
    ids, shape, axes, kinds = grid
    devices = {device.id: device for device in jax.devices()}
    # A device is known by its number, which another machine may not have.
    if missing := [each for each in ids if each not in devices]:
        raise ArgumentError(
            f"Expected the devices {ids} of a pickled Sharding, found none of the numbers "
            f"{missing}. Load it where these devices are, or pickle the engine without sharding."
        )
    found = np.array([devices[each] for each in ids]).reshape(shape)
    mesh = Mesh(found, axes, axis_types=tuple(AxisType[each] for each in kinds))
    particles, rows, exchange, timeout = options
    return Sharding(mesh, particles, rows, exchange=exchange, timeout=timeout)
