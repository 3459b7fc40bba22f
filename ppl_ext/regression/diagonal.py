"""Closed form for diagonal Normal guides: damped natural-gradient steps that start cold.

The guide has means m and standard deviations s, and precisions P = 1 / s^2; what follows holds for
each coordinate. At temperature tau the bound is E_q[log pi] + tau H(q), with the entropy H. With
the target's score g(theta), it is stationary where

    E_q[g] = 0   and   P = h / tau,   h = -E_q[dg / dtheta].

A natural-gradient step on it, of length a for the mean and b for the precision, is

    m+ = m + a E_q[g] / (tau P),   P+ = (1 - b) P + b h / tau

(Khan and Lin, 2017, "Conjugate-computation variational inference"; with h averaged over steps,
the "variational online Newton" of Khan et al., 2018). Here P+ = P (h / (tau P))^b is taken instead,
which agrees to first order in h / (tau P) - 1 and cannot become negative.

*The curvature is regressed.* Draws come in mirrored pairs m + d and m - d, with d = s z; see
:mod:`ppl_ext.regression.pairs`. Half the difference of their scores is e. By Stein's
identity y = -e / s is a regression on z with slope h: E[y z] = h. Running averages keep

    Z = E[z^2],   A = E[y z],   R = E[y^2],

A / Z is the least-squares slope and exact for a Normal target with independent coordinates. The
residual (R - A^2 / Z) s^4, over 1 - 1 / n, is the noise r in units of the present precision, n
being the number of pairs that the averages are worth. A noisy slope is pulled towards the present
precision by rho = tau^2 r / n: the factor that P should change by, if all at once, is

    M = (A s^2 / tau + rho) / (Z + rho)   and   P+ = P M^b, with M limited to [1/4, 4].

*The mean knows its noise.* v is the average of (g - u)^2, with u an average of g over at most
the last ten steps, so that v has noise, and swings from step to step, but not a drift. The mean
moves by

    m+ - m = a c_t u / (max(M, 1) tau P),   a = 0.3 / (1 + x),   x = 0.3 v s^2 / (20 tau),

at most by s. A guide that is still too wide would overshoot, which max(M, 1) prevents; it knows
what precision is to come. c_t falls from 1 to 0 along a half cosine over the run.

*Cold at first.* Curvature is that of the place where the guide now is. A network that has not been
learnt yet predicts with a large error, finds a small curvature, and a guide that followed at once
would widen until it is the prior, where nothing is left to learn from. Many coordinates do this
together. So tau starts at (10 / D)^2, but at least at 1/1000 and at most at 1, and rises to 1,
geometrically, over the first half of the run. The means are found first, by narrow guides, and the
widths open up to those of the target from inside. With ten coordinates or fewer nothing is cold:
narrow guides follow the density to its mode, which in a centred hierarchical model is far from the
mass. Both numbers were chosen on such models and on networks. While it is cold the mean has a way
to go, and noise would make it creep where the posterior is very narrow beside the noise, as that of
a likelihood at a low temperature is. So what x has beyond X = 10^4 counts as X (x / X)^(1 - k / 2),
with k falling from 1 to 0 meanwhile: at k = 1 steps are those of u over the root of v, as Adam's.

*Lengths in shares of the run.* b = 20 / T, with T the number of iterations (at most 1/2), so that
the precision takes some twenty of its time constants at any T, and the averages forget no slower
than with rate 20 / T (at most 1/5), as what was found where the guide was long ago is of no use. So
short runs of a few tens of iterations converge when there is no noise, and long ones average.

*Patient at last.* A precision that follows noisy slopes wanders, the further the fewer its time
constants average, and a guide that happens to be wide there sees the more noise. With lambda rising
from 0 to 1 over the second half of the run, b is divided by 1 + 10 lambda rho and the noise
tolerated in the mean, 20 above, is multiplied by 10^-lambda: coordinates with much noise settle
early and average for longer, and those without it are left as they are. When T is unknown, rates
are those in the middle of a run of 2 t iterations, and at least 2,000, with the steps of the mean
falling as 1 / t.

*Overflow.* Pairs with scores that are finite and yet many orders too large are left out, see
:mod:`ppl_ext.regression.overflow`; the schedule goes on.
"""

from __future__ import annotations

#: Coordinates up to which tau starts at 1, the least tau, and the share of the run in which it
#: rises to 1.
WARM_COORDINATES, COLDEST, COLD_SHARE = 10.0, 1e-3, 0.5
#: Time constants of the averages and of the precision in a run.
TIME_CONSTANTS = 20.0
#: Limits of b, the share of the step to the new log precision, and of the averages' rate.
LARGEST_STEP, LARGEST_RATE = 0.5, 0.2
#: Step a of the mean when there is no noise, and the noise that halves a step of length one.
MEAN_STEP, TOLERATED_NOISE = 0.3, 20.0
#: The noise x of the mean beyond which only its root counts, while the start is cold.
GREAT_NOISE = 1e4
#: At the end of the run: the factor by which less noise is tolerated in the mean, and how much the
#: noise of a slope damps the step of its precision.
LATE_TOLERANCE, LATE_DAMPING = 0.1, 10.0
#: M is limited to this factor and its inverse.
LARGEST_FACTOR = 4.0
#: Share of the run, and number of its iterations at the most, over which a mean score is averaged.
AVERAGED_SHARE, AVERAGED_SCORES = 0.01, 10.0
#: Iterations that a run of unknown length has at least.
LEAST_ITERATIONS = 2000
