"""What curvature of a program is computed, and what is found of a program once.

The curvature of minus the log density at a position is that of the prior and the Gauss-Newton
matrix J' F J of the likelihood, whose rows R = F^(1/2) J are kept as they are, or summed up by one
of

``"full"``
    R' R, exact: as rows, or as a matrix where that is smaller.
``"diag"``
    The diagonal of R' R.
``"kfac"``
    For each site, the nearest A (x) B to its block of R' R in the Frobenius norm (Van Loan and
    Pitsianis 1993, https://doi.org/10.1007/978-94-015-8196-7_17), found from the rows of that site
    as matrices. For a linear layer with one example it is exact, as the Kronecker-factored
    approximation of Martens and Grosse (2015, https://arxiv.org/abs/1503.05671) is. A site that is
    no matrix has its whole block, or the diagonal of it where it is long. Over all rows in several
    chunks the rows are computed again for each half step, six to eight times in all.
``"low_rank"``
    The largest ``rank`` terms of the singular value decomposition of R, and the diagonal of what
    is left. Over several chunks the terms are those of a decomposition that each chunk is merged
    into; the diagonal of the whole is exact always.

All of them are of the rows of a batch, or of all rows, however many chunks these come in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ppl_ext.curvature.curvature import Curvature, Rows
from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, check_names
from ppl_ext.scalars import square_root

Structure = Literal["full", "diag", "kfac", "low_rank"]
STRUCTURES: tuple[str, ...] = get_args(Structure)
PriorForm = Literal["diagonal", "hessian"]
PRIOR_FORMS: tuple[str, ...] = get_args(PriorForm)

#: Largest dimension at which the whole matrix of the prior's curvature is formed for each
#: position, unless told otherwise.
DENSE_PRIOR_UP_TO = 500
#: Numbers of the Jacobians of all positions above which positions take turns.
LARGEST_JACOBIANS = 50_000_000
#: Numbers of the rows of one position up to which ``"full"`` keeps them where a matrix is smaller:
#: 80 MB in single precision. A matrix has lost digits that the rows have.
ROWS_UP_TO = 20_000_000
#: Longest site that is no matrix whose whole block is kept.
WHOLE_BLOCK_UP_TO = 500
#: Widest side of a matrix site with a Kronecker factor; wider sites keep their diagonal.
WIDEST_FACTOR = 2048
#: Alternating steps to the nearest Kronecker product.
KRONECKER_STEPS = 3
#: Sums over rows M (P, r, a, b) that make the left and the right factor from the other one.
HALF_STEPS = ("prab,pbc,prdc->pad", "prab,pac,prcd->pbd")
#: What may be left of rows of rank one, relative to their largest entry.
RANK_ONE_UP_TO = 1e-4


@dataclass(frozen=True)
class GaussNewton:
    """Gauss-Newton curvature of a program: which structure it has, and of which sites.

    Parameters
    ----------
    structure : {"full", "diag", "kfac", "low_rank"}
        Structure of the likelihood's curvature: exact; its diagonal; Kronecker factors of sites
        that are matrices; or its largest terms, with the diagonal of what is left.
    sites : sequence of str, optional
        Latent sites whose coordinates have curvature, such as those of a network's last layer;
        default all.
    rank : int
        Terms kept by ``"low_rank"``.
    every : int
        Steps of an engine that one curvature serves.
    prior : {"diagonal", "hessian"}, optional
        What is computed of the prior's curvature. Default: its diagonal where that is exact or
        where the structure is not ``"full"``, the whole matrix for small programs, and else its
        diagonal.

    Raises
    ------
    ArgumentError
        An option is not one of those listed.

    Examples
    --------
    >>> GaussNewton("kfac", every=10).structure
    'kfac'
    """

    structure: Structure = "full"
    sites: Sequence[str] | None = None
    rank: int = 10
    every: int = 1
    prior: PriorForm | None = None

    def __post_init__(self) -> None:
        check_choice("structure", self.structure, STRUCTURES)
        check_names("sites", self.sites, empty=False)
        if self.sites is not None:
            # A list given by the user may change later; options are compared and hashed.
            object.__setattr__(self, "sites", tuple(self.sites))
        check_count("rank", self.rank)
        check_count("every", self.every)
        check_choice("prior", self.prior, (*PRIOR_FORMS, None))

    @property
    def prior_form(self) -> PriorForm | None:
        """What is computed of the prior's curvature, None where the program decides."""
        # A matrix for the prior would undo what structures other than "full" are for.
        return self.prior or (None if self.structure == "full" else "diagonal")


def as_curvature(curvature: Structure | GaussNewton) -> GaussNewton:
    """The options of a curvature that is given by them, or by the name of its structure.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if isinstance(curvature, GaussNewton):
        return curvature
    check_choice("curvature", curvature, STRUCTURES, "GaussNewton(...)")
    return GaussNewton(curvature)


@dataclass(frozen=True)
class PriorStructure:
    """How the curvature of a program's log prior is computed.

    Parameters
    ----------
    sites : tuple of str
        Latent sites, in the order of the layout, that have D' coordinates.
    form : {"diagonal", "hessian"}
        Whether a diagonal (P, D') or matrices (P, D', D') come out.
    exact : bool
        Whether nothing but negative curvature is left out.
    apart : tuple of str
        Those within which the curvature is diagonal: one product gives all of their
        entries. Entries of other sites take a product each.
    constant : bool
        Whether it is diagonal and the same at all positions, as for Normals with fixed scales.
    """

    sites: tuple[str, ...]
    form: PriorForm
    exact: bool
    apart: tuple[str, ...]
    constant: bool


def sites_with_curvature(options: GaussNewton, sites: Collection[str]) -> tuple[str, ...]:
    """The latent sites that are to have curvature, by default all of them."""
    if options.sites is None:
        return tuple(sites)
    if unknown := [name for name in options.sites if name not in sites]:
        raise ArgumentError(
            f"Expected sites among the latent sites {list(sites)}, found {unknown}."
        )
    return tuple(options.sites)


def check_no_factors(factors: Collection[str], host: str) -> None:
    """Refuse a likelihood with factors, which have no outputs."""
    if factors:
        raise ArgumentError(
            f"Expected a likelihood of observed sample sites, found the factors {factors}: a "
            "factor has no distribution whose Fisher information could give its curvature. "
            f"Write them as {host}.sample(..., obs=...), or use SVGD or the host's "
            "AutoLaplaceApproximation."
        )


class RepeatedComponent(NamedTuple):
    """A component of the Fisher root that depends on one parameter, the same along some axes.

    Parameters
    ----------
    component : int
        Number of the component.
    parameter : str
        Name of the parameter.
    axes : tuple of int
        Axes of the batch along which the parameter is one.
    """

    component: int
    parameter: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class RowStructure:
    """Observed sites whose rows of the whitened Jacobian have structure.

    Parameters
    ----------
    by_row : frozenset of str
        Sites whose rows can be differentiated one by one.
    repeated : dict of str to tuple of RepeatedComponent
        Components of sites whose rows are merged.
    arguments : tuple of int
        Where no plate is subsampled: numbers of the arrays among the model's arguments whose first
        axis is the rows, so that the model of one row is that of these arrays' rows.
    scaled_up : bool
        Whether a row alone is scaled up as if it stood for all rows that are evaluated.
    """

    by_row: frozenset[str] = frozenset()
    repeated: dict[str, tuple[RepeatedComponent, ...]] = field(default_factory=dict)
    arguments: tuple[int, ...] = ()
    scaled_up: bool = True

    def for_rows(self, counts: Collection[int]) -> RowStructure:
        """The structure where arguments have so many rows: all are whole if these differ.

        An argument may have had as many entries as there were rows by chance.

        Parameters
        ----------
        counts : collection of int
            Rows of each of ``arguments``.
        """
        if not self.arguments or (len(set(counts)) == 1 and 0 not in counts):
            return self
        return RowStructure(repeated=self.repeated)


class Stretch(NamedTuple):
    """Coordinates side by side that all belong to some sites, or none of them.

    Parameters
    ----------
    whole : slice
        Where they are in the flat vector.
    part : slice or None
        Where they are among the coordinates of these sites; None for those of other sites.
    """

    whole: slice
    part: slice | None


def stretches(layout: Mapping[str, slice], chosen: Mapping[str, slice]) -> list[Stretch]:
    """Split the flat vector into the fewest slices that hold chosen sites alone or others alone.

    Parameters
    ----------
    layout : dict of str to slice
        Coordinates of all sites, in order and without gaps.
    chosen : dict of str to slice
        The slice of each chosen site in the vector of the chosen sites, in the same order.

    Examples
    --------
    >>> sites = {"a": slice(0, 2), "b": slice(2, 3), "c": slice(3, 7)}
    >>> [each.whole for each in stretches(sites, {"c": slice(0, 4)})]
    [slice(0, 3, None), slice(3, 7, None)]
    """
    found: list[Stretch] = []
    for name, whole in layout.items():
        part = chosen.get(name)
        # Neighbours of one kind are one copy in memory, and one operation.
        if found and (found[-1].part is None) == (part is None):
            last = found.pop()
            whole = slice(last.whole.start, whole.stop)
            if part is not None and last.part is not None:
                part = slice(last.part.start, part.stop)
        found.append(Stretch(whole, part))
    return found


def rows_in_common(
    arguments: Sequence[Sequence[int]], outputs: Collection[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Numbers of the arguments that may hold the rows of outputs, by the number of rows.

    Parameters
    ----------
    arguments : sequence of shapes
        Of the arrays among the model's arguments.
    outputs : collection of shapes
        Of the observed distributions' batches.

    Returns
    -------
    list of tuple of int
        Arguments with as many entries along their first axis as there are rows; the most rows come
        first.
    """
    # An axis of one is no row: everything broadcasts against it.
    sizes = {size for shape in outputs for size in shape if size > 1}
    lengths = [shape[0] if shape else 0 for shape in arguments]
    return [
        tuple(number for number, length in enumerate(lengths) if length == rows)
        for rows in sorted(sizes.intersection(lengths), reverse=True)
    ]


def rows_by_themselves(
    shapes: Sequence[Sequence[int]],
    batches: Collection[Sequence[int]],
    looks: Callable[[tuple[int, ...]], Sequence[tuple[Any, Any]]],
    apart: Callable[[Any, Any, bool], frozenset[str]],
    repeated: dict[str, tuple[RepeatedComponent, ...]],
) -> RowStructure:
    """The structure of rows that are the arguments' own, where no plate is subsampled.

    Parameters
    ----------
    looks : callable
        Of the numbers of arguments that have rows: outputs of all rows together and of each alone,
        at the arguments and at changed ones.
    apart : callable
        Sites whose rows alone are those of the batch, where weights are scaled up or not.
    """
    for arguments in rows_in_common(shapes, batches):
        # Later arguments may be others: rows that depend on each other through a sum of weights
        # look apart while all weights are one.
        seen = looks(arguments)
        # A plate of N rows scales one row up to all of them, a plate of len(y) does not.
        for scaled_up in (False, True):
            sites = [apart(*each, scaled_up) for each in seen]
            by_row = frozenset.intersection(*sites) if sites else frozenset()
            if by_row:
                return RowStructure(by_row, repeated, arguments, scaled_up)
    return RowStructure(repeated=repeated)


def merged_output(xp: Any, root: Any, weight: Any, value: Any, axes: tuple[int, ...]) -> Any:
    """The whitened outputs (n,) of a parameter that is the same along some axes, merged into one.

    Parameters
    ----------
    xp : module
        ``torch`` or ``jax.numpy``.
    root : array
        What a change of the parameter by one changes in the outputs.
    weight : array
        Factor on each element.
    value : array
        The parameter.
    axes : tuple of int
        Those along which it is the same.
    """
    # Outputs that are one number times factors: the root of the factors' squares gives the same
    # J'J.
    squares = (weight * root**2).sum(axis=axes, keepdims=True)
    for axis in axes:
        value = value[(slice(None),) * (axis % value.ndim) + (slice(1),)]
    return (square_root(xp, squares) * value).reshape(-1)


def structure_of_rows(
    plates: Collection[str],
    outputs: Mapping[str, Any],
    repeated: Mapping[str, tuple[RepeatedComponent, ...]],
    same: Callable[..., frozenset[str]],
    alone: Callable[[], Any],
    shapes: Callable[[], Sequence[Sequence[int]]],
    looks: Callable[[tuple[int, ...]], Sequence[tuple[Any, Any]]],
) -> RowStructure:
    """The structure of a batch's rows.

    Parameters
    ----------
    plates : collection of str
        Those that are subsampled.
    outputs : dict of str to Output
        The sites of all rows, but for those whose rows are never taken alone.
    repeated : dict of str to tuple of RepeatedComponent
        Components that may be merged; none of a site that has none.
    same : callable
        Sites whose rows alone are those of the batch, of both and of how weights are scaled.
    alone : callable
        What each row of the one plate has alone.
    shapes, looks : callable
        As :func:`rows_by_themselves` takes them, where no plate is subsampled.
    """
    found = {name: components for name, components in repeated.items() if components}
    if len(plates) == 1:
        (plate,) = plates
        inside = {name: output for name, output in outputs.items() if plate in output.plates}
        return RowStructure(same(inside, alone(), scaled_up=True), found)
    if plates:
        return RowStructure(repeated=found)
    batches = [output.batch for output in outputs.values()]
    return rows_by_themselves(shapes(), batches, looks, same, found)


def repeated_components(
    depends: Mapping[str, Sequence[bool]],
    shapes: Mapping[str, Sequence[int]],
    batch: tuple[int, ...],
    axes: Mapping[str, tuple[int, ...]],
) -> tuple[RepeatedComponent, ...]:
    """Components of a Fisher root that are the same along some axes of the batch.

    Parameters
    ----------
    depends : dict of str to sequence of bool
        By parameter, whether each component depends on it.
    shapes : dict of str to tuple of int
        Of the parameters.
    axes : dict of str to tuple of int
        Along which a parameter is one.
    """
    found = []
    for component in range(max(map(len, depends.values()), default=0)):
        names = [name for name, each in depends.items() if each[component]]
        # Parameters that are vectors or matrices mix their own elements.
        if len(names) == 1 and tuple(shapes[names[0]]) == batch and axes.get(names[0]):
            found.append(RepeatedComponent(component, names[0], axes[names[0]]))
    return tuple(found)


def change_of_rows(values: NDArray[Any], number: int) -> NDArray[Any]:
    """Other values of an argument whose first axis is the rows, of the same kind and range.

    Numbers with a fraction come a little closer to zero, each by its own factor. Truth values are
    drawn anew, and so are whole numbers that are all 0 or 1, which may be a mask. Others, which may
    be counts or places, stay.

    Parameters
    ----------
    values : array (rows, ...)
    number : int
        Number of the argument: no two change alike.
    """
    generator = np.random.default_rng(number)
    if np.issubdtype(values.dtype, np.floating):
        return (values * generator.uniform(0.9, 1.0, values.shape)).astype(values.dtype)
    if values.dtype == bool or (
        np.issubdtype(values.dtype, np.integer) and values.size and set(np.unique(values)) <= {0, 1}
    ):
        drawn = generator.integers(0, 2, values.shape)
        # One row at least counts, or sums over rows could be nothing.
        drawn[:1] = 1
        return drawn.astype(values.dtype)
    return values


@documents_subclasses
class ProgramCurvatureShell:
    """The curvature of a program, with all that is found once: what is diagonal, what is apart.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Concrete arguments of the model.
    options : GaussNewton
    often : bool
        Whether it is taken so often that a look for sites whose rows have rank one pays.

    Attributes
    ----------
    where : Coordinates
        The D' coordinates of the flat vector that have curvature.
    coordinates : array of int
        Their numbers.
    slices : dict of str to slice
        Where each of their latent sites is among them.
    sites : tuple of str
        These sites, in the order of the layout.
    prior : PriorStructure
        How that of the prior is computed.
    rows : RowStructure
        What is known of the rows.
    drawn : tuple of str
        Observed sites whose Fisher information is made of draws.
    rank_one : frozenset of str
        Sites whose rows have rank one as matrices, looked for with ``"kfac"``.

    Raises
    ------
    ArgumentError
        A site is not latent, the model's likelihood has factors, which have no outputs, or an
        observed distribution has neither a known Fisher information nor draws.
    """

    #: The package's matrices and Kronecker factors.
    kind: type[Curvature]
    factors: Callable[..., Curvature]

    prior: PriorStructure
    rows: RowStructure
    drawn: tuple[str, ...]
    rank_one: frozenset[str] = frozenset()

    def __init__(self, options: GaussNewton, where: Any, shapes: Mapping[str, Any]) -> None:
        self.options, self.where, self._shapes = options, where, shapes
        self.coordinates, self.slices = where.numbers, where.slices
        self.sites = tuple(self.slices)

    def _summed(self, rows: Rows, numbers: int = 0) -> Any:
        """R' R in its structure; ``"full"`` keeps so many numbers of rows."""
        if self.options.structure == "kfac":
            places = self.slices, self._shapes, rows.nothing, self.rank_one
            return self.factors(rows.sums, *places, rows.single)
        return self.kind.of_rows(rows, self.options.structure, self.options.rank, numbers)


#: All rows are whole, and none are merged.
NO_STRUCTURE = RowStructure()


def kronecker_sides(shape: Collection[int]) -> tuple[int, int] | None:
    """Rows and columns of a site's factors; one is 1 for a whole block, None for a diagonal.

    A single coordinate is its own diagonal.
    """
    shape = tuple(shape)
    size = math.prod(shape)
    # Kernels of convolutions are matrices of their first axis by all others.
    first = shape[0] if len(shape) > 1 else 1
    last = size // max(first, 1)
    if min(first, last) == 1:
        return (1, size) if 1 < size <= WHOLE_BLOCK_UP_TO else None
    return (first, last) if max(first, last) <= WIDEST_FACTOR else None


def factored_sides(
    slices: Mapping[str, slice], shapes: Mapping[str, Collection[int]]
) -> dict[str, tuple[int, int]]:
    """Rows and columns of the sites that have two Kronecker factors."""
    sides = {name: kronecker_sides(shapes[name]) for name in slices}
    return {name: pair for name, pair in sides.items() if pair is not None and min(pair) > 1}


@cache
def generic_direction(size: int, number: int = 0) -> NDArray[np.float64]:
    """A vector (size,) that next to no other is orthogonal to, without entries near zero.

    Each ``number`` has another one.
    """
    generator = np.random.default_rng(number)
    # Away from zero, so that no entry is lost in rounding, and of both signs.
    return generator.uniform(1.0, 2.0, size) * generator.choice([-1.0, 1.0], size)
