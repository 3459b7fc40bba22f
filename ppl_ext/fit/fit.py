"""A fit: draws of a program's posterior, with the verdict on them."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from tqdm.auto import tqdm

from ppl_ext.arguments import entry
from ppl_ext.chains.sampler import go_on
from ppl_ext.chains.symmetry import ordered_values
from ppl_ext.diagnostics.fit import evenly_spaced, of_each_chain
from ppl_ext.diagnostics.habits import OF_DRAWS, OF_MORE, OF_SUMMARY, answers, no_attribute
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after.bound import check_density
from ppl_ext.fit.after.evidence import LogEvidence, log_evidence
from ppl_ext.fit.after.looks import (
    as_arviz,
    check_options,
    fit_page,
    plot,
    predicted,
    summary,
    values_of,
)
from ppl_ext.fit.after.refit import Reweighted, refitted
from ppl_ext.fit.after.saved import as_tree, names_as_tree, names_from_tree, symmetry_from_tree
from ppl_ext.fit.ladder.climbed import Climbed, staged
from ppl_ext.fit.ladder.ladder import climb, with_chains
from ppl_ext.fit.networks import networks, outputs
from ppl_ext.fit.problem.naming import names_of, told_with_labels, with_labels
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.problem.views import Names, Views
from ppl_ext.fit.verdict import facts, levels
from ppl_ext.fit.verdict.comparison import compared, flat_columns
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.fit.verdict.verdict import Stage, Verdict
from ppl_ext.networks.random_module import watched
from ppl_ext.options import check_choice, check_count, check_number, is_count
from ppl_ext.process import between_steps
from ppl_ext.running import state_files
from ppl_ext.start.paths import SpentError

if TYPE_CHECKING:
    import pandas as pd

#: Score evaluations that a fit may take unless told otherwise.
BUDGET = 300_000
#: Seconds likewise.
SECONDS = 600.0
#: Evaluations that ``more`` may take where no budget is given: nobody reaches so many.
NO_BUDGET = 2**62
#: Effective draws that are wanted unless told otherwise.
TARGET_ESS = 400
#: Makes the problems of a program for other arguments, from these, a seed and a generator.
Again = Callable[..., Iterator[Problem]]
#: Number from which, with a fit's own seed, the seed of its refits is made.
SEED = 46
#: What users of other libraries type next of a fit, and what to type here.
WORDS = OF_DRAWS | {
    **dict.fromkeys(("trusted", "level", "reasons", "headline"), "fit.verdict.{name}"),
    **dict.fromkeys(("r_hat", "rhat", "ess"), "fit.summary(), which has a column of it"),
    **dict.fromkeys(
        ("evidence", "marginal_likelihood", "log_marginal_likelihood"), "fit.log_evidence"
    ),
    **dict.fromkeys(("resume", "extend", "continue_", "go_on"), "fit.more(1000)"),
    **dict.fromkeys(("update", "fit"), "fit.refit(*args), with all arguments of the model"),
    **dict.fromkeys(("losses", "seconds"), "fit.history"),
    **dict.fromkeys(("to_netcdf", "to_json"), "fit.save(path), or fit.to_arviz().{name}(path)"),
}


class Fit:
    """Draws of a program's posterior, and what they are worth.

    Attributes
    ----------
    draws : dict of str to array
        Latent site to constrained values, equally weighted, first axis = draws.
    verdict : Verdict
        The level, the reasons, figures by site and the cost; ``print(fit.verdict)``.
    num_chains : int
        Chains that the draws are of, one after the other; 1 for independent draws.

    Examples
    --------
    >>> import numpy as np
    >>> draws = {"mean": np.array([1.0, 2.0, 3.0])}
    >>> verdict = Verdict("corrected", ("The weights are even.",))
    >>> found = Fit(draws, verdict, num_chains=1)  # as the function fit gives it
    >>> print(found.verdict.level, found.get_samples()["mean"].mean())
    corrected 2.0
    """

    def __init__(
        self,
        draws: dict[str, Any],
        verdict: Verdict,
        num_chains: int,
        climbed: Climbed | None = None,
        generator: np.random.Generator | None = None,
        seed: int = 0,
        unbound: Mapping[str, Any] | None = None,
        again: Again | None = None,
    ) -> None:
        self.draws, self.verdict, self.num_chains = draws, verdict, num_chains
        self._climbed, self._generator, self._seed = climbed, generator, seed
        # The digest of the data as they were fitted.
        self._arguments = "" if climbed is None else climbed.problem.digest()
        # What else a file had that was read without its program, to be saved again.
        self._unbound = unbound
        self._names = names_from_tree((unbound or {}).get("names", {}))
        symmetry = climbed.symmetry if climbed else symmetry_from_tree(unbound)
        # Labels that can be exchanged, which a fit knows without its program as well.
        self._exchanges = () if symmetry is None else symmetry.as_written
        self._again = again
        self._log_evidence: LogEvidence | None = None

    @classmethod
    def of(
        cls,
        climbed: Climbed,
        generator: np.random.Generator,
        seed: int,
        again: Again | None = None,
    ) -> Fit:
        """What a climb ended with."""
        draws, chains = climbed.draws, climbed.positions.shape[1]
        correction = climbed.evidence.correction
        share = 1.0 if chains > 1 or correction is None else correction.share
        judged = climbed.ordered(draws)
        sites = {
            name: site_figures(name, np.asarray(judged[name]), chains, share) for name in draws
        }
        labels = names_of(climbed.problem).labels
        verdict = replace(
            climbed.verdict,
            reasons=told_with_labels(climbed.verdict.reasons, labels),
            by_site=with_labels(sites, labels),
            num_chains=chains if chains > 1 else 0,
        )
        verdict = climbed.problem.observed.judged(verdict)
        return cls(draws, verdict, chains, climbed, generator, seed, again=again)

    @classmethod
    def of_network(
        cls,
        climbed: networks.Networked,
        verdict: Verdict,
        generator: np.random.Generator,
        seed: int,
        again: Again | None,
    ) -> Fit:
        """What the chains of a network ended with."""
        return cls(
            climbed.draws, verdict, verdict.num_chains, climbed, generator, seed, again=again
        )

    @property
    def ordered_draws(self) -> dict[str, Any]:
        """The draws with labels that can be exchanged in order, for figures of single labels.

        The same as ``draws`` where there are no such labels; the verdict names the site whose
        values order them. Sorting is done draw by draw, so that what depends on no label is kept.
        """
        if not self._exchanges:
            return dict(self.draws)
        return ordered_values(self._exchanges, {name: values_of(self, name) for name in self.draws})

    @property
    def history(self) -> tuple[Stage, ...]:
        """What was done, in order, and what it cost."""
        return self.verdict.cost

    @property
    def target(self) -> Any:
        """The log density of the program as it is written."""
        return self.climbed.problem.target

    @property
    def has_program(self) -> bool:
        """Whether the fit has its program: not when it was loaded without."""
        return self._climbed is not None

    @property
    def climbed(self) -> Climbed:
        """Where the fit ended, with its program.

        Raises
        ------
        ArgumentError
            The fit was loaded without its program.
        """
        if self._climbed is None:
            raise ArgumentError(
                "Expected a fit with its program, found one that was loaded without. Give "
                "load_fit(path, model, *args) the model and its arguments."
            )
        return self._climbed

    @property
    @between_steps()
    def log_evidence(self) -> LogEvidence:
        """Log of the evidence of the program with these data, in nats, with its error.

        The integral of the density as written: observed sites and factors with all their
        constants, discrete sites summed out. It takes some 1,500 evaluations when it is first asked
        for. ``value`` is None, with the ``reason``, where draws are not trusted or a prior is
        improper.

        Raises
        ------
        ArgumentError
            The fit was loaded without its program, or it or its data were changed since.
        """
        if self._log_evidence is None:
            self.check_data()
            self._log_evidence = log_evidence(self.climbed, self.verdict, self._seed)
        return self._log_evidence

    @property
    def labels(self) -> Mapping[str, Sequence[Sequence[Any]]]:
        """Of each site the labels along its axes, where ``dims`` or ``coords`` were given."""
        return self._axis_names.labels

    @property
    def _axis_names(self) -> Names:
        return self._names if self._climbed is None else names_of(self._climbed.problem)

    @property
    def views(self) -> Views | None:
        """The arguments that were fitted, and how the package looks at the program.

        Raises
        ------
        ArgumentError
            The fit was loaded without its program.
        """
        return self.climbed.problem.views

    def __getitem__(self, name: str) -> np.ndarray:
        """Draws of a site, latent or deterministic, as NumPy's array; first axis = draws."""
        return values_of(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.draws

    def __iter__(self) -> Iterator[str]:
        return iter(self.draws)

    def __getattr__(self, name: str) -> NoReturn:
        no_attribute(self, name, "fit", WORDS, vars(self).get("draws", ()))

    def __copy__(self) -> Fit:
        return self._with(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Fit:
        return self._with(copy.deepcopy(vars(self), memo))

    def _with(self, attributes: Mapping[str, Any]) -> Fit:
        made = type(self).__new__(type(self))
        vars(made).update(attributes)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its program, as ``load_fit(path)`` reads it, with its labels."""
        draws = {name: values_of(self, name) for name in self.draws}
        parts = draws, self.verdict, self.num_chains
        return type(self), parts, {"_names": self._axis_names, "_exchanges": self._exchanges}

    @answers(OF_SUMMARY)
    def summary(
        self, sites: Sequence[str] | None = None, *, probability: float = 0.9
    ) -> pd.DataFrame:
        """Mean, standard deviation, interval and what they are worth, a row for each number.

        Rows are named as ArviZ names them, by the labels of ``coords``: ``theta[Choate]``. Labels
        that can be exchanged are in order.

        Parameters
        ----------
        sites : sequence of str, optional
            Default: all latent and deterministic sites; of a fit that was loaded without its
            program those that were saved.
        probability : float
            Of the interval, with the same on both sides of it.

        Returns
        -------
        pandas.DataFrame
            With the columns mean, sd, two quantiles such as ``5%`` and ``95%``, mcse_mean and
            mcse_sd (standard errors; not a number where the draws are not trusted), ess_bulk,
            ess_tail and r_hat (not a number without chains).

        Raises
        ------
        ArgumentError
            There is no such site, or the probability is none.
        """
        return summary(self, sites, probability)

    def to_arviz(self, *args: Any, **options: Any) -> Any:
        """The draws as an ArviZ object, with the arguments, ``dims`` and ``coords`` of the fit.

        Parameters
        ----------
        *args
            None: the arguments are those of the fit.
        **options
            Of the package's ``to_arviz``, such as ``num_samples=500`` or ``log_likelihood=False``.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree

        Raises
        ------
        ArgumentError
            The fit was loaded without its program, or it or its data were changed since; or
            other arguments were given.
        """
        check_options(self, args, options)
        return as_arviz(self, **options)

    def predict(
        self,
        *args: Any,
        num_samples: int | None = None,
        seed: int = 0,
        return_sites: Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """New values of the observed sites, one for each draw: the posterior predictive.

        As the host's ``Predictive`` does, it returns beside them the deterministic sites at these
        rows, such as the mean that a program computes of them, and new values of discrete latent
        sites, each draw's from one run of the program. A discrete site that several of the fitted
        observations share, such as a change point, has values of its posterior.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments, with new rows. Observations among them are not looked at; those
            that are left out have to be None in the model. Where some sites are left without, as
            beside what the model conditions on itself, the others keep their values, as with the
            host's ``Predictive``. Default: the arguments of the fit.
        num_samples : int, optional
            So many draws, evenly spaced. Default: all.
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
            The fit was loaded without its program, the arguments do not fit it, or, without
            arguments, program or data were changed since.
        """
        return predicted(
            self, args, kwargs, num_samples=num_samples, seed=seed, return_sites=return_sites
        )

    def plot(self, kind: str = "posterior", **options: Any) -> Any:
        """A picture, by ArviZ.

        Parameters
        ----------
        kind : {"posterior", "trace", "forest", "pair", "predictive", "history"}
            Marginals; draws in their order; intervals side by side; pairs of sites; the data
            beside what is predicted of them; what each stage of the fit cost.
        **options
            Of ArviZ's function, such as ``var_names=["mu"]``.

        Returns
        -------
        What ArviZ returns, or axes of "history".

        Raises
        ------
        ArgumentError
            There is no such kind, or the fit was loaded without its program.
        """
        return plot(self, kind, options)

    def get_samples(
        self,
        *given: Any,
        num_samples: int | None = None,
        group_by_chain: bool = False,
        **__: Any,
    ) -> dict[str, Any]:
        """The draws, see ``draws``, or so many of them, evenly spaced.

        Both may be given without their names. ``group_by_chain`` gives draws with an axis of chains
        in front, as the hosts' ``MCMC`` does, and as many of each.

        Raises
        ------
        ArgumentError
            There are fewer.
        """
        if num_samples is None:
            num_samples = next((each for each in given if is_count(each)), None)
        group_by_chain = next((each for each in given if isinstance(each, bool)), group_by_chain)
        check_choice("group_by_chain", group_by_chain, (True, False))
        number, chains = len(next(iter(self.draws.values()))), self.num_chains
        more = "fit.more(number) makes further draws."
        if group_by_chain:
            num_samples = of_each_chain(num_samples, chains)
        rows = evenly_spaced(number, num_samples, more)
        draws = self.draws
        if rows is not None:
            draws = {name: value[rows] for name, value in draws.items()}
        if group_by_chain:
            each = (number if rows is None else len(rows)) // chains
            draws = {n: v.reshape((chains, each, *v.shape[1:])) for n, v in draws.items()}
        return draws

    def arviz_attributes(self) -> dict[str, Any]:
        """Attributes for ArviZ: the kind of draws, and the verdict."""
        kind = "MCMC draws" if self.num_chains > 1 else "independent draws"
        return {"sample_kind": kind, **self.verdict.attributes()}

    @answers(OF_MORE)
    @between_steps()
    def more(
        self,
        num_draws: int,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        progress_bar: bool = True,
    ) -> Fit:
        """So many further draws of the chains, and the verdict on all; returns the fit itself.

        Parameters
        ----------
        num_draws : int
            Fewer are made where the budget or the time ends before.
        budget : int, optional
            Evaluations of the score at most, about. Default: what the draws take.
        seconds : float, optional
            Wall time at most, about. Default: what the draws take.
        progress_bar : bool
            Show what is done.

        Raises
        ------
        ArgumentError
            The fit has no chains to go on with, or its data were changed since. The fit is as it
            was then, as after any other exception.
        """
        check_count("num_draws", num_draws)
        check_count("budget", budget, optional=True)
        check_number("seconds", seconds, optional=True)
        check_choice("progress_bar", progress_bar, (True, False))
        climbed, generator = self.climbed, self._generator
        is_network = isinstance(climbed, networks.Networked)
        if generator is None or not (is_network or climbed.sampled):
            advice = "Fit again with exact=True and a larger budget= or seconds=."
            if self._again is None and "engine" in {stage.name for stage in climbed.stages}:
                advice = "An engine or guide made its draws: fit without engine= and guide=."
            if isinstance(climbed, Reweighted):
                advice = "Give refit a larger target_ess."
            if self.verdict.of_outputs:
                advice = "Files do not have the chains of networks. Fit again."
            raise ArgumentError(
                f"Expected a fit with chains, found one that ended {self.verdict.level!r} without. "
                f"{advice}"
            )
        self.check_data()
        counted = [climbed.problem.evaluate]
        if climbed.problem.minibatches is not None:
            counted.append(climbed.problem.minibatches.evaluate)
        before = generator.bit_generator.state, [each.calls for each in counted]
        try:
            with tqdm(
                desc="sampling further", unit=" evaluations", disable=not progress_bar
            ) as bar:
                meter = Meter(budget or NO_BUDGET, seconds or math.inf, bar)
                made_anew = self._further(
                    climbed, generator, -(-num_draws // self.num_chains), meter
                )
                ends(bar, made_anew.verdict)
        except BaseException:
            generator.bit_generator.state = before[0]
            for each, calls in zip(counted, before[1], strict=True):
                each.calls = calls
            raise
        vars(self).update(vars(made_anew))
        return self

    def _further(
        self, climbed: Climbed, generator: np.random.Generator, wanted: int, meter: Meter
    ) -> Fit:
        """A fit with so many further draws of each chain."""
        if isinstance(climbed, networks.Networked):
            return Fit.of_network(
                *networks.further(climbed, wanted, meter), generator, self._seed, self._again
            )
        problem, sampled = climbed.problem, climbed.sampled
        assert sampled is not None
        kernel = replace(sampled.kernel, evaluate=meter.of(problem.evaluate))
        calls = problem.evaluate.calls
        try:
            check_density(problem, sampled.chains, kernel.evaluate)
        except SpentError:
            raise ArgumentError(
                f"Expected a budget of {self.num_chains} at least, an evaluation for each chain, "
                f"found budget={meter.budget}."
            ) from None
        problem.evaluate.calls = calls
        longer = go_on(replace(sampled, kernel=kernel), wanted, generator, meter.allows)
        made = len(longer.draws) - len(sampled.draws)
        note = "" if made == wanted else f"{made} of {wanted} draws of each chain"
        found = with_chains(climbed, longer)
        found.stages.append(Stage("more chains", meter.evaluations, meter.elapsed, note))
        return Fit.of(found, generator, self._seed, self._again)

    @entry
    def refit(
        self,
        *args: Any,
        budget: int | None = None,
        seconds: float | None = None,
        target_ess: float = TARGET_ESS,
        progress_bar: bool = True,
        **kwargs: Any,
    ) -> Fit:
        """Fit the same program to other arguments, such as more rows, from what this fit knows.

        The draws are reweighted to the new posterior. Where the weights are too uneven, a Normal
        or a mixture is fitted to them, and its draws are reweighted. Where that does not reach,
        where there are other latent sites, where labels can be exchanged, or where this fit is not
        trusted, the program is fitted from anew. Some paths look for modes that the draws lack in
        any case. The stage "refit" of ``history`` says which way was taken, and so do the verdict's
        reasons. Of a network the chains go on from where they are, and are tuned and judged anew,
        with the rows that this fit has held out. Files have neither: a network is fitted from anew
        then, without such rows.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments, all of them, with all rows.
        budget, seconds, target_ess, progress_bar
            As in ``fit``. Reweighted draws are worth as many as these are, or more than three
            quarters.

        Returns
        -------
        Fit
            Another one, with its own verdict: "corrected" where draws were reweighted. This fit
            stays as it is.

        Raises
        ------
        ArgumentError
            The fit was loaded without its program, has its rows from a loader, or is an engine's;
            or as ``fit`` raises it.
        ModelCheckError
            The model cannot be fitted to these arguments.
        """
        again = self._again
        if again is None:
            _ = self.climbed
            raise ArgumentError(
                "Expected a fit of arguments by chains, found one of a loader or an engine. "
                "Fit again."
            )
        seed = int(np.random.default_rng((SEED, self._seed)).integers(2**31))
        generator = np.random.default_rng(seed)
        return fit(
            lambda: again(args, kwargs, seed, generator),
            generator,
            seed,
            budget=budget,
            seconds=seconds,
            target_ess=target_ess,
            exact=True,
            progress_bar=progress_bar,
            again=again,
            known=self,
        )

    def _why_not(self) -> str:
        """Why the draws serve no other fit; empty where they may."""
        if not self.verdict.trusted:
            return "its draws are not trusted"
        return self._what_changed()

    def _what_changed(self) -> str:
        """What of the program is not as it was fitted; empty where all is."""
        if self.climbed.problem.digest() != self._arguments:
            return "its data were changed in place since"
        if not self.has_same_program():
            return (
                "what its program reads beside its arguments, or the precision, was changed since"
            )
        return ""

    def has_same_program(self) -> bool:
        """Whether the program computes what it did, given the arguments of the fit."""
        problem = self.climbed.problem
        try:
            return bool(problem.own.follows(problem.data))
        except Exception:  # noqa: BLE001 - the model is run, whose errors may be of any class.
            return False

    def check_data(self) -> None:
        """See that program and arguments are what they were when they were fitted.

        Raises
        ------
        ArgumentError
            They were changed, or the fit was loaded without its program.
        """
        if changed := self._what_changed():
            raise ArgumentError(
                f"Expected the program and the data that were fitted, found that {changed}. Fit "
                "again, or give the model a copy of data that are to change, as an argument."
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save all that the fit has but its program; the file is complete or absent.

        Draws and verdict, and the chains with their tuned kernel and generator: :func:`load_fit`
        gives them back, to go on with ``more`` where it gets the program as well.

        Raises
        ------
        ArgumentError
            No file can be written there, as where its folder is missing.
        """
        draws = {name: np.asarray(value) for name, value in self.draws.items()}
        state = {
            "draws": draws,
            # Generated quantities of Stan programs may be NaN in some draws.
            "gaps": [name for name, value in draws.items() if not np.isfinite(value).all()],
            "num_chains": self.num_chains,
            "verdict": self.verdict.as_json(),
            "rest": self._rest(),
        }
        header = {"engine": "fit", "settings": {}, "tuning": {}, "sites": list(self.draws)}
        state_files.save(path, header, state, lambda array: (np.asarray(array), {}))

    def _rest(self) -> Mapping[str, Any]:
        """What a fit with its program has beside draws and verdict."""
        if self._unbound is not None:
            return self._unbound
        climbed, generator = self.climbed, self._generator
        assert generator is not None
        sampled = climbed.sampled
        return {
            "way": climbed.problem.name,
            "entry_data": dict(climbed.problem.entry_data),
            "arguments": self._arguments,
            "calls": climbed.problem.evaluate.calls,
            "seed": self._seed,
            "generator": dict(generator.bit_generator.state),
            "sampled": as_tree(sampled),
            "positions": climbed.positions if sampled is None else None,
            "symmetry": as_tree(climbed.symmetry),
            "evidence": as_tree(climbed.evidence),
            "stages": as_tree(climbed.stages),
            "names": names_as_tree(names_of(climbed.problem)),
        }

    def __repr__(self) -> str:
        number = len(next(iter(self.draws.values())))
        return f"Fit({number} draws, {self.verdict.level})"

    def _repr_html_(self) -> str:
        return fit_page(self)


def fit(
    problems: Callable[[], Iterator[Problem]],
    generator: np.random.Generator,
    seed: int,
    *,
    budget: int | None,
    seconds: float | None,
    target_ess: float,
    target_sd_error: float | None = None,
    exact: bool,
    progress_bar: bool,
    has_engine: bool = False,
    judge: str | None = None,
    held_out: Any = None,
    clock: Callable[[], float] = time.perf_counter,
    again: Again | None = None,
    known: Fit | None = None,
) -> Fit:
    """Fit a program: networks by their outputs, all others by the ladder.

    Parameters
    ----------
    problems : callable
        Makes the ways to write the program, as written first.
    generator : numpy.random.Generator
    seed : int
    budget, seconds, target_ess, target_sd_error, exact, progress_bar, judge, held_out
        As in the packages' ``fit``.
    has_engine : bool
        Whether the draws are to be those of the problems' own engine.
    clock : callable
        Seconds, by one clock where several processes have to decide alike.
    again : callable, optional
        An :data:`Again`, for the fit's ``refit``.
    known : Fit, optional
        A fit to other arguments, from which a refit starts.

    Raises
    ------
    ArgumentError, ModelCheckError
        As in the packages' ``fit``.
    """
    check_count("budget", budget, optional=True)
    check_number("seconds", seconds, optional=True)
    check_number("target_ess", target_ess)
    check_number("target_sd_error", target_sd_error, optional=True)
    for name, flag in (("exact", exact), ("progress_bar", progress_bar)):
        check_choice(name, flag, (True, False))
    check_choice("judge", judge, (None, "sites", "outputs"))
    rows = outputs.held_out_arguments(held_out)
    if has_engine and (judge == "outputs" or rows is not None):
        raise ArgumentError(
            "Expected judge='outputs' and held_out without guide and engine, whose draws are "
            "judged by chains, found them with one."
        )
    with tqdm(desc="fit", unit=" evaluations", disable=not progress_bar) as bar:
        # Where the user sets no budget an engine, whose steps cost little, has the seconds alone.
        for_engines = math.inf if budget is None else budget
        meter = Meter(
            budget or BUDGET, seconds or SECONDS, bar, for_engines=for_engines, clock=clock
        )
        wanted = facts.Wanted(float(target_ess), exact, meter.seconds, has_engine, target_sd_error)
        ways = problems()
        with watched() as modules:  # A model that draws a module's weights is a network.
            written = next(ways)
        written.observed.warn()
        why = "" if known is None else known._why_not()
        before = None
        if known is not None and known.verdict.of_outputs:
            judge = "outputs"
            if isinstance(known.climbed, networks.Networked):
                before, rows = known.climbed, known.climbed.outputs.rows.get("held out")
            else:
                why = "files have neither its chains nor the rows that it held out"
        of_rows = None
        if known is None or judge == "outputs":
            of_rows = outputs.outputs_of(
                written,
                judge,
                rows,
                is_network=bool(modules) and not has_engine,
                seconds=meter.seconds,
                clock=clock,
            )
        if of_rows is not None:
            ended = networks.sampled(of_rows, generator, wanted, meter, before, why)
            ends(bar, ended[1])
            return Fit.of_network(*ended, generator, seed, again)
        if known is None:
            climbed = climb(written, ways, generator, wanted, meter)
        else:
            climbed = refitted(known.climbed, why, written, ways, generator, wanted, meter)
        found = Fit.of(climbed, generator, seed, None if has_engine else again)
        if has_engine and found.num_chains > 1:
            found = _of_engine(written, found, meter)
        ends(bar, found.verdict)
    return found


def ends(bar: Any, verdict: Verdict) -> None:
    """Let a bar say how a fit ended: what its draws are worth, or why they are not trusted."""
    bar.set_description_str(verdict.level)
    told, worst = "", verdict.worst
    if not verdict.trusted:
        told = next(iter(verdict.findings), "")
    elif worst is not None:
        told = f"ESS {worst.ess_bulk:,.0f}"
    bar.set_postfix_str(told)


def _of_engine(problem: Problem, reference: Fit, meter: Meter) -> Fit:
    """A fit with the draws of a problem's engine, judged by those of chains, the ``reference``."""
    assert problem.approximate is not None
    climbed = reference.climbed
    with staged(climbed.stages, meter, "engine") as notes:
        given = problem.approximate(None, meter)
        notes.append(given.name)
    draws = problem.values(given.positions)
    shapes = {name: np.shape(value)[1:] for name, value in reference.draws.items()}
    theirs = flat_columns(reference.ordered_draws, shapes, reference.num_chains)
    found = compared(flat_columns(climbed.ordered(draws), shapes), theirs, problem.dim)
    level, reasons = levels.judge_engine(
        given.engine, climbed.verdict, found.wrong, found.dependent
    )
    unsure = (found.unsure,) if level == "approximate" and found.unsure else ()
    labels = names_of(problem).labels
    verdict = Verdict(
        level,
        told_with_labels((*reasons, *unsure, found.worst.told), labels),
        with_labels(found.by_site, labels),
        tuple(climbed.stages),
        confirmed=level == "approximate" and not unsure,
    )
    verdict = problem.observed.judged(verdict)
    climbed = replace(climbed, problem=problem, positions=given.positions[:, None], sampled=None)
    return Fit(draws, verdict, 1, climbed, reference._generator, reference._seed)
