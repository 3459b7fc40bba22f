"""Maps from unconstrained values, and the comparison of both hosts with a plain log density.

Plain densities are written for one point at a time in NumPy and SciPy, with loops where a sum is
meant, so that they have nothing in common with the programs that they check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.benchmarks.posteriordb import checks

Point = dict[str, Any]
Density = Callable[[Point, Point], float]
#: A value and the logarithm of how much the map to it stretches.
Mapped = tuple[Any, float]


def positive(u: Any) -> Mapped:
    """Positive values, by the exponential."""
    return np.exp(u), float(np.sum(u))


def share(u: Any) -> Mapped:
    """A value in (0, 1), by the logistic function."""
    value = 1.0 / (1.0 + np.exp(-u))
    return value, float(np.log(value) + np.log1p(-value))


def pair_of_shares(u: Any) -> Mapped:
    """Two probabilities that sum to one, from a vector of length one."""
    first, stretch = share(u[0])
    return np.array([first, 1.0 - first]), stretch


def increasing_pair(u: Any) -> Mapped:
    """Two increasing values: the first one, and the logarithm of what the second has more."""
    return np.array([u[0], u[0] + np.exp(u[1])]), float(u[1])


def positive_increasing_pair(u: Any) -> Mapped:
    """Two positive increasing values, whose logarithms are an increasing pair."""
    logs, stretch = increasing_pair(u)
    return np.exp(logs), stretch + float(logs.sum())


def positions(
    native: checks.Native, count: int, centre: Mapping[str, Any], spread: float
) -> np.ndarray:
    """Positions (count, D) around unconstrained values `centre` by site, zero where not given."""
    middle = {
        name: np.broadcast_to(np.asarray(centre.get(name, 0.0), float), (1, *native.shapes[name]))
        for name in native.names
    }
    return checks.joined(native, middle) + checks.random_positions(native, count, spread=spread)


def density_is(
    plain: Density,
    where: str,
    name: str,
    tolerance: float,
    *,
    centre: Mapping[str, Any] | None = None,
    spread: float = 0.5,
    agreement: float = 1e-11,
) -> None:
    """Assert that both hosts' programs have a plain log density but for a constant.

    Parameters
    ----------
    plain : callable
        `plain(point, data)`: log density of unconstrained values by site, Jacobians included.
    where, name : str
        Database and posterior.
    tolerance : float
        Accepted range of the difference, relative to the largest absolute log density.
    centre : mapping, optional
        Unconstrained values by site around which points are drawn. Default: zero.
    spread : float
        Standard deviation of the points.
    agreement : float
        As `tolerance`, between the hosts.
    """
    data = checks.open_database(where)[name].data()
    numpyro_native, pyro_native = (checks.native_of(host, where, name) for host in checks.BACKENDS)
    z = positions(numpyro_native, 4, centre or {}, spread)
    sites = checks.by_site(numpyro_native, z)
    points = [{key: value[i] for key, value in sites.items()} for i in range(len(z))]
    expected = np.array([plain(point, data) for point in points])
    found = numpyro_native.log_density(z)
    assert checks.relative_spread(found - expected, expected) < tolerance, found - expected
    checks.hosts_agree(numpyro_native, pyro_native, z, agreement)
