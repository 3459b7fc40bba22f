"""One table of faults: what is passed in by mistake, and what comes out of it in each package.

Modules of this folder add rows with :func:`fault`; ``test_faults.py`` tries every row in both
packages, and ``docs/errors.md`` shows the table (``python -m tests.faults`` writes it).
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine_support import Verbs
from tests.stein_support import optimizer

#: The outcome of most rows; it is seen to that no step was taken.
REFUSED = "refused before the first step"
#: What is right looks like a mistake.
RUNS = "runs, and is right"

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "errors.md"
BEGIN, END = "<!-- table of faults: begin -->", "<!-- table of faults: end -->"


class Trial:
    """One input of the table in one package.

    Parameters
    ----------
    backend : backend
    folder : Path
        An empty folder.
    """

    def __init__(self, backend: Any, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.public, self.is_pyro = backend.public, backend.is_pyro
        self.steps = 0
        self.refusals: list[int] = []

    def engine(self, name: str, model: Callable[..., Any], *parts: Any, **options: Any) -> Any:
        """The public engine of this name."""
        seeds = {"seed": 0} if self.is_pyro else {}
        return getattr(self.public, name)(model, *parts, **{**seeds, **options})

    def svgd(self, model: Callable[..., Any], **options: Any) -> Any:
        """Three particles that follow Adam."""
        optim = options.pop("optim", None) or optimizer(self.backend, "adam", 0.05)
        return self.engine("SVGD", model, optim, **{"num_particles": 3, **options})

    def run(
        self, engine: Any, steps: Any, *args: Any, state: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """The state after a run on the model's arguments, and what the run returned.

        Options of the run and keyword arguments of the model go by name.
        """
        given = options.pop("callback", None)

        def count(step: int, *info: Any) -> Any:
            self.steps += 1
            return None if given is None else given(step, *info)

        return Verbs(self.backend, args).run(engine, steps, state, callback=count, **options)

    @contextmanager
    def refused(self, words: str, error: str = "ArgumentError") -> Iterator[None]:
        """See that an error of the package comes, whose message has these words (a pattern)."""
        before = self.steps
        with pytest.raises(getattr(self.public, error), match=words):
            yield
        self.refusals.append(self.steps - before)

    @contextmanager
    def warned(self, words: str, category: type[Warning] = UserWarning) -> Iterator[None]:
        """See that a warning comes with these words (a pattern), and take no notice of others."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            yield
        texts = [str(each.message) for each in found if issubclass(each.category, category)]
        assert any(re.search(words, text) for text in texts), texts


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    Parameters
    ----------
    group : str
        Heading that it stands under.
    given : str
        What is passed in.
    pyro, numpyro : str or None
        What comes out; None where the host has no such thing.
    check : callable
        Takes a :class:`Trial`.
    slow : bool
        Whether only the slow tests try it: another row says the same of an engine of its kind.
    """

    group: str
    given: str
    pyro: str | None
    numpyro: str | None
    check: Callable[[Trial], None]
    slow: bool = False

    def outcome(self, backend: Any) -> str | None:
        """What comes out in a package."""
        return self.pyro if backend.is_pyro else self.numpyro

    def tried(self, backend: Any, folder: Path) -> None:
        """Try it, and see that a refusal comes before the first step where the table says so."""
        trial = Trial(backend, folder)
        self.check(trial)
        if self.outcome(backend) == REFUSED:
            assert trial.refusals and not any(trial.refusals), trial.refusals


_ROWS: list[Fault] = []


def fault(
    group: str, given: str, outcome: str | None = REFUSED, *, slow: bool = False, **one: str | None
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Add a row.

    Parameters
    ----------
    group : str
        Heading that it stands under.
    given : str
        What is passed in, in a few words.
    outcome : str or None
        What comes out in both packages, in a few words.
    slow : bool
        Whether only the slow tests try it.
    **one : str or None
        ``pyro=`` or ``numpyro=`` where they differ.
    """

    def add(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        outcomes = {"pyro": outcome, "numpyro": outcome, **one}
        _ROWS.append(Fault(group, given, outcomes["pyro"], outcomes["numpyro"], check, slow))
        return check

    return add


def rows() -> list[Fault]:
    """The rows of all modules of this folder, by group in the order of modules."""
    for path in sorted(FOLDER.glob("[!_]*.py")):
        if path.stem != "table" and not path.stem.startswith("test_"):
            importlib.import_module(f"tests.faults.{path.stem}")
    # Other tests may have imported a module before the others.
    by_module = sorted(_ROWS, key=lambda row: getattr(row.check, "func", row.check).__module__)
    groups = list(dict.fromkeys(row.group for row in by_module))
    return sorted(by_module, key=lambda row: groups.index(row.group))


def page_with_table(text: str) -> str:
    """The page of errors with the table of today."""
    lines, group = [BEGIN], ""
    for row in rows():
        if row.group != group:
            group = row.group
            lines += [
                "",
                f"### {group}",
                "",
                "| what is passed in | Pyro | NumPyro |",
                "|---|---|---|",
            ]
        outcomes = [each or "(not in this host)" for each in (row.pyro, row.numpyro)]
        lines.append(f"| {row.given} | {' | '.join(outcomes)} |")
    begin, end = text.index(BEGIN), text.index(END)
    return text[:begin] + "\n".join([*lines, "", ""]) + text[end:]
