"""Maps under which curved ridges are straight, and chains and proposals in their coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ppl_ext.chains.bends import Bend, fitted_bend
from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel, Window, _refit
from ppl_ext.start.start import Mode

STRENGTH, WIDTH = 2.0, 0.2


def banana(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised log density and score of a Normal and another about a multiple of its square."""
    x, y = z.T
    off = (y - STRENGTH * x**2) / WIDTH
    values = -0.5 * (x**2 + off**2) - math.log(2.0 * math.pi * WIDTH)
    return values, np.stack([-x + off * 2.0 * STRENGTH * x / WIDTH, -off / WIDTH], 1)


def of_banana(number: int, rng: np.random.Generator) -> np.ndarray:
    x, noise = rng.normal(size=(2, number))
    return np.stack([x, STRENGTH * x**2 + WIDTH * noise], 1)


def arbitrary() -> Bend:
    """The second coordinate bent by the third, and the first by both; no draws would ask for it."""
    linear, squares, slopes = np.zeros((3, 3, 3))
    linear[1, 2], squares[1, 2], slopes[1, 2] = 0.5, -0.4, 0.6
    linear[0, 1:], squares[0, 1:], slopes[0, 1:] = (-0.3, 0.2), (0.3, 0.1), (0.2, -0.5)
    center, scale = np.array([0.5, -1.0, 0.0]), np.array([1.0, 2.0, 0.5])
    return Bend(center, scale, np.array([0.1, -0.2, 0.0]), linear, squares, slopes, (1, 0))


def normal(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -0.5 * np.square(z).sum(-1), -z


def test_the_way_back_and_the_determinant() -> None:
    bend, x = arbitrary(), np.random.default_rng(0).normal(size=(20, 3))
    straight, log_determinant = bend.straight(x)
    np.testing.assert_allclose(bend.curved(straight), x, atol=1e-12)
    step = 1e-6
    moves = step * np.eye(3)
    sides = [(bend.straight(x + m)[0] - bend.straight(x - m)[0]) / (2.0 * step) for m in moves]
    slow = np.log(np.abs(np.linalg.det(np.stack(sides, 2))))
    np.testing.assert_allclose(log_determinant, slow, atol=1e-7)


def test_scores_of_straight_positions_are_slopes_of_the_density_there() -> None:
    bend, x = arbitrary(), np.random.default_rng(1).normal(size=(20, 3))
    density = bend.density(normal)
    straight, log_determinant = bend.straight(x)
    values, scores = density(straight)
    np.testing.assert_allclose(values, normal(x)[0] - log_determinant, atol=1e-10)
    step = 1e-6
    moves = step * np.eye(3)
    slow = [(density(straight + m)[0] - density(straight - m)[0]) / (2.0 * step) for m in moves]
    np.testing.assert_allclose(scores, np.stack(slow, 1), rtol=1e-5, atol=1e-6)


def test_chains_come_back_with_their_densities_and_scores_without_an_evaluation() -> None:
    bend, x = arbitrary(), np.random.default_rng(2).normal(size=(8, 3))
    first, last = Chains.at(x[:4], normal), Chains.at(x[4:], normal)
    straight, after = bend.straightened(first), bend.straightened(last)
    after.positions[0] = straight.positions[0]
    found = bend.restored(first, straight, after)
    for name in ("positions", "values", "scores"):
        there = getattr(last, name)
        np.testing.assert_allclose(getattr(found, name)[1:], there[1:], atol=1e-10)
        assert (getattr(found, name)[0] == getattr(first, name)[0]).all()


@pytest.mark.parametrize("unbent", [0, 1])
def test_draws_of_a_bent_proposal_have_the_density_that_it_says(unbent: int) -> None:
    """Ratios of a normalised density to it have mean 1, and weights give the right moments."""
    rng = np.random.default_rng(3)
    bend = fitted_bend(of_banana(2_000, rng))
    modes = (Mode(np.zeros(2), 1.2 * np.eye(2), 0.0, 0.0), Mode(np.ones(2), np.eye(2), 0.0, 0.0))
    proposal = Proposal(modes, np.array([0.7, 0.3]), bend, unbent)
    drawn = proposal.draw(20_000, rng)
    weights = np.exp(proposal.log_ratios(drawn, banana(drawn)[0]))
    error = weights.std() / math.sqrt(len(weights))
    assert error < 0.05
    assert weights.mean() == pytest.approx(1.0, abs=4.0 * error)
    x, _ = drawn.T
    for values, mean in ((x, 0.0), (x**2, 1.0), (x * (x > 1.0), math.exp(-0.5) / 2.5066282746)):
        terms = weights * (values - mean)
        assert abs(terms.mean()) < 4.0 * terms.std() / math.sqrt(len(terms))


def test_proposals_with_bends_are_ordinary_ones_in_straight_coordinates() -> None:
    bend, rng = arbitrary(), np.random.default_rng(4)
    modes = tuple(Mode(rng.normal(size=3), np.eye(3), 0.0, 0.0) for _ in range(3))
    weights, x = np.array([0.2, 0.3, 0.5]), rng.normal(size=(10, 3))
    straight, log_determinant = bend.straight(x)
    parts = [
        Proposal(modes[:2], weights[:2] / 0.5).log_density(straight) + log_determinant,
        Proposal(modes[2:], np.ones(1)).log_density(x),
    ]
    slow = np.logaddexp(*parts) + math.log(0.5)
    np.testing.assert_allclose(Proposal(modes, weights, bend, 1).log_density(x), slow, atol=1e-12)


def test_chains_leave_a_density_as_it_is_however_wrong_the_bend() -> None:
    rng = np.random.default_rng(5)
    wide = Mode(np.zeros(3), np.eye(3), 0.0, 0.0)
    proposal = Proposal((wide,), np.ones(1), arbitrary())
    kernel = Kernel(normal, proposal, [np.eye(3)], np.ones(1), 0.2, jumps=1, is_mixture=True)
    chains = Chains.at(rng.normal(size=(400, 3)), normal)
    kept = []
    for _ in range(60):
        with np.errstate(over="ignore"):  # draws of the proposal may be anywhere
            chains, chance, *_ = kernel(chains, rng)
        assert 0.1 < chance.mean() < 0.99
        kept.append(chains.positions)
    values, scores = normal(chains.positions)
    np.testing.assert_allclose(chains.values, values, atol=1e-8)
    np.testing.assert_allclose(chains.scores, scores, atol=1e-8)
    # Chains are independent, their draws are not, and they started as they should end.
    draws = np.array(kept)
    for found, mean in ((draws, 0.0), (np.square(draws), 1.0), (draws**3, 0.0)):
        of_chains = found.mean(0) - mean
        assert (np.abs(of_chains.mean(0)) < 4.0 * of_chains.std(0) / math.sqrt(400)).all()


def test_what_is_found_of_a_banana_and_of_a_funnel() -> None:
    rng = np.random.default_rng(6)
    bend = fitted_bend(of_banana(4_000, rng))
    assert bend is not None and bend.bent == (1,)
    found = bend.squares[1, 0] * bend.scale[1] / bend.scale[0] ** 2
    assert found == pytest.approx(STRENGTH, abs=0.02)
    assert bend.slopes[1, 0] == 0.0
    log_scale = rng.normal(size=4_000)
    draws = np.stack([np.exp(log_scale) * rng.normal(size=4_000), log_scale], 1)
    bend = fitted_bend(draws)
    assert bend is not None and bend.bent == (0,)
    # Widths are those of shortened numbers: a little more for each.
    assert bend.slopes[0, 1] / bend.scale[1] == pytest.approx(1.0, abs=0.08)
    assert bend.squares[0, 1] == 0.0
    straight, _ = bend.straight(draws)
    assert abs(np.corrcoef(np.abs(straight[:, 0]), log_scale)[0, 1]) < 0.06


def test_what_needs_no_bend_gets_none() -> None:
    rng = np.random.default_rng(7)
    mixed = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6))
    for draws in (mixed, rng.standard_cauchy(size=(1_000, 5)), np.exp(rng.normal(size=(1_000, 3)))):
        assert fitted_bend(draws) is None
    constant = np.concatenate([mixed, np.ones((500, 1))], 1)
    assert fitted_bend(constant) is None


def test_draws_count_as_often_as_they_are_said_to() -> None:
    rng = np.random.default_rng(8)
    draws, others = of_banana(600, rng), rng.normal(size=(600, 2))
    counts = np.concatenate([rng.integers(0, 4, 600), np.zeros(600)]).astype(float)
    one = fitted_bend(np.concatenate([draws, others]), counts)
    two = fitted_bend(np.repeat(draws, counts[:600].astype(int), axis=0))
    assert one is not None and two is not None and one.bent == two.bent
    for name in ("scale", "constants", "linear", "squares", "slopes"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-9)


def test_nothing_is_moved_where_nothing_is_bent() -> None:
    zeros, matrix = np.zeros(3), np.zeros((3, 3))
    bend = Bend(zeros, np.ones(3), zeros, matrix, matrix, matrix, (1, 0))
    x = np.random.default_rng(9).normal(size=(5, 3))
    straight, log_determinant = bend.straight(x)
    assert (straight == x).all() and (log_determinant == 0.0).all()


def test_chains_that_hardly_moved_ask_for_no_bend() -> None:
    """Sixteen chains that stood still for twelve transitions are sixteen draws, not 192."""
    rng = np.random.default_rng(6)
    draws = np.repeat(rng.normal(size=(1, 16, 10)), 12, axis=0)
    draws = draws + 1e-3 * rng.normal(size=draws.shape)
    ones = np.ones((12, 16))
    mode = Mode(np.zeros(10), np.eye(10), 0.0, 0.0)
    kernel = Kernel(normal, Proposal((mode,), np.ones(1)), [np.eye(10)], np.ones(1), 0.5)
    _refit(kernel, Window(draws, ones, 0.0 * ones[:, 0], ones, ones), rng)
    assert kernel.proposal.bend is None


def test_a_chain_whose_straight_position_is_no_number_stays() -> None:
    def flat(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(z)), np.zeros_like(z)

    bend = arbitrary()
    before = Chains.at(np.array([[1e200, 1e200, 1e200], [1.0, 1.0, 1.0]]), flat)
    straight = bend.straightened(before)
    after = bend.restored(before, straight, straight)
    np.testing.assert_array_equal(after.positions, before.positions)
