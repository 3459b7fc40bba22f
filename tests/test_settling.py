"""Runs that end once they have settled: drift is told from noise, and the run stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError, UnsettledWarning
from ppl_ext.running.noisy_sequences import judged
from ppl_ext.running.settling import (
    LEAST_LOOKS,
    MOST_COORDINATES,
    MOST_LOOKS,
    Settled,
    Settling,
    SettlingWatch,
    check_saved,
    rule_of,
    warn_if_unsettled,
)
from tests.engine_support import Shell, Verbs, shell_of

#: Steps of the sequences.
STEPS = 4_000
#: Two positions of mean 0 and standard deviation 1.
BASE = np.array([[-1.0], [1.0]]) / math.sqrt(2.0)


def watched(
    path: np.ndarray,
    rule: Settled | None = None,
    skipped: Callable[[int], int] = lambda position: 0,
    first: int = 0,
) -> Settling:
    """What is found of draws whose means take this path (steps, D), in standard deviations."""
    position = first
    sites = {"first": slice(0, 1), "others": slice(1, path.shape[1])}
    watch = SettlingWatch(
        rule or Settled(), first, lambda: (path[position - 1] + BASE).astype(np.float32), sites
    )
    while position < len(path):
        position = min(watch.next_look(position), len(path))
        if watch.look(position, skipped(position), last=position == len(path)):
            break
    return watch.found


def autoregressive(
    draws: np.random.Generator, dim: int, correlation: float, deviation: float
) -> np.ndarray:
    """Stationary sequences (steps, D) of normals that hang together."""
    noise = draws.normal(size=(STEPS, dim)) * deviation
    found = noise.copy()
    for step in range(1, STEPS):
        found[step] = correlation * found[step - 1]
        found[step] += math.sqrt(1.0 - correlation**2) * noise[step]
    return found


def share(count: int, make: Callable[[np.random.Generator], np.ndarray], **options: Any) -> float:
    """Share of some sequences that settle."""
    draws = np.random.default_rng(0)
    return sum(watched(make(draws), **options).settled for _ in range(count)) / count


TIMES = np.arange(1, STEPS + 1)[:, None]


@pytest.mark.parametrize("dim", [1, 10, 300])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_noise_within_the_tolerance_settles(dim: int, correlation: float) -> None:
    assert share(5, lambda draws: autoregressive(draws, dim, correlation, 0.03)) == 1.0


@pytest.mark.parametrize("dim", [1, 10])
def test_noise_beyond_the_tolerance_does_not_settle_unless_it_is_allowed(dim: int) -> None:
    def white(draws: np.random.Generator) -> np.ndarray:
        return autoregressive(draws, dim, 0.5, 0.2)

    assert share(10, white) == 0.0
    assert share(5, white, rule=Settled(noise=0.5)) == 1.0
    found = watched(white(np.random.default_rng(1)))
    # Of 32 looks or more: the largest is within 4 standard errors.
    assert 0.2 * (1.0 - 4.0 / math.sqrt(64)) < found.noise < 0.2 * (1.0 + 4.0 / math.sqrt(64))


@pytest.mark.parametrize("dim", [1, 10, 300])
def test_a_constant_speed_does_not_settle_however_slow(dim: int) -> None:
    """A tiny step size: all that is seen is far below the tolerance, and yet does not slow down."""
    found = watched(1e-6 * TIMES * np.ones(dim))
    assert not found.settled and math.isinf(found.drift)


def test_slow_drifts_are_seen_once_the_noise_lets_one() -> None:
    """One drift of ten, a tenth of its noise in a step; the run is over before it has come near."""
    speed = np.where(np.arange(10) == 3, 1e-3, 0.0)
    slow = share(20, lambda draws: speed * TIMES + autoregressive(draws, 10, 0.0, 0.01))
    # Over the first looks the change is about as large as the noise of one of them.
    assert slow <= 0.3


def test_random_walks_do_not_settle() -> None:
    """Steps so small that noise is all there is, of many figures: a few say too little."""

    def walk_of(dim: int) -> Callable[[np.random.Generator], np.ndarray]:
        return lambda draws: 1e-4 * draws.normal(size=(STEPS, dim)).cumsum(0)

    # About one in ten of 300, and fewer of more.
    assert share(10, walk_of(300)) <= 0.5 and share(3, walk_of(1_000)) == 0.0


@pytest.mark.parametrize("distance", [1.0, 100.0])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_decay_settles_within_the_tolerance_and_not_long_after(
    distance: float, noise: float
) -> None:
    time = 100.0
    draws = np.random.default_rng(2)
    way = distance * np.exp(-TIMES / time)
    found = watched(way * np.ones(5) + noise * draws.normal(size=(STEPS, 5)))
    near = time * math.log(distance / 0.1)
    assert found.settled and near < found.step < 4.0 * near + 2 * LEAST_LOOKS


def test_a_slow_direction_among_fast_ones_is_waited_for() -> None:
    times = np.array([1_000.0, *[20.0] * 9])
    found = watched(10.0 * np.exp(-TIMES / times))
    assert not found.settled and found.drift_site == "first"
    # What is left is worked out from how it slows down.
    left = 10.0 * math.exp(-STEPS / times[0])
    assert left < found.drift < 20 * left


def test_what_is_left_of_one_over_t() -> None:
    looks = 50.0 / np.arange(1, 201)[:, None] * np.ones(3)
    found = judged(looks, np.zeros(3))
    # From the mean of the last third on.
    left = 50.0 * math.log(1.5) / (200 / 3)
    assert (found.drift > left).all() and (found.drift < 2.5 * left).all()
    assert found.noise.max() < 0.05


def test_the_error_of_noise_is_added() -> None:
    """A change of noise is told with twice its standard error, known here."""
    draws = np.random.default_rng(6)
    found = judged(draws.normal(size=(243, 2_000)), np.zeros(2_000))
    error = math.sqrt(1 / 81 + 1 / 54)
    # |v| is that of a normal; 2,000 of them are enough for 5 %.
    np.testing.assert_allclose(
        found.drift.mean(), (math.sqrt(2 / math.pi) + 2.0) * error, rtol=0.05
    )
    np.testing.assert_allclose(found.noise.mean(), 1.0, rtol=0.05)


def test_figures_that_stay_have_settled() -> None:
    found = judged(np.ones((64, 4)), np.zeros(4))
    assert not found.drift.any() and not found.noise.any()
    # Rounding is no motion.
    draws = np.random.default_rng(3)
    found = judged(1e-6 * draws.normal(size=(64, 4)).cumsum(0), np.full(4, 1e-3))
    assert found.drift.max() < 1e-3


def test_the_windows_are_the_last_ones() -> None:
    """A run that has arrived, and one that has begun to leave."""
    way = np.concatenate([np.linspace(1.0, 0.0, 60), np.zeros(140)])[:, None] * np.ones(4)
    assert judged(way, np.zeros(4)).drift.max() < 0.05
    assert np.isinf(judged(way[::-1], np.zeros(4)).drift).all()


def test_skipped_steps_are_no_sign_of_rest() -> None:
    path = np.minimum(TIMES, 100) * np.ones(3) * 0.01
    assert not watched(path[:4_000], skipped=lambda position: max(0, position - 100)).settled
    assert watched(path[:4_000]).settled
    # Single ones count for nothing.
    assert watched(path[:4_000], skipped=lambda position: position // 10).settled


def test_means_count_in_standard_deviations() -> None:
    """Of draws that are a thousand times as wide, and of ones that widen."""
    scale = {"scale": 1e3}
    path = {"mean": 0.0}
    watch = SettlingWatch(
        Settled(),
        0,
        lambda: path["mean"] + scale["scale"] * BASE,
        {"x": slice(0, 1)},
    )
    draws = np.random.default_rng(4)
    for position in range(1, 200):
        path["mean"] = 10.0 * draws.normal()
        settled = watch.look(position, 0)
    assert settled and 0.005 < watch.found.noise < 0.02
    for position in range(200, 600):
        scale["scale"] *= 1.01
        settled = watch.look(position, 0)
    assert not settled and watch.found.drift > 1.0


def test_looks_are_few_and_of_few_coordinates() -> None:
    seen: list[int] = []
    watch = SettlingWatch(
        Settled(), 10, lambda: np.zeros((2, 5_000), np.float32), {"x": slice(0, 5_000)}
    )
    assert watch.next_look(3) == 11
    position = 10
    while position < 20_000:
        position = watch.next_look(position)
        seen.append(position)
        watch._keep(position, 0)
    assert len(seen) < MOST_LOOKS * (1 + math.log2(20_000 / MOST_LOOKS))
    assert MOST_LOOKS // 2 <= len(watch._looks) < MOST_LOOKS
    assert watch._looks[0].shape == (2 * MOST_COORDINATES,)


def test_a_look_that_is_left_out_keeps_its_place() -> None:
    """Of looks whose mean is their step: once halved, those that are left are evenly spaced."""
    position, skipped = 0, 0
    watch = SettlingWatch(
        Settled(), 0, lambda: float(position) + np.array([[-1.0], [1.0]]), {"x": slice(0, 1)}
    )
    while position < 3 * MOST_LOOKS:
        position = watch.next_look(position)
        # All steps between two looks, at a place that halving leaves out, and at one that it keeps.
        skipped += watch._interval * (position in (31, 512))
        watch.look(position, skipped)
    seen = np.array([each[0] for each in watch._looks])
    kept = np.isfinite(seen)
    assert watch._interval == 4
    np.testing.assert_array_equal(np.flatnonzero(~kept), [512 // 4 - 1])
    np.testing.assert_array_equal(seen[kept], 4.0 * (1.0 + np.flatnonzero(kept)))
    assert watch.found.looks == kept.sum()


def test_single_answers_count_in_their_sites_size() -> None:
    draws = np.random.default_rng(5)
    sites = {"large": slice(0, 2), "zero": slice(2, 3)}

    def positions_of(count: int) -> Callable[[], np.ndarray]:
        return lambda: np.array([1e3, 0.0, 0.0]) + draws.normal(size=(count, 3))

    for apart, count in [(False, 1), (True, 4)]:
        watch = SettlingWatch(Settled(), 0, positions_of(count), sites, apart)
        for position in range(1, 200):
            watch.look(position, 0)
        assert watch.found.unit == "of its size"
        # The second number of the first site is small beside the first.
        assert watch.found.noise_site == "zero" and watch.found.noise > 0.1


@pytest.mark.parametrize("apart", [False, True])
def test_a_watch_goes_on_where_another_was(apart: bool) -> None:
    draws = np.random.default_rng(0)
    path = np.exp(-TIMES / 40.0) + autoregressive(draws, 3, 0.5, 0.02)

    def watch_of(rule: Settled) -> SettlingWatch:
        sites = {"a": slice(0, 3)}
        return SettlingWatch(rule, 5, lambda: path[position - 1] + BASE, sites, apart)

    def look(watch: SettlingWatch, last: int) -> bool:
        nonlocal position
        while position < last:
            position = min(watch.next_look(position), last)
            if watch.look(position, position // 50, last=position == STEPS):
                return True
        return False

    position, whole = 5, watch_of(Settled())
    assert look(whole, STEPS) and whole.found.step > 300 and whole.saved() is None
    for at in (6, 40, 150, whole.found.step - 3):
        position, first = 5, watch_of(Settled())
        assert not look(first, at)
        second = watch_of(Settled())
        second.go_on(first.saved())
        assert look(second, STEPS) and second.found == whole.found
    # Of another rule it begins anew.
    other = watch_of(Settled(0.05))
    other.go_on(first.saved())
    assert not other._looks
    for wrong in (b"", b"{}", b'{"first": 1}\n'):
        with pytest.raises(ValueError, match="."):
            check_saved(np.frombuffer(wrong, np.uint8))


def test_rules() -> None:
    assert rule_of(None) is None and rule_of("settled") == Settled() == rule_of(Settled(0.1))
    assert Settled(0.2).most_noise == 0.2 and Settled(0.2, 0.3).most_noise == 0.3
    for wrong in (0.1, True, "Settled", Settled):
        with pytest.raises(ArgumentError, match=r"Expected until .*Settled\(tolerance"):
            rule_of(wrong)
    with pytest.raises(ArgumentError, match="tolerance"):
        Settled(tolerance=0.0)


def test_the_warning_says_what_to_do() -> None:
    start = Settling(False, 50, 50, math.nan, "", math.nan, "", Settled())
    for found, words in [
        (start, "only 50 states"),
        (start._replace(drift=math.inf, noise=0.0), "do not slow down.*learning rate"),
        (start._replace(drift=0.4, noise=0.2, drift_site="a"), "go 0.4 sd .site 'a'.*num_steps"),
        (start._replace(drift=0.04, noise=0.2, noise_site="b"), "by 0.2 sd .site 'b'.*draws or"),
        (start._replace(drift=0.04, noise=0.02), "in the last steps only"),
    ]:
        with pytest.warns(UnsettledWarning, match=f"Fit to settle in 50 steps.*{words}"):
            warn_if_unsettled("Fit", found, 50)
    warn_if_unsettled("Fit", None, 50)
    warn_if_unsettled("Fit", start._replace(settled=True), 50)


# -- engines ---------------------------------------------------------------------------------------


class Line(Verbs):
    """A straight line with a known posterior."""

    def __init__(self, backend: Any) -> None:
        draws = np.random.default_rng(0)
        x = draws.normal(size=(30, 2))
        y = x @ [1.0, -2.0] + draws.normal(size=30)
        super().__init__(backend, (backend.array(x), backend.array(y)))
        self.covariance = np.linalg.inv(x.T @ x + np.eye(2))
        self.mean = self.covariance @ x.T @ y

    def model(self, x: Any, y: Any) -> None:
        host, dist, backend = self.backend.host, self.backend.dist, self.backend
        one = backend.array([1.0, 1.0])
        weights = host.sample("weights", dist.Normal(0.0 * one, one).to_event(1))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(x @ weights, 1.0), obs=y)

    def svgd(self) -> Any:
        seed = {"seed": 0} if self.is_pyro else {}
        return self.backend.public.SVGD(
            self.model, self.backend.adam(0.05), num_particles=20, **seed
        )

    def closed_form(self) -> Any:
        seed = {"seed": 0} if self.is_pyro else {}
        guide = self.backend.autoguide.AutoMultivariateNormal(self.model)
        return self.backend.public.ProximalScoreVI(self.model, guide, **seed)

    def error(self, engine: Any, state: Any) -> float:
        """Of the means, in standard deviations of the posterior, the largest."""
        weights = self.samples(engine, state)["weights"]
        error = (weights.mean(0) - self.mean) / np.sqrt(self.covariance.diagonal())
        return float(np.abs(error).max())


@pytest.fixture
def shell(backend: Any) -> Shell:
    return shell_of(backend.name)


def test_particles_settle_at_the_posterior(backend: Any, tmp_path: Any, capsys: Any) -> None:
    line = Line(backend)
    engine, path = line.svgd(), tmp_path / "state"
    state, result = line.run(
        engine, 5_000, until="settled", checkpoint=path, checkpoint_every=5_000, progress_bar=True
    )
    settling = result.settling
    assert result.settled and settling.step == len(result.losses) == line.taken(engine, state)
    assert LEAST_LOOKS < settling.step < 4_000
    assert max(settling.drift, settling.noise) <= 0.1 and settling.drift_site == "weights"
    # The particles' means are those of the posterior as far as 20 can be.
    assert line.error(engine, state) < 0.15
    # A run without it takes the same steps.
    other = line.svgd()
    same, plain = line.run(other, settling.step)
    assert line.algorithm(engine, state) == line.algorithm(other, same)
    np.testing.assert_array_equal(plain.losses, result.losses)
    assert plain.settled is None and plain.settling is None
    # What has ended early is saved all the same, and the bar has shown it.
    other = line.svgd()
    assert line.taken(other, line.load(other, path)) == settling.step
    assert " sd" in capsys.readouterr().err.rpartition("settling=")[2]


def test_a_run_that_was_killed_settles_where_the_whole_one_does(
    backend: Any, tmp_path: Any
) -> None:
    line, path = Line(backend), tmp_path / "state"
    engine = line.closed_form()
    state, whole = line.run(engine, 1_000, until="settled")
    steps = len(whole.losses)
    assert whole.settled and steps < 400

    def kill(step: int, *_: Any) -> None:
        if step >= at:
            raise OSError("killed")

    for at in (20, steps // 2, steps - 1):
        options = {"until": "settled", "checkpoint": path, "checkpoint_every": 3}
        with pytest.raises(OSError, match="killed"):
            line.run(line.closed_form(), 1_000, callback=kill, callback_every=1, **options)
        other = line.closed_form()
        loaded = line.load(other, path)
        taken = line.taken(other, loaded) if not line.is_pyro else None
        if taken is None:
            # Pyro's engine takes the state over in its first run.
            taken = other.num_steps_taken
        assert taken in range(at - 3, at + 1)
        found, rest = line.run(other, 1_000 - taken, loaded, until="settled")
        assert rest.settled and rest.settling == whole.settling
        assert line.algorithm(other, found) == line.algorithm(engine, state)


def test_the_closed_form_settles_by_itself(backend: Any) -> None:
    line = Line(backend)
    engine = line.closed_form()
    calls: list[int] = []
    state, result = line.run(
        engine,
        3_000,
        until=backend.public.Settled(tolerance=0.1),
        callback=lambda step, *_: calls.append(step),
        callback_every=1_000,
    )
    assert result.settled and calls[-1] == line.taken(engine, state) < 1_500
    # Draws are 1,000 or more, so that their mean is within 4 / sqrt(1,000) of the guide's.
    assert line.error(engine, state) < 0.1 + 4.0 / math.sqrt(1_000)


def test_a_bound_that_is_too_small_is_told(shell: Shell, tmp_path: Any) -> None:
    engine = shell.make()
    with pytest.warns(UnsettledWarning, match="only 50 states"):
        _, result = shell.run(engine, 50, until="settled")
    assert result.settled is False and result.best is not None
    # A callback that ends the run has its own reasons.
    engine = shell.make()
    _, result = shell.run(engine, 50, until="settled", callback=lambda *_: True, callback_every=20)
    assert result.settled is False and len(result.losses) == 20
    with pytest.raises(ArgumentError, match="Expected until"):
        shell.run(shell.make(), 50, until="done")


def test_looks_change_nothing(shell: Shell) -> None:
    """Of a noisy engine with minibatches, whose draws and random numbers stay its own."""
    one, two = shell.make(), shell.make()
    with pytest.warns(UnsettledWarning):
        looked, result = shell.run(one, 150, until=Settled(tolerance=1e-6))
    state, plain = shell.run(two, 150)
    np.testing.assert_array_equal(plain.losses, result.losses)
    assert shell.bits(one, looked) == shell.bits(two, state)


def test_searching_is_no_settling(backend: Any) -> None:
    """Closed forms that begin with a search, or cold, are not looked at before its end."""
    from ppl_ext.score_matching.regression.diagonal import DiagonalForm
    from ppl_ext.score_matching.regression.full import FullForm
    from ppl_ext.score_matching.regression.mixture import MixtureForm

    assert FullForm.search_share(50) == 0.0 and MixtureForm.search_share(2) == 0.5
    assert DiagonalForm.search_share(10) == 0.0 and DiagonalForm.search_share(11) == 0.5
    line = Line(backend)
    guide = backend.autoguide.AutoDiagonalNormal
    engine = backend.public.ProximalScoreVI(line.model, guide)
    line.start(engine)
    engine._search_share = lambda plan: 0.5
    from ppl_ext.running.run import Cadence

    cadence = Cadence.of(100, 300, (None, None), (None, None))
    watch = engine._until(Settled(), cadence, lambda: np.zeros((2, 2)), None)
    assert watch.next_look(100) == 201
