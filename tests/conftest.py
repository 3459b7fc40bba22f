"""Rules for every test module: one thread, its own precision, and no silently missing backend.

- Each test process computes on one thread, so that results do not depend on the machine's cores.
- What JAX has compiled once is not compiled again: test processes share a folder, which is kept
  from run to run (`JAX_COMPILATION_CACHE_DIR` names another) and from which what was not used for
  longest goes when it has grown past a bound.
- Files of tests that took long the last time come first, so that test processes end together.
- Tests that take long, of which `tests/long.txt` is the list, are left to `make test-long`.
- A module that wants float64 says so at import, as a user's script would
  (`jax.config.update("jax_enable_x64", True)`, `torch.set_default_dtype(torch.float64)`). What it
  sets holds for its own tests and for no other module's.
- Engines start by the host's init strategy, so that tests of other things than starts do not search
  for one. Tests marked `library_start` have the default that users have.
- Runs of engines end without a judgement of their answer, which would take longer than the few
  steps of most tests, and find them doubtful, rightly. Tests marked `judged` have it, as users do.
- A module that needs an optional part which is not installed is skipped, and the reason is told.
  With CI set in the environment it fails instead: a missing install step must not look like
  success.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Read by the libraries when they are first imported, hence before anything else here.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Most programs of tests run a few times: compiling without optimising, and in one piece, takes half
# as long. XLA ends the process over a flag that it does not know, as later versions may not know
# these.
_flags = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
with contextlib.suppress(PackageNotFoundError):
    if version("jaxlib").startswith("0.10."):
        _flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", _flags)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Where each operation of a program was written is not asked for: a tenth of the time to lower one.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Kept from run to run and shared by all test processes.
COMPILED = os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/ppl-ext/tests/jax")
)
# Most time goes to the many small programs, which JAX would not keep by itself.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest  # noqa: E402  (the variables above come first)

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

# import name -> what pip is told to install it: a user's extra, or a group for developers
_DEVELOPERS = "--group dev"
OPTIONAL = {
    "torch": "'ppl-ext[pyro]'",
    "pyro": "'ppl-ext[pyro]'",
    "jax": "'ppl-ext[numpyro]'",
    "numpyro": "'ppl-ext[numpyro]'",
    "optax": "'ppl-ext[numpyro]'",
    "bridgestan": "'ppl-ext[stan]'",
    "posteriordb": "'ppl-ext[stan]'",
    "matplotlib": "'ppl-ext[plots]'",
    "sklearn": "'ppl-ext[plots]'",
    "blackjax": _DEVELOPERS,
    "equinox": _DEVELOPERS,
    "flax": _DEVELOPERS,
    "pandas": _DEVELOPERS,
    "torchmetrics": _DEVELOPERS,
}

PRECISION = pytest.StashKey[dict[str, Any]]()


#: Bytes beyond which programs that were not used for longest are deleted.
LARGEST_CACHE = 2 * 2**30
#: Seconds that each test file took, from run to run.
SECONDS = Path(COMPILED).parent / "seconds.json"


def _share_the_cache() -> None:
    """Have JAX put a file of the cache in place when it is complete: others may be reading.

    JAX locks a cache of bounded size instead, and looks at each of its files whenever it writes
    one: 0.2 s a program when there are 5,000.
    """
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return

    def put(self: Any, key: str, value: bytes) -> None:
        path = self.path / f"{key}-cache"
        if not path.exists():
            write_whole(path, value)

    def get(self: Any, key: str) -> bytes | None:
        path = self.path / f"{key}-cache"
        try:
            os.utime(path)
            return path.read_bytes()
        except FileNotFoundError:
            return None

    LRUCache.put, LRUCache.get = put, get


def write_whole(path: Path, value: bytes) -> None:
    """Put a file in place when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(value)
    os.replace(temporary, path)


def trim(folder: Path, largest: int) -> None:
    """Delete the files of a folder that were not used for longest until it is smaller than that."""
    found = []
    for entry in os.scandir(folder) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # another run may trim as well
            found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    size = sum(part for _, part, _ in found)
    for used, part, path in sorted(found):
        # What is left of a process that was killed as it wrote.
        abandoned = path.endswith(".part") and used < time.time() - 3600
        if size > largest or abandoned:
            Path(path).unlink(missing_ok=True)
            size -= part


#: Programs that are lowered in one context of MLIR, which keeps constants that stood in them.
IN_ONE_CONTEXT = 64


def _keep_contexts_of_mlir() -> None:
    """Have JAX lower many programs in one context: to make one takes 3 ms, as long as a small one.

    Where one is in use, as by a program that calls for another while it is lowered, JAX makes its
    own.
    """
    try:
        from jax._src.interpreters import mlir
    except ImportError:
        return
    if not hasattr(mlir, "make_ir_context"):
        return
    make, held = mlir.make_ir_context, threading.local()

    def make_ir_context() -> Any:
        with contextlib.suppress(ValueError):  # none is in use
            if mlir.ir.Context.current is not None:
                return make()
        if getattr(held, "left", 0) == 0:
            held.context, held.left = make(), IN_ONE_CONTEXT
        held.left -= 1
        return held.context

    mlir.make_ir_context = make_ir_context


_share_the_cache()
_keep_contexts_of_mlir()


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


class Timekeeper:
    """Orders test files by the seconds that they took the last time, and keeps those of this."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        try:
            self.before: dict[str, float] = json.loads(SECONDS.read_text())
        except (OSError, ValueError):
            self.before = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The longest files first; before them those not known yet, the one of most tests first."""

        def file_of(item: pytest.Item) -> str:
            return item.nodeid.partition("::")[0]

        number = Counter(map(file_of, items))

        def length(item: pytest.Item) -> tuple[float, int]:
            return self.before.get(file_of(item), float("inf")), number[file_of(item)]

        # The sort is stable: within a file tests keep their order.
        items.sort(key=length, reverse=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Look for no garbage while modules are imported: next to nothing of it is."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    def pytest_collection_finish(self) -> None:
        """Look for garbage less often: there are millions of objects that stay."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's seconds, or those of its fixtures, to its file's."""
        self.taken[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep what the files took, or little less than before: some may have run in part only."""
        taken = {
            name: max(seconds, 0.8 * self.before.get(name, 0.0))
            for name, seconds in self.taken.items()
        }
        write_whole(SECONDS, json.dumps(self.before | taken, indent=1).encode())
        trim(Path(COMPILED), LARGEST_CACHE)


def pytest_configure(config: pytest.Config) -> None:
    """Order and time tests; the process that the others report to keeps what was found."""
    keeper = Timekeeper()
    if hasattr(config, "workerinput"):
        keeper.pytest_sessionfinish = lambda: None  # type: ignore[method-assign]
    config.pluginmanager.register(keeper, "timekeeper")


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
        reason = f"{part} is not installed (pip install {OPTIONAL[part]})"
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {reason}")
    return report


#: By the mark of a test or of its module, the package in which the slow tests alone run it.
BY_NIGHT = {"in_one_package": "pyro", "formula": "numpyro", "in_both_packages": None}


#: Names of long tests; `python -m tests.long` writes them.
_LIST = Path(__file__).with_name("long.txt")
LONG = frozenset(_LIST.read_text().splitlines()) if _LIST.exists() else frozenset()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that are long, and leave to the slow tests what fast ones run in one package.

    ``in_one_package`` are statistical checks of whole runs, whose steps other tests hold equal in
    both packages: Pyro runs them step by step, NumPyro in compiled loops. ``formula`` is arithmetic
    that stands once, in ``ppl_ext``: Pyro's arrays compute it at once, and NumPyro would compile a
    program for each test. ``in_both_packages`` takes a test out of a module's mark. The mark next
    to the test counts.
    """
    marks = [mark.name for mark in item.iter_markers() if mark.name in BY_NIGHT]
    parts = item.name.partition("[")[2].rstrip("]").split("-")
    if marks and BY_NIGHT[marks[0]] in parts:
        item.add_marker("slow")
    if item.nodeid in LONG:
        item.add_marker("long")


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


@pytest.fixture(scope="session", autouse=True)
def seeds_of_devices_that_are_there() -> Iterator[None]:
    """Have torch keep no seeds for other devices, each of which it keeps with a stack as text."""
    torch: Any = sys.modules.get("torch")
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cuda", "xpu", "mtia"):
            devices = getattr(torch, kind, None)
            if devices is not None and not devices.is_available():
                patch.setattr(devices, "manual_seed_all", lambda seed: None, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def start_of_the_host() -> Iterator[None]:
    """Have engines start by the host's init strategy: searches would double their tests' time."""
    from ppl_ext.engines.base import EngineShell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineShell, "_usual_start", "host")
        yield


@pytest.fixture(autouse=True)
def library_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines start as users' do in tests marked ``library_start``."""
    if request.node.get_closest_marker("library_start") is not None:
        from ppl_ext.engines.base import EngineShell

        monkeypatch.setattr(EngineShell, "_usual_start", "search")


@pytest.fixture(scope="session", autouse=True)
def no_judgement() -> Iterator[None]:
    """Have runs end without a judgement."""
    from ppl_ext.engines.base import EngineShell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineShell, "_judges", False)
        yield


@pytest.fixture(autouse=True)
def judgement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs end with a judgement in tests marked ``judged``."""
    if request.node.get_closest_marker("judged") is not None:
        from ppl_ext.engines.base import EngineShell

        monkeypatch.setattr(EngineShell, "_judges", True)


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
        pytest.skip(f"{part} is not installed (pip install {OPTIONAL[part]})")


@pytest.fixture
def face(backend: Any) -> Any:
    """Guides of each package in turn, behind the face of ``tests/guides_support.py``."""
    from tests.guides_support import face_of

    return face_of(backend.name)
