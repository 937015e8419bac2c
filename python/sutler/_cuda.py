"""Pinned memory and copies ahead of the trainer.

Batches live in one arena. It is registered with CUDA once, so every batch in it can be copied to the device
asynchronously without being pinned, or copied, on the host first.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sutler._figures import TrainerFigures, Wait
from sutler._output import import_torch

if TYPE_CHECKING:
    from sutler._backend import BatchSource

#: Batches that may be on the device and not yet in the trainer's hands: one being copied, one ready.
BATCHES_AHEAD = 2


class PinnedArena:
    """Registers a range of host memory with CUDA and takes it back when closed."""

    def __init__(self, address: int, size: int) -> None:
        torch = import_torch()
        self._address = 0
        if not torch.cuda.is_available():
            _warn_of_no_accelerator()
            return
        torch.cuda.init()
        status = torch.cuda.cudart().cudaHostRegister(address, size, 0)
        if int(status) != 0:
            warnings.warn(
                f"CUDA refused to register {size} bytes of batch memory (error {int(status)}); "
                "copies to the device will be slower. Check `ulimit -l`, or lower batch_size or prefetch_factor.",
                stacklevel=4,
            )
            return
        self._address = address

    @property
    def is_pinned(self) -> bool:
        """Whether CUDA accepted the memory."""
        return self._address != 0

    def close(self) -> None:
        """Takes the memory back; copies still under way end first."""
        if self._address:
            torch = import_torch()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self._address)
            self._address = 0


def _move(value: Any, move: Callable[[Any], Any], method: str = "to") -> Any:
    """The same structure with every tensor moved; what a collate function made may hold anything else as well."""
    if hasattr(value, method):
        return move(value)
    if isinstance(value, Mapping):
        moved = {key: _move(item, move, method) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return moved
        # A mapping of another kind may hold more than its items.
        copied = copy.copy(value)
        copied.update(moved)
        return copied
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_move(item, move, method) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_move(item, move, method) for item in value)
    return value


def make_pinner(pin_memory: bool, device: Any) -> Callable[[Any], Any]:
    """The function that puts a batch into pinned memory: for batches that have no arena, each in a copy of its own."""
    if not pin_memory and not str(device).startswith("cuda"):
        return lambda batch: batch
    torch = import_torch()
    if not torch.cuda.is_available():
        _warn_of_no_accelerator()
        return lambda batch: batch
    return lambda batch: _move(batch, lambda value: value.pin_memory(), "pin_memory")


def _warn_of_no_accelerator() -> None:
    warnings.warn(
        "'pin_memory' argument is set as true but no accelerator is found, "
        "then device pinned memory won't be used.",
        stacklevel=5,
    )


class _Copier:
    """Moves batches to a device, on a stream of its own where the device has streams."""

    def __init__(self, device: Any, finish: Callable[[Any], Any] | None) -> None:
        torch = self._torch = import_torch()
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._finish = finish

    def copy(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, and the event after which it is there."""
        if self.stream is None:
            return self._finished(_move(batch, lambda tensor: tensor.to(self.device))), None
        with self._torch.cuda.stream(self.stream):
            copied = self._finished(_move(batch, lambda tensor: tensor.to(self.device, non_blocking=True)))
            event = self._torch.cuda.Event()
            event.record(self.stream)
        return copied, event

    def _finished(self, batch: Any) -> Any:
        return batch if self._finish is None else self._finish(batch)

    def hand_over(self, copied: Any, event: Any) -> None:
        """Makes the trainer's stream, but not its thread, wait for the copy."""
        current = self._torch.cuda.current_stream(self.device)
        current.wait_event(event)
        _move(copied, lambda tensor: tensor.record_stream(current))

    def synchronize(self) -> None:
        """Waits until every copy is done."""
        if self.stream is not None:
            self.stream.synchronize()


@dataclass
class _Copied:
    """What the copying thread hands over: a batch, the end, or what went wrong."""

    batch: Any = None
    host: Any = None
    event: Any = None
    consumed: Any = 0
    #: When the copying thread asked for it and when it had it; and what it waited for meanwhile.
    fetched: tuple[float, float] = (0.0, 0.0)
    delivery: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
    end: bool = False
    error: BaseException | None = None


class DevicePrefetcher:
    """Copies batches to a device on a stream of its own, ahead of the trainer.

    A thread takes host batches from ``source``, starts their copy and puts them into a short queue; the trainer's
    stream waits for the copy's event, not the trainer's thread. On a device without streams (``cpu``) it just moves.
    The thread holds neither this object nor the epoch's iterator, so that dropping the iterator ends it.
    """

    def __init__(
        self,
        source: BatchSource,
        device: Any,
        finish: Callable[[Any], Any] | None,
        figures: TrainerFigures,
    ) -> None:
        self._figures = figures
        self._left_at: float | None = None
        self._delivered = 0
        self._copier = _Copier(device, finish)
        self._queue: queue.Queue[_Copied] = queue.Queue(maxsize=BATCHES_AHEAD)
        #: Host batches whose copies may still be reading them.
        self._copying: deque[_Copied] = deque()
        self._stopped = threading.Event()
        self._last: _Copied | None = None
        self._thread = threading.Thread(
            target=_copy_ahead,
            args=(source, self._copier, self._queue, self._stopped),
            name="sutler-copy",
            daemon=True,
        )
        self._thread.start()

    def next(self) -> tuple[Any, Any] | None:
        """The next batch on the device and how much of the epoch is consumed with it; ``None`` at the end."""
        entered, ready = time.monotonic(), self._queue.qsize()
        copied = self._last or self._take()
        self._note(copied, entered, ready)
        if copied.end or copied.error is not None:
            self._last = copied  # and so it stays, however often it is asked for
            if copied.error is not None:
                raise copied.error
            return None
        if copied.event is not None:
            self._copier.hand_over(copied.batch, copied.event)
            # A host batch must not be reused before its copy has read it; in steady state that is long done.
            self._copying.append(copied)
            while self._copying and self._copying[0].event.query():
                self._copying.popleft()
        return copied.batch, copied.consumed

    def _note(self, copied: _Copied, entered: float, ready: int) -> None:
        """The trainer waited for what the copying thread waited for at the time; the rest is the copy."""
        left = time.monotonic()
        asked, had = copied.fetched
        overlap = max(0.0, min(had, left) - max(asked, entered))
        fetch, prep, transport, samples = copied.delivery
        waited = fetch + prep + transport
        share = overlap / waited if waited > 0 else 0.0
        wait = Wait(entered, left, self._left_at, fetch=fetch * share, prep=prep * share)
        wait.transport = left - entered - wait.fetch - wait.prep
        wait.batch, wait.samples, wait.ready = self._delivered, samples, ready
        self._left_at = self._figures.note(wait)
        self._delivered += 1

    def _take(self) -> _Copied:
        while not self._stopped.is_set():
            try:
                return self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
        return _Copied(error=RuntimeError("the loader was closed while it was being iterated over"))

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._copier.synchronize()
        self._copying.clear()


def _copy_ahead(
    source: BatchSource,
    copier: _Copier,
    copied: queue.Queue[_Copied],
    stopped: threading.Event,
) -> None:
    """What the copying thread does all its life."""

    def put(item: _Copied) -> None:
        while not stopped.is_set():
            try:
                return copied.put(item, timeout=0.1)
            except queue.Full:
                continue
        return None

    try:
        while not stopped.is_set():
            asked = time.monotonic()
            answer = source.next()
            times = asked, time.monotonic()
            if answer is None:
                put(_Copied(fetched=times, end=True))
                return
            host, consumed = answer
            delivery = source.last_delivery()
            batch, event = copier.copy(host)
            put(_Copied(batch, host if event is not None else None, event, consumed, times, delivery))
    except BaseException as error:  # handed to the trainer, who is the one to see it
        put(_Copied(error=error))
    finally:
        copier.synchronize()  # before the last host batch goes back to the engine
