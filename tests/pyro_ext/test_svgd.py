"""SVGD beside Pyro's own, whose failures are pinned here, and its global parameters."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD as HostSVGD
from pyro.infer.svgd import RBFSteinKernel

import pyro_ext as px
from tests.backends import backend_of
from tests.models import pyro_models, zoo
from tests.stein_support import Run, optimizer

torch.set_default_dtype(torch.float64)

PYRO = backend_of("pyro")


def test_pyros_own_svgd_mixes_particles_and_sites():
    """Pinned failure of the host: its flat vector holds sites before particles."""
    found = {}
    for name in ("gaussian_one_site", "gaussian_two_sites"):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        host = HostSVGD(
            pyro_models.build(name),
            RBFSteinKernel(),
            pyro.optim.Adam({"lr": 0.1}),
            num_particles=20,
            max_plate_nesting=0,
            mode="multivariate",
        )
        for _ in range(200):
            host.step()
        sites = host.get_named_particles().values()
        z = torch.cat([site.detach().reshape(20, -1) for site in sites], dim=1)
        found[name] = z.std(dim=0).mean(), torch.corrcoef(z.T)[0, 1:].mean()
    one, two = found.values()
    assert two[0] - one[0] > 0.3
    assert one[1] < 0.95 < 0.98 < two[1]


@pytest.mark.slow
def test_particles_far_from_a_split_target_find_it_and_pyros_own_do_not():
    """The joint density as a factor, so that no prior starts the particles near it."""
    mean = torch.tensor(zoo.GAUSSIAN_3D_MEAN)
    covariance = 0.1 * torch.eye(3) + 0.9

    def model():
        wide = dist.Normal(torch.zeros(3), 10.0)
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 10.0))
        z = torch.cat([a, b.unsqueeze(-1)], dim=-1)
        joint = dist.MultivariateNormal(mean, covariance).log_prob(z)
        pyro.factor("joint", joint - wide.log_prob(z).sum(-1))

    def moved(sites):
        values = [site.detach().reshape(50, -1) for site in (sites["a"], sites["b"])]
        return torch.cat(values, dim=1).mean(0) - mean

    adam = optimizer(PYRO, "adam", 0.3, steps=3000)
    ours = Run(PYRO, "SVGD", model, adam, num_particles=50).run(3000)
    assert moved(PYRO.arrays(ours.samples())).abs().max() < 0.1
    pyro.set_rng_seed(0)
    host = HostSVGD(model, RBFSteinKernel(), pyro.optim.Adam({"lr": 0.1}), 50, 0)
    for _ in range(1000):
        host.step()
    # Near (3.5, 3.5, 13): every column mixes coordinates of both sites.
    assert (moved(host.get_named_particles()).abs() > 2.0).all()


def test_two_engines_do_not_meet():
    """Pyro's own keep their particles in one global parameter and collide."""
    first, second = (
        Run(PYRO, "SVGD", pyro_models.build(name), PYRO.adam(0.3), num_particles=num).run(5)
        for name, num in (("lognormal", 7), ("dirichlet", 5))
    )
    before = first.particles
    second.step()
    np.testing.assert_array_equal(first.particles, before)
    assert len(list(pyro.get_param_store().keys())) == 0


def scaled(y: torch.Tensor) -> None:
    """A model whose graph holds the number of rows."""
    loc = pyro.sample("loc", dist.Normal(0.0, float(len(y))))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def engine_after(steps: list[torch.Tensor], written: bool) -> torch.Tensor:
    """Particles after a step with each of these; in one tensor that they are written to."""
    engine = px.SVGD(scaled, pyro.optim.Adam({"lr": 0.1}), num_particles=5, seed=0)
    one = steps[0].clone()
    for number, values in enumerate(steps):
        if written and values.shape != one.shape:
            one.data = values.clone()
        elif written and number:
            one.copy_(values)
        engine.step(one if written else values)
    return engine.particles


@pytest.mark.parametrize("rows", [4, 6])
def test_steps_with_one_tensor_see_what_was_written_to_it(rows: int) -> None:
    """Other values in the tensor of the step before, and another shape, are as another tensor."""
    first, other = torch.arange(4.0), torch.linspace(-5.0, 2.0, rows)
    steps = [first] * 3 + [other] * 3
    assert torch.equal(engine_after(steps, written=True), engine_after(steps, written=False))
