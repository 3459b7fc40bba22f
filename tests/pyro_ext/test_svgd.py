"""SVGD where Pyro has its own manners: its failures, kernels, optimizers, and states."""

from __future__ import annotations

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD as HostSVGD
from pyro.infer.svgd import IMQSteinKernel, RBFSteinKernel

from ppl_ext.errors import NonFiniteError
from pyro_ext.kernels import RBF
from pyro_ext.stein import SVGD
from tests.models import pyro_models, zoo
from tests.stein_support import check_moments

torch.set_default_dtype(torch.float64)

NUM = 100


def adam(rate=0.3, steps=800, end=1e-2):
    """Adam whose rate falls to ``end`` of its start in ``steps`` steps."""
    return pyro.optim.ExponentialLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": rate},
            "gamma": end ** (1 / steps),
        }
    )


def fit(name, kernel=None, num_particles=NUM, steps=800, optim=None, **options):
    keywords = options.pop("keywords", {})
    optim = optim or adam(steps=steps)
    engine = SVGD(pyro_models.build(name), optim, kernel, num_particles, seed=0, **options)
    engine.run(steps, *pyro_models.arguments(name), progress_bar=False, **keywords)
    return engine


class TestPosteriors:
    def test_pyros_own_svgd_mixes_particles_and_sites(self):
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

    def test_particles_far_from_a_split_target_find_it_and_pyros_own_do_not(self):
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

        ours = SVGD(model, adam(steps=3000), num_particles=50, seed=0)
        ours.run(3000, progress_bar=False)
        assert moved(ours.get_samples()).abs().max() < 0.1
        pyro.set_rng_seed(0)
        host = HostSVGD(model, RBFSteinKernel(), pyro.optim.Adam({"lr": 0.1}), 50, 0)
        for _ in range(1000):
            host.step()
        # Near (3.5, 3.5, 13): every column mixes coordinates of both sites.
        assert (moved(host.get_named_particles()).abs() > 2.0).all()

    @pytest.mark.parametrize("kernel", [RBFSteinKernel(), IMQSteinKernel()])
    def test_host_kernels(self, kernel):
        # One dimension, where a kernel for each coordinate is a kernel. The host's IMQ has
        # 0.5 in place of 1.
        engine = fit("conjugate_normal", kernel, num_particles=50, steps=400)
        draws = {site: value.numpy() for site, value in engine.get_samples().items()}
        check_moments("conjugate_normal", draws, 0.28, 0.2)


class TestEngine:
    @pytest.mark.parametrize(
        "optim",
        [
            pyro.optim.Adam({"lr": 0.05}),
            pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.999}),
            functools.partial(torch.optim.Adam, lr=0.05),
            lambda parameters: torch.optim.RMSprop(parameters, lr=0.02),
            torch.optim.Adagrad,
        ],
    )
    def test_host_optimizers(self, optim):
        engine = fit("conjugate_normal", num_particles=10, steps=100, optim=optim)
        losses = engine.losses
        assert np.mean(losses[-10:]) < np.mean(losses[:10])

    def test_learning_rate_that_overflows_keeps_the_particles(self):
        optim = functools.partial(torch.optim.SGD, lr=1e308, momentum=0.9)
        engine = SVGD(
            lambda: pyro.sample("a", dist.Normal(0.0, 0.1)),
            optim,
            num_particles=4,
            on_nonfinite="skip",
            seed=0,
            dtype=torch.float64,
        )
        engine.setup()
        before = engine.particles
        engine.run(2, progress_bar=False)
        assert engine.num_skipped == 2 and torch.equal(engine.particles, before)

    def test_kernel_state_is_saved(self, tmp_path):
        class Counting(RBF):
            def init(self, particles):
                return {"count": 0}

            def direction(self, state, particles, scores):
                phi, _ = super().direction(state, particles, scores)
                return phi / (1 + state["count"]), {"count": state["count"] + 1}

        def make():
            model = pyro_models.build("conjugate_normal")
            return SVGD(model, adam(), Counting(), num_particles=4, seed=0)

        data = pyro_models.arguments("conjugate_normal")
        engine = make()
        engine.run(5, *data, progress_bar=False)
        engine.save(tmp_path / "state")
        other = make()
        other.load(tmp_path / "state")
        for each in (engine, other):
            each.run(3, *data, progress_bar=False)
        assert torch.equal(engine.particles, other.particles)

    def test_update_whose_square_overflows_is_not_taken(self):
        def model():
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.factor("huge", 1e160 * z)

        engine = SVGD(model, pyro.optim.Adam({"lr": 0.1}), num_particles=3, seed=0)
        with pytest.raises(NonFiniteError):
            engine.step()

    def test_two_engines_do_not_meet(self):
        """Pyro's own keep their particles in one global parameter and collide."""
        first = fit("lognormal", num_particles=7, steps=5)
        second = fit("dirichlet", num_particles=5, steps=5)
        before = first.particles
        second.step()
        assert torch.equal(first.particles, before)
        assert len(list(pyro.get_param_store().keys())) == 0
