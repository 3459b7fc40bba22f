"""Proposals that are made better by their own draws."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma, gammaln, logsumexp, polygamma

from ppl_ext.chains import adaptive
from ppl_ext.chains.adaptive import Adapted, Weighted, adapted, flattened
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.start.start import Mode

#: Logarithms of Gamma draws of this shape: a long tail to the left, a short one to the right.
SHAPE, DIM = 0.5, 2
DRAWS = 1_000


def log_gamma(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        return (SHAPE * z - np.exp(z)).sum(-1), SHAPE - np.exp(z)


def at_the_mode() -> Proposal:
    """The Normal at the mode, by curvature: much too narrow on the left."""
    mode = Mode(np.full(DIM, math.log(SHAPE)), np.eye(DIM) / math.sqrt(SHAPE), 0.0, 0.0)
    return Proposal((mode,), np.ones(1))


def rounds(number: int, seed: int, evaluate: Any = log_gamma) -> list[Adapted]:
    generator, proposal = np.random.default_rng(seed), at_the_mode()
    first = Weighted(proposal, *drawn_from(proposal, DRAWS, evaluate, generator))
    found = islice(adapted(evaluate, [first], generator), number)
    return [Adapted(np.eye(DIM), (first,)), *found]


def share(log_ratios: np.ndarray) -> float:
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / np.square(weights).sum() / len(weights))


def test_weights_of_each_proposal_give_the_normaliser_and_the_mean() -> None:
    log_normaliser, mean = DIM * float(gammaln(SHAPE)), float(digamma(SHAPE))
    for each in rounds(4, 0)[1:]:
        proposal, drawn, log_ratios = each.known[-1]
        np.testing.assert_allclose(
            log_ratios, log_gamma(drawn.positions)[0] - proposal.log_density(drawn.positions)
        )
        weights = np.exp(log_ratios)
        error = weights.std() / math.sqrt(DRAWS)
        assert weights.mean() == pytest.approx(math.exp(log_normaliser), abs=4.0 * error)
        weights = weights / weights.sum()
        found = weights @ drawn.positions
        errors = np.sqrt(np.square(weights) @ np.square(drawn.positions - found))
        assert (np.abs(found - mean) < 4.0 * errors).all()


def test_a_few_mixtures_come_near_what_a_normal_is_far_from() -> None:
    found = np.array(
        [[share(each.known[-1].log_ratios) for each in rounds(3, seed)] for seed in range(6)]
    )
    first, best = found[:, 0], found[:, 1:].max(1)
    assert np.median(first) < 0.3 < 0.6 < np.median(best) and (best > 1.5 * first).all()


def test_all_draws_count_by_the_mean_of_all_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(draws: np.ndarray, generator: np.random.Generator, counts: np.ndarray) -> Any:
        seen.append((draws, counts))
        return fitted(draws, generator, counts)

    monkeypatch.setattr(adaptive, "fitted", recorded)
    monkeypatch.setattr(adaptive, "POWERS", np.ones(1))
    found = rounds(3, 1)
    for number, (draws, counts) in enumerate(seen, 1):
        densities = [each.known[-1].proposal.log_density(draws) for each in found[:number]]
        mixed = logsumexp(densities, axis=0)
        right = np.exp(log_gamma(draws)[0] - mixed)
        np.testing.assert_allclose(counts / counts.sum(), right / right.sum(), rtol=1e-9)
        assert len(draws) == number * DRAWS


def test_what_each_proposal_reaches_the_next_one_does() -> None:
    first, *later = (each.known[-1].proposal for each in rounds(3, 2))
    for proposal in later:
        *mixture, wide, kept = proposal.weights
        assert proposal.modes[-1] is first.modes[0] and kept == pytest.approx(0.1)
        assert wide == pytest.approx(0.2) and sum(mixture) == pytest.approx(0.7)


def test_the_metric_is_of_all_draws() -> None:
    """Those of a few hundred effective draws: near the covariance of the density."""
    for each in rounds(4, 3)[2:]:
        covariance = each.metric @ each.metric.T
        right = float(polygamma(1, SHAPE))
        np.testing.assert_allclose(np.diag(covariance), right, rtol=0.5)
        assert abs(covariance[0, 1]) < 0.3 * right
        wide = each.known[-1].proposal.modes[-2].factor
        np.testing.assert_allclose(wide, 1.5 * each.metric)


def test_weights_are_flattened_until_they_leave_enough_draws() -> None:
    generator = np.random.default_rng(3)
    even = flattened(np.zeros(500), 5)
    assert even is not None
    np.testing.assert_allclose(even, 1.0)
    uneven = 5.0 * generator.normal(size=500)
    counts = flattened(uneven, 5)
    assert counts is not None
    effective = counts.sum() ** 2 / np.square(counts).sum()
    assert counts.sum() == pytest.approx(effective) and 100 <= effective < 150
    order = np.argsort(uneven)
    assert (np.diff(counts[order]) >= 0.0).all()
    outside = np.where(np.arange(500) < 250, -np.inf, uneven)
    counts = flattened(outside, 5)
    assert counts is not None and (counts[:250] == 0.0).all() and np.isfinite(counts).all()
    assert flattened(np.full(500, -np.inf), 5) is None
    assert flattened(np.where(np.arange(500) < 492, -np.inf, 0.0), 5) is None


def test_draws_outside_the_support_or_out_of_order_do_not_count() -> None:
    def half(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = log_gamma(z)
        return np.where(z[:, 0] > -1.0, values, -np.inf), scores

    class Ordered:
        def is_ordered(self, z: np.ndarray) -> np.ndarray:
            return np.asarray(z[:, 0] > -1.0)

    symmetry: Any = Ordered()
    proposal = at_the_mode()
    for evaluate, ordered in ((half, None), (log_gamma, symmetry)):
        generator = np.random.default_rng(4)
        begun = Weighted(proposal, *drawn_from(proposal, DRAWS, evaluate, generator, ordered))
        *_, last = islice(adapted(evaluate, [begun], generator, ordered), 2)
        assert len(last.known) == 3
        for each in last.known:
            is_right = each.drawn.positions[:, 0] > -1.0
            assert (is_right == np.isfinite(each.log_ratios)).all()
        # Fewer of the draws are on the other side than of the first proposal's.
        counted = [np.isfinite(each.log_ratios).mean() for each in last.known]
        assert counted[-1] > counted[0]


def test_counts_are_worth_as_many_equal_draws() -> None:
    """A mixture fitted to weighted draws has the moments of the draws repeated as often."""
    generator = np.random.default_rng(5)
    draws = generator.normal(size=(400, 2)) + np.where(np.arange(400) < 200, -4.0, 4.0)[:, None]
    counts = np.where(np.arange(400) < 200, 3.0, 1.0)
    modes, weights, whole = fitted(draws, generator, counts)
    assert whole.mean == pytest.approx(counts @ draws / counts.sum(), abs=0.6)
    means = np.stack([mode.mean for mode in modes])
    right = counts @ draws / counts.sum()
    np.testing.assert_allclose(weights @ means, right, atol=0.15)
    left = weights[means[:, 0] < 0.0].sum()
    assert left == pytest.approx(0.75, abs=0.02)


def test_a_mixture_has_as_many_components_as_the_draws_tell_of() -> None:
    """Those of one Normal tell of one, of three far apart of three; of a ring of many."""
    generator = np.random.default_rng(6)
    few, many = [], []
    for _ in range(3):
        modes, _, _ = fitted(generator.normal(size=(600, 8)), generator)
        few.append(len(modes))
        angle = generator.uniform(0.0, 2.0 * math.pi, 600)
        ring = 10.0 * np.stack([np.cos(angle), np.sin(angle)], 1)
        many.append(len(fitted(ring + 0.3 * generator.normal(size=(600, 2)), generator)[0]))
    # As many as there may be: 13 of the Normal's draws, 17 of the ring's.
    assert max(few) <= 3 and np.median(few) == 1
    assert min(many) >= 8


def test_a_mixture_of_weighted_draws_follows_no_chance() -> None:
    """Few draws of many weights, from a Normal: one component, near the right covariance."""
    generator = np.random.default_rng(7)
    draws = 1.5 * generator.normal(size=(1_000, 6))
    log_weights = -0.5 * np.square(draws).sum(1) * (1.0 - 1.0 / 2.25)
    counts = flattened(log_weights, 6)
    assert counts is not None
    modes, weights, _ = fitted(draws, generator, counts)
    drawn = Proposal(modes, weights).draw(20_000, generator)
    inside = drawn[np.abs(drawn).max(1) < 6.0]
    np.testing.assert_allclose(np.cov(inside.T), np.eye(6), atol=0.35)
    assert len(modes) <= 2


def test_draws_far_out_along_a_line_leave_components_a_root() -> None:
    """A fifth of them are 1e12 away, and one apart from each other across the line."""
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(1_000, 2))
    draws[::5] += 1e12 * generator.exponential(size=(200, 1))
    modes, weights, _ = fitted(draws, generator, np.ones(1_000))
    assert all(np.isfinite(mode.factor).all() for mode in modes)
    assert weights.sum() == pytest.approx(1.0)
