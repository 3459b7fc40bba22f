"""``LaplaceGGN`` without arrays: its options, which sites have a Gaussian, what is refused."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.batches.passes import Passes
from ppl_ext.curvature.program_curvature import GaussNewton, Structure, as_curvature
from ppl_ext.engines.base import EngineShell
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_names, describe
from ppl_ext.target.on_host import on_host

#: Dimension up to which the curvature is ``"full"`` unless told otherwise: as many rows are
#: factorised in about a minute of one core, and the time grows as the cube. Up to twice as many
#: where the rows are fewer, so that they take no more memory.
FULL_UP_TO = 5000


class LaplaceShell(EngineShell):
    """A Gaussian at the mode, whose precision is the Gauss-Newton matrix and the prior's curvature.

    Each package's ``LaplaceGGN`` has the whole text.
    """

    _fit_call = "fit_curvature(*args)"

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        *,
        curvature: Structure | GaussNewton | None = None,
        hyperparameters: Sequence[str] | None = None,
        hyperparameters_every: int = 20,
        **options: Any,
    ) -> None:
        given = None if curvature is None else as_curvature(curvature)
        if given is not None and given.every != 1:
            raise ArgumentError(
                f"Expected a curvature with every=1, found every={given.every}: it is taken at "
                "the mode, once. With hyperparameters give hyperparameters_every."
            )
        check_names("hyperparameters", hyperparameters)
        if "num_particles" in options:
            raise ArgumentError(
                "Expected no num_particles, since there is one mode. For several modes run several "
                "engines, or DeepEnsemble."
            )
        check_count("hyperparameters_every", hyperparameters_every)
        # What follows in a package's class is its engine of particles.
        super().__init__(model, optim, 1, **options)  # type: ignore[arg-type, call-arg]
        self.hyperparameters = tuple(hyperparameters or ())
        self.hyperparameters_every = hyperparameters_every
        self.curvature = given
        sites = () if given is None else given.sites or ()
        if shared := [name for name in self.hyperparameters if name in sites]:
            raise ArgumentError(
                f"Expected hyperparameters other than the sites of the curvature, found {shared} "
                "in both."
            )

    # The curvature is a sum over them.
    _draws_take_all_rows = True

    def _notes(self, plan: Any) -> tuple[str, ...]:
        return notes_of(plan.posterior.likelihood.options)

    def _settings(self) -> dict[str, str]:
        # Without hyperparameters the steps do not depend on the curvature, and the state of one
        # serves engines with all others.
        own = {"hyperparameters": describe(self.hyperparameters)}
        if self.hyperparameters:
            own["curvature"] = describe(self.curvature)
            own["hyperparameters_every"] = repr(self.hyperparameters_every)
        return {**own, **super()._settings()}

    @abstractmethod
    def mode(self, *args: Any, **kwargs: Any) -> Any:
        """The mode so far: latent site to its value, constrained."""

    @abstractmethod
    def fit_curvature(self, *args: Any, **kwargs: Any) -> Any:
        """Take the curvature at the mode, over all rows, and keep it for draws of this mode.

        Draws and the marginal likelihood call it by themselves. It is needed by itself only where
        the last arguments that the engine saw were a batch: then with the arguments of all rows.

        Parameters
        ----------
        state : EngineState
            Of NumPyro's engine, whose states are its caller's.
        *args, **kwargs
            Arguments of the model; default those that the engine saw last.
        batches : iterable, optional
            All rows in place of ``args``, as batches of a loader. It is passed over once, for
            ``"kfac"`` several times.

        Returns
        -------
        Precision
            Of the D' coordinates of the Gaussian, those of ``sites`` in the order of the program.

        Raises
        ------
        ArgumentError
            The arguments are a batch; or the curvature is singular, or not finite.
        """

    @abstractmethod
    def log_marginal_likelihood(self, *args: Any, **kwargs: Any) -> Any:
        """Log marginal likelihood log p(y) by Laplace's method at the mode, a scalar.

        log p(y, mode) + D'/2 log 2 pi - 1/2 log det H, for the D' coordinates of the Gaussian. It
        holds where the run has converged. With ``hyperparameters`` the density of these in
        unconstrained space is a factor, so that it is log p(y, hyperparameters); with ``sites``
        that of the other sites at the mode. The likelihood is that of the program divided by the
        temperature.

        Raises
        ------
        ArgumentError
            The curvature is singular, or the last arguments were a batch.
        """

    def _approximation_at(self, mode: Any) -> tuple[GaussianDensity, Any]:
        """The Gaussian at a mode (D,) as a density with its parameters, for diagnostics."""
        _, precision = self._fit(mode)
        return GaussianDensity(self.plan.posterior), (mode, precision)

    def arviz_attributes(self) -> dict[str, Any]:
        """What ``to_arviz`` says of the draws."""
        return {"sample_kind": "independent draws"}

    def _evidence(self, log_density: Any, precision: Any) -> Any:
        """The log marginal likelihood from the log density at the mode."""
        volume = 0.5 * len(self.plan.posterior.coordinates) * math.log(2.0 * math.pi)
        return log_density + volume - 0.5 * precision.log_determinant()

    def _curvature_at(self, mode: Any, passes: Passes | None = None, asked: bool = False) -> Any:
        """The precision at a mode (D,) over all rows of the last arguments, which is kept.

        With ``passes`` over those of a loader; ``asked`` as of :class:`FittedPrecision`.
        """
        posterior, data = self.plan.posterior, self.data
        how = f"Call {self._fit_call} with the arguments of all rows, or batches=loader."
        self.target.over(passes).require_all_rows(data, how)
        precision = posterior.over(passes).precision_at(mode, data)
        posterior.latest.keep(mode, data, precision, passes, asked)
        return precision

    def _target_of_fit(self) -> Any:
        """The target over the rows that the precision was taken from."""
        kept = self.plan.posterior.latest.kept
        return self.target if kept is None else self.target.over(kept.passes)

    def _fit(self, mode: Any) -> tuple[Any, Any]:
        """All rows and the precision that are kept for a mode, or those of the last arguments."""
        if (kept := self.plan.posterior.latest.kept) is not None:
            # A batch does not put an end to what all rows have said.
            serves = kept.data is self.data or bool(self.target.partial_plates(self.data))
            if serves and np.array_equal(kept.mode, as_numpy(mode)):
                return kept.data, kept.precision
        return self.data, self._curvature_at(mode)


@dataclass(frozen=True, eq=False)
class GaussianDensity:
    """The Gaussian N(mode, H^-1), with the mode (D,) and the precision as parameters.

    The density is that in the Gaussian's coordinates; those of other sites are at the mode.
    """

    posterior: Any

    def sample(self, parameters: Any, randomness: Any, number: int) -> Any:
        """Draws (number, D); ``randomness`` is the package's generator or key."""
        mode, precision = parameters
        return self.posterior.draws(precision, mode, randomness, number)

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        """Log density (S,) of positions (S, D)."""
        mode, precision = parameters
        where = self.posterior.coordinates.numbers
        volume = 0.5 * len(where) * math.log(2.0 * math.pi)
        moves = (theta - mode)[:, where]
        return 0.5 * precision.log_determinant() - volume - 0.5 * precision.quadratic(moves)


class FittedPrecision(NamedTuple):
    """A precision with all that it depends on: the mode (D,) and all rows, maybe a loader's.

    ``asked`` tells whether ``fit_curvature`` was called for it.
    """

    mode: Float[np.ndarray, " D"]
    data: Any
    precision: Any
    passes: Passes | None = None
    asked: bool = False


class LatestPrecision:
    """The precision that was taken last, which draws at the same mode use again."""

    def __init__(self) -> None:
        self.kept: FittedPrecision | None = None

    def keep(self, mode: Any, *of: Any) -> None:
        """Keep a precision, as :class:`FittedPrecision` has it, in place of the one before."""
        self.kept = FittedPrecision(as_numpy(mode), *of)


def as_numpy(array: Any) -> Float[np.ndarray, " ..."]:
    """An array of a framework, from wherever it is, as one of NumPy."""
    return np.asarray(on_host(array))


@dataclass(frozen=True)
class PosteriorShell(ABC):
    """The curvature of minus the log density in the Gaussian's coordinates, given the others.

    Parameters
    ----------
    target : LogDensity
    coordinates : Coordinates
        The D' of the Gaussian.
    prior : callable
        From a position (D,) and the data to the prior's curvature.
    likelihood : ProgramCurvature
    held : array of int
        The K coordinates of the hyperparameters.
    latest : LatestPrecision
        What was found last.
    """

    target: Any
    coordinates: Any
    prior: Any
    likelihood: Any
    held: Any
    latest: LatestPrecision = field(default_factory=LatestPrecision, kw_only=True)

    #: Of the package: coordinates of some sites, the curvature of a program, and its prior's alone.
    _coordinates: ClassVar[Any]
    _program: ClassVar[Any]
    _prior_of_one: ClassVar[Callable[..., Any]]
    _algebra: ClassVar[Any]

    @classmethod
    def _parts(
        cls,
        target: Any,
        data: Any,
        options: GaussNewton | None,
        hyperparameters: tuple[str, ...],
        outputs: Callable[[], Mapping[str, Any]],
    ) -> tuple[Any, Any, Any, Any]:
        """All that is found once, in the order of the parameters above."""
        given = options, hyperparameters
        curvature = curvature_of_gaussian(target, *given, cls._coordinates, outputs)
        # Once for a mode: rows of rank one are not looked for.
        likelihood = cls._program(target, data, curvature, often=False)
        if hyperparameters:
            check_known_fisher(likelihood.drawn)
        prior = partial(cls._prior_at, target, likelihood.prior)
        held = cls._coordinates(target, hyperparameters).numbers
        return likelihood.where, prior, likelihood, held

    @classmethod
    def _prior_at(cls, target: Any, structure: Any, position: Any, data: Any) -> Any:
        """Curvature of the log prior at a position (D,), without what is negative."""
        found = cls._prior_of_one(target, structure, position, data)
        return cls._program.kind.of_prior(cls._algebra.without_negative(found)[None])

    @abstractmethod
    def precision_at(self, position: Any, data: Any) -> Any:
        """The precision at a position (D,), found to be positive definite."""

    def over(self, passes: Passes | None) -> Any:
        """The same, whose sums over the rows pass over a loader."""
        if passes is None:
            return self
        return replace(self, target=self.target.over(passes))

    @abstractmethod
    def slope_of_log_determinant(self, position: Any, data: Any) -> Any:
        """d log det H / d hyperparameters at a position (D,), shape (K,)."""

    def singular(self, curvature: Any, definite: Bool[np.ndarray, " d"]) -> ArgumentError:
        """The error for a curvature that is no precision, with the sites at fault."""
        if not np.isfinite(as_numpy(curvature.diagonals())).all():
            return ArgumentError(
                "Expected a finite curvature at the mode, found one that is not. Look at the mode: "
                "a scale may have run to 0, or the run may not have converged."
            )
        fault = ~definite
        if (as_numpy(curvature.diagonal) > 0.0).all():
            # The rest is positive semidefinite, so that only rounding can have made it singular.
            return ArgumentError(
                "Expected a curvature that can be told from a singular one, found one of which "
                "rounding has left nothing of the prior. Use double precision, or "
                'curvature="kfac".'
            )
        if curvature.matrix is not None or (curvature.rows is not None and fault.all()):
            matrix = as_numpy(curvature.dense()[0]).astype(np.float64)
            scale = np.sqrt(np.where(np.diagonal(matrix) > 0.0, np.diagonal(matrix), 1.0))
            # The sites in the direction of the least eigenvalue, in units in which H has a unit
            # diagonal; an entry of a third of the largest counts as taking part.
            direction = np.abs(np.linalg.eigh(matrix / np.outer(scale, scale))[1][:, 0])
            fault = direction > 0.3 * direction.max()
        names = [name for name, where in self.coordinates.slices.items() if fault[where].any()]
        return ArgumentError(
            "Expected a positive definite curvature at the mode, found a singular one: nothing in "
            f"the data or the prior bounds latent site {', '.join(map(repr, names))} in some "
            "direction. Give it a proper prior, or leave it out of the curvature's sites."
        )


def notes_of(options: GaussNewton) -> tuple[str, ...]:
    """What a judgement tells of a structure, whatever the draws show."""
    if options.structure == "full":
        return ()
    return (
        f'The curvature is "{options.structure}", an approximation of the Gauss-Newton matrix: on '
        "rows of training linearised outputs may spread by more than the noise, which those of the "
        'full matrix do not. Where that matters give curvature="full", or a tighter prior.',
    )


def structure_for(
    options: GaussNewton | None,
    dim: int,
    outputs: Callable[[], Mapping[str, Any]],
    plates: Mapping[str, Any],
) -> GaussNewton:
    """The curvature that was asked for, or the default.

    Parameters
    ----------
    options : GaussNewton, optional
        What was asked for.
    dim : int
        Coordinates of the Gaussian.
    outputs : callable
        Gives each ObservedOutput of one minibatch, by site. A run of the model, made only where the
        number of rows decides.
    plates : dict of str to DataPlate
        Those that the minibatch is of.

    Raises
    ------
    ArgumentError
        A matrix is asked for of the prior, with a structure that is to do without matrices.
    """
    if options is not None:
        if options.prior == "hessian" and options.structure != "full":
            raise ArgumentError(
                'Expected prior="hessian" with curvature="full" alone, found curvature='
                f"{options.structure!r}: a matrix of all coordinates would undo the structure. Use "
                'prior="diagonal".'
            )
        return options
    if not FULL_UP_TO < dim <= 2 * FULL_UP_TO:
        return GaussNewton("full" if dim <= FULL_UP_TO else "kfac")
    # A row of the Jacobian for each parameter of an observation, at most.
    of_batch = sum(
        math.prod(each.shape) for out in outputs().values() for each in out.parameters.values()
    )
    rows = of_batch * math.prod(each.size / each.subsample_size for each in plates.values())
    # At most as many numbers as a matrix has in ``FULL_UP_TO`` dimensions.
    return GaussNewton("full" if rows * dim <= FULL_UP_TO**2 else "kfac")


def curvature_of_gaussian(
    target: Any,
    options: GaussNewton | None,
    hyperparameters: Sequence[str],
    coordinates: Callable[[Any, tuple[str, ...]], Any],
    outputs: Callable[[], Mapping[str, Any]],
) -> GaussNewton:
    """The curvature of the sites that have a Gaussian, by :func:`structure_for` it."""
    chosen = sites_of_gaussian(target, options, hyperparameters)
    dim = len(coordinates(target, chosen))
    return replace(structure_for(options, dim, outputs, target.plates), sites=chosen)


def sites_of_gaussian(
    target: Any, options: GaussNewton | None, hyperparameters: Sequence[str]
) -> tuple[str, ...]:
    """The latent sites that have a Gaussian: those asked for, or all but the hyperparameters.

    Parameters
    ----------
    target : LogDensity
        The model.
    options : GaussNewton, optional
        The curvature, with the sites asked for.
    hyperparameters : sequence of str

    Raises
    ------
    ArgumentError
        The model has no observed sites, a site is not latent, or none is left.
    """
    if target.parameter_sites and not target.observed_sites:
        raise ArgumentError(
            "Expected a model with observed sites, whose outputs the Gauss-Newton matrix is "
            "made of, found none: its density is in one piece, as that of a Stan program is. "
            "Use SVN, which takes its Hessian, or the host's AutoLaplaceApproximation."
        )
    names = target.layout.names
    sites = None if options is None else options.sites
    for label, wanted in (("sites", sites or ()), ("hyperparameters", hyperparameters)):
        if unknown := [name for name in wanted if name not in names]:
            raise ArgumentError(
                f"Expected {label} among the latent sites {list(names)}, found {unknown}."
            )
    if sites is not None:
        return tuple(sites)
    left = tuple(name for name in names if name not in hyperparameters)
    if not left:
        raise ArgumentError(
            "Expected hyperparameters to leave some latent sites for the Gaussian, found all of "
            f"them, {list(names)}."
        )
    return left


def check_known_fisher(drawn: Sequence[str]) -> None:
    """See that no Fisher information is estimated by draws, where its derivative is needed.

    Raises
    ------
    ArgumentError
        That of some observed sites is.
    """
    if drawn:
        raise ArgumentError(
            f"Expected observed distributions with known Fisher information, found {drawn} "
            "without: with hyperparameters its derivative is needed, which draws do not "
            "give. Add it with register_output_fisher, or leave hyperparameters out."
        )
