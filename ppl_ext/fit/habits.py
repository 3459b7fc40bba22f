"""What users of other libraries write first: answered with the right word, or understood."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ppl_ext.arguments import ForeignArgumentError, placed_array
from ppl_ext.errors import ArgumentError
from ppl_ext.options import described
from ppl_ext.process import swapped

_TUNES = "Leave {name}= out: {verb} tunes by itself."
_DRAWS = (
    "Leave {name}= out: {verb} draws until every number is known well enough. target_ess=1000 asks "
    "for more, and fit.more(1000) draws further afterwards."
)
_EVALUATIONS = "Write budget=...: {verb} counts evaluations of the score, not steps."
#: Keywords of other libraries, and what to type instead.
WORDS: dict[str, str] = {
    **dict.fromkeys(
        ("chains", "num_chains", "n_chains"),
        "Leave {name}= out: {verb} chooses how many chains run side by side.",
    ),
    **dict.fromkeys(("draws", "num_draws", "num_samples", "samples", "n_samples"), _DRAWS),
    **dict.fromkeys(
        (
            *("tune", "warmup", "num_warmup", "warmup_steps", "iter_warmup", "burn_in"),
            *("target_accept", "target_accept_prob", "adapt_delta", "step_size"),
            *("max_tree_depth", "max_treedepth", "init"),
        ),
        _TUNES,
    ),
    **dict.fromkeys(
        ("num_steps", "steps", "n_steps", "iterations", "n_iter", "max_iter", "n"), _EVALUATIONS
    ),
    **dict.fromkeys(("cores", "n_jobs", "chain_method"), "Leave {name}= out."),
    **dict.fromkeys(("timeout", "max_time"), "Write seconds=..."),
    **dict.fromkeys(
        ("method", "sampler", "algorithm", "inference", "inference_method", "nuts_sampler"),
        'Write engine="SVGD", or engine=SVGD(model, optim), for an engine of this package; '
        "warm_chains gives the host's own NUTS.",
    ),
    **dict.fromkeys(
        ("optim", "optimizer", "lr", "learning_rate"),
        "Give it to an engine: engine=SVGD(model, optim).",
    ),
    **dict.fromkeys(
        ("progressbar", "progress", "show_progress", "verbose", "disable_progbar"),
        "Write progress_bar=False.",
    ),
}
#: The same of random numbers, in the package that has another word.
SEEDS = ("seed", "random_seed", "rng_seed", "random_state")
KEYS = ("rng_key", "key", "prng_key", "random_seed", "rng_seed", "random_state")


def check_habits(
    model: Any, kwargs: Mapping[str, Any], verb: str, randomness: Mapping[str, str]
) -> None:
    """See that keywords are the model's, and no words of other libraries for an option.

    Parameters
    ----------
    model : callable
    kwargs : mapping
        Keywords that the entry point has no parameters for.
    verb : str
        Its name.
    randomness : mapping of str to str
        By keyword for random numbers that it has another word for, what to type.

    Raises
    ------
    ArgumentError
        One is, and the model has no parameter of that name.
    """
    unknown = kwargs.keys() - _names(model, kwargs)
    for name in kwargs:
        word = {**WORDS, **randomness}.get(name)
        if name in unknown and word is not None:
            raise ArgumentError(
                f"Expected arguments of the model and options of {verb}, found {name}=, which is "
                f"neither. {word.format(name=name, verb=verb)}"
            )


def _names(model: Any, kwargs: Mapping[str, Any]) -> set[str]:
    """Which keywords a model takes; all where Python cannot tell."""
    parameters = _parameters(model)
    if not parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return set(kwargs)
    return set(parameters)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """Of a function or a module; none where Python cannot tell."""
    try:
        return inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):
        return {}


def engine_of(
    engine: Any,
    model: Any,
    base: type,
    defaults: Mapping[str, Callable[[], Any]],
    options: Mapping[str, Any],
) -> Any:
    """An engine of a name, a class or an instance; anything else comes back as it is.

    Parameters
    ----------
    engine
    model : callable
    base : type
        Of the package's engines.
    defaults : mapping of str to callable
        By parameter that a class has no default of, what is given for it.
    options : mapping
        What every engine is made with, where it takes it.

    Raises
    ------
    ArgumentError
        There is no engine of the name, or it needs more than a name.
    """
    if isinstance(engine, str):
        known = {each.__name__: each for each in _classes(base)}
        by_name = {name.lower(): each for name, each in known.items()}
        if engine.lower() not in by_name:
            nuts = " The host's NUTS is warm_chains." if "nuts" in engine.lower() else ""
            raise ArgumentError(
                f"Expected one of the engines {sorted(known)}, found {engine!r}.{nuts}"
            )
        engine = by_name[engine.lower()]
    if not (isinstance(engine, type) and issubclass(engine, base)):
        return engine
    parameters = list(inspect.signature(engine).parameters.values())[1:]
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    if missing := [name for name in needed if name not in defaults]:
        raise ArgumentError(
            f"Expected an engine with its options, found {engine.__name__}, which needs "
            f"{', '.join(missing)}. Write engine={engine.__name__}(model, {missing[0]}=...)."
        )
    takes = {each.name for each in parameters}
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters)
    own = {name: value for name, value in options.items() if is_open or name in takes}
    make: Callable[..., Any] = engine
    return make(model, **{name: defaults[name]() for name in needed}, **own)


def _classes(base: type) -> list[type]:
    """Engines that can be made, below a base."""
    found: list[type] = []
    below: list[type] = base.__subclasses__()
    for each in below:
        package = each.__module__.partition(".")[0]
        # Of this package those that it exports: others are what these stand on.
        is_own = package == base.__module__.partition(".")[0]
        is_open = not is_own or hasattr(sys.modules[package], each.__name__)
        if is_open and not inspect.isabstract(each) and not each.__name__.startswith("_"):
            found.append(each)
        found += _classes(each)
    return found


def written_for_arrays(
    ways: Callable[..., Iterator[Any]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Callable[[Any], Any],
) -> Iterator[Any]:
    """What ``ways`` makes of a model and its arguments, which may be lists and NumPy's arrays.

    They are given as they are. Where the model fails at them, it was written for arrays of the
    package, and is given these.
    """
    given = args, kwargs
    if not any(map(_is_numbers, (*args, *kwargs.values()))):
        yield from ways(*given)
        return
    found = ways(*given)
    try:
        with swapped(warnings.catch_warnings()):
            # NumPy functions of a tensor give arrays without gradients, and warn of it.
            warnings.filterwarnings("error", "__array_wrap__", DeprecationWarning)
            first = next(found)
    except (ForeignArgumentError, DeprecationWarning) as error:
        found = ways(
            tuple(place(x) if _is_numbers(x) else x for x in args),
            {name: place(x) if _is_numbers(x) else x for name, x in kwargs.items()},
        )
        try:
            first = next(found)
        except Exception:  # noqa: BLE001 the model may not be made for these either
            if isinstance(error, ForeignArgumentError):
                raise error from None
            found = ways(*given)
            first = next(found)
    yield first
    yield from found


def _is_numbers(value: Any) -> bool:
    """Whether a list or an array of NumPy is of numbers."""
    if not isinstance(value, (list, np.ndarray)):
        return False
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return False
    return array.ndim > 0 and len(array) > 0 and array.dtype.kind in "biuf"


def as_fitted(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    like: tuple[tuple[Any, ...], Mapping[str, Any]],
    place: Callable[[Any], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model's arguments for a prediction, where those of the fit were arrays as such.

    Lists become arrays as well, and arrays of NumPy those of the package where the fit's were,
    since a model that was written for these may do with others what it likes.

    Raises
    ------
    ArgumentError
        There is a number or a whole data frame in the place of an array, or something of an array
        would be lost.
    """

    def each(name: str, new: Any, fitted: Any) -> Any:
        shape = getattr(fitted, "shape", ())
        # Of a distribution it is a method, and whole frames go to the model as they are.
        if not isinstance(shape, tuple) or hasattr(fitted, "columns"):
            return new
        rank = len(shape)
        if rank and isinstance(new, list):
            new = np.array(new)
            if new.dtype.kind in "iu" and "float" in str(fitted.dtype):
                new = new.astype(float)
        if not rank or isinstance(fitted, np.ndarray):
            return new
        if isinstance(new, np.ndarray):
            return placed_array(name, new, place)
        if isinstance(new, (bool, int, float)) or hasattr(new, "columns"):
            raise ArgumentError(
                f"Expected an array with {rank} {'axis' if rank == 1 else 'axes'} for '{name}', as "
                f"in the fit, found {described(new)}. Pass an array of rows: [5.0] for one number, "
                'frame["x"] of a data frame.'
            )
        return new

    own, named = like
    places = list(_parameters(model))[: max(len(own), len(args))]
    fitted = {**dict(zip(places, own, strict=False)), **named}
    made = [each(name, new, fitted.get(name)) for name, new in zip(places, args, strict=False)]
    return (*made, *args[len(made) :]), {
        name: each(name, new, fitted.get(name)) for name, new in kwargs.items()
    }
