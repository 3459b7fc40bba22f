"""Closed form for mixtures of full-covariance Normals: a search for modes, then a match of scores.

The guide is q = sum_k w_k q_k with q_k = N(m_k, P_k^-1). Every iteration draws mirrored pairs
m_k + d, m_k - d from each component. With f = log pi - log q, all that is used of the target is
f and its gradient at these draws, which vanish (but for a constant in f) where q is the target: so
steps are as quiet as the fit is good. Components move in their own units: with P_k^-1 = L L^T, a
move a and a symmetric change B make m_k + L a and L^-T (I + B) L^-1.

*Search*, the first half of the run. Each component takes natural-gradient steps on the evidence
lower bound (Lin, Khan and Schmidt, 2019, "Fast and simple natural-gradient variational inference
with mixture of exponential-family approximations"): m_k moves by L a with

    a = 0.3 L^T E_k[grad f],   and   B = -0.3 A,

where A stands for L^T E_k[Hess f] L. By Stein's identity that is E_k[e z^T], with z = L^-1 d and e
half the difference of L^T grad f over the pair, but a single e z^T is large: its mean is a sum of
D of them. A is the least symmetric matrix with A z = e instead, as in quasi-Newton methods (and,
for a Normal target, exact along z), which takes D / 2 times longer steps and yet never increases
the error of a precision.

A component can end at a mode that another one has found. Dropping component k would cost

    c_k = w_k E_k[log q - log q_without_k],

the divergence of q to what is left, up to the other components' gain. Twenty times in a run the
component of least c_k, when it is below 0.02, is started again: in turn near where the guide
started, with a width between the narrowest and the widest component's there, and within three
standard deviations or so of the heaviest component, in its shape and up to four times narrower.
Narrow ones find high modes nearby, and wide ones heavy ones. c_k needs no evaluation of the target.

*Match*, the second half. The lower bound of overlapping components has flat valleys, and poor
maxima where a component is lost. But all components together can match the scores at all draws.
The linearised change of grad log q at a draw is, with r_k the component's share of q there,
u_k = P_k (m_k - theta), y = L_k^-1 (theta - m_k) and v_k the change of log w_k,

    sum_k r_k [L_k^-T (a_k - B_k y) + (u_k - grad log q) (v_k + a_k.y + (tr B_k - y.B_k y) / 2)],

that is J x, for all draws and unknowns x = (v, a, B). With R = grad f at the draws, both in units
of the components that drew, the step is the least change of the guide that explains R,

    x = J^T (J J^T + lambda I)^-1 R,   lambda = 0.001 mean diag(J J^T) + mean R^2:

proximal score matching, linearised. Only the inverse of a matrix of the size of R is needed. R in
lambda is of earlier iterations, so that x is linear in the present scores and noise does not bias
it; where scores are noisy or the target cannot be matched, lambda is large and steps are short.
The steps fall to 0 along a half cosine.

*Weights*. Scores tell weights only where components overlap, so values of f are used in both
halves: log w_k moves by b (E_k[f] - E_q[f]), at most by 0.1, with b = 0.1 / (1 + 0.1 v) and v the
mean square of E_k[f] - E_q[f] so far. Constants in log pi do not matter.

Iterations with scores that come from an overflow are left out, see
:mod:`ppl_ext.regression.overflow`: each component's scores are compared with its own earlier
ones since it last started.
"""

from __future__ import annotations

import math

#: Share of the run that is search, and step of the components in it.
SEARCH_SHARE, SEARCH_STEP = 0.5, 0.3
#: Times in a run at which a component may start again, and the cost c_k below which it does.
ROUNDS, LEAST_COST = 20, 0.02
#: A round has at least this many iterations, and two for each coordinate more.
LEAST_ROUND = 20
#: lambda over the mean of the diagonal of J J^T, when scores are matched already.
DAMPING = 0.001
#: Step of the log weights, and its limit.
WEIGHT_STEP = 0.1
#: Limits of one iteration's whitened moves of means, and of the match's change of log weights.
LARGEST_MOVE, LARGEST_CHANGE = 0.3, 0.5
#: Weight of the latest iteration in averages over the recent ones.
RECENT = 0.1
#: Iterations that a run of unknown length is taken to have. It stays at three quarters of them.
UNKNOWN_ITERATIONS, UNKNOWN_SHARE = 2000, 0.75
#: How far from the heaviest component others start again, in its standard deviations, and the
#: logarithm of the factor by which they are narrower at the most.
REACH, NARROWEST = 3.0, math.log(4.0)
#: Logarithm of their weight, next to that of all others.
FIRST_LOG_WEIGHT = math.log(0.01)
# Low-discrepancy widths of components that start again.
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
