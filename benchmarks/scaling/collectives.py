"""The numbers that the collectives of a compiled program of XLA move, read from its text.

`numbers` are the entries of what a collective gives on one device: P D where it gathers particles
(P, D), P D where it adds scores of rows. `sent` are the bytes that one device sends over its link
in the usual algorithms: g devices in a ring, or all to all.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_LINE = re.compile(rf"= (?P<kind>.*?) (?P<name>{'|'.join(_KINDS)})(-start)?\(")


class Collective(NamedTuple):
    """One collective of a program.

    Parameters
    ----------
    kind : str
    numbers : int
        Entries of what it gives on one device.
    size : int
        Their bytes.
    group : int
        Devices that take part.
    """

    kind: str
    numbers: int
    size: int
    group: int

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        share = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            return 2 * self.size * share
        if self.kind == "reduce-scatter":
            return self.size * (self.group - 1)
        return self.size if self.kind == "collective-permute" else self.size * share


def collectives(text: str, devices: int) -> list[Collective]:
    """The collectives in a compiled program's text; those of a loop count once."""
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        numbers = size = 0
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", match["kind"]):
            if kind not in _BYTES:
                continue
            entries = math.prod(int(each) for each in shape.split(",") if each)
            numbers, size = numbers + entries, size + entries * _BYTES[kind]
        if "-start(" in line and match["name"] != "all-reduce":
            # What an asynchronous one begins with is its operand and its result.
            numbers, size = numbers // 2, size // 2
        found.append(Collective(match["name"], numbers, size, _group(line, devices)))
    return found


def _group(line: str, devices: int) -> int:
    """Devices of a group, in the three forms that XLA writes."""
    named = re.search(r"replica_groups=mesh\[(.*?)\] ?\{(.*?)\}", line)
    if named is not None:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed is not None:
        return len(listed[1].split(","))
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    return int(iota[2]) if iota is not None else devices
