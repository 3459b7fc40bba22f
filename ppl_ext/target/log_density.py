"""What the flat log densities of both hosts' programs are asked, and what needs no arrays of it."""

from __future__ import annotations

import copy
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from jaxtyping import Float, Int

from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError, DataWarning, HeldParameterWarning
from ppl_ext.options import check_count, check_number, described
from ppl_ext.target.bound_model import BoundModelShell
from ppl_ext.target.layouts import DataPlate, sweep_ranges
from ppl_ext.target.scores import Array, Score, ScoreParts

Data = TypeVar("Data")

#: How many parameters or networks a warning names.
_NAMED = 6
#: Relative difference of two sums of log likelihoods that is put down to rounding.
APART = 1e-4
#: What is said of a program without data, whose posterior is right as it is.
NOTHING = (
    "The program observes nothing with these arguments, so that the draws are of its prior. Where "
    "that is not meant, pass the observations: an argument that was left out may be None."
)
#: What is said where data are there, and the draws are as they would be without them.
UNTOUCHED = (
    "The observations tell nothing of any latent site with these arguments: the likelihood is the "
    "same wherever the latents are, so that the draws are of the prior. Where that is not meant, "
    "look at masks, which may hide all rows, and at what the observed sites' distributions are "
    "made of."
)
#: Positions at which likelihoods are compared.
_POSITIONS = 4


class Started(Protocol):
    """Where a run starts, as :class:`ppl_ext.start.given.Started`, which stands above targets."""

    @property
    def start(self) -> Any:
        """A :class:`~ppl_ext.start.start.Start`."""

    def positions(self, number: int, seed: int | Sequence[int]) -> Float[np.ndarray, "number D"]:
        """So many positions."""


class LogDensityShell(ABC, Generic[Array, Data]):
    """Base of the packages' ``LogDensity``: what is asked of a target, on P positions.

    Values and scores come from two hooks, ``_batch`` and ``_full``, which are told what is wanted:
    "value", the log prior and the log likelihood; "log_density"; "score", a :class:`Score`; or
    "parts", a :class:`ScoreParts`.
    """

    #: What to write for a plate whose rows the engine chooses.
    _data_plate: str

    bound: BoundModelShell[Array]
    #: Where ``initial_positions`` are drawn; None is the init strategy.
    start: Started | None = None
    #: Whether the program has observed sites or factors.
    sees_data: bool
    #: All rows, where they come from a loader; None where arguments hold them.
    passes: Passes | None = None
    #: How positions and rows are split over devices, if they are.
    sharding: Any
    # Whether the rows of a loader's batch were looked at.
    _has_seen_batch = False

    def _set_options(
        self,
        init_strategy: Any,
        likelihood_temperature: float,
        particle_chunk: int | None,
        data_chunk: int | None,
    ) -> None:
        if init_strategy is not None and not callable(init_strategy):
            raise ArgumentError(
                "Expected init_strategy to be a strategy of the host, such as init_to_median, "
                f"found {described(init_strategy)}."
            )
        check_number("likelihood_temperature", likelihood_temperature)
        for name, chunk in (("particle_chunk", particle_chunk), ("data_chunk", data_chunk)):
            check_count(name, chunk, optional=True)
        self.init_strategy = init_strategy
        self.likelihood_temperature = float(likelihood_temperature)
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk

    def _set_model(self, bound: BoundModelShell[Array]) -> None:
        self.model = bound.model
        self.dim: int = bound.layout.dim
        self.plates: dict[str, DataPlate] = bound.plates
        self.batch_plates: dict[str, DataPlate] = bound.batch_plates
        self.local_sites = bound.local_sites
        self.observed_sites = bound.observed_sites
        self.parameter_sites = bound.parameter_sites

    def _check_options(self, has_likelihood: bool) -> None:
        """See that the options have a meaning for the model."""
        if self.data_chunk is not None and not self.plates:
            raise ArgumentError(
                f"data_chunk={self.data_chunk} has nothing to divide: the model has no subsampled "
                f"plate whose rows it looks up. Write the data plate as `{self._data_plate}` and "
                "index the data by rows, or leave data_chunk out."
            )
        if self.likelihood_temperature != 1.0 and self.parameter_sites and not has_likelihood:
            raise ArgumentError(
                f"likelihood_temperature={self.likelihood_temperature} has nothing to divide: the "
                "model has no likelihood, that is neither observed sites nor factors inside a "
                "plate. The density of a Stan program is in one piece; temper it in the program."
            )

    def _check_rows_apart(self, data: Data) -> None:
        """Warn where the likelihood of a row depends on the other rows of its batch.

        A batch of two rows, each of them many times, has the mean of the likelihoods of batches of
        either, where rows stand apart: each counts N/n times. Where a batch of one row many times
        has no density, as with x / x.std(0), two batches that swap halves tell: their sum stays.
        Rows depend on each other by discrete sites that are summed out, whose values they share;
        nothing is said of those programs.
        """
        if self.bound.enumerated:
            return
        first = {name: np.arange(each.subsample_size) for name, each in self.plates.items()}
        pairs, chosen = [], []
        for name, plate in self.plates.items():
            if plate.subsample_size > 1:
                # A set: of small plates these rows may be the same.
                for other in {1, plate.size // 2, plate.size - 1}:
                    one, two = np.zeros_like(first[name]), np.full_like(first[name], other)
                    both = np.where(first[name] < len(one) // 2, one, two)
                    pairs.append((name, other, len(one) // 2 / len(one)))
                    chosen += [{**first, name: rows} for rows in (one, two, both)]
        if not pairs:
            return
        swapped = [name for name, each in self.plates.items() if each.subsample_size > 1]
        for name in swapped:
            n, size = self.plates[name].subsample_size, self.plates[name].size
            one, two = np.arange(n), (np.arange(n) + n) % size
            half = np.arange(n) < n // 2
            swaps = (one, two, np.where(half, one, two), np.where(half, two, one))
            chosen += [{**first, name: rows} for rows in swaps]
        # All batches in one call, so that one program is compiled for them.
        stacked = {name: np.stack([each[name] for each in chosen]) for name in first}
        found = self._likelihoods(np.tile(self._near_zero(), (len(chosen), 1)), stacked, data)
        triples, fours = np.split(found, [3 * len(pairs)])
        # What is infinite or NaN tells nothing.
        for (name, other, share), (one, two, both) in zip(
            pairs, triples.reshape(-1, 3), strict=True
        ):
            apart = share * one + (1.0 - share) * two
            if abs(both - apart) > APART * np.abs([one, two, both]).max():
                _warn_of_mixed_rows(
                    name,
                    f"batches of rows 0 and {other} have {both:.6g} together, and {apart:.6g} "
                    "apart",
                )
                return
        for name, four in zip(swapped, fours.reshape(-1, 4), strict=True):
            if (changed := _changed_by_swap(four)) is not None:
                _warn_of_mixed_rows(name, changed)
                return

    def check_batch(self, batch: Batch, kwargs: Mapping[str, Any]) -> None:
        """Warn where the likelihood of a row depends on the other rows of a loader's batch.

        Two batches, each of one half of its rows twice, have the same sum of likelihoods when they
        have swapped halves, where rows stand apart. It is looked at once, and not where the batch
        has all rows, which may depend on each other.
        """
        half = batch.rows // 2
        if self._has_seen_batch or self.sharding is not None or self.bound.enumerated or not half:
            return
        plates = [n for n, each in self.batch_plates.items() if each.subsample_size == batch.rows]
        if not plates:
            return
        self._has_seen_batch = True
        one, two, left = np.split(np.arange(batch.rows), [half, 2 * half])
        pairs = (one, one), (two, two), (one, two), (two, one)
        chosen = [batch.of_rows(np.concatenate([*pair, left])) for pair in pairs]
        # What is not a number tells nothing below.
        four = np.full(4, np.nan)
        with suppress(Exception):  # Only a look: a model may want its rows as they come.
            data = [self.bind(*each.args, **{**kwargs, **each.kwargs}) for each in chosen]
            four = self._likelihoods(self._near_zero()[None], {}, *data)
        if (found := _changed_by_swap(four)) is not None:
            _warn_of_mixed_rows(plates[0], found)

    def touches(self, data: Data) -> bool:
        """Whether observations bear on a latent site; True where there are none, or nothing tells.

        Where they do not, log likelihoods are the same at all positions. So they are where
        rounding hides what differs, and then scores are not zero.
        """
        if not self.observed_sites or self.passes is not None or self.sharding is not None:
            return True  # Positions and rows that are split are those of every process.
        if self._must_touch(data):
            return True
        # Fixed positions, so that a run does not depend on random numbers drawn for a look.
        z = np.cos(np.arange(_POSITIONS * self.dim)).reshape(_POSITIONS, self.dim)
        first = {name: np.arange(each.subsample_size) for name, each in self.plates.items()}
        rows = {name: np.tile(each, (_POSITIONS, 1)) for name, each in first.items()}
        found = self._likelihoods(z, rows, data)
        if not np.isfinite(found).all() or np.ptp(found) > 0.0:
            return True
        scores: Any = self.full_score_parts(self.placed(z), data).likelihood
        return bool((scores != 0.0).any())

    def _must_touch(self, data: Data) -> bool:
        """Whether that is known without a look at numbers."""
        return False

    def _near_zero(self) -> Float[np.ndarray, " D"]:
        """A position near zero at which no two coordinates are the same."""
        return 0.1 * np.cos(np.arange(self.dim))

    @abstractmethod
    def _likelihoods(
        self, z: Float[np.ndarray, "K D"], rows: Mapping[str, np.ndarray], *data: Data
    ) -> Float[np.ndarray, " values"]:
        """Log likelihoods at positions, each with its own rows (K, n) of every plate.

        Of several data, those of the first come first.
        """

    @property
    def batch_arguments(self) -> bool:
        """Whether a plate is smaller than its size because a batch was passed as arguments."""
        return bool(self.batch_plates)

    # -- arguments ----------------------------------------------------------------------------

    @abstractmethod
    def bind(self, *args: Any, **kwargs: Any) -> Data:
        """The model's arguments as :class:`Data`, checked against its signature.

        Raises
        ------
        ArgumentError
            The model cannot be called with these arguments, or, in NumPyro, their rows do not fit
            its plates.
        """

    @abstractmethod
    def follows(self, data: Data, look: bool = True) -> bool:
        """Whether the target is still that of the model with these arguments.

        It is not where plates have other sizes or other rows are the engine's to choose, where the
        latent sites are others, or where the model computes something else, because of what it
        closes over or takes out of objects. Arguments of a new form are looked at once. Without
        ``look``, what the model computes is looked at again only where arguments are objects that
        may change, such as data frames and NumPy's arrays in Pyro.

        Raises
        ------
        ModelCheckError, ArgumentError
            The model cannot be fitted with these arguments.
        """

    @abstractmethod
    def constants(self, data: Data) -> str:
        """Digest of the arrays that the model closes over, with arguments of this form."""

    @abstractmethod
    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""

    def require_all_rows(self, data: Data, advice: str) -> None:
        """See that arguments hold every row of every plate whose rows the engine does not choose.

        ``advice`` says in the error what to do.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        if self.passes is not None:
            return
        for name, (size, rows) in self.partial_plates(data).items():
            raise ArgumentError(
                f"Expected the full data: plate '{name}' has {size} rows, found arguments with "
                f"{rows}. {advice}"
            )

    def all_rows(self) -> dict[str, Int[Array, " rows"]]:
        """Row indices of the full data for every plate that the model subsamples itself."""
        return self.bound.all_rows()

    def first_rows(self) -> dict[str, Int[Array, " rows"]]:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return self.bound.first_rows()

    # -- values and scores --------------------------------------------------------------------

    @abstractmethod
    def _batch(self, what: str, z: Array, data: Data, indices: Any) -> Any:
        """What is wanted of one (mini)batch."""

    @abstractmethod
    def _full(self, what: str, z: Array, data: Data) -> Any:
        """What is wanted of all rows."""

    @abstractmethod
    def evaluate(
        self, z: Float[Array, " D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log prior and log likelihood, two scalars, at one position (D,).

        Plain code without ``vmap``, for callers that build their own derivatives.
        """

    def log_prior_and_likelihood(
        self, z: Float[Array, "P D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        """Log prior and log likelihood of a (mini)batch at positions.

        Scales, masks and Jacobians are applied, the temperature is not. ``indices`` hold the rows
        of each subsampled plate: (rows,) for all positions, or (P, rows), those of each.

        Raises
        ------
        ArgumentError
            When the model leaves its rows to the engine and ``indices`` are not given.
        """
        log_prior, log_likelihood = self._batch("value", z, data, indices)
        return log_prior, log_likelihood

    def log_density(
        self, z: Float[Array, "P D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> Float[Array, " P"]:
        """Log prior + log likelihood / temperature of a (mini)batch."""
        return self._batch("log_density", z, data, indices)

    def score(
        self, z: Float[Array, "P D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> Score[Array]:
        """Tempered score of one (mini)batch at positions."""
        return Score(*self._batch("score", z, data, indices))

    def score_parts(
        self, z: Float[Array, "P D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> ScoreParts[Array]:
        """Gradients of prior and likelihood apart, of one (mini)batch."""
        return ScoreParts(*self._batch("parts", z, data, indices))

    # -- all rows -----------------------------------------------------------------------------

    def full_score(self, z: Float[Array, "P D"], data: Data) -> Score[Array]:
        """Exact tempered score over all rows, in chunks; the ragged tail is included."""
        return Score(*self._full("score", z, data))

    def full_score_parts(self, z: Float[Array, "P D"], data: Data) -> ScoreParts[Array]:
        """Exact gradients of prior and likelihood apart, over all rows."""
        return ScoreParts(*self._full("parts", z, data))

    def full_log_prior_and_likelihood(
        self, z: Float[Array, "P D"], data: Data
    ) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        """Exact log prior and log likelihood over all rows."""
        log_prior, log_likelihood = self._full("value", z, data)
        return log_prior, log_likelihood

    def full_log_density(self, z: Float[Array, "P D"], data: Data) -> Float[Array, " P"]:
        """Exact log prior + log likelihood / temperature over all rows."""
        return self._full("log_density", z, data)

    def sweep(self, chunk: int | None = None) -> list[tuple[float, dict[str, Int[Array, " rows"]]]]:
        """The chunks of a full-data sweep: weights (summing to 1) and row indices.

        Several plates give the cross product of their chunks. Without a subsampled plate the
        sweep is the arguments as they are.
        """
        check_count("chunk", chunk, optional=True)
        return [
            (weight, {name: self.bound.row_numbers(rows) for name, rows in ranges.items()})
            for weight, ranges in sweep_ranges(self.plates, chunk or self.data_chunk)
        ]

    def over(self, passes: Passes | None) -> Self:
        """The same target, whose full-data sweeps pass over a loader.

        Raises
        ------
        ArgumentError
            The model looks up its rows itself.
        """
        if passes is None:
            return self
        if self.plates:
            raise ArgumentError(
                "Expected no batches for all rows with a model that looks up its rows by a "
                f"plate's indices, as {sorted(self.plates)}. Pass the arrays of all rows."
            )
        other = copy.copy(self)
        other.passes = passes
        return other

    def plates_of_batches(self, data: Data) -> dict[str, int]:
        """All rows of each plate that a batch is part of; the rows of the batch where none is.

        Raises
        ------
        ArgumentError
            There are several, of other sizes.
        """
        found = {name: size for name, (size, _) in self.partial_plates(data).items()}
        if len(set(found.values())) != 1:
            raise ArgumentError(
                "Expected batches of one plate, found "
                f"{found or 'none: the first batch has all rows of each plate'}. Pass the arrays "
                "of all rows as arguments."
            )
        return found

    # -- spaces and starting points -----------------------------------------------------------

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """Machine epsilon of the precision in which densities are computed."""

    @abstractmethod
    def placed(self, values: Any) -> Array:
        """Positions or values in the target's precision, and on its device."""

    @abstractmethod
    def value_shapes(self, data: Data) -> dict[str, tuple[int, ...]]:
        """Shapes of the latent sites in their supports, without positions in front."""

    def with_start(self, start: Started | None) -> Self:
        """The same target, whose initial positions are drawn from a start."""
        other = copy.copy(self)
        other.start = start
        return other

    @abstractmethod
    def constrain(self, z: Float[Array, "P D"], data: Data) -> dict[str, Array]:
        """Latent sites in their supports, each (P, ...), from positions.

        Supports are those of the run itself, so a support that depends on another latent site is
        right; local latents have their full length. Programs whose parameters are deterministic
        sites (``parameter_sites``) have these as well.
        """

    @abstractmethod
    def unconstrain(self, values: Mapping[str, Array], data: Data) -> Float[Array, "P D"]:
        """Positions from constrained latent sites (P, ...): inverse of ``constrain``.

        Raises
        ------
        ArgumentError
            When a latent site is missing or, in NumPyro, has another shape.
        """

    # -- observed distributions ---------------------------------------------------------------

    @abstractmethod
    def likelihood_factors(
        self, z: Float[Array, " D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> tuple[str, ...]:
        """Names of the factors in the likelihood, which are not among :meth:`outputs`."""


def warn_of_held_parameters(sizes: Mapping[str, int], when: str, advice: str) -> None:
    """Say that parameters without a prior stay where they are.

    Parameters
    ----------
    sizes : mapping of str to int
        How many numbers each holds, by the name that the host gives it.
    when, advice : str
        Which values are held, and what else there is.
    """
    if sizes:
        warnings.warn(
            f"Parameters without a prior are held at their {when} values: {_told(sizes)}. "
            f"Give them {advice}, or train them first by the host's SVI: the page 'Guides and the "
            "hosts' SVI' shows both.",
            HeldParameterWarning,
            stacklevel=3,
        )


def warn_of_nothing(target: LogDensityShell[Any, Any]) -> None:
    """Say that a program observes nothing, where it does not."""
    if not target.sees_data:
        warnings.warn(NOTHING, DataWarning, stacklevel=3)


def _told(sizes: Mapping[str, int]) -> str:
    """Parameters by name where they are few, else by network, with the numbers that are held."""
    total = sum(sizes.values())
    number = f"{total:,} number{'s in all' if total != 1 else ''}"
    if len(sizes) <= _NAMED:
        return f"{', '.join(sizes)} ({number})"
    networks: dict[str, list[int]] = {}
    for name, size in sizes.items():
        # The hosts write "net$$$layer.weight", "net$params.layer.weight" and "net.layer.weight".
        networks.setdefault(re.split(r"\$|\.", name)[0], []).append(size)
    told = [
        f"'{name}' ({len(each)} arrays of {sum(each):,} numbers)" for name, each in networks.items()
    ]
    if len(told) > _NAMED:
        told[_NAMED:] = [f"{len(told) - _NAMED} more"]
    return f"of {', '.join(told)} ({number})"


def _changed_by_swap(four: Float[np.ndarray, " 4"]) -> str | None:
    """In words, if the sum of two batches' log likelihoods is another after they swapped halves.

    What is infinite or NaN tells nothing.
    """
    before, after = four[:2].sum(), four[2:].sum()
    if not abs(before - after) > APART * np.abs(four).max():
        return None
    return (
        f"two batches have {before:.6g} in sum, and {after:.6g} when they have swapped half of "
        "their rows"
    )


def _warn_of_mixed_rows(plate: str, found: str) -> None:
    """Say that the rows of a minibatch depend on each other, and by what that was found."""
    warnings.warn(
        f"The likelihood of a row of plate '{plate}' depends on the other rows of its minibatch: "
        f"{found}. Minibatches then have another posterior than all rows. Take out what is "
        "computed of a whole batch, such as x - x.mean(0) or batch normalisation, or compute it of "
        "all rows before the fit.",
        DataWarning,
        stacklevel=3,
    )
