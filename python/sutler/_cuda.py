"""Pinned memory and copies ahead of the trainer.

Batches live in one arena. It is registered with CUDA once, so every batch in it can be copied to the device
asynchronously without being pinned, or copied, on the host first.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

#: Batches that may be on the device and not yet in the trainer's hands: one being copied, one ready.
BATCHES_AHEAD = 2


class PinnedArena:
    """Registers a range of host memory with CUDA and takes it back when closed."""

    def __init__(self, address: int, size: int) -> None:
        import torch

        self._address = 0
        if not torch.cuda.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=4,
            )
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
            import torch

            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self._address)
            self._address = 0


def _move(value: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_move(item, move) for item in value)
    return move(value) if hasattr(value, "to") else value


class DevicePrefetcher:
    """Copies batches to a device on a stream of its own, ahead of the trainer.

    A thread takes host batches from ``fetch``, starts their copy and puts them into a short queue; the trainer's stream
    waits for the copy's event, not the trainer's thread. On a device without streams (``cpu``) it just moves.
    """

    def __init__(self, fetch: Callable[[], Any], device: Any, finish: Callable[[Any], Any] | None) -> None:
        import torch

        self._torch = torch
        self._fetch = fetch
        self._device = torch.device(device)
        self._finish = finish
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._queue: queue.Queue[tuple[str, Any, Any, Any]] = queue.Queue(maxsize=BATCHES_AHEAD)
        self._copying: deque[tuple[Any, Any]] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._copy_ahead, name="sutler-copy", daemon=True)
        self._thread.start()

    def _copy_ahead(self) -> None:
        try:
            while not self._stopped.is_set():
                self._put("batch", *self._copy(self._fetch()))
        except StopIteration:
            self._put("end", None, None, None)
        except BaseException as error:  # handed to the trainer, who is the one to see it
            self._put("error", error, None, None)

    def _copy(self, item: Any) -> tuple[Any, Any, Any]:
        batch, token = item
        if self._stream is None:
            return _move(batch, lambda tensor: tensor.to(self._device)), None, token
        with self._torch.cuda.stream(self._stream):
            copied = _move(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            if self._finish is not None:
                copied = self._finish(copied)
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return (copied, batch), event, token

    def _put(self, kind: str, value: Any, event: Any, token: Any) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put((kind, value, event, token), timeout=0.1)
                return
            except queue.Full:
                continue

    def next(self) -> tuple[Any, Any]:
        """The next batch on the device, and the token that came with it."""
        while True:
            try:
                kind, value, event, token = self._queue.get(timeout=0.1)
                break
            except queue.Empty:
                if self._stopped.is_set():
                    raise StopIteration from None
        if kind == "end":
            self._stopped.set()
            raise StopIteration
        if kind == "error":
            self._stopped.set()
            raise value
        if event is None:
            return (self._finish(value) if self._finish else value), token
        copied, host = value
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(event)
        _move(copied, lambda tensor: tensor.record_stream(current))
        # A host batch must not be reused before its copy has read it; in steady state that is long done.
        self._copying.append((event, host))
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        return copied, token

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        if self._stream is not None:
            self._stream.synchronize()
        self._copying.clear()
