"""A training job for others to interrupt: ``python trainer.py SETTINGS``, with the settings as JSON.

Before each step it says on its standard output what comes next. It uses NumPy output, since importing PyTorch takes
longer than all the rest. Ends with exit code 3 when a worker was lost.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it

# Whoever runs the tests in the background may have had Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A round that hangs asks where.
faulthandler.register(signal.SIGUSR1, all_threads=True)
# Python tries the folder out with a file, which an interrupt in that very moment would leave there.
tempfile.gettempdir()

WORKER_LOST = 3


def make_sample(settings: dict[str, Any], index: int) -> Any:
    """An array that may be large, after a while that may be long."""
    time.sleep(settings["stuck_seconds"] if index == settings["stuck_at"] else settings["sample_seconds"])
    # Arrays of one shape are written into the batch; those that differ go through the worker's mailbox.
    size = settings["sample_bytes"] + (index % 7 if settings["ragged"] else 0)
    return np.full(size, index % 251, dtype=np.uint8), index


class Samples:
    """A map-style dataset."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return int(self.settings["samples"])

    def __getitem__(self, index: int) -> Any:
        return make_sample(self.settings, index)


class Stream:
    """A dataset that can only be gone through; each worker takes its share."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __iter__(self) -> Iterator[Any]:
        info = sutler.get_worker_info()
        for index in range(info.id, self.settings["samples"], info.num_workers):
            yield make_sample(self.settings, index)


def make_dataset(settings: dict[str, Any]) -> Any:
    if settings["dataset"] == "native":
        pipeline = T.Compose([T.RandomResizedCrop(settings["photo_size"]), T.GaussianBlur(5)])
        return sutler.ImageFolder(settings["photos"], pipeline)
    return (Stream if settings["dataset"] == "stream" else Samples)(settings)


def make_loader(settings: dict[str, Any]) -> sutler.Loader:
    options: dict[str, Any] = {}
    if settings["dataset"] != "native":
        options = {
            "multiprocessing_context": settings["context"],
            "persistent_workers": settings["persistent"],
        }
    if settings["dataset"] == "map":
        options["errors"] = settings["errors"]
    if settings["ragged"]:
        options["collate_fn"] = list
    return sutler.Loader(
        make_dataset(settings),
        batch_size=settings["batch_size"],
        num_workers=settings["workers"],
        output="numpy",
        **options,
    )


def say(what: str) -> None:
    print(what, flush=True)


def train(settings: dict[str, Any]) -> None:
    say("starting")
    loader = make_loader(settings)
    batches = -(-settings["samples"] // settings["batch_size"])
    for epoch in range(2):
        say(f"epoch {epoch}")
        count = 0
        for count, _batch in enumerate(loader, 1):
            if count == batches // 2:
                say(f"middle {epoch}")
            if count == batches:
                say(f"ending {epoch}")
        if settings["dataset"] != "stream" and settings["errors"] == "raise" and count != batches:
            raise AssertionError(f"epoch {epoch} had {count} batches instead of {batches}")
    say("closing")
    loader.close()
    say("done")


if __name__ == "__main__":
    try:
        train(json.loads(sys.argv[1]))
    except (sutler.WorkerError, sutler.WorkerStartError):
        sys.exit(WORKER_LOST)
