"""Datasets with `__getitem__` in worker threads."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import sutler
import torch
from sutler import _threads
from sutler._thread_worker import ThreadWorker

from .conftest import worker_threads

Run = Callable[..., "subprocess.CompletedProcess[str]"]

BOTH = pytest.mark.parametrize("context", ["thread", "fork"])


class Squares:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index, dtype=np.float32), index * index


class Named(NamedTuple):
    image: torch.Tensor
    label: int


class Nested(Squares):
    def __getitem__(self, index: int) -> Any:
        named = Named(torch.full((2, 2), index, dtype=torch.int16), index)
        ragged = "x" * index
        return {"named": named, "text": ragged, "pair": (float(index), np.float64(index)), "flag": index > 3}


def make(dataset: Any, **options: Any) -> sutler.Loader:
    given: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "thread"} | options
    return sutler.Loader(dataset, **given)


def plain(value: Any) -> Any:
    """A batch in values that can be compared."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__, str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value).__name__, [plain(item) for item in value]
    return value


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"sampler": [3, 5, 3, 1]},
        {"batch_sampler": [[1, 2], [3, 4, 5, 6, 7], [0]]},
        {"return_ids": True, "shuffle": True},
        {"collate_fn": lambda samples: samples, "shuffle": True},
        {"order": "ready", "batch_size": 1},
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("kind", [Squares, Nested])
def test_batches_are_those_of_worker_processes(kind: type[Any], options: dict[str, Any]) -> None:
    if "batch_sampler" in options:
        options = {"batch_size": 1} | options
    epochs = {}
    for context in ("thread", "fork"):
        with make(kind(), multiprocessing_context=context, **options) as loader:
            epochs[context] = [plain(batch) for _ in range(2) for batch in loader]
    if options.get("order") == "ready":  # who is ready first is a matter of time
        epochs = {context: sorted(map(repr, batches)) for context, batches in epochs.items()}
    assert epochs["thread"] == epochs["fork"]


def test_every_worker_is_a_thread_of_its_own_that_knows_itself() -> None:
    told: list[tuple[int, int]] = []
    meet = threading.Barrier(2, timeout=20)

    class Asking(Squares):
        def __getitem__(self, index: int) -> Any:
            if index < 2:
                meet.wait()  # so that both are at work at the same time
            ours: Any = sutler.get_worker_info()
            torchs: Any = torch.utils.data.get_worker_info()
            assert torchs is not None
            assert (ours.id, ours.num_workers, ours.seed, ours.worker_method) == (
                torchs.id,
                torchs.num_workers,
                torchs.seed,
                "thread",
            )
            assert ours.dataset is torchs.dataset is dataset
            assert ours.rng.random_generator is not random
            return ours.id, threading.get_ident()

    def initialise(worker: int) -> None:
        told.append((worker, threading.get_ident()))

    dataset = Asking()
    with make(dataset, worker_init_fn=initialise, batch_size=1) as loader:
        seen = set()
        for worker, thread in loader:
            seen.add((int(worker), int(thread)))
            assert sutler.get_worker_info() is None
            assert torch.utils.data.get_worker_info() is None
    assert seen == set(told)
    assert {worker for worker, _ in told} == {0, 1}
    assert len({thread for _, thread in told} | {threading.get_ident()}) == 3


@pytest.mark.skipif(
    getattr(sys, "_is_gil_enabled", lambda: True)(), reason="one thread at a time has the interpreter lock"
)
def test_threads_run_python_at_the_same_time() -> None:
    turn = [0]
    interval = sys.getswitchinterval()

    class PingPong(Squares):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            # Nobody lets go of anything while waiting, so with a lock the other would have its turn once a minute.
            for _ in range(200):
                while turn[0] != index:
                    pass
                turn[0] = 1 - index
            return index

    try:
        sys.setswitchinterval(60)
        with make(PingPong(), batch_size=2, multiprocessing_context=None, timeout=60) as loader:
            assert [batch.tolist() for batch in loader] == [[0, 1]]
    finally:
        sys.setswitchinterval(interval)


def test_nothing_is_pickled() -> None:
    class Unpicklable:
        def __init__(self, index: int) -> None:
            self.index, self.lock = index, threading.Lock()

    made: dict[int, Unpicklable] = {}

    class Locked(Squares):
        lock = threading.Lock()

        def __getitem__(self, index: int) -> Any:
            with self.lock:
                return made.setdefault(index, Unpicklable(index))

    with make(Locked(), collate_fn=lambda samples: samples) as loader:
        batches = list(loader)
    assert all(found is made[found.index] for batch in batches for found in batch)
    assert len(batches) == 5


def test_arrays_go_straight_into_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    leave = ThreadWorker._leave

    def noted(self: ThreadWorker, value: Any) -> tuple[int, int]:
        left.append(value)
        return leave(self, value)

    monkeypatch.setattr(ThreadWorker, "_leave", noted)
    with make(Squares(), persistent_workers=True) as loader:
        list(loader)
        left.clear()
        batches = list(loader)  # the layout is known since the first epoch
    assert left == []
    assert [labels.tolist() for _, labels in batches][1] == [16, 25, 36, 49]


def numpy_state() -> Any:
    state: Any = np.random.get_state()
    return state[1].tolist()


def test_the_trainers_own_random_numbers_are_left_alone() -> None:
    with make(Squares(), seed=3) as loader:
        iterator = iter(loader)
        next(iterator)
        before = random.getstate(), numpy_state(), torch.default_generator.get_state()
        list(iterator)
    assert random.getstate() == before[0]
    assert numpy_state() == before[1]
    assert torch.equal(torch.default_generator.get_state(), before[2])


class Drawing(Squares):
    def __getitem__(self, index: int) -> Any:
        rng = sutler.get_worker_info().rng
        from_torch = torch.rand((), generator=rng.torch_generator, dtype=torch.float64)
        return index, rng.random_generator.random(), rng.numpy_generator.random(), from_torch


def test_a_workers_own_generators_depend_on_neither_workers_nor_their_kind() -> None:
    def drawn(**options: Any) -> dict[int, tuple[float, ...]]:
        with make(Drawing(), shuffle=True, seed=5, **options) as loader:
            rows = [zip(*batch, strict=True) for batch in loader]
        return {int(index): tuple(map(float, values)) for row in rows for index, *values in row}

    expected = drawn(num_workers=1)
    assert len({value for values in expected.values() for value in values}) == 60
    assert drawn(num_workers=2) == drawn(num_workers=2, multiprocessing_context="fork") == expected


def test_a_generator_that_a_dataset_keeps_starts_anew_for_every_sample() -> None:
    class Keeping(Drawing):
        kept = threading.local()

        def __getitem__(self, index: int) -> Any:
            if not hasattr(self.kept, "numpy"):
                rng = sutler.get_worker_info().rng
                self.kept.python, self.kept.numpy = rng.random_generator, rng.numpy_generator
            return index, self.kept.python.random(), self.kept.numpy.random()

    def drawn(dataset: Any, workers: int) -> list[list[float]]:
        with make(dataset, num_workers=workers) as loader:
            return [value.tolist() for batch in loader for value in batch[1:3]]

    assert drawn(Keeping(), 2) == drawn(Drawing(), 1)


def test_exceptions_keep_their_type_message_and_traceback() -> None:
    class LocalError(Exception):
        pass

    class Bad(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise LocalError("no sample 5")
            return super().__getitem__(index)

    with make(Bad()) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(LocalError) as caught:
            next(iterator)
        text = str(caught.value)
        assert "Caught LocalError in DataLoader worker thread" in text
        assert 'raise LocalError("no sample 5")' in text
        assert len(list(iterator)) == 3  # as PyTorch's iterators go on


def test_errors_says_what_a_sample_that_raises_does() -> None:
    class Bad(Squares):
        def __getitem__(self, index: int) -> Any:
            if 4 <= index < 8 or index == 13:
                raise ValueError(f"no sample {index}")
            return super().__getitem__(index)

    with make(Bad(), errors="skip", return_ids=True) as loader:
        ids = [batch[-1].tolist() for batch in loader]
        failures = loader.failures()
    assert ids == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 14, 15], [16, 17, 18, 19]]
    assert [failure.id for failure in failures] == [4, 5, 6, 7, 13]
    assert failures[0].reason == "ValueError: no sample 4"
    with make(Bad(), errors=sutler.Errors(max=4)) as loader, pytest.raises(sutler.ErrorBudgetExceeded):
        list(loader)


@BOTH
def test_what_a_collate_fn_raises_is_raised(context: str) -> None:
    def collate(samples: Any) -> Any:
        raise KeyError("colour")

    with (
        make(Squares(), collate_fn=collate, multiprocessing_context=context) as loader,
        pytest.raises(KeyError, match="colour"),
    ):
        next(iter(loader))


def test_what_worker_init_fn_raises_is_raised() -> None:
    def initialise(worker: int) -> None:
        raise PermissionError("not today")

    with (
        make(Squares(), worker_init_fn=initialise) as loader,
        pytest.raises(PermissionError, match="not today"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_sample_that_ends_its_worker_is_named(errors: Any) -> None:
    class Leaving(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                sys.exit(3)
            return super().__getitem__(index)

    with make(Leaving(), errors=errors, return_ids=True) as loader:
        if errors == "raise":
            with pytest.raises(sutler.WorkerError, match=r"ended by SystemExit: 3") as caught:
                list(loader)
            assert caught.value.sample == 7
        else:
            assert sorted(i for *_, ids in loader for i in ids.tolist()) == [i for i in range(20) if i != 7]
            (failure,) = loader.failures()
            assert (failure.id, failure.kind) == (7, "worker_lost")


class Stuck(Squares):
    """Its sample 2 takes until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.reached = threading.Event()

    def __getitem__(self, index: int) -> Any:
        if index == 2 and not self.go.is_set():
            self.reached.set()
            assert self.go.wait(30)
            return np.full(3, -1, dtype=np.float32), -1
        return super().__getitem__(index)


def test_a_timeout_names_the_sample() -> None:
    dataset = Stuck()
    with make(dataset, timeout=3) as loader:
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match=r"timed out after 3 seconds; worker thread \d is at index 2$"):
            next(iterator)
        dataset.go.set()
        assert len(list(iterator)) == 5  # the next request waits for the same batch


def _wait_in_another_thread(iterator: Any) -> None:
    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # the loader is closed meanwhile
            next(iterator, None)

    threading.Thread(target=wait, daemon=True).start()


def test_closing_says_so_when_a_thread_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "END_SECONDS", 0.1)
    dataset = Stuck()
    loader = make(dataset)
    iterator = iter(loader)
    _wait_in_another_thread(iterator)
    assert dataset.reached.wait(20)
    with pytest.warns(RuntimeWarning, match=r"worker thread \d is at index 2 and has not ended"):
        loader.close()
    dataset.go.set()


def test_a_thread_that_was_stuck_writes_to_nobodys_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "END_SECONDS", 0.1)
    dataset = Stuck()
    dataset.go.set()
    with make(dataset) as loader:
        list(loader)  # from now on there is a layout, and rows are written to straight away
        dataset.go.clear()
        iterator = iter(loader)
        _wait_in_another_thread(iterator)
        assert dataset.reached.wait(20)
        stuck = worker_threads()
        with pytest.warns(RuntimeWarning, match="has not ended"):
            iterator.close()  # type: ignore[attr-defined]
        stuck = [thread for thread in stuck if thread.is_alive()]
        assert len(stuck) == 1
        late = dataset.go
        dataset.go = threading.Event()
        dataset.go.set()
        batches = list(loader)  # in the same memory
        late.set()
        stuck[0].join(10)
        assert not stuck[0].is_alive()
        assert [labels.tolist() for _, labels in batches] == [
            [n * n for n in range(first, first + 4)] for first in range(0, 20, 4)
        ]
        assert all((images[:, 0] ** 2 == labels).all() for images, labels in batches)


def test_a_stuck_thread_does_not_keep_the_process(run_script: Run) -> None:
    started = time.monotonic()
    done = run_script(
        """
import threading, time
import sutler
from sutler import _threads

reached = threading.Event()

class Slow:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            reached.set()
            time.sleep(600)
        return index

_threads.END_SECONDS = 0.2
loader = sutler.Loader(Slow(), num_workers=1, output="numpy", multiprocessing_context="thread")
iterator = iter(loader)
next(iterator)
assert reached.wait(20)
"""
    )
    assert "worker thread 0 is at index 2" in done.stderr
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("persistent", [False, True])
def test_threads_stay_between_epochs_where_they_are_to(persistent: bool) -> None:
    class Whose(Squares):
        def __getitem__(self, index: int) -> Any:
            return id(threading.current_thread())

    kept: list[Any] = []  # so that no later thread has an earlier one's number
    with make(
        Whose(),
        persistent_workers=persistent,
        worker_init_fn=lambda _: kept.append(threading.current_thread()),
    ) as loader:
        epochs = [{int(each) for batch in loader for each in batch} for _ in range(2)]
        assert len(worker_threads()) == (2 if persistent else 0)
    assert len(kept) == (2 if persistent else 4)
    assert bool(epochs[0] & epochs[1]) == persistent


def test_an_epoch_leaves_no_open_files() -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    loader = sutler.Loader(range(12), batch_size=3, num_workers=2, multiprocessing_context="thread")
    assert len(list(loader)) == 4
    before = open_files()
    for _ in range(5):
        assert len(list(loader)) == 4
    assert open_files() == before


def test_a_dropped_loader_ends_its_threads() -> None:
    loader = make(Squares(), persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    assert len(worker_threads()) == 2
    del loader, iterator  # the fixture looks


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_resume_from_every_batch_delivers_the_exact_rest(order: Any) -> None:
    options = {"shuffle": True, "order": order, "return_ids": True}
    states, seen = [], []
    with make(Squares(), **options) as loader:
        for *_, ids in loader:
            seen.append(ids.tolist())
            states.append(loader.state_dict())
    for step, state in enumerate(states, 1):
        with make(Squares(), **options) as resumed:
            resumed.load_state_dict(state)
            rest = [ids.tolist() for *_, ids in resumed]
        if order == "strict":
            assert rest == seen[step:] or step == len(seen)
        if step < len(seen):
            done = [number for ids in seen[:step] for number in ids]
            assert sorted(done + [number for ids in rest for number in ids]) == list(range(20))


def test_a_slow_sample_holds_up_nobody_with_order_ready() -> None:
    dataset = Stuck()
    with make(dataset, order="ready", return_ids=True) as loader:
        iterator = iter(loader)
        first = [next(iterator)[-1].tolist() for _ in range(3)]
        assert all(2 not in ids for ids in first)
        dataset.go.set()
        rest = [ids.tolist() for *_, ids in iterator]
    assert sorted(number for ids in first + rest for number in ids) == list(range(20))


def test_loaders_at_the_same_time_do_not_mix() -> None:
    class Asking(Squares):
        def __init__(self, name: int) -> None:
            self.name = name

        def __getitem__(self, index: int) -> Any:
            info: Any = torch.utils.data.get_worker_info()
            return info.dataset.name, info.num_workers

    with make(Asking(1), num_workers=1) as one, make(Asking(2), num_workers=2) as two:
        for (name_1, workers_1), (name_2, workers_2) in zip(one, two, strict=True):
            assert (set(name_1.tolist()), set(workers_1.tolist())) == ({1}, {1})
            assert (set(name_2.tolist()), set(workers_2.tolist())) == ({2}, {2})


def test_default_collation_in_a_thread_makes_no_shared_memory() -> None:
    def collate(samples: Any) -> Any:
        from sutler._stream_collate import TorchCollate

        return TorchCollate()([torch.from_numpy(image) for image, _ in samples])

    with make(Squares(), collate_fn=collate) as loader:
        assert not any(batch.is_shared() for batch in loader)


def test_the_context_says_what_workers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers_are(context: Any, *, gil: bool) -> str:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
        return "threads" if _threads.wants_threads(context) else "processes"

    assert workers_are(None, gil=True) == "processes"
    assert workers_are(None, gil=False) == "threads"
    assert workers_are("thread", gil=True) == "threads"
    for context in ("fork", "spawn", "forkserver"):
        with make(Squares(), multiprocessing_context=context) as loader:
            assert workers_are(loader.multiprocessing_context, gil=False) == "processes"
    with make(Squares()) as loader:
        assert loader.multiprocessing_context == "thread"
    with pytest.raises(ValueError, match="num_workers > 0"):
        make(Squares(), num_workers=0)


def test_without_a_gil_workers_are_threads_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whose(Squares):
        def __getitem__(self, index: int) -> Any:
            return os.getpid()

    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    for context, here in ((None, True), ("fork", False)):
        with make(Whose(), multiprocessing_context=context) as loader:
            assert all((batch == os.getpid()).all() == here for batch in loader)
