"""``fit_many``: one program fitted to many data sets of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from tqdm.auto import tqdm

from ppl_ext.arguments import check_callable
from ppl_ext.diagnostics.habits import no_attribute
from ppl_ext.diagnostics.tables import Table, block, paragraph
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after.evidence import LogEvidence
from ppl_ext.fit.doors import UNASKED, Asked
from ppl_ext.fit.fit import Fit, fit
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.programs import Programs
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.options import check_choice, described, is_count
from ppl_ext.target.observations import Observations

#: The ways to write a program, from its arguments, a seed and a generator, with ``programs=``.
Ways = Callable[..., Iterator[Problem]]
Call = tuple[tuple[Any, ...], dict[str, Any]]


#: Data sets that a notebook shows.
MOST_SHOWN = 20


@dataclass(frozen=True)
class Fits:
    """Fits of one program to many data sets.

    Attributes
    ----------
    fits : tuple of Fit
        By data set; ``fits[number]`` and ``len(fits)`` work on this object as well.

    Examples
    --------
    >>> import numpy as np
    >>> verdict = Verdict("corrected", ("The weights are even.",))
    >>> two = [Fit({"mean": np.arange(number)}, verdict, 1) for number in (4.0, 6.0)]
    >>> found = Fits(tuple(two))  # as the function fit_many gives it
    >>> print(len(found), found.draws["mean"].shape, found[1].verdict.level)
    2 (2, 4) corrected
    """

    fits: tuple[Fit, ...]

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, number: int) -> Fit:
        return self.fits[number]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the draws of each data set are worth."""
        return tuple(each.verdict for each in self.fits)

    @property
    def log_evidences(self) -> tuple[LogEvidence, ...]:
        """Log of the evidence of each data set."""
        return tuple(each.log_evidence for each in self.fits)

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """Latent site to draws (data sets, draws, ...): as many of each as the least has.

        They are evenly spaced. All draws of a data set are those of its own fit.
        """
        lengths = [len(next(iter(each.draws.values()))) for each in self.fits]
        least = min(lengths)
        return {
            name: np.stack(
                [
                    np.asarray(each.draws[name])[np.arange(least) * length // least]
                    for each, length in zip(self.fits, lengths, strict=True)
                ]
            )
            for name in self.fits[0].draws
        }

    def __getattr__(self, name: str) -> NoReturn:
        word = "[each.{name} for each in fits]"
        no_attribute(self, name, "fits", {name: word} if hasattr(Fit, name) else {})

    def _repr_html_(self) -> str:
        verdicts = enumerate(self.verdicts)
        rows = [
            (str(number), each.headline, each.findings[0] if each.findings else "")
            for number, each in verdicts
        ]
        others = [row for row, each in zip(rows, self.verdicts, strict=True) if not each.trusted]
        # Those that need a look come first, and of many the others are left out.
        shown = (others + [row for row in rows if row not in others])[:MOST_SHOWN]
        left = len(rows) - len(shown)
        return block(
            paragraph(repr(self), bold=True),
            Table(("data set", "verdict", ""), shown, left=(0, 1, 2)).as_html(),
            paragraph(f"and {left:,} others") if left else "",
        )

    def __repr__(self) -> str:
        trusted = sum(each.trusted for each in self.verdicts)
        return f"Fits({len(self)} data sets, {trusted} trusted)"


def fit_one(ways: Ways, call: Call, seed: int, programs: Programs, asked: Asked = UNASKED) -> Fit:
    """The fit of one data set, with what others have compiled."""
    generator = np.random.default_rng(seed)
    problems = partial(ways, *call, seed, generator, programs=programs)
    return fit(problems, generator, seed, again=ways, **asked._asdict())


def fit_many(ways: Ways, calls: Sequence[Call], seed: int, asked: Asked) -> Fits:
    """See the packages' ``fit_many``; ``calls`` are the model's arguments by data set."""
    check_choice("progress_bar", asked.progress_bar, (True, False))
    programs, of_each = Programs(), asked._replace(progress_bar=False)
    fits = []
    for number, call in enumerate(tqdm(calls, desc="fit_many", disable=not asked.progress_bar)):
        own = int(np.random.default_rng((seed, number)).integers(2**31))
        fits.append(fit_one(ways, call, own, programs, of_each))
    return Fits(tuple(fits))


def calls_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    axis: Any,
    as_array: Callable[[Any], Any],
) -> list[Call]:
    """A model's arguments by data set.

    Parameters
    ----------
    model, args, kwargs
    axis : int or mapping of str to int
    as_array : callable
        An argument as an array that can be indexed; None where it is no array.

    Raises
    ------
    ArgumentError
        There are no data sets along the axis, or other numbers of them.
    """
    check_callable(model, "Pyro or NumPyro")
    arguments = Observations(model, args, kwargs, None)
    leaves = {name: dict(_leaves(name, each, as_array)) for name, each in arguments.named.items()}
    arrays = {inner: array for each in leaves.values() for inner, array in each.items()}
    if isinstance(axis, Mapping):
        places = {inner: each for name in axis for inner, each in _placed(name, axis, leaves)}
    else:
        places = dict.fromkeys(arrays, axis)
    for name, place in places.items():
        if not is_count(place, 0):
            raise ArgumentError(
                f"Expected axis to be an int >= 0 or a mapping of arguments to such, found "
                f"{described(axis)}."
            )
        if name not in arrays or arrays[name].ndim <= place:
            raise ArgumentError(
                f"Expected argument '{name}' to be an array with data sets along axis {place}, "
                f"found {_shape(arrays.get(name))}. {NAME_THEM}"
            )
    sizes = {name: arrays[name].shape[place] for name, place in places.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ArgumentError(
            f"Expected arguments with one number of data sets, found {sizes or 'no arrays'}. "
            f"{NAME_THEM}"
        )
    (number,) = set(sizes.values())

    def of_set(name: str, value: Any, k: int) -> Any:
        if isinstance(value, Mapping):
            return {key: of_set(_inner(name, key), each, k) for key, each in value.items()}
        return arrays[name][(slice(None),) * places[name] + (k,)] if name in places else value

    split = [name for name, inner in leaves.items() if inner.keys() & places.keys()]
    return [
        arguments.with_values({name: of_set(name, arguments.named[name], k) for name in split})
        for k in range(number)
    ]


#: What to do about arguments that hold no data sets.
NAME_THEM = "Name the arguments that hold data sets: axis={'name': 0}."


def _inner(name: str, key: Any) -> str:
    return f"{name}[{key!r}]"


def _leaves(name: str, value: Any, as_array: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """The arrays of an argument, in dictionaries as well, by name."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(_inner(name, key), each, as_array)
    elif isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        raise ArgumentError(
            f"Expected the data sets of argument '{name}' in one array, found a "
            f"{type(value).__name__} of {len(value)}. Stack them along an axis, and name the "
            f"arguments that hold data sets: axis={{'{name}': 0}}."
        )
    elif (array := as_array(value)) is not None:
        yield name, array


def _placed(
    name: str, axis: Mapping[str, Any], leaves: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """The arrays that one name of ``axis`` stands for: a dictionary's are all in it."""
    for inner in leaves.get(name) or (name,):
        yield inner, axis[name]


def _shape(array: Any) -> str:
    return "none of that name" if array is None else f"shape {tuple(array.shape)}"
