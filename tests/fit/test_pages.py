"""What runs and calibrations show of themselves in a line and in a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_ext.calibrate.calibration import Calibration
from ppl_ext.engines.judgement import Judgement


def result_of(backend: Any, **fields: Any) -> Any:
    room = backend.room("engine")
    own = () if backend.is_pyro else ({}, None)
    return room.RunResult(*own, np.array([3.0, 1.25]), {"force": np.array([9.0, 0.5])}, **fields)


def test_a_run_is_a_line_and_a_table(backend: Any) -> None:
    assert repr(result_of(backend)) == "RunResult(2 steps, loss 1.25 at the end)"
    found = result_of(backend, judgement=Judgement("SVGD", ("The draws lie <too> close.",)))
    assert repr(found).endswith("at the end, doubtful)")
    page = found._repr_html_()
    assert "<td" in page and "9" in page and "0.5" in page
    assert "SVGD: the answer is doubtful." in page and "lie &lt;too&gt; close." in page


def test_a_run_goes_where_a_state_goes(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 1.0))
        host.sample("y", dist.Normal(mean, 1.0), obs=y)

    y, seeds = backend.array(np.array(0.5)), {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.SVGD(model, backend.adam(0.1), num_particles=8, **seeds)
    keys = () if backend.is_pyro else (backend.key(),)
    result = engine.run(*keys, 3, y, progress_bar=False)
    draws = engine.get_samples(result)
    state = () if backend.is_pyro else (result.state,)
    np.testing.assert_array_equal(draws["mean"], engine.get_samples(*state)["mean"])
    # The engine knows the arguments that it ran with.
    tree = backend.public.to_arviz(engine, result)
    np.testing.assert_array_equal(tree["posterior"]["mean"][0], backend.numpy(draws["mean"]))
    assert tree["optimization"].sizes["step"] == 3
    np.testing.assert_allclose(tree["observed_data"]["y"], 0.5)


def test_a_calibration_is_a_table(backend: Any) -> None:
    found = Calibration({"<mu>": np.arange(100)}, 99, {}, np.full(100, 400.0), ("exact",) * 100)
    page = found._repr_html_()
    assert "&lt;mu&gt;" in page and "Verdicts of the fits: exact 100." in page and "uniform" in page
