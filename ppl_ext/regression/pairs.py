"""Mirrored pairs of draws, and running averages over them.

Draws come in antithetic pairs, m + d and m - d, evaluated on the same minibatch. Half the
difference of the two scores, e = (score(m + d) - score(m - d)) / 2, has the noise that the pair
shares removed, so a covariance is learnt from the pairs (d, e) alone, and the mean from the pairs'
centres.

Running averages have weights r_t = (t + 1)^-decay; n, the number of pairs that they are worth, is
one over the sum of the pairs' squared weights.
"""

from __future__ import annotations

#: How much more the latest pairs count where averages have to forget faster.
FORGETTING = 3.0
