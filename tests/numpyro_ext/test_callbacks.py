"""What callbacks of compiled programs raise: their own error, and never another run's."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_ext.programs import Program
from numpyro_ext.programs.callbacks import raised_as_it_is, remembered


def failing(error: Exception, known: bool = True) -> Any:
    """A program whose callback raises."""

    def callback(_: Any) -> np.ndarray:
        raise error

    called = remembered(callback) if known else callback
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return Program(lambda x: jax.pure_callback(called, shape, x))


def test_a_remembered_error_is_raised_itself(caplog: pytest.LogCaptureFixture) -> None:
    for error in (OSError("the disk\nis gone"), KeyError("x"), ValueError()):
        error.add_note("what an engine says besides")
        with pytest.raises(type(error)) as found:
            failing(error)(1.0)
        assert found.value is error
    assert not caplog.records


def test_an_error_of_an_earlier_run_is_not_raised() -> None:
    """Also one that was raised where nobody waited, or while JAX looks for mistakes."""
    error = OSError("the disk is gone")
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(failing(error)._function)(1.0))
    with jax.debug_nans(True), pytest.raises(OSError, match="the disk is gone"):
        failing(error)(1.0)
    with raised_as_it_is():
        with pytest.raises(OSError, match="the disk is gone"):
            remembered(_raising(error))()
        with pytest.raises(jax.errors.JaxRuntimeError, match="the model's own"):
            failing(ValueError("the model's own"), known=False)(1.0)


def test_runs_that_end_meanwhile_leave_the_errors_of_others() -> None:
    error, logger = OSError("the disk is gone"), logging.getLogger("jax._src.callback")
    before = list(logger.filters)
    with pytest.raises(OSError, match="the disk is gone") as found, raised_as_it_is():
        with pytest.raises(OSError, match="the disk is gone"):
            remembered(_raising(error))()
        with raised_as_it_is():
            pass
        assert logger.filters != before
        raise jax.errors.JaxRuntimeError("INTERNAL: a callback: OSError: the disk is gone")
    assert found.value is error and logger.filters == before


def _raising(error: Exception) -> Any:
    def callback() -> None:
        raise error

    return callback
