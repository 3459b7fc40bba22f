"""Stretches of one coordinate, by an amount that depends on another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.additive import OfOneCoordinate
from ppl_ext.kernels.base import Interactions, KernelState
from ppl_ext.kernels.coordinates import CoordinatesByMetric


@dataclass(frozen=True, repr=False)
class Dilation(OfOneCoordinate):
    """Matrix-valued kernel whose functions stretch a coordinate by what another one is.

    K(x, y) = min(1, P / D^2) a(x, y) diag(u_1 v_1, ..., u_D v_D), with a the kernel
    :class:`~ppl_ext.kernels.additive.Additive`, and u and v as there x and y in units of the
    particles' deviations, from their mean. It is positive definite, of the kind of Wang, Tang,
    Bajaj and Liu 2019 (https://arxiv.org/abs/1910.12794, with another kernel for each coordinate).

    Its functions are f(u_d) u_e e_e, with f the bumps of ``Additive``. Where they are in the span,
    Stein's identity says of every coordinate e

        E[f(u_d) (1 + (z_e - c_e) s_e)] = 0,

    which is what its variance ought to be given coordinate d. Hierarchical models have a scale d
    that decides on the widths of others. There particles that sit in the neck of a funnel, too
    close to its axis, have a score along d that lets them stay. Scalar kernels that are as wide as
    the target do not see that the neck is too thin.

    There are D^2 such pairs for P particles to obey, and so the kernel counts P / D^2 where there
    are fewer particles than pairs. On its own it moves no mean: take it in a sum.

    A step costs what one of ``Additive`` does. In a sum the two have their features in common,
    where their bandwidths are equal.

    Parameters
    ----------
    bandwidth : float, default 4.0
        h, in units of a coordinate's variance.

    Raises
    ------
    ArgumentError
        The bandwidth is not positive and finite.

    Examples
    --------
    >>> Dilation().bandwidth
    4.0
    """

    bandwidth: float = 4.0

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        bumps = self._bumps(points)
        num, dim = len(scores), self.arrays.num_coordinates(scores)
        frame, u = bumps.frame, bumps.frame.points
        ones = self.arrays.functions.ones_like(u)
        # u_e s_e and the derivative of u_e.
        drift = bumps.smoothed(u * scores + frame.pulled_back(ones))
        # Entry e of K is differentiated by z_e alone, of which in a only the bumps of e are
        # functions.
        own = ((bumps.slopes * u[:, :, None]).sum(axis=0) * bumps.values).sum(axis=-1)
        weight = min(1.0, num / dim**2) / num
        return weight * u * (drift + frame.pulled_back(own)), state

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Not defined.

        Raises
        ------
        ArgumentError
            Always: the values are matrices.
        """
        raise _no_scalar()

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        raise _no_scalar()


def _no_scalar() -> ArgumentError:
    return ArgumentError(
        "Expected a scalar kernel, found Dilation, whose values are matrices. It is a term of "
        "hierarchical_kernel(), and of default_kernel() where particles are many. Use "
        'mixture([IMQ("dimension", metric="variance"), Linear()]), or an engine that needs the '
        "direction alone, such as SVGD."
    )
