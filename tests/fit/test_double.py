"""Fits that go on from a file, and warm chains from them, in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from tests.backends import from_zoo
from tests.fit.test_fit import fit_of, numbers
from tests.fit.test_warm_chains import chains_of
from tests.stein_support import check_moments

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)


def test_a_fit_is_read_and_gives_warm_chains(backend: Any, tmp_path: Path) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args)
    fit.save(tmp_path / "fit")
    read = backend.public.load_fit(tmp_path / "fit", model, *args)
    _, draws = chains_of(backend, model, read, *args)
    flat = {name: each.reshape(-1, *each.shape[2:]) for name, each in draws.items()}
    # 1,000 draws; errors of a mean and of a standard deviation, five of them.
    check_moments("conjugate_normal", flat, 0.2, 0.15)
    longer = numbers(backend, fit.more(32))
    for name, each in numbers(backend, read.more(32)).items():
        assert each.dtype == np.float64
        np.testing.assert_array_equal(each, longer[name])
