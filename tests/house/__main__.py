"""`python -m tests.house`: the figures of the house as a table."""

from __future__ import annotations

import sys

from benchmarks.records import markdown_table
from tests.house import running, source


def figures() -> dict[str, object]:
    """Every figure by what it is of."""
    size = source.size()
    code = sum(each["code"] for each in size.values())
    comments = sum(each["comments"] for each in size.values())
    calls, depth, files = running.calls_of_a_step()
    frames, rooms = running.frames_to_a_kernel()
    deepest, ancestors = running.deepest(), running.most_ancestors()
    same = source.identical_lines().values()
    every, bodies = (sum(numbers) for numbers in zip(*same, strict=True))
    parts = ", ".join(f"{name} {each['code']:,}" for name, each in size.items())
    return {
        "lines of code without docstrings": f"{code:,} ({parts})",
        "comments a line of code": f"{comments / code:.3f}",
        "longest line of classes": f"{deepest[1]} ({deepest[0]})",
        "most ancestors of a class": f"{ancestors[1]} ({ancestors[0]})",
        "own calls of a warm step of Pyro's SVGD": f"{calls}, depth {depth}, {files} files",
        "frames from run to the kernel's arithmetic": f"{frames} in {rooms} files",
        "loose files of ppl_ext": source.loose_files(),
        "identical lines of same-named files": f"{every:,} ({bodies:,} in bodies)",
        "circles of files": len(source.circles()),
        "circles of rooms in ppl_ext": len(source.room_circles()),
    }


def main() -> int:
    """Print the table; with ``-v`` the files of circles and those with identical lines."""
    print(markdown_table([{"figure": name, "is": value} for name, value in figures().items()]))
    if "-v" in sys.argv:
        print("\n".join([*source.circles(), *source.room_circles()]))
        same = source.identical_lines().items()
        ranked = sorted(same, key=lambda each: each[1][::-1], reverse=True)
        print("\n".join(f"{bodies:4} of {every:4} {name}" for name, (every, bodies) in ranked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
