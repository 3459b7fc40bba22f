"""How many programs JAX compiles for a target, until an engine's first step, and for diagnostics.

Each takes a tenth of a second or a few, and together they are what a user waits for. Every count is
that of a fresh process: a copy of one that has imported everything and has not computed anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.registry import REGISTRY

ROOT = Path(__file__).parents[2]
#: From construction to the first step, the host's set-up of a guide included.
UNTIL_FIRST_STEP = 14
FOR_A_DIAGNOSTIC = 6
FOR_A_TARGET = 2
DIAGNOSTICS = ("get_samples", "elbo", "psis_khat", "ksd", "to_arviz")
#: Models whose targets are made, with starting positions.
TARGETS = ("eight_schools_noncentered", "logistic_regression", "local_latents")
#: One engine of particles and one of guides, and one that looks at the curvature; none of this is
#: found in the folder of compiled programs, so that the rest is left to the slow tests.
FAST = ("SVGD", "ProximalScoreVI, regression", "LaplaceGGN", "to_arviz", *TARGETS)

COUNT = """
import json
import os
import sys
import warnings

import jax
import numpy as np
import numpyro_ext as nx
from jax import monitoring
from tests.models import numpyro_models as models, zoo
from tests.registry import REGISTRY

warnings.simplefilter("ignore")
compiled = []


def note(event, duration_secs, fun_name="", **_):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(fun_name)


monitoring.register_event_duration_secs_listener(note)


def target(name):
    key, arguments = jax.random.PRNGKey(0), tuple(map(np.asarray, models.arguments(name)))
    compiled.clear()
    made = nx.LogDensity(models.build(name), key, arguments)
    made.initial_positions(10, key, made.bind(*arguments))


def first_step(name):
    row = REGISTRY[name]
    only_minibatches = row.engine == "SVGDVR"
    model = "logistic_regression_subsampled" if only_minibatches else "eight_schools_noncentered"
    program, arguments = models.build(model), models.arguments(model)
    options, key = dict(zoo.ZOO[model].options), jax.random.key(0)
    # What a user has before: data on the device, and a key.
    arguments = jax.block_until_ready(jax.device_put(arguments))
    compiled.clear()
    engine = row.made("numpyro", program, 10)
    state = engine.init(key, *arguments, **options)
    jax.block_until_ready(engine.update(state, *arguments, **options)[0].step)
    return engine, arguments


def diagnostic(name):
    engine, arguments = first_step("ProximalScoreVI, regression")
    result = engine.run(jax.random.key(1), 10, *arguments, progress_bar=False)
    compiled.clear()
    if name == "get_samples":
        jax.block_until_ready(engine.get_samples(result.state, num_samples=100))
    elif name == "to_arviz":
        nx.to_arviz(engine, result, *arguments)
    else:
        getattr(nx, name)(engine, result.state)


for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        (first_step if name in REGISTRY else target if hasattr(models, name) else diagnostic)(name)
        print(json.dumps([name, compiled]), flush=True)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, name
"""


@cache
def counts(fast: bool) -> dict[str, list[str]]:
    """Names of the programs that were compiled, by model, row of the registry and diagnostic."""
    names = [name for name in (*TARGETS, *REGISTRY, *DIAGNOSTICS) if (name in FAST) == fast]
    ended = subprocess.run(
        [sys.executable, "-c", COUNT, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(line) for line in ended.stdout.splitlines())


def each(names: Iterable[str]) -> list[Any]:
    marks = {name: [] if name in FAST else [pytest.mark.slow] for name in names}
    return [pytest.param(name, marks=own) for name, own in marks.items()]


@pytest.mark.parametrize("model", TARGETS)
def test_a_target_and_its_starting_positions(model: str) -> None:
    found = counts(True)[model]
    assert 0 < len(found) <= FOR_A_TARGET, found


@pytest.mark.parametrize("row", each(sorted(REGISTRY)))
def test_first_step(row: str) -> None:
    found = counts(row in FAST)[row]
    assert len(found) <= UNTIL_FIRST_STEP, Counter(found).most_common()


@pytest.mark.parametrize("name", each(DIAGNOSTICS))
def test_first_call_of_a_diagnostic(name: str) -> None:
    found = counts(name in FAST)[name]
    assert len(found) <= FOR_A_DIAGNOSTIC, Counter(found).most_common()
