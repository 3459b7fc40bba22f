"""The model check: every row of the error table, beside what Pyro itself says."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVGD, RBFSteinKernel, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam

from ppl_ext.errors import ArgumentError, ModelCheckError
from pyro_ext.density import LogDensity

HOST_ERRORS = (ValueError, RuntimeError, NotImplementedError, TypeError, AttributeError)


def host_guide_message(model, *args):
    """What Pyro's own guide says to the model."""
    with pytest.raises(HOST_ERRORS) as caught:
        AutoDiagonalNormal(model)(*args)
    return str(caught.value)


def our_message(model, *args, error=ModelCheckError, **options):
    with pytest.raises(error) as caught:
        LogDensity(model, args, **options)
    return str(caught.value)


def test_discrete_latent():
    def model():
        pyro.sample("z", dist.Bernoulli(0.3))

    ours, host = our_message(model), host_guide_message(model)
    wording = "Continuous inference cannot handle discrete sample site 'z'."
    assert host.startswith(wording) and ours.startswith(wording)
    assert "enumerat" in ours


def test_poisson_latent():
    def model():
        pyro.sample("z", dist.Poisson(3.0))

    wording = "Continuous inference cannot handle discrete sample site 'z'."
    assert host_guide_message(model).startswith(wording)
    assert our_message(model).startswith(wording)


def test_spherical_latent():
    def model():
        pyro.sample("z", dist.ProjectedNormal(torch.ones(3)))

    wording = "Continuous inference cannot handle spherical sample site 'z'."
    assert host_guide_message(model).startswith(wording)
    ours = our_message(model)
    assert ours.startswith(wording) and "reparam" in ours


def test_circular_latent_warns():
    def model():
        pyro.sample("z", dist.VonMises(0.0, 1.0))

    with pytest.warns(UserWarning, match="poorly handles circular sample site 'z'.*reparam"):
        LogDensity(model)


def test_structure_that_changes():
    def model():
        if pyro.sample("a", dist.Normal(0.0, 1.0)) > 0:
            pyro.sample("b", dist.Normal(0.0, 1.0))

    ours = our_message(model)
    assert "structure changes" in ours and "torch.where" in ours


def test_shape_that_changes():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0).expand([2 if a > 0 else 3]).to_event(1))

    ours = our_message(model)
    assert "structure changes" in ours and "b: (2,)" in ours and "b: (3,)" in ours


def test_no_latents():
    def model():
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    wording = "found no latent variables"
    assert wording in host_guide_message(model)
    ours = our_message(model)
    assert wording in ours and "'model'" in ours


def test_duplicate_names():
    def model():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("a", dist.Normal(0.0, 1.0))

    wording = "Multiple sample sites named 'a'"
    assert host_guide_message(model).startswith(wording)
    assert our_message(model).startswith(wording)


def test_delta_latent():
    def model():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("d", dist.Delta(torch.tensor(1.0)))

    ours = our_message(model)
    assert ours.startswith("Sample site 'd' has a delta distribution")
    assert "pyro.deterministic" in ours


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
    host_guide_message(Network(inside=True), x, y)  # fails too, on a matrix transpose
    ours = our_message(Network(inside=True), x, y)
    assert "network is called inside plate 'data'" in ours and "layer.weight" in ours
    LogDensity(Network(inside=False), (x, y))


def test_batch_norm_in_train_mode():
    norm = torch.nn.BatchNorm1d(2)

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(norm(x) @ w, 1.0).to_event(1), obs=y)

    x, y = torch.randn(5, 2), torch.ones(5)
    ours = our_message(model, x, y)
    assert "BatchNorm1d in train mode" in ours and ".eval()" in ours
    assert norm.num_batches_tracked == 0
    norm.eval()
    LogDensity(model, (x, y))


def local(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("N", len(y), subsample_size=3) as rows:
        z = pyro.sample("z", dist.Normal(a, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y[rows])


def test_latents_in_a_subsampled_plate():
    y = torch.randn(12)
    guide = AutoDiagonalNormal(local)
    guide(y)
    assert guide.loc.shape == (1 + 3,)  # Pyro's guide takes the minibatch for the plate
    ours = our_message(local, y, allow_local_latents=False)
    assert "['z']" in ours and "SVGD" in ours
    assert LogDensity(local, (y,)).dim == 1 + 12


def test_latents_in_a_plate_whose_rows_are_arguments():
    def model(y):
        with pyro.plate("N", 12, subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    ours = our_message(model, torch.ones(4))
    assert "passed as arguments" in ours and "['z']" in ours


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_as_arguments_are_told_from_rows_by_index(rows):
    def by_argument(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12, subsample_size=len(y)):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    def by_index(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12, subsample_size=rows) as i:
            pyro.sample("y", dist.Normal(a, 1.0), obs=y[i])

    def by_subsample(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12, subsample_size=rows):
            pyro.sample("y", dist.Normal(a, 1.0), obs=pyro.subsample(y, event_dim=0))

    assert LogDensity(by_argument, (torch.ones(rows),)).batch_arguments
    assert not LogDensity(by_index, (torch.ones(12),)).batch_arguments
    subsampled = LogDensity(by_subsample, (torch.arange(12.0),))
    assert not subsampled.batch_arguments
    data = subsampled.bind(torch.arange(12.0))
    score = subsampled.full_score(torch.zeros(1, 1), data).score
    assert score.item() == pytest.approx(66.0)


def test_data_outside_the_support_name_the_site():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", len(y)):
            pyro.sample("x", dist.Normal(a, 1.0), obs=y)

    y = torch.tensor([0.0, float("nan")])
    svgd = SVGD(model, RBFSteinKernel(), Adam({"lr": 0.1}), 2, 1)
    with pytest.raises(ValueError, match="Error while computing log_prob at site 'x'"):
        svgd.step(y)
    assert our_message(model, y).startswith("Error while computing log_prob at site 'x'")


def test_rows_that_do_not_fit_the_plate():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12):
            pyro.sample("y", dist.Normal(a, 1.0).expand([len(y)]), obs=y)

    host = host_guide_message(model, torch.ones(4))
    ours = our_message(model, torch.ones(4), error=ArgumentError)
    assert ours.startswith(host.splitlines()[0])
    assert "subsample_size=len(x)" in ours


def test_observed_rows_that_do_not_broadcast():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    ours = our_message(model, torch.ones(4))
    assert "log_prob at site 'y'" in ours and "(12,)" in ours


def test_plates_in_a_loop_and_batch_dimensions_without_a_plate_are_accepted():
    def loop():
        for i in pyro.plate("N", 3):
            pyro.sample(f"a{i}", dist.Normal(float(i), 1.0))

    def unplated():
        pyro.sample("a", dist.Normal(torch.tensor([0.0, 1.0, 2.0]), 1.0))

    assert "sequential pyro.plate" in host_guide_message(loop)
    with pytest.raises(ValueError, match='at site "a", invalid log_prob shape'):
        Trace_ELBO().loss(unplated, AutoDiagonalNormal(unplated))
    for model in (loop, unplated):
        # A plate in a Python loop reads its indices one by one, which a graph cannot hold.
        target = LogDensity(model, evaluation="handlers")
        score = target.score(torch.zeros(1, 3), target.bind()).score
        torch.testing.assert_close(score, torch.tensor([[0.0, 1.0, 2.0]]))


def test_hidden_sites_do_not_count():
    def inner():
        pyro.sample("a", dist.Normal(0.0, 1.0))

    assert "poutine.block" in our_message(poutine.block(inner))


def test_subsampled_plate_in_a_loop():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        for t in pyro.plate("t", 10, subsample_size=3):
            pyro.sample(f"y_{t}", dist.Normal(a, 0.5), obs=y[t])

    ours = our_message(model, torch.zeros(10))
    assert "plate 't'" in ours and "Python loop" in ours


def test_data_shorter_than_the_plate_that_indexes_them():
    def model(y, size):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("N", size, subsample_size=10) as rows:
            pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])

    for size in (41, 80):
        ours = our_message(model, torch.zeros(40), size, error=ArgumentError)
        assert f"'N' of {size} rows" in ours and "fewer rows" in ours
    LogDensity(model, (torch.zeros(40), 40))


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
