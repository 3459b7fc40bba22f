"""What users of other libraries type next of a fit, a run or a verdict: the word that is here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from ppl_ext.errors import ArgumentError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_TABLE = '{it}.summary(), or {it}["site"].mean() of one site'
#: By attribute of other libraries' objects that hold draws, what to type here.
OF_DRAWS: dict[str, str] = {
    **dict.fromkeys(("idata", "inference_data", "to_inference_data"), "{it}.to_arviz()"),
    **dict.fromkeys(
        ("posterior", "posterior_predictive", "log_likelihood", "observed_data", "prior"),
        '{it}.to_arviz()["{name}"]',
    ),
    **dict.fromkeys(
        ("mean", "std", "sd", "var", "median", "quantile", "describe", "stats", "print_summary"),
        _TABLE,
    ),
    **dict.fromkeys(("to_dataframe", "to_pandas", "to_df", "draws_pd", "df"), _TABLE),
    **dict.fromkeys(("keys", "values", "items"), "{it}.get_samples().{name}()"),
    **dict.fromkeys(
        ("samples", "params", "extract", "stan_variables", "posterior_samples"),
        '{it}.get_samples(), or {it}["site"] for one site',
    ),
    **dict.fromkeys(
        ("plot_trace", "plot_posterior", "plot_forest", "plot_pair", "plot_ppc"),
        '{it}.plot("trace"), or another of the kinds that help({it}.plot) lists',
    ),
    **dict.fromkeys(
        ("sample", "predictive", "sample_posterior_predictive", "posterior_predict"),
        "{it}.predict(*args), with the model's arguments",
    ),
    **dict.fromkeys(("loo", "waic"), "arviz.loo({it}.to_arviz())"),
    **dict.fromkeys(
        ("check", "diagnose"), "check({it}, model, *args), in NumPyro with a key first"
    ),
}


def no_attribute(
    owner: Any, name: str, it: str, words: Mapping[str, str], sites: Collection[str] = ()
) -> NoReturn:
    """Refuse an attribute that an object does not have, with the word that it has for it.

    Parameters
    ----------
    owner
    name : str
    it : str
        What the object is called in an example.
    words : mapping of str to str
        What to type, by attribute.
    sites : collection of str
        Names that are keys.

    Raises
    ------
    AttributeError
    """
    told = f"{type(owner).__name__!r} object has no attribute {name!r}"
    word = f'{it}["{name}"]' if name in sites else words.get(name, "").format(it=it, name=name)
    if word:
        told = f"{told}. Type {word}."
    raise AttributeError(told, name=name, obj=owner)


def answers(
    words: Mapping[str, str],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A method that answers keywords of other libraries with what to type, by keyword.

    What it does not take is refused with what it takes.
    """

    def of(verb: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(verb)
        _, *own = signature.parameters.values()
        name = verb.__name__
        takes = ", ".join(f"{each.name}=" for each in own if each.kind is not each.VAR_KEYWORD)

        @wraps(verb)
        def answered(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for each in kwargs:
                if each in words:
                    raise ArgumentError(
                        f"Expected options of {name}, found {each}=. Type {words[each]}."
                    )
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                told = f"Expected arguments of {name} among {takes}, but {error}."
                raise ArgumentError(told) from None
            return verb(*args, **kwargs)

        return answered

    return of


#: The same of ``summary`` and ``more``.
OF_SUMMARY = {
    **dict.fromkeys(("var_names", "vars", "variables", "names"), "summary(sites=[...])"),
    **dict.fromkeys(("hdi_prob", "ci_prob", "prob", "interval"), "summary(probability=0.9)"),
    **dict.fromkeys(
        ("dims", "coords"), "fit(model, *args, dims=..., coords=...), whose tables have the labels"
    ),
}
OF_MORE = dict.fromkeys(
    ("draws", "num_samples", "samples", "n", "num_steps"), "more(1000), for 1,000 further draws"
)
