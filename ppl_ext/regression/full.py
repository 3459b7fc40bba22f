"""Closed form for full-covariance Normal guides: recursive regression of noisy scores.

For a Normal q with mean m and precision P the score, grad log q(theta) = P (m - theta), is linear
in (P m, P). The proximal score-matching objective is then a linear least-squares problem: the
(noisy) scores of the target are regressed on the points where they were taken. Running moments
take the place of an optimiser and average the noise out; there is no learning rate.

*Pairs.* Scores come in mirrored pairs; see :mod:`ppl_ext.regression.pairs` for the halves
d and e of their differences. The slope P is regressed on

    V = E[d d^T],   C = E[e d^T],   R = E[e e^T].

*Steps that know the noise.* In coordinates whitened by L, where Sigma = inverse P = L L^T is the
present covariance, the residual R - C V^-1 C^T, over 1 - D / n, is the covariance of the noise.
In its eigenbasis row i of the slope has noise variance r_i / n in each entry, so that

- each row is pulled towards the present precision, the identity, by rho_i = D r_i / n:
  B_i = (rho_i I_i - C_i) (V + rho_i I)^-1, which keeps the noise in B below one half at any
  level and vanishes as n grows;
- the two estimates B_ij and B_ji of one entry of the symmetric precision are averaged with
  weights 1 / r_i and 1 / r_j;
- eigenvalues of the result are limited to at most c, and to no less than
  1 / (1 + (c - 1) / (1 + D r / 3)): a guide that widens faster than the noise lets it see would
  soon rest on its last few draws, as wide draws outweigh the earlier ones, and would run away;
- the mean moves by m+ - m = E[theta] - m + Sigma+ E[score], each row over 1 + rho_i, and by at
  most one unit of Mahalanobis distance. These two averages forget faster at first, see
  :func:`~ppl_ext.regression.pairs.next_mean_weight`.

*Overflow.* One score that is finite and yet thirty orders too large would rule V^-1 C for ever: the
guide would shrink to nothing. Pairs with such scores are left out, see
:mod:`ppl_ext.regression.overflow`.

The fixed point has E_q[score] = 0 and -E_q[grad score] = P, which by Stein's identity is where
the evidence lower bound is stationary. Without noise it is reached exactly for a Normal target,
once there are D + 5 pairs.
"""

from __future__ import annotations

#: Pairs seen before the first update, beyond the number of regressors.
SPARE_PAIRS = 5
# The share of the noise (in units of D r) that a guide may outrun when it widens.
HASTE = 3.0
