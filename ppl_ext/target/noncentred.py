"""Programs whose sites of latent scale are written non-centred, and whether that is the same.

A site x ~ Normal(m, s) with a latent s makes a funnel: where s is small, so is all that x may be.
Non-centred it is x = m + s e with e ~ Normal(0, 1), and the funnel is gone (M. I. Gorinova,
D. Moore and M. D. Hoffman, "Automatic reparameterisation of probabilistic programs", 2020). The
hosts' own handlers write it so. A vector x ~ MultivariateNormal(m, L L'), with a latent L, is
x = m + L e.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ModelCheckError
from ppl_ext.target.on_host import as_float64

#: Argument that tells what data tell of entries: see :meth:`Noncentred.given_data`.
ENTRY_DATA = "entry_data_by_site"
#: Says what speaks against an answer before there is one, where a warning would be too early.
LOGGER = logging.getLogger("ppl_ext")
#: Positions at which two ways to write a program are compared, and how far around 0 these lie.
POINTS, SPREADS = 16, (0.1, 0.3, 1.0, 2.0)
#: Machine epsilons, as a share of the log density, by which rounding may change it, and nats that
#: this is at least. Positions where it is more than the last tell nothing: another program differs
#: by nats at some of the others.
ROUNDING, LEAST_ROUNDING, MOST_ROUNDING = 20.0, 1e-3, 2.0
#: Numbers in a vector at most: along each of them a step is looked at, and costs its cube.
LONGEST = 100
#: Share by which steps up and down may differ where rounding leaves a map affine, and positions
#: that must be left.
BENT, LEAST_POINTS = 0.01, 4

Positions = Float[np.ndarray, "P D"]
Densities = Float[np.ndarray, " P"]


@dataclass(frozen=True)
class Moves:
    """What is to be written non-centred.

    Attributes
    ----------
    latents : mapping of str to str
        By site as written, the latent site that stands for it.
    config : mapping of str to object
        The host's reparameterisers by site.
    lengths : mapping of str to int
        By site as written whose entries are vectors, the length of each.
    standardise : callable
        Of an entry of ``given`` and the names of a distribution's other parameters: the host's
        reparameteriser by :class:`Standardised`.
    shifted : frozenset of str
        Sites as written whose unconstrained values are shifts or multiples of what has the latent
        scale.
    """

    latents: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    standardise: Callable[..., Any] = lambda data, shape_params: None
    shifted: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = field(default_factory=dict)

    def given(self, data: Mapping[str, Any]) -> Moves:
        """The same with entries standardised given their data, in place of their priors alone.

        Parameters
        ----------
        data : mapping of str to array
            By site as written, the host's arrays of what data tell: see :class:`Standardised`.
        """
        config = dict(self.config)
        for site, latent in self.latents.items():
            name = latent.removesuffix("_decentered")
            config[name] = self.standardise(data[site], config[name].shape_params)
        return replace(self, config=config)


class Movable(NamedTuple):
    """A site of latent scale: whether a monotone transform of one, and other parameters' names.

    And the length of its vectors, 0 where entries are numbers.
    """

    name: str
    is_monotone: bool
    shape_params: tuple[str, ...]
    length: int


def moves_among(
    sites: Sequence[Movable],
    loc_scale: Callable[..., Any],
    transform: Callable[[], Any],
    standardise: Callable[..., Any],
    shifted: frozenset[str],
) -> Moves:
    """What is to be written non-centred, by the host's reparameterisers."""
    latents, config = dict[str, str](), dict[str, Any]()
    for name, is_monotone, others, length in sites:
        stands_for = f"{name}_base" if is_monotone else name
        if is_monotone:
            config[name] = transform()
        known = {"shape_params": others}
        config[stands_for] = standardise(0.0) if length else loc_scale(0.0, **known)
        latents[name] = f"{stands_for}_decentered"
    lengths = {each.name: each.length for each in sites if each.length}
    return Moves(latents, config, standardise, shifted, lengths)


def standardised(loc: Any, scale: Any, precision: Any, pull: Any) -> tuple[Any, Any, Any, Any]:
    """How an entry is written that is standard Normal given its location, scale and data.

    An entry x ~ Normal(m, s) whose data tell of it by a factor exp(k x - h x^2 / 2), the density of
    a Normal of precision h, is Normal given both, of mean (m + s^2 k) / (1 + h s^2) and standard
    deviation s / sqrt(1 + h s^2). With x = mean + deviation e, the entry e is standard Normal
    whatever m and s are: it is non-centred where s is small, and centred where it is large. Any
    numbers h >= 0 and k give the same program, since the prior of e is what that of x makes it.

    Parameters
    ----------
    loc, scale : array
        m and s.
    precision, pull : array
        h and k.

    Returns
    -------
    Location and scale of the prior of e, and mean and deviation.
    """
    square = 1.0 + precision * scale**2
    root = square**0.5
    moved = scale * (precision * loc - pull) / root
    return moved, root, (loc + scale**2 * pull) / square, scale / root


class Vectors(NamedTuple):
    """What of a host serves vectors: its multivariate Normal, and its module of arrays.

    And functions of matrices that never raise.
    """

    kind: Any
    module: Any
    cholesky: Callable[[Any], Any]
    solve: Callable[[Any, Any], Any]


def standardised_vectors(
    vectors: Vectors, loc: Any, scale_tril: Any, data: Any
) -> tuple[Any, Any, Any, Any]:
    """:func:`standardised` for vectors x ~ MultivariateNormal(m, L L') of length d.

    Data tell of them by a factor exp(k'x - x'Hx / 2). With the upper triangular U of which
    U U' = I + L'HL, the deviation is the lower triangular L U'^-1.

    Parameters
    ----------
    vectors : Vectors
    loc, scale_tril : array (..., d), (..., d, d)
        m and L.
    data : array (..., d + 1, d), or 0.0
        Rows R, of which R'R = H, and then k. Any numbers give the same program; none of them tell
        nothing.

    Returns
    -------
    Location and root of the prior of e, and mean and deviation, of which the second and the last
    are lower triangular matrices.
    """
    host = vectors.module
    blank = host.zeros_like(loc[..., None, :] + scale_tril[..., :1, :])
    loc, data = loc + blank[..., 0, :], data + blank
    rows, pull = data[..., :-1, :], data[..., -1, :, None]
    told = rows @ scale_tril
    unit = host.diag(host.ones_like(blank.reshape(-1, blank.shape[-1])[0]))
    square = told.swapaxes(-1, -2) @ told + unit
    # The factor of the matrix turned round is lower triangular: turned back it is the upper one.
    upper = host.flip(vectors.cholesky(host.flip(square, (-1, -2))), (-1, -2))
    root = upper.swapaxes(-1, -2)
    deviation = vectors.solve(upper, scale_tril.swapaxes(-1, -2)).swapaxes(-1, -2)
    push = pull - rows.swapaxes(-1, -2) @ (rows @ loc[..., None])
    moved = -(deviation.swapaxes(-1, -2) @ push)
    return moved[..., 0], root, loc - (deviation @ moved)[..., 0], deviation


class Standardised:
    """A site whose entries are standardised given their data, in any host.

    Parameters
    ----------
    data : array (2, ...), or (..., d + 1, d) for vectors of length d
        Precisions and pulls: see :func:`standardised` and :func:`standardised_vectors`.
    shape_params : sequence of str
        Other parameters of the site's distribution.
    """

    def __init__(self, data: Any, shape_params: Sequence[str] = ()) -> None:
        self.data, self.shape_params = data, tuple(shape_params)

    def of(
        self, base: Any, vectors: Vectors
    ) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
        """The distribution of entries, their value as written, and the way back."""
        if isinstance(base, vectors.kind):
            given = base.loc, base.scale_tril, self.data
            loc, scale, mean, deviation = standardised_vectors(vectors, *given)
            return (
                type(base)(loc=loc, scale_tril=scale),
                lambda entry: mean + (deviation @ entry[..., None])[..., 0],
                lambda value: vectors.solve(deviation, (value - mean)[..., None])[..., 0],
            )
        loc, scale, mean, deviation = standardised(base.loc, base.scale, *self.data)
        others = {name: getattr(base, name) for name in self.shape_params}
        return (
            type(base)(loc=loc, scale=scale, **others),
            lambda entry: mean + deviation * entry,
            lambda value: (value - mean) / deviation,
        )


class Noncentred:
    """A program with sites non-centred; as it is written until ``moves`` tell which.

    Its draws hold the sites as written beside those that stand for them.

    Parameters
    ----------
    model : callable
    reparam : callable
        The host's handler.
    names : sequence of str
        The latent sites of the program as written.
    """

    #: Of a program that takes further arguments than the model.
    __signature__: inspect.Signature
    #: Whether :data:`ENTRY_DATA` is the program's own argument, and none of the model's.
    takes_data = False

    def __init__(
        self,
        model: Callable[..., Any],
        reparam: Callable[..., Callable[..., Any]],
        moves: Moves | None = None,
        names: Sequence[str] = (),
    ) -> None:
        # The model's arguments are those of the program.
        self.model = self.__wrapped__ = model
        self._reparam = reparam
        self.moves, self.names = moves or Moves(), tuple(names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.moves.config:
            return self.model(*args, **kwargs)
        data = kwargs.pop(ENTRY_DATA) if self.takes_data else None
        moves = self.moves if data is None else self.moves.given(data)
        return self._reparam(self.model, config=dict(moves.config))(*args, **kwargs)

    def given_data(self) -> Noncentred:
        """The program whose argument :data:`ENTRY_DATA` says what data tell of its entries.

        So one program, which is compiled once, serves any such numbers: see :meth:`Moves.given`.
        """
        found, signature = copy.copy(self), inspect.signature(self)
        known = list(signature.parameters.values())
        if not known or known[-1].kind is not inspect.Parameter.VAR_KEYWORD:
            known.append(inspect.Parameter(ENTRY_DATA, inspect.Parameter.KEYWORD_ONLY))
        found.__signature__ = signature.replace(parameters=known)
        found.takes_data = True
        return found

    def holding(self, kwargs: Mapping[str, Any]) -> Noncentred:
        """One that takes data as it holds them, from these: it takes the model's arguments."""
        moves = self.moves.given(kwargs[ENTRY_DATA])
        return type(self)(self.model, self._reparam, moves, self.names)

    @property
    def parameter_sites(self) -> tuple[str, ...]:
        """What draws hold beside latent sites; see ``BoundModelShell.parameter_sites``."""
        own = tuple(getattr(self.model, "parameter_sites", ()))
        return tuple(dict.fromkeys((*self.names, *own))) if self.moves.config else own


def moved_sites(model: Any) -> Mapping[str, str]:
    """By site of a program that is written non-centred, the latent site that stands for it."""
    return model.moves.latents if isinstance(model, Noncentred) else {}


@np.errstate(all="ignore")
def difference(
    points: Positions,
    moved: Callable[[Positions], Densities],
    written: Callable[[Positions], Densities],
    there: Callable[[Positions], Positions],
    places: Sequence[tuple[slice, slice, int]],
    epsilon: float,
) -> str:
    """In words, how the density of another way to write a program differs; empty if it does not.

    The map between the two is affine in each entry that is moved, so that its log-determinant is
    exact from steps of 1. Positions where it is not, since rounding has taken digits, as where a
    probability is next to 1, tell nothing.

    Parameters
    ----------
    points : array (P, D)
        Unconstrained positions of the program as it is moved.
    moved, written : callable
        Log densities (P,) at positions, with the Jacobians of supports.
    there : callable
        From positions of the program as moved to those of the program as written.
    places : sequence of (slice, slice, int)
        Coordinates of each site that is moved, and of that which stands for it: as moved, and as
        written; and the length of its vectors, 1 where entries are numbers.
    epsilon : float
        Machine epsilon of densities.
    """
    found = there(points)
    log_det, grain = np.zeros(len(points)), np.zeros(len(points))
    known = np.ones(len(points), bool)
    for own, place, length in places:
        back, factors = (
            factors_of(there, points, found, own, place, length, step) for step in (-1.0, 1.0)
        )
        sizes = np.linalg.norm(factors, axis=-2, keepdims=True)
        # An affine map moves each entry by its factor, so that the log-determinant is the sum of
        # theirs.
        logs = np.linalg.slogdet(factors)[1]
        is_whole = np.isfinite(logs)
        known &= (np.abs(back - factors) <= BENT * sizes).all((1, 2, 3)) & is_whole.all(1)
        log_det += logs.sum(1)
        # A position is known to its last digit only, in units of its scale.
        digits = 1.0 + np.abs(found[:, place]).reshape(*logs.shape, length, 1)
        inverses = np.linalg.inv(np.where(is_whole[..., None, None], factors, np.eye(length)))
        grain += (np.abs(inverses) @ digits).sum((1, 2, 3))
    one, other = moved(points), written(found) + log_det
    allowed = ROUNDING * epsilon * (1.0 + np.abs(other) + grain)
    known &= allowed < MOST_ROUNDING
    if known.sum() < LEAST_POINTS:
        return "its density could not be compared with that of the program as written"
    # A density that is not finite where the other one is differs as well.
    differs = known & ~(np.abs(one - other) <= np.maximum(allowed, LEAST_ROUNDING))
    if not differs.any():
        return ""
    worst = float(np.nan_to_num(np.abs(one - other)[differs], nan=np.inf).max())
    return (
        f"its log density, Jacobian included, differs from that of the program as written at "
        f"{differs.sum()} of {known.sum()} positions, by up to {worst:.2g} nats"
    )


def factors_of(
    there: Callable[[Positions], Positions],
    points: Positions,
    found: Positions,
    own: slice,
    place: slice,
    length: int,
    step: float = 1.0,
) -> Float[np.ndarray, "P n d d"]:
    """The matrices by which a map that is affine in each entry moves these, from a step.

    Parameters
    ----------
    there : callable
        The map.
    points, found : array (P, D)
        Positions, and where they go.
    own, place : slice
        Coordinates of the entries, before and after.
    length : int
        Numbers d in each entry.
    step : float
    """
    columns = []
    for at in range(length):
        shifted = points.copy()
        shifted[:, own.start + at : own.stop : length] += step
        moves = (there(shifted) - found)[:, place] / step
        columns.append(moves.reshape(len(points), -1, length))
    return np.stack(columns, axis=-1)


class Forms(NamedTuple):
    """Classes of the host's: what wraps distributions, transformed ones, and their transforms.

    And what makes a multivariate Normal of a distribution that is one by another name.
    """

    wrappers: Any
    transformed: Any
    transforms: Any
    vectors: Vectors
    as_vectors: Callable[[Any], Any] = lambda distribution: distribution

    def unwrapped(self, distribution: Any) -> Any:
        """A distribution without what the hosts' handlers take away."""
        while isinstance(distribution, self.wrappers):
            distribution = distribution.base_dist
        return self.as_vectors(distribution)

    def is_monotone(self, distribution: Any) -> bool:
        """Whether it is such as a LogNormal: unconstrained, its base up to a shift and a factor."""
        if not isinstance(distribution, self.transformed):
            return False
        *first, last = distribution.transforms
        affine = self.transforms.AffineTransform
        is_affine = [isinstance(each, affine) and not each.domain.event_dim for each in first]
        monotone = self.transforms.ExpTransform, self.transforms.SigmoidTransform
        return all(is_affine) and isinstance(last, monotone)

    def is_shifted(self, distribution: Any) -> bool:
        """Whether such a one has a shift or a factor."""
        distribution = self.unwrapped(distribution)
        return self.is_monotone(distribution) and len(distribution.transforms) > 1

    def base_of(self, distribution: Any) -> tuple[Any, bool]:
        """What may have a latent scale in a distribution, and whether that is a monotone one."""
        base = self.unwrapped(distribution)
        is_monotone = self.is_monotone(base)
        return (self.unwrapped(base.base_dist) if is_monotone else base), is_monotone

    def standard(self, distribution: Any, value: Any) -> Any:
        """The value of the latent site that stands for one of a distribution of latent scale."""
        base, is_monotone = self.base_of(distribution)
        if is_monotone:
            for transform in reversed(self.unwrapped(distribution).transforms):
                value = transform.inv(value)
        if self.length_of(base):
            return self.vectors.solve(base.scale_tril, (value - base.loc)[..., None])[..., 0]
        return (value - base.loc) / base.scale

    def length_of(self, base: Any) -> int:
        """The length of the vectors of a multivariate Normal; 0 of others, and of long ones."""
        length: int = base.event_shape[-1] if isinstance(base, self.vectors.kind) else 0
        return length if length <= LONGEST else 0


def check_moved(moves: Moves, written: Any, data: Any, moved: Any, moved_data: Any) -> None:
    """See that a program as moved is the program as written.

    By the prior part: the likelihood is one function of the sites' values in both.

    Parameters
    ----------
    written, moved : LogDensity
        The targets of both, with the model's arguments bound.

    Raises
    ------
    ModelCheckError
        It has another density.
    """

    def there(positions: Positions) -> Positions:
        values = moved.constrain(moved.placed(positions), moved_data)
        return as_float64(written.unconstrain(values, data))

    def density_of(target: Any, data: Any) -> Callable[[Positions], Densities]:
        def density(positions: Positions) -> Densities:
            z = target.placed(positions)
            prior, likelihood = target.log_prior_and_likelihood(z, data, target.first_rows())
            # Where sites are summed with discrete ones, their densities are in the likelihood.
            return as_float64(prior + likelihood if target.bound.enumerated else prior)

        return density

    latents = moves.latents
    places = [
        (moved.layout.slices[latents[n]], written.layout.slices[n], moves.lengths.get(n, 1))
        for n in latents
    ]
    densities = density_of(moved, moved_data), density_of(written, data)
    told = difference(points_around(moved.dim), *densities, there, places, written.epsilon)
    if told:
        raise different_error(tuple(latents), told)


def different_error(sites: Sequence[str], told: str) -> ModelCheckError:
    """That a program with sites non-centred is another one than as written."""
    return ModelCheckError(
        f"Expected the program with {', '.join(sites)} non-centred to be the same, found that "
        f"{told}. Leave reparameterise out."
    )


def points_around(dim: int) -> Positions:
    """Positions at which two ways to write a program are compared, the same each time."""
    noise = np.random.default_rng(0).normal(size=(POINTS, dim))
    return noise * np.resize(SPREADS, POINTS)[:, None]


def say_before_run(engine: str, sites: Sequence[str]) -> None:
    """Say that an engine runs on a program that ``fit`` would write non-centred.

    This is logged, as JAX and the hosts log what they decide: Python shows it on the terminal
    unless told otherwise. It is no warning, since nothing is known to be wrong yet: where the data
    tell much of each entry, the program as written is as good.
    """
    names = ", ".join(f"'{name}'" for name in sites)
    LOGGER.warning(
        f"{engine} runs on the program as written, whose sites {names} have a latent scale: where "
        "that is small they make a narrow funnel, which engines miss. With reparameterise=True "
        "these are written non-centred, as fit does, and draws are still of the sites as written."
    )
