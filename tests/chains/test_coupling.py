"""Pairs of chains that meet, and chains of jumps alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ppl_ext.chains import jumps
from ppl_ext.chains.coupling import Coupled, Pairs, meetings, upper_bound
from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.jumps import MOST_DISCARDED, jump, jumps_from
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.chains.sampler import Kernel, Known, go_on
from ppl_ext.start.start import Mode

#: Logarithms of Gamma(2) draws, which are skewed.
MEAN, DEVIATION = 0.42278433509846713, math.sqrt(math.pi**2 / 6 - 1.0)


def log_gamma(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        return (2.0 * z - np.exp(z)).sum(-1), 2.0 - np.exp(z)


def proposal_of(mean: float, scale: float, dim: int = 2) -> Proposal:
    return Proposal((Mode(np.full(dim, mean), scale * np.eye(dim), 0.0, 0.0),), np.ones(1))


@pytest.mark.parametrize("lag", [1, 3])
def test_meeting_times_have_their_distribution(lag: int) -> None:
    """A uniform target of which the proposal hits a share: chains stay where they are until then.

    From outside, the chain is (1 - share)^t away from its limit after t transitions, and pairs meet
    at the first hit after the lag.
    """
    generator, share, pairs, t = np.random.default_rng(0), 0.3, 20_000, 4
    hits = generator.uniform(size=(60, pairs)) < share
    proposed = np.where(hits, -math.log(share), -np.inf)
    uniforms = np.log(generator.uniform(size=proposed.shape))
    outside = np.full(pairs, -np.inf)
    times = meetings(outside, outside, proposed, uniforms, lag)
    assert np.isfinite(times).all() and times.min() == lag + 1
    error = math.sqrt(1.0 - share) / share / math.sqrt(pairs)
    assert (times - lag).mean() == pytest.approx(1.0 / share, abs=4.0 * error)
    away = (1.0 - share) ** t
    # Sum of the probabilities of being late by one lag, two, and so on.
    right = away / (1.0 - (1.0 - share) ** lag)
    bound = upper_bound(times, lag, t)
    assert bound > away
    assert bound == pytest.approx(right, abs=8.0 * math.sqrt(right / pairs / share))


def test_a_chain_takes_by_the_ratio_of_both_places() -> None:
    """Proposed is what is half as likely under the target: taken where the uniform is below it."""
    first, second = np.array([0.0, 0.0]), np.array([0.0, 5.0])
    proposed = np.full((2, 2), math.log(0.5))
    uniforms = np.log(np.array([[0.9, 0.9], [0.4, 0.4]]))
    times = meetings(first, second, proposed, uniforms, 1)
    # The second pair's second chain sits where the ratio is high, and stays.
    assert list(times) == [2.0, np.inf]


def test_bounds_allow_for_the_number_of_pairs() -> None:
    times = np.full(64, 6.0)
    assert upper_bound(times, 5, 5) == pytest.approx(1.0 - 0.05 ** (1.0 / 64.0))
    times[0] = 11.0
    # One of 64 is late: the exact limit of its share solves a binomial's equation.
    share = upper_bound(times, 5, 5)
    assert (1 - share) ** 64 + 64 * share * (1 - share) ** 63 == pytest.approx(0.05)
    # Late by more than a lag counts as often.
    times[0] = 21.0
    assert upper_bound(times, 5, 5) == pytest.approx(share + 2.0 / 64.0)
    assert upper_bound(np.full(8, 50.0), 5, 5) == 1.0


def test_what_pairs_say() -> None:
    met = Coupled.of(np.array([2.0, 4.0]), 1, 9, 12)
    assert met.bound == pytest.approx(1.0 - math.sqrt(0.05)) and met.slowest == 3
    assert "changes the probability of any event by at most 77.6%" in met.told
    apart = Coupled.of(np.array([2.0, np.inf]), 1, 9, 12)
    assert apart.bound is None
    assert "1 of 2 pairs of chains from far apart had not met after 12 trans" in apart.told
    assert "started is not known: jumps are rare." in Coupled(0, reason="jumps are rare").told


def test_jumps_to_known_draws_leave_the_density_as_it_is() -> None:
    """From a proposal that is off; moments to four errors of what the draws are worth."""
    generator = np.random.default_rng(1)
    proposal, spent = proposal_of(0.8, 1.2), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return log_gamma(z)

    drawn = Chains.at(proposal.draw(16_000, generator), counted)
    ratios = drawn.values - proposal.log_density(drawn.positions)
    # Draws that must not be taken, as with labels out of order.
    ratios[:5] = -np.inf
    found = jump(counted, proposal, drawn, ratios, 16, 7, generator)
    assert spent == 16_000 and found.draws.shape == (16_000 // 16 - 1 - 7, 16, 2)
    assert 0.3 < found.window.jumped.mean() < 0.9
    worth = 0.3 * found.draws.shape[0] * 16
    white = (found.draws.reshape(-1, 2) - MEAN) / DEVIATION
    assert np.abs(white.mean(0)).max() < 4.0 / math.sqrt(worth)
    squares = np.square(white)
    assert np.abs(squares.mean(0) - 1.0).max() < 4.0 * squares.std() / math.sqrt(worth)
    # They go on where they are, by proposals of their own.
    longer = go_on(found, 10, generator)
    assert spent == 16_000 + 160 and len(longer.draws) == len(found.draws) + 10
    np.testing.assert_array_equal(longer.chains.values, log_gamma(longer.chains.positions)[0])


def test_pairs_from_a_mode_that_the_proposal_lacks_do_not_meet() -> None:
    """Half of the mass is where nothing is proposed: who starts there stays, and no bound is given.

    From the other half pairs meet.
    """
    generator = np.random.default_rng(2)

    def two(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logs = np.stack([-0.5 * np.square(z - at).sum(-1) for at in (-30.0, 30.0)])
        return np.logaddexp(*logs), np.zeros_like(z)

    proposal = proposal_of(30.0, 1.0)
    drawn = proposal.draw(1_000, generator)
    ratios = two(drawn)[0] - proposal.log_density(drawn)
    near = tuple(30.0 + 3.0 * generator.normal(size=(2, 64, 2)))
    met = jumps_from(near, two, proposal, ratios, generator)
    assert met.bound == pytest.approx(1.0 - 0.05 ** (1.0 / 64.0), abs=0.05)
    # Chains forget where they started in as many transitions as the last pair takes.
    assert met.transitions == max(1, min(met.slowest, MOST_DISCARDED))
    near[0][0] = -30.0
    apart = jumps_from(near, two, proposal, ratios, generator)
    assert apart.bound is None and apart.apart == 1


def test_slow_pairs_go_on_with_labels_in_order() -> None:
    """What is proposed to them are draws that count, as those that were known before."""
    generator, seen = np.random.default_rng(1), list[np.ndarray]()

    def two(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(z)
        return -0.5 * np.square(z).sum(-1), -z

    class InOrder:
        def is_ordered(self, draws: np.ndarray) -> np.ndarray:
            return draws[:, 0] < draws[:, 1]

    proposal = proposal_of(0.0, 1.0)
    drawn = proposal.draw(64, generator)
    ratios = two(drawn)[0] - proposal.log_density(drawn)
    ratios[~InOrder().is_ordered(drawn)] = -np.inf
    starts = tuple(np.sort(generator.normal(size=(2, 64, 2)), axis=-1))
    ratios[2:] = -np.inf  # so that few pairs meet by the draws that are known
    given: Any = {"symmetry": InOrder()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jumps, "MOST_APART", 1.1)
        fresh = list[np.ndarray]()
        own = jumps.meetings

        def meetings(*args: Any) -> np.ndarray:
            fresh.append(args[2])
            return own(*args)

        patch.setattr(jumps, "meetings", meetings)
        jumps_from(starts, two, proposal, ratios, generator, **given)
    further = fresh[1][1:].ravel()
    in_order = InOrder().is_ordered(seen[-1])
    np.testing.assert_array_equal(np.isfinite(further), in_order)


def test_pairs_of_trajectories_and_jumps_meet_and_cost_a_proposal_once() -> None:
    generator, spent = np.random.default_rng(3), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return log_gamma(z)

    kernel = Kernel(counted, proposal_of(0.4, 0.9), [0.8 * np.eye(2)], np.ones(1), 0.7)
    starts = tuple(3.0 * generator.normal(size=(2, 32, 2)))
    found = Pairs(kernel, starts, generator).go_on(20, lambda: True)
    assert found.bound == pytest.approx(1.0 - 0.05 ** (1.0 / 32.0))
    # All have met after so many, and no more are left out of what is kept.
    assert 1 <= found.slowest < 20 and found.transitions == found.slowest
    # The same without trajectories, whose only evaluations are of what is proposed, once for both.
    spent = 0
    jumping = Kernel(
        counted, kernel.proposal, kernel.factors, np.ones(1), 0.7, has_trajectories=False
    )
    found = Pairs(jumping, starts, generator).go_on(1, lambda: spent < 1)
    assert spent == 3 * 32
    # Without jumps that are taken there is nothing to meet at.
    far = Kernel(counted, proposal_of(80.0, 0.1), [0.8 * np.eye(2)], np.ones(1), 0.7)
    found = Pairs(far, starts, generator).go_on(4, lambda: True)
    assert found.bound is None and found.apart == 32 and found.slowest == 9
    # Those that go on are the same as those that were not stopped.
    at_once = Pairs(kernel, starts, np.random.default_rng(5)).go_on(20, lambda: True)
    in_turn = Pairs(kernel, starts, np.random.default_rng(5))
    assert in_turn.go_on(20, lambda: False).apart == 32
    assert in_turn.go_on(1, lambda: True).apart > 0 and in_turn.go_on(20, lambda: True) == at_once


def test_known_draws_are_proposed_first_and_once_each() -> None:
    """They are taken by their own ratios, cost nothing, and leave the density as it is."""
    generator, spent = np.random.default_rng(8), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return log_gamma(z)

    proposal = proposal_of(0.4, 0.9)
    drawn, log_ratios = drawn_from(proposal, 4_000, log_gamma, generator)
    known = Known(drawn, log_ratios)
    kernel = Kernel(counted, proposal, [np.eye(2)], np.ones(1), 0.7, known=known, jumps=2)
    kernel.has_trajectories = False
    exact = np.log(generator.gamma(2.0, size=(1_000, 2)))
    chains = Chains.at(exact, log_gamma)
    for used in (2_000, 4_000):
        chains, accepted, _ = kernel._jumped(chains, generator)
        assert known.used == used and spent == 0 and 0.4 < accepted.mean() < 0.95
    known_places = {tuple(row) for row in drawn.positions}
    moved = [tuple(row) in known_places for row in chains.positions]
    assert np.mean(moved) > 0.8
    error = 4.0 / math.sqrt(len(exact))
    white = (chains.positions - MEAN) / DEVIATION
    assert np.abs(white.mean(0)).max() < error
    kernel._jumped(chains, generator)
    assert spent == 2_000 and known.used == 4_000
