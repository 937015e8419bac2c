"""Reports of real training steps: a ResNet in training on photos, analysed as a user would, as pages for the docs.

The step is that of `h200`: channels last, bfloat16 autocast, the host running ahead of the device. Photos are copied,
not linked, so that a cold pass really reads each of them from the device that the copies are on. For every model there
are a page, the same as text and as JSON, and one `index.md` that leads to all of them and says what they were made on.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sutler.analysis.wording import spread

from benchmarks import machine, report
from benchmarks.contenders.base import Settings
from benchmarks.h200 import MODELS, Trainer
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import Photos, photo_tree
from benchmarks.worker import ContenderError

#: A page is part of the docs' repository for good, so it may not be larger than this.
PAGE_BYTES_MAX = 300_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--repeat", type=int, default=64, help="copies of each photo, for an epoch long enough"
    )
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cache", help="let the loader keep samples in so much memory, such as 1GiB")
    parser.add_argument("--time", type=float, default=60.0, help="seconds of each analysis")
    parser.add_argument(
        "--warm-up", type=float, default=30.0, help="seconds of training before each analysis"
    )
    parser.add_argument("--verify", action="store_true", help="also run some of the predicted configurations")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/reports"), metavar="FOLDER", help="where the reports go"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    if importlib.util.find_spec("torch") is None:
        raise ContenderError("this benchmark trains with PyTorch: `torch` is not installed here")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with photo_tree(arguments.data, repeat=arguments.repeat, copied=True) as photos:
        facts = machine.facts(photos.root)
        for architecture in arguments.models:
            trainer = Trainer(arguments.device, architecture=architecture)
            say(f"{MODELS[architecture]} on {trainer.device_name}")
            with _telling():
                made = _analyse(arguments, photos, trainer, MODELS[architecture])
            found[architecture] = made
            # What is done is kept, whatever becomes of the next one.
            _write(made, arguments.out / architecture)
            page = _index(found, photos, arguments, facts | {"accelerator": trainer.device_name})
            (arguments.out / "index.md").write_text(page, encoding="utf-8")
        _check_sizes(arguments.out, found)
        raw = {
            "benchmark": "reports",
            "data": photos.description,
            "device": trainer.device_name,
            "reports": {name: made.to_dict() for name, made in found.items()},
        }
        return Outcome(_summary(found, arguments), raw, photos.root.parent)


def _analyse(arguments: argparse.Namespace, photos: Photos, trainer: Trainer, model: str) -> Any:
    import sutler

    from benchmarks.contenders.sutler_loader import pipeline

    settings = Settings(
        str(photos.root), batch_size=arguments.batch_size, threads=arguments.threads, size=arguments.size
    )
    with sutler.Loader(
        sutler.ImageFolder(photos.root, transform=pipeline(settings), progress=False),
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.threads,
        drop_last=True,
        channels_last=True,
        device=trainer.device,
        device_normalize=True,
        cache=arguments.cache,
    ) as loader:
        _warm_up(loader, trainer, arguments.warm_up)
        made = sutler.analyze(
            loader, lambda batch: trainer.step(*batch), time=arguments.time, verify=arguments.verify
        )
    # Where the photos lay on that machine is nobody's business, and what was trained is everybody's.
    subject = replace(made.subject, dataset=f"photos, {model} on {trainer.device_name}")
    return sutler.Report(replace(made.findings, subject=subject))


def _warm_up(loader: Iterable[Any], trainer: Trainer, seconds: float) -> None:
    """Trains for a while, as a machine that was just started may get faster for half a minute.

    A virtual one has to be given each page of its memory when that is first touched.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        say(f"warms up: {trainer.train(loader).per_second:,.0f} samples/s")


def _write(made: Any, path: Path) -> None:
    made.to_html(path.with_suffix(".html"))
    made.to_json(path.with_suffix(".json"))
    path.with_suffix(".txt").write_text(str(made), encoding="utf-8")


def _check_sizes(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        size = (folder / name).with_suffix(".html").stat().st_size
        if size > PAGE_BYTES_MAX:
            raise ContenderError(
                f"`{name}.html` has {size:,} bytes, and pages of the docs may have {PAGE_BYTES_MAX:,}; "
                "look at fewer batches: pass a smaller --time"
            )


@contextmanager
def _telling() -> Iterator[None]:
    """Says what is measured while it is, so that a run that was cut short has said what it was at."""
    progress, telling = logging.getLogger("sutler.analysis"), logging.StreamHandler()
    telling.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    level = progress.level
    progress.addHandler(telling)
    progress.setLevel(logging.INFO)
    try:
        yield
    finally:
        progress.setLevel(level)
        progress.removeHandler(telling)


def _row(name: str, made: Any) -> list[str]:
    stalls = made.stalls
    return [
        MODELS[name],
        *(
            f"{known.value:,.0f} ({spread(known)})"
            for known in (made.rates["G"].samples_per_s, made.findings.measured)
        ),
        *(f"{100 * share:.1f} %" for share in (stalls.trainer, stalls.fetch, stalls.prep, stalls.transport)),
    ]


_HEADER = [
    "",
    "takes/s",
    "gets/s",
    "training",
    "waits for storage",
    "for preparation",
    "for batches to arrive",
]


def _summary(found: dict[str, Any], arguments: argparse.Namespace) -> str:
    table = report.table(_HEADER, [_row(name, made) for name, made in found.items()])
    advice = [f"{MODELS[name]}: {made.recommendation}" for name, made in found.items()]
    return "\n\n".join([table, *advice, f"The reports are in {arguments.out.name}: {', '.join(found)}."])


def _index(
    found: dict[str, Any], photos: Photos, arguments: argparse.Namespace, facts: dict[str, str]
) -> str:
    """The page that leads to the reports."""
    header = ["model", *_HEADER[1:], "report"]
    rows = [
        [*_row(name, made), f"[page]({name}.html), [text]({name}.txt), [JSON]({name}.json)"]
        for name, made in found.items()
    ]
    advice = [f"**{MODELS[name]}.** {made.recommendation}" for name, made in found.items()]
    setting = (
        f"{photos.description}, batches of {arguments.batch_size}, {arguments.threads} threads, "
        f"{'a cache of ' + arguments.cache if arguments.cache else 'no cache'}; bfloat16 autocast, channels last, "
        "normalised on the device."
        if facts["accelerator"] != "the processor"
        else f"{photos.description}, batches of {arguments.batch_size}, {arguments.threads} threads; trained on "
        "processors."
    )
    words = ["reports", *(["--verify"] if arguments.verify else []), "--data PHOTOS"]
    words += [f"--repeat {arguments.repeat} --time {arguments.time:.0f} --warm-up {arguments.warm_up:.0f}"]
    lines = [
        "# Reports of real trainings",
        "",
        "What [`sutler.analyze`](../guides/analyse.md) says of real training steps. [Reading a report]"
        "(../guides/reading-a-report.md) explains every part of them. Rates are in samples per second.",
        "",
        *_markdown(header, rows),
        "",
        *(line for paragraph in advice for line in (paragraph, "")),
        f"The setting: {setting}",
        "",
        *_markdown(["made on", ""], [[key, value] for key, value in (facts | machine.versions()).items()]),
        "",
        "The command, for reports of your own machine:",
        "",
        "```console",
        f"$ python -m benchmarks {' '.join(words)}",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
