"""Score estimators: unbiased, one set of rows a step, honest about their cost."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from pyro_ext.gradients import Full, Minibatch, default_estimator

Y = torch.arange(11.0)


def subsampled(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("N", len(y), subsample_size=3) as rows:
        pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])


def plain(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("N", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def by_argument(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("N", 11, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def test_the_default_follows_the_model():
    assert isinstance(default_estimator(LogDensity(subsampled, (Y,))), Minibatch)
    assert isinstance(default_estimator(LogDensity(plain, (Y,))), Full)
    assert isinstance(default_estimator(LogDensity(by_argument, (Y[:4],))), Full)


def test_reshuffled_epochs_use_every_row_at_most_once():
    target = LogDensity(subsampled, (Y,))
    generator = torch.Generator().manual_seed(0)
    estimator = Minibatch()
    state = estimator.init(target, target.bind(Y), generator)
    epochs = []
    for _ in range(40):
        seen = []
        for _ in range(3):
            rows, state = estimator.draw(target, state, generator)
            seen += rows["N"].tolist()
        assert len(set(seen)) == 9
        epochs.append(tuple(seen))
    assert len(set(epochs)) == 40
    # Rows that an epoch leaves out differ from epoch to epoch: none is left out always.
    assert set().union(*epochs) == set(range(11))


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_minibatch_scores_are_unbiased(sampling):
    target = LogDensity(subsampled, (Y,))
    data = target.bind(Y)
    generator = torch.Generator().manual_seed(0)
    estimator = Minibatch(sampling)
    state = estimator.init(target, data, generator)
    z = torch.tensor([[0.5], [-2.0]])
    draws = []
    for _ in range(4000):
        score, state = estimator.estimate(target, state, z, data, generator)
        draws.append(score.score)
    draws = torch.stack(draws)
    exact = target.full_score(z, data).score
    # Batches of one epoch are negatively correlated, so this error is an upper bound.
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() < 4 * error).all()
    # All particles see the same rows: their scores differ by a constant here.
    torch.testing.assert_close(draws[:, 0] - draws[:, 1], torch.full((4000, 1), -2.5 * 12))


def test_full_is_exact_and_costs_are_stated():
    target = LogDensity(subsampled, (Y,), data_chunk=4)
    data = target.bind(Y)
    z = torch.tensor([[0.5]])
    generator = torch.Generator()
    score, _ = Full().estimate(target, {}, z, data, generator)
    assert score.score.item() == pytest.approx(-0.5 + (Y - 0.5).sum().item())
    assert Full().evaluations_per_step(target) == 1.0
    assert Minibatch().evaluations_per_step(target) == pytest.approx(3 / 11)
    assert Full().evaluations_per_step(LogDensity(by_argument, (Y[:4],))) == pytest.approx(4 / 11)


def test_minibatch_refuses_models_without_rows_to_draw():
    for model, y in [(plain, Y), (by_argument, Y[:4])]:
        target = LogDensity(model, (y,))
        with pytest.raises(ArgumentError, match=r"subsample_size=B.*Full\(\)"):
            Minibatch().init(target, target.bind(y), torch.Generator())
    with pytest.raises(ArgumentError, match="'reshuffle', 'replacement'"):
        Minibatch("shuffled")


def test_every_row_is_used_in_an_epoch_that_batches_fill():
    y = torch.arange(12.0)
    target = LogDensity(subsampled, (y,))
    generator = torch.Generator().manual_seed(0)
    estimator = Minibatch()
    state = estimator.init(target, target.bind(y), generator)
    for _ in range(3):
        seen = []
        for _ in range(4):
            rows, state = estimator.draw(target, state, generator)
            seen += rows["N"].tolist()
        assert sorted(seen) == list(range(12))
