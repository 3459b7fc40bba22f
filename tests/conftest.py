"""Rules for every test module: one thread, its own precision, and no silently missing backend.

- Each test process computes on one thread, so that results do not depend on the machine's cores.
- What JAX has compiled once is not compiled again: test processes share a folder, which is kept
  from run to run (`JAX_COMPILATION_CACHE_DIR` names another).
- A module that wants float64 says so at import, as a user's script would
  (`jax.config.update("jax_enable_x64", True)`, `torch.set_default_dtype(torch.float64)`). What it
  sets holds for its own tests and for no other module's.
- A module that needs an optional part which is not installed is skipped, and the reason is told.
  With CI set in the environment it fails instead: a missing install step must not look like
  success.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

# Read by the libraries when they are first imported, hence before anything else here.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Kept from run to run and shared by all test processes.
COMPILED = os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/ppl-ext/tests/jax")
)
# Most time goes to the many small programs, which JAX would not keep by itself.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest  # noqa: E402  (the variables above come first)

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

# import name -> the extra that installs it
OPTIONAL = {
    "torch": "pyro",
    "pyro": "pyro",
    "jax": "numpyro",
    "numpyro": "numpyro",
    "optax": "numpyro",
    "bridgestan": "stan",
    "posteriordb": "stan",
    "blackjax": "bench",
    "flax": "bench",
    "matplotlib": "diagnostics",
    "pandas": "bench",
    "sklearn": "diagnostics",
    "equinox": "dev",
    "scipy": "dev",
    "torchmetrics": "dev",
}

PRECISION = pytest.StashKey[dict[str, Any]]()


def _write_whole_files() -> None:
    """Have JAX put a file of the cache in place when it is complete: others may be reading."""
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return

    def put(self: Any, key: str, value: bytes) -> None:
        path = self.path / f"{key}-cache"
        if path.exists():
            return
        handle, temporary = tempfile.mkstemp(dir=self.path, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(value)
        os.replace(temporary, path)

    LRUCache.put = put


_write_whole_files()


def _get_precision() -> dict[str, Any]:
    """The default precisions of the frameworks imported so far."""
    precision: dict[str, Any] = {}
    if "jax" in sys.modules:
        precision["jax"] = bool(sys.modules["jax"].config.jax_enable_x64)
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "get_default_dtype"):
        precision["torch"] = sys.modules["torch"].get_default_dtype()
    return precision


def _set_precision(precision: dict[str, Any]) -> None:
    """Set those; a framework imported since they were read goes back to its own default."""
    now = _get_precision()
    if "jax" in now and now["jax"] != precision.get("jax", False):
        sys.modules["jax"].config.update("jax_enable_x64", precision.get("jax", False))
    if "torch" in now:
        torch = sys.modules["torch"]
        dtype = precision.get("torch", torch.float32)
        if now["torch"] != dtype:
            torch.set_default_dtype(dtype)


def missing_part(error: BaseException | None) -> str | None:
    """The optional part whose absence made an import fail, or None."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            return name if name in OPTIONAL else None
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Import a test module in the default precision, note what it set, and put it back."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    before = _get_precision()
    report = yield
    collector.stash[PRECISION] = _get_precision()
    _set_precision(before)
    part = missing_part(report.call.excinfo.value) if report.failed else None
    if part is not None and not IN_CI:
        reason = f"{part} is not installed (pip install 'ppl-ext[{OPTIONAL[part]}]')"
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {reason}")
    return report


@pytest.fixture(scope="module", autouse=True)
def module_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a module's tests the precision that the module set at import."""
    before = _get_precision()
    _set_precision(request.node.stash.get(PRECISION, before))
    yield
    _set_precision(before)
    if "jax" in sys.modules:
        # Compiled programs of past modules would pile up to gigabytes.
        sys.modules["jax"].clear_caches()


@pytest.fixture(autouse=True)
def clean_pyro() -> Iterator[None]:
    """Empty Pyro's global parameter store around each test, which hosts' own guides fill."""
    if "pyro" in sys.modules:
        sys.modules["pyro"].clear_param_store()
    yield
    if "pyro" in sys.modules:
        sys.modules["pyro"].clear_param_store()


@pytest.fixture(params=["pyro", "numpyro"])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each package in turn, behind the face of ``tests/backends.py``."""
    from tests.backends import backend_of

    try:
        return backend_of(request.param)
    except ImportError as error:
        part = missing_part(error)
        if part is None or IN_CI:
            raise
        pytest.skip(f"{part} is not installed (pip install 'ppl-ext[{OPTIONAL[part]}]')")
