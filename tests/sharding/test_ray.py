"""Ray's workers, one of which is killed, end with the draws of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sharding import ray_job

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.library_start
@pytest.mark.judged
@pytest.mark.parametrize("package", ["pyro", "numpyro"])
def test_workers_of_ray_go_on_after_a_kill(package: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (pip install --group ray)")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sharding.ray_job", package, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("lost a worker") == 1
    assert int((tmp_path / "killed").read_text()) >= ray_job.KILLED_AT
    # The last checkpoint before the kill.
    assert (tmp_path / "resumed").read_text() == "30"
    found = np.load(tmp_path / "draws.npy")
    alone = tmp_path / "alone"
    alone.mkdir()
    getattr(ray_job, f"{package}_from_checkpoint")(None, alone)
    # Sums are in another order.
    np.testing.assert_allclose(found, np.load(alone / "draws.npy"), rtol=1e-4, atol=1e-5)
