"""A sample that takes long makes room for others between two of its transforms.

What it has become so far is on the stack of the thread that prepares it, and a stack cannot be put aside. So the
thread waits where it is, and another one of the worker's threads takes its place in the conversation with the
trainer. Only one of them runs at any time: it has the *turn*. As long as nothing makes room there is only the first.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sutler._seeding import put_aside
from sutler._words import name_of

#: An order that says this never has its sample make room.
NEVER = 2**64 - 1

#: What a sample does before its first transform.
FIRST_STEP = "load"


class Dropped(BaseException):
    """Nobody wants the sample any more: leave it as it is."""


class Ended(BaseException):
    """Another thread of the worker has come to its end, and the process with it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Pause:
    """A thread that waits for its turn."""

    def __init__(self) -> None:
        self._turn = threading.Event()
        self.dropped = False

    def wait(self) -> None:
        self._turn.wait()

    def end(self) -> None:
        self._turn.set()


@dataclass
class _Sample:
    """The sample that the thread with the turn is at."""

    #: From when on it makes sense to ask whether others are to go first.
    asks_from: float
    #: When the step at hand began, and what it is called.
    begun: float
    name: str = FIRST_STEP
    #: The steps that are done: what they are called, and how many microseconds each took.
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    dropped: bool = False

    def begin(self, name: str | None, now: float) -> None:
        """The step at hand ends, and another one begins."""
        self.names.append(self.name)
        self.times.append(int(1e6 * (now - self.begun)))
        self.name = name or f"step {len(self.names) + 1}"
        self.begun = now


class Turns:
    """The threads of a worker process, of which one runs.

    Args:
        ask: Asks the trainer whether a sample makes room, which would have this token from then on and has so many
            steps behind it.
        suspend: Notes all that belongs to a sample and is not on its thread's stack; returns what brings it back, or
            `None` where the sample cannot make room now.
        serve: The worker's conversation with the trainer, for ever.
    """

    def __init__(
        self,
        ask: Callable[[int, int], bool],
        suspend: Callable[[], Callable[[], None] | None],
        serve: Callable[[], None],
    ) -> None:
        self._ask = ask
        self._suspend = suspend
        self._serve = serve
        self._first = threading.get_ident()
        self._running = self._first
        self._sample: _Sample | None = None
        self._tokens = 0
        self._standing: dict[int, _Pause] = {}
        self._idle: list[_Pause] = []
        #: Where the first thread waits, and what ended another one.
        self._first_pause: _Pause | None = None
        self._error: BaseException | None = None

    @contextmanager
    def sample(self, asks_after: int) -> Iterator[_Sample]:
        """A sample is prepared inside; it may make room once it has taken so many microseconds."""
        now = time.perf_counter()
        asks_from = math.inf if asks_after == NEVER else now + asks_after / 1e6
        sample = self._sample = _Sample(asks_from, now)
        try:
            yield sample
        finally:
            self._sample = None
        if sample.dropped:  # whoever catches everything has caught that, too
            raise Dropped
        if sample.names:  # what nobody divided into steps has none
            sample.begin(None, time.perf_counter())

    def begin(self, name: str) -> None:
        """The sample's first transform begins: what comes before it is a step of its own, where none makes room."""
        sample = self._sample
        if sample is not None and threading.get_ident() == self._running:
            sample.begin(name, time.perf_counter())

    def between(self, name: str | None = None) -> None:
        """The sample is between two steps: it makes room here, if it has taken long and the trainer says so."""
        sample = self._sample
        if sample is None or threading.get_ident() != self._running:
            return  # nobody's sample, or a thread that the dataset has started
        now = time.perf_counter()
        sample.begin(name, now)
        if now < sample.asks_from:
            return
        resume = self._suspend()
        if resume is None:
            return
        self._tokens += 1
        token = self._tokens
        if not self._ask(token, len(sample.times)):
            sample.begun = time.perf_counter()
            return
        left = time.perf_counter()
        pause = self._standing[token] = _Pause()
        # A native dataset's Python part has the generators to itself, and all others would wait for it.
        take_up_seeding = put_aside()
        self._sample = None
        self._pass_on()
        self._wait(pause)
        if pause.dropped:
            sample.dropped = True
            raise Dropped
        sample.asks_from += time.perf_counter() - left
        self._sample = sample
        take_up_seeding()
        resume()
        sample.begun = time.perf_counter()

    def go_on(self, token: int) -> None:
        """Gives the turn to a sample that stands, and waits for another."""
        self._swap(self._standing.pop(token))

    def forget(self, tokens: tuple[int, ...]) -> None:
        """Lets go of samples that stand."""
        for token in tokens:
            pause = self._standing.pop(token)
            pause.dropped = True
            self._swap(pause)

    def give_back(self) -> None:
        """The thread that runs has let go of its sample, and returns the turn to whoever told it to."""
        pause = _Pause()
        waiting = self._idle.pop()
        self._idle.insert(0, pause)
        waiting.end()
        self._wait(pause)

    def _swap(self, other: _Pause) -> None:
        pause = _Pause()
        self._idle.append(pause)
        other.end()
        self._wait(pause)

    def _pass_on(self) -> None:
        """Lets another thread have the turn: one that waits for something to do, or a new one."""
        if self._idle:
            self._idle.pop().end()
            return
        # What `worker_init_fn` has set for its thread is to hold for all.
        grad = _grad_enabled()
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._live, grad), name="sutler-worker", daemon=True)
        thread.start()

    def _wait(self, pause: _Pause) -> None:
        first = threading.get_ident() == self._first
        if first:
            self._first_pause = pause
        pause.wait()
        if first:
            self._first_pause = None
            if self._error is not None:
                raise Ended(self._error)
        self._running = threading.get_ident()

    def _live(self, grad: bool | None) -> None:
        """The life of a further thread. Whatever ends it ends the process, which is the first one's."""
        self._running = threading.get_ident()
        if grad is not None:
            sys.modules["torch"].set_grad_enabled(grad)
        try:
            self._serve()
        except BaseException as error:
            self._error = error
            # Whoever has the turn is the only one that runs, so the first thread waits somewhere.
            if self._first_pause is not None:
                self._first_pause.end()


def _grad_enabled() -> bool | None:
    torch = sys.modules.get("torch")
    return None if torch is None else bool(torch.is_grad_enabled())


#: The turns of this process, where it is a worker whose samples may make room.
_turns: Turns | None = None


#: The same with the functions behind the native part of a dataset, where the worker serves such a one: each is a step.
_functions: tuple[Turns, Iterable[Callable[..., Any]]] | None = None


def enter(turns: Turns) -> None:
    """From now on samples of this process may make room."""
    global _turns
    _turns = turns
    _teach_torchvision()


def note_functions(turns: Turns, functions: Iterable[Callable[..., Any]]) -> None:
    """From now on these functions behind native transforms are steps of this process's samples."""
    global _functions
    _functions = turns, functions


def begin_function(functions: Iterable[Callable[..., Any]], function: Callable[..., Any]) -> None:
    """One of the functions behind native transforms begins: a sample may make room here, before the first one, too.

    Not where they are another dataset's, which one of the functions asks for something.
    """
    if _functions is not None and _functions[1] is functions:
        _functions[0].between(name_of(function))


def yield_point(name: str | None = None) -> None:
    """Call it in a dataset's ``__getitem__`` between two steps of which each may take long.

    With ``order="ready"``, a sample that takes much longer than most makes room here: its worker process takes up
    another sample, and goes on with this one when there is nothing better to do or when it is due. Anywhere else,
    and for samples that are quick, it does nothing and takes less than a microsecond. Between the transforms of a
    :class:`sutler.transforms.Compose` or of torchvision's it is called already.

    The sample's random numbers are the same with and without. While it waits, other samples run in other threads of
    the worker, one at a time; so do not hold a lock over it.

    Args:
        name: What ``stats()["steps"]`` calls the step that begins here.
    """
    if _turns is not None:
        _turns.between(name)


def begin_step(number: int, transform: Any) -> None:
    """Transform ``number`` of a pipeline begins: a sample may make room here, but for the first one."""
    if _turns is None:
        return
    name = name_of(getattr(transform, "lambd", transform))
    if number > 0:
        _turns.between(name)
    else:
        _turns.begin(name)


def _teach_torchvision() -> None:
    """Lets torchvision's pipelines make room between their transforms, in this process."""
    old: Any = sys.modules.get("torchvision.transforms.transforms")
    if old is not None:
        old.Compose.__call__ = _call_each
    new: Any = sys.modules.get("torchvision.transforms.v2._container")
    if new is not None:
        new.Compose.forward = _forward_each


def _steps(pipeline: Any) -> Iterator[Any]:
    """The transforms of a pipeline, with room for others between them."""
    for number, transform in enumerate(pipeline.transforms):
        begin_step(number, transform)
        yield transform


def _call_each(self: Any, img: Any) -> Any:
    for transform in _steps(self):
        img = transform(img)
    return img


def _forward_each(self: Any, *inputs: Any) -> Any:
    result: Any = inputs if len(inputs) > 1 else inputs[0]
    for transform in _steps(self):
        result = transform(*result) if len(inputs) > 1 else transform(result)
    return result


@contextlib.contextmanager
def ends_as_others_do() -> Iterator[None]:
    """Where another thread has ended the worker, raises what that one did."""
    try:
        yield
    except Ended as ended:
        raise ended.error from None
