"""How positions and rows are split over devices: the options of ``Sharding`` in both packages.

A mesh names one axis or several of a grid of devices. ``particles`` names the axis over which
positions are split: particles, chains, the draws of a step of a guide, draws that are evaluated
after a fit. ``rows`` names the axis over which rows of the data are split. Neither changes what is
computed, but for the order of sums; so neither belongs to the settings of an engine's state, and
nothing of them is saved beside one. A state that was saved on one layout goes on on any other:
exactly on the same one, and to rounding on others.

A kernel needs all P particles of D numbers. With ``exchange="all-gather"`` each device gets all
of them and their scores, 2 P D numbers a step, and room for them, and computes the moves of its
own. With ``exchange="all-to-all"`` each of n devices gets D / n coordinates of all particles and
scores and gives the moves back, 3 P D / n numbers, and never holds more of them than its share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_number, described

#: How a kernel gets to see all particles.
Exchange = Literal["all-gather", "all-to-all"]
EXCHANGES = ("all-gather", "all-to-all")
#: What processes compare of their loaders.
FIRST_BATCH = "first batch"
#: Seconds that a rank is waited for, between pieces of a run and in savings.
TIMEOUT = 50.0


@documents_subclasses
class ShardingShell(ABC):
    """How positions and rows are split over the devices of a mesh.

    Each package's ``Sharding`` has the whole text.
    """

    #: What models are written in, and what its meshes are.
    _host: ClassVar[str]
    _mesh_form: ClassVar[str]

    def __init__(
        self,
        mesh: Any,
        particles: str | None = None,
        rows: str | None = None,
        *,
        exchange: Exchange = "all-gather",
        timeout: float = TIMEOUT,
    ) -> None:
        axes = self._axes_of(mesh)
        if axes is None:
            raise ArgumentError(f"Expected mesh to be {self._mesh_form}, found {described(mesh)}.")
        named = {"particles": particles, "rows": rows}
        for option, axis in named.items():
            if axis is not None and axis not in axes:
                raise ArgumentError(
                    f"Expected {option} to name an axis of the mesh, one of {list(axes)}, found "
                    f"{described(axis)}. Name one of these, or make the mesh with that axis."
                )
        if particles is None and rows is None:
            raise ArgumentError(
                f"Expected particles or rows, or both, to name an axis of the mesh, one of "
                f"{list(axes)}, found neither. Write Sharding(mesh, particles='{next(iter(axes))}')"
                " to split particles, chains and draws."
            )
        if particles == rows:
            raise ArgumentError(
                f"Expected particles and rows to name different axes, found '{rows}' for both. "
                "Make a mesh with two axes, or leave one of them out."
            )
        check_choice("exchange", exchange, EXCHANGES)
        check_number("timeout", timeout)
        self.mesh = mesh
        self.particles = particles
        self.rows = rows
        self.exchange: Exchange = exchange
        self.timeout = float(timeout)
        self._sizes = dict(axes)

    @staticmethod
    @abstractmethod
    def _axes_of(mesh: Any) -> Mapping[str, int] | None:
        """Sizes of a mesh's axes by name; None where it is no mesh."""

    @property
    def particle_parts(self) -> int:
        """Number of parts that positions are split into."""
        return 1 if self.particles is None else self._sizes[self.particles]

    @property
    def row_parts(self) -> int:
        """Number of parts that rows are split into."""
        return 1 if self.rows is None else self._sizes[self.rows]

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return True

    def check_positions(self, number: int, option: str = "num_particles") -> None:
        """See that so many particles, chains or draws, given by an option, split evenly.

        Raises
        ------
        ArgumentError
            They do not.
        """
        parts = self.particle_parts
        if number % parts:
            raise ArgumentError(
                f"Expected {option} to be a multiple of {parts}, the size of axis "
                f"'{self.particles}' of the mesh, found {number}. Take "
                f"{-(-number // parts) * parts}, or a mesh with an axis that divides {number}."
            )

    def check_rows(self, sizes: Iterable[int]) -> None:
        """See that numbers of rows of the data split evenly.

        Raises
        ------
        ArgumentError
            They do not.
        """
        parts = self.row_parts
        for number in sizes:
            if number % parts:
                raise ArgumentError(
                    f"Expected the rows of the data to be a multiple of {parts}, the size of axis "
                    f"'{self.rows}' of the mesh, found {number}. Leave out {number % parts} of "
                    f"them, add {-number % parts} that the model masks, or leave rows out of the "
                    "Sharding."
                )

    def __repr__(self) -> str:
        shown = [
            f"{option}='{axis}' ({self._sizes[axis]})"
            for option, axis in (("particles", self.particles), ("rows", self.rows))
            if axis is not None
        ]
        if self.exchange != EXCHANGES[0]:
            shown.append(f"exchange='{self.exchange}'")
        return f"Sharding({', '.join(shown)})"


def check_sharding(sharding: Any, own: type[ShardingShell]) -> None:
    """See that what is given as ``sharding`` is a package's own, or None.

    Raises
    ------
    ArgumentError
        It is something else, or the other package's.
    """
    if sharding is None or isinstance(sharding, own):
        return
    form = f"Write Sharding(mesh, particles='p', rows='d') with {own._mesh_form}."
    if isinstance(sharding, ShardingShell):
        raise ArgumentError(
            f"Expected sharding to be a Sharding of {own._host}'s package, found one of "
            f"{sharding._host}'s. {form}"
        )
    raise ArgumentError(f"Expected sharding to be a Sharding, found {described(sharding)}. {form}")


def check_agreement(differing: Mapping[str, Sequence[int]]) -> None:
    """Raise unless all processes of a run have the same program, arguments, options and batches.

    Parameters
    ----------
    differing : mapping of str to sequence of int
        By name of what differs, the numbers of the processes that differ from the first.

    Raises
    ------
    ArgumentError
        ``differing`` is not empty.
    """
    if FIRST_BATCH in differing:
        raise ArgumentError(
            "Expected all processes of a run to read the same batches, found that processes, "
            f"counted along the mesh, differ from the first: {list(differing[FIRST_BATCH])[:8]}. "
            "Give every process the same loader, shuffled by one seed and without a "
            "DistributedSampler: the Sharding divides each batch."
        )
    if differing:
        found = ", ".join(
            f"another {name} in {list(numbers)[:8]}" for name, numbers in differing.items()
        )
        raise ArgumentError(
            "Expected all processes of a run to be given the same, found that processes, counted "
            f"along the mesh, differ from the first: {found}. Start the same program everywhere, "
            "with all rows and one seed; the Sharding splits them."
        )


def lost_rank(reached: str, timeout: float, cause: object) -> str:
    """What is said when a process of several does not come along.

    Parameters
    ----------
    reached : str
        What this process waited for, such as "step 120".
    timeout : float
        Seconds that it waited at most.
    cause : object
        What the host said.
    """
    said = (str(cause).strip() or type(cause).__name__).splitlines()[0][:300]
    return (
        f"Expected all processes of the run to reach {reached}, found that one of them was killed, "
        f"has failed or has stalled for {timeout:g} s ({said}). "
        "The run ends here too. Start all processes again and go on from the last checkpoint; the "
        "steps since are taken again, with the same result."
    )
