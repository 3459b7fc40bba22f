"""The target layer of Pyro programs: log density, scores, plates, evaluation modes."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import initialization
from pyro.nn import PyroModule, PyroSample

from ppl_ext.errors import ArgumentError, EvaluationWarning, HeldParameterWarning
from pyro_ext.density import LogDensity

X = torch.linspace(-1.0, 2.0, 20, dtype=torch.float64)
Y = torch.sin(3.0 * X) + 0.1 * X**2


@pytest.fixture(autouse=True)
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def supports():
    a = pyro.sample("a", dist.LogNormal(0.3, 0.7))
    pyro.sample("b", dist.Uniform(0.0, a))
    pyro.sample("c", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
    pyro.sample("d", dist.LKJCholesky(3, 2.0))
    with pyro.plate("rows", 4):
        pyro.sample("e", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))


def local(x, y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("N", len(x), subsample_size=5) as rows:
        weight = pyro.sample("weight", dist.Gamma(2.0, scale))
        pyro.sample("y", dist.Normal(weight * x[rows], scale), obs=y[rows])


def nested(y):
    """Two subsampled plates inside one another, an outer latent, a mask and a scale."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.Exponential(1.0))
    columns = pyro.plate("columns", 9, subsample_size=3, dim=-1)
    with pyro.plate("rows", 8, subsample_size=2, dim=-2) as i, poutine.scale(scale=0.5):
        effect = pyro.sample("effect", dist.LogNormal(mean, 1.0))
        with columns as j, poutine.mask(mask=(y[i][:, j] > -0.5)):
            pyro.sample("y", dist.Normal(effect, spread), obs=y[i][:, j])
    pyro.factor("outer", -(mean**4))


def positions(target, num=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.rand(num, target.dim, generator=generator) - 1.0


def test_constrained_sites_have_their_jacobians():
    target = LogDensity(supports)
    data = target.bind()
    z = positions(target)
    value = target.log_density(z, data)
    gradient = target.score(z, data).score
    for row in range(len(z)):
        sites = {k: v.requires_grad_() for k, v in target.layout.split(z[row].clone()).items()}
        a = sites["a"].exp()
        b_unit = torch.sigmoid(sites["b"])
        expected = dist.LogNormal(0.3, 0.7).log_prob(a) + sites["a"]
        expected = expected - a.log() + (a * b_unit * (1 - b_unit)).log()
        for name, fn in [
            ("c", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0]))),
            ("d", dist.LKJCholesky(3, 2.0)),
            ("e", dist.Gamma(2.0, 3.0)),
        ]:
            transform = torch.distributions.biject_to(fn.support)
            constrained = transform(sites[name])
            expected = expected + fn.log_prob(constrained).sum()
            expected = expected + transform.log_abs_det_jacobian(sites[name], constrained).sum()
        assert value[row].item() == pytest.approx(expected.item(), rel=1e-12)
        grads = torch.autograd.grad(expected, list(sites.values()))
        by_hand = target.layout.join(dict(zip(sites, grads, strict=True)))
        torch.testing.assert_close(gradient[row], by_hand, rtol=1e-10, atol=1e-10)


def test_dependent_support_is_resolved_at_run_time():
    target = LogDensity(supports)
    values = target.constrain(3.0 * positions(target, 50), target.bind())
    assert (values["b"] < values["a"]).all()
    assert values["e"].shape == (50, 4, 2)


def test_constrain_and_unconstrain_are_inverse():
    for model, arguments in [(supports, ()), (local, (X, Y))]:
        target = LogDensity(model, arguments)
        data = target.bind(*arguments)
        z = positions(target, 4)
        torch.testing.assert_close(
            target.unconstrain(target.constrain(z, data), data), z, rtol=1e-8, atol=1e-8
        )


def test_minibatch_scores_are_unbiased_for_local_latents():
    target = LogDensity(local, (X, Y))
    data = target.bind(X, Y)
    assert target.local_sites == ("weight",)
    assert target.layout.slices["weight"].stop - target.layout.slices["weight"].start == 20
    z = positions(target)
    full = target.full_score(z, data)
    rows = torch.randperm(20, generator=torch.Generator().manual_seed(1)).split(5)
    batches = [target.score(z, data, {"N": part}) for part in rows]
    for name in full._fields:
        mean = sum(getattr(batch, name) for batch in batches) / len(batches)
        torch.testing.assert_close(mean, getattr(full, name), rtol=1e-12, atol=1e-9)
    # Only the sampled rows of the local latent move.
    other = [i for i in range(20) if i not in rows[0].tolist()]
    weight = target.layout.slices["weight"]
    assert (batches[0].score[:, weight][:, other] == 0).all()
    assert (batches[0].score[:, weight][:, rows[0]] != 0).all()


def test_nested_plates_scale_mask_and_factor_by_hand():
    y = torch.randn(8, 9, generator=torch.Generator().manual_seed(2))
    target = LogDensity(nested, (y,), data_chunk=6)
    data = target.bind(y)
    z = positions(target)
    sites = target.layout.split(z)
    mean, spread, effect = sites["mean"], sites["spread"].exp(), sites["effect"].reshape(3, 8)
    prior = dist.Normal(0.0, 1.0).log_prob(mean) - mean**4
    prior = prior + dist.Exponential(1.0).log_prob(spread) + spread.log()
    log_normal = dist.LogNormal(mean[:, None], 1.0).log_prob(effect.exp()) + effect
    prior = prior + 0.5 * log_normal.sum(-1)
    likelihood = dist.Normal(effect.exp()[..., None], spread[:, None, None]).log_prob(y)
    likelihood = 0.5 * torch.where(y > -0.5, likelihood, 0.0).sum((-1, -2))
    found = target.full_log_prior_and_likelihood(z, data)
    torch.testing.assert_close(found[0], prior, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], likelihood, rtol=1e-12, atol=1e-12)
    # The average over the product of all minibatches is the full log density.
    total = 0.0
    for i in torch.arange(8).split(2):
        for j in torch.arange(9).split(3):
            total = total + target.log_density(z, data, {"rows": i, "columns": j}) / 12
    torch.testing.assert_close(total, prior + likelihood, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 19, 20, 1000])
def test_chunked_sweep_equals_a_single_sweep(chunk):
    target = LogDensity(local, (X, Y), data_chunk=chunk)
    data = target.bind(X, Y)
    z = positions(target)
    single = target.score_parts(z, data, {"N": torch.arange(20)})
    swept = target.full_score_parts(z, data)
    for one, two in zip(single, swept, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-9)
    assert sum(weight for weight, _ in target.sweep()) == pytest.approx(1.0)


def test_score_is_the_gradient_of_the_tempered_log_density():
    target = LogDensity(local, (X, Y), likelihood_temperature=0.25)
    data = target.bind(X, Y)
    z = positions(target)
    indices = {"N": torch.tensor([3, 1, 4, 15, 9])}
    score = target.score(z, data, indices).score
    parts = target.score_parts(z, data, indices)
    torch.testing.assert_close(score, parts.prior + parts.likelihood / 0.25)
    step = 1e-6
    for coordinate in (0, 4, 16):
        shift = torch.zeros(target.dim)
        shift[coordinate] = step
        difference = target.log_density(z + shift, data, indices)
        difference = (difference - target.log_density(z - shift, data, indices)) / (2 * step)
        torch.testing.assert_close(score[:, coordinate], difference, rtol=1e-5, atol=1e-5)


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


def test_float32_with_scalar_latents_and_python_scalars():
    torch.set_default_dtype(torch.float32)

    def model(y):
        scale = pyro.sample("scale", dist.HalfNormal(2.0))
        pyro.sample("y", dist.Normal(0.0, 2.0 * scale).expand([3]).to_event(1), obs=y)

    y = torch.tensor([0.1, -1.0, 2.0])
    target = LogDensity(model, (y,))
    score = target.score(torch.tensor([[0.3]]), target.bind(y))
    assert score.score.dtype == torch.float32
    scale = math.exp(0.3)
    expected = -(scale**2) / 4 + 1 - 3 + 5.01 / (4 * scale**2)
    assert score.score.item() == pytest.approx(expected, rel=1e-5)


def test_parameters_without_a_prior_are_held_and_the_store_is_left_alone():
    pyro.clear_param_store()
    pyro.param("other", torch.tensor(5.0))

    def model():
        shift = pyro.param("shift", torch.tensor(3.0))
        pyro.sample("a", dist.Normal(shift, 1.0))

    with pytest.warns(HeldParameterWarning, match="shift"):
        target = LogDensity(model)
    score = target.score(torch.tensor([[1.0]]), target.bind())
    assert score.score.item() == pytest.approx(2.0)
    assert list(pyro.get_param_store()) == ["other"]


def test_outputs_are_the_observed_distributions_and_differentiable():
    target = LogDensity(local, (X, Y))
    data = target.bind(X, Y)
    rows = torch.tensor([1, 2, 3, 5, 8])
    z = positions(target, 1)[0]

    def locations(z):
        return target.outputs(z, data, {"N": rows})["y"].parameters["loc"]

    output = target.outputs(z, data, {"N": rows})["y"]
    assert output.distribution.__name__ == "Normal"
    assert output.scale == 4.0 and output.event_dim == 0
    torch.testing.assert_close(output.value, Y[rows])
    weight = target.layout.split(z)["weight"].exp()
    torch.testing.assert_close(output.parameters["loc"], weight[rows] * X[rows])
    jacobian = torch.func.jacrev(locations)(z)
    weight_slice = target.layout.slices["weight"]
    torch.testing.assert_close(
        jacobian[:, weight_slice][:, rows], torch.diag(weight[rows] * X[rows])
    )


def test_outputs_name_the_parameters_that_the_model_chose():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("u", dist.Bernoulli(logits=a), obs=torch.tensor(1.0))
        pyro.sample("v", dist.Bernoulli(probs=torch.sigmoid(a)), obs=torch.tensor(1.0))
        pyro.sample(
            "w",
            dist.Categorical(logits=torch.stack([a, 2 * a])).expand([3]).to_event(1).mask(True),
            obs=torch.tensor([0, 1, 1]),
        )

    target = LogDensity(model)
    outputs = target.outputs(torch.tensor([0.7]), target.bind())
    assert list(outputs["u"].parameters) == ["logits"]
    assert list(outputs["v"].parameters) == ["probs"]
    assert list(outputs["w"].parameters) == ["logits"]
    assert outputs["w"].event_dim == 1


@pytest.mark.parametrize(
    "strategy",
    [
        None,
        initialization.init_to_uniform,
        initialization.init_to_uniform(radius=0.1),
        initialization.init_to_sample,
        initialization.init_to_median(num_samples=5),
    ],
)
def test_initial_positions_follow_the_strategy_and_leave_global_randomness(strategy):
    target = LogDensity(supports, init_strategy=strategy)
    before = torch.random.get_rng_state()
    z = target.initial_positions(6, torch.Generator().manual_seed(0), target.bind())
    again = target.initial_positions(6, torch.Generator().manual_seed(0), target.bind())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(z, again)
    assert len(z.unique(dim=0)) == 6
    assert torch.isfinite(target.log_density(z, target.bind())).all()


def test_rows_of_each_particle_apart():
    """In a graph, in chunks of particles, and by a loop; local latents among the sites."""
    for options in ({}, {"particle_chunk": 2}, {"evaluation": "loop"}):
        target = LogDensity(local, (X, Y), dtype=torch.float64, **options)
        data = target.bind(X, Y)
        z = torch.randn(3, target.dim, dtype=torch.float64, generator=torch.Generator())
        batch = target.plates["N"].subsample_size
        rows = torch.stack([torch.arange(batch), torch.arange(batch) + 3, torch.arange(batch) * 2])
        found = target.score(z, data, {"N": rows})
        for p in range(3):
            alone = target.score(z[p : p + 1], data, {"N": rows[p]})
            for one, other in zip(found, alone, strict=True):
                torch.testing.assert_close(one[p], other[0])
    with pytest.raises(ValueError, match=r"of shape \(P, rows\) for every plate at P = 3"):
        target.score(z, data, {"N": rows[:2]})


def test_wrong_calls_say_what_was_expected():
    target = LogDensity(local, (X, Y))
    data = target.bind(X, Y)
    with pytest.raises(ArgumentError, match=r"Expected the rows of plate 'N'.* found none"):
        target.score(positions(target), data)
    with pytest.raises(ValueError, match=r"shape \(P, 21\)"):
        target.score(torch.zeros(21), data)
    with pytest.raises(ArgumentError, match="missing a required argument: 'y'"):
        target.bind(X)
    with pytest.raises(ArgumentError, match="likelihood_temperature to be a finite number > 0"):
        LogDensity(local, (X, Y), likelihood_temperature=0.0)


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
    calls = []

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        calls.append(1)
        # Another factor in every run: no graph can stand for that.
        pyro.factor("drift", len(calls) * a)

    target = LogDensity(model)
    with pytest.warns(EvaluationWarning, match="another result than the model"):
        target.score(torch.zeros(1, 1), target.bind())
    assert target.evaluation == "handlers"


def test_factors_inside_a_plate_are_likelihood_and_outside_prior():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("outside", 3.0 * a)
        with pyro.plate("rows", len(y), subsample_size=4) as rows:
            pyro.factor("inside", a * y[rows])

    target = LogDensity(model, (Y,))
    log_prior, log_likelihood = target.full_log_prior_and_likelihood(
        torch.tensor([[0.5]]), target.bind(Y)
    )
    expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor([0.5])) + 1.5
    torch.testing.assert_close(log_prior, expected)
    torch.testing.assert_close(log_likelihood, 0.5 * Y.sum().reshape(1))


def test_local_latents_with_events_take_their_rows():
    def model(y):
        with pyro.plate("rows", len(y), subsample_size=2) as rows:
            p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
            pyro.sample("y", dist.Normal(p[..., 0] - p[..., 2], 0.5), obs=y[rows])

    y = Y[:6]
    target = LogDensity(model, (y,))
    data = target.bind(y)
    z = positions(target)
    transform = torch.distributions.biject_to(dist.Dirichlet(torch.ones(3)).support)
    unconstrained = z.reshape(3, 6, 2)
    p = transform(unconstrained)
    rows = dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])).log_prob(p)
    rows = rows + transform.log_abs_det_jacobian(unconstrained, p)
    rows = rows + dist.Normal(p[..., 0] - p[..., 2], 0.5).log_prob(y)
    for chosen in ([4, 1], [0, 5]):
        value = target.log_density(z, data, {"rows": torch.tensor(chosen)})
        torch.testing.assert_close(value, 3.0 * rows[:, chosen].sum(-1))
    # All rows in any order are the full data.
    everything = {"rows": torch.tensor([5, 4, 3, 2, 1, 0])}
    torch.testing.assert_close(target.log_density(z, data, everything), rows.sum(-1))


def test_masked_latents_have_masked_jacobians():
    keep = torch.tensor([True, False, True])

    def model():
        with pyro.plate("rows", 3), poutine.mask(mask=keep):
            pyro.sample("a", dist.LogNormal(0.0, 1.0))

    target = LogDensity(model)
    z = torch.tensor([[0.3, -1.0, 2.0]])
    expected = dist.Normal(0.0, 1.0).log_prob(z)[:, keep].sum(-1)
    torch.testing.assert_close(target.log_density(z, target.bind()), expected)


@pytest.mark.parametrize("radius", [0.1, 3.0])
def test_initial_positions_keep_the_radius_and_the_values(radius):
    strategy = initialization.init_to_uniform(radius=radius)
    target = LogDensity(scaled_by_argument, (Y, 1.0), init_strategy=strategy)
    data = target.bind(Y, 1.0)
    z = target.initial_positions(200, torch.Generator().manual_seed(0), data)
    assert 0.9 * radius < z.abs().max() <= radius
    strategy = initialization.init_to_value(values={"a": torch.tensor(7.0)})
    target = LogDensity(scaled_by_argument, (Y, 1.0), init_strategy=strategy)
    z = target.initial_positions(3, torch.Generator().manual_seed(0), data)
    torch.testing.assert_close(z, torch.full((3, 1), 7.0))


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
