"""What a model computes at posterior draws, on all rows of its data, as NumPy arrays.

Diagnostics need what the model computes at each draw: deterministic sites, the pointwise log
likelihood, new observations. A model with subsampled plates gives these for a minibatch only,
so it is replayed over chunks of rows that cover every plate once, and the chunks are put
together in the order of the rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError
from ppl_ext.options import described
from ppl_ext.target.discrete import RowTerms
from ppl_ext.target.layouts import DataPlate

Array = NDArray[Any]
Shape = tuple[int, ...]
#: Plate that each axis of an array belongs to.
Plates = tuple[str | None, ...]

#: What a replay can compute with a value for each draw, and which of these are densities.
DENSITIES = ("log_likelihood", "log_prior")
OF_DRAWS = ("deterministic", "discrete", "predictive", "alongside", *DENSITIES)
#: What a replay can compute.
GROUPS = (*OF_DRAWS, "observed", "prediction")
#: Which values of the discrete latent sites, given each draw of the others.
DISCRETE = ("sample", "most probable")
#: What the distributions of observed sites may say of values that are yet to be seen.
TERMS = ("probabilities", "mean", "variance", "cdf", "mask")

#: What to do about a batch.
PASS_ALL_ROWS = (
    "Pass the arrays of all rows instead of a batch, or switch off the groups that need them."
)

#: Rows of a subsampled plate, and draws, that are evaluated at once unless told otherwise.
DATA_CHUNK = 2048
DRAW_CHUNK = 128
#: Numbers of the largest site that are evaluated at once: as many as stay near the processor.
TOGETHER = 2**20


class ComputedEntries(NamedTuple):
    """Entries of an observed site that are computed from latent sites, and of how many."""

    entries: int
    of: int

    @property
    def is_whole(self) -> bool:
        """Whether all are."""
        return 0 < self.entries == self.of

    @property
    def is_part(self) -> bool:
        """Whether some are, and others are data."""
        return 0 < self.entries < self.of


@dataclass(frozen=True)
class SiteDescription:
    """One site of a model on all rows of its data.

    Parameters
    ----------
    name : str
    kind : {"latent", "discrete", "observed", "computed", "deterministic", "marginal"}
        A computed one is observed at values that are computed from latent sites, such as a prior
        of a transformed latent. A marginal one is of observed sites that share discrete ones,
        which are summed out.
    shape : tuple of int
        Shape of the value, without draws.
    plates : tuple of str or None
        Plate that each axis of the value belongs to.
    batch_shape, batch_plates
        The same for the pointwise log density of the site.
    marginal_shape, marginal_plates : optional
        The same for its log likelihood where discrete latent sites are summed out of that.
    event_dims : tuple of str
        Names that the model gives to the axes of an event, by ``infer={"event_dims": [...]}``.
    filled : ComputedEntries, optional
        Where some entries of an observed site are computed from latent ones, how many.
    """

    name: str
    kind: str
    shape: Shape
    plates: Plates
    batch_shape: Shape = ()
    batch_plates: Plates = ()
    marginal_shape: Shape | None = None
    marginal_plates: Plates = ()
    event_dims: tuple[str, ...] = ()
    filled: ComputedEntries | None = None

    @property
    def likelihood(self) -> tuple[Shape, Plates]:
        """Shape and plates of its log likelihood, or of its log prior."""
        if self.marginal_shape is None:
            return self.batch_shape, self.batch_plates
        return self.marginal_shape, self.marginal_plates

    @property
    def dims(self) -> Plates:
        """Names of the value's axes: plates, and after them those that the model gives.

        Raises
        ------
        ArgumentError
            The model names more axes than there are.
        """
        rank, names = len(self.shape), self.event_dims
        plated = max((axis + 1 for axis, name in enumerate(self.plates) if name), default=0)
        # The axes of the event; or, where these are fewer, all that are of no plate.
        first = min(max(plated, len(self.batch_shape)), max(plated, rank - len(names)))
        if first + len(names) > rank:
            raise ArgumentError(
                f"Expected at most {rank - plated} names in infer={{'event_dims': ...}} of site "
                f"'{self.name}', one for each axis of its shape {self.shape} that is of no plate, "
                f"found {list(names)}."
            )
        return (*self.plates[:first], *names, *self.plates[first + len(names) :])

    def with_rows(self, sizes: Mapping[str, int]) -> SiteDescription:
        """The same with so many rows of some plates."""
        marginal = self.marginal_shape
        return replace(
            self,
            shape=with_rows(self.shape, self.plates, sizes),
            batch_shape=with_rows(self.batch_shape, self.batch_plates, sizes),
            marginal_shape=marginal and with_rows(marginal, self.marginal_plates, sizes),
        )


def with_rows(shape: Shape, plates: Plates, sizes: Mapping[str, int]) -> Shape:
    """A shape with so many rows of some plates."""
    return tuple(sizes.get(name or "", n) for n, name in zip(shape, plates, strict=True))


@dataclass(frozen=True)
class Replay:
    """What a model computes at S posterior draws; every array is in host memory.

    Parameters
    ----------
    sites : dict of str to SiteDescription
        Latent, observed and deterministic sites, in trace order.
    plate_sizes : dict of str to int
        Full size of every plate.
    deterministic, discrete, predictive : dict of str to array (S, *site shape)
        Values of the deterministic and of the discrete latent sites, and new values of the
        observed sites. Values of computed sites are among the deterministic.
    alongside : dict of str to array (S, *site shape)
        Values of the deterministic sites beside new observations, or beside predictions.
    log_likelihood : dict of str to array (S, *batch shape)
        Log density of each observation, with discrete latent sites summed out; plate scales and
        those of ``scale`` handlers are left out, and observations that are masked out have 0.
    log_prior : dict of str to array (S, *batch shape)
        The same of the latent sites, without Jacobians; none where one of them depends on a
        discrete site, which is summed out together with the observations.
    observed : dict of str to array
        Values of the observed sites.
    outside : dict of str to bool array (S,)
        For each latent site the draws that are NaN, infinite or outside its support, where what
        depends on draws was computed and some are.
    prediction : dict of str to dict of str to array (S, *site shape)
        For each of ``TERMS`` what the distributions of the observed sites say, by site; class
        probabilities have one more axis.
    """

    sites: dict[str, SiteDescription]
    plate_sizes: dict[str, int]
    deterministic: dict[str, Array] = field(default_factory=dict)
    discrete: dict[str, Array] = field(default_factory=dict)
    predictive: dict[str, Array] = field(default_factory=dict)
    alongside: dict[str, Array] = field(default_factory=dict)
    log_likelihood: dict[str, Array] = field(default_factory=dict)
    log_prior: dict[str, Array] = field(default_factory=dict)
    observed: dict[str, Array] = field(default_factory=dict)
    outside: dict[str, Array] = field(default_factory=dict)
    prediction: dict[str, dict[str, Array]] = field(default_factory=dict)

    def with_draws(self, function: Callable[[Array], Array]) -> Replay:
        """The same with a function of each array that has draws."""

        def of_each(arrays: Mapping[str, Array]) -> dict[str, Array]:
            return {name: function(value) for name, value in arrays.items()}

        changed: dict[str, Any] = {
            group: of_each(getattr(self, group)) for group in (*OF_DRAWS, "outside")
        }
        prediction = {term: of_each(each) for term, each in self.prediction.items()}
        return replace(self, **changed, prediction=prediction)


def joined(replays: Sequence[Replay], plates: Mapping[str, int]) -> Replay:
    """Replays of the batches of a loader, in its order, as one of all rows.

    ``plates`` are those that batches are part of, with all their rows. What is inside of them is
    put together along their axes; what is outside is that of the first batch.
    """
    first = replays[0]

    def together(group: str) -> dict[str, Array]:
        found = {}
        for name, array in getattr(first, group).items():
            site, parts = first.sites[name], [getattr(each, group)[name] for each in replays]
            axes = site.likelihood[1] if group in DENSITIES else site.plates
            axis = next((axis for axis, plate in enumerate(axes) if plate in plates), None)
            lead = 1 if group in OF_DRAWS else 0
            found[name] = array if axis is None else np.concatenate(parts, axis=lead + axis)
        return found

    sites = {name: site.with_rows(plates) for name, site in first.sites.items()}
    whole_groups: dict[str, Any] = {group: together(group) for group in (*OF_DRAWS, "observed")}
    sizes = {**first.plate_sizes, **plates}
    return replace(first, sites=sites, plate_sizes=sizes, **whole_groups)


# -- sites and their axes -------------------------------------------------------------------------


def over_batches(
    one: Callable[[Any, int | None], Replay],
    target: Any,
    data: Any,
    passes: Passes | None,
    place: Callable[[Any], Any],
) -> Replay:
    """The replay on the rows of the arguments, or on those of all batches of a loader.

    ``one`` replays on bound arguments, given the batch's number, or None where they are all rows.
    """
    if passes is None:
        return one(data, None)
    sizes = target.over(passes).plates_of_batches(data)
    batches = enumerate(passes.batches(place, next(iter(sizes.values()))))
    found = [
        one(target.bind(*args, **{**data.kwargs, **own}), number) for number, (args, own) in batches
    ]
    return joined(found, sizes)


@dataclass
class SiteShapes:
    """What one run of the model, on some rows, shows of a site."""

    kind: str
    shape: Shape
    plates: list[str | None]
    batch_shape: Shape = ()
    batch_plates: list[str | None] = field(default_factory=list)
    marginal_shape: Shape | None = None
    marginal_plates: list[str | None] = field(default_factory=list)
    event_dims: tuple[str, ...] = ()

    def sum_out(self, shape: Shape, axes: Mapping[str, int]) -> None:
        """Note the shape of a log likelihood with discrete sites summed out, and its plates."""
        self.marginal_shape, self.marginal_plates = shape, [None] * len(shape)
        for plate, axis in axes.items():
            self.marginal_plates[axis] = plate

    def add_density(self, shape: Shape, frames: Sequence[Any], infer: Mapping[str, Any]) -> None:
        """Note the shape of a log density, its plates and the names of the axes of an event."""
        self.batch_shape, self.batch_plates = shape, plates_of_axes(shape, 0, frames)
        self.event_dims = event_names(infer)


def sum_out(found: dict[str, SiteShapes], marginals: Mapping[str, RowTerms]) -> None:
    """Note of each site, and of sites that share discrete ones, what is left when these are out."""
    for name, terms in marginals.items():
        shapes = found.setdefault(name, SiteShapes("marginal", (), []))
        shapes.sum_out(tuple(terms.values.shape), terms.axes)


def event_names(infer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Names that a model gives to the axes of an event; a text is one name, and no letters."""
    names = (infer or {}).get("event_dims", ())
    return (names,) if isinstance(names, str) else tuple(names)


def plates_of_axes(shape: Shape, event_dim: int | None, frames: Sequence[Any]) -> list[str | None]:
    """Plate of each axis of a value, from the ``dim``, ``size`` and ``name`` of its plates.

    ``event_dim`` is None for deterministic sites, which do not say, or not reliably, which axes are
    part of the event: then it is the smallest with which all plates fit.
    """
    if event_dim is not None:
        return _fitting_plates(shape, event_dim, frames) or [None] * len(shape)
    for candidate in range(len(shape) + 1):
        named = _fitting_plates(shape, candidate, frames)
        if named is not None and len([name for name in named if name]) == len(frames):
            return named
    return [None] * len(shape)


def _fitting_plates(shape: Shape, event_dim: int, frames: Sequence[Any]) -> list[str | None] | None:
    """None when the shape does not fit the plates."""
    plates: list[str | None] = [None] * len(shape)
    for frame in frames:
        # The plate's axis counts from the right of the batch, left of the event.
        axis = len(shape) - event_dim + frame.dim
        if axis < 0 or shape[axis] != frame.size:
            if event_dim and axis < 0:
                return None
            continue
        plates[axis] = frame.name
    return plates


def describe_sites(
    sites: Mapping[str, SiteShapes],
    with_one_row_more: Mapping[str, Mapping[str, SiteShapes]],
    plates: Mapping[str, DataPlate],
    computed: Mapping[str, ComputedEntries],
    missing: Collection[str],
) -> dict[str, SiteDescription]:
    """Shapes and plates of every site on all rows.

    The axes of a subsampled plate are those that follow the number of rows, which is certain
    also where a site does not say which of its axes belong to a plate.

    Parameters
    ----------
    sites
        On a minibatch.
    with_one_row_more
        For each subsampled plate, the sites with one row more of it.
    plates
        The subsampled plates.
    computed
        What of observed sites is computed from latent ones, which is told from the others.
    missing
        Those of them that have no values.
    """
    for plate, probes in with_one_row_more.items():
        for name, probe in probes.items():
            for axis in _changed_axes(sites[name].shape, probe.shape):
                sites[name].plates[axis] = plate
            for axis in _changed_axes(sites[name].batch_shape, probe.batch_shape):
                sites[name].batch_plates[axis] = plate

    sizes = {name: plate.size for name, plate in plates.items()}
    found = {
        name: SiteDescription(
            name,
            site.kind,
            site.shape,
            tuple(site.plates),
            site.batch_shape,
            tuple(site.batch_plates),
            site.marginal_shape,
            tuple(site.marginal_plates),
            site.event_dims,
        ).with_rows(sizes)
        for name, site in sites.items()
    }
    for name, each in computed.items():
        if name not in missing:
            kind = "computed" if each.is_whole else found[name].kind
            found[name] = replace(found[name], kind=kind, filled=each if each.is_part else None)
    return found


def nearby(position: Shaped[Array, "*D"]) -> Shaped[Array, "*D"]:
    """A position where every latent site has another value than at this one."""
    # Different steps, since differences of latents may be observed, and short ones, since a model
    # need not be computable far from the draws.
    steps = np.random.default_rng(0).uniform(0.05, 0.1, np.shape(position))
    return np.nan_to_num(position, posinf=0.0, neginf=0.0) + steps.astype(position.dtype)


def computed_entries(
    one: Mapping[str, Array], other: Mapping[str, Array]
) -> dict[str, ComputedEntries]:
    """How many entries of each observed site are computed from latent sites.

    Parameters
    ----------
    one, other : mapping of str to array
        Values of the observed sites in two runs with other values of the latent sites.
    """
    found = {}
    for name, before in one.items():
        after = other[name]
        # NaN stands for what is missing in both.
        same = (before == after) | ((before != before) & (after != after))
        found[name] = ComputedEntries(int(np.size(same) - np.sum(same)), np.size(same))
    return found


def names_of_computed(computed: Mapping[str, ComputedEntries]) -> frozenset[str]:
    """Which observed sites have values that are computed from latent sites.

    A few entries that are, as where missing observations are filled in, do not make a site one.
    """
    return frozenset(name for name, each in computed.items() if each.is_whole)


def told_of_filled(sites: Mapping[str, SiteDescription]) -> str:
    """Which observed sites have some values that are no data, in words; empty where none has."""
    found = [
        f"{site.filled.entries} of {site.filled.of} values of '{name}'"
        for name, site in sites.items()
        if site.filled is not None
    ]
    if not found:
        return ""
    return (
        f"{', '.join(found)} change with the latent sites. Where these fill in what is missing, "
        "the log likelihood has the density of values that are no data, and LOO, WAIC and scores "
        "count them as data: leave those rows out, or write sample(..., obs=y, obs_mask=seen)."
    )


def _changed_axes(before: Shape, after: Shape) -> list[int]:
    if len(before) != len(after):
        return []
    return [axis for axis, length in enumerate(before) if length != after[axis]]


# -- draws ----------------------------------------------------------------------------------------


def shared_discrete(
    sites: Mapping[str, SiteDescription],
    chunked: Collection[str],
    groups: Collection[str] = ("predictive",),
    missing: Collection[str] = (),
) -> list[str]:
    """Discrete latent sites whose values of the posterior new observations have.

    Rows that are yet to be seen have a value of their own of a discrete site that each row has, as
    of the component of a mixture. A site that several rows share, such as a change point or the
    class of a group, is a parameter of them, of which the data tell.

    Parameters
    ----------
    sites : mapping of str to SiteDescription
    chunked : collection of str
        Plates that come in chunks, in which no site is such a one.
    groups, missing
        As of ``replay``: there are none where nothing new is wanted, or nothing was observed.
    """
    observed = [site for site in sites.values() if site.kind == "observed"]
    # With the group "discrete" predictions have its values, and new observations alone need these.
    needed = {"predictive"} if "discrete" in groups else {"predictive", "prediction"}
    if not needed & {*groups} or {*missing} >= {site.name for site in observed}:
        return []

    def is_shared(site: SiteDescription) -> bool:
        plates, size = {*site.plates} - {None}, math.prod(site.batch_shape)
        return not plates & {*chunked} and any(
            plates <= {*each.batch_plates} and math.prod(each.batch_shape) > size
            for each in observed
        )

    return [site.name for site in sites.values() if site.kind == "discrete" and is_shared(site)]


def values_of_shared(
    replay: Callable[..., Replay], target: Any, draws: Mapping[str, Any], data: Any, **options: Any
) -> dict[str, Array]:
    """Of discrete sites that observations share values (S, *shape), drawn given each draw."""
    if not target.bound.enumerated:
        return {}
    sites = replay(target, draws, data, groups=(), all_rows=False).sites
    names = shared_discrete(sites, target.plates)
    if not names:
        return {}
    found = replay(target, draws, data, groups=("discrete",), all_rows=False, **options).discrete
    return {name: found[name] for name in names}


def of_the_same_shape(
    values: Mapping[str, Array],
    replay: Callable[..., Replay],
    target: Any,
    draws: Mapping[str, Any],
    data: Any,
) -> dict[str, Array]:
    """Of discrete sites the values (S, *shape) that have the shape which they have at these data.

    Other persons or groups than those that were fitted have labels of their own.
    """
    sites = replay(target, draws, data, groups=(), all_rows=False).sites
    shapes = {name: site.shape for name, site in sites.items()}
    return {name: each for name, each in values.items() if shapes.get(name) == each.shape[1:]}


def check_draws(names: Sequence[str], draws: Mapping[str, Any]) -> None:
    """See that there are draws of every latent site, as many of each.

    Raises
    ------
    ArgumentError
        A site has none, or another number.
    """
    if missing := [name for name in names if name not in draws]:
        raise ArgumentError(
            f"Expected draws for every latent site, found none for {missing}. Pass the dict that "
            "get_samples returns."
        )
    check_numbers_of_draws(draws)


def check_draws_are_mapping(draws: Any) -> None:
    """See that draws come as a mapping from sites to arrays of numbers."""
    if not isinstance(draws, Mapping) or not draws:
        raise ArgumentError(
            "Expected draws as a mapping from latent sites to arrays, as get_samples returns "
            f"them, found {described(draws)}."
        )
    for name, value in draws.items():
        kind = getattr(np.asarray(value) if isinstance(value, list) else value, "dtype", None)
        if isinstance(kind, np.dtype) and kind.kind in "cOSUmM":
            raise ArgumentError(
                f"Expected draws of site '{name}' to be real numbers, found {kind}."
            )


def check_numbers_of_draws(draws: Mapping[str, Any]) -> None:
    """See that every site has as many draws as the others.

    Raises
    ------
    ArgumentError
        A site has none, or another number.
    """
    shapes = {name: np.shape(value) for name, value in draws.items()}
    numbers = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(numbers.values())) > 1 or not min(numbers.values(), default=1):
        raise ArgumentError(
            "Expected draws of every site, as many as of the others, along the first axis, found "
            f"{numbers}. Pass the dict that get_samples returns."
        )


def one_draw(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of sites as one draw of them."""
    return {name: value[None] for name, value in values.items()}


def check_draw_shape(name: str, found: Shape, expected: Shape) -> None:
    """See that a draw of a site has the site's shape."""
    if found != expected:
        raise ArgumentError(
            f"Expected every draw of site '{name}' in shape {expected}, found {found}. Chains "
            "must be one axis with the draws, as get_samples returns them, and sites inside a "
            "plate must have all its rows: to predict others, give latent sites a plate of groups, "
            "and each row the number of its group."
        )


def check_draw_shapes(
    one: Mapping[str, Any], around: Mapping[str, Any], described: Mapping[str, Any]
) -> None:
    """See that one draw, and values that a model is made linear at, have the sites' shapes."""
    for values in (one, {name: around[name] for name in one if name in around}):
        for name, value in values.items():
            check_draw_shape(name, tuple(np.shape(value)), described[name].shape)


def told_of_outside(outside: Mapping[str, Array]) -> str:
    """Which draws are outside of their sites' supports, in words; empty where none is."""
    found = [
        f"{int(flags.sum())} of {len(flags)} draws of '{name}' (the first is draw "
        f"{int(np.argmax(flags))})"
        for name, flags in outside.items()
    ]
    if not found:
        return ""
    return (
        "Expected draws that are finite and in the supports of their sites, found others: "
        f"{', '.join(found)}."
    )


def is_outside(
    value: Any,
    finite: Any,
    supported: Callable[[Any], Any],
    round_trip: Callable[[Any], Any],
    xp: Any,
) -> Any:
    """Whether a value of a latent site is outside of its support, a truth value of the framework.

    A host's check of a support may be stricter than rounding allows, as of probabilities that sum
    to one. So a value is inside as well where the way to unconstrained space and back leaves it.

    Parameters
    ----------
    value : array
    finite : bool array
        Whether its entries are.
    supported, round_trip : callable
        The check of the support, and the way there and back.
    xp : module
    """
    again = round_trip(value)
    largest = 0.0 if 0 in value.shape else abs(value).max()
    # A hundredth of an entry, and next to none of the largest: a value that is truly outside comes
    # back at another place of the support.
    tolerance = 1e-2 * xp.maximum(abs(again), abs(value)) + 1e-4 * largest
    same = (abs(again - value) <= tolerance).all()
    return ~(finite.all() & (supported(value).all() | same))


# -- room ----------------------------------------------------------------------------------------

#: Share of the memory that is free which groups may take, and free bytes where nobody says.
_SHARE, _UNKNOWN = 0.8, 2**33


def free_memory() -> float:
    """Bytes of memory that are free."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float(_UNKNOWN)


def check_room(
    sites: Mapping[str, SiteDescription],
    groups: Collection[str],
    num_draws: int,
    itemsize: int,
    num_chains: int,
) -> None:
    """See that what is computed at so many draws fits into memory, before anything is computed.

    Fewer are as many of each chain.

    Raises
    ------
    ArgumentError
        It does not.
    """
    kinds = {
        "log_likelihood": ("observed", "computed", "marginal"),
        "log_prior": ("latent",),
        "predictive": ("observed",),
        "prediction": ("observed",),
        "deterministic": ("deterministic", "computed"),
        "alongside": ("deterministic", "computed"),
        "discrete": ("discrete",),
    }
    numbers = {}
    for group in kinds.keys() & groups:
        densities = group in DENSITIES
        shapes = [
            site.likelihood[0] if densities else site.shape
            for site in sites.values()
            if site.kind in kinds[group]
        ]
        # A distribution has a mean, a variance and a distribution function.
        times = 3 if group == "prediction" else 1
        numbers[group] = times * sum(math.prod(shape) for shape in shapes)
    each, free = itemsize * sum(numbers.values()), _SHARE * free_memory()
    if num_draws * each <= free:
        return
    largest = max(numbers, key=lambda group: numbers[group])
    fitting = max(1, int(free // each) // num_chains) * num_chains
    raise ArgumentError(
        f"Expected groups that fit into the {free / 2**30:.1f} GiB of memory that may be used, "
        f"found {num_draws * each / 2**30:.1f} GiB for {num_draws:,} draws, most of them for "
        f"{largest}. Pass num_samples={fitting} or fewer, or switch off what is not "
        "needed, such as log_likelihood=False or what return_sites= leaves out."
    )


def value_shape(site: Mapping[str, Any], *, is_observed: bool) -> Shape:
    """Shape of a site's value; of one that is observed together with its distribution's."""
    shape = tuple(np.shape(site["value"]))
    return np.broadcast_shapes(shape, tuple(site["fn"].shape())) if is_observed else shape


def distribution_of(site: Mapping[str, Any]) -> Any:
    """The distribution of an observed site, with a draw for each observation."""
    fn, shape = site["fn"], value_shape(site, is_observed=True)
    batch_shape = shape[: len(shape) - fn.event_dim]
    return fn if tuple(fn.batch_shape) == batch_shape else fn.expand(batch_shape)


class CannotBeDrawnError(ArgumentError):
    """An observed site's distribution has a density and no draws in the host."""


def cannot_be_drawn(name: str, error: Exception) -> CannotBeDrawnError:
    """Of an observed site whose distribution has a density and no draws in the host."""
    text = str(error).strip() or type(error).__name__
    return CannotBeDrawnError(
        f"Expected a distribution of '{name}' that the host can draw from, found one that it "
        f"cannot: {text} The fit itself does not need it: `to_arviz` goes without new "
        "observations by posterior_predictive=False."
    )


# -- what is computed -----------------------------------------------------------------------------


class Recorder:
    """Puts chunks of draws and rows together.

    Parameters
    ----------
    sites : mapping of str to SiteDescription
    groups : collection of str
        What is wanted, from ``GROUPS``.
    num_draws : int
    chunked_plates : collection of str
        Plates whose rows come in chunks.
    missing, finite : collection of str
        Observed sites whose values are none, and those of them that may be discrete latent sites.
    with_density : collection of str
        Sites that record a value and have a density, of the prior, all the same.

    Attributes
    ----------
    observed_sites, computed_sites, discrete_sites, deterministic_sites : list of SiteDescription
        The last only if their values are wanted, with the computed ones.
    alongside_sites : list of SiteDescription
        The same sites, if their values beside new observations or predictions are wanted.
    apart : bool
        New observations need a run of their own: where several sites are wanted, new values of one
        change what the model computes after it.
    at_draws : set of str
        The groups for which the model has to run at every draw.
    uncertain : set of tuple of str
        Group and name of deterministic sites outside the plates that differ between chunks of
        rows: they are right only with all rows.
    """

    def __init__(
        self,
        sites: Mapping[str, SiteDescription],
        groups: Collection[str],
        num_draws: int,
        chunked_plates: Collection[str],
        missing: Collection[str],
        finite: Collection[str],
        with_density: Collection[str] = (),
    ) -> None:
        self.groups, self.with_density = frozenset(groups), with_density
        self.missing, self._finite = frozenset(missing), frozenset(finite)
        self._sites, self._num_draws = sites, num_draws
        self._chunked = frozenset(chunked_plates)
        self._arrays: dict[str, dict[str, Array]] = {group: {} for group in (*GROUPS[:-1], *TERMS)}
        of_kind = {
            kind: [site for site in sites.values() if site.kind == kind]
            for kind in ("observed", "computed", "deterministic", "discrete")
        }
        self.observed_sites = of_kind["observed"]
        self.computed_sites = of_kind["computed"]
        self.discrete_sites = of_kind["discrete"]
        values = of_kind["deterministic"] + of_kind["computed"]
        self.deterministic_sites = values if "deterministic" in self.groups else []
        self.alongside_sites = values if "alongside" in self.groups else []
        names = list(sites)
        first = min((names.index(site.name) for site in self.observed_sites), default=len(names))
        self.apart = len(self.observed_sites) > 1 or any(
            names.index(site.name) > first for site in self.alongside_sites
        )
        self.at_draws = set(self.groups) & {
            "log_prior",
            *(("deterministic", "alongside") if values else ()),
            *(("discrete",) if self.discrete_sites else ()),
            *(("predictive", "prediction") if self.observed_sites else ()),
            *(("log_likelihood",) if self.observed_sites or self.computed_sites else ()),
        }
        self.uncertain: set[tuple[str, str]] = set()
        self.outside: dict[str, Array] = {}

    def without_kept(self, observed: Iterable[str]) -> list[str]:
        """Of observed sites those that get new values: those without observations, or else all.

        So the host's ``Predictive`` does it: what a model conditions on itself stays as it is where
        the observations that depend on it are left out. Discrete latent sites count for none, which
        a program never observes.
        """
        are_all = self.missing <= self._finite
        return [name for name in observed if are_all or name in self.missing]

    def draws_together(self) -> int:
        """Draws that are replayed at once: ``DRAW_CHUNK``, or fewer where a site is large."""
        largest = max((math.prod(site.shape) for site in self._sites.values()), default=1)
        return max(1, min(DRAW_CHUNK, TOGETHER // max(1, largest)))

    def note_outside(self, name: str, flags: Array, draws: slice) -> None:
        """Keep which draws of a latent site are outside of its support on a chunk of rows."""
        if flags.any():
            self.outside.setdefault(name, np.zeros(self._num_draws, bool))[draws] |= flags

    def put(
        self,
        group: str,
        name: str,
        values: Shaped[Array, " ..."],
        chunk: int,
        rows: Mapping[str, Array],
        draws: slice | None = None,
    ) -> None:
        """Keep values on a chunk of rows, of some draws or, without them, of none in particular."""
        site = self._sites[name]
        shape, plates = site.shape, site.plates
        if group == "discrete":
            values = values.astype(np.int64)  # Pyro's Bernoulli has values in floating point
        if group in DENSITIES:
            shape, plates = site.likelihood
        elif group == "probabilities":
            shape, plates = (*shape, values.shape[-1]), (*plates, None)
        arrays = self._arrays[group]
        if name not in arrays:
            lead = () if draws is None else (self._num_draws,)
            arrays[name] = np.empty(lead + shape, values.dtype)
        array = arrays[name] if draws is None else arrays[name][draws]
        if self._chunked.intersection(plates):
            places = [
                rows[plate] if plate in self._chunked else np.arange(length)
                for plate, length in zip(plates, shape, strict=True)
            ]
            lead_places = [] if draws is None else [np.arange(len(array))]
            array[np.ix_(*lead_places, *places)] = values
        # The first chunk's value stays, by which those of the others are seen to differ.
        elif group not in ("deterministic", "alongside") or chunk == 0:
            array[...] = values
        elif not np.allclose(array, values, rtol=1e-6, equal_nan=True):
            self.uncertain.add((group, name))

    @property
    def to_correct(self) -> list[tuple[str, str]]:
        """Group and name of what is computed again with all rows.

        New observations belong to the values that they were drawn with.
        """
        if not any(group == "alongside" for group, _ in self.uncertain):
            return sorted(self.uncertain)
        own = self._arrays["predictive"]
        return sorted(self.uncertain | {("predictive", name) for name in own})

    def correct(self, group: str, name: str, draw: int, value: Shaped[Array, " ..."]) -> None:
        """Replace the value of an uncertain site at a draw by that with all rows."""
        self._arrays[group][name][draw] = value

    def replayed(self, plate_sizes: Mapping[str, int]) -> Replay:
        """All of it."""
        arrays = self._arrays
        return Replay(
            dict(self._sites),
            dict(plate_sizes),
            **{group: arrays[group] for group in GROUPS[:-1]},
            outside=dict(self.outside),
            prediction={term: arrays[term] for term in TERMS},
        )
