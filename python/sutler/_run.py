"""The consumer's end of an epoch that the engine runs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler.errors import WorkerError

if TYPE_CHECKING:
    from sutler._epoch import Progress
    from sutler._sampling import Feed
    from sutler._sutler import Batch, Run
    from sutler.errors import WorkerStartError
    from sutler.loader import Loader


class TimedOutError(RuntimeError):
    """No batch was ready in the time that the user gave; the next request waits for the same one."""


class RunReader:
    """Takes the batches of a run one after the other, and has its sampler drawn as they are needed."""

    def __init__(
        self,
        loader: Loader,
        run: Run,
        feed: Feed | None,
        doing: Callable[[], str] = lambda: "",
        failed_start: Callable[[], WorkerStartError | None] = lambda: None,
        understood: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        self._run = run
        #: What to raise in place of a worker's death where that had not even begun.
        self._failed_start = failed_start
        #: Tells what the workers are at, where that is known.
        self._doing = doing
        #: What to raise for what the engine tells of a worker, where more is known than that.
        self._understood = understood
        self._feed = feed
        self._selection = loader._selection
        self._timeout = loader.timeout
        self._in_order = loader.order == "strict"
        self._delivered = 0
        #: How many batches there are in all, once that is known.
        self.total = None if feed is not None else run.batches
        self._top_up()  # preparation begins with the epoch, not with the first request

    @property
    def interrupted(self) -> bool:
        """Whether the latest request was broken off by a signal's handler: the next one gets what it was to get."""
        return self._run.holds_batch

    @property
    def passed(self) -> int:
        """How many batches of the epoch have come, could not be made, or had nothing in them."""
        return self._delivered

    def next(self) -> tuple[Batch, Progress] | None:
        """The next batch and how far the epoch is with it; ``None`` at the end."""
        try:
            batch = self._next_batch()
        except _sutler.NotInTime:
            raise TimedOutError(
                f"DataLoader timed out after {self._timeout} seconds{self._doing()}"
            ) from None
        except WorkerError as error:
            # Not by way of a name, with which the error would hold itself, and all that its traceback leads to.
            raise self._failed_start() or self._renamed(error) from None
        except Exception as error:
            if self.interrupted:
                raise
            self._delivered += 1  # passed over, where the epoch goes on at all
            renamed = self._renamed(error)
            if renamed is not error:
                raise renamed from error.__cause__
            raise
        if batch is None:
            return None
        self._delivered += 1 + self._run.take_passed()
        return batch, self._run.consumed if self._in_order else batch.positions()

    def _renamed(self, error: Exception) -> Exception:
        """The same error about the sample as users know it."""
        understood = self._understood(error)
        return understood if self._selection is None else self._selection.renamed_error(understood)

    def _next_batch(self) -> Batch | None:
        while True:
            self._top_up()
            try:
                return self._run.next(self._timeout or None)
            except _sutler.PassedOver:
                self._delivered += self._run.take_passed()

    def handed_over(self, prepared: bool) -> None:
        """The latest batch is in the trainer's hands only now; see `AssembledBatches.prepares`."""
        self._run.handed_over(prepared)

    def last_delivery(self) -> tuple[float, float, float, int]:
        """What was waited for before the latest batch came, and how many samples it has."""
        return self._run.last_delivery()

    def _top_up(self) -> None:
        if self._feed is not None and not self._feed.ended:
            self._feed.top_up(self._run, self._delivered)
            if self._feed.ended:
                self.total = self._run.batches


class AssembledBatches(ABC):
    """The batches of a run, each made into what the user asked for when it comes."""

    #: Whether the user's functions run for it in this process, so that it counts as preparation; else it is transport.
    prepares = False
    #: Who is told when the making of a batch began, once it is made, if anybody is.
    notes: Callable[[float], None] | None = None

    def __init__(self, run: RunReader) -> None:
        self._run = run

    @property
    def total(self) -> int | None:
        """How many batches there are in all, once that is known."""
        return self._run.total

    def next(self) -> tuple[Any, Progress] | None:
        """The next batch and how far the epoch is with it; ``None`` at the end."""
        answer = self._run.next()
        if answer is None:
            return None
        batch, progress = answer
        began = time.perf_counter()
        try:
            made = self._assemble(batch)
            if self.notes is not None:
                self.notes(began)
            return made, progress
        except StopIteration as error:
            # It would pass for the end of the epoch.
            raise RuntimeError(
                "a collate_fn, target_transform or transform raised StopIteration; an epoch ends on its own"
            ) from error
        finally:
            self._run.handed_over(self.prepares)

    @property
    def interrupted(self) -> bool:
        """Whether the latest request was broken off before the batch was taken."""
        return self._run.interrupted

    def last_delivery(self) -> tuple[float, float, float, int]:
        """What was waited for before the latest batch came, and how many samples it has."""
        return self._run.last_delivery()

    @abstractmethod
    def _assemble(self, batch: Batch) -> Any:
        """What the user asked for, from what the engine delivered."""
