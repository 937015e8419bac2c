"""Begins an epoch at a position: with the engine, with a stream's workers, or in the trainer's own process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler import _sutler
from sutler._backend import BatchSource, ProcessBackend, draw_seed, length_of
from sutler._dataset_state import own_state
from sutler._epoch import Position, Progress
from sutler._interrupts import interrupts_put_off
from sutler._keys import KeyTable
from sutler._python_batches import InlineBatches, drawn_batches
from sutler._sampling import Feed
from sutler._selection import Numbers
from sutler._turns import joined_with_repeats

if TYPE_CHECKING:
    from sutler.loader import Loader


def begin_epoch(loader: Loader, position: Position) -> tuple[BatchSource, Callable[[], None]]:
    """Begins an epoch at a position: its batches, and how to call the rest off."""
    loader._check_open()
    if loader._streams is not None:
        stream, position.streams = loader._streams.begin(loader, position.streams, position.epoch)
        return stream, stream.close
    # A sampler that draws otherwise than before is found out here, before anything is started.
    first = (
        position.drawing.go_to(position.drawn if position.is_begun else None, position.consumed)
        if position.drawing
        else 0
    )
    position.drawn = None
    loader._settle_functions()
    loader._room.end_what_is_outdated(loader)
    if loader._in_process():
        inline = _plan_in_process(loader, position, first)
        return inline, inline.close
    run, job, feed = _start_run(loader, position, first)
    backend = loader._backend

    def call_off() -> None:
        run.close()
        backend.leave_epoch(job)

    try:
        source = backend.source(loader, run, job, position.epoch, feed)
        if isinstance(backend, ProcessBackend):
            backend.complete_team(job)
        return source, call_off
    except BaseException:  # raised by the user's sampler, by what starts workers, or by Ctrl-C
        run.close()
        _leave(loader, job)
        raise


def _leave(loader: Loader, job: _sutler.Job) -> None:
    """Leaves an epoch that was entered and cannot begin."""
    if isinstance(loader._backend, ProcessBackend):
        loader._backend.give_up_team(job)
    loader._backend.leave_epoch(job)


@contextmanager
def _entered(loader: Loader, rows: int) -> Iterator[tuple[_sutler.Engine, _sutler.Job]]:
    """What an epoch is started with that begins inside. Workers are started here, so Ctrl-C comes after it."""
    job = None
    try:
        with interrupts_put_off():
            engine, job = loader._room.enter_epoch(loader, rows)
            yield engine, job
    except BaseException:
        if job is not None:
            _leave(loader, job)
        raise


def _plan_in_process(loader: Loader, position: Position, first: int) -> InlineBatches:
    """An epoch of a dataset written in Python that the trainer calls itself."""
    # PyTorch draws the workers' seeds here also where there are none, and samplers draw from the same generator.
    if not position.seeded:
        draw_seed(loader.generator, loader.seed)
    keys = loader._backend.keys or KeyTable()
    total: int | None
    batches: Iterator[tuple[list[int], Progress]]
    if position.drawing is not None:
        total, samples = None, length_of(loader.dataset) or 0
        batches = drawn_batches(
            position.drawing,
            first,
            position.consumed,
            batch_size=loader.batch_size or 1,
            drop_last=loader.drop_last,
            in_order=loader.in_order,
            done=position.served,
        )
    else:
        dealt = loader._dealt(position)
        planned = _sutler.plan_batches(
            len(loader.dataset if dealt is None else dealt),
            shuffle=loader.shuffle,
            seed=loader.seed,
            epoch=position.epoch,
            consumed=position.consumed,
            batch_size=loader._rows(),
            drop_last=loader.drop_last,
            rank=loader.rank,
            world_size=loader.world_size,
            before=position.before,
            done=position.served,
        )
        if dealt is not None:
            in_turn = joined_with_repeats(dealt)
            planned = [([in_turn[place] for place in places], done, at) for places, done, at in planned]
        total, samples = len(planned), sum(len(numbers) for numbers, _, _ in planned)
        in_order = loader.in_order
        batches = ((numbers, consumed if in_order else positions) for numbers, consumed, positions in planned)
    source = InlineBatches(
        loader,
        batches,
        total=total,
        samples=samples,
        position=position,
        keys=keys,
        figures=loader._inline,
        cache=loader._backend.cache() if isinstance(loader._backend, ProcessBackend) else None,
    )
    loader._inline_failures = source.failures
    position.copies = own_state(loader) or position.copies
    return source


def _numbers(loader: Loader, position: Position) -> Numbers | None:
    """The samples that the places of an epoch stand for; ``None`` where each stands for the one of its number."""
    selection = loader._selection
    if selection is None:
        return loader._dealt(position)
    selection.read_again()
    dealt = loader._dealt(position)
    return selection.numbers if dealt is None else selection.numbers[dealt]


def _start_run(
    loader: Loader, position: Position, first: int
) -> tuple[_sutler.Run, _sutler.Job, Feed | None]:
    """Starts the native side of an epoch at a position."""
    if isinstance(loader._backend, ProcessBackend):
        loader._backend.plan_copies(position.copies, loader.num_workers)
        # As PyTorch does it, from whose generator the sampler may draw after that.
        loader._backend.seed_workers(loader, unseen=position.seeded)
    batch_size = loader._rows()
    at: dict[str, Any] = {"epoch": position.epoch, "consumed": position.consumed, "done": position.served}
    drawing = position.drawing
    if drawing is None:
        with _entered(loader, batch_size) as (engine, job):
            numbers = _numbers(loader, position)
            run = engine.start(
                job,
                shuffle=loader.shuffle,
                seed=loader.seed,
                batch_size=batch_size,
                drop_last=loader.drop_last,
                rank=loader.rank,
                world_size=loader.world_size,
                samples=len(loader.dataset if numbers is None else numbers),
                before=position.before,
                # A list would hold an object for each sample.
                part=None if numbers is None else numbers.astype(np.uint32).data,
                **at,
            )
        return run, job, None
    batches_ahead = loader._batches_ahead(batch_size)
    if drawing.in_batches:
        # The largest of the first ones; a later batch that is larger gets memory of its own.
        largest = max([1, *map(len, drawing.items(first, batches_ahead))])
        with _entered(loader, largest) as (engine, job):
            run = engine.start_batches(job, **at)
    else:
        with _entered(loader, batch_size) as (engine, job):
            run = engine.start_drawn(job, batch_size=batch_size, drop_last=loader.drop_last, **at)
    announce = partial(loader._backend.announce_keys, job)
    resumed = 0 if position.served is None else json.loads(position.served.save())["len"]

    def ahead() -> int:
        """At least as many batches as in the beginning, and more where the job has come to prepare more."""
        return max(batches_ahead, job.batches_ahead)

    return run, job, Feed(drawing, first, batch_size, ahead, announce, resumed)
