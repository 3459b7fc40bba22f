"""What is refused of programs with discrete latent sites, in words of both packages.

A site with finitely many values is summed out of the density; the rest cannot be, and is told
before any work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_ext.errors import ModelCheckError
from ppl_ext.target.missing_rows import UNOBSERVED


class RowTerms(NamedTuple):
    """Log likelihood of observed sites together, by row.

    Parameters
    ----------
    values : array
        One for each row of the plates around the discrete sites.
    axes : dict of str to int
        Those plates, and their axes.
    sites : tuple of str
        The observed sites.
    """

    values: Any
    axes: dict[str, int]
    sites: tuple[str, ...]


def _named(sites: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sites)


def joined_name(sites: Sequence[str]) -> str:
    """One name for observed sites that share discrete sites: theirs, or of the first and last."""
    return ", ".join(sites if len(sites) < 4 else (sites[0], "...", sites[-1]))


def infinite_support_error(site: str, distribution: str) -> ModelCheckError:
    """A discrete latent site has infinitely many values.

    Parameters
    ----------
    site, distribution : str
        Its name, and its distribution's.
    """
    if site.endswith(UNOBSERVED):
        seen = site.removesuffix(UNOBSERVED)
        return ModelCheckError(
            f"Rows of '{seen}' that obs_mask leaves out are a latent site '{site}' for the host, "
            f"whose distribution {distribution} has no finite list of values to sum over. Expected "
            "the rows that are seen alone: they give the same posterior. Leave the others out, or "
            f"write `with handlers.mask(mask=seen): sample('{seen}', ..., obs=y)` in place of "
            "obs_mask=seen."
        )
    return ModelCheckError(
        f"Continuous inference cannot handle discrete sample site '{site}'. Its distribution "
        f"{distribution} has no finite list of values (has_enumerate_support is False), so it "
        "cannot be enumerated and summed out. Expected a discrete latent of finitely many values: "
        "truncate it to a Categorical whose logits are the log probabilities of 0, ..., n - 1, or "
        "sum it by hand, as dist.MixtureSameFamily does a mixture's assignment and "
        "dist.GammaPoisson a Poisson's rate, or use a continuous approximation."
    )


def joint_values_error(site: str) -> ModelCheckError:
    """A discrete latent site is declared one event of several entries.

    Parameters
    ----------
    site : str
    """
    return ModelCheckError(
        f"Discrete latent site '{site}' is one event of several entries (to_event), so that all "
        "combinations of their values would have to be summed. Expected entries that are summed "
        f"one by one: leave to_event out and write `with plate(...): sample('{site}', ...)`."
    )


def new_site_error(site: str) -> ModelCheckError:
    """A discrete site that arguments bring to a target without any."""
    return ModelCheckError(
        f"Expected no discrete latent sites, as in the first run of the model, found '{site}', "
        "which these arguments bring: its values would be drawn, and not summed out. Make a "
        "LogDensity with these arguments."
    )


def only_discrete_error(model: str, sites: Iterable[str]) -> ModelCheckError:
    """All latent sites are summed out, and none is left to infer.

    Parameters
    ----------
    model : str
        How the model is called.
    sites : iterable of str
    """
    return ModelCheckError(
        f"{model} found no latent variables beside the discrete ones ({_named(sites)}), which are "
        "summed out. Expected at least one continuous latent site that has entries; the posterior "
        "of the discrete sites alone is exact by the host's infer_discrete."
    )


def steering_error(sites: Iterable[str], where: str, text: str) -> ModelCheckError:
    """Python needs one value of a discrete latent site, which has all of them at once.

    Parameters
    ----------
    sites : iterable of str
        The program's discrete latent sites.
    where : str
        The host's function that chooses by an array.
    text : str
        What the host says.
    """
    return ModelCheckError(
        f"A discrete latent site (of {_named(sites)}) steers Python, by if, int() or a loop, and "
        "cannot be enumerated: all its values are there at once, as one array. Write the choice "
        f"with {where}, or by indexing an array with the site's value. The host says: {text}"
    )


#: Infer key of a value that stands in for an observation that is not there.
STANDS_IN = "_stands_in"
#: Discrete sites beyond which what is summed is not compared with one value each.
MOST_COMPARED = 200
#: How often values are drawn for the comparison: a few may agree by chance.
VALUES_COMPARED = 3


class SiteTerms(NamedTuple):
    """Log density of one site.

    Parameters
    ----------
    total : float
    size : float
        Sum of the absolute values of its terms, of which rounding is a share.
    """

    total: float
    size: float


def check_one_value_each(
    sites: Sequence[str],
    together: Mapping[str, float],
    each: Mapping[str, SiteTerms],
    epsilon: float,
) -> None:
    """See that a density is the same with all values of discrete sites at once as with one each.

    Parameters
    ----------
    sites : sequence of str
    together : mapping of str to float
        Log density of every site, at one value of each discrete one, from a run with all values.
    each : mapping of str to SiteTerms
        The same from a run with these values alone.
    epsilon : float
        Relative precision.

    Raises
    ------
    ModelCheckError
        It is another.
    """
    for name, (total, size) in each.items():
        found = together[name]
        # Half of the digits: two programs add the terms in other orders, and may have other
        # reductions.
        close = abs(found - total) <= math.sqrt(epsilon) * (1.0 + size)
        # Values that were drawn may be impossible, in both.
        if not (close or found == total or (math.isnan(found) and math.isnan(total))):
            raise mixed_places_error(
                sites, f"'{name}' has log density {found:.6g}, not {total:.6g}"
            )


def mixed_places_error(sites: Iterable[str], what: str) -> ModelCheckError:
    """The model says something else with all values of discrete sites at once.

    Parameters
    ----------
    sites : iterable of str
        The program's discrete latent sites.
    what : str
        What is another.
    """
    return ModelCheckError(
        f"The model says something else when discrete latent sites {_named(sites)} have all their "
        f"values at once than with one value each: {what}. All values of a site stand in a "
        "dimension of their own, the same in all places of a plate. Expected a value to be used in "
        "its own place: not a sum, a cumsum or a roll over the plate's dimension, nor a lookup "
        "z[..., group]. For rows of groups write a plate of the groups and in it a plate of their "
        "rows, padded to one length and masked."
    )


def check_places(
    sites: Iterable[str],
    site: str,
    values: Sequence[int],
    shape: Sequence[int],
    *,
    grows: bool = False,
) -> None:
    """See that values of discrete sites stand in the places of a site.

    Parameters
    ----------
    sites : iterable of str
        The program's discrete latent sites.
    site : str
    values, shape : sequence of int
        Shapes of the values, which may have ones to the left, and of the site.
    grows : bool
        Whether the site may have fewer places than the values.

    Raises
    ------
    ModelCheckError
        They do not.
    """
    try:
        both: Any = np.broadcast_shapes(tuple(values), tuple(shape))
    except ValueError:
        both = None
    own = (1,) * max(0, len(values) - len(shape)) + tuple(shape)
    if both is None or not (grows or both == own):
        what = f"'{site}' has shape {tuple(shape)}, values {tuple(values)}"
        raise mixed_places_error(sites, what)


def values_error(sites: Iterable[str], text: str) -> ModelCheckError:
    """The values of a discrete latent site cannot be listed.

    Parameters
    ----------
    sites : iterable of str
        Those that it may be.
    text : str
        What the host says.
    """
    said = text.rstrip(".")
    return ModelCheckError(
        f"The values of discrete latent site {_named(sites)} cannot be listed: {said}. Expected "
        "the same values in all places of its plate, whatever other sites are: write a Categorical "
        "over all of them, with log probability -inf for those that are not allowed in a place."
    )


#: Runs that tell which sites depend on another: it may count for some values of others alone.
DEPENDENCE_RUNS = 8
#: Values that are drawn until one differs; a site for which none does is said to matter.
VALUES_DRAWN = 50

#: Value and log density of every site with a distribution.
Run = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def dependents(
    site: str,
    missing: Sequence[str],
    values: Sequence[Mapping[str, Any]],
    run: Callable[[Mapping[str, Any], int], Run],
) -> set[str] | None:
    """Which sites have a log density that depends on the value of one without observations.

    Parameters
    ----------
    site : str
    missing : sequence of str
        Sites without values, this one among them.
    values : sequence of mapping of str to array
        Draws of the latent sites.
    run : callable
        From values of sites, and a seed of those that have none, to all sites' values and log
        densities.

    Returns
    -------
    set of str or None
        None where no other value of the site was drawn.
    """
    found: set[str] = set()
    differs = False
    for seed in range(DEPENDENCE_RUNS):
        at = values[seed % len(values)]
        drawn = run(at, seed)
        # Everything but the site stays as it was drawn, so that what differs below depends on the
        # site.
        at = {**at, **{name: drawn[name][0] for name in missing if name != site}}
        # Both from runs of one form: where values are drawn, densities may be rounded otherwise.
        one = run(at, seed)
        for draw in range(VALUES_DRAWN):
            two = run(at, seed + draw + 1)
            if not np.array_equal(one[site][0], two[site][0]):
                break
        else:
            continue
        differs = True
        found |= {
            name
            for name, (_, density) in one.items()
            if name != site and not np.array_equal(density, two[name][1], equal_nan=True)
        }
    return found if differs else None


def check_plated(site: str, shape: Sequence[int], plates: Sequence[Any]) -> None:
    """See that a discrete latent site has a plate around every dimension.

    Parameters
    ----------
    site : str
    shape : sequence of int
        Its batch shape.
    plates : sequence of frame
        The vectorized plates around it, each with its axis ``dim`` (negative).

    Raises
    ------
    ModelCheckError
        It has a dimension without.
    """
    axes = {frame.dim for frame in plates}
    if all(size == 1 or axis - len(shape) in axes for axis, size in enumerate(shape)):
        return
    raise ModelCheckError(
        f"Discrete latent site '{site}' has batch shape {tuple(shape)} and no plate around some of "
        "it, so that all combinations of its entries' values would have to be summed. Expected a "
        "plate around every dimension: `with plate(name, size): ...`."
    )


def enumeration_error(sites: Iterable[str], indexing: str, error: Exception) -> ModelCheckError:
    """The model runs with one value of each discrete site, and not with all of them.

    Parameters
    ----------
    sites : iterable of str
        The program's discrete latent sites.
    indexing : str
        How an array is indexed by a discrete site, in the host's way.
    error : Exception
        What the model says.
    """
    return ModelCheckError(
        f"The model fails when discrete latent sites {_named(sites)} have all their values at "
        "once: enumeration gives a site's value a dimension to the left of all plates. Expected "
        "a plate around every dimension of a discrete site, plates or to_event around those of "
        "others, a value used in its own place of a plate (no sum over the plate, no lookup "
        "z[group], no loop over its entries), and operations that broadcast: count dimensions "
        f"from the right, and index by {indexing}. "
        f"{type(error).__name__}: {str(error).strip()}"
    )


def support_error(site: str) -> ModelCheckError:
    """The support of a continuous site depends on a discrete latent site."""
    return ModelCheckError(
        f"The support of latent site '{site}' depends on a discrete latent site, so that one "
        "unconstrained value has another meaning for each of its values. Expected a support that "
        "does not: sample the site between 0 and 1 and scale it by where or by indexing."
    )


def shared_rows_error(sites: Iterable[str], plates: Iterable[str]) -> ModelCheckError:
    """A plate holds a batch of rows that share a discrete site.

    Parameters
    ----------
    sites : iterable of str
        Discrete sites outside of the plates.
    plates : iterable of str
        Plates whose rows they touch.
    """
    return ModelCheckError(
        f"Discrete latent site {_named(sites)} is shared by all rows of subsampled plate "
        f"{_named(plates)}, of which a batch cannot tell its values: the logarithm of a sum over "
        "them is no sum over rows. Expected a site inside that plate, or all rows: leave "
        "subsample_size out."
    )


def groups_of(names: Iterable[set[str]]) -> list[list[int]]:
    """Places of what has names in common, directly or through others, in order."""
    found: list[tuple[set[str], list[int]]] = []
    for place, own in enumerate(names):
        joined = [each for each in found if each[0] & own]
        found = [each for each in found if not each[0] & own]
        known = own.union(*(each[0] for each in joined))
        found.append((known, sorted([place, *(p for each in joined for p in each[1])])))
    return [places for _, places in found]


def check_curvature(sites: Sequence[str]) -> None:
    """See that no discrete site is summed out where distributions of observed sites are asked for.

    Parameters
    ----------
    sites : sequence of str
        The program's discrete latent sites.

    Raises
    ------
    ModelCheckError
        Some are.
    """
    if sites:
        raise ModelCheckError(
            f"Discrete latent sites {_named(sites)} are summed out, so that what is observed has "
            "no distribution of its own, whose Fisher information curvature needs. Expected none: "
            "write a mixture as dist.MixtureSameFamily, or use an engine that takes "
            "scores alone, such as SVGD, ProximalScoreVI, GSM, BaM or fit."
        )


class Missing:
    """Sites that are neither observed nor among the given names, as a model meets them.

    Attributes
    ----------
    missing : list of str
        Those sites, in the order in which they were met.
    finite : list of str
        Those of them with finitely many values, which may be discrete latent sites.
    """

    def __init__(self, given: Collection[str]) -> None:
        self.given = frozenset(given)
        self.missing: list[str] = []
        self.finite: list[str] = []

    def meets(self, site: Any, is_enumerated: Callable[[Any], bool]) -> bool:
        """Whether a site without a value is one of them, which is then kept."""
        name = site["name"]
        if name in self.given:
            return False
        if name not in self.missing:
            self.missing.append(name)
            if is_enumerated(site):
                self.finite.append(name)
        return True
