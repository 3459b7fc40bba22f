"""How positions and rows are split over processes by ``torch.distributed`` (:class:`Sharding`).

Every process runs the same program. An engine's target evaluates the positions and the rows of its
own process, and plain collectives on the engine's tensors put the results together: an all-gather
over positions, an all-reduce over rows; or, where kernels see some coordinates of all particles in
each process, an all-to-all and sums over coordinates. What follows from them is computed by every
process, from the same random numbers, and is the same in all. Particles that follow a direction,
their optimizer and their scores are kept by the process that they belong to.

Collectives are waited for with a timeout, so that a process that was killed or has stalled ends the
run in all of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ppl_ext import errors
from ppl_ext.batches.batch import Batch
from ppl_ext.errors import ArgumentError, RankLostError
from ppl_ext.process import swapped
from ppl_ext.running.sharding import ShardingShell, check_agreement, lost_rank
from ppl_ext.target.fingerprint import numbers_of
from ppl_ext.target.layouts import DataPlate, sweep_ranges

#: Warnings that the first process alone gives.
_OWN_WARNINGS = tuple(
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Warning)
)


@dataclass
class Traffic:
    """What the collectives of one process have moved.

    Attributes
    ----------
    numbers : dict of str to int
        By kind of collective, how many entries the results had together.
    calls : dict of str to int
        By kind of collective, how often it was called.
    sent : float
        Bytes that this process sends where collectives pass data along a ring of all processes.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    sent: float = 0.0

    def add(self, kind: str, number: int, size: int, processes: int) -> None:
        """Count one collective, whose result has so many numbers of so many bytes."""
        self.numbers[kind] = self.numbers.get(kind, 0) + number
        self.calls[kind] = self.calls.get(kind, 0) + 1
        # A sum goes round twice: the parts, and what they add up to.
        times = 2 if kind == "all-reduce" else 1
        self.sent += times * number * size * (processes - 1) / processes

    def clear(self) -> None:
        """Count anew."""
        self.numbers.clear()
        self.calls.clear()
        self.sent = 0.0


@dataclass
class _Links:
    """What copies of one sharding share: what was moved, and whether a process is lost."""

    traffic: Traffic = field(default_factory=Traffic)
    lost: str | None = None


class Sharding(ShardingShell):
    """How positions and rows are split over the processes of a ``torch.distributed`` mesh.

    An argument of every engine, of ``fit``, ``predictive_distribution`` and ``to_arviz``. All
    processes run the same program, with the same arguments, all rows among them, and one seed;
    they are compared when a run starts. Losses, draws and figures are the same in all.

    Parameters
    ----------
    mesh : DeviceMesh
        With named dimensions, such as
        ``init_device_mesh("cpu", (2, 4), mesh_dim_names=("p", "d"))``.
    particles : str, optional
        Dimension over which particles, chains and draws are split.
    rows : str, optional
        Dimension over which rows are split: of plates that the model subsamples itself, and of
        batches that come from a loader.
    exchange : {"all-gather", "all-to-all"}
        How a kernel gets to see all particles; see :mod:`ppl_ext.running.sharding`. The second is
        for ``RBF``, ``IMQ``, ``Linear``, ``Additive`` and ``Dilation``, their sums and multiples,
        and the default kernel.
    timeout : float, default 50
        Seconds that a process waits for the others in a collective before it ends with
        :class:`~ppl_ext.errors.RankLostError`. Longer than a checkpoint takes to write.

    Raises
    ------
    ArgumentError
        There is no process group, the mesh is none or has no such dimension, neither dimension is
        named, the mesh has another with several processes, or there is no such exchange.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> import torch.distributed as torch_dist
    >>> store = torch_dist.HashStore()  # here one process; torchrun starts many
    >>> torch_dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> mesh = torch_dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("p",))
    >>> sharding = px.Sharding(mesh, particles="p")
    >>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.3}), sharding=sharding, seed=0)
    >>> result = engine.run(100, y)
    >>> print(f"{engine.get_samples()['mean'].mean():.1f}")
    2.0
    >>> torch_dist.destroy_process_group()
    """

    _host = "Pyro"
    _mesh_form = (
        "a DeviceMesh of torch.distributed with named dimensions, such as "
        "init_device_mesh('cpu', (2,), mesh_dim_names=('p',))"
    )

    def __init__(
        self,
        mesh: DeviceMesh,
        particles: str | None = None,
        rows: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(mesh, particles, rows, **options)
        if not dist.is_initialized():
            raise ArgumentError(
                "Expected a process group, found none. Start the program by torchrun, and call "
                "torch.distributed.init_process_group() before the mesh is made."
            )
        apart = {
            name: size
            for name, size in self._sizes.items()
            if size > 1 and name not in (particles, rows)
        }
        if apart:
            raise ArgumentError(
                f"Expected each dimension of the mesh to split particles or rows, found {apart} "
                "besides. Name them, or take the part of the mesh that is named: mesh['p', 'd']."
            )
        if mesh.get_coordinate() is None:
            raise ArgumentError(
                f"Expected a process of the mesh, found that rank {dist.get_rank()} is not among "
                f"its ranks, {mesh.mesh.flatten().tolist()}."
            )
        self._links = _Links()

    @staticmethod
    def _axes_of(mesh: Any) -> Mapping[str, int] | None:
        if not isinstance(mesh, DeviceMesh):
            return None
        return dict(zip(mesh.mesh_dim_names or (), mesh.mesh.shape, strict=False))

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: Any) -> Self:
        # Copies of an engine belong to the same processes.
        return self

    def __reduce__(self) -> Any:
        raise ArgumentError(
            "Expected an engine without a Sharding to be pickled, found one with it: its process "
            "groups are of this process. Write engine.save(path), and load it with an engine of "
            "any layout."
        )

    # -- this process ---------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether this is the first process, which writes files and shows how a run goes."""
        return self._number("particles") == self._number("rows") == 0

    @property
    def traffic(self) -> Traffic:
        """What the collectives of this process have moved so far."""
        return self._links.traffic

    def of_rows_alone(self) -> Self:
        """The same split of rows, with positions that are not split."""
        other = self.__copy__()
        other.particles = None
        return other

    def _dim(self, option: str) -> str | None:
        name: str | None = getattr(self, option)
        return name if name is not None and self._sizes[name] > 1 else None

    def _number(self, option: str) -> int:
        name = self._dim(option)
        return 0 if name is None else self.mesh.get_local_rank(name)

    # -- positions ------------------------------------------------------------------------------

    def splits(self, number: int) -> bool:
        """Whether so many positions are split: fewer than there are processes are not."""
        return number >= self.particle_parts > 1

    def own(self, whole: Tensor) -> Tensor:
        """The entries along the first axis of this process, as many as of any.

        Where they do not split evenly the last one is repeated.
        """
        number, parts = len(whole), self.particle_parts
        if not self.splits(number):
            return whole
        size = -(-number // parts)
        first = self._number("particles") * size
        if number % parts == 0:
            return whole[first : first + size]
        # Collectives ask for equal sizes; `gathered` cuts the copies off.
        places = torch.arange(first, first + size, device=whole.device).clamp_(max=number - 1)
        return whole[places]

    def gathered(self, part: Tensor, number: int) -> Tensor:
        """All of so many entries, from those of each process: inverse of :meth:`own`."""
        if not self.splits(number):
            return part
        return self._gathered("all-gather", "particles", part)[:number]

    def _gathered(self, kind: str, option: str, part: Tensor) -> Tensor:
        """Tensors (n, ...) of the processes along a dimension, one after the other."""
        if self._dim(option) is None:
            return part
        # Collectives take the memory of a tensor as it lies.
        number, given = self._sizes[getattr(self, option)], part.contiguous()
        whole = given.new_empty((number * len(given), *given.shape[1:]))
        # Views of one tensor, so that what arrives is joined already.
        pieces = list(whole.chunk(number))

        def start(group: Any) -> Any:
            return dist.all_gather(pieces, given, group=group, async_op=True)

        self._collect(kind, option, whole, start)
        return whole

    def exchanged(self, own: Tensor) -> Tensor:
        """Some coordinates (P, d) of all particles, from all of this process's (P / n, D).

        All processes have as many: zeros stand behind the last ones.
        """
        parts, (count, dim) = self.particle_parts, own.shape
        size = -(-dim // parts)
        filled = torch.nn.functional.pad(own, (0, parts * size - dim))
        # Piece k has the coordinates of process k of all particles that are here.
        pieces = filled.view(count, parts, size).movedim(1, 0)
        return self._exchanged(pieces).reshape(parts * count, size)

    def filled(self, dim: int) -> int:
        """How many columns of :meth:`exchanged` stand behind all D coordinates, in this process."""
        size = -(-dim // self.particle_parts)
        return min(size, max(0, size * (self._number("particles") + 1) - dim))

    def returned(self, some: Tensor, dim: int) -> Tensor:
        """All coordinates (P / n, D) of this process's particles: inverse of :meth:`exchanged`."""
        pieces = self._exchanged(some.view(self.particle_parts, -1, some.shape[1]))
        return pieces.movedim(0, 1).reshape(pieces.shape[1], -1)[:, :dim]

    def _exchanged(self, pieces: Tensor) -> Tensor:
        """A piece (n, ...) of each process, from pieces for each process."""
        given = pieces.contiguous()
        whole = torch.empty_like(given)

        def start(group: Any) -> Any:
            return dist.all_to_all_single(whole, given, group=group, async_op=True)

        self._collect("all-to-all", "particles", whole, start)
        return whole

    def over_particles(self, part: Tensor) -> Tensor:
        """Sum of a tensor of each process along the dimension of particles."""
        return self._sum(part, "particles")

    def gathered_tree(self, tree: Any, number: int) -> Any:
        """The same of the tensors in a tuple: vectors travel together, others by themselves."""
        if not self.splits(number):
            return tree
        return _vectors_together(tree, lambda each: self.gathered(each, number))

    # -- rows -----------------------------------------------------------------------------------

    def summed(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the processes' rows: vectors travel together, others by themselves."""
        if self._dim("rows") is None:
            return list(parts)
        return _vectors_together(parts, self._sum)

    def _sum(self, part: Tensor, option: str = "rows") -> Tensor:
        whole = part.clone(memory_format=torch.contiguous_format)

        def start(group: Any) -> Any:
            return dist.all_reduce(whole, group=group, async_op=True)

        self._collect("all-reduce", option, whole, start)
        return whole

    def own_rows(
        self, indices: Mapping[str, Tensor]
    ) -> tuple[list[tuple[float, dict[str, Tensor]]], bool]:
        """The rows of a batch that are this process's, with their weight; and if rows are split.

        A batch is split where it is longest. The weights of all processes sum to one, as in a sweep
        over all rows.
        """
        lengths = {name: rows.shape[-1] for name, rows in indices.items()}
        name = max(lengths, key=lambda each: lengths[each], default="")
        parts = self.row_parts
        if parts == 1 or lengths.get(name, 0) < parts:
            return [(1.0, dict(indices))], False
        first, last = self._range(lengths[name])
        own = {**indices, name: indices[name][..., first:last]}
        return [((last - first) / lengths[name], own)], True

    def own_ranges(
        self, plates: Mapping[str, DataPlate], chunk: int | None
    ) -> tuple[list[tuple[float, dict[str, range]]], bool]:
        """The same of all rows, in chunks; see :func:`~ppl_ext.target.layouts.sweep_ranges`."""
        name = max(plates, key=lambda each: plates[each].size, default="")
        parts = self.row_parts
        if parts == 1 or name not in plates or plates[name].size < parts:
            return sweep_ranges(plates, chunk), False
        size = plates[name].size
        first, last = self._range(size)
        own = {**plates, name: replace(plates[name], size=last - first)}
        return [
            (
                weight * (last - first) / size,
                {
                    each: range(rows.start + first, rows.stop + first) if each == name else rows
                    for each, rows in ranges.items()
                },
            )
            for weight, ranges in sweep_ranges(own, chunk)
        ], True

    def own_batch(self, batch: Batch) -> tuple[float, Batch]:
        """The rows of a batch of a loader that are this process's, with their share.

        A batch of fewer rows than there are processes is the first one's.
        """
        number = batch.rows
        if number < self.row_parts:
            return float(self._number("rows") == 0), batch
        first, last = self._range(number)
        return (last - first) / number, batch.part(first, last)

    def _range(self, number: int) -> tuple[int, int]:
        place, parts = self._number("rows"), self.row_parts
        # Without gaps, and no part is more than a row longer than another.
        return number * place // parts, number * (place + 1) // parts

    # -- draws after a fit ----------------------------------------------------------------------

    def own_draws(self, number: int) -> list[int]:
        """Places of those of so many draws that this process evaluates, of all in the mesh.

        As many as of any process; where draws do not split evenly the last one comes again.
        """
        place = self._number("particles") * self.row_parts + self._number("rows")
        size = -(-number // (self.particle_parts * self.row_parts))
        return [min(each, number - 1) for each in range(place * size, (place + 1) * size)]

    def arrays_of_all(self, own: np.ndarray, number: int) -> np.ndarray:
        """Arrays of so many draws (S, ...), from those of each process."""
        # As bytes: NumPy has types that torch has not. Rows first, which `own_draws` counts
        # fastest.
        found = torch.from_numpy(np.ascontiguousarray(own).reshape(len(own), -1).view(np.uint8))
        found = found.to(self.mesh.device_type)
        for option in ("rows", "particles"):
            found = self._gathered("figures", option, found)
        whole = found.cpu().numpy().view(own.dtype)
        return whole.reshape(-1, *own.shape[1:])[:number]

    # -- all processes --------------------------------------------------------------------------

    def of_all(self, values: Tensor) -> Tensor:
        """A vector (n,) of each process, in the order of the mesh: (processes, n)."""
        found = values.to(self.mesh.device_type)[None]
        for option in ("rows", "particles"):
            found = self._gathered("figures", option, found)
        return found.cpu()

    def of_first(self, values: Tensor) -> Tensor:
        """The first process's tensor, of the same shape in all."""
        # A broadcast writes into the tensor that it is given.
        whole = values.to(self.mesh.device_type, copy=True)
        for option in ("particles", "rows"):
            if self._dim(option) is not None:

                def start(group: Any) -> Any:
                    source = dist.get_global_rank(group, 0)
                    return dist.broadcast(whole, source, group=group, async_op=True)

                self._collect("broadcast", option, whole, start)
        return whole.to(values.device)

    def clock(self) -> float:
        """Seconds by the first process's clock, by which all decide alike."""
        return float(self.of_first(torch.tensor([time.perf_counter()], dtype=torch.float64)))

    def any(self, truth: Any) -> bool:
        """Whether something is true in any process."""
        return bool(self.of_all(torch.tensor([float(bool(truth))])).any())

    def agree(self, digests: Mapping[str, str]) -> None:
        """See that all processes have the same digests.

        Raises
        ------
        ArgumentError
            They have not; every process says so.
        RankLostError
            A process does not come.
        """
        own = [
            # torch's whole numbers of 64 bits have a sign.
            int.from_bytes(numbers_of(each).tobytes(), "little", signed=True)
            for each in digests.values()
        ]
        found = self.of_all(torch.tensor(own, dtype=torch.int64))
        differing = {
            name: (column != column[0]).nonzero()[:, 0].tolist()
            for name, column in zip(digests, found.T, strict=True)
        }
        check_agreement({name: ranks for name, ranks in differing.items() if ranks})

    def by_first(self, work: Callable[[], None]) -> None:
        """Let the first process do something; all go on when it is done.

        Raises
        ------
        ArgumentError
            It has failed; the first process has the error itself.
        """
        failure: BaseException | None = None
        if self.writes:
            try:
                work()
            except Exception as error:  # noqa: BLE001 raised below
                failure = error
        # All wait here, so that none goes on before the file is written.
        failed = self.any(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise ArgumentError("Expected the first process to write the file, found it failed.")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Context in which the first process alone gives this package's warnings."""
        if self.writes:
            yield
            return
        with swapped(warnings.catch_warnings()):
            for category in _OWN_WARNINGS:
                warnings.simplefilter("ignore", category)
            yield

    def _collect(self, kind: str, option: str, whole: Tensor, start: Callable[[Any], Any]) -> None:
        """Take part in a collective over a dimension, whose result is a tensor."""
        # Whoever is lost will not come to the next collective either.
        if self._links.lost is not None:
            raise RankLostError(self._links.lost)
        name = getattr(self, option)
        try:
            start(self.mesh.get_group(name)).wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            # The host goes on with what is no help.
            said = str(error).partition(". This is typically")[0]
            self._links.lost = lost_rank("the next collective", self.timeout, said)
            raise RankLostError(self._links.lost) from error
        self.traffic.add(kind, whole.numel(), whole.element_size(), self._sizes[name])


def _vectors_together(
    tensors: Sequence[Tensor], function: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """A function of each tensor, of all vectors among them at once: as columns of one matrix."""
    short = [each for each in tensors if each.dim() == 1]
    found = iter(function(torch.stack(short, 1)).unbind(1)) if short else iter(())
    return [next(found) if each.dim() == 1 else function(each) for each in tensors]
