"""Batches of a dataset written in Python: from what workers left, or made on the spot."""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler import _draws, _moment, _payload, _schema, _sutler, _worker_errors
from sutler._collated import Collated, CollatedLayout, Handed, NotCollated, Separate, Told
from sutler._cuda import make_pinner
from sutler._dataset_state import Reached, outlasts_epochs, state_noted, state_now
from sutler._fetch import (
    Draw,
    bulk_getter,
    collate_seed,
    fetch_batch,
    fetch_many,
    fetch_samples,
    prepare_seed,
    sample_seed,
    samples_seed,
)
from sutler._figures import Wait
from sutler._keys import KeyTable
from sutler._output import converter
from sutler._parts import Parts, pack, parts_of
from sutler._run import AssembledBatches
from sutler._seeding import generators_kept, seeded
from sutler._stream_copy import is_stateful
from sutler.errors import ErrorBudgetExceeded, Failure, RankOutOfStep, SampleError, sample_error

if TYPE_CHECKING:
    from sutler._dataset_state import WorkerCopies
    from sutler._epoch import Position, Progress
    from sutler._figures import TrainerFigures
    from sutler._run import RunReader
    from sutler._sampling import Drawing
    from sutler._sutler import Batch, Job
    from sutler.loader import Loader


def default_collate(output: str, *, batched: bool) -> Callable[[Any], Any]:
    """What PyTorch does to batches or to single samples by default, or for other outputs its meaning in NumPy."""
    if output == "torch":
        from torch.utils.data import default_collate as torch_collate
        from torch.utils.data import default_convert

        return torch_collate if batched else default_convert
    return numpy_collate if batched else _as_it_is


def _as_it_is(sample: Any) -> Any:
    return sample


def numpy_collate(values: list[Any], stack: Callable[[list[Any]], Any] = np.stack) -> Any:
    """What PyTorch's default collation does, with arrays for tensors."""
    first = values[0]
    if isinstance(first, np.ndarray | np.generic | bool | int | float) or hasattr(first, "__array__"):
        return stack([np.asarray(value) for value in values])
    if isinstance(first, str | bytes):
        return values
    if isinstance(first, dict):
        return {key: numpy_collate([value[key] for value in values], stack) for key in first}
    if isinstance(first, tuple | list):
        if any(len(value) != len(first) for value in values):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [numpy_collate(list(column), stack) for column in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    raise TypeError(
        f"a batch cannot be made of {type(first).__name__} objects; pass a collate_fn, or return arrays, numbers, "
        "strings, or lists, tuples and dicts of them"
    )


def collate_copies_if_needed(function: Callable[[Any], Any], samples: Any) -> Any:
    """Collates by default, also arrays that PyTorch refuses for a negative stride: pictures that are mirrored, mostly.

    Between processes samples are copied, which leaves no such strides. So it must not matter whether there are workers.
    """
    try:
        return function(samples)
    except ValueError as error:
        if "stride" not in str(error):
            raise
        refused = error
    try:
        plain = _payload.copied(samples)
    except Exception:
        raise refused from None
    return function(plain)


class _TrainerCollation:
    """Makes batches in the trainer's process; a function of the user's gets random numbers of its own for it."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._function = loader._collation()
        self.is_default = self._function is default_collate(loader.output, batched=loader._batched())
        self._single = not loader._batched()
        self._seed = loader.seed
        self._epoch = epoch

    def collate(self, draws: list[Draw], samples: Any) -> Any:
        """The batch of some samples."""
        value = samples[0] if self._single else samples
        if self.is_default:
            return collate_copies_if_needed(self._function, value)
        with seeded(collate_seed(self._seed, self._epoch, draws)):
            return self._function(value)


class ProcessBatches(AssembledBatches):
    """The batches of one epoch, as worker processes or threads left them."""

    def __init__(
        self,
        loader: Loader,
        run: RunReader,
        job: Job,
        epoch: int,
        keys: KeyTable,
        copies: WorkerCopies | None,
    ) -> None:
        super().__init__(run)
        self._job = job
        self._copies = copies
        #: What the workers' copies of the dataset have come to with the latest batch, and whose turn was the first.
        self._states = None if copies is None else copies.begun()
        self._first_turn = 0 if self._states is None else self._states.turn
        self._in_turn = loader.order == "strict"
        self._keys = keys
        self._convert = np.asarray if loader.output == "dlpack" else converter(loader.output)
        self._default_collate = loader._collation()
        self._collation = _TrainerCollation(loader, epoch)
        self._plain = loader._collates_plainly()
        self._single = not loader._batched()
        self._return_ids = loader.return_ids
        self._pin = make_pinner(loader.pin_memory, loader.device)
        self._layout: _schema.Schema | CollatedLayout | None = None

    def next(self) -> tuple[Any, Progress] | None:
        """The next batch and how far the epoch is with it, and the workers' copies of the dataset."""
        try:
            answer = super().next()
        except Exception as error:
            self._note(_worker_errors.take_told(error))
            raise
        if self._copies is None or self._states is None:
            return answer
        if answer is None:
            self._copies.end()
            return None
        if self._in_turn:
            turn = (self._first_turn + self._run.passed) % len(self._states.states)
            self._states = replace(self._states, turn=turn)
        self._copies.note(self._states)
        batch, progress = answer
        return batch, Reached(progress, self._states)

    def _assemble(self, batch: Batch) -> Any:
        return self._pin(self._collated(batch))

    def _note(self, told: Told | None) -> None:
        """A worker has told what its copy of the dataset has come to."""
        if told is not None and self._states is not None:
            self._states = self._states.after(*told)

    def _take(self, collated: Collated) -> Any:
        """A batch that a worker has collated."""
        self._note(collated.told)
        return collated.batch

    def _take_separate(self, other: Any) -> Any:
        """A sample of a batch that was to be collated by a worker, and else what there is of a sample."""
        if not isinstance(other, Separate):
            return other
        self._note(other.told)
        return other.sample

    def _collated(self, batch: Batch) -> Any:
        rows = batch.take_rows()
        if rows[0][1] and isinstance(layout := self._known_layout(), CollatedLayout):
            return self._with_ids(self._take(layout.read(batch)), batch)
        others = [_load(payload) for _, _, payload in rows]
        for other in others:
            if isinstance(other, NotCollated):
                self._note(other.told)
                raise _worker_errors.rebuild(other.exception)
        if isinstance(others[0], Collated):
            return self._with_ids(self._take(others[0]), batch)
        others = [self._take_separate(other) for other in others]
        complete = (
            self._plain
            and all(in_block for _, in_block, _ in rows)
            and [row for row, _, _ in rows] == list(range(len(rows)))
        )
        if complete:
            extras = [other if other is not None else [] for other in others]
            collated = self._of_block(batch, len(rows), extras)
        else:
            samples = [
                _schema.sample_of(self._known_schema(), batch, row, other or []) if inside else other
                for (row, inside, _), other in zip(rows, others, strict=True)
            ]
            draws = [Draw(*drawn) for drawn in zip(self._batch_keys(batch), batch.repeats(), strict=True)]
            collated = self._of_samples(draws, samples)
        return self._with_ids(collated, batch)

    def _of_block(self, batch: Batch, count: int, others: list[Any]) -> Any:
        """A batch whose arrays are all in its memory, one sample behind the other, and `others` beside it."""
        return _schema.view(self._known_schema(), batch, count, self._convert, self._default_collate, others)

    def _of_samples(self, draws: list[Draw], samples: list[Any]) -> Any:
        """A batch of samples that came one by one."""
        return self._collation.collate(draws, samples)

    def _batch_keys(self, batch: Batch) -> list[Any]:
        return [self._keys.key(number) for number in np.asarray(batch.ids()).tolist()]

    def _with_ids(self, collated: Any, batch: Batch) -> Any:
        if not self._return_ids:
            return collated
        return _append_ids(collated, self._batch_keys(batch), self._single, self._convert)

    def _known_layout(self) -> _schema.Schema | CollatedLayout:
        if self._layout is None:
            description = self._job.schema
            if description is None:
                raise RuntimeError("a worker wrote to shared memory that has no schema; please report this")
            self._layout = pickle.loads(description)
        return self._layout

    def _known_schema(self) -> _schema.Schema:
        layout = self._known_layout()
        if isinstance(layout, CollatedLayout):
            raise RuntimeError("a worker wrote a sample where whole batches go; please report this")
        return layout


def _append_ids(collated: Any, keys: list[Any], single: bool, convert: Callable[[Any], Any]) -> Any:
    """The batch with the samples' indices at its end, in an array unless the sampler draws other keys."""
    ids: Any = keys[0] if single else keys
    if not single and all(isinstance(key, int) for key in keys):
        ids = convert(np.asarray(keys, dtype=np.int64))
    has_parts = isinstance(collated, list | tuple)
    if has_parts and not single and all(isinstance(part, str | bytes) for part in collated):
        has_parts = False  # these are the samples themselves
    return [*collated, ids] if has_parts else [collated, ids]


def _load(payload: Any) -> Any:
    if type(payload) is Handed:
        return payload.value
    return None if payload is None else _payload.load(np.asarray(payload).data)


def drawn_batches(
    drawing: Drawing,
    first: int,
    consumed: int,
    *,
    batch_size: int,
    drop_last: bool,
    in_order: bool,
    done: _sutler.Served | None,
) -> Iterator[tuple[list[int], Progress]]:
    """The batches that a sampler draws, each when it is asked for, from item `first` on and without what is done."""
    start = 0  # the position of the next one, counted from what was consumed
    batch: list[int] = []
    positions: list[int] = []
    while items := drawing.items(first, 1):
        first += 1
        numbers = items[0] if drawing.in_batches else items
        for number in numbers:
            if done is None or not done.is_done(start):
                batch.append(number)
                positions.append(start)
            start += 1
        if batch and (drawing.in_batches or len(batch) == batch_size):
            yield batch, consumed + start if in_order else _sutler.Positions(positions)
            batch, positions = [], []
    if batch and not drop_last:
        yield batch, consumed + start if in_order else _sutler.Positions(positions)


class InlineBatches:
    """The batches of one epoch, made by the trainer itself: `num_workers=0`."""

    #: A batch that was begun is gone.
    interrupted = False

    def __init__(
        self,
        loader: Loader,
        batches: Iterator[tuple[list[int], Progress]],
        *,
        total: int | None,
        samples: int,
        position: Position,
        keys: KeyTable,
        figures: TrainerFigures,
        cache: _sutler.Cache | None,
    ) -> None:
        self._dataset = loader.dataset
        #: Whether it is asked for samples ahead of the trainer, so that what it has come to goes with each batch.
        self._tells_state = outlasts_epochs(loader)
        #: Where the trainer stands, for a dataset with a state that is asked when the trainer asks for a batch.
        self._standing = position if is_stateful(loader.dataset) and not self._tells_state else None
        self._parts = parts_of(loader.dataset)
        self._cache = cache
        #: Of the batch in the making, how many samples were made from what the cache had kept.
        self._recalled = 0
        self._batches: Iterator[tuple[int, tuple[list[int], Progress]]] = enumerate(batches)
        #: How many batches there are in all, where that is known.
        self.total = total
        epoch = self._epoch = position.epoch
        self._seed = loader.seed
        self._keys = keys
        self._convert = np.asarray if loader.output == "dlpack" else converter(loader.output)
        self._collation = _TrainerCollation(loader, epoch)
        self._single = not loader._batched()
        self._many = None if self._single else bulk_getter(loader.dataset)
        self._return_ids = loader.return_ids
        self._fetch = fetch_batch
        if self._collation.is_default:
            self._fetch = fetch_many if self._return_ids else fetch_samples
        self._pin = make_pinner(loader.pin_memory, loader.device)
        self._policy = loader._policy
        self._allowed = loader._policy.allowed(samples)
        self._in_step = loader.world_size > 1
        self._figures = figures
        self._left_at: float | None = None
        self._delivered = 0
        #: The samples that were left out so far.
        self.failures: list[Failure] = []

    def next(self) -> tuple[Any, Progress] | None:
        """The next batch and how far the epoch is with it; ``None`` at the end."""
        entered, before = time.monotonic(), self._figures.samples
        try:
            return self._next()
        finally:
            left = time.monotonic()
            # From outside a dataset nobody can tell reading from preparing.
            wait = Wait(entered, left, self._left_at, prep=left - entered)
            wait.batch, wait.samples = self._delivered, self._figures.samples - before
            self._left_at = self._figures.note(wait)
            self._delivered += 1

    def last_delivery(self) -> tuple[float, float, float, int]:
        """What was waited for before the latest batch came, and how many samples it has."""
        return self._figures.last_delivery()

    def _next(self) -> tuple[Any, Progress] | None:
        if self._standing is not None and self._standing.copies is None:
            # Should the batch not come, the dataset is somewhere in the middle of it, and the trainer still here.
            self._standing.copies = state_noted(self._dataset)
        # A batch that raises is gone, too: the next call goes on with the next one.
        for number, (numbers, progress) in self._batches:
            draws = [Draw(self._keys.key(drawn), repeat) for drawn, repeat in map(_draws.split, numbers)]
            if self._keys.has_opaque:
                draws = [
                    draw._replace(stand_in=self._keys.stand_in(self._keys.number(draw.key))) for draw in draws
                ]
            try:
                with _moment.during(self._seed, self._epoch), generators_kept():
                    made = self._make(number, draws)
            except StopIteration as error:
                raise RuntimeError(
                    "the dataset or collate_fn raised StopIteration; an epoch ends on its own"
                ) from error
            if made is not None:
                if self._tells_state:
                    progress = Reached(progress, state_now(self._dataset))
                elif self._standing is not None:
                    progress = Reached(progress, None)  # from here on the dataset itself knows
                return self._pin(made[0]), progress
        return None

    def _make(self, number: int, draws: list[Draw]) -> tuple[Any] | None:
        """The batch of some draws, unless every sample of it was left out."""
        asked_for = len(draws)
        self._recalled = 0
        draws, samples = self._samples(draws)
        if not draws:
            if self._in_step and asked_for:
                raise RankOutOfStep(number, self._last_failure())
            return None
        made = self._collation.collate(draws, samples)
        self._figures.batches += 1
        self._figures.samples += len(draws)
        self._figures.recalled += self._recalled
        if self._return_ids:
            made = _append_ids(made, [draw.key for draw in draws], self._single, self._convert)
        return (made,)

    def _samples(self, draws: list[Draw]) -> tuple[list[Draw], Any]:
        """The draws whose samples could be had, and the samples: a list, or what a `collate_fn` gets instead."""
        if self._policy.name == "raise":
            if self._many is not None:
                with seeded(samples_seed(self._seed, self._epoch, draws)):
                    return draws, self._fetch(self._many, draws)
            return draws, [self._sample(draw) for draw in draws]
        if self._many is not None:
            # All at once where all are well; else one by one, to find out which to leave out.
            with contextlib.suppress(Exception), seeded(samples_seed(self._seed, self._epoch, draws)):
                return draws, self._fetch(self._many, draws)
        kept, samples = [], []
        for draw in draws:
            try:
                sample = self._sample(draw)
            except Exception as error:
                self._leave_out(draw.key, error)
            else:
                kept.append(draw)
                samples.append(sample)
        return kept, samples

    def _leave_out(self, key: Any, error: Exception) -> None:
        number, reason = self._keys.number(key), traceback.format_exception_only(error)[-1].strip()
        name = f"index {key}" if number == key else f"key {key!r}"
        self.failures.append(Failure(number, name, "exception", reason))
        self._figures.failed += 1
        if self._allowed is not None and len(self.failures) > self._allowed:
            raise ErrorBudgetExceeded(len(self.failures), self._allowed, self._last_failure()) from error

    def _last_failure(self) -> SampleError:
        last = self.failures[-1]
        return sample_error(last.id, last.path, last.reason, last.kind)

    def _sample(self, draw: Draw) -> Any:
        """A sample with its own random numbers, the same as from any worker process."""
        _moment.enter(self._seed, self._epoch, draw.repeat)
        if self._many is not None:
            with seeded(samples_seed(self._seed, self._epoch, [draw])):
                return fetch_many(self._many, [draw])[0]
        if self._parts is not None:
            return self._sample_in_parts(self._parts, draw)
        with seeded(sample_seed(self._seed, self._epoch, draw)):
            return self._dataset[draw.key]

    def _sample_in_parts(self, parts: Parts, draw: Draw) -> Any:
        """A sample whose deterministic part comes from the cache, or goes there."""
        key = draw.key
        number = self._keys.number(key)
        copy = self._cache.recall(number) if self._cache is not None else None
        if copy is not None:
            prepared = _payload.load(memoryview(copy))
        else:
            with seeded(prepare_seed(draw)):
                prepared = parts.prepare(key)
            if self._cache is not None:  # before it is augmented, which may change it
                head, views, size = pack(prepared, key)
                packed = bytearray(size)
                _payload.write(memoryview(packed), head, views)
                self._cache.keep(number, packed)
        with seeded(sample_seed(self._seed, self._epoch, draw)):
            sample = parts.augment(key, prepared)
        self._recalled += copy is not None
        return sample

    def close(self) -> None:
        """Makes no more batches."""
        self._batches = iter(())
