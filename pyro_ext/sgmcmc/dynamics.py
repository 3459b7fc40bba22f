"""One step of each dynamics, as pure functions of tensors.

``z`` are C positions (C, D) in unconstrained space, ``score`` the gradient of the log density
there, or an unbiased estimate, and ``noise`` Normal of variance T, the temperature, which is 1 for
draws of the posterior; all of one shape.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def langevin_step(
    z: Float[Tensor, "*C D"],
    score: Float[Tensor, "*C D"],
    noise: Float[Tensor, "*C D"],
    step_size: float,
    preconditioner: Float[Tensor, " ..."] | None = None,
) -> Float[Tensor, "*C D"]:
    """A step of overdamped Langevin dynamics by the Euler-Maruyama scheme.

        z + α G s + sqrt(2 α G) ε

    Many texts write α / 2 for the α here.

    Parameters
    ----------
    z, score, noise : tensor (C, D)
    step_size : float
        α.
    preconditioner : tensor (C, D), optional
        The diagonal of G, default one, which must not depend on z, or only slowly: the term for
        its derivative is left out.
    """
    if preconditioner is None:
        moved = torch.add(z, score, alpha=step_size)
        return moved.add_(noise, alpha=math.sqrt(2.0 * step_size))
    size = step_size * preconditioner
    return torch.addcmul(z, size, score).addcmul_((2.0 * size).sqrt(), noise)


def hamiltonian_step(
    z: Float[Tensor, "*C D"],
    momentum: Float[Tensor, "*C D"],
    score: Float[Tensor, "*C D"],
    noise: Float[Tensor, "*C D"],
    step_size: float,
    friction: float,
    mass: Float[Tensor, " ..."] | None = None,
) -> tuple[Float[Tensor, "*C D"], Float[Tensor, "*C D"]]:
    """A step of Langevin dynamics with momentum, by a symmetric splitting.

    The dynamics dz = M^-1 r dt, dr = s dt - γ r dt + sqrt(2 γ M) dW is split into a kick by the
    score, two half drifts, and friction with its noise between these, which is solved exactly:
    r' = e^(-γ ε) r + sqrt(M (1 - e^(-2 γ ε))) ξ. The positions have the same
    distribution as those of the scheme BAOAB, which kicks by halves: exact for a Normal target
    with exact scores at every step size that is stable.

    Parameters
    ----------
    z, momentum, score, noise : tensor (C, D)
        ``score`` is that at z.
    step_size : float
        ε, a time; stable below 2 sd sqrt(M).
    friction : float
        γ, an inverse time: C M^-1 of the paper.
    mass : tensor (D,), optional
        The diagonal of M, default one.

    Returns
    -------
    z, momentum : tensor (C, D)

    References
    ----------
    T. Chen, E. Fox and C. Guestrin, "Stochastic gradient Hamiltonian Monte Carlo", ICML 2014,
    https://arxiv.org/abs/1402.4102; B. Leimkuhler and C. Matthews, "Rational construction of
    stochastic numerical methods for molecular sampling", AMRX 2013,
    https://doi.org/10.1093/amrx/abs010.
    """
    mass = torch.ones_like(z[0]) if mass is None else mass
    decay = math.exp(-friction * step_size)
    # BAOAB ends a step and begins the next with half a kick at one position: here they are one, so
    # that a step takes one score.
    momentum = momentum + step_size * score
    z = torch.addcdiv(z, momentum, mass, value=0.5 * step_size)
    # The exact solution of dr = -γ r dt + sqrt(2 γ M) dW over a time of ε.
    momentum = decay * momentum + (mass * (1.0 - decay**2)).sqrt() * noise
    z = torch.addcdiv(z, momentum, mass, value=0.5 * step_size)
    return z, momentum
