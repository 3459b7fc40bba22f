"""Closed form for matrix-normal guides: the rows and the columns of a matrix regressed in turn.

A matrix W (n x p) has the guide W = M + A E B^T with standard Normal E, so row covariance
U = A A^T and column covariance V = B B^T. Its score is S(W) = -U^-1 (W - M) V^-1. With D and S
half the differences of a mirrored pair's matrices and of its scores (see
:mod:`ppl_ext.regression.pairs`),

    S B = -U^-1 (D B^-T),     A^T S = -(A^-1 D) V^-1:

the p columns of one pair are p observations for the regression of U^-1, and its n rows are n
observations for that of V^-1. Each is a regression of the kind that
:mod:`ppl_ext.regression.full` describes, with the same steps that know the noise, from

    E[D V^-1 D^T] / p,   E[S D^T] / p,   E[S V S^T] / p       for the rows,
    E[D^T U^-1 D] / n,   E[S^T D] / n,   E[S^T U S] / n       for the columns.

*Old moments.* U and V change from update to update. The running averages take each pair with the
factors that drew it. For a target with precision K (x) L, E[D V^-1 D^T] = p U and
E[S D^T] = -tr(L V) K U, so the slope is proportional to K whatever V was: a wrong column factor
adds noise to the row factor, and no bias, and the noise vanishes as both become right. For the
same reason early pairs are worth less than late ones, and the averages forget faster than those
of a full guide: their weights are f (t + 1)^-decay, at most one, with f = ``FORGETTING``.

*One scale.* A and B share a scale, (c A, B / c) being the same guide. In the moments of the rows V
is divided by det(V)^(1/p), and U takes that factor, so that the row step tells the scale of the
whole; in those of the columns U is. Of the column step only the shape is taken, its covariance
divided by the geometric mean of its eigenvalues: otherwise a common factor, which both steps see,
would be counted twice.

*Mean.* M+ - M = E[W] - M + U+ E[S] V+, in the noise's eigenbases of rows and columns entry (i, j)
over 1 + rho_i + rho_j, and by at most one unit of Mahalanobis distance for a matrix. Its averages
E[W] and E[S] have weights of the same form. There f falls linearly to one over a run of known
length: a mean that is still on its way, as in a network, must forget where it came from, and one
that has arrived should average.

Coordinates that belong to no matrix are regressions of one coordinate each.

The fixed point has E_q[S] = 0, -E_q[S (W - M)^T] = p I and -E_q[S^T (W - M)] = n I in whitened
coordinates, where the evidence lower bound is stationary.

Pairs with scores that come from an overflow are left out, see :mod:`ppl_ext.regression.overflow`.
"""
