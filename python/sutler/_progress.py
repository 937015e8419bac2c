"""A bar with the rate and the share of time spent waiting."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Any

from sutler.audio import AudioFolder
from sutler.text import TextLines
from sutler.volumes import VolumeFolder

if TYPE_CHECKING:
    from sutler._epoch import EpochIterator, Position
    from sutler.loader import Loader


class ProgressIterator(Iterator[Any]):
    """The same batches, with a tqdm bar over them."""

    def __init__(self, iterator: EpochIterator, loader: Loader) -> None:
        self._iterator = iterator
        self._batches = _show(iterator, loader)

    @property
    def left(self) -> int | None:
        """How many batches are still to come, where that is known."""
        return self._iterator.left

    @property
    def latest(self) -> range:
        """The part of the epoch's order that the latest batch took."""
        return self._iterator.latest

    def begin(self) -> Position:
        """Settles which epoch this is, and tells where in it the pass stands."""
        return self._iterator.begin()

    def __len__(self) -> int:
        return len(self._iterator)

    def __next__(self) -> Any:
        return next(self._batches)


def _show(iterator: EpochIterator, loader: Loader) -> Iterator[Any]:
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "progress=True needs tqdm. Install it with `pip install tqdm`, or pass progress=False."
        ) from None
    iterator.begin()  # so that the bar names the right epoch
    before = loader.stats()
    # What a dataset written in Python has mostly is pictures; where we know that it is something else, we say so.
    unit = "samples/s" if isinstance(loader._origin, AudioFolder | VolumeFolder | TextLines) else "img/s"
    with tqdm(total=length_hint(iterator) or None, unit="batch", desc=f"epoch {iterator.epoch}") as bar:
        for batch in iterator:
            bar.update()
            now = loader.stats()
            seconds = now["seconds"] - before["seconds"]
            if seconds > 0:
                rate = (now["samples"] - before["samples"]) / seconds
                waited = (now["wait_seconds"] - before["wait_seconds"]) / seconds
                told = f"{rate:,.0f} {unit}, {waited:.0%} stalled"
                slow = now["slow_share"]["mean"]
                if slow > 0:
                    told += f", {slow:.0%} slow"
                bar.set_postfix_str(told, refresh=False)
            yield batch
