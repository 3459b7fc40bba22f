"""Stein variational Newton without arrays: its options, and which solver is the cheapest.

Moves of P particles in D coordinates solve one linear system a step; see ``stein.newton_system``
of either package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, get_args

from jaxtyping import Bool, Float

from ppl_ext.curvature.curvature import CurvatureSizes
from ppl_ext.curvature.program_curvature import as_curvature
from ppl_ext.engines.base import EngineShell
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, check_number, describe, is_number
from ppl_ext.target.scores import Array

Coupling = Literal["full", "block_diagonal"]
COUPLINGS: tuple[str, ...] = get_args(Coupling)
Repulsion = Literal["diagonal", "all"]
REPULSIONS: tuple[str, ...] = get_args(Repulsion)
Solver = Literal["dense", "dual", "cg"]
SOLVERS: tuple[str, ...] = get_args(Solver)

#: Added to the diagonal of the kernel matrix, in units of its mean: a kernel that is larger where
#: two particles are one. Smooth kernels of many particles have no inverse in floating point.
NUGGET = 1e-3
#: Largest system that is formed as one matrix.
LARGEST_DENSE = 6000

#: Disagreement of the quadratic model below which damping falls, and above which it grows.
GOOD, POOR = 0.05, 0.2
#: Factors by which it falls and grows.
FALL, GROWTH = 1.0 / 3.0, 2.0
#: Bounds on the damping, in units of the curvature.
LEAST_DAMPING, MOST_DAMPING = 1e-6, 1e8

#: Shortfall of the density from the forecast, as a share of the forecast's terms, up to which a
#: radius that shortened a move doubles, and above which the move is taken back and the radius is a
#: quarter of it. The usual bounds of trust regions: a gain of three quarters and of one quarter of
#: what was foretold (Nocedal and Wright, Numerical Optimization, 2006, algorithm 4.1).
BELIEVED, REFUSED = 0.25, 0.75
WIDENING, NARROWING = 2.0, 0.25


@dataclass(frozen=True)
class NewtonSystem:
    """The linear system of a Newton step, and how it is solved.

    Parameters
    ----------
    coupling : {"full", "block_diagonal"}
        Whether the moves of the particles are solved for together.
    repulsion : {"diagonal", "all"}
        Blocks of the full system that hold the kernel's gradients. With ``"all"`` it need not be
        positive definite.
    solver : {"dense", "dual", "cg"}, optional
        Cholesky of the system, Woodbury's identity, or conjugate gradients. Default: by cost.
    tolerance : float
        Residual, relative to the right side, at which conjugate gradients stop. What is stationary
        is so at any tolerance, since nothing is left to solve for there.
    max_iterations : int
        Products of conjugate gradients.

    Raises
    ------
    ArgumentError
        An option is not one of those listed, or out of range.

    Examples
    --------
    >>> NewtonSystem(solver="cg", max_iterations=20).coupling
    'full'
    """

    coupling: Coupling = "full"
    repulsion: Repulsion = "diagonal"
    solver: Solver | None = None
    tolerance: float = 1e-3
    max_iterations: int = 50

    def __post_init__(self) -> None:
        check_choice("coupling", self.coupling, COUPLINGS)
        check_choice("repulsion", self.repulsion, REPULSIONS)
        check_choice("solver", self.solver, (*SOLVERS, None))
        check_number("tolerance", self.tolerance, most=1.0)
        check_count("max_iterations", self.max_iterations)


def as_system(system: Coupling | NewtonSystem) -> NewtonSystem:
    """The options of a system that is given by them, or by the name of its coupling.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if isinstance(system, NewtonSystem):
        return system
    check_choice("system", system, COUPLINGS, "NewtonSystem(...)")
    return NewtonSystem(system)


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Damping of Newton steps (Marquardt 1963, https://doi.org/10.1137/0111030).

    Parameters
    ----------
    damping : float
        Damping at the start, in units of the mean curvature of each coordinate.
    adapt : bool
        Whether damping and the radius adapt to how well the quadratic model foretells the density,
        and bad moves are taken back. It costs one more evaluation of the density.
    trust_radius : float, optional
        Largest move d of a particle at the start, as sqrt(d'Hd / D): the root mean square over
        coordinates in units of the standard deviations that the curvature H suggests. This length
        is that of the change in the observed distributions, however a site is parameterised. With
        ``adapt`` each particle has a radius of its own, which doubles where the model holds. None:
        no bound.

    Raises
    ------
    ArgumentError
        An option is out of range.

    Examples
    --------
    >>> LevenbergMarquardt(damping=0.1)
    LevenbergMarquardt(damping=0.1, adapt=True, trust_radius=1.0)
    """

    damping: float = 1.0
    adapt: bool = True
    trust_radius: float | None = 1.0

    def __post_init__(self) -> None:
        check_number("damping", self.damping)
        check_choice("adapt", self.adapt, (True, False))
        check_number("trust_radius", self.trust_radius, optional=True)


def as_damping(damping: float | LevenbergMarquardt) -> LevenbergMarquardt:
    """The options of a damping that is given by them, or by its value at the start.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if isinstance(damping, LevenbergMarquardt):
        return damping
    if not is_number(damping):
        raise ArgumentError(
            "Expected damping to be a finite number > 0 or LevenbergMarquardt(...), found "
            f"{damping!r}."
        )
    return LevenbergMarquardt(damping)


def check_optimizer_of_others(sites: Collection[str] | None, optim: Any, example: str) -> None:
    """See that there is an optimizer where sites without curvature need one."""
    if sites is not None and optim is None:
        raise ArgumentError(
            f"Expected an optimizer with sites, such as {example}: it moves the sites other than "
            f"{list(sites)} along SVGD's direction. Found None."
        )


def names_of_others(names: Collection[str], sites: Collection[str]) -> list[str]:
    """Latent sites other than those with curvature, of which there has to be one."""
    others = [name for name in names if name not in sites]
    if not others:
        raise ArgumentError(
            f"Expected sites to leave some latent sites to the optimizer, found all of them, "
            f"{list(sites)}. Leave sites out."
        )
    return others


class Proposal(NamedTuple, Generic[Array]):
    """Moves within the trust region.

    Parameters
    ----------
    moves : array (P, D)
    lengths : array (P,)
        sqrt(d'Hd / D) of each.
    shortened : array (P,) of bool
        Whether the radius was reached.
    """

    moves: Float[Array, "P D"]
    lengths: Float[Array, " P"]
    shortened: Bool[Array, " P"]


class Judgement(NamedTuple, Generic[Array]):
    """What became of a proposed move.

    Parameters
    ----------
    accepted : array (P,) of bool
        Particles that take it.
    damping : float, or array ()
        Of the next step.
    disagreement : float, or array ()
        Mean over particles, each at most 2.
    radius : array (P,), optional
        Of each particle at the next step.
    """

    accepted: Bool[Array, " P"]
    damping: Any
    disagreement: Any
    radius: Float[Array, " P"] | None


def solver_costs(
    system: NewtonSystem, curvature: CurvatureSizes, number: int, dim: int, num_basis: int
) -> dict[Solver, float]:
    """Multiplications that each solver takes, for those that can solve the system.

    Parameters
    ----------
    number, dim, num_basis : int
        Particles, coordinates, and vectors that span the kernel's gradients.
    """
    rows = curvature.rows
    # Of one product with the curvature of one particle.
    own = 2.0 * rows * dim + (dim**2 if curvature.has_matrix else 0)
    own += sum(left * right * (left + right) for left, right in curvature.blocks)
    coupling = 2.0 * number * num_basis * (dim + number) + number**2 * dim
    forming = rows * dim**2 + dim**3 / 3.0
    costs: dict[Solver, float] = {}
    one_matrix = False
    if system.coupling == "block_diagonal":
        costs["cg"] = system.max_iterations * (number**2 * own + coupling)
        costs["dense"] = number * (forming + (number + num_basis) * dim**2)
        size = number * rows + number
        width = number * rows + num_basis
        times = 1 if curvature.one_diagonal else number
        costs["dual"] = times * width**2 * dim + number * (2.0 * size * width**2 + size**3 / 3.0)
    else:
        costs["cg"] = system.max_iterations * (number * own + coupling)
        capacity = 2.0 * number**2 * (number * num_basis) * number + number**6 / 3.0
        one_matrix = dim <= number or system.repulsion == "all"
        if one_matrix:
            costs["dense"] = (number * dim) ** 3 / 3.0 + number**3 * dim**2
        else:
            costs["dense"] = number * (forming + num_basis * dim**2) + capacity
        if system.repulsion == "diagonal":
            costs["dual"] = number * (rows**2 + 2.0 * rows * num_basis) * dim + capacity
    if curvature.has_matrix or curvature.blocks:
        costs.pop("dual", None)
    if (number * dim if one_matrix else dim) > LARGEST_DENSE:
        costs.pop("dense", None)
    return costs


def choose_solver(asked: Solver | None, costs: Mapping[Solver, float]) -> Solver:
    """The solver asked for, or the cheapest: conjugate gradients only where ten times as cheap.

    They stop at a tolerance, and the others are exact.

    Raises
    ------
    ArgumentError
        The solver asked for cannot solve the system.
    """
    if asked is None:
        return min(costs, key=lambda name: costs[name] * (10.0 if name == "cg" else 1.0))
    if asked not in costs:
        raise ArgumentError(
            f"Expected a solver among {sorted(costs)} for this system, found {asked!r}: "
            '"dual" needs a curvature of rows and a diagonal, and "dense" one matrix that fits in '
            "memory."
        )
    return asked


class NewtonPart(EngineShell):
    """What the packages' ``SVN`` do alike, before their family.

    Their constructors take the options of :class:`GaussNewton`, :class:`NewtonSystem` and
    :class:`LevenbergMarquardt`, or words for them.
    """

    #: An optimizer of the host, as a user would write it.
    _an_optimizer: ClassVar[str]
    #: The kernel by the coupling of the system, and one that is given as one of this package.
    _kernel_by: ClassVar[Callable[..., Any]]
    _as_kernel: ClassVar[Callable[..., Any]]
    #: A metric by products with the curvature, and the coordinates of some sites of a target.
    _metric: ClassVar[Callable[..., Any]]
    _coordinates: ClassVar[Callable[..., Any]]

    def _set_newton(
        self, optim: Any, kernel: Any, curvature: Any, system: Any, step_size: Any, damping: Any
    ) -> None:
        if not callable(step_size):
            check_number("step_size", step_size, most=1.0)
        self.curvature = as_curvature(curvature)
        check_optimizer_of_others(self.curvature.sites, optim, self._an_optimizer)
        self.system = as_system(system)
        default = self._kernel_by(self.system.coupling)
        self.kernel = default if kernel is None else self._as_kernel(kernel)
        self.damping = as_damping(damping)
        self.step_size = step_size

    def _settings(self) -> dict[str, str]:
        names = ("kernel", "curvature", "system", "step_size", "damping")
        own = {name: describe(getattr(self, name)) for name in names}
        return {**own, **super()._settings()}

    def _others(self, target: Any, program: Any) -> Any:
        """Coordinates that the optimizer moves: those of other sites, or all."""
        if self.curvature.sites is None:
            return program.where
        return self._coordinates(target, names_of_others(target.layout.names, program.sites))

    def _kernel_of(self, curvature: Any) -> Any:
        return self.kernel.with_curvature(self._metric(curvature.mean_products))

    def _costs(self, program: Any, curvature: Any, particles: Any) -> dict[Solver, float]:
        """What each solver costs, by the sizes of a curvature at particles (P, D)."""
        points = program.where.part(particles)
        num_basis = len(self._kernel_of(curvature).interactions(points).basis)
        number, dim = points.shape
        return solver_costs(self.system, curvature.sizes, number, dim, num_basis)

    def _scores_of_a_step(self, plan: Any) -> float:
        # A whole matrix of curvature takes a product with each coordinate's direction.
        return 1.0 + plan.target.dim if plan.solver == "dense" else 1.0
