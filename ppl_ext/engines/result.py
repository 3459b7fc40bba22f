"""What a run leaves behind: looked at as a fit is, as one line and as a page of a notebook."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float

from ppl_ext.diagnostics import posterior
from ppl_ext.diagnostics.habits import OF_DRAWS, OF_SUMMARY, answers, no_attribute
from ppl_ext.diagnostics.tables import Table, block, listed, paragraph
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice

if TYPE_CHECKING:
    import pandas as pd

#: Figures of the table that nobody knows of draws that are no chains' and that nothing confirmed.
_UNKNOWN = (np.nan,) * 5
_WORDS = OF_DRAWS | {
    **dict.fromkeys(("loss", "losses_"), "result.losses"),
    **dict.fromkeys(
        ("verdict", "trusted"),
        "result.judgement, or check(result, model, *args), in NumPyro with a key first",
    ),
    "more": "engine.run(...) again; in NumPyro with init_state=result.state",
    "save": "engine.save(path); in NumPyro engine.save(path, result.state)",
}


@dataclass(frozen=True)
class Ran:
    """What a result knows of its run.

    Attributes
    ----------
    engine
    args, kwargs
        The model's arguments of the run.
    of_loader : bool
        Whether its rows came from a loader, in place of ``args``.
    number : int
        Steps that the engine had taken at the end.
    bound : optional
        What a NumPyro engine knew of these arguments; None where rows came from a loader.
    """

    engine: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    of_loader: bool
    number: int
    bound: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A file, and another process, gets figures and state: the engine is saved by itself.
        return type(None), ()


class Looks:
    """How the result of a run is looked at, with the methods of a fit."""

    losses: Float[np.ndarray, " steps"]
    info: dict[str, Float[np.ndarray, " steps"]]
    settling: Any
    judgement: Any
    _ran: Ran | None = None
    #: ``to_arviz`` and the predictions of the package, which stand above its engines.
    _to_arviz: ClassVar[Callable[..., Any]]
    _predictions: ClassVar[Callable[..., dict[str, np.ndarray]]]

    @classmethod
    def looked_at_by(
        cls, to_arviz: Callable[..., Any], predictions: Callable[..., dict[str, np.ndarray]]
    ) -> None:
        """Give results what they are looked at by."""
        cls._to_arviz, cls._predictions = staticmethod(to_arviz), staticmethod(predictions)

    @property
    def settled(self) -> bool | None:
        """Whether the run has settled; None where no ``until`` was given."""
        return None if self.settling is None else bool(self.settling.settled)

    @property
    def ran(self) -> Ran:
        """The engine and the arguments of the run.

        Raises
        ------
        ArgumentError
            They are gone: the result was copied or pickled, or an engine that holds its state has
            gone on since.
        """
        if self._ran is None:
            raise ArgumentError(
                "Expected a result that knows its engine, found a copy, or one from a file. Call "
                "to_arviz(engine, result, *args), or engine.get_samples(result), which takes the "
                "arguments that the engine saw last."
            )
        # A Pyro engine holds its state itself, which has gone on; a NumPyro result has its own.
        now = getattr(self._ran.engine, "num_steps_taken", self._ran.number)
        if now != self._ran.number:
            raise ArgumentError(
                f"Expected the result of the engine's last run, found that of {self._ran.number:,} "
                f"steps, and the engine has taken {now:,} since: its draws are others now. Use the "
                "last result, or engine.get_samples()."
            )
        return self._ran

    def get_samples(self, num_samples: int | None = None, **options: Any) -> dict[str, Any]:
        """Posterior draws, as ``get_samples`` of the engine gives them."""
        if num_samples is not None:
            options["num_samples"] = num_samples
        engine = self.ran.engine
        # An engine that holds its state itself takes the number in the place of a state.
        held = hasattr(engine, "num_steps_taken")
        return engine.get_samples(*(() if held else (self,)), **options)

    def to_arviz(self, *args: Any, **options: Any) -> Any:
        """The draws as an ArviZ object, with the arguments of the run unless others are given.

        Parameters
        ----------
        *args, **options
            The model's arguments with all rows, where the run had batches; and options of the
            package's ``to_arviz``, such as ``num_samples=500`` or ``log_likelihood=False``.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree

        Raises
        ------
        ArgumentError
            Engine or arguments are gone.
        """
        ran = self.ran
        if not args and "batches" not in options:
            if ran.of_loader:
                raise ArgumentError(
                    "Expected the model's arguments, found none, of a run whose rows came from a "
                    "loader. Call result.to_arviz(*args) with all rows, or give batches=loader."
                )
            args, options = ran.args, {**ran.kwargs, **options}
        return self._to_arviz(ran.engine, self, *args, **options)

    @answers(OF_SUMMARY)
    def summary(
        self, sites: Sequence[str] | None = None, *, probability: float = 0.9
    ) -> pd.DataFrame:
        """Mean, standard deviation and interval, a row for each number.

        Parameters
        ----------
        sites : sequence of str, optional
            Default: all latent and deterministic sites.
        probability : float
            Of the interval, with the same on both sides of it.

        Returns
        -------
        pandas.DataFrame
            With the columns of ``fit.summary()``. What they tell of chains is not a number:
            nobody knows it of an engine's draws. ``check`` does.

        Raises
        ------
        ArgumentError
            There is no such site, or the probability is none.
        """

        def figures(row: str, column: Float[np.ndarray, " S"]) -> Sequence[float]:
            return float(column.mean()), float(column.std()), *_UNKNOWN

        return posterior.table(posterior.numbers_of(self._posterior()), sites, probability, figures)

    def _posterior(self) -> Any:
        return self.to_arviz(**posterior.POSTERIOR_ALONE)["posterior"]

    def predict(
        self,
        *args: Any,
        num_samples: int | None = None,
        seed: int = 0,
        return_sites: Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """New values of the observed sites, one for each draw: the posterior predictive.

        As the host's ``Predictive`` does, it also returns the deterministic sites at these rows,
        such as the mean of a regression, and new values of discrete latent sites. All values of
        one draw come from one run of the program. A discrete site that several observations of the
        run share, such as a change point, has values of its posterior.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments, with new rows. Default: those of the run.
        num_samples : int, optional
            Draws. Default: the engine's own number.
        seed : int
            Of the new values.
        return_sites : sequence of str, optional
            Names of the sites that are returned instead, latent ones among them.

        Returns
        -------
        dict of str to array (draws, *shape)
            By site, in the order of the program.

        Raises
        ------
        ArgumentError
            The result is a copy, or from a file, and has no engine; a Pyro engine has run again
            since; the run's rows came from a loader and none are given; or the arguments do not
            fit the model.
        """
        ran = self.ran
        if not args and not kwargs:
            if ran.of_loader:
                raise ArgumentError(
                    "Expected the model's arguments, found none, of a run whose rows came from a "
                    "loader. Call result.predict(*args) with the rows to predict."
                )
            args, kwargs = ran.args, dict(ran.kwargs)
        draws = self.get_samples(num_samples=num_samples)
        like = ran.args, ran.kwargs
        return self._predictions(ran.engine.model, draws, args, kwargs, seed, like, return_sites)

    def plot(self, kind: str = "posterior", **options: Any) -> Any:
        """A picture, by ArviZ.

        Parameters
        ----------
        kind : {"posterior", "trace", "forest", "pair", "predictive", "history"}
            As of a fit; "history" is the loss of each step.
        **options
            Of ArviZ's function, such as ``var_names=["mu"]``.

        Returns
        -------
        What ArviZ returns, or axes of "history".
        """
        check_choice("kind", kind, posterior.KINDS)
        if kind != "history":
            return posterior.picture(kind, self.to_arviz, options)
        from ppl_ext.diagnostics.plots import axes_or_new

        axes = axes_or_new(options.pop("ax", None))
        axes.plot(np.arange(1, len(self.losses) + 1), self.losses, **options)
        axes.set(xlabel="step", ylabel="loss")
        return axes

    def __getitem__(self, name: Any) -> Any:
        """Draws of a site, latent or deterministic, as NumPy's array; first axis = draws."""
        if isinstance(self, tuple) and not isinstance(name, str):
            return tuple.__getitem__(self, name)
        return posterior.variable(self._posterior(), name)

    def __getattr__(self, name: str) -> Any:
        sites: Sequence[str] = ()
        if not name.startswith("_") and self._ran is not None:
            sites = self._ran.engine.target.layout.names
        no_attribute(self, name, "result", _WORDS, sites)

    def __repr__(self) -> str:
        return run_text(self)

    def _repr_html_(self) -> str:
        return run_page(self)


def run_text(result: Any) -> str:
    """A run's result in one line: steps, loss, whether it has settled, and what was found."""
    losses = np.asarray(result.losses, float)
    parts = [f"{len(losses):,} steps"]
    if len(losses):
        parts.append(f"loss {losses[-1]:.4g} at the end")
    if result.settling is not None:
        parts.append("settled" if result.settled else f"not settled: {result.settling}")
    if result.judgement is not None and result.judgement.doubtful:
        parts.append("doubtful")
    return f"RunResult({', '.join(parts)})"


def run_table(result: Any) -> Table:
    """Loss and other figures of the first and of the last step."""
    figures = {"loss": result.losses, **result.info}
    rows = [
        (name, f"{float(values[0]):.4g}", f"{float(values[-1]):.4g}")
        for name, values in figures.items()
        if len(values)
    ]
    return Table(("figure", "first step", "last step"), rows)


def run_page(result: Any) -> str:
    """A run's result in a notebook."""
    judgement = result.judgement
    first, *others = ("",) if judgement is None else str(judgement).splitlines()
    return block(
        paragraph(run_text(result), bold=True),
        run_table(result).as_html(),
        paragraph(first) if first else "",
        listed([each.strip().removeprefix("- ") for each in others]),
    )
