"""Which test files can notice a fault in a room: ``python -m tests.rooms kernels [--above]``.

Those in the folder of the room's name, and those that import a module of the room in any of the
three packages. ``--above`` adds the files of the rooms that may import it, by the import rules. Of
a room within a room, such as ``fit/ladder``, they are those that import its modules.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection
from pathlib import Path

from tests.test_architecture import ALL, MAY_IMPORT, ROOT, module_name, read, sources

TESTS = ROOT / "tests"
#: Rooms of ``ppl_ext`` whose counterpart in the packages bears another name.
ALIKE = {"score_matching": "score", "target": "density", "running": "engine", "engines": "engine"}


def rooms() -> set[str]:
    """Names of all rooms of the three packages, and of those within them."""
    folders = {path.parent for package in ALL for path in sources(package)}
    names = {module_name(folder / "__init__.py") for folder in folders} - set(ALL)
    return {name.partition(".")[2].replace(".", "/") for name in names}


def above(room: str) -> set[str]:
    """The room and all that may import it, directly or through others."""
    around = room.partition("/")[0]
    found = {room, around, ALIKE.get(around, around)}
    while True:
        more = {name for name, below in MAY_IMPORT.items() if below & found} - found
        if not more:
            return found
        found |= more


def files_for(wanted: Collection[str]) -> list[Path]:
    """Test files of the fast run that can notice a fault in one of these rooms."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        folder = path.relative_to(TESTS).parts[0]
        if folder in ("benchmarks", "examples", "mutations"):
            continue
        if folder in wanted or _imported(path) & set(wanted):
            found.append(path.relative_to(ROOT))
    return found


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    """Rooms of which a file imports modules, with those within them."""
    parts = (name.split(".") for name in read(path)[2])
    inside = [each[1:] for each in parts if each[0] in ALL and len(each) > 1]
    return frozenset({each[0] for each in inside} | {"/".join(each[:2]) for each in inside})


def main() -> None:
    """Print the files, on one line as a command takes them."""
    parser = argparse.ArgumentParser(prog="python -m tests.rooms", description=__doc__)
    parser.add_argument("room", choices=sorted(rooms() | set(MAY_IMPORT)), metavar="room")
    parser.add_argument("--above", action="store_true", help="and of the rooms that may import it")
    args = parser.parse_args()
    wanted = above(args.room) if args.above else {args.room}
    print(*files_for(wanted))


if __name__ == "__main__":
    main()
