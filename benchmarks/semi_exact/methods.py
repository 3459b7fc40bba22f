"""The kernels that are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def hybrid(kernels: Any, kernel: Any) -> Any:
    """SVGD with two kernels: ``kernel`` drives, and sqrt(D) times it repels.

    Hybrid kernels (D'Angelo, Fortuin and Wenzel 2021, https://arxiv.org/abs/2106.10760) are meant
    to mend the variances that one kernel loses in many dimensions. The direction belongs to no
    positive definite kernel.
    """

    @dataclasses.dataclass(frozen=True, repr=False)
    class Hybrid(kernels.Kernel):
        kernel: Any

        def init(self, particles: Any) -> Any:
            return self.kernel.init(particles)

        def direction(self, state: Any, particles: Any, scores: Any) -> Any:
            whole, following = self.kernel.direction(state, particles, scores)
            repulsion, _ = self.kernel.direction(state, particles, 0.0 * scores)
            return whole + (particles.shape[1] ** 0.5 - 1.0) * repulsion, following

        def gram(self, state: Any, particles: Any) -> Any:
            return self.kernel.gram(state, particles)

    return Hybrid(kernel)


def _imq(k: Any) -> Any:
    return k.IMQ("dimension", metric="variance")


def _marginal(k: Any) -> Any:
    return k.mixture([_imq(k), k.Additive()])


def _stretched(k: Any) -> Any:
    return k.hierarchical_kernel().many


def _stretched_exact(k: Any) -> Any:
    return k.SemiExact(k.mixture([_imq(k), k.Additive(4.0)]) + 0.3 * k.Dilation())


#: The default kernel for fewer particles than half the pairs of coordinates, the same with a term
#: for the marginals, and that with exact moments.
DEFAULT, MARGINAL = "IMQ + Linear", "IMQ + Additive + Linear"
EXACT = "SemiExact(IMQ + Additive)"
#: Kernels that look at widths of coordinates given others: the default for more particles, which
#: Pyro runs beside the three above, and one with exact moments.
STRETCHED = "RBF + Additive + Dilation + Linear"
STRETCHED_EXACT = "SemiExact(IMQ + Additive + Dilation)"

#: Heading -> a function of a package's `kernels` module.
METHODS: dict[str, Callable[[Any], Any]] = {
    DEFAULT: lambda k: k.mixture([_imq(k), k.Linear()]),
    MARGINAL: lambda k: k.mixture([_imq(k), k.Additive(), k.Linear()], [0.25, 0.25, 0.5]),
    "RBF": lambda k: k.RBF(),
    "IMQ": _imq,
    "IMQ + Additive": _marginal,
    # SVGD with the linear kernel moves a Normal within Normals (Liu, Ghosal, Balasubramanian and
    # Pillai 2023, https://arxiv.org/abs/2305.14076).
    "Gaussian-SVGD": lambda k: k.Linear(),
    "hybrid RBF": lambda k: hybrid(k, k.RBF()),
    "SemiExact(RBF)": lambda k: k.SemiExact(k.RBF()),
    "SemiExact(IMQ)": lambda k: k.SemiExact(_imq(k)),
    EXACT: lambda k: k.SemiExact(_marginal(k)),
    "SemiExact(hybrid RBF)": lambda k: k.SemiExact(hybrid(k, k.RBF())),
    STRETCHED: _stretched,
    STRETCHED_EXACT: _stretched_exact,
}
