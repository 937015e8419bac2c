"""Loaders whose delays are known: a disk of so many bytes a second, samples and trainers that take so long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.testing import SlowDisk, make_photos

#: Samples in a batch.
BATCH = 4
#: Batches in an epoch: enough for passes with four workers, each of which makes whole batches.
BATCHES = 24
#: The bytes of a sample.
SAMPLE = 40_000


@dataclass(frozen=True)
class Delays:
    """Milliseconds for each sample."""

    fetch: float
    prep: float
    step: float

    def shares(self, workers: int, *, prepared_by_trainer: bool = False) -> dict[str, float]:
        """What they make of a trainer's time: the part that each adds to what was there before."""
        step, prep, fetch = self.step, self.prep, self.fetch
        if workers == 0:
            prepared, fetched = step + prep, step + prep + fetch
        elif prepared_by_trainer:  # as it is with a function of the user's behind a native pipeline
            prepared, fetched = step + prep, max(step + prep, fetch)
        else:
            # The disk takes one at a time; a worker reads and prepares in turn.
            prepared = max(step, prep / workers)
            fetched = max(prepared, fetch, (prep + fetch) / workers)
        return {
            "fetch": (fetched - prepared) / fetched,
            "prep": (prepared - step) / fetched,
            "transport": 0.0,
            "trainer": step / fetched,
        }


class InjectedDataset:
    """Files on a slow disk, each of which takes a while to prepare."""

    def __init__(self, root: Path, delays: Delays) -> None:
        self.samples = [(str(path), 0) for path in sorted(root.iterdir())]
        self._disk = SlowDisk(SAMPLE / (delays.fetch / 1e3)) if delays.fetch else None
        self._prep = delays.prep / 1e3

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        path = self.samples[index][0]
        content = self._disk.read(path) if self._disk else Path(path).read_bytes()
        time.sleep(self._prep)
        return np.frombuffer(content[:256], np.uint8).copy(), index


class FarDataset(InjectedDataset):
    """The same files behind a network: each that is not in memory takes as long, however many are read at a time."""

    def __init__(self, root: Path, delays: Delays) -> None:
        super().__init__(root, Delays(0, delays.prep, delays.step))
        self._latency = delays.fetch / 1e3

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        # A disk of its own for every read, so that none is in the way of another.
        self._disk = SlowDisk(SAMPLE / self._latency)
        return super().__getitem__(index)


def write_files(root: Path) -> Path:
    """The files of `InjectedDataset`."""
    root.mkdir()
    for number in range(BATCH * BATCHES):
        (root / f"{number:04}").write_bytes(np.random.default_rng(number).bytes(SAMPLE))
    return root


def write_photos(root: Path, count: int = BATCH * BATCHES) -> Path:
    """Pictures so small that decoding them takes next to nothing, and of one size, so that each is read as long."""
    make_photos(root, count, 2, longer_side=48)
    photos = [path for path in root.rglob("*") if path.is_file()]
    size = max(path.stat().st_size for path in photos)
    for path in photos:
        # What stands behind the end of a picture is read, and never looked at.
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    return root


class Pause:
    """A transform that is known only to Python, and takes so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, image: Any) -> Any:
        """The same image, later."""
        time.sleep(self._seconds)
        return image


def native_loader(
    photos: Path, delays: Delays, workers: int, batch_size: int = BATCH
) -> tuple[sutler.Loader[Any], float]:
    """A loader of ours over pictures, and the megabytes per second that storage is to be held to."""
    steps: list[Any] = [T.Resize((16, 16)), T.ToDtype("float32")]
    if delays.prep:
        steps.append(Pause(delays.prep / 1e3))
    dataset = sutler.ImageFolder(photos, transform=T.Compose(steps))
    size = Path(dataset.samples[0][0]).stat().st_size
    # Worker threads leave the function to the trainer; what worker processes read cannot be held to a rate.
    threads: Any = {"num_workers": workers, "multiprocessing_context": "thread" if workers else None}
    loader: sutler.Loader[Any] = sutler.Loader(dataset, batch_size=batch_size, **threads)
    return loader, size / (delays.fetch / 1e3) / 1e6


def preparation_ms(loader: Any, step: float = 0.0, workers: int = 0) -> float:
    """Milliseconds that a sample really takes a trainer whose step takes so many for each, files being in memory.

    That is the pause, and what the loader itself does around it: before each call of a user's function it saves the
    generators of random numbers, seeds them and puts them back, and behind the last one it makes a batch. After a pause
    a processor has forgotten all of that, so it takes half a millisecond, several times as long as without one.
    """
    for batch in loader:
        del batch
    had = []
    for batch in loader:
        time.sleep(step * BATCH / 1e3)
        had.append(time.perf_counter())
        del batch
    # With the first ones, of each worker one, everything gets going; and after the last one workers end.
    counted = had[max(1, workers) - 1 :]
    return (counted[-1] - counted[0]) / ((len(counted) - 1) * BATCH) * 1e3
