"""The trainer's time: its parts add up on every path, and delays of known length are found where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

from tests.python.agent.serving import Agent
from tests.python.analysis.quiet import skip_if_busy

#: A machine with other things to do may take the processor away between our look at the clock and the loader's; what is
#: wrong in the book is wrong every time.
ATTEMPTS = 8

WAITS = ("fetch", "prep", "transport")


class Slow:
    """A dataset whose samples take a while."""

    def __init__(self, seconds: float, count: int = 48) -> None:
        self.seconds = seconds
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return np.full(4, index)


class SlowStream:
    """A stream whose samples take a while; each worker has its share."""

    def __init__(self, seconds: float, count: int = 48) -> None:
        self.seconds = seconds
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        info = sutler.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.count, step):
            time.sleep(self.seconds)
            yield np.full(4, index)


@dataclass
class Epoch:
    """One epoch as the trainer saw it, and what the loader says of it."""

    wall: float
    trained: float
    stats: dict[str, Any]

    @property
    def shares(self) -> dict[str, float]:
        return {cause: seconds / self.wall for cause, seconds in self.stats["stalls"].items()}


def run(loader: Loader, step: float) -> Epoch:
    """Goes through an epoch, from asking for an iterator to its end."""
    began = time.perf_counter()
    iterator = iter(loader)
    trained = 0.0
    while True:
        if next(iterator, None) is None:
            break
        had = time.perf_counter()
        time.sleep(step)
        trained += time.perf_counter() - had
    wall = time.perf_counter() - began
    stats = loader.stats()
    loader.close()
    assert loader.stats()["stalls"] == stats["stalls"], "the last figures stay"
    return Epoch(wall, trained, stats)


def missing(epoch: Epoch) -> float:
    """Which part of the wall time is in no part of the book, or in too many."""
    counted: float = sum(epoch.stats["stalls"].values())
    return abs(counted - epoch.wall) / epoch.wall


#: Worker threads leave the functions behind native transforms to the trainer.
IN_TRAINER: dict[str, Any] = {"multiprocessing_context": "thread"}


def native(photos: Path, **more: Any) -> Loader:
    # What is cropped away is not blurred, so there is no crop.
    transform = T.Compose([T.Resize((240, 240)), T.GaussianBlur(9)])
    return Loader(sutler.ImageFolder(photos, transform), 8, **{"output": "numpy", **more})


def lambdas(photos: Path, **more: Any) -> Loader:
    transform = T.Compose([T.CenterCrop(16), T.Lambda(_nap)])
    return Loader(sutler.ImageFolder(photos, transform), 8, output="numpy", **{"num_workers": 1, **more})


def _nap(image: Any) -> Any:
    time.sleep(0.005)
    return image


PATHS: dict[str, Callable[[Path, Path], Loader]] = {
    "native threads": lambda photos, _: native(photos, num_workers=2),
    "native, no threads": lambda photos, _: native(photos, num_workers=0),
    "as they get ready": lambda photos, _: native(photos, num_workers=2, order="ready"),
    "a function in the trainer's process": lambda photos, _: lambdas(photos, **IN_TRAINER),
    "a function in worker processes": lambda photos, _: lambdas(photos, num_workers=2),
    "worker processes": lambda *_: Loader(Slow(0.02), 8, output="numpy", num_workers=2),
    "worker processes that collate": lambda *_: Loader(
        Slow(0.02), 8, output="numpy", num_workers=2, collate_fn=np.stack
    ),
    "no workers": lambda *_: Loader(Slow(0.01), 8, output="numpy", num_workers=0),
    "a stream": lambda *_: Loader(SlowStream(0.02), 8, output="numpy", num_workers=2),
    "a stream without workers": lambda *_: Loader(SlowStream(0.01), 8, output="numpy", num_workers=0),
    "a device": lambda photos, _: native(photos, num_workers=2, output="torch", device="cpu"),
    "a stream to a device": lambda *_: Loader(SlowStream(0.02), 8, num_workers=2, device="cpu"),
    "an agent": lambda photos, socket: native(photos, agent=socket),
}


@pytest.mark.parametrize("path", PATHS)
def test_the_parts_add_up_to_the_wall_time(path: str, photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock") if path == "an agent" else None
    try:
        seen = []
        for _ in range(ATTEMPTS):
            epoch = run(PATHS[path](photos, tmp_path / "agent.sock"), 0.1)
            stats = epoch.stats
            assert stats["seconds"] == pytest.approx(sum(stats["stalls"].values()), rel=1e-6)
            waited = sum(stats["stalls"][cause] for cause in WAITS)
            assert stats["wait_seconds"] == pytest.approx(waited, rel=1e-6)
            assert sum(stats["ready"]) == stats["batches"]
            seen.append(missing(epoch))
            if seen[-1] <= 0.01:
                return
        pytest.fail(f"missing or counted twice: {[f'{each:.2%}' for each in seen]}")
    finally:
        if agent is not None:
            agent.stop()


@dataclass
class Injected:
    """Delays of a pipeline, in seconds, and what its loader does otherwise."""

    name: str
    #: Reading a sample, by the rate of a storage that serves one after the other.
    fetch: float = 0.0
    #: A function of the user's that runs in the trainer's process, for each sample.
    tail: float = 0.0
    #: A worker process over a sample.
    worker: float = 0.0
    #: Native transforms that take a few milliseconds for each sample.
    blur: bool = False
    #: A step of the trainer.
    step: float = 0.0
    batch: int = 4
    workers: int = 1


SETTINGS = [
    Injected("storage", fetch=0.010),
    Injected("storage and the trainer", fetch=0.010, step=0.020),
    Injected("the trainer", fetch=0.002, step=0.040),
    Injected("a function", tail=0.010),
    Injected("a function and the trainer", tail=0.006, step=0.024),
    Injected("storage and a function", fetch=0.030, tail=0.015),
    Injected("storage, a function and the trainer", fetch=0.032, tail=0.010, step=0.032),
    Injected("storage on two threads, and a function", fetch=0.030, tail=0.012, workers=2),
    Injected("native transforms", blur=True),
    Injected("native transforms and the trainer", blur=True, step=0.020),
    Injected("native transforms and a function", blur=True, tail=0.002),
    Injected("worker processes", worker=0.016, workers=2),
    Injected("worker processes and the trainer", worker=0.020, step=0.030, workers=2),
]


class Spent:
    """A function that takes so long and adds up how long it really took."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent = 0.0

    def __call__(self, image: Any) -> Any:
        began = time.perf_counter()
        # Busy for the first half, as a transform is, and asleep for the other, as whoever waits for one is.
        while time.perf_counter() - began < self.seconds / 2:
            pass
        time.sleep(self.seconds / 2)
        self.spent += time.perf_counter() - began
        return image


def injected(setting: Injected, folder: Path, tail: Spent) -> Loader:
    if setting.worker:
        return Loader(Slow(setting.worker, 40), setting.batch, num_workers=setting.workers, output="numpy")
    transforms = [T.Resize((900, 900)), T.GaussianBlur(9)] if setting.blur else [T.CenterCrop(8)]
    functions = [T.Lambda(tail)] if setting.tail else []
    dataset = sutler.ImageFolder(folder, T.Compose([*transforms, *functions]))
    if setting.fetch:
        size = sum(Path(path).stat().st_size for path, _ in dataset.samples)
        dataset = sutler.testing.throttled(dataset, size / (setting.fetch * len(dataset)))
    return Loader(dataset, setting.batch, num_workers=setting.workers, output="numpy", **IN_TRAINER)


def shares_and_truth(setting: Injected, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """What the loader says of an epoch, and what was spent on what by other clocks than the loader's."""
    calling = 0.0
    if setting.fetch and setting.tail:
        # Calling a function takes a while for each sample, too, and that is no storage's fault: what an epoch from
        # quick storage takes beyond the function itself, and beyond an epoch without it.
        alone = Spent(setting.tail)
        with_function = run(injected(replace(setting, fetch=0.0), folder, alone), 0.0).wall
        without = run(injected(replace(setting, fetch=0.0, tail=0.0), folder, alone), 0.0).wall
        calling = max(0.0, with_function - alone.spent - without)
    tail = Spent(setting.tail)
    epoch = run(injected(setting, folder, tail), setting.step)
    rest = epoch.wall - epoch.trained - tail.spent - calling
    truth = {"trainer": epoch.trained, "prep": tail.spent + calling, "fetch": 0.0, "transport": 0.0}
    # Of what only the engine or its workers can do there is one thing in each setting; the engine's own tests have two.
    truth["fetch" if setting.fetch else "prep"] += rest
    return epoch.shares, {cause: seconds / epoch.wall for cause, seconds in truth.items()}


@pytest.fixture(scope="module")
def equal_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures so small that decoding them takes no time to speak of."""
    folder = tmp_path_factory.mktemp("small")
    sutler.testing.make_photos(folder, 40, 2, longer_side=24)
    shares_and_truth(Injected("what is imported at the first use", tail=0.001), folder)
    return folder


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_injected_delays_are_found_where_they_are(setting: Injected, equal_photos: Path) -> None:
    seen = []
    for _ in range(ATTEMPTS):
        told, truth = shares_and_truth(setting, equal_photos)
        if setting.blur:
            # A thread that blurs may keep the trainer's from the processor for a while after the batch is ready. That
            # is transport, and true, but how long it takes is for the machine to say.
            told["prep"] += told["transport"]
            told["transport"] = 0.0
        points = {cause: 100 * (told[cause] - truth[cause]) for cause in truth}
        if all(abs(off) <= 3.0 for off in points.values()):
            return
        seen.append({cause: f"{100 * told[cause]:.1f} ({off:+.1f})" for cause, off in points.items()})
    skip_if_busy()
    pytest.fail(f"shares in percent, and how far they are off: {seen}")


def test_an_agent_waits_for_what_it_prepares(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    try:
        seen = []
        for _ in range(ATTEMPTS):
            epoch = run(native(photos, agent=tmp_path / "agent.sock"), 0.0)
            shares = epoch.shares
            # The first batch waits for the agent to list the folder, which is nobody's preparation.
            truth = epoch.trained / epoch.wall
            seen.append(shares)
            if (
                abs(shares["trainer"] - truth) < 0.03
                and shares["prep"] > 0.8 * (1 - truth)
                and shares["fetch"] < 0.05
            ):
                return
        pytest.fail(f"{seen}")
    finally:
        agent.stop()


def test_what_is_ready_is_counted(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 4, num_workers=2, output="numpy", prefetch_factor=3)
    for _ in loader:
        time.sleep(0.05)
    ready = loader.stats()["ready"]
    assert sum(ready) == len(loader)
    # The last ones have fewer behind them; in between the trainer finds all that there is room for.
    assert sum(ready[2:]) >= 0.6 * len(loader), ready


def test_workers_have_their_own_times(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 4, num_workers=2, output="numpy")
    list(loader)
    times = loader.stats()["worker_times"]
    assert 1 <= len(times) <= 2
    assert sum(each["samples"] for each in times) == len(augmented)
    stages = loader.stats()["stages"]
    spent = sum(each["fetch"] + each["prep"] for each in times)
    assert spent == pytest.approx(sum(stage["mean"] * stage["count"] for stage in stages.values()), rel=0.05)
    for stage in stages.values():
        assert stage["p50"] <= stage["p95"] <= stage["p99"]


def test_the_timeline_is_the_sums_one_by_one(photos: Path) -> None:
    loader = native(photos, num_workers=2)
    for _ in range(2):
        for _ in loader:
            time.sleep(0.005)
    stats, timeline = loader.stats(), loader.timeline()
    assert [each["batch"] for each in timeline["batches"]] == [*range(len(loader))] * 2
    # What an epoch takes to begin and to end is waited for, and belongs to no batch.
    outside = {"prep": loader._beginning_seconds}
    for cause in WAITS:
        assert sum(each[cause] for each in timeline["batches"]) == pytest.approx(
            stats["stalls"][cause] - outside.get(cause, 0.0), abs=1e-6
        )
    for each in timeline["batches"]:
        assert each["requested"] <= each["answered"]
        assert sum(each[cause] for cause in WAITS) == pytest.approx(
            each["answered"] - each["requested"], abs=1e-6
        )
    assert len(timeline["samples"]) == stats["samples"]
    assert set(timeline["quantiles"]) == {"fetch", "decode", "augment"}
    assert abs(time.time() - timeline["began"] - timeline["batches"][-1]["answered"]) < 60
    loader.close()
    assert loader.timeline()["batches"] == timeline["batches"]


def test_a_loader_that_has_done_nothing_has_an_empty_timeline(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 4, output="numpy")
    assert loader.timeline() == {"began": 0.0, "batches": [], "samples": [], "quantiles": {}}
