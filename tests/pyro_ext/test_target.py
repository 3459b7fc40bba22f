"""What only Pyro's target has: evaluation modes, graphs, networks, the parameter store."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import initialization
from pyro.infer.reparam import ConjugateReparam, SplitReparam
from pyro.nn import PyroModule, PyroSample
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.errors import EvaluationWarning
from pyro_ext.curvature import ProgramCurvature
from pyro_ext.density import LogDensity
from pyro_ext.graphs.agreement import within_rounding

X = torch.linspace(-1.0, 2.0, 20, dtype=torch.float64)
Y = torch.sin(3.0 * X) + 0.1 * X**2


@pytest.fixture(autouse=True)
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def local(x, y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("N", len(x), subsample_size=5) as rows:
        weight = pyro.sample("weight", dist.Gamma(2.0, scale))
        pyro.sample("y", dist.Normal(weight * x[rows], scale), obs=y[rows])


def positions(target, num=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.rand(num, target.dim, generator=generator) - 1.0


@pytest.mark.parametrize("mode", ["graph", "handlers", "loop"])
def test_all_ways_of_evaluation_agree_at_new_inputs(mode):
    reference = LogDensity(local, (X, Y), evaluation="loop")
    target = LogDensity(local, (X, Y), evaluation=mode, particle_chunk=2)
    for seed in range(3):
        z = positions(target, 5, seed)
        rows = {"N": torch.randperm(20, generator=torch.Generator().manual_seed(seed))[:5]}
        data = target.bind(X + seed, Y * (1 + seed))
        for one, two in zip(
            target.score(z, data, rows), reference.score(z, data, rows), strict=True
        ):
            torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-9)
    assert target.evaluation == mode


def test_a_branch_on_a_latent_falls_back_to_a_loop_and_says_so():
    def branches():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        scale = 1.0 if a > 0 else 2.0
        pyro.sample("b", dist.Normal(a, scale))

    target = LogDensity(branches)
    z = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    with pytest.warns(EvaluationWarning) as caught:
        score = target.score(z, target.bind()).score
    assert [("graph" in str(w.message), "loops" in str(w.message)) for w in caught] == [
        (True, False),
        (False, True),
    ]
    expected = torch.tensor([[-1.0 + (0.5 - 1.0), 0.5], [1.0 + 1.5 / 4, -1.5 / 4]])
    torch.testing.assert_close(score, expected)
    target.score(z, target.bind())  # says so once: a second warning would be an error here


def test_a_loop_over_the_rows_of_a_plate_is_told_what_to_write():
    def in_turn(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        for row in pyro.plate("rows", 2):
            pyro.sample(f"y{row}", dist.Normal(a, 1.0), obs=y[row])

    target = LogDensity(in_turn, (Y[:2],))
    with pytest.warns(EvaluationWarning, match="loop over a plate's rows do. Write .*with plate"):
        target.score(torch.zeros(1, 1), target.bind(Y[:2]))


class Network(PyroModule):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        if kind == "linear":
            self.layer = PyroModule[torch.nn.Linear](3, 4)
        elif kind == "convolution":
            self.layer = PyroModule[torch.nn.Conv1d](1, 2, 2)
        else:
            self.layer = PyroModule[torch.nn.GRU](3, 2, batch_first=True)
        for name, value in list(self.layer.named_parameters()):
            prior = dist.Normal(0.0, 0.5).expand(value.shape).to_event(value.dim())
            setattr(self.layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        if self.kind == "linear":
            out = self.layer(x)
        elif self.kind == "convolution":
            out = self.layer(x[:, None, :]).flatten(1)
        else:
            out = self.layer(x[:, :, None].expand(-1, -1, 3))[0][:, -1]
        out = torch.tanh(out).sum(-1)
        with pyro.plate("N", 30, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(out, 0.3), obs=y)
        return out


@pytest.mark.parametrize("kind", ["linear", "convolution", "recurrent"])
def test_networks_with_batches_as_arguments(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator)
    y = torch.randn(30, generator=generator)
    net = Network(kind)
    store = dict(pyro.get_param_store())
    target = LogDensity(net, (x[:6], y[:6]))
    assert target.batch_arguments and not target.observed_sites == ()
    z = positions(target)
    full = target.score(z, target.bind(x, y)).score
    batches = [
        target.score(z, target.bind(a, b)).score
        for a, b in zip(x.split(6), y.split(6), strict=True)
    ]
    torch.testing.assert_close(sum(batches) / 5, full, rtol=1e-9, atol=1e-8)
    assert target.evaluation == "graph"
    looped = LogDensity(net, (x, y), evaluation="loop")
    torch.testing.assert_close(
        looped.score(z, looped.bind(x, y)).score, full, rtol=1e-10, atol=1e-9
    )
    assert dict(pyro.get_param_store()) == store


def test_priors_with_their_own_validation_can_be_traced():
    pyro.enable_validation(True)
    net = Network("linear")
    target = LogDensity(net, (torch.ones(4, 3), torch.ones(4)))
    target.score(positions(target), target.bind(torch.ones(4, 3), torch.ones(4)))
    assert target.evaluation == "graph"


def test_initial_positions_leave_global_randomness():
    strategy = initialization.init_to_sample
    target = LogDensity(local, (X, Y), init_strategy=strategy)
    before = torch.random.get_rng_state()
    target.initial_positions(2, torch.Generator().manual_seed(0), target.bind(X, Y))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_may_change_closed_over_tensors_after_retrace():
    box = [torch.tensor(1.0)]

    def model():
        pyro.sample("a", dist.Normal(0.0, box[0]))

    target = LogDensity(model)
    z = torch.ones(1, 1)
    assert target.score(z, target.bind()).score.item() == pytest.approx(-1.0)
    box[0] = torch.tensor(2.0)
    assert target.score(z, target.bind()).score.item() == pytest.approx(-1.0)
    target.retrace()
    assert target.score(z, target.bind()).score.item() == pytest.approx(-0.25)


@pytest.mark.parametrize("evaluation", ["graph", "handlers"])
def test_so_does_its_curvature(evaluation):
    scale, noise = torch.tensor(1.0), torch.tensor(1.0)

    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, scale))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(a, noise), obs=y)

    target = LogDensity(model, (Y,), evaluation=evaluation)
    data = target.bind(Y)
    curvature = ProgramCurvature(target, data, GaussNewton("diag"))

    def found():
        return curvature.at(target, torch.ones(2, 1), data, None).diagonals()[0].item()

    assert found() == pytest.approx(1.0 + len(Y))
    scale.fill_(2.0), noise.fill_(2.0)
    target.retrace()
    assert found() == pytest.approx(0.25 * (1.0 + len(Y)))


def scaled_by_argument(y, sigma):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a, sigma), obs=y)


def test_python_arguments_are_part_of_the_graphs_key():
    target, z = LogDensity(scaled_by_argument, (Y, 1.0)), torch.zeros(1, 1)
    for sigma in (1.0, 2.0, 1.0):
        score = target.score(z, target.bind(Y, sigma)).score
        torch.testing.assert_close(score, (Y.sum() / sigma**2).reshape(1, 1))


def test_a_graph_is_traced_once_for_each_kind_of_arguments():
    runs = []

    def model(y):
        runs.append(1)
        scaled_by_argument(y, 1.0)

    target = LogDensity(model, (Y,))
    z = torch.zeros(2, 1)
    target.score(z, target.bind(Y))
    before = len(runs)
    for shift in range(5):
        target.score(z + shift, target.bind(Y + shift))
    assert len(runs) == before
    target.score(torch.zeros(3, 1), target.bind(Y))
    assert len(runs) > before


def test_too_many_kinds_of_arguments_are_told_once():
    target, z = LogDensity(scaled_by_argument, (Y, 1.0)), torch.zeros(1, 1)
    with pytest.warns(EvaluationWarning, match="33|32 kinds of arguments") as caught:
        for i in range(40):
            target.score(z, target.bind(Y, 1.0 + i))
    assert len(caught) == 1
    score = target.score(z, target.bind(Y, 1.0)).score
    torch.testing.assert_close(score, Y.sum().reshape(1, 1))


def test_a_graph_that_differs_from_the_model_is_refused():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        # Another factor where it is traced: no graph can stand for that.
        pyro.factor("drift", (1.0 if get_proxy_mode() is None else 2.0) * a)

    target = LogDensity(model)
    with pytest.warns(EvaluationWarning, match="another result than the model"):
        target.score(torch.zeros(1, 1), target.bind())
    assert target.evaluation == "handlers"


def test_a_sum_that_is_rounded_otherwise_is_the_same_result():
    """Entries of a score are rounding where sums of thousands cancel."""
    generator = torch.Generator().manual_seed(0)
    x = 100.0 * torch.randn(4000, 3, generator=generator, dtype=torch.float32)
    order = torch.randperm(len(x), generator=generator)

    start = torch.zeros(1, 3).to(x)

    def model(x, turned):
        a = pyro.sample("a", dist.Normal(start[0], 1.0).to_event(1))
        nothing = ((x * a) ** 3).sum() - ((turned * a) ** 3).sum()
        # What is left of the sums differs in sign where the model is traced.
        pyro.factor("nothing", (1.0 if get_proxy_mode() is None else -1.0) * nothing)

    target = LogDensity(model, (x, x[order]))
    target.score(start, target.bind(x, x[order]))
    assert target.evaluation == "graph"


def test_rounding_is_told_from_other_results():
    expected = torch.tensor([1.0, 0.0, torch.inf, torch.nan])
    near = [expected + noise for noise in (1e-3, -5e-4)]

    def agrees(*found: float) -> bool:
        return within_rounding(torch.tensor(found), expected, *near)

    assert agrees(1.0, 0.02, torch.inf, torch.nan)
    assert not agrees(1.0, 0.1, torch.inf, torch.nan)
    assert not agrees(1.05, 0.0, torch.inf, torch.nan)
    assert not agrees(1.0, 0.0, 0.0, torch.nan)
    assert not agrees(1.0, 0.0, -torch.inf, torch.nan)
    assert not agrees(1.0, 0.0, torch.inf, 0.0)
    assert not agrees(torch.nan, 0.0, torch.inf, torch.nan)


def test_recurrent_layers_are_vectorized_without_gradients_too():
    x, y = torch.ones(5, 3), torch.ones(5)
    target = LogDensity(Network("recurrent"), (x, y))
    data = target.bind(x, y)
    z = positions(target)
    values = target.constrain(z, data)  # a slower way would warn, which is an error here
    torch.testing.assert_close(target.unconstrain(values, data), z)
    target.log_density(z, data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile warns of itself
def test_inductor_agrees_with_the_graph():
    reference = LogDensity(local, (X, Y))
    target = LogDensity(local, (X, Y), evaluation="inductor")
    data = target.bind(X, Y)
    for seed in range(2):
        z = positions(target, 5, seed)
        rows = {"N": torch.randperm(20, generator=torch.Generator().manual_seed(seed))[:5]}
        for one, two in zip(
            target.score(z, data, rows), reference.score(z, data, rows), strict=True
        ):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert target.evaluation == "inductor"


def parts_of_a_site(scale):
    s = pyro.sample("s", dist.Gamma(torch.tensor([2.0, 3.0, 1.0]), 1.0).to_event(1))
    with pyro.plate("N", 20), pyro.poutine.scale(scale=scale):
        pyro.sample("y", dist.Normal(s.sum(), 1.0), obs=Y)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_site_that_is_split_keeps_its_prior(scale):
    """The host records such a site as a point whose density is the prior of its parts."""
    split = pyro.poutine.reparam(parts_of_a_site, config={"s": SplitReparam([1, 2], -1)})
    written, target = LogDensity(parts_of_a_site, (scale,)), LogDensity(split, (scale,))
    z = positions(written)
    expected = written.log_prior_and_likelihood(z, written.bind(scale))
    found = target.log_prior_and_likelihood(z, target.bind(scale))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    # It is not an observation.
    assert target.observed_sites == ("y",)
    values = target.constrain(z, target.bind(scale))
    joined = torch.cat([values["s_split_0"], values["s_split_1"]], -1)
    torch.testing.assert_close(joined, written.constrain(z, written.bind(scale))["s"])


def test_a_conjugate_update_keeps_the_weight_of_its_draws():
    counts = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 0.0])

    def model():
        rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0), torch.tensor(1.0)))
        with pyro.plate("N", 6):
            pyro.sample("y", dist.Poisson(rate), obs=counts)

    about = dist.Gamma(torch.tensor(5.0), torch.tensor(4.0))
    updated = pyro.poutine.reparam(model, config={"rate": ConjugateReparam(about)})
    written, target = LogDensity(model), LogDensity(updated)
    z = positions(written)
    found, expected = (each.log_density(z, each.bind()) for each in (target, written))
    torch.testing.assert_close(found, expected)


def test_a_point_has_the_density_that_it_is_given():
    def model(density):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("d", dist.Delta(2.0 * m, log_density=density(m)), obs=2.0 * m)
        pyro.deterministic("other", 3.0 * m)

    with_density = LogDensity(model, (lambda m: -(m**2),))
    without = LogDensity(model, (torch.zeros_like,))
    z = positions(without)
    found = with_density.log_density(z, with_density.bind(lambda m: -(m**2)))
    expected = without.log_density(z, without.bind(torch.zeros_like)) - z[:, 0] ** 2
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(expected + z[:, 0] ** 2, dist.Normal(0.0, 1.0).log_prob(z[:, 0]))
