"""Worker processes keep the memory that a sample took for the next one, up to a limit."""

from __future__ import annotations

import platform
import resource
from pathlib import Path

import pytest
from sutler import Loader

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="it is glibc that gives memory back"
)

PAGE = resource.getpagesize()
#: A block of Pillow's for a large picture: small enough for the heap, and large enough to lie at its end.
BLOCK = 16 << 20
RESIDENT = 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[RESIDENT]) * PAGE


class Blocks:
    """A sample takes so many blocks for a while; it is the page faults of that, and what was resident before."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> tuple[int, int]:
        resident = resident_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [b"\xff" * BLOCK for _ in range(self.counts[index])]
        del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, resident


def prepared(counts: list[int], method: str = "fork") -> list[tuple[int, int]]:
    loader = Loader(Blocks(counts), batch_size=None, num_workers=1, multiprocessing_context=method)
    return [(int(faults), int(resident)) for faults, resident in loader]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_one_sample_took_the_next_one_has(method: str) -> None:
    faults = [each for each, _ in prepared([8] * 6, method)]
    assert max(faults[2:]) < 0.1 * 8 * BLOCK / PAGE, faults


def test_what_a_giant_took_is_given_back() -> None:
    small, *_, last = [resident for _, resident in prepared([1, 1, 40, 1, 1])]
    assert last - small < 300 << 20, "no more than 256 MiB stay, and 640 were there"


def test_what_the_user_tells_glibc_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    faults = [each for each, _ in prepared([8] * 4, "spawn")]
    assert min(faults) > 0.9 * 8 * BLOCK / PAGE, faults
