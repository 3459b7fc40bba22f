"""Networks for images: sizes as published, the same function in both hosts, and the study runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.vision.architectures import CHANNELS, CLASSES, SIZE
from benchmarks.vision.study import judged

#: Parameters that torchvision states, and of the small transformer timm.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet101": 44_549_160,
    "vit_s_16": 22_050_664,
    "vit_s_32": 22_878_952,
    "vit_b_32": 88_224_232,
    "vit_l_32": 306_535_400,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_published_numbers_of_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    from flax import nnx

    from benchmarks.vision import numpyro_networks, pyro_networks

    with torch.device("meta"):
        module = pyro_networks.network(name, SIZE, CHANNELS, CLASSES)
    assert sum(value.numel() for value in module.parameters()) == PARAMETERS[name]
    given = (name, SIZE, CHANNELS, CLASSES)
    shapes = nnx.eval_shape(lambda: numpyro_networks.network(*given, nnx.Rngs(0)))
    leaves = jax.tree.leaves(nnx.state(shapes, nnx.Param))
    assert sum(int(np.prod(leaf.shape)) for leaf in leaves) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["resnet18", "vit_s_32"])
def test_weights_of_torch_give_the_same_function_in_flax(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("jax")
    from flax import nnx

    from benchmarks.vision import numpyro_networks, pyro_networks

    torch.manual_seed(0)
    module = pyro_networks.network(name, 64, 3, 10).eval()
    for leaf, value in module.state_dict().items():
        if leaf.endswith(("running_mean", "bias", "class_token")):
            value.normal_(0.0, 0.1)
        elif leaf.endswith("running_var"):
            value.uniform_(0.5, 1.5)
    x = np.random.default_rng(0).normal(size=(2, 3, 64, 64)).astype(np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    other = numpyro_networks.network(name, 64, 3, 10, nnx.Rngs(1))
    weights = {leaf: value.numpy() for leaf, value in module.state_dict().items()}
    numpyro_networks.load(other, weights)
    other.eval()
    found = np.asarray(other(np.moveaxis(x, 1, -1)))
    assert np.ptp(expected, axis=0).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    with pytest.raises(ValueError, match="of this network"):
        numpyro_networks.load(other, {**weights, "more": x})


def test_probabilities_are_judged() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    found = judged(probabilities, np.array([0, 1, 1]))
    assert found["error"] == pytest.approx(1.0 / 3.0)
    assert found["NLL"] == pytest.approx(-np.log([0.9, 0.4, 0.8]).mean())


def test_the_command_lists_its_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from benchmarks import __main__ as command_line

    with pytest.raises(SystemExit):
        command_line.main(["vision", "--parts", "none", "--out", str(tmp_path)])
    assert "fits" in capsys.readouterr().err
