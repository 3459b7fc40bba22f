"""The model check: faults that only Pyro's models have, beside what Pyro itself says."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from tests.backends import backend_of
from tests.density_support import host_words, our_words

PYRO = backend_of("pyro")


def test_shape_that_changes():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0).expand([2 if a > 0 else 3]).to_event(1))

    ours = our_words(PYRO, model)
    assert "structure changes" in ours and "b: (2,)" in ours and "b: (3,)" in ours


class Network(PyroModule):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.layer = PyroModule[torch.nn.Linear](2, 1)
        self.layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
        self.layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x, y):
        plate = pyro.plate("data", len(x))
        if self.inside:
            with plate:
                return pyro.sample("y", dist.Normal(self.layer(x).squeeze(-1), 1.0), obs=y)
        out = self.layer(x).squeeze(-1)
        with plate:
            return pyro.sample("y", dist.Normal(out, 1.0), obs=y)


def test_network_inside_a_data_plate():
    x, y = torch.ones(5, 2), torch.ones(5)
    host_words(PYRO, Network(inside=True), x, y)  # fails too, on a matrix transpose
    ours = our_words(PYRO, Network(inside=True), x, y)
    assert "network is called inside plate 'data'" in ours and "layer.weight" in ours
    LogDensity(Network(inside=False), (x, y))


def test_batch_norm_in_train_mode():
    norm = torch.nn.BatchNorm1d(2)

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(norm(x) @ w, 1.0).to_event(1), obs=y)

    x, y = torch.randn(5, 2), torch.ones(5)
    ours = our_words(PYRO, model, x, y)
    assert "BatchNorm1d in train mode" in ours and ".eval()" in ours
    assert norm.num_batches_tracked == 0
    norm.eval()
    LogDensity(model, (x, y))


def test_observed_rows_that_do_not_broadcast():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    ours = our_words(PYRO, model, torch.ones(4))
    assert "log_prob at site 'y'" in ours and "(12,)" in ours


def test_plates_in_a_loop_are_accepted():
    def loop():
        for i in pyro.plate("N", 3):
            pyro.sample(f"a{i}", dist.Normal(float(i), 1.0))

    assert "sequential pyro.plate" in host_words(PYRO, loop)
    # A plate in a Python loop reads its indices one by one, which a graph cannot hold.
    target = LogDensity(loop, evaluation="handlers")
    score = target.score(torch.zeros(1, 3), target.bind()).score
    torch.testing.assert_close(score, torch.tensor([[0.0, 1.0, 2.0]]))


def test_hidden_sites_do_not_count():
    def inner():
        pyro.sample("a", dist.Normal(0.0, 1.0))

    assert "poutine.block" in our_words(PYRO, poutine.block(inner))


def test_subsampled_plate_in_a_loop():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        for t in pyro.plate("t", 10, subsample_size=3):
            pyro.sample(f"y_{t}", dist.Normal(a, 0.5), obs=y[t])

    ours = our_words(PYRO, model, torch.zeros(10))
    assert "plate 't'" in ours and "Python loop" in ours


def test_rows_that_stop_fitting_later():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 100, subsample_size=20):
            pyro.sample("y", dist.Normal(a, 1.0).expand([len(y)]), obs=y)

    target = LogDensity(model, (torch.zeros(20),))
    z = torch.zeros(2, 1)
    target.score(z, target.bind(torch.ones(20)))
    with pytest.raises(ArgumentError, match=r"subsample_size=len\(x\)"):
        target.score(z, target.bind(torch.ones(13)))
    assert target.evaluation == "graph"
