"""What ``fit`` of either package does, once it has its random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.batches.passes import Passes
from ppl_ext.fit.fit import TARGET_ESS, Fit, fit
from ppl_ext.fit.problem.engine import epoch_of
from ppl_ext.fit.problem.naming import Describe, named_ways, with_names
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.views import Names
from ppl_ext.fit.verdict.policy import guide_for

FIT_DOCUMENTATION = """
    The fit climbs only as far as it must. A search finds where the posterior has its mass, and
    Normals near its modes. Sites whose scale is latent are tried non-centred as well, by the
    host's own handlers. Draws of the Normals are corrected by importance weights. From these,
    Hamiltonian chains that leave the posterior exactly as it is run until they agree. What could
    not be reached is said by ``fit.verdict``, with reasons and advice.

    Parameters
    ----------
    $randomness
    model : callable
        $host program.
    *args, **kwargs
        Its arguments, with all rows.
    batches : iterable, optional
        All rows from a loader, in place of ``args``: tuples of the model's arguments, or mappings
        from their names, such as a ``DataLoader`` gives again and again. The model's plate scales
        a batch up to all rows. See the page "Rows from iterators".
    budget : int, optional
        Evaluations of the score at most; one for each position. Default: 300,000, with which an
        engine is bounded by ``seconds`` alone. A search takes some hundreds, corrected draws 1,000
        more, chains about 5,000 at least. What a smaller budget cannot buy is left out, and the
        verdict says so.
    seconds : float, optional
        Wall time at most, about. Default: 600.
    target_ess : float
        Effective draws that the worst entry of a site must have, for its mean.
    target_sd_error : float, optional
        Standard error of every standard deviation, as a share of it, for which chains go on, such
        as 0.03. Default: the verdict states the errors, and nothing is run for them.
    exact : bool
        Whether chains may run. Without them the best level is "corrected".
    guide : $guide, optional
        Fit this guide by ``ProximalScoreVI``. The draws are then the guide's, judged by chains
        where these can run.
    engine : $engine, class or str, optional
        Likewise an engine of this package with the same model, such as ``SVGD(model, optim)``,
        which runs until it has settled. A class, or its name such as "SVGD", is made with its
        defaults, and with Adam at 0.05 where it needs an optimiser.
    judge : {"sites", "outputs"}, optional
        What chains have to agree in: latent sites, or the outputs of a network at its rows, which
        are the parameters of the observed distributions. Default: outputs, where ``random_module``
        or the host's own random modules draw weights and rows are arguments. See the page
        "Networks as programs".
    held_out : tuple or mapping, optional
        The model's arguments with rows that are not fitted, such as ``(x_test, y_test)``, at which
        outputs are judged as well. Where these rows are calibrated, chains need not be adjusted.
    progress_bar : bool
        Show what is done and what is found.
    sharding : Sharding, optional
        How chains, other positions and rows are split over devices; of an engine that the fit
        makes, the rows. An engine that is given has its own.
    dims : mapping of str to sequence of str, optional
        Names of the axes of a variable, without chain and draw, for ``summary``, ``plot`` and
        ``to_arviz`` of the fit. Default: the plates' names. See the page "Names and labels".
    coords : mapping of str to sequence, optional
        Labels along an axis.

    Returns
    -------
    Fit
        ``draws``, equally weighted, and ``verdict``: "exact", "corrected", "approximate" or
        "not trusted".

    Raises
    ------
    ModelCheckError
        The model cannot be fitted, or no starting point has a finite density and score.
    ArgumentError
        An option or the arguments have no meaning for the model, or the budget ended before there
        was a start.

    References
    ----------
    The search: L. Zhang, B. Carpenter, A. Gelman and A. Vehtari, "Pathfinder: Parallel
    quasi-Newton variational inference" (2022). R-hat: A. Vehtari and others, "Rank-normalization,
    folding, and localization" (2021). Non-centred sites: M. Gorinova, D. Moore and M. Hoffman,
    "Automatic reparameterisation of probabilistic programs" (2020).
"""


class Asked(NamedTuple):
    """What is asked of a fit, as the packages' ``fit`` describes it."""

    budget: int | None
    seconds: float | None
    target_ess: float
    exact: bool
    progress_bar: bool = False
    target_sd_error: float | None = None
    judge: str | None = None
    held_out: Any = None


#: What is asked where nobody says.
UNASKED = Asked(None, None, TARGET_ESS, exact=True)


class Named(NamedTuple):
    """An engine or a guide that a user names, and what makes one where none is.

    Attributes
    ----------
    engine, guide
        What the user names, or None.
    guides : module
        The host's guides, by name.
    made : callable
        The engine of a program, a guide, and the number of steps in which it sees all rows, or None
        where it sees them in each.
    """

    engine: Any
    guide: Any
    guides: Any
    made: Callable[[Callable[..., Any], Any, int | None], Any]

    def of_program(self, program: Callable[..., Any], target: Any) -> Any:
        """The engine that fits a program, or None where none can."""
        if self.engine is not None or target.local_sites:
            return self.engine  # guides have no local latents
        guide = self.guide or getattr(self.guides, guide_for(target.dim))
        return self.made(program, guide, epoch_of(target.plates) if target.plates else None)


def fit_program(
    ways_of: Callable[..., Any],
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    random: tuple[np.random.Generator, int],
    asked: Asked,
    named: Named,
    passes: Passes | None,
    names: Names,
    describe: Describe,
    sharding: Any,
) -> Fit:
    """Fit a program with these arguments; see the packages' ``fit``.

    ``random`` are a generator and the seed of what else is drawn, and ``describe`` tells the sites
    of a program, against which names are held.
    """
    own = partial(ways_of, engine_of=named.of_program, sharding=sharding, names=names)
    ways = with_names(own, describe)

    def problems() -> Iterator[Problem]:
        found = named_ways(own(*call, *random[::-1], passes=passes), describe, refuses=True)
        # An engine that is named has the program as it is written: chains alone take other ways.
        return found if named.engine is None or asked.exact else islice(found, 1)

    return fit(
        problems,
        *random,
        has_engine=named.guide is not None or named.engine is not None,
        clock=time.perf_counter if sharding is None else sharding.clock,
        again=ways if passes is None else None,
        **asked._asdict(),
    )
