"""Checks of native programs against reference draws and against Stan, in float64.

A program is right when its log density is that of the posterior the reference draws come from.
Two identities of Stein hold for the score s of the right density at draws z of it, in
unconstrained space: the mean of s is zero, and the mean of s (z - mean of z) is minus one in every
coordinate. The first sees a forgotten prior or Jacobian, the second a prior of the wrong width that
is centred where the draws are. The first is taken along the principal axes of the draws as well: a
prior matters most along the axes that the data say least about, which the coordinates of
correlated draws do not show. Means are in units of the spread of their direction.

Modules that use these set float64 themselves; `Native` refuses otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.posteriordb.database import Database, Posterior
from benchmarks.posteriordb.programs import numpyro_program, pyro_program, site_map

BACKENDS = ("numpyro", "pyro")

#: Standard errors that a mean may lie from what it should be: 6e-5 of right ones lie farther.
ERRORS = 4.0
#: Consecutive draws whose mean counts as one independent value.
BATCH = 20

Values = Mapping[str, np.ndarray]


# -- which posteriors ------------------------------------------------------------------------


@cache
def open_database(where: str) -> Database:
    """The database "embedded", or the one that POSTERIORDB names ("official")."""
    return Database.open("embedded" if where == "embedded" else os.environ["POSTERIORDB"])


def why_not_official() -> str | None:
    """Why the official database is not at hand, or None when it is."""
    if not os.environ.get("POSTERIORDB"):
        return "POSTERIORDB is not set: it names a local checkout of stan-dev/posteriordb"
    return None


def cases(models: Iterable[str], *, with_draws: bool = False) -> list[Any]:
    """Test parameters `(where, posterior)` of those models, in every database at hand.

    With `with_draws` those without reference draws are left out.

    Where POSTERIORDB is not set, one skipped case with its reason stands for the official
    database's posteriors of a model.
    """
    found = []
    for where in ("embedded", "official"):
        if where == "official" and (reason := why_not_official()):
            unset = pytest.mark.skip(reason=reason)
            found += [
                pytest.param(where, model, id=f"official:{model}", marks=unset) for model in models
            ]
            continue
        names = open_database(where).names()
        for model in models:
            # A posterior is named after its data and its model, neither of which has a hyphen.
            mine = [name for name in names if name.partition("-")[2] == model]
            if with_draws:
                mine = [name for name in mine if open_database(where)[name].reference_name]
            found += [pytest.param(where, name, id=f"{where}:{name}") for name in mine]
    return found


# -- native programs -------------------------------------------------------------------------


class Native:
    """A program of one host with its data: NumPy in and out, everything in float64.

    Parameters
    ----------
    backend : str
        "numpyro" or "pyro".
    program : callable
        `program(data)`.
    data : dict
    chunk : int, optional
        At most so many positions are evaluated at once.
    """

    def __init__(
        self,
        backend: str,
        program: Callable[..., Any],
        data: Mapping[str, Any],
        *,
        chunk: int | None = None,
    ) -> None:
        self.backend = backend
        self.model = partial(program, dict(data))
        self.target: Any
        if backend == "numpyro":
            import jax

            from numpyro_ext.density import LogDensity as NumPyroLogDensity

            assert jax.config.read("jax_enable_x64"), "the test module has to set float64"
            self.target = NumPyroLogDensity(self.model, jax.random.key(0), particle_chunk=chunk)
        else:
            import torch

            from pyro_ext.density import LogDensity as PyroLogDensity

            assert torch.get_default_dtype() == torch.float64, "the test module has to set float64"
            self.target = PyroLogDensity(self.model, particle_chunk=chunk)
        self.data = self.target.bind()
        self.names: tuple[str, ...] = self.target.layout.names
        self.shapes: dict[str, tuple[int, ...]] = dict(self.target.layout.shapes)
        self.dim: int = self.target.dim

    def _to_host(self, value: np.ndarray) -> Any:
        value = np.array(value, dtype=np.float64)
        if self.backend == "numpyro":
            import jax.numpy as jnp

            return jnp.asarray(value)
        import torch

        return torch.from_numpy(value)

    def _to_numpy(self, value: Any) -> np.ndarray:
        return np.array(value if self.backend == "numpyro" else value.detach().numpy())

    def unconstrain(self, sites: Values) -> np.ndarray:
        """Flat positions (P, D) of site values, each (P, ...)."""
        values = {name: self._to_host(sites[name]) for name in self.names}
        return self._to_numpy(self.target.unconstrain(values, self.data))

    def constrain(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Site values, each (P, ...), at flat positions (P, D)."""
        values = self.target.constrain(self._to_host(z), self.data)
        return {name: self._to_numpy(value) for name, value in values.items()}

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Log density (P,) of the flat positions (P, D), Jacobians included."""
        return self._to_numpy(self.target.log_density(self._to_host(z), self.data))

    def score(self, z: np.ndarray) -> np.ndarray:
        """Gradient (P, D) of `log_density`."""
        return self._to_numpy(self.target.score(self._to_host(z), self.data).score)

    def full_score(self, z: np.ndarray) -> np.ndarray:
        """The same over all rows of a program that subsamples them."""
        return self._to_numpy(self.target.full_score(self._to_host(z), self.data).score)

    def log_joint(self, sites: Values) -> np.ndarray:
        """The host's own log joint density (P,) at site values, without any Jacobian."""
        count = len(sites[self.names[0]])
        if self.backend == "numpyro":
            import jax
            from numpyro.infer.util import log_density

            one: Callable[[Any], Any] = jax.jit(
                lambda values: log_density(self.model, (), {}, values)[0]
            )
        else:
            from pyro import poutine

            def conditioned(values: Any) -> Any:
                trace = poutine.trace(poutine.condition(self.model, data=values)).get_trace()
                return trace.log_prob_sum().detach()

            one = conditioned

        rows = [{name: self._to_host(sites[name][i]) for name in self.names} for i in range(count)]
        return np.array([float(one(values)) for values in rows])


def program_of(backend: str, model_name: str) -> Callable[..., Any]:
    """The native program of a model for a host."""
    return numpyro_program(model_name) if backend == "numpyro" else pyro_program(model_name)


@cache
def native_of(backend: str, where: str, name: str, chunk: int | None = None) -> Native:
    """The native program of a posterior, with its data; built once."""
    posterior = open_database(where)[name]
    return Native(backend, program_of(backend, posterior.model_name), posterior.data(), chunk=chunk)


# -- mean scores -----------------------------------------------------------------------------


class Identities(NamedTuple):
    """Means over reference draws that should be zero, with their standard errors.

    `names` says which; `means` and `errors` are of the same length. The score is in units of one
    over the spread of its direction.
    """

    names: list[str]
    means: np.ndarray
    errors: np.ndarray

    @property
    def deviations(self) -> np.ndarray:
        """Standard errors between each mean and zero."""
        return self.means / self.errors

    @property
    def worst(self) -> float:
        """The largest of them in absolute value."""
        return float(np.abs(self.deviations).max())

    def describe(self, count: int = 5) -> str:
        """The largest ones, a line each."""
        order = np.argsort(-np.abs(self.deviations))[:count]
        return "\n".join(
            f"{self.names[i]}: {self.means[i]:.3g} with a standard error of {self.errors[i]:.2g}, "
            f"{self.deviations[i]:+.1f} of them"
            for i in order
        )


def coordinate_names(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of the coordinates of a flat vector: "beta[3]", counted from one as Stan does."""
    found = []
    for name in names:
        for index in np.ndindex(*shapes[name]):
            inside = ",".join(str(i + 1) for i in index)
            found.append(f"{name}[{inside}]" if inside else name)
    return found


def batch_errors(values: np.ndarray) -> np.ndarray:
    """Standard errors of the means of (chains, draws, ...) by the spread of batches' means."""
    chains, draws = values.shape[:2]
    batches = draws // BATCH
    used = values[:, : batches * BATCH]
    means = used.reshape(chains * batches, BATCH, *values.shape[2:]).mean(axis=1)
    return means.std(axis=0, ddof=1) / np.sqrt(len(means))


def stein_identities(
    z: np.ndarray, score: np.ndarray, names: list[str] | None = None
) -> Identities:
    """The two identities at draws `z` with scores `score`, both (chains, draws, D)."""
    dim = z.shape[-1]
    names = names or [str(i) for i in range(dim)]
    flat = z.reshape(-1, dim)
    centred = z - flat.mean(axis=0)
    spread = flat.std(axis=0)
    # Axes of the correlation, not of the covariance: units of the coordinates do not matter.
    values, vectors = np.linalg.eigh(np.atleast_2d(np.corrcoef(flat.T)))
    along_axes = (score * spread) @ (vectors * np.sqrt(np.maximum(values, 1e-12)))
    # The second identity is not taken along the axes: those of the draws are the ones along
    # which these draws vary too much or too little by chance.
    found = np.concatenate([score * spread, along_axes, score * centred + 1.0], axis=-1)
    return Identities(
        [f"score of {name}" for name in names]
        + [f"score of axis {i + 1}" for i in range(dim)]
        + [f"score times draw of {name}" for name in names],
        found.mean(axis=(0, 1)),
        batch_errors(found),
    )


def reference_positions(native: Native, posterior: Posterior, draws: int) -> np.ndarray:
    """At least `draws` reference draws, thinned evenly: positions (chains, draws, D)."""
    reference = posterior.reference_draws()
    assert reference is not None, f"{posterior.name} has no reference draws"
    chains, length = next(iter(reference.values())).shape[:2]
    step = max(1, chains * length // draws)
    kept = {name: value[:, ::step] for name, value in reference.items()}
    count = len(range(0, length, step))
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in kept.items()}
    sites = site_map(posterior.model_name).sites(flat)
    return native.unconstrain(sites).reshape(chains, count, native.dim)


def identities_of(
    native: Native, posterior: Posterior, *, draws: int = 5000, block: int = 1000
) -> Identities:
    """The two identities of a native program at the reference draws of a posterior.

    Parameters
    ----------
    native : Native
    posterior : Posterior
    draws : int
        How many reference draws are used, thinned evenly.
    block : int
        Scores are taken at so many at a time; the last block is filled up.
    """
    z = reference_positions(native, posterior, draws)
    flat = z.reshape(-1, native.dim)
    # One size of block, so that the score is compiled once.
    block = min(block, len(flat))
    filled = np.concatenate([flat, np.repeat(flat[-1:], -len(flat) % block, axis=0)])
    pieces = [native.score(piece) for piece in filled.reshape(-1, block, native.dim)]
    score = np.concatenate(pieces)[: len(flat)].reshape(z.shape)
    return stein_identities(z, score, coordinate_names(native.names, native.shapes))


def mean_score_is_zero(
    backend: str, posterior: Posterior, *, draws: int = 5000, native: Native | None = None
) -> Identities:
    """Assert both identities of a posterior's native program within four standard errors.

    Parameters
    ----------
    backend : str
        "numpyro" or "pyro".
    posterior : Posterior
    draws : int
        How many reference draws are used.
    native : Native, optional
        Another program than the one of the posterior's model, to see the check fail.
    """
    if native is None:
        native = Native(backend, program_of(backend, posterior.model_name), posterior.data())
    found = identities_of(native, posterior, draws=draws)
    assert np.isfinite(found.deviations).all(), f"{posterior.name}: a score is not finite"
    assert found.worst < ERRORS, f"{posterior.name} in {backend}:\n{found.describe()}"
    return found


def planted(
    backend: str, model_name: str, change: Callable[[Any, Callable[[Any], Any], Any], Any]
) -> Callable[[Any], None]:
    """The program of a model with an error in it, for tests that the checks see errors.

    Parameters
    ----------
    backend : str
        "numpyro" or "pyro".
    model_name : str
    change : callable
        `change(distributions, log, sites)` is a term to add to the log density: the first two
        are the host's module of distributions and its logarithm, the third the values by site.
    """

    def in_numpyro(data: Any) -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions, handlers

        trace = handlers.trace(program_of(backend, model_name)).get_trace(data)
        sites = {name: site["value"] for name, site in trace.items()}
        numpyro.factor("planted", change(distributions, jnp.log, sites))

    def in_pyro(data: Any) -> None:
        import pyro
        import torch
        from pyro import distributions, poutine

        trace = poutine.trace(program_of(backend, model_name)).get_trace(data)
        sites = {name: site.get("value") for name, site in trace.nodes.items()}
        pyro.factor("planted", change(distributions, torch.log, sites))

    return in_numpyro if backend == "numpyro" else in_pyro


# -- the hosts against each other, and against a plain density ----------------------------------


def random_positions(native: Native, count: int, seed: int = 0, spread: float = 0.5) -> np.ndarray:
    """Positions (count, D) from a normal distribution around zero."""
    return spread * np.random.default_rng(seed).standard_normal((count, native.dim))


def by_site(native: Native, z: np.ndarray) -> dict[str, np.ndarray]:
    """Unconstrained values of each site, (P, ...), from flat positions (P, D)."""
    found, start = {}, 0
    for name in native.names:
        stop = start + int(np.prod(native.shapes[name], dtype=int))
        found[name] = z[:, start:stop].reshape(len(z), *native.shapes[name])
        start = stop
    return found


def joined(native: Native, sites: Values) -> np.ndarray:
    """Flat positions (P, D) in a program's order from unconstrained values of each site."""
    return np.concatenate([sites[name].reshape(len(sites[name]), -1) for name in native.names], 1)


def relative_spread(difference: np.ndarray, values: np.ndarray) -> float:
    """Range of a difference that should be one constant, relative to the values."""
    return float(np.ptp(difference) / max(1.0, np.abs(values).max()))


def hosts_agree(first: Native, second: Native, z: np.ndarray, tolerance: float = 1e-10) -> float:
    """Assert that two hosts' flat log densities differ by one constant at positions of the first.

    Sites are matched by name. Returns the range of the difference, relative to the log density.
    """
    assert set(first.names) == set(second.names)
    assert first.shapes == {name: second.shapes[name] for name in first.names}
    ours = first.log_density(z)
    theirs = second.log_density(joined(second, by_site(first, z)))
    assert np.isfinite(ours).all()
    found = relative_spread(ours - theirs, ours)
    assert found < tolerance, f"log densities of the two hosts differ by {ours - theirs}"
    return found


# -- Stan ------------------------------------------------------------------------------------


def why_no_stan() -> str | None:
    """Why Stan programs cannot be compiled here, or None when they can."""
    if importlib.util.find_spec("bridgestan") is None:
        return "bridgestan is not installed (pip install 'ppl-ext[stan]')"
    if not os.environ.get("BRIDGESTAN"):
        return "BRIDGESTAN is not set: it names a folder with BridgeStan's sources"
    return None


def stan_data(data: Mapping[str, Any]) -> str:
    """Data of a posterior as the JSON text that Stan reads."""
    return json.dumps(
        {
            name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            for name, value in data.items()
        }
    )


def _gathered(names: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Variables by base name from columns "theta.1", "theta.2", ...: each (P, *shape)."""
    columns: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for name, column in zip(names, values.T, strict=True):
        base, _, index = name.partition(".")
        place = tuple(int(i) - 1 for i in index.split(".")) if index else ()
        columns.setdefault(base, {})[place] = column
    found = {}
    for base, entries in columns.items():
        shape = tuple(np.max(list(entries), axis=0) + 1) if () not in entries else ()
        array = np.empty((len(values), *shape))
        for place, column in entries.items():
            np.moveaxis(array, 0, -1)[place] = column
        found[base] = array
    return found


def _reference_in_stan(stan: Any, posterior: Posterior, rng: np.random.Generator) -> Any:
    """Some reference draws in Stan's unconstrained space, (draws, D), or None.

    There are none where the program's parameters are neither those of the reference nor the
    sites of the native program.
    """
    reference = posterior.reference_draws()
    if reference is None:
        return None
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in reference.items()}
    rows = rng.choice(len(next(iter(flat.values()))), size=100, replace=False)
    kept = {name: value[rows] for name, value in flat.items()}
    values = {**kept, **site_map(posterior.model_name).sites(kept)}
    names = [name.partition(".") for name in stan.param_names()]
    if not {base for base, _, _ in names} <= set(values):
        return None
    columns = []
    for base, _, index in names:
        place = tuple(int(i) - 1 for i in index.split(".")) if index else ()
        columns.append(np.moveaxis(values[base], 0, -1)[place])
    constrained = np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.float64)
    return np.array([stan.param_unconstrain(row) for row in constrained])


def stan_difference_is_constant(
    backend: str,
    posterior: Posterior,
    tolerance: float = 1e-8,
    *,
    points: int = 10,
    wide: bool = False,
    seed: int = 0,
    native: Native | None = None,
) -> float:
    """Assert that native and Stan log density differ by one constant at random points.

    The joint densities of the constrained values are compared without any Jacobian. Where both
    maps to unconstrained space give the same numbers, the densities with Jacobians are compared
    as well.

    Parameters
    ----------
    backend : str
        "numpyro" or "pyro".
    posterior : Posterior
    tolerance : float
        Range of the difference that is accepted, relative to the largest absolute log density.
    points : int
        How many random points: reference draws with noise of half their spread.
    wide : bool
        Compare at as many points about zero with a spread of a half as well. They show what
        hardly varies over the posterior, such as a wide prior of a parameter that many data
        determine. Without reference draws there are only these.
    seed : int
    native : Native, optional
        Another program than the one of the posterior's model.

    Returns
    -------
    float
        The largest range that was found, relative likewise.
    """
    import bridgestan

    from ppl_ext.stan.compilation import compiled

    program = posterior.stan_program()
    assert program is not None, f"there is no Stan program of {posterior.model_name}"
    if native is None:
        native = Native(backend, program_of(backend, posterior.model_name), posterior.data())
    library = compiled(program.read_text(encoding="utf-8"), program.name)
    stan = bridgestan.StanModel(str(library), data=stan_data(posterior.data()), warn=False)
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((points, stan.param_unc_num()))
    reference = _reference_in_stan(stan, posterior, rng)
    groups = [] if reference is None else [reference[:points] + 0.5 * reference.std(0) * noise]
    if wide or not groups:
        groups.append(0.5 * noise)

    found = []
    for z in groups:
        constrained = np.array([stan.param_constrain(row, include_tp=True) for row in z])
        sites = _gathered(stan.param_names(include_tp=True), constrained)
        if not set(native.names) <= set(sites):
            sites = {**site_map(posterior.model_name).sites(sites), **sites}
        ours = [native.log_joint(sites)]
        theirs = [[stan.log_density(row, propto=False, jacobian=False) for row in z]]
        flat = native.unconstrain(sites)
        # The order of coordinates differs, their numbers do not where the maps are the same.
        if flat.shape == z.shape and np.allclose(np.sort(flat), np.sort(z), rtol=1e-9, atol=1e-9):
            ours.append(native.log_density(flat))
            theirs.append([stan.log_density(row, propto=False, jacobian=True) for row in z])
        for mine, other in zip(ours, theirs, strict=True):
            difference = mine - np.array(other)
            assert np.isfinite(difference).all()
            found.append(relative_spread(difference, mine))
            assert found[-1] < tolerance, (
                f"{posterior.name} in {backend}: the difference to Stan varies by "
                f"{found[-1]:.2g} of the log density: {difference}"
            )
    return max(found)
