"""Plant each fault in a copy of the checkout and see which test notices: `make test-mutations`.

The tests most likely to notice are run first, each file until its first failure; a fault that they
miss is given to the rest of the fast tests. A test that failed is run once more without the fault,
so that it counts only where it passes then. One JSON line is written for each fault as it is done,
and a table at the end; with `--resume` the faults that have a line are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import markdown_table, versions, write_text
from tests.mutations.catalogue import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
#: Not part of `make test`, or about the faults themselves.
LEFT_OUT = ("benchmarks", "examples", "mutations")
LIMIT = 1800
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def planted(text: str, mutation: Mutation) -> str:
    """The file's text with the fault.

    Raises
    ------
    LookupError
        The text to change is not there once.
    """
    count = text.count(mutation.old)
    if count != 1:
        raise LookupError(
            f"Expected {mutation.old!r} once in {mutation.file}, found it {count} times. Bring "
            "tests/mutations/catalogue.py up to date."
        )
    return text.replace(mutation.old, mutation.new)


def copy_of(checkout: Path, folder: Path) -> Path:
    """A copy of the checkout's files, those that git ignores left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (checkout / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, folder / name)
    return folder


def test_files(tree: Path, mutation: Mutation) -> tuple[list[str], list[str]]:
    """The files that are likely to notice, and the rest, the other package's left out of both."""
    package = mutation.file.split("/")[0]
    other = {"numpyro_ext": "pyro_ext", "pyro_ext": "numpyro_ext"}.get(package)
    likely: dict[int, list[str]] = {}
    rest = []
    for path in sorted((tree / "tests").rglob("test_*.py")):
        parts = path.relative_to(tree / "tests").parts
        if parts[0] in LEFT_OUT or other in parts:
            continue
        words = (*mutation.tests, mutation.room)
        names = [i for i, word in enumerate(words) if word in "/".join(parts)]
        exact = [i for i, word in enumerate(words) if path.stem == f"test_{word}"]
        if names:
            order = min(exact) if exact else len(words) + min(names)
            likely.setdefault(order, []).append(str(path.relative_to(tree)))
        else:
            rest.append(str(path.relative_to(tree)))
    return [name for order in sorted(likely) for name in likely[order]], rest


def run_tests(
    tree: Path, package: str, names: Sequence[str], *extra: str
) -> tuple[str | None, str]:
    """The first test that fails, or None, and the end of what was printed."""
    # Tests of both packages in one text have the package's name in their own.
    chosen = {"numpyro_ext": "not pyro or numpyro", "pyro_ext": "not numpyro"}.get(package)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:cacheprovider"]
    # Long tests too: they are tests of every change, for which `make test` has no time.
    command += ["--no-header", "--tb=no", "-m", "not slow and not docs", *extra]
    if chosen is not None and not any("::" in name for name in names):
        command += ["-k", chosen]
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    try:
        ended = subprocess.run(
            [*command, *names],
            cwd=tree,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT} s", ""
    if ended.returncode in (0, 5):  # 5: nothing was selected
        return None, ended.stdout[-2000:]
    failed = FAILED.findall(ended.stdout)
    return (failed[0] if failed else f"status {ended.returncode}"), ended.stdout[-2000:]


class Judge:
    """Runs tests on a tree with one fault at a time."""

    def __init__(self, tree: Path, likely_only: bool) -> None:
        self.tree, self.likely_only = tree, likely_only
        self.sound: dict[str, bool] = {}

    def judge(self, mutation: Mutation) -> dict[str, Any]:
        """What became of a fault: the test that caught it, or None."""
        path = self.tree / mutation.file
        began = time.perf_counter()
        row: dict[str, Any] = {
            "mutation": mutation.name,
            "room": mutation.room,
            "file": mutation.file,
            "change": f"{mutation.old} -> {mutation.new}",
        }
        try:
            text = path.read_text()
            faulty = planted(text, mutation)
        except (LookupError, FileNotFoundError) as error:
            return row | {"outcome": "error", "caught by": None, "reason": str(error)}
        package = mutation.file.split("/")[0]
        likely, rest = test_files(self.tree, mutation)
        caught, stage = None, "likely"
        # The files of `rest` are many: they go to one process.
        groups = [[name] for name in likely] + ([] if self.likely_only else [rest])
        doubtful: list[str] = []
        for group in groups:
            path.write_text(faulty)
            try:
                found, _ = run_tests(self.tree, package, group)
            finally:
                path.write_text(text)
            if found is None:
                continue
            if self.passes_without_fault(package, found, group):
                caught, stage = found, "likely" if group is not rest else "rest"
                break
            doubtful.append(found)
        outcome = "caught" if caught else "survived the likely tests" if self.likely_only else None
        return row | {
            "outcome": outcome or "survived",
            "caught by": caught,
            "stage": stage if caught else None,
            "failing without it too": doubtful,
            "seconds": time.perf_counter() - began,
        }

    def passes_without_fault(self, package: str, test: str, group: Sequence[str]) -> bool:
        """Whether the test of a group passes in the tree as it is."""
        if not test.startswith("tests/"):
            # A run without end, or one that pytest itself did not survive: so may be that without
            # the fault.
            key = f"{test}: {' '.join(group)}"
            if key not in self.sound:
                self.sound[key] = run_tests(self.tree, package, group)[0] != test
            return self.sound[key]
        if test not in self.sound:
            # A file without a test's name could not be imported with the fault.
            extra = () if "::" in test else ("--collect-only",)
            self.sound[test] = run_tests(self.tree, package, [test], *extra)[0] is None
        return self.sound[test]


def table(rows: Sequence[dict[str, Any]], about: str) -> str:
    """The report."""
    caught = sum(row["outcome"] == "caught" for row in rows)
    shown = [
        {key: row.get(key) for key in ("mutation", "file", "outcome", "caught by", "seconds")}
        for row in rows
    ]
    return f"# Planted faults\n\n{caught} of {len(rows)} caught. {about}\n\n" + markdown_table(
        shown
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults; 0 if every one that could be planted was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="faults with one of these words")
    parser.add_argument("--likely-only", action="store_true", help="only the tests named by each")
    parser.add_argument("--resume", action="store_true", help="leave out what has a line already")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="another checkout to judge")
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    arguments = parser.parse_args(argv)
    chosen = [
        mutation
        for mutation in MUTATIONS
        if not arguments.only
        or any(word in f"{mutation.name} {mutation.file}" for word in arguments.only)
    ]
    if arguments.list:
        print("\n".join(f"{mutation.file}: {mutation.name}" for mutation in chosen))
        return 0
    lines = arguments.out / "mutations.jsonl"
    lines.parent.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        lines.unlink(missing_ok=True)
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    done = {row["mutation"] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(copy_of(arguments.checkout, Path(folder)), arguments.likely_only)
        for mutation in chosen:
            if mutation.name in done:
                continue
            row = judge.judge(mutation)
            rows.append(row)
            with lines.open("a") as stream:
                stream.write(json.dumps(row | {"versions": versions()}) + "\n")
            print(f"{row['outcome']}: {mutation.name} ({row['caught by']})", flush=True)
    write_text(arguments.out / "mutations.md", table(rows, "Made by `make test-mutations`."))
    missed = [row["mutation"] for row in rows if row["outcome"] != "caught"]
    print(f"{len(rows) - len(missed)} of {len(rows)} caught; not caught: {missed or 'none'}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
