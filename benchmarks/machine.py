"""What a figure depends on besides the code: the machine, and the versions of what ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

#: What may be part of a comparison, by the name it is installed under.
PACKAGES = ("torch", "torchvision", "pillow", "numpy", "nvidia-dali-cuda130", "nvidia-dali-cuda120")


def versions() -> dict[str, str]:
    """The versions of Sutler, Python and the peers that are installed."""
    import sutler

    found = {"sutler": f"{sutler.__version__} at {commit()}", "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def going_first() -> Iterator[bool]:
    """Goes before everybody else on this machine, and workers that are started meanwhile with it; tells whether it may.

    For measurements of pauses, which take hardly anything from anybody and are long by as much as they are disturbed.
    """
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


def commit() -> str:
    """The checkout's commit, and whether it has changes that no commit has.

    On a machine to which the tree was copied, ``SUTLER_COMMIT`` tells; what git says there is of the copy.
    """
    if told := os.environ.get("SUTLER_COMMIT"):
        return f"{told}, from a copy of the working tree"
    try:
        described = subprocess.run(
            ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"  # a checkout that was copied without its history
    return described.stdout.strip()


def facts(folder: Path) -> dict[str, str]:
    """The machine in words, with the storage that holds ``folder``; no names of people or hosts."""
    return {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "storage": _filesystem(folder),
        "system": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f} runnable on average in the minute before",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the file system, from the mount whose path is the longest beginning of the folder's."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    place = str(folder.resolve())
    for mount in mounts:
        _, point, name, *_ = mount.split()
        if place.startswith(point) and len(point) > len(best):
            best, kind = point, name
    return kind


def command(arguments: list[str] | None = None) -> str:
    """The command to run this again, with paths of this machine left out."""
    given = sys.argv[1:] if arguments is None else arguments
    return (
        f'make bench BENCH="{" ".join(Path(word).name if word.startswith("/") else word for word in given)}"'
    )
