"""Options of engines: bad ones are refused where the engine is made, in the same words by both."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
import torch

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number, describe, options_of

PACKAGES = ("pyro_ext", "numpyro_ext")


def models(package: str) -> Any:
    """The zoo of one package."""
    return importlib.import_module(f"tests.models.{package.removesuffix('_ext')}_models")


def proximal(package: str, **options: Any) -> Any:
    engine = importlib.import_module(package).ProximalScoreVI
    host = importlib.import_module(f"{package.removesuffix('_ext')}.infer.autoguide")
    return engine(models(package).gaussian_five, host.AutoDiagonalNormal, **options)


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, "4", True, np.ones(3)])
def test_a_count_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected number to be an int >= 1"):
        check_count("number", value)


@pytest.mark.parametrize("value", [0.0, -1, float("nan"), float("inf"), "0.5", True, np.ones(3)])
def test_a_positive_number_is_one_finite_number(value: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected number to be a finite number"):
        check_number("number", value)


@pytest.mark.parametrize("package", PACKAGES)
def test_options_of_a_guides_engine_are_checked(package: str) -> None:
    with pytest.raises(ArgumentError, match="Expected total_steps to be an int >= 1"):
        proximal(package, total_steps=0)
    with pytest.raises(ArgumentError, match="Expected initial_scale to be a finite number"):
        proximal(package, initial_scale=-1.0)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("option", ["num_samples", "clip_norm", "init_strategy", "nonsense"])
def test_options_of_other_engines_are_refused(package: str, option: str) -> None:
    """Options go on to base classes, which have some that this engine has no use for."""
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        proximal(package, **{option: None})


@pytest.mark.parametrize("package", PACKAGES)
def test_an_array_in_place_of_a_number_is_not_printed(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(module.ArgumentError, match="found ndarray"):
        check_count("number", np.arange(1000))


@pytest.mark.parametrize("package", PACKAGES)
def test_descriptions_are_the_same_in_every_process(package: str) -> None:
    module = importlib.import_module(package)

    class Plain:
        pass

    rows = torch.zeros(3) if package == "pyro_ext" else np.zeros(3)
    anchored = module.SVRG(5, full_data=(rows, rows))
    assert describe(anchored) == "SVRG(anchor_every=5, sampling='reshuffle', own_rows=False)"
    assert describe(module.IMQ(metric="variance")) == repr(module.IMQ(metric="variance"))
    assert describe(Plain()) == "Plain"
    assert describe(len) == "len"
    assert describe((1, "a")) == "(1, 'a')"
    assert describe({"b": [Plain()], "a": {3}}) == "{'a': (3), 'b': (Plain)}"
    assert describe(np.arange(3)) == "[0, 1, 2]"
    assert describe(np.zeros(99)) != describe(np.ones(99))
    assert " at 0x" not in describe(functools.partial(len))
    bound = functools.partial(sorted, Plain(), reverse=True, key=len)
    assert describe(bound) == "partial(sorted, Plain, key=len, reverse=True)"


@pytest.mark.parametrize("package", PACKAGES)
def test_kernels_of_users_need_not_be_dataclasses(package: str) -> None:
    kernels = importlib.import_module(f"{package}.kernels")

    class Own(kernels.Kernel):
        def init(self, particles: Any) -> dict[str, Any]:
            return {}

        def direction(self, state: Any, particles: Any, scores: Any) -> Any:
            return scores, state

        def gram(self, state: Any, particles: Any) -> Any:
            return particles @ particles.T

    assert repr(Own()) == "Own()"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("value", [3, "w", [3], ["w", None], np.ones(3), {"w": 1}])
def test_sites_are_a_sequence_of_names(package: str, value: Any) -> None:
    module, model = importlib.import_module(package), models(package).gaussian_five
    with pytest.raises(module.ArgumentError, match="Expected hyperparameters to be a sequence of"):
        module.LaplaceGGN(model, None, hyperparameters=value)
    with pytest.raises(module.ArgumentError, match="Expected sites to be a sequence of names"):
        module.GaussNewton(sites=value)


def test_options_are_found_past_classes_that_take_none() -> None:
    class Base:
        def __init__(self, first: int = 0, second: int = 0) -> None:
            self.first, self.second = first, second

    class Part:
        pass

    class Engine(Part, Base):
        def __init__(self, third: int = 0, **options: int) -> None:
            super().__init__(**options)
            self.third = third

    class Named(Engine):
        pass

    assert options_of(Named(third=1, second=2)) == {"third": 1, "second": 2}
    assert options_of(object()) == {}
