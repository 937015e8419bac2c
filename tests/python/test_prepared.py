"""Of a dataset written in Python a cache keeps what the dataset says is deterministic, and changes no batch."""

from __future__ import annotations

import mmap
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Cache, Loader

COUNT = 60


class Marked(sutler.PreparedDataset):
    """Arrays of 12 kB that are the same every time, made random afterwards; every preparation adds a byte to a file."""

    def __init__(self, calls: Path, count: int = COUNT) -> None:
        self.calls = str(calls)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def note(self) -> None:
        calls = os.open(self.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(calls, b".")
        os.close(calls)

    def prepare(self, index: int) -> Any:
        self.note()
        # What it draws is the same in every epoch, and takes nothing away from what augment draws.
        noise = np.random.random(1000) + random.random()
        return {"pixels": np.full(500, index, dtype=np.float64), "noise": noise, "name": f"sample {index}"}

    def augment(self, prepared: Any) -> Any:
        prepared["noise"] *= random.random()  # in place, which must not reach what is kept
        return prepared["pixels"] + np.random.random(), prepared["noise"], prepared["name"]


class Whole:
    """A dataset whose samples are deterministic as they are."""

    def __len__(self) -> int:
        return COUNT

    @sutler.deterministic
    def __getitem__(self, index: int) -> Any:
        return np.full(300, index), random.random()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


def freeze(value: Any) -> Any:
    """The contents of a batch, to be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return [freeze(part) for part in value] if isinstance(value, list | tuple) else value


def epochs(dataset: Any, count: int = 3, **arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """The batches of some epochs, frozen, and the figures after them."""
    settings: dict[str, Any] = {"num_workers": 2, "output": "numpy", "return_ids": True} | arguments
    with Loader(dataset, 8, True, **settings) as loader:
        return [[freeze(batch) for batch in loader] for _ in range(count)], loader.stats()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["pinned", "lru", "random"])
def test_batches_are_the_same_with_and_without(calls: Path, policy: Any, workers: int) -> None:
    plain, _ = epochs(Marked(calls), num_workers=0)
    for memory in ("8MiB", "300KiB"):
        cached, stats = epochs(Marked(calls), num_workers=workers, cache=Cache(memory, policy=policy))
        assert cached == plain
        assert sum(stats["served"].values()) == stats["samples"] == 3 * COUNT
        assert stats["served"]["decoded"] > 0
        assert stats["cache"]["used_bytes"] <= stats["cache"]["budget_bytes"]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_inherit_nothing_read_the_cache_too(calls: Path, context: str) -> None:
    plain, _ = epochs(Marked(calls), 2, num_workers=0)
    cached, stats = epochs(
        Marked(calls),
        2,
        num_workers=1,
        multiprocessing_context=context,
        cache="8MiB",
        persistent_workers=True,
    )
    assert cached == plain
    assert stats["served"]["decoded"] == COUNT


@pytest.mark.parametrize("workers", [0, 2])
def test_misses_are_those_of_the_pinned_oracle(calls: Path, workers: int) -> None:
    """With a part c of the samples in memory, 1 − c of them are prepared in every epoch but the first."""
    _, stats = epochs(Marked(calls, 400), 6, num_workers=workers, cache="2MiB")
    kept = stats["cache"]["decoded"]["entries"]
    assert 100 < kept < 200
    assert stats["served"]["decoded"] == 5 * kept
    assert stats["served"]["storage"] == calls.stat().st_size == 6 * 400 - 5 * kept


def test_what_is_ready_first_is_still_served_once(calls: Path) -> None:
    with Loader(
        Marked(calls), 8, True, output="numpy", return_ids=True, num_workers=2, order="ready", cache="400KiB"
    ) as loader:
        for _ in range(3):
            ids = sorted(int(index) for *_, batch in loader for index in batch)
            assert ids == list(range(COUNT))


def test_a_resumed_epoch_is_the_same(calls: Path) -> None:
    def rest(cache: str | None) -> list[Any]:
        arguments: Any = {"output": "numpy", "num_workers": 1, "cache": cache}
        with Loader(Marked(calls), 8, True, **arguments) as loader:
            list(loader)
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
        with Loader(Marked(calls), 8, True, **arguments) as loader:
            loader.load_state_dict(state)
            return [freeze(batch) for batch in loader]

    assert rest("400KiB") == rest(None)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_copy_is_made_anew(calls: Path, workers: int) -> None:
    plain, _ = epochs(Marked(calls), 3, num_workers=0)
    calls.unlink()
    with Loader(
        Marked(calls), 8, True, output="numpy", return_ids=True, num_workers=workers, cache="8MiB"
    ) as loader:
        first = [freeze(batch) for batch in loader]
        damage(np.full(500, 17.0).tobytes()[:1000])
        assert [first, *([freeze(batch) for batch in loader] for _ in range(2))] == plain
        stats = loader.stats()
    assert stats["cache"]["corrupt"] == 1
    assert stats["cache"]["decoded"]["entries"] == COUNT
    assert stats["served"]["storage"] == calls.stat().st_size == COUNT + 1


def damage(content: bytes) -> None:
    """Flips a bit of what some cache of this process keeps."""
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        try:
            if "sutler-cache" not in os.readlink(path):
                continue
        except FileNotFoundError:  # the one that listed the others
            continue
        file = os.open(path, os.O_RDWR)
        with mmap.mmap(file, 0) as memory:
            at = memory.find(content)
            if at >= 0:
                memory[at + 10] ^= 4
                os.close(file)
                return
        os.close(file)
    raise AssertionError("no cache has that")


class Dying(Marked):
    """Its worker is killed at a sample, once."""

    def augment(self, prepared: Any) -> Any:
        died = Path(self.calls + "-died")
        if prepared["name"] == "sample 20" and Path(self.calls).stat().st_size > COUNT and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().augment(prepared)


def test_a_killed_worker_holds_nothing(calls: Path) -> None:
    plain, _ = epochs(Marked(calls), 3, num_workers=0)
    calls.write_bytes(b".")  # so that it dies in the second epoch, over what it has from the cache
    cached, stats = epochs(Dying(calls), 3, errors="skip", cache=Cache("8MiB", policy="lru"))
    assert cached == plain
    assert Path(f"{calls}-died").exists()
    assert stats["served"] == {"storage": COUNT, "encoded": 0, "decoded": 2 * COUNT, "augmented": 0}


class Bad(Marked):
    """One sample cannot be prepared, another not be augmented."""

    def prepare(self, index: int) -> Any:
        if index == 3:
            raise ValueError("no such picture")
        return super().prepare(index)

    def augment(self, prepared: Any) -> Any:
        if prepared["name"] == "sample 5":
            raise ValueError("no such angle")
        return super().augment(prepared)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_raises_is_never_kept(calls: Path, workers: int) -> None:
    arguments: Any = {"output": "numpy", "num_workers": workers, "cache": "8MiB"}
    with Loader(Bad(calls), 8, errors="skip", **arguments) as loader:
        for _ in range(2):
            assert sum(len(names) for *_, names in loader) == COUNT - 2
            assert sorted(failure.id for failure in loader.failures()) == [3, 5]
        assert loader.stats()["served"]["decoded"] == COUNT - 2
    with pytest.raises(ValueError, match="no such picture"):
        list(Loader(Bad(calls), 8, **arguments))


class Unpicklable(Marked):
    def prepare(self, index: int) -> Any:
        return lambda: index

    def augment(self, prepared: Any) -> Any:
        return prepared()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_kept_is_refused_in_words(calls: Path, workers: int) -> None:
    arguments: Any = {"num_workers": workers, "output": "numpy"}
    assert len(list(Loader(Unpicklable(calls), 8, **arguments))) == 8
    with pytest.raises(TypeError, match=r"cannot be kept in the cache: .*make the rest in augment\(\)"):
        list(Loader(Unpicklable(calls), 8, **arguments, cache="8MiB"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_deterministic_item_is_kept_whole(workers: int) -> None:
    plain, _ = epochs(Whole(), num_workers=workers)
    cached, stats = epochs(Whole(), num_workers=workers, cache="8MiB")
    assert cached == plain
    assert stats["served"]["decoded"] == 2 * COUNT
    assert cached[0] != cached[1], "shuffled"
    assert sorted(Whole()[0][0]) == [0] * 300, "it is callable as before"


def total(samples: list[Any]) -> float:
    return float(sum(noise.sum() for _, noise, _ in samples)) + random.random()


def test_batches_that_workers_collate_are_the_same(calls: Path) -> None:
    arguments: Any = {"collate_fn": total, "return_ids": False}
    plain, _ = epochs(Marked(calls), num_workers=0, **arguments)
    cached, stats = epochs(Marked(calls), cache="400KiB", **arguments)
    assert cached == plain
    assert stats["served"]["decoded"] == 2 * stats["cache"]["decoded"]["entries"] > 0


def test_single_samples_are_kept_too(calls: Path) -> None:
    with Loader(Marked(calls), None, output="numpy", num_workers=1, cache="8MiB") as loader:
        assert [name for _ in range(2) for *_, name in loader] == [f"sample {at}" for at in range(COUNT)] * 2
        assert loader.stats()["served"]["decoded"] == COUNT


def test_parts_of_marked_datasets_are_marked(calls: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    part = data.Subset(Marked(calls), range(0, COUNT, 2))
    both = data.ConcatDataset([part, Marked(calls, 20)])
    plain, _ = epochs(both, 2, num_workers=0)
    cached, stats = epochs(both, 2, cache="8MiB")
    assert cached == plain
    assert stats["served"]["decoded"] == len(both) == 50
    names = [name for batch in cached[0] for name in batch[2]]
    assert sorted(names) == sorted(
        [f"sample {at}" for at in range(0, COUNT, 2)] + [f"sample {at}" for at in range(20)]
    )
    with pytest.warns(RuntimeWarning, match="has no effect"):
        Loader(data.ConcatDataset([part, data.Subset(list(range(9)), [1])]), cache="8MiB")


def test_samples_with_other_keys_than_numbers_are_served_but_not_kept(calls: Path) -> None:
    drawn: Any = [-1, 3, "x", 3]
    with Loader(Marked(calls), 2, sampler=drawn, output="numpy", num_workers=1, cache="8MiB") as loader:
        with pytest.raises(ValueError, match="could not convert string"):
            list(loader)
        assert loader.stats()["cache"]["decoded"]["entries"] <= 1


def test_images_of_pillow_are_kept(photos: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = sorted(photos.rglob("*.jpg"))

    class Photos(sutler.PreparedDataset):
        def __len__(self) -> int:
            return len(paths)

        def prepare(self, index: int) -> Any:
            return image.open(paths[index]).convert("RGB")

        def augment(self, prepared: Any) -> Any:
            return np.asarray(prepared.rotate(random.random() * 90).resize((16, 16)))

    context = {"multiprocessing_context": "fork", "return_ids": False}
    plain, _ = epochs(Photos(), 2, **context)
    cached, stats = epochs(Photos(), 2, cache="64MiB", **context)
    assert cached == plain
    assert stats["served"]["decoded"] == len(paths)


def test_a_forked_child_has_a_cache_of_its_own(calls: Path) -> None:
    with Loader(Marked(calls), 8, output="numpy", cache="8MiB") as loader:
        expected = [freeze(batch) for batch in loader]
        loader.set_epoch(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that forking with threads is risky
            child = os.fork()
        if child == 0:
            status = 1
            try:
                assert [freeze(batch) for batch in loader] == expected
                assert loader.stats()["cache"]["decoded"]["entries"] == COUNT
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert calls.stat().st_size == 2 * COUNT
        assert [freeze(batch) for batch in loader] == expected
        assert calls.stat().st_size == 2 * COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_figures_stay_after_closing_and_memory_goes(calls: Path, workers: int) -> None:
    before = len(caches())
    loader = Loader(Marked(calls), 8, output="numpy", num_workers=workers, cache="8MiB")
    assert len(caches()) == before + 1
    list(loader)
    stats = loader.stats()["cache"]
    assert stats["decoded"]["entries"] == COUNT
    loader.close()
    assert loader.stats()["cache"] == stats
    assert len(caches()) == before


def caches() -> list[str]:
    """The memory of the caches that this process has."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return [link for link in links if "sutler-cache" in link]


class Plain:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Overriding(Marked):
    def __getitem__(self, index: int) -> Any:
        return index


class Many(Marked):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Endless(Whole):
    __len__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: Plain(), r"test_prepared\.Plain does not say which part"),
        (Overriding, r"Overriding has a __getitem__ of its own"),
        (Many, r"Many has a __getitems__"),
    ],
)
def test_a_cache_without_effect_says_so_once(calls: Path, make: Callable[[Path], Any], reason: str) -> None:
    with pytest.warns(RuntimeWarning, match=reason) as said:
        loader = Loader(make(calls), 2, output="numpy", cache="8MiB")
    assert len(list(loader)) == len(loader)
    (warning,) = said
    assert "cache has no effect" in str(warning.message)
    assert "Derive the dataset from sutler.PreparedDataset" in str(warning.message)
    assert warning.filename == __file__
    assert loader.stats()["cache"] is None
    assert loader.stats()["served"]["storage"] == loader.stats()["samples"]


def test_a_cache_that_makes_no_sense_is_refused(calls: Path) -> None:
    with pytest.raises(
        ValueError, match=r"test_prepared\.Stream, which is a stream, have none\. Leave cache out"
    ):
        Loader(Stream(), cache="8MiB")
    with pytest.raises(ValueError, match=r"'58-42-0' shares the memory out .* Leave split out"):
        Loader(Marked(calls), cache=Cache("8MiB", "58-42-0"))
    with pytest.raises(ValueError, match="Endless has no __len__"):
        Loader(Endless(), sampler=[1, 2], cache="8MiB")
    with pytest.raises(ValueError, match=r"asks for 900\.0 TiB, which is more than"):
        Loader(Marked(calls), cache="900TiB")
    with pytest.raises(ValueError, match="has no room for samples"):
        Loader(Marked(calls), cache=100)
    with pytest.raises(TypeError, match="deterministic marks a method"):
        sutler.deterministic(3)  # type: ignore[type-var]


def test_what_is_not_written_is_asked_for() -> None:
    class Nothing(sutler.PreparedDataset):
        def __len__(self) -> int:
            return 1

    with pytest.raises(NotImplementedError, match=r"Nothing should have a method prepare\(self, index\)"):
        Nothing()[0]


class Still(Marked):
    """Draws nothing: threads have generators of their own."""

    def prepare(self, index: int) -> Any:
        self.note()
        return np.full(500, index)

    def augment(self, prepared: Any) -> Any:
        prepared += 1
        return prepared


def test_worker_threads_keep_and_recall_as_well(calls: Path) -> None:
    plain, _ = epochs(Still(calls), num_workers=0)
    calls.unlink()
    cached, stats = epochs(Still(calls), multiprocessing_context="thread", cache="8MiB")
    assert cached == plain
    assert stats["served"]["decoded"] == 2 * COUNT
    assert stats["cache"]["decoded"]["entries"] == calls.stat().st_size == COUNT


def test_what_is_kept_stays_when_the_number_of_workers_changes(calls: Path) -> None:
    with Loader(Still(calls), 8, output="numpy", num_workers=1, cache="8MiB") as loader:
        list(loader)
        loader.num_workers = 2
        list(loader)
        assert calls.stat().st_size == COUNT
