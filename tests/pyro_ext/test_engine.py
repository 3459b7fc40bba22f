"""The shell that all engines share, on a small engine: gradient ascent from one position."""

import functools
import os

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.optim import Adam, ClippedAdam, ExponentialLR

from ppl_ext.errors import ArgumentError, ModelCheckError, NonFiniteError
from pyro_ext.engine import Engine, Update
from pyro_ext.optim import EngineOptimizer

Y = torch.linspace(-1.0, 3.0, 12)


def model(y):
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    with pyro.plate("N", len(y), subsample_size=4) as rows:
        pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])


class Ascent(Engine):
    def _initialize(self, plan, data):
        self.z = plan.target.initial_positions(2, self._generator, data)
        self.optimizer = EngineOptimizer(self.optim, {"z": self.z})

    def _update(self, plan, data):
        score = self._score(self.z.detach(), data)
        finite = bool(torch.isfinite(score.score).all())
        if finite:
            self.optimizer.step({"z": -score.score})
        return Update(-float(score.log_likelihood.mean()), {"two": 2.0}, finite)

    def _algorithm_state(self):
        return {"z": self.z.detach(), "optimizer": self.optimizer.state_dict()}

    def _load_algorithm_state(self, state):
        with torch.no_grad():
            self.z.copy_(state["z"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _draw(self, plan, num_samples):
        return self.z.detach()


def engine(optim=None, **options):
    return Ascent(model, optim or Adam({"lr": 0.1}), seed=3, **options)


def test_run_returns_losses_and_figures_and_samples_fit_the_host():
    e = engine()
    result = e.run(200, Y, progress_bar=False)
    assert result.losses.shape == (200,) and (result.info["two"] == 2.0).all()
    assert e.num_steps_taken == 200
    assert e.gradient_evaluations == pytest.approx(200 * 2 * 4 / 12)
    draws = e.get_samples()
    assert draws["a"].shape == (2,)
    # The mode is 12/(12 + 1/100) times the mean of y, which is 1; minibatches jitter it.
    assert (draws["a"] - 1.0).abs().max() < 0.5
    predicted = pyro.infer.Predictive(model, posterior_samples=draws)(Y)
    assert predicted["y"].shape == (2, 4)


def test_progress_bar_shows_loss(capsys):
    engine().run(3, Y)
    shown = capsys.readouterr().err
    assert "Ascent" in shown and "3/3" in shown and "loss=" in shown


def test_callback_sees_every_step_and_stops_the_run():
    seen = []

    def callback(i, e, info):
        seen.append((i, e.num_steps_taken, info["two"]))
        return i == 5

    result = engine().run(100, Y, progress_bar=False, callback=callback)
    assert seen == [(i, i, 2.0) for i in range(1, 6)]
    assert len(result.losses) == 5


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "optim",
    [
        Adam({"lr": 0.1}),
        ClippedAdam({"lr": 0.1, "lrd": 0.99}),
        ExponentialLR({"optimizer": torch.optim.SGD, "optim_args": {"lr": 0.01}, "gamma": 0.9}),
        functools.partial(torch.optim.Adam, lr=0.1),
    ],
)
def test_a_killed_run_resumes_bit_identically(optim, tmp_path):
    path = tmp_path / "state.pt"
    whole = engine(optim)
    result = whole.run(50, Y, progress_bar=False)

    def kill(i, e, info):
        if i == 33:
            raise Killed

    with pytest.raises(Killed):
        engine(optim).run(
            50, Y, progress_bar=False, callback=kill, checkpoint=path, checkpoint_every=10
        )
    resumed = Ascent(model, optim, seed=999)
    resumed.load(path)
    resumed.run(20, Y, progress_bar=False)
    assert resumed.num_steps_taken == 50
    assert torch.equal(resumed.z, whole.z)
    assert np.array_equal(resumed.losses, whole.losses)
    assert np.array_equal(resumed.losses, result.losses)
    assert resumed.gradient_evaluations == whole.gradient_evaluations
    assert os.listdir(tmp_path) == ["state.pt"]


def test_load_refuses_other_files_engines_and_models(tmp_path):
    e = engine()
    e.step(Y)
    e.save(tmp_path / "state.pt")

    class Descent(Ascent):
        pass

    with pytest.raises(ArgumentError, match=r"state of Descent.*Ascent"):
        Descent(model, Adam({"lr": 0.1})).load(tmp_path / "state.pt")

    def other():
        pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    another = Ascent(other, Adam({"lr": 0.1}))
    another.load(tmp_path / "state.pt")
    with pytest.raises(ArgumentError, match=r"another model.*'b'.*'a'"):
        another.step()
    torch.save({"a": 1}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no state at all")
    for name in ("other.pt", "text.pt"):
        with pytest.raises(ArgumentError, match="saved by an engine"):
            e.load(tmp_path / name)


def test_counts_are_there_as_soon_as_a_state_is_loaded(tmp_path):
    e = engine()
    e.run(7, Y, progress_bar=False)
    e.save(tmp_path / "state.pt")
    resumed = engine()
    resumed.load(tmp_path / "state.pt")
    assert resumed.num_steps_taken == 7 and resumed.losses == e.losses
    resumed.run(10 - resumed.num_steps_taken, Y, progress_bar=False)
    assert resumed.num_steps_taken == 10


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_non_finite_step_keeps_the_state(policy):
    e = engine(on_nonfinite=policy)
    e.run(5, Y, progress_bar=False)
    before, state = e.z.clone(), e.optimizer.state_dict()
    broken = Y.clone()
    broken[:] = float("inf")
    if policy == "raise":
        with pytest.raises(NonFiniteError, match=r"step 6.*learning rate") as caught:
            e.step(broken)
        assert caught.value.step == 6
        # Nothing of the failed step stays, not even its minibatch.
        assert e.num_steps_taken == 5 and len(e.losses) == 5
        twin = engine(on_nonfinite=policy)
        twin.run(5, Y, progress_bar=False)
        assert e.gradient_evaluations == twin.gradient_evaluations
        assert e.step(Y) == twin.step(Y)
        before, state = e.z.clone(), e.optimizer.state_dict()
    else:
        result = e.run(2, broken, progress_bar=False)
        assert np.isnan(result.losses).all() and e.num_skipped == 2
    assert torch.equal(e.z, before)
    assert str(e.optimizer.state_dict()) == str(state)
    e.run(5, Y, progress_bar=False)
    assert torch.isfinite(e.z).all() and not torch.equal(e.z, before)


def test_bad_input_is_refused_before_any_work():
    with pytest.raises(ArgumentError, match="'raise', 'skip'"):
        engine(on_nonfinite="ignore")
    with pytest.raises(ArgumentError, match="GradientEstimator"):
        engine(estimator="svrg")
    with pytest.raises(ArgumentError, match="num_steps to be an int >= 0"):
        engine().run(-1, Y)
    with pytest.raises(ArgumentError, match=r"first argument of run, found Tensor"):
        engine().run(Y, 10)
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        engine().get_samples()
    bound = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    for optim in (bound, "adam"):
        with pytest.raises(ArgumentError, match=r"pyro\.optim\.Adam"):
            engine(optim).step(Y)
    e = engine()
    with pytest.raises(ArgumentError, match="missing a required argument"):
        e.step()
    with pytest.raises(ModelCheckError):
        e.step(torch.full((12,), float("nan")))
    e.step(Y)


def test_the_global_generator_and_parameter_store_are_left_alone():
    torch.manual_seed(0)
    e = engine()
    before = torch.random.get_rng_state()
    e.run(5, Y, progress_bar=False)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not list(pyro.get_param_store())


def test_seeds_decide_the_run_and_the_default_follows_the_hosts_seed():
    def losses(seed):
        return Ascent(model, Adam({"lr": 0.1}), seed=seed).run(5, Y, progress_bar=False).losses

    assert np.array_equal(losses(1), losses(1))
    assert not np.array_equal(losses(1), losses(2))
    pyro.set_rng_seed(7)
    first = losses(None)
    pyro.set_rng_seed(7)
    assert np.array_equal(first, losses(None))
