"""What a hit saves, by form: one thread's rate from storage, from copies in memory and from the window jobs share.

Four ways to the same photos: as files in the page cache, from encoded copies, from decoded ones, and as finished
samples that another job has prepared. Each way is a job on an engine without threads of its own, which works in its
consumer's, so that the processor time of the process is that of the samples. For the window two jobs take turns; the
first prepares, and the second, which is the one that counts, finds its samples ready. An uncounted epoch fills the
caches; then each way has an epoch per round, and the one that begins changes from round to round.
"""

from __future__ import annotations

import argparse
import json
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import Photos, photo_tree
from benchmarks.plan_feeds import open_dataset
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError

if TYPE_CHECKING:
    from sutler import _sutler

#: The ways, and what each should be at least, as a multiple of the rate from storage.
TARGETS = {"storage": None, "encoded": None, "decoded": 3.0, "augmented": 10.0}
TITLES = {
    "storage": "files in the page cache",
    "encoded": "encoded copies",
    "decoded": "decoded copies",
    "augmented": "another job's samples",
}

#: How many batches a job takes at a turn where two share.
_TURN = 2


class _Way(ABC):
    """A job whose samples are found in one form."""

    def __init__(self, dataset: Any, form: str, batch_size: int) -> None:
        from sutler import _sutler

        self._dataset = dataset
        self._form = form
        self._batch_size = batch_size
        # Without threads it works in the thread that asks for a batch.
        self._engine = _sutler.Engine(0)
        self._job = self._new_job()
        self._epochs = 0

    @abstractmethod
    def _new_job(self) -> _sutler.Job: ...

    @abstractmethod
    def _serve(self) -> float:
        """Serves an epoch and returns the processor time that it took, in seconds."""

    def _open(self, **words: Any) -> _sutler.Job:
        from sutler import _sutler

        return _sutler.Job(
            self._dataset._native,
            self._dataset._pipeline,
            seed=0,
            channels_last=False,
            batch_size=self._batch_size,
            batches_ahead=1,
            batches_held=1,
            ahead_grows=False,
            in_step=False,
            errors="raise",
            **words,
        )

    def _start(self, job: _sutler.Job) -> _sutler.Run:
        return self._engine.start(
            job,
            epoch=self._epochs,
            consumed=0,
            shuffle=True,
            seed=0,
            batch_size=self._batch_size,
            drop_last=False,
            rank=0,
            world_size=1,
        )

    def _served(self) -> dict[str, int]:
        served: dict[str, int] = json.loads(self._job.metrics())["served"]
        return served

    def fill(self) -> None:
        """Serves an epoch that does not count."""
        self._serve()
        self._epochs += 1

    def epoch(self) -> float:
        """Serves an epoch that counts, and makes sure that every sample came in the form in question."""
        before = self._served()
        seconds = self._serve()
        self._epochs += 1
        found = {form: count - before[form] for form, count in self._served().items()}
        if found[self._form] != len(self._dataset):
            raise ContenderError(
                f"of {len(self._dataset)} samples {found[self._form]} came in the form {self._form!r}: {found}; "
                "pass a larger --memory-mib"
            )
        return seconds


class _Alone(_Way):
    """A job with a cache of its own, or none."""

    def __init__(self, dataset: Any, form: str, batch_size: int, memory: int) -> None:
        self._memory = memory
        super().__init__(dataset, form, batch_size)

    def _new_job(self) -> _sutler.Job:
        from sutler import _sutler

        if self._form == "storage":
            return self._open()
        cache = _sutler.Cache(
            len(self._dataset),
            budget_bytes=self._memory,
            encoded_percent=100 if self._form == "encoded" else 0,
            decoded_percent=100 if self._form == "decoded" else 0,
            policy="pinned",
            seed=0,
            any_split=False,
        )
        return self._open(cache=cache)

    def _serve(self) -> float:
        run = self._start(self._job)
        started = time.process_time()
        while run.next() is not None:
            pass
        return time.process_time() - started


class _Behind(_Way):
    """A job that takes what another one has prepared."""

    def _new_job(self) -> _sutler.Job:
        window = len(self._dataset) * self._dataset[0][0].nbytes
        self._first = self._open(lateness=8, shared=True, window_bytes=window)
        return self._open(lateness=8, shared=True, shares_with=self._first)

    def _serve(self) -> float:
        ahead, behind = self._start(self._first), self._start(self._job)
        seconds, more = 0.0, True
        while more:
            for _ in range(_TURN):
                ahead.next()
            started = time.process_time()
            for _ in range(_TURN):
                more = behind.next() is not None
            seconds += time.process_time() - started
        return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipelines", nargs="+", choices=["train", "eval"], default=["train", "eval"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="height and width of a finished sample")
    parser.add_argument("--repeat", type=int, default=2, help="list each photo this often")
    parser.add_argument(
        "--memory-mib", type=int, default=2048, help="for copies of all samples, in each form that is kept"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    with photo_tree(arguments.data, repeat=arguments.repeat) as photos:
        seconds = {pipeline: _measure(pipeline, photos, arguments) for pipeline in arguments.pipelines}
        raw = {
            "benchmark": "kept",
            "data": photos.description,
            "settings": {name: getattr(arguments, name) for name in ("batch_size", "size", "rounds")},
            "samples": photos.samples,
            "cpu_seconds": seconds,
        }
        head = (
            f"What a hit saves: {photos.description}\n"
            f"one thread, float32, batches of {arguments.batch_size}, {arguments.rounds} interleaved rounds\n"
        )
        tables = [_summary(pipeline, each, photos.samples) for pipeline, each in seconds.items()]
        return Outcome("\n".join([head, *tables]), raw, photos.root.parent)


def _measure(pipeline: str, photos: Photos, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The processor seconds of each way's epochs."""
    dataset = open_dataset(photos.root, pipeline, arguments.size, io="buffered")
    memory = arguments.memory_mib << 20
    ways: dict[str, _Way] = {
        form: _Alone(dataset, form, arguments.batch_size, memory)
        for form in ("storage", "encoded", "decoded")
    }
    ways["augmented"] = _Behind(dataset, "augmented", arguments.batch_size)
    say(f"{pipeline}: filling the caches")
    for way in ways.values():
        way.fill()
    seconds: dict[str, list[float]] = {form: [] for form in ways}
    for number in range(arguments.rounds):
        say(f"{pipeline}: round {number + 1} of {arguments.rounds}")
        for form in in_turn(ways, number):
            seconds[form].append(ways[form].epoch())
    return seconds


def _summary(pipeline: str, seconds: dict[str, list[float]], samples: int) -> str:
    rows, verdicts = [], []
    for form, title in TITLES.items():
        gains = report.ratios(seconds["storage"], seconds[form])
        gain = report.median(gains)
        rate = report.median([samples / each for each in seconds[form]])
        rows.append([title, f"{rate:,.0f}", f"{gain:.2f}", report.spread(gains, 2)])
        target = TARGETS[form]
        if target is not None:
            verdict = "reached" if gain >= target else "missed"
            verdicts.append(f"target: {pipeline}, {title} ≥ {target:g} × storage: {gain:.2f} ×, {verdict}")
    header = [pipeline, "samples per CPU second", "× storage", "min..max"]
    return "\n".join([report.table(header, rows), "", *verdicts, ""])
