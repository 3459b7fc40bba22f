"""The examples with latent variables: they train, their bounds are bounds, and SGHMC helps."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import records
from docs.examples.vae_bounds import bounds, log_mean_exp
from docs.examples.vae_data import load_digits

HOSTS = ("pyro", "numpyro")


def run(host: str, name: str, out: Path) -> dict[str, Any]:
    """The numbers of an example's reduced run."""
    example = importlib.import_module(f"docs.examples.{host}_examples.{name}")
    assert example.main(["--small", "--out", str(out)]) == 0
    assert (out / f"{name}.png").stat().st_size > 10_000
    (record,) = records.read(out / f"{name.replace('_', '-')}.jsonl")
    assert record.backend == host
    return record.figures


def test_bounds_of_known_weights() -> None:
    """Two draws of weights 1 and 3 have the mean 2; equal draws have one bound."""
    found = bounds(np.log([[1.0, 5.0], [3.0, 5.0]]))
    assert found["elbo"] == pytest.approx((np.log(3.0) / 2 + np.log(5.0)) / 2)
    assert found["iwae"] == pytest.approx((np.log(2.0) + np.log(5.0)) / 2)
    shifted = np.array([[-1000.0], [-1000.0 + np.log(3.0)]])
    assert log_mean_exp(shifted, 0)[0] == pytest.approx(-1000.0 + np.log(2.0))


def test_digits_are_binary_and_held_out_ones_are_others() -> None:
    digits = load_digits(100, 50, small=True)
    assert digits.train.shape == (100, 64) and digits.test.shape == (50, 64) and digits.side == 8
    assert set(np.unique(digits.train)) == {0.0, 1.0}
    batches = digits.batches(np.random.default_rng(0), 30)
    assert batches.shape == (3, 30, 64)
    with pytest.raises(ValueError, match="Expected at least 200 training images"):
        digits.batches(np.random.default_rng(0), 200)
    with pytest.raises(ValueError, match="Expected at most 1747 training images"):
        load_digits(1748, 50, small=True)


@pytest.mark.parametrize("host", HOSTS)
def test_vae(host: str, tmp_path: Path) -> None:
    found = run(host, "vae", tmp_path)
    # Pixels that are each on with their own share, which is what no latent variable can learn.
    digits = load_digits(1000, 200, small=True)
    share = (digits.train.sum(0) + 1.0) / (len(digits.train) + 2.0)
    pixels = np.where(digits.test > 0, np.log(share), np.log1p(-share)).sum(1).mean()
    for name in ("ELBO", "IWAE", "SVGD"):
        assert found[name]["elbo"] <= found[name]["iwae"]
        assert found[name]["iwae"] > pixels + 2.0
    for name in ("ELBO", "IWAE"):
        history = found[name]["history"]
        assert history[-1]["iwae"] > history[0]["iwae"] + 10.0
    # The density of the mixture of decoders is at least the mean of theirs (Jensen).
    assert found["SVGD"]["iwae"] >= found["SVGD"]["single_iwae"]


def host_bound(host: str, weights: dict[str, Any], vae: Any, x: Any, num_draws: int) -> float:
    """The host's own importance-weighted bound, a mean over images, by ``RenyiELBO``."""
    if host == "pyro":
        import pyro
        import torch
        from pyro.infer import RenyiELBO

        for name, value in weights.items():
            pyro.param(name, value)
        elbo = RenyiELBO(0.0, num_draws, max_plate_nesting=1, vectorize_particles=True)
        return -elbo.loss(vae.model, vae.guide, torch.as_tensor(x)) / len(x)
    from jax import random
    from numpyro.infer import RenyiELBO as Renyi

    found = Renyi(0.0, num_draws).loss(random.key(3), weights, vae.model, vae.guide, x)
    return -float(found) / len(x)


@pytest.mark.parametrize("host", HOSTS)
def test_weights_and_sghmc(host: str) -> None:
    """The bound agrees with the host's, and SGHMC leaves an encoder that is wrong behind."""
    module = importlib.import_module(f"docs.examples.{host}_examples.improved_vae")
    digits = load_digits(200, 100, small=True)
    vae = module.VAE(64, 16, 2)
    infer = importlib.import_module("pyro.infer" if host == "pyro" else "numpyro.infer")
    weights, _ = module.fit(vae, digits, infer.Trace_ELBO(), 20, 5)
    if host == "pyro":
        import torch

        x, args, improve_args = torch.as_tensor(digits.test), (400,), (0,)
    else:
        from jax import numpy as jnp
        from jax import random

        x, args, improve_args = jnp.asarray(digits.test), (random.key(1), 400), (random.key(0),)
    log_weights = np.asarray(vae.log_weights(weights, x, *args))
    # The standard error of the mean over images, by the draws of each one.
    relative = np.exp(log_weights - log_mean_exp(log_weights, 0))
    error = np.sqrt((relative.var(0) / len(relative)).sum()) / len(x)
    expected = host_bound(host, weights, vae, x, 400)
    assert abs(bounds(log_weights)["iwae"] - expected) < 5.0 * 2.0**0.5 * error

    # Means that are wrong by one: the chains forget it.
    wrong = {name: value + 0.0 for name, value in weights.items()}
    shift = np.concatenate([np.ones(2), np.zeros(2)]).astype(np.float32)
    wrong["encoder_b2"] = wrong["encoder_b2"] + (
        torch.as_tensor(shift) if host == "pyro" else shift
    )
    joints = {}
    for name, encoder in (("right", weights), ("wrong", wrong)):
        draws = module.improve(vae, encoder, x, *improve_args)
        joints[name] = np.stack(
            [np.asarray(vae.log_joint(weights, draws[:, t], x)).mean(1) for t in range(101)]
        )
    gain = joints["wrong"][-1] - joints["wrong"][0]
    assert gain.mean() > 10.0 * gain.std(ddof=1) / len(gain) ** 0.5
    # Images whose latents have several modes keep some of the gap.
    level = joints["right"][51:].mean()
    assert abs(joints["wrong"][51:].mean() - level) < 0.25 * abs(joints["wrong"][0].mean() - level)


@pytest.mark.parametrize("host", HOSTS)
def test_improved_vae(host: str, tmp_path: Path) -> None:
    found = run(host, "improved_vae", tmp_path)
    assert len(found["log_joint"]) == 101
    for values in found["bounds"].values():
        assert values["elbo"] <= values["iwae"]
    # Both are bounds of the same log likelihood, close to it with 20 draws of 4 latents.
    encoder, chains = (found["bounds"][name]["iwae"] for name in ("encoder", "SGHMC"))
    assert abs(encoder - chains) < 0.5
    assert found["bounds"]["SGHMC"]["elbo"] > encoder - 2.0


@pytest.mark.parametrize("host", HOSTS)
def test_improved_draws_train_the_decoder_and_the_encoder(host: str) -> None:
    """The slopes of a batch: of log p at the improved draws, and of what each way asks of q.

    The moves are a shift here, so that the draws are known.
    """
    module = importlib.import_module(f"docs.examples.{host}_examples.distilled_vae")
    vae, shift = module.Lopsided(64, 8, 2, 4), 0.5
    x = load_digits(50, 10, small=True).train[:5]
    if host == "pyro":
        import torch

        weights = module.initial(vae, 0)
        x = torch.as_tensor(x)

        def slopes(loss: Any) -> dict[str, Any]:
            found = torch.autograd.grad(loss, list(weights.values()))
            return dict(zip(weights, map(np.asarray, found), strict=True))

        def of(way: str) -> dict[str, Any]:
            torch.manual_seed(0)
            return slopes(module.loss_of(way, vae, lambda _, x, z: z + shift, weights, x))

        torch.manual_seed(0)
        improved = vae.encode(weights, x).rsample().detach() + shift
        decoder = slopes(-(vae.log_joint(weights, improved, x).sum() + 0.0 * _sum(weights)))
        encoder = slopes(-(vae.encode(weights, x).log_prob(improved).sum() + 0.0 * _sum(weights)))
    else:
        import jax
        from jax import numpy as jnp

        weights, x, key = module.initial(vae, 0), jnp.asarray(x), jax.random.key(0)

        def of(way: str) -> dict[str, Any]:
            loss = module.objective(way, vae, lambda w, x, z, key: z + shift)
            return dict(jax.grad(loss)(weights, x, key))

        base = vae.encode(weights, x).base_dist
        noise = jax.random.normal(jax.random.split(key)[0], base.loc.shape)
        improved = base.loc + base.scale * noise + shift
        decoder = jax.grad(lambda w: -vae.log_joint(w, improved, x).sum())(weights)
        encoder = jax.grad(lambda w: -vae.encode(w, x).log_prob(improved).sum())(weights)
    found = {way: of(way) for way in ("plain", "improved", "distilled")}
    for name in vae.decoder_shapes:
        for way in ("improved", "distilled"):
            np.testing.assert_allclose(found[way][name], decoder[name], rtol=1e-4, atol=1e-4)
        assert not np.allclose(found["plain"][name], decoder[name], rtol=1e-2)
    for name in vae.encoder_shapes:
        np.testing.assert_allclose(found["distilled"][name], encoder[name], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["improved"][name], found["plain"][name], rtol=1e-3)


def _sum(weights: dict[str, Any]) -> Any:
    """A sum of all weights, which gives each of them a slope."""
    return sum(value.sum() for value in weights.values())


@pytest.mark.parametrize("host", HOSTS)
def test_steps_lead_from_anywhere_to_the_posterior(host: str) -> None:
    """The draws of far starts come nearer to the posterior, by other weights and images as well."""
    module = importlib.import_module(f"docs.examples.{host}_examples.distilled_vae")
    vae = module.Lopsided(64, 8, 2, 4)
    images = load_digits(50, 10, small=True).train
    generator = np.random.default_rng(0)
    if host == "pyro":
        import torch

        array = partial(torch.as_tensor, dtype=torch.float32)
        move: Any = module.mover(vae)
    else:
        import jax
        from jax import numpy as jnp

        array = jnp.asarray
        first = module.mover(vae, module.initial(vae, 0), jnp.asarray(images[:5]))

        def move(*given: Any) -> Any:
            return jax.jit(first)(*given, jax.random.key(1))

    z = array(generator.normal(size=(5, 2)) + 4.0)
    for seed, rows in ((0, slice(0, 5)), (1, slice(5, 10))):
        weights, x = module.initial(vae, seed), array(images[rows])
        before, after = (
            np.asarray(vae.log_joint(weights, each, x).sum().item())
            for each in (z, move(weights, x, z))
        )
        assert after > before + 5.0


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_distilled_vae(host: str, tmp_path: Path) -> None:
    example = importlib.import_module(f"docs.examples.{host}_examples.distilled_vae")
    assert (
        example.main(["--small", "--epochs", "1", "--images", "100", "--out", str(tmp_path)]) == 0
    )
    runs = records.read(tmp_path / "distilled-vae.jsonl")
    assert [run.method for run in runs] == ["plain", "improved", "distilled"] * 2
    for run in runs:
        for judged in ("encoder", "chains"):
            assert run.figures[judged]["elbo"] <= run.figures[judged]["iwae"]
    assert (tmp_path / "distilled_vae.png").stat().st_size > 10_000


@pytest.mark.parametrize("host", HOSTS)
def test_hierarchical_vae(host: str, tmp_path: Path) -> None:
    found = run(host, "hierarchical_vae", tmp_path)
    for name in ("one level", "two levels"):
        history = found[name]["history"]
        assert history[-1]["elbo"] > history[0]["elbo"] + 10.0
        assert found[name]["elbo"] <= found[name]["iwae"]
    # A divergence is not negative; the draws' mean may be so by its error alone.
    assert found["two levels"]["divergence"]["z1"] > 0.5
    assert found["two levels"]["divergence"]["z2"] > -0.1
