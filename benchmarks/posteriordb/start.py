"""Where runs start: the best local Normal approximation along the way to a mode.

The first steps of Pathfinder (L. Zhang, B. Carpenter, A. Gelman and A. Vehtari, "Pathfinder:
Parallel quasi-Newton variational inference", 2022): L-BFGS from random points towards modes, a
Normal approximation at several points of its path, and of these the one with the highest bound on
the evidence. Modes of hierarchical models may be useless, far down a funnel; points on the way are
not. C. Modi et al., "Variational inference with Gaussian score matching" (2023), start their runs
on posteriordb likewise, from a mode by L-BFGS. The covariance is the inverse Hessian, by
differences of scores. Every score evaluation counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.posteriordb.methods import Floats, Program

#: Uniform random points start within this distance of 0 in every coordinate.
RADIUS = 1.0
#: Iterations of L-BFGS, and points of its path at which an approximation is made.
ITERATIONS, CANDIDATES = 200, 5
#: Paths from random points; more than one, since some end in modes of little mass.
PATHS = 4
#: A mode whose log density is so much below the best one's, with an allowance for each dimension,
#: has next to no mass.
WORSE, WORSE_PER_DIMENSION = 10.0, 1.0
#: Draws of an approximation that its bound is estimated with.
DRAWS = 20
#: Nats of the bound that do not count.
SAME = 1.0
#: Standard deviations of an approximation are at most this in any direction.
WIDEST = 10.0
#: Beyond so many dimensions a Hessian costs too many evaluations: unit scales instead.
MOST_DIMENSIONS = 200


@dataclass(frozen=True)
class Start:
    """A Normal distribution to start from.

    Attributes
    ----------
    mean : array (D,)
    factor : array (D, D)
        Lower Cholesky factor of the covariance.
    evaluations : int
        Score evaluations that it cost.
    """

    mean: Floats
    factor: Floats
    evaluations: int

    @property
    def scale(self) -> Floats:
        """Standard deviations (D,) of a diagonal Normal with the same conditional ones."""
        inverse = np.linalg.inv(self.factor)
        return 1.0 / np.sqrt(np.square(inverse).sum(0))

    def draw(self, number: int, seed: int) -> Floats:
        """Points (number, D)."""
        noise = np.random.default_rng(seed).normal(size=(number, len(self.mean)))
        return self.mean + noise @ self.factor.T


def uniform(dim: int, seed: int, number: int) -> Floats:
    """Points (number, D) of the host's kind of start."""
    return np.random.default_rng([5, seed]).uniform(-RADIUS, RADIUS, (number, dim))


def of_chains(start: Start | None, dim: int, seed: int, number: int) -> tuple[int, Floats, Floats]:
    """Evaluations spent, scales (D,) and points (number, D) of chains; None is the host's start."""
    if start is None:
        return 0, np.ones(dim), uniform(dim, seed, number)
    return start.evaluations, start.scale, start.draw(number, seed)


def find(program: Program, seed: int) -> Start:
    """The start of a program's runs with a seed.

    Raises
    ------
    ArithmeticError
        No random point has a finite density and score.
    """
    generator = np.random.default_rng([4, seed])
    spent = 0

    def negated(z: Floats) -> tuple[float, Floats]:
        nonlocal spent
        spent += 1
        value, score = program.value_and_score(z[None])
        if not (np.isfinite(value).all() and np.isfinite(score).all()):
            # Finite, so that the line search turns back.
            return 1e100, np.zeros_like(z)
        return -float(value[0]), -score[0]

    def follow() -> tuple[float, list[Floats]]:
        """A path to a mode, and the log density there."""
        for _ in range(100):
            start = generator.uniform(-RADIUS, RADIUS, program.dim)
            if negated(start)[0] < 1e99:
                break
        else:
            raise ArithmeticError("no random starting point has a finite density and score")
        path = [start]
        found = minimize(
            negated,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=lambda z: path.append(z.copy()),
            options={"maxiter": ITERATIONS, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-8},
        )
        return -float(found.fun), path

    paths = [follow() for _ in range(PATHS)]
    # The first that is not far below the best: densities of modes tell little of their mass, and
    # in a funnel the highest has none.
    least = max(height for height, _ in paths) - WORSE - WORSE_PER_DIMENSION * program.dim
    path = next(path for height, path in paths if height >= least)
    noise = generator.normal(size=(DRAWS, program.dim))
    candidates: list[tuple[float, Floats, Floats]] = []
    # Close together at first: a path down a funnel leaves what is worth having early.
    rows = np.unique(np.geomspace(1, max(1, len(path) - 1), CANDIDATES).round().astype(int))
    rows = rows[rows < len(path)]
    for point in (path[row] for row in rows) if len(rows) else path:
        factor, evaluations = local_factor(program, point)
        draws = point + noise @ factor.T
        with np.errstate(all="ignore"):
            values = program.log_density(draws)
        spent += evaluations + DRAWS
        entropy = np.log(np.diag(factor)).sum()
        bound = float(values.mean() + entropy) if np.isfinite(values).all() else -np.inf
        candidates.append((bound, point, factor))
    least = max(bound for bound, _, _ in candidates) - SAME
    # A few draws tell no more; of points that are as good the last is nearest to the mode.
    _, point, factor = [found for found in candidates if found[0] >= least][-1]
    return Start(point, factor, spent)


def local_factor(program: Program, point: Floats) -> tuple[Floats, int]:
    """Cholesky factor (D, D) of the local covariance at a point, and the evaluations it cost.

    Negative curvature counts by its size, and none makes a standard deviation above ``WIDEST``.
    """
    dim = program.dim
    if dim > MOST_DIMENSIONS:
        return np.eye(dim), 0
    step = 1e-5 * np.maximum(1.0, np.abs(point))
    moves = np.diag(step)
    scores = program.value_and_score(np.concatenate([point + moves, point - moves]))[1]
    hessian = (scores[dim:] - scores[:dim]) / (2.0 * step[:, None])
    if not np.isfinite(hessian).all():
        return 0.1 * np.eye(dim), 2 * dim
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    values = np.maximum(np.abs(values), WIDEST**-2)
    # Of a root of the covariance, since of the covariance itself, as in the neck of a funnel,
    # rounding leaves nothing of the narrow directions.
    upper = np.linalg.qr((vectors / np.sqrt(values)).T).R
    return upper.T * np.where(np.diag(upper) < 0.0, -1.0, 1.0), 2 * dim
