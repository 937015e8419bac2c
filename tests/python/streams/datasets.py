"""Streams to test with, and what makes loaders of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sutler

WORKERS = [0, 1, 3]


def share(count: int) -> range:
    """The numbers that this worker is to yield; worker 1 has the fewest."""
    info = sutler.get_worker_info()
    if info is None:
        return range(count)
    return range(info.id, count - 6 * (info.id == 1), info.num_workers)


class Plain:
    """Yields its share and remembers nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from share(self.count)


class StatefulDataset(Plain):
    """Remembers in itself how far it has come."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.done = 0
        self.resumed = False

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.done = 0
        self.resumed = False
        for number in share(self.count)[self.done :]:
            self.done += 1
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "what": {1, 2}}  # a set: states need not be JSON

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["what"] == {1, 2}
        self.done = state["done"]
        self.resumed = True


class Pending(Plain):
    """Keeps a state that it is told until it is opened, and shows nothing of it before, as many do."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.done = 0
        self.resume_at: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.done = 0
        if self.resume_at is not None:
            self.done, self.resume_at = self.resume_at, None
        for number in share(self.count)[self.done :]:
            self.done += 1
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resume_at = state["done"]


class Lasting(Pending):
    """Never forgets where it was told to begin."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.first = 0

    def __iter__(self) -> Iterator[int]:
        for done, number in enumerate(share(self.count)[self.first :], self.first + 1):
            self.done = done
            yield number

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["done"]


class Walk:
    """An iterator that remembers."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.at = 0
        self.history: list[int] = []

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        self.history.append(self.at)
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "history": self.history}  # not a copy: a later change must not show

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["history"] == list(range(1, state["at"] + 1))
        self.at, self.history = state["at"], state["history"]


class StatefulIterator(Plain):
    """Its iterators remember."""

    def __iter__(self) -> Walk:
        return Walk(share(self.count))


class Itself(StatefulDataset):
    """Is its own iterator, and begins anew whenever it is asked for one."""

    def __iter__(self) -> Any:
        self.done = 0
        return self

    def __next__(self) -> int:
        numbers = share(self.count)
        if self.done == len(numbers):
            raise StopIteration
        self.done += 1
        return numbers[self.done - 1]


def make(dataset: Any, workers: int, **options: Any) -> sutler.Loader:
    return sutler.Loader(dataset, num_workers=workers, **({"batch_size": 2} | options))


def numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]
