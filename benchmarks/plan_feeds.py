"""What is measured for the planner: set-ups, and feeds that serve samples under one split of a set-up's memory."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: Faster than anything: so that caches are filled without waiting for the storage that is emulated.
UNTHROTTLED = 1e12

#: The window of jobs that share, as a part of the dataset; it comes on top of the memory that is split.
WINDOW = 0.05

#: How fast storage delivers, as a part of what the threads prepare from encoded copies. Half of it is where storage and
#: processors come into each other's way.
STORAGE = {"fast": None, "medium": 0.5, "slow": 0.15}


@dataclass(frozen=True)
class SetUp:
    """One question to the planner."""

    pipeline: str
    #: A key of :data:`STORAGE`; ``fast`` is the storage as it is.
    storage: str
    #: The budget as a part of what all decoded samples would take.
    memory_share: float
    #: One thread, or all of them.
    single: bool = False
    #: What the accelerators ingest, as a part of what the threads prepare from encoded copies; ``None`` for no limit.
    device: float | None = None
    jobs: int = 1


#: Storage fast to slow, memory small to large, one thread and all, with and without a step, one job and two.
SET_UPS = (
    SetUp("train", "fast", 0.1),
    SetUp("train", "fast", 0.6),
    SetUp("train", "medium", 0.3),
    SetUp("train", "slow", 0.1),
    SetUp("train", "slow", 0.6),
    SetUp("eval", "fast", 0.3),
    SetUp("eval", "medium", 0.6),
    SetUp("eval", "slow", 0.3),
    SetUp("train", "fast", 0.3, single=True),
    SetUp("train", "slow", 0.3, single=True),
    SetUp("eval", "medium", 0.3, single=True),
    SetUp("train", "slow", 0.3, device=0.4),
    SetUp("eval", "fast", 0.6, device=1.5),
    SetUp("train", "fast", 0.3, jobs=2),
    SetUp("train", "slow", 0.3, jobs=2),
    SetUp("eval", "medium", 0.6, jobs=2),
)


@dataclass(frozen=True)
class Scene:
    """A set-up on this machine: what all its feeds have in common."""

    dataset: Any
    threads: int
    batch_size: int
    memory: int
    jobs: int
    #: How long the consumer of a batch takes for it, in seconds.
    step: float
    #: Bytes per second; ``None`` for the storage as it is.
    storage_rate: float | None

    def slow_down(self) -> None:
        """From now on storage is what the set-up says."""
        from sutler.testing import set_rate

        if self.storage_rate is not None:
            set_rate(self.dataset, self.storage_rate)

    def speed_up(self) -> None:
        """While caches are filled nobody waits for storage."""
        from sutler.testing import set_rate

        if self.storage_rate is not None:
            set_rate(self.dataset, UNTHROTTLED)


def open_dataset(root: Path, pipeline: str, size: int, io: Literal["direct", "buffered"] = "direct") -> Any:
    """The photos with a usual chain of transforms; by default read past the page cache."""
    import sutler
    from sutler import transforms as T  # noqa: N812 - as users write it

    operations: list[Any] = (
        [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]
        if pipeline == "train"
        else [T.Resize(size * 8 // 7), T.CenterCrop(size)]
    )
    transform = T.Compose([*operations, T.Normalize(MEAN, STD)])
    return sutler.ImageFolder(root, transform=transform, io=io)


class Feed(ABC):
    """Something that serves epochs."""

    @abstractmethod
    def epoch(self) -> int:
        """Serves one to every job and returns how many samples that were."""

    @abstractmethod
    def close(self) -> None:
        """Ends its threads and frees its memory."""

    def rate(self, seconds: float) -> float:
        """Samples per second over whole epochs, at least one and as many as fit the time."""
        samples, started, took = 0, time.perf_counter(), 0.0
        while not samples or took < seconds:
            samples += self.epoch()
            took = time.perf_counter() - started
        return samples / took


class LoaderFeed(Feed):
    """One job: a loader as users make it."""

    def __init__(self, scene: Scene, split: str | None) -> None:
        import sutler

        self._step = scene.step
        self._loader = sutler.Loader(
            scene.dataset,
            scene.batch_size,
            shuffle=True,
            num_workers=scene.threads,
            output="numpy",
            cache=None if split is None else sutler.Cache(scene.memory, split),
        )

    def epoch(self) -> int:
        samples = 0
        for _, labels in self._loader:
            samples += len(labels)
            if self._step:
                time.sleep(self._step)
        return samples

    def close(self) -> None:
        self._loader.close()


class JobsFeed(Feed):
    """Several jobs that share a window, a cache and the threads of one engine, as those of an agent do."""

    def __init__(self, scene: Scene, split: str | None) -> None:
        from sutler import _sutler

        native, pipeline = scene.dataset._native, scene.dataset._pipeline
        self._scene = scene
        self._engine = _sutler.Engine(scene.threads)
        cache = None
        if split is not None:
            encoded, decoded, _ = (int(share) for share in split.split("-"))
            cache = _sutler.Cache(
                len(native),
                budget_bytes=scene.memory,
                encoded_percent=encoded,
                decoded_percent=decoded,
                policy="pinned",
                seed=0,
                any_split=False,
            )
        row_bytes = scene.dataset[0][0].nbytes
        self._jobs: list[_sutler.Job] = []
        for _ in range(scene.jobs):
            self._jobs.append(
                _sutler.Job(
                    native,
                    pipeline,
                    seed=0,
                    channels_last=False,
                    batch_size=scene.batch_size,
                    batches_ahead=max(2, -(-2 * scene.threads // scene.batch_size)),
                    ahead_grows=False,
                    batches_held=2,
                    in_step=False,
                    errors="raise",
                    lateness=8,
                    shared=True,
                    cache=cache,
                    window_bytes=int(WINDOW * len(scene.dataset) * row_bytes),
                    shares_with=self._jobs[0] if self._jobs else None,
                )
            )
        self._epochs = 0

    def epoch(self) -> int:
        runs = [
            self._engine.start(
                job,
                epoch=self._epochs,
                consumed=0,
                shuffle=True,
                seed=0,
                batch_size=self._scene.batch_size,
                drop_last=False,
                rank=0,
                world_size=1,
            )
            for job in self._jobs
        ]
        samples = [0] * len(runs)

        def train(number: int) -> None:
            while (batch := runs[number].next()) is not None:
                samples[number] += len(batch)
                if self._scene.step:
                    time.sleep(self._scene.step)

        trainers = [threading.Thread(target=train, args=(number,)) for number in range(len(runs))]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
        self._epochs += 1
        if sum(samples) != len(self._jobs) * len(self._scene.dataset):
            raise RuntimeError(f"the jobs were served {samples} samples of {len(self._scene.dataset)} each")
        return sum(samples)

    def close(self) -> None:
        self._engine.close()


def open_feed(scene: Scene, split: str | None) -> Feed:
    """A feed whose cache is full."""
    feed = LoaderFeed(scene, split) if scene.jobs == 1 else JobsFeed(scene, split)
    feed.epoch()
    return feed
