"""Who prepares lines of text: native threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._run import RunReader
from sutler._text_batches import TextBatches
from sutler.cache import open_cache

if TYPE_CHECKING:
    from sutler._agent import AgentChoice
    from sutler._backend import BatchSource
    from sutler._keys import KeyTable
    from sutler._sampling import Feed
    from sutler.loader import Loader
    from sutler.text import TextLines


class TextBackend:
    """Files of text: native threads read, tokenize and pack the lines."""

    keys: KeyTable | None = None
    agent: AgentChoice | None = None

    def __init__(self, loader: Loader, dataset: TextLines) -> None:
        if loader.order == "shared":
            raise ValueError(
                "order='shared' is for images and sound; pass order='ready' to get lines as they get ready"
            )
        self._dataset = dataset
        self._selection = loader._selection
        self._policy = loader._policy
        self._lateness = loader._lateness()
        #: Documents are packed in another order in every epoch, where the loader shuffles.
        self._shuffle = loader.seed if loader.shuffle else None
        #: Lines are padded natively, unless Python has something to do to each of them first.
        one_by_one = not dataset.is_native or loader.collate_fn is not None or not loader._batched()
        self._pad = None if one_by_one or dataset.pack is not None else dataset.pad
        self.device_operations: list[dict[str, Any]] = []
        self._cache_wanted = loader.cache
        self._seed = loader.seed
        #: Made at once, so that a size that cannot be had is known before training begins. It costs nothing until used.
        self._cache = self._make_cache()

    def _make_cache(self) -> _sutler.Cache | None:
        """Where copies of lines are kept, also where they are packed: each epoch packs others together."""
        if self._cache_wanted is None:
            return None
        return open_cache(self._cache_wanted, self._dataset._native.lines, "text", self._seed)

    def fingerprint(self) -> str:
        """The hash of the files' content, the tokenizer and the packing, and of which samples are served if not all."""
        whole = self._dataset.fingerprint
        return whole if self._selection is None else self._selection.named(whole)

    def make_job(
        self, batch_size: int, batches_ahead: int, batches_held: int, *, grows: bool, in_step: bool
    ) -> _sutler.Job:
        """A job over the dataset's lines."""
        return _sutler.Job.with_text(
            self._dataset._native,
            batch_size=batch_size,
            batches_ahead=batches_ahead,
            ahead_grows=grows,
            batches_held=batches_held,
            in_step=in_step,
            errors=self._policy.name,
            errors_max=self._policy.max,
            errors_rate=self._policy.rate,
            lateness=self._lateness,
            shuffle=self._shuffle,
            pad=self._pad,
            pad_multiple=self._dataset.padded_length(1),
            cache=self._cache,
        )

    def source(
        self, loader: Loader, run: _sutler.Run, job: _sutler.Job, epoch: int, feed: Feed | None
    ) -> BatchSource:
        """Batches as the threads wrote them."""
        return TextBatches(loader, self._dataset, RunReader(loader, run, feed), epoch)

    def cache_figures(self) -> dict[str, Any] | None:
        """What the cache holds, if there is one."""
        return None if self._cache is None else json.loads(self._cache.figures())

    def enter_epoch(self, loader: Loader, job: _sutler.Job) -> None:
        """Threads are always ready."""

    def announce_keys(self, job: _sutler.Job) -> None:
        """Every sample has a number."""

    def processes(self) -> list[Any]:
        """Threads are none."""
        return []

    def leave_epoch(self, job: _sutler.Job) -> None:
        """Threads stay."""

    def forget(self) -> None:
        """Files may be read by a parent and a child at the same time; the cache is the parent's."""
        self._cache = self._make_cache()

    def hang_up(self, job: _sutler.Job) -> None:
        """Threads end by themselves."""

    def end(self) -> None:
        """Nobody needs the cache any more."""
        self._cache = None
