"""Arguments and folders of the Stan compiler."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ppl_ext.stan.inputs import read_data
from tests.faults.table import RUNS, Trial, fault
from tests.stan_support import REASON, REJECTING

PROGRAM = "parameters { real mu; } model { mu ~ normal(0, 1); }"

TEXTS: dict[str, dict[str, Any]] = {
    '`stanc_args="--O1"`, a text for a list': {"stanc_args": "--O1"},
    "`stanc_args=[1]`": {"stanc_args": [1]},
    "`make_args` with a line break": {"make_args": ["CXX=g++\nCXX=clang++"]},
}


def _refused(options: dict[str, Any], trial: Trial) -> None:
    (name,) = options
    with trial.refused(f"Expected {name} as a list of texts of one line each"):
        trial.public.stan.model(PROGRAM, **options)


for _given, _options in TEXTS.items():
    fault("Stan programs", _given)(partial(_refused, _options))


@fault(
    "Stan programs", "data in a file that begins with a byte order mark, its path with `{`", RUNS
)
def _byte_order_mark(trial: Trial) -> None:
    path = trial.folder / "{data}.json"
    path.write_text('{"N": 3}', encoding="utf-8-sig")
    assert read_data(str(path)) == '{"N": 3}'


@fault(
    "Stan programs",
    "generated quantities that Stan rejects in some draws",
    "runs: NaN there, the parameters are kept, a warning gives the count and Stan's reason",
)
def _rejected(trial: Trial) -> None:
    if REASON is not None:
        pytest.skip(REASON)
    program = trial.public.stan.model(REJECTING, generated_quantities=True)
    with trial.warned("at 1 of 2 positions.*the parameters are kept.*is high"):
        found = program.constrain(trial.backend.array([[1.0], [3.0]]))
    assert trial.backend.numpy(found["mu"]).tolist() == [1.0, 3.0]


@fault(
    "Stan programs",
    "`stanc_args` with `$(shell ...)`, or with a command behind `;`",
    "Stan's compiler is given the text as it is, and refuses it",
)
def _not_expanded(trial: Trial) -> None:
    if REASON is not None:
        pytest.skip(REASON)
    mark = trial.folder / "mark"
    for text in (f"--$(shell touch {mark})", f"--a; touch {mark}", f"--`touch {mark}`"):
        with pytest.raises(RuntimeError, match=r"Compiling the Stan program 'program' failed"):
            trial.public.stan.model(PROGRAM, stanc_args=[text])
        assert not mark.exists()
