"""Which fast tests are long: `python -m tests.long LOG` writes their list from a run's log.

The log is that of all tests but slow ones, from an empty cache of compiled programs:

    rm -rf ~/.cache/ppl-ext/tests
    make test PYTEST_ARGS='-m "not slow and not docs" --durations=0 --durations-min=0.05' > LOG

`make test` leaves the tests of the list to `make test-long`. Most are NumPyro's half of a test of
both packages, whose time goes to compiling. Tests that hold the packages equal are never left out:
by them a fault in NumPyro's arithmetic is noticed. A test that is not on the list is not long.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

#: Seconds, with those of its fixtures, from which on a test is long.
LONG = 1.5

#: In the names of tests that are never left out.
EQUAL = ("tests/parity/", "both_packages")

LIST = Path(__file__).with_name("long.txt")


def long_tests(log: str) -> list[str]:
    """The names of long tests in a log, in order."""
    seconds: Counter[str] = Counter()
    for line in log.splitlines():
        if timed := re.match(r"([\d.]+)s (?:call|setup|teardown) +(tests/.*)", line):
            seconds[timed[2]] += float(timed[1])
    return sorted(
        name
        for name, taken in seconds.items()
        if taken >= LONG and not any(part in name for part in EQUAL)
    )


if __name__ == "__main__":
    found = long_tests(Path(sys.argv[1]).read_text())
    LIST.write_text("".join(f"{name}\n" for name in found))
    print(f"{len(found)} long tests, in {LIST}")
