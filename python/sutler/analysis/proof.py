"""Where samples really came from: bytes that left the device, and files that leave the page cache.

Linux counts for every process the bytes that it caused a device to deliver (`read_bytes` in `/proc/<pid>/io`); what the
page cache answers is not among them. So a run over samples that should be in memory is proven by a count of 0, and a
cold run by a count of about what the samples have.

Pages are dropped file by file (`POSIX_FADV_DONTNEED`), which anybody
who may read a file may do; dropping the whole cache takes root and hurts everybody else on the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

#: Processor time is counted in so many parts of a second.
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def family() -> list[int]:
    """This process and all that descend from it, such as worker processes."""
    found, ahead = [], [os.getpid()]
    while ahead:
        process = ahead.pop()
        found.append(process)
        ahead += _children(process)
    return found


def _children(process: int) -> list[int]:
    """The processes that any thread of a process has started; none where it has ended meanwhile."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return []
    found = []
    for thread in threads:
        with contextlib.suppress(OSError):
            found += [
                int(word) for word in Path(f"/proc/{process}/task/{thread}/children").read_text().split()
            ]
    return found


def device_bytes() -> int | None:
    """How many bytes devices have delivered to this process and its workers so far; ``None`` where nobody counts.

    What a worker read that has ended is in the count of the one who has seen it end.
    """
    total = 0
    for process in family():
        try:
            lines = Path(f"/proc/{process}/io").read_text().splitlines()
        except ProcessLookupError:
            continue  # ended meanwhile
        except OSError:
            if process == os.getpid():
                return None  # a kernel without these counts, or a sandbox
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    return total


def processor_seconds() -> float:
    """How long this process and its workers have had a processor so far."""
    ticks = 0
    for process in family():
        fields = _stat(process)
        if fields is not None:
            # Its own time in the program and in the kernel, and that of its children which have ended.
            ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return ticks / _TICKS_PER_S


def processor_waits() -> float:
    """How long the threads of this process and its workers have been in line for a processor so far, in seconds.

    Where the system does not count that it is 0.
    """
    nanoseconds = 0
    for process in family():
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError, IndexError):
                    nanoseconds += int(
                        Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()[1]
                    )
    return nanoseconds / 1e9


def _stat(process: int) -> list[str] | None:
    """The fields of `/proc/<pid>/stat` from the third on: state, parent and so forth."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is a name in brackets, which may hold anything.
    return text[text.rindex(")") + 2 :].split()


def drop_from_page_cache(paths: Iterable[str], *, written: bool) -> int:
    """Lets the page cache forget these files; returns how many could be asked for.

    What was ``written`` lately may be on its way to the device and cannot be forgotten yet, so it is waited for.
    """
    dropped = 0
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if written:
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            dropped += 1
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return dropped


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_free_bytes() -> int:
    """The memory that a cache could have without driving anything else out."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return memory_bytes() // 2
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return memory_bytes() // 2
