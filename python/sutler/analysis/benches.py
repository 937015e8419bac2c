"""Loaders as an analysis needs them: rebuilt over a few batches, with samples in memory, or on storage, or just there.

The user's own loader is never iterated: its epoch, its sampler's random numbers and its workers stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sutler import _generators
from sutler.analysis import doubts
from sutler.analysis.copies import copies
from sutler.analysis.dealing import in_batches, shuffled
from sutler.analysis.passes import in_fresh_containers
from sutler.analysis.proof import drop_from_page_cache
from sutler.datasets import NativeDataset
from sutler.errors import Failure

#: Indices of batches.
Batches = list[list[Any]]


class ReadySamples:
    """A dataset whose samples have been prepared before, so that only handing them over is left to do.

    All batches are made of the same few samples, as handing over takes as long for any. Where they are ``lent`` to the
    step itself, and not copied on their way to it, they are in other containers each time.

    Examples:
        >>> ready = ReadySamples(["a", "b"], [[7, 8], [9]])
        >>> ready[7], ready[8], ready[9], len(ready)
        ('a', 'b', 'a', 3)
    """

    def __init__(self, samples: list[Any], batches: Batches, *, lent: bool = False) -> None:
        indices = (index for batch in batches for index in batch)
        self._lent = lent
        self._samples = {index: samples[place % len(samples)] for place, index in enumerate(indices)}

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        sample = self._samples[index]
        return in_fresh_containers(sample) if self._lent else sample


@dataclass(frozen=True)
class Config:
    """What is different about a loader that is rebuilt; ``None`` is as the user has it."""

    workers: int | None = None
    #: The cache's budget for the batches looked at.
    cache_bytes: int | None = None
    #: The forms that it keeps, as in ``"100-0-0"``.
    split: str | None = None
    storage_bytes_per_s: float | None = None
    #: The transform at this place is left out.
    without: int | None = None
    #: Samples that are ready, so that only handing them over is left to do.
    ready: ReadySamples | None = None
    #: Each sample comes by itself, with the files that its worker has opened for it.
    watched: bool = False
    #: Batches are made of what is ready, also where the user's are not.
    out_of_order: bool = False


class Probe(ABC):
    """A loader over the batches of an analysis, which can be gone through any number of times."""

    def __init__(self, drawn: list[Any]) -> None:
        self._drawn = drawn
        #: What the loader draws from, which holds on to this very list. Of a stream it is empty.
        self.order = list(drawn)
        #: Seconds until its first batch was there, which workers were started for; where that was looked at.
        self.first_seconds: float | None = None

    def epoch(self, repeats: int = 1) -> Iterator[Any]:
        """The batches, one after the other, so many times."""
        self.order[:] = self._drawn * repeats
        return self._iterate()

    def over(self, batches: Batches) -> Iterator[Any]:
        """Other batches, once."""
        single = not (self._drawn and isinstance(self._drawn[0], list))
        self.order[:] = [index for batch in batches for index in batch] if single else batches
        return self._iterate()

    def fill(self, batches: Batches) -> None:
        """Goes through these batches once, for a cache to keep what it has room for."""
        for batch in self.over(batches):
            del batch

    def spread(self, sizes: list[int]) -> None:
        """Deals the samples out anew. A cache keeps what came first; in a later epoch these are anywhere."""
        single = not (self._drawn and isinstance(self._drawn[0], list))
        indices = self._drawn if single else [index for batch in self._drawn for index in batch]
        self._drawn = shuffled(indices) if single else in_batches(shuffled(indices), sizes)

    @abstractmethod
    def _iterate(self) -> Iterator[Any]:
        """Another epoch."""

    @abstractmethod
    def close(self) -> None:
        """Ends its workers."""

    @property
    def ahead(self) -> int:
        """How many batches are prepared ahead, whose work may be done out of turn; 0 where each is made in its turn."""
        return 0

    def failures(self) -> list[Failure]:
        """The samples of the latest epoch that could not be served, where the loader leaves them out."""
        return []

    def stages(self) -> dict[str, Any]:
        """How long samples spent where, as far as the loader keeps count."""
        return {}

    def timeline(self) -> dict[str, Any] | None:
        """Its latest batches and samples one by one, where it keeps them; as `Loader.timeline` tells them."""
        return None

    def storage_bytes(self) -> int | None:
        """The bytes that it has asked storage for so far, where it keeps count."""
        return None

    def kept(self) -> tuple[int, int] | None:
        """How many samples its cache holds, and the bytes that they take; ``None`` without one."""
        return None

    def transport_seconds(self) -> float:
        """How long the trainer has waited for finished batches to arrive so far, where the loader keeps count."""
        return 0.0

    def function_seconds(self) -> dict[str, float]:
        """What functions of the user's have taken so far that run in the trainer's process beside workers, by name."""
        return {}


class Bench(ABC):
    """A user's loader, and how to rebuild it."""

    kind: Literal["native", "python", "stream", "torch"]
    #: The dataset in a few words.
    name: str
    batch_size: int
    workers: int
    #: Whether workers make whole batches, so that those of all workers arrive together.
    whole_batches: bool
    #: The user's cache, in bytes.
    cache_bytes: int = 0
    #: Whether what it reads can be held to a rate.
    throttles: bool = False
    #: Whether an agent could prepare its samples, for several jobs.
    shareable: bool = False
    #: Whether workers are threads of one interpreter that runs Python in turn.
    in_turns: bool = False
    #: Whether batches are made of what is ready.
    ready: bool = False
    #: Whether they could be.
    reorders: bool = True
    #: Whether workers stay from epoch to epoch.
    stay: bool = True
    #: The user's own, or copies of them, once there are some.
    dataset: Any
    collate_fn: Any
    #: The user's own, which is never gone through.
    loader: Any

    def use_copies(self) -> list[str]:
        """From now on uses copies of what runs in this process, where there can be some; sentences say where not."""
        if not self.in_process:
            return []  # worker processes have copies anyway
        found, notes = copies({"dataset": self.dataset, "collate_fn": self.collate_fn})
        self.dataset, self.collate_fn = found["dataset"], found["collate_fn"]
        return notes

    @abstractmethod
    def draw(self, count: int) -> Batches:
        """The first batches as the user's loader would draw them, at the most so many; none of a stream."""

    @abstractmethod
    def open(self, batches: Batches, config: Config) -> Probe:
        """A loader over these batches."""

    @property
    def samples(self) -> int | None:
        """How many samples the dataset has, where that is known."""
        try:
            return len(self.dataset)
        except TypeError:
            return None

    @property
    def epoch_samples(self) -> int | None:
        """How many samples an epoch of the user's has, as far as that is known."""
        batches = self.loader.batch_sampler
        try:
            # Not the loader's own length: loaders of streams remember that they were asked for it.
            return len(self.loader.sampler if batches is None else batches) * self.batch_size
        except (TypeError, NotImplementedError):  # a stream, or a sampler that has no length
            return self.samples

    @property
    def in_process(self) -> bool:
        """Whether samples are prepared in this process, by the trainer itself or by threads."""
        return self.workers == 0

    def transforms(self) -> list[str]:
        """The names of the transforms that could be left out."""
        steps = getattr(getattr(self.dataset, "transform", None), "transforms", None)
        return [type(step).__name__ for step in steps] if isinstance(steps, (list, tuple)) else []


@contextlib.contextmanager
def keeping_random_state() -> Iterator[None]:
    """Leaves Python's, NumPy's and PyTorch's generators as they were, whatever samplers, datasets and steps draw.

    Examples:
        >>> import random
        >>> before = random.getstate()
        >>> with keeping_random_state():
        ...     _ = random.random()
        >>> random.getstate() == before
        True
    """
    states = _generators.save(list(_generators.marks()))
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    # Those of devices that nobody has used yet are not there to be saved.
    of_devices = cuda.get_rng_state_all() if cuda is not None and cuda.is_initialized() else None
    try:
        yield
    finally:
        _generators.restore(states)
        if cuda is not None and of_devices is not None:
            cuda.set_rng_state_all(of_devices)


def without_moving(sampler: Any, dataset: Any) -> Any:
    """The user's sampler, to draw from without moving it on; itself where it cannot be copied.

    Raises:
        ValueError: It cannot be copied, and what is drawn from it here would be missing in training.
    """
    try:
        # Samplers hold their dataset, which may be large and has nothing to do with what they draw next.
        return copy.deepcopy(sampler, {id(dataset): dataset})
    except Exception:  # whatever a class of somebody else's raises
        within = sampler
        while within is not None:
            if goes_once(within):
                raise ValueError(doubts.used_up(within)) from None
            within = getattr(within, "sampler", None)  # a batch sampler draws from another
        return sampler


def check_stream(stream: Any, workers: int) -> None:
    """Whether the user's stream is still whole when this process has gone through it; workers have copies of it.

    Raises:
        ValueError: It would be used up.
    """
    if workers == 0 and goes_once(stream):
        raise ValueError(doubts.used_up_stream(stream))


def goes_once(things: Any) -> bool:
    """Whether these can be gone through only once.

    Then the same iterator is handed out whenever one is asked for. Some that are their own iterators begin anew each
    time, which changes something about them.

    Examples:
        >>> numbers = [1, 2]
        >>> goes_once(numbers), goes_once(iter(numbers)), goes_once(number for number in numbers)
        (False, True, True)
    """
    if iter(things) is not iter(things):
        return False
    tried = things
    with contextlib.suppress(Exception):  # whatever a class of somebody else's raises
        # Of one that stands at its beginning nobody sees that it goes back there, so a copy is moved on.
        moved = copy.deepcopy(things)
        next(iter(moved))
        tried = moved
    before = dict(getattr(tried, "__dict__", {}))
    iter(tried)
    after = getattr(tried, "__dict__", {})
    return all(name in before and before[name] is value for name, value in after.items())


def without_transform(dataset: Any, place: int) -> Any:
    """The same dataset with one transform less."""
    pipeline = copy.copy(dataset.transform)
    pipeline.transforms = [step for number, step in enumerate(pipeline.transforms) if number != place]
    if isinstance(dataset, NativeDataset):
        return dataset._transformed_by(pipeline)  # without another warning
    changed = copy.copy(dataset)
    changed.transform = pipeline
    return changed


class Pages:
    """The page cache's part of a dataset, which can be dropped and filled; nothing where not all files are known."""

    def __init__(self, files: dict[Any, list[str]], batches: Batches) -> None:
        indices = [index for batch in batches for index in batch]
        known = all(index in files for index in indices)
        self._files = {index: files[index] for index in indices} if known else {}
        self.paths = list(dict.fromkeys(path for paths in self._files.values() for path in paths))
        self._sizes = {path: os.path.getsize(path) for path in self.paths if os.path.exists(path)}
        self.bytes = sum(self._sizes.values())
        self._written = True

    @property
    def known(self) -> bool:
        """Whether what is fetched can be told apart from what is prepared."""
        return self.bytes > 0

    @property
    def sample_bytes(self) -> float | None:
        """Of an average sample."""
        return self.bytes / len(self._files) if self._files and self.bytes else None

    def bytes_of(self, index: Any) -> float:
        """Of the files of one sample, as far as they are known."""
        return float(sum(self._sizes.get(path, 0) for path in self._files.get(index, ())))

    def drop(self) -> None:
        """From now on its samples come from the device."""
        drop_from_page_cache(self.paths, written=self._written)
        self._written = False

    def keep(self, kept: Collection[Any]) -> None:
        """Of what is in memory already, only these samples stay there."""
        staying = {path for index in kept for path in self._files[index]}
        left_out = [path for path in self.paths if path not in staying]
        drop_from_page_cache(left_out, written=self._written)

    def read(self) -> None:
        """From now on its samples come from memory."""
        for path in self.paths:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                while file.read(1 << 20):
                    pass
