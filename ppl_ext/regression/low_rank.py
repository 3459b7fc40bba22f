"""Closed form for low-rank Normal guides: every coordinate's score is regressed on the factor's.

The guide has the covariance Sigma = S (I + W W^T) S with S = diag(scale) and W of shape (D, r). In
z = (theta - m) / scale its precision is I - T G T^T, where T (D, r) is an orthonormal basis of W's
columns and G = I - (K K^T)^-1 with K K^T = I + T^T W W^T T. So the score of coordinate i,

    s_i e_i = -z_i + (T G K)_i y,    y = K^-1 T^T z,

is linear in z_i and in the r standard coordinates y. With P the guide's precision and A minus the
target's mean curvature E_q[grad score], for which E[e d^T] = -A Sigma by Stein's identity, the
evidence lower bound is stationary in the scales where diag((A - P) Sigma) = 0, that is where
-E[e_i d_i] = 1, and in W where (A - P) Sigma S^-1 T = 0, that is where

    -E[s_i e_i y] = (T K^-T)_i.

These are the normal equations of that regression. Mirrored pairs give the halves d and e of the
differences, see :mod:`ppl_ext.regression.pairs`, and running averages of d_i^2, e_i d_i,
e_i^2, d_i y, e_i y and y y^T are all that is kept: O(D r) memory, and no learning rate.

*One update* has three parts, each of which knows its noise (see
:mod:`ppl_ext.regression.full`):

- Coordinate i is regressed on (z_i, y), pulled towards the present guide's coefficients by
  (r + 1) r_i / n for z_i and D r_i / n for y, with r_i the variance of the residual. The
  coefficient of z_i, in [1 / (1 + (c - 1) / (1 + (r + 1) r_i / 3)), c], multiplies 1 / s_i^2.
- In the span of T the full-covariance step is taken, on r coordinates: y against y_e = K^T T^T S e.
- What the coefficients of y have outside of that span, F, turns it. In coordinates of the new
  scales the target's precision H is known on the basis, and off it taken for c: for a target of
  the family it is one there, and slightly more keeps directions that are hardly better than any
  other from turning at random. The r smallest eigenvalues of H on the span of T and F, which takes
  2r x 2r matrices, and their eigenvectors are the next guide's. F is no longer than 1 - 1/c.

Earlier y belong to earlier bases. The averages are multiplied on the right by the r x r matrix
that maps the old coordinates to the new ones. As e = -A d holds for every pair, what is known of A
stays exact when the basis turns; only the directions in which it is known are older ones.

The mean moves by m+ - m = E[theta] - m + Sigma+ E[score], over one plus the pull, by at most one
unit in the span and by one unit in each coordinate outside. Averages for the mean forget sooner,
with weights (t + 1)^-(decay^2): outside of the family Sigma+ A is not the identity, and a mean that
started far away is approached more slowly where it is small.

The fixed point is that of the evidence lower bound for any target. Where target and guide have the
same form and there is no noise, no regression has a residual; otherwise what the family cannot
follow acts as noise that vanishes with n.

Pairs with scores that come from an overflow are left out, see :mod:`ppl_ext.regression.overflow`.
"""

from __future__ import annotations

# Least squared length of a column of the factor: one of length zero has no direction to learn.
LEAST = 1e-3
