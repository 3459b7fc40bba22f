"""Arguments and folders of the Stan compiler."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.faults.table import Trial, fault
from tests.stan_support import REASON

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
