"""Chains side by side: kernels that leave densities as they are, and what figures tell."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.chains.hamiltonian import LENGTH, Chains, trajectory
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import TAILS, Proposal
from ppl_ext.chains.sampler import (
    Kernel,
    Sampled,
    Window,
    _between,
    _bulk,
    _scatter,
    _tune,
    _whitened,
    go_on,
    sample,
)
from ppl_ext.start.paths import SpentError
from ppl_ext.start.start import Mode
from ppl_ext.statistics.convergence import convergence, split_r_hat
from ppl_ext.statistics.effective import effective_number

#: An asymmetric density whose moments are known: logarithms of Gamma(2) draws.
SHAPE = 2.0
MEAN, DEVIATION = 0.42278433509846713, math.sqrt(math.pi**2 / 6 - 1.0)


def log_gamma(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (SHAPE * z - np.exp(z)).sum(-1), SHAPE - np.exp(z)


def exact(number: int, generator: np.random.Generator, dim: int = 2) -> np.ndarray:
    return np.log(generator.gamma(SHAPE, size=(number, dim)))


def two_modes(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0.8 of the mass at +5, 0.2 at -5 in one dimension."""
    logs = np.stack([math.log(0.8) - 0.5 * (z - 5.0) ** 2, math.log(0.2) - 0.5 * (z + 5.0) ** 2])
    total = np.logaddexp(logs[0], logs[1])
    shares = np.exp(logs - total)
    return total[:, 0], -shares[0] * (z - 5.0) - shares[1] * (z + 5.0)


def normal_mode(mean: Any, scale: float, log_mass: float = 0.0) -> Mode:
    mean = np.atleast_1d(np.asarray(mean, float))
    return Mode(mean, scale * np.eye(len(mean)), log_mass, 0.0)


@pytest.mark.parametrize("factor", [np.array([[0.9, 0.0], [0.4, 0.5]]), np.array([0.6, 1.1])])
def test_trajectories_leave_the_density_as_it_is(factor: np.ndarray) -> None:
    """Exact draws stay exact draws, also with a metric that is wrong; moments to 4 errors."""
    generator, number = np.random.default_rng(0), 20_000
    chains = Chains.at(exact(number, generator), log_gamma)
    for _ in range(3):
        chains, chance, divergent = trajectory(log_gamma, chains, factor, 0.7, generator)
    assert 0.5 < chance.mean() < 0.99 and not divergent.any()
    error = 4.0 / math.sqrt(number)
    white = (chains.positions - MEAN) / DEVIATION
    assert np.abs(white.mean(0)).max() < error
    # The fourth moment of the density makes the error of a variance.
    squares = np.square(white)
    assert np.abs(squares.mean(0) - 1.0).max() < 4.0 * squares.std() / math.sqrt(number)


def test_metrics_that_are_chosen_by_place_leave_the_density_as_it_is() -> None:
    """Two metrics of unlike widths around one place: which one is chosen depends on where."""
    generator, number = np.random.default_rng(7), 20_000
    modes = (normal_mode([MEAN] * 2, DEVIATION), normal_mode([MEAN] * 2, 0.2 * DEVIATION))
    proposal = Proposal(modes, np.array([0.5, 0.5]))
    factors = [mode.factor for mode in modes]
    kernel = Kernel(log_gamma, proposal, factors, np.array([0.5, 0.5]), 0.7, jumps=0)
    chains = Chains.at(exact(number, generator), log_gamma)
    for _ in range(3):
        chains, chance, *_ = kernel(chains, generator)
    assert 0.5 < chance.mean() < 0.99
    squares = np.square((chains.positions - MEAN) / DEVIATION)
    assert np.abs(squares.mean(0) - 1.0).max() < 4.0 * squares.std() / math.sqrt(number)
    near = (squares.sum(1) < 0.1).mean()
    drawn = np.square((exact(200_000, generator) - MEAN) / DEVIATION)
    right = (drawn.sum(1) < 0.1).mean()
    assert abs(near - right) < 4.0 * math.sqrt(right / number)


def test_chains_in_a_narrow_mode_move_by_its_own_metric() -> None:
    """A step that is right for both modes in their own metrics is accepted in both."""
    generator, widths = np.random.default_rng(8), np.array([1.0, 0.02])
    means = np.array([[0.0, 0.0], [9.0, 0.0]])

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        off = (z[:, None] - means) / widths[:, None]
        logs = -0.5 * np.square(off).sum(-1) - 2.0 * np.log(widths)
        values = np.logaddexp.reduce(logs, axis=1)
        shares = np.exp(logs - values[:, None])
        return values, -(shares[..., None] * off / widths[:, None]).sum(1)

    modes = tuple(normal_mode(mean, width) for mean, width in zip(means, widths, strict=True))
    proposal = Proposal(modes, np.array([0.5, 0.5]))
    factors = [mode.factor for mode in modes]
    for is_mixture in (False, True):
        kernel = Kernel(density, proposal, factors, np.array([0.5, 0.5]), 0.7, 0)
        kernel.is_mixture = is_mixture
        own = np.arange(1_000) % 2
        noise = generator.normal(size=(1_000, 2))
        chains = Chains.at(means[own] + widths[own, None] * noise, density)
        accepted = []
        for _ in range(12):
            chains, chance, *_ = kernel(chains, generator)
            accepted.append(chance[own == 1].mean())
        # By the wide mode's metric, which half of the transitions have else, none are.
        assert (np.mean(accepted) > 0.9) == (not is_mixture)


def test_jumps_leave_the_density_as_it_is_and_move_between_modes() -> None:
    """Chains that all start in one mode come to hold the other's share."""
    generator = np.random.default_rng(1)
    proposal = Proposal((normal_mode(5.0, 1.3), normal_mode(-5.0, 0.8)), np.array([0.4, 0.6]))
    kernel = Kernel(two_modes, proposal, [np.eye(1)], np.ones(1), 0.5)
    chains = Chains.at(5.0 + generator.normal(size=(4_000, 1)), two_modes)
    for _ in range(12):
        chains, *_, jumped, _ = kernel(chains, generator)
    assert 0.2 < jumped.mean() < 0.9
    below = float((chains.positions < 0.0).mean())
    assert abs(below - 0.2) < 4.0 * math.sqrt(0.16 / 4_000)


def test_proposals_know_their_density() -> None:
    generator = np.random.default_rng(2)
    proposal = Proposal(
        (normal_mode([1.0, 0.0], 0.7), Mode(np.zeros(2), np.array([2.0, 0.3]), 0.0, 0.0)),
        np.array([0.3, 0.7]),
    )
    # Mean of 1 / q over draws of q in a box is the box's area.
    drawn = proposal.draw(200_000, generator)
    inside = (np.abs(drawn) < 1.0).all(-1)
    ratios = inside / np.exp(proposal.log_density(drawn))
    assert abs(ratios.mean() - 4.0) < 4.0 * ratios.std() / math.sqrt(len(drawn))


@pytest.mark.parametrize("dim", [1, 6])
def test_tails_of_a_proposal_are_those_of_coordinates_alone_and_together(dim: int) -> None:
    """Far out along an axis independent Cauchys are a bounded number of times as dense; so are
    multivariate ones in every direction."""
    proposal = Proposal((normal_mode(np.zeros(dim), 1.0),), np.ones(1))
    most = -math.log(0.5 * TAILS) + 1e-6
    along = np.concatenate([10.0**k * np.eye(dim) for k in range(6)])
    log_density = proposal.log_density(along)
    assert (stats.cauchy.logpdf(along).sum(1) - log_density).max() < most
    joint = stats.multivariate_t(np.zeros(dim), np.eye(dim), df=1.0)
    diagonal = np.concatenate([along, np.full((1, dim), 1e5)])
    assert (joint.logpdf(diagonal) - proposal.log_density(diagonal)).max() < most


def test_chains_leave_a_tail_of_one_coordinate_by_jumps() -> None:
    """All start where one of five independent Cauchy coordinates is 300: one draw of 500 is."""

    def cauchy(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -np.log1p(np.square(z)).sum(-1), -2.0 * z / (1.0 + np.square(z))

    generator = np.random.default_rng(23)
    proposal = Proposal((normal_mode(np.zeros(5), 0.7),), np.ones(1))
    kernel = Kernel(cauchy, proposal, [np.eye(5)], np.ones(1), 0.5, jumps=8)
    chains = Chains.at(np.tile([300.0, 0.0, 0.0, 0.0, 0.0], (64, 1)), cauchy)
    for _ in range(40):
        chains, *_ = kernel(chains, generator)
    assert (np.abs(chains.positions[:, 0]) < 100.0).mean() > 0.8


def test_mixtures_are_fitted_to_draws() -> None:
    generator = np.random.default_rng(3)
    parts = [generator.normal([-6.0, 0.0], [1.0, 0.1], (600, 2))]
    parts += [generator.normal([4.0, 30.0], [0.5, 5.0], (1_800, 2))]
    draws = np.concatenate(parts)
    modes, weights, _ = fitted(draws, generator)
    mixture = Proposal(modes, weights)
    left = np.array([mode.mean[0] < 0.0 for mode in modes])
    assert abs(weights[left].sum() - 0.25) < 0.03
    # Near the entropy of the two Normals, which is the best there is.
    best = 0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0) + math.log(2.0 * math.pi * math.e)
    best += 0.25 * math.log(0.1) + 0.75 * math.log(2.5)
    assert -mixture.log_density(draws).mean() < best + 0.35


def test_components_of_a_mixture_have_the_mass_of_their_volume() -> None:
    """Two Normals around one place, a tenth and ten times as wide; 0.03 nats from the truth."""
    generator, deviations = np.random.default_rng(0), np.array([3.0, 0.3])

    def draw(number: int) -> np.ndarray:
        own = generator.choice(deviations, number)
        return own[:, None] * generator.normal(size=(number, 2))

    modes, weights, _ = fitted(draw(2_000), generator)
    fresh = draw(4_000)
    normals = [stats.multivariate_normal(mode.mean, mode.root @ mode.root.T) for mode in modes]
    found = np.average(np.exp([each.logpdf(fresh) for each in normals]), axis=0, weights=weights)
    each = [stats.multivariate_normal(np.zeros(2), s**2 * np.eye(2)).pdf(fresh) for s in deviations]
    assert np.mean(np.log(np.mean(each, axis=0) / found)) < 0.1


def test_chains_at_rest_are_not_called_adrift() -> None:
    """200 sets of independent draws: R-hat below 1.01 in nearly all, drift in none or one."""
    generator = np.random.default_rng(4)
    found = [convergence(generator.normal(size=(100, 16, 3))) for _ in range(200)]
    assert sum(each.r_hat.max() > 1.01 for each in found) <= 10
    assert sum(each.is_adrift for each in found) <= 2
    sizes = np.array([each.ess_bulk for each in found])
    assert 1_200 < np.median(sizes) <= 1_600
    errors = np.array([each.deviation_error for each in found])
    assert np.median(errors) == pytest.approx(1.0 / math.sqrt(2.0 * 1_600), rel=0.1)


def autoregressive(
    number: int, chains: int, dim: int, correlation: float, generator: np.random.Generator
) -> np.ndarray:
    """Chains whose neighbours have this correlation, of standard Normals."""
    draws = generator.normal(size=(number, chains, dim))
    for row in range(1, number):
        draws[row] *= math.sqrt(1.0 - correlation**2)
        draws[row] += correlation * draws[row - 1]
    return draws


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_effective_numbers_and_r_hat_of_many_chains_are_those_of_theory(correlation: float) -> None:
    """400 draws' worth in 16 chains: their number to a tenth, and R-hat as of four such chains."""
    generator = np.random.default_rng(10)
    time = (1.0 + correlation) / (1.0 - correlation)
    length = int(400 * time / 16)
    found = [convergence(autoregressive(length, 16, 1, correlation, generator)) for _ in range(80)]
    # Estimates of single sets vary by a fifth.
    numbers = np.array([each.ess_bulk[0] for each in found])
    assert np.median(numbers) == pytest.approx(400.0, rel=0.1)
    # Of groups of a fourth of the draws means have a 100th of the variance: of halves a 50th.
    # R-hat is the larger of two, and folded draws are less correlated.
    r_hats = np.array([each.r_hat[0] for each in found])
    assert 1.008 < np.median(r_hats) < 1.013 and np.quantile(r_hats, 0.9) < 1.02


def test_r_hat_of_four_chains_is_the_usual_one() -> None:
    draws = autoregressive(200, 4, 3, 0.8, np.random.default_rng(11))
    np.testing.assert_array_equal(convergence(draws).r_hat, split_r_hat(draws))


def test_ties_do_not_drift() -> None:
    """Draws that are rounded to a few values, as at the edge of a support, are at rest."""
    draws = np.random.default_rng(12).normal(size=(100, 16, 1)) > 1.5
    found = convergence(draws * 1.0)
    assert found.r_hat.max() < 1.01 and not found.is_adrift


@pytest.mark.parametrize("fault", ["one apart", "other widths", "drift", "slow"])
def test_chains_that_disagree_are_told(fault: str) -> None:
    generator = np.random.default_rng(5)
    draws = generator.normal(size=(100, 16, 2))
    if fault == "one apart":
        draws[:, 3, 1] += 3.0
    elif fault == "other widths":
        draws[:, :8, 1] *= 2.0
    elif fault == "drift":
        draws[50:, :, 1] += 0.7
    else:
        for row in range(1, 100):
            draws[row] = 0.97 * draws[row - 1] + math.sqrt(1.0 - 0.97**2) * draws[row]
    found = convergence(draws)
    assert found.r_hat[1] > 1.01
    assert found.is_adrift == (fault == "drift")
    if fault == "slow":
        assert found.ess_bulk.max() < 150


def test_heavy_tails_are_told_from_light_ones() -> None:
    generator = np.random.default_rng(6)
    draws = np.stack([generator.standard_cauchy((200, 16)), generator.gamma(0.5, size=(200, 16))])
    found = convergence(np.moveaxis(draws, 0, -1))
    assert list(found.is_heavy) == [True, False]


def test_errors_of_deviations_know_how_heavy_a_tail_is() -> None:
    """Of draws whose squares have no variance six of seven are within two errors."""
    generator = np.random.default_rng(11)
    draws = 1.0 / generator.gamma(2.5, size=(36, 16, 200))
    right = 1.0 / (1.5 * math.sqrt(0.5))
    errors = convergence(draws).deviation_error
    ratios = np.abs(draws.std((0, 1)) / right - 1.0) / errors
    # By the fourth moments of the draws alone half of them are; of 200 the share varies by 0.025.
    assert (ratios < 2.0).mean() > 0.78 and np.median(errors) < 0.5
    # A Normal's error is that of its fourth moment, and a Cauchy's is infinite.
    light = convergence(generator.normal(size=(250, 16, 20))).deviation_error
    assert np.median(light) == pytest.approx(1.0 / math.sqrt(2.0 * 4_000), rel=0.15)
    assert convergence(generator.standard_cauchy((250, 16, 1))).deviation_error[0] == math.inf


def test_a_sampler_comes_to_rest_at_the_density() -> None:
    """From points outside and a metric that is off; draws right to 4 errors of their number."""
    generator = np.random.default_rng(7)
    proposal = Proposal((normal_mode([3.0, 3.0], 0.2),), np.ones(1))
    spent = 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return log_gamma(z)

    first = proposal.draw(16, generator)
    found = sample(
        counted,
        proposal,
        first,
        generator,
        lambda figures, _: figures.r_hat.max() < 1.01 and figures.ess_bulk.min() > 400,
        lambda: spent < 200_000,
    )
    assert found.discarded >= 12 and spent < 100_000
    draws = found.draws.reshape(-1, 2)
    size = convergence(found.draws).ess_bulk.min()
    assert np.abs((draws.mean(0) - MEAN) / DEVIATION).max() < 4.0 / math.sqrt(size)
    assert np.abs(draws.std(0) / DEVIATION - 1.0).max() < 0.15
    longer = go_on(found, 10, generator)
    assert longer.draws.shape == (len(found.draws) + 10, 16, 2)
    np.testing.assert_array_equal(longer.draws[:-10], found.draws)


def test_a_budget_ends_chains() -> None:
    generator, spent = np.random.default_rng(8), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return log_gamma(z)

    proposal = Proposal((normal_mode([0.0, 0.0], 1.0),), np.ones(1))
    sample(
        counted,
        proposal,
        proposal.draw(16, generator),
        generator,
        lambda *_: False,
        lambda: spent < 5_000,
    )
    assert 5_000 <= spent < 8_000
    # Where it ends with tuning, the last window of that is what is kept, and was not discarded.
    ended = sample(
        *(log_gamma, proposal, proposal.draw(16, generator), generator),
        *(lambda *_: False, lambda: False),
    )
    assert ended.discarded == 0 and ended.window.transitions == 8


def test_what_is_left_out_are_whole_transitions() -> None:
    """Of three draws each, and of a last one that was cut when chains went on for ten draws."""
    generator = np.random.default_rng(17)
    proposal = Proposal((normal_mode([MEAN] * 2, DEVIATION),), np.ones(1))
    kernel = Kernel(*(log_gamma, proposal, [proposal.modes[0].factor], np.ones(1), 0.7), jumps=2)
    chains = Chains.at(exact(16, generator), log_gamma)
    empty = np.zeros((0, 16))
    none = Window(np.zeros((0, 16, 2)), empty, empty[:, 0], empty, empty)
    found = go_on(go_on(Sampled(none, 0, chains, kernel), 15, generator), 10, generator)
    assert found.window.transitions == 5 + 4 and len(found.draws) == 15 + 10
    after = found.after(5)
    assert after.discarded == 5 and after.window.transitions == 4
    np.testing.assert_array_equal(after.draws, found.draws[15:])
    np.testing.assert_array_equal(after.window.values, found.window.values[15:])


def test_chains_end_where_no_more_may_be_evaluated() -> None:
    generator, spent = np.random.default_rng(8), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        if spent + len(z) > most:
            raise SpentError
        spent += len(z)
        return log_gamma(z)

    proposal = Proposal((normal_mode([0.0, 0.0], 1.0),), np.ones(1))
    for most in (1_500, 3_000, 5_000):
        spent = 0
        first = proposal.draw(16, generator)
        found = sample(counted, proposal, first, generator, lambda *_: False, lambda: True)
        assert most - 16 < spent <= most
        assert len(found.draws) >= 8 and np.isfinite(found.draws).all()
    spent = most
    with pytest.raises(SpentError):
        sample(counted, proposal, first, generator, lambda *_: False, lambda: True)


def test_tuning_ends_where_every_step_is_accepted() -> None:
    """Modes on a line, and a metric that is a bit narrow: the longest steps are accepted, too."""
    proposal = Proposal((normal_mode(5.0, 0.72), normal_mode(-5.0, 0.72)), np.array([0.8, 0.2]))
    for seed in range(8):
        generator = np.random.default_rng(seed)
        found = sample(
            two_modes,
            proposal,
            proposal.draw(16, generator),
            generator,
            lambda figures, window: window.transitions >= 24 and figures.ess_bulk.min() > 400,
            lambda: True,
        )
        assert found.discarded < 100


def test_chains_end_where_steps_go_nowhere() -> None:
    """A density that is noise of tens of nats, as where a factorisation loses all digits."""
    generator, spent = np.random.default_rng(15), 0

    def rough(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        noise = 50.0 * np.sin(1e7 * z).sum(-1)
        return -0.5 * np.square(z).sum(-1) + noise, 1e5 * np.cos(1e7 * z)

    proposal = Proposal((normal_mode(np.zeros(3), 1.0),), np.ones(1))
    first = proposal.draw(16, generator)
    found = sample(rough, proposal, first, generator, lambda *_: False, lambda: spent < 300_000)
    assert found.kernel.goes_nowhere and spent < 150_000
    assert not replace(found.kernel, step_size=0.1).goes_nowhere
    assert not replace(found.kernel, has_trajectories=False).goes_nowhere


@pytest.mark.parametrize(
    ("step", "chance", "is_tuned"),
    [(0.8, 0.86, True), (0.8, 0.99, False), (LENGTH, 0.99, True), (LENGTH, 0.6, False)],
)
def test_steps_are_tuned_where_they_cannot_be_longer(
    step: float, chance: float, is_tuned: bool
) -> None:
    generator = np.random.default_rng(14)
    ones = np.ones((40, 16))
    draws = generator.normal(size=(40, 16, 1))
    window = Window(draws, chance * ones, 0.0 * ones[:, 0], ones, ones)
    kernel = Kernel(
        two_modes, Proposal((normal_mode(0.0, 1.0),), np.ones(1)), [np.eye(1)], np.ones(1), step
    )
    assert _tune(kernel, [window], generator) is is_tuned


@pytest.mark.parametrize(
    ("step", "jumped", "jumps"),
    [(0.8, 0.5, 2), (0.12, 0.5, 4), (0.03, 0.5, 8), (0.03, 0.05, 1), (0.03, 0.005, 0)],
)
def test_jumps_take_a_third_of_what_trajectories_do(step: float, jumped: float, jumps: int) -> None:
    generator, ones = np.random.default_rng(15), np.ones((40, 16))
    window = Window(generator.normal(size=(40, 16, 1)), ones, ones[:, 0], jumped * ones, ones)
    kernel = Kernel(
        two_modes, Proposal((normal_mode(0.0, 1.0),), np.ones(1)), [np.eye(1)], np.ones(1), step
    )
    # After so many windows no mixture is fitted.
    _tune(kernel, 3 * [window], generator)
    assert kernel.jumps == jumps


def test_a_place_that_the_proposal_lacks_is_told() -> None:
    """One of the chains is where no jump takes it from; others jump half of the times."""
    jumped = np.full((20, 16), 0.5)
    window = Window(np.zeros((20, 16, 2)), jumped, jumped[:, 0], jumped, jumped)
    assert not window.lacks
    one = np.where(np.arange(16) == 3, 0.01, jumped)
    assert replace(window, jumped=one).lacks
    assert not replace(window, jumped=0.1 * one).lacks


def student(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A multivariate Student t of two degrees of freedom, with scales from 0.1 to 10."""
    scales = np.logspace(-1.0, 1.0, z.shape[1])
    white = z / scales
    spread = 2.0 + np.square(white).sum(-1)
    order = 2.0 + z.shape[1]
    return -0.5 * order * np.log(spread), -order * white / scales / spread[:, None]


def test_heavy_tails_do_not_keep_chains_from_being_tuned() -> None:
    """Their variance is infinite: that of each window differs from that of the last."""
    generator, spent = np.random.default_rng(9), 0

    def counted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal spent
        spent += len(z)
        return student(z)

    scales = np.logspace(-1.0, 1.0, 8)
    proposal = Proposal((Mode(np.zeros(8), np.diag(scales), 0.0, 0.0),), np.ones(1))
    found = sample(
        counted,
        proposal,
        proposal.draw(16, generator),
        generator,
        lambda figures, _: figures.ess_bulk.min() > 400 and figures.r_hat.max() < 1.02,
        lambda: spent < 100_000,
    )
    assert spent < 100_000
    # Median of |t| with two degrees of freedom; its estimate from 400 draws has an error of 0.05.
    distances = np.median(np.abs(found.draws.reshape(-1, 8)), axis=0) / scales
    assert np.abs(distances / stats.t(2).ppf(0.75) - 1.0).max() < 0.3


@pytest.mark.parametrize("is_diagonal", [True, False])
def test_the_bulk_of_normal_draws_has_their_covariance(is_diagonal: bool) -> None:
    """And that of draws with a few far ones among them is nearly the same."""
    generator = np.random.default_rng(13)
    root = np.array([[2.0, 0.0], [0.0, 0.3]]) if is_diagonal else np.array([[2.0, 0.0], [0.5, 0.3]])
    draws = generator.normal(size=(20_000, 2)) @ root.T + np.array([3.0, -1.0])

    def bulk(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, weights = _bulk(draws, is_diagonal=is_diagonal)
        return mean, _scatter(draws, weights, is_diagonal=is_diagonal)

    mean, found = bulk(draws)
    right = root @ root.T
    np.testing.assert_allclose(mean, [3.0, -1.0], atol=4.0 * 2.0 / math.sqrt(20_000))
    # A variance from 20,000 draws is known to 1 %.
    np.testing.assert_allclose(found, np.diag(right) if is_diagonal else right, rtol=0.06)
    draws[:200] *= 1e4
    _, again = bulk(draws)
    np.testing.assert_allclose(again, found, rtol=0.1)


@pytest.mark.parametrize("is_diagonal", [True, False])
def test_draws_and_scores_of_a_normal_have_its_covariance_between_them(is_diagonal: bool) -> None:
    """To the last digits, of any number of draws that span the space."""
    generator, dim = np.random.default_rng(0), 4
    deviations = np.array([0.01, 0.5, 3.0, 40.0])
    root = np.tril(generator.normal(size=(dim, dim)), -1) * (not is_diagonal) + np.eye(dim)
    root = deviations[:, None] * root
    draws = generator.normal(size=(2 * dim, dim)) @ root.T
    scores = -draws @ np.linalg.inv(root @ root.T)
    if is_diagonal:
        found, true = _between(np.square(draws).mean(0), np.square(scores).mean(0)), deviations**2
    else:
        found = _between(draws.T @ draws / len(draws), scores.T @ scores / len(draws))
        true = root @ root.T
    np.testing.assert_allclose(found, true, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("has_scores", [True, False])
def test_scores_tell_of_widths_that_few_draws_do_not(has_scores: bool) -> None:
    """As many draws as tune first, of a density that is narrow across a few directions."""
    generator, dim = np.random.default_rng(0), 80
    turned = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    widths = np.ones(dim)
    widths[:3] = 0.1, 0.2, 6.0
    root = turned * widths
    factor = np.eye(dim)
    for _ in range(3):
        noise = generator.normal(size=(192, dim))
        scores = -(noise / widths) @ turned.T if has_scores else None
        found = _whitened(factor, noise @ root.T, scores)
        if found is not None:
            _, factor = found
    spread = np.linalg.svd(np.linalg.solve(factor, root), compute_uv=False)
    assert bool(spread.min() > 0.5) is has_scores and spread.max() < 2.0


@pytest.mark.parametrize("is_diagonal", [True, False])
@np.errstate(all="ignore")
def test_scores_that_tell_of_no_width_leave_the_metric_to_the_draws(is_diagonal: bool) -> None:
    """None in most draws, as on a plateau, or one of two values, or of sizes beyond rounding."""
    generator, dim = np.random.default_rng(0), 5
    draws = 0.3 * generator.laplace(size=(400, dim))
    factor = np.ones(dim) if is_diagonal else np.eye(dim)
    for scores in (
        np.zeros_like(draws),
        np.where(np.abs(draws) > 0.8, -np.sign(draws), 0.0),
        -np.sign(draws) / 0.3,
        -draws * 1e200,
        -draws * 1e-200,
    ):
        found = _whitened(factor, draws, scores)
        assert found is None or np.isfinite(found[1]).all()
    # Of a Laplace distribution the draws say 2 b^2, and the scores b^-2: between them 1.4 b^2. That
    # of two unlike sides has scores of which nine tenths are one number.
    for above, below, width in ((0.3, 0.3, 0.36), (0.9, 0.1, 0.52)):
        far = generator.exponential(size=(400, dim))
        is_above = generator.uniform(size=far.shape) < above / (above + below)
        two_sided = np.where(is_above, above * far, -below * far)
        scores = np.where(is_above, -1.0 / above, 1.0 / below)
        _, root = _whitened(factor, two_sided, scores) or (None, factor)
        widths = root if is_diagonal else np.sqrt(np.diag(root @ root.T))
        assert (widths > 0.6 * width).all() and (widths < 1.6 * width).all()


def test_metrics_of_chains_are_those_of_a_density_with_narrow_directions() -> None:
    """As the sampler tunes them, by the scores of its own draws."""
    generator, dim = np.random.default_rng(0), 60
    turned = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    widths = np.ones(dim)
    widths[:3] = 0.1, 0.2, 6.0
    precision = (turned / widths**2) @ turned.T

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * np.einsum("ni,ij,nj->n", z, precision, z), -z @ precision

    start = Mode(np.zeros(dim), np.eye(dim), 0.0, 0.0)
    positions = generator.normal(size=(16, dim)) @ (turned * widths).T
    found = sample(
        *(evaluate, Proposal((start,), np.ones(1)), positions, generator),
        lambda figures, window: window.transitions > 20,
        lambda: True,
    )
    (factor,) = found.kernel.factors
    spread = np.linalg.svd(np.linalg.solve(factor, turned * widths), compute_uv=False)
    assert spread.min() > 0.5 and spread.max() < 2.0


def test_long_stays_in_a_tail_are_not_hidden_by_fast_moves() -> None:
    """Fifteen chains move fast; one stays in a tail for a third of its run."""
    noise = np.random.default_rng(0).normal(size=(200, 16, 1))
    draws = np.abs(noise)
    draws[60:130, 3] = 4.0 + 0.3 * noise[60:130, 3]
    found = convergence(draws)
    expected = effective_number(draws)[0]
    assert expected < 800.0 and found.ess_bulk[0] <= expected
    squares = np.square(draws - draws.mean())
    worth = effective_number(squares)[0]
    assert found.deviation_error[0] >= 0.49 * squares.std() / squares.mean() / math.sqrt(worth)
