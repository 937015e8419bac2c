"""What a process and all its descendants use, as the kernel counts it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: What the kernel counts processor time in.
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:  # a thread that has just ended
            continue
        found += [each for child in children for each in descendants(int(child))]
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time, user and system, of a process and its descendants, those it has waited for included."""
    ticks = 0
    for each in descendants(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended; its parent has its time when it has waited for it
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks * TICK_SECONDS


@dataclass
class Memory:
    """Bytes of all processes together."""

    #: Each page once, however many processes have it.
    proportional: int
    #: Pages that one process has alone.
    private: int


def memory(pid: int) -> Memory:
    """The memory of a process and its descendants."""
    total = Memory(0, 0)
    for each in descendants(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        total.proportional += kibibytes["Pss"] << 10
        total.private += (kibibytes["Private_Clean"] + kibibytes["Private_Dirty"]) << 10
    return total
