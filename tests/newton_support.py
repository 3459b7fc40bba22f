"""Stein variational Newton by its definition, block by block and slowly, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
KernelFunction = Callable[[Vector, Vector], Any]

#: As the packages say: added to the kernel matrix, in units of its mean diagonal.
NUGGET = 1e-3
SYSTEMS = [
    ("full", "diagonal", "dense"),
    ("full", "diagonal", "dual"),
    ("full", "diagonal", "cg"),
    ("full", "all", "dense"),
    ("full", "all", "cg"),
    ("block_diagonal", "diagonal", "dense"),
    ("block_diagonal", "diagonal", "dual"),
    ("block_diagonal", "diagonal", "cg"),
]


#: Kernel, parts of the curvature, particles and dimensions.
CASES = [
    ("default", "rows", 3, 5),
    ("RBF, curvature", "shared", 3, 5),
    ("scaled Gaussian", "everything", 5, 5),
    ("RBF, median", "shared", 3, 5),
]


def rbf_in_curvature(z: Vector, metric: Vector) -> KernelFunction:
    """Equation 17 of Leviyev et al. (2022)."""
    dim = z.shape[1]
    return lambda x, y: np.exp(-((x - y) @ metric @ (x - y)) / (2.0 * dim))


def scaled_gaussian(z: Vector, metric: Vector) -> KernelFunction:
    dim = z.shape[1]
    return lambda x, y: np.exp(-((x - y) @ (x - y)) / (2.0 * dim))


def default(z: Vector, metric: Vector) -> KernelFunction:
    dim, centre = z.shape[1], z.mean(0)

    def kernel(x: Vector, y: Vector) -> Any:
        radial = (1.0 + (x - y) @ metric @ (x - y) / (2.0 * dim)) ** -0.5
        linear = 1.0 + (x - centre) @ metric @ (y - centre) / dim
        return 0.5 * radial + 0.5 * linear

    return kernel


def median_rule(z: Vector, metric: Vector) -> KernelFunction:
    squared = [((a - b) ** 2).sum() for i, a in enumerate(z) for b in z[:i]]
    width = float(np.median(squared)) / math.log(len(z) + 1)
    return lambda x, y: np.exp(-((x - y) @ (x - y)) / width)


KERNELS = {
    "default": default,
    "RBF, curvature": rbf_in_curvature,
    "scaled Gaussian": scaled_gaussian,
    "RBF, median": median_rule,
}


def own_kernels(module: Any) -> dict[str, Any]:
    """The same kernels of a package; None is the default."""
    return {
        "default": None,
        "RBF, curvature": module.RBF("dimension", metric="curvature"),
        "scaled Gaussian": module.RBF("dimension"),
        "RBF, median": module.RBF(),
    }


def gradient(kernel: KernelFunction, x: Vector, y: Vector) -> Vector:
    """grad_x k(x, y), by complex steps, which have no rounding error to speak of."""
    step = 1e-30
    found = np.zeros(len(x))
    for d in range(len(x)):
        moved = x.astype(complex)
        moved[d] += 1j * step
        found[d] = kernel(moved, y).imag / step
    return found


def newton_moves(
    z: Vector,
    scores: Vector,
    curvature: Vector,
    kernel: KernelFunction,
    system: str,
    repulsion: str = "diagonal",
) -> Vector:
    """Moves (P, D) of the particles for curvatures (P, D, D) of minus the log density, damped."""
    number, dim = z.shape
    gram = np.array([[kernel(a, b) for b in z] for a in z])
    gram += NUGGET * np.trace(gram) / number * np.eye(number)
    slope = np.array([[gradient(kernel, a, b) for b in z] for a in z])  # [p, m]: grad_{z_p} k_pm
    right = np.zeros((number, dim))
    for m in range(number):
        for p in range(number):
            right[m] += (gram[p, m] * scores[p] + slope[p, m]) / number
    blocks = np.zeros((number, number, dim, dim))
    for m in range(number):
        for n in range(number):
            for p in range(number):
                blocks[m, n] += gram[p, m] * gram[p, n] * curvature[p] / number
                if repulsion == "all" or m == n:
                    blocks[m, n] += np.outer(slope[p, n], slope[p, m]) / number
    if system == "block_diagonal":
        return np.stack([np.linalg.solve(blocks[m, m], right[m]) for m in range(number)])
    matrix = blocks.transpose(0, 2, 1, 3).reshape(number * dim, number * dim)
    weights = np.linalg.solve(matrix, right.reshape(-1)).reshape(number, dim)
    return gram.T @ weights


def parts(seed: int, number: int, dim: int, rows: int) -> dict[str, Vector]:
    """Particles, scores and parts of a curvature."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(number, dim, dim)) / math.sqrt(dim)
    left, right = generator.normal(size=(number, 2, 3)), generator.normal(size=(number, 2, 4))
    return {
        "z": generator.gamma(2.0, size=(number, dim)),
        "scores": generator.normal(size=(number, dim)),
        "diagonal": generator.gamma(2.0, size=(number, dim)),
        "shared": generator.gamma(2.0, size=(1, dim)),
        "rows": generator.normal(size=(number, rows, dim)),
        "matrix": root @ root.transpose(0, 2, 1),
        "left": left @ left.transpose(0, 2, 1),
        "right": right @ right.transpose(0, 2, 1),
    }
