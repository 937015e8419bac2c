"""`sutler analyze`: what its arguments ask for. The command line itself is read in `sutler-cli`."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sutler import transforms
from sutler.analysis.accelerators import accelerator
from sutler.analysis.analyzing import LongAnalysisWarning, analyze
from sutler.analysis.places import writable
from sutler.analysis.terminal import show
from sutler.datasets import ImageFolder, Manifest, NativeDataset
from sutler.errors import SutlerError
from sutler.loader import Loader

#: ImageNet's mean and deviation, as everybody uses them.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class WrongArgumentError(ValueError):
    """An argument that cannot be right, which is known before anything is measured."""


class Outcome:
    """What the command line cannot be told by the words of a failure alone."""

    #: Whether an argument was wrong, as the exit code tells.
    wrong_argument = False


def run(request: str) -> str | None:
    """Carries the command out; returns why it failed, as the sentences a person reads."""
    arguments: dict[str, Any] = json.loads(request)
    try:
        _check(arguments)
    except WrongArgumentError as error:
        Outcome.wrong_argument = True
        return f"{error}\n\nFor more information, try '--help'."
    try:
        with warnings.catch_warnings():
            # What is worth knowing about the figures stands in the report.
            warnings.simplefilter("ignore")
            # But that it takes long is to be known while it does.
            warnings.simplefilter("always", LongAnalysisWarning)
            warnings.showwarning = _tell
            _run(arguments)
    except (OSError, TypeError, ValueError, RuntimeError, SutlerError) as error:
        return str(error) or type(error).__name__
    return None


def _tell(message: Warning | str, *_where: object, **_more: object) -> None:
    """A warning as a person at a terminal reads it: without the line of code that it came from."""
    bar = "\r\033[K" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{bar}{message}\n")
    sys.stderr.flush()


def _check(arguments: dict[str, Any]) -> None:
    """What is wrong with the arguments that only Python knows about.

    Raises:
        WrongArgumentError: One of them cannot be right.
    """
    for option in ("html", "trace"):
        if arguments[option] is not None:
            # Before anything is measured: nobody wants to hear after minutes that the result could not be written.
            try:
                writable(arguments[option])
            except OSError as error:
                raise WrongArgumentError(f"--{option}: {error}") from None
    if arguments["html"] is not None and arguments["html"] == arguments["trace"]:
        raise WrongArgumentError(
            f"--html and --trace name the same file, {arguments['html']}; one would overwrite the other"
        )
    if arguments["accelerator"] is not None:
        try:
            accelerator(arguments["accelerator"])
        except ValueError as error:
            raise WrongArgumentError(f"--accelerator: {error}") from None


def _run(arguments: dict[str, Any]) -> None:
    job = arguments["job"]
    batch_size = job["batch_size"]
    if arguments["accelerator"] is not None:
        batch_size = accelerator(arguments["accelerator"]).batch_size
    dataset = _open(arguments["dataset"]["path"], _pipeline(job["pipeline"], job["size"]))
    with (
        Loader(
            dataset,
            batch_size=batch_size,
            shuffle=True,
            num_workers=job["threads"],
            cache=arguments["cache"],
            errors="skip",
            output="numpy",
        ) as loader,
        _progress(arguments["time"]),
    ):
        report = analyze(
            loader,
            arguments["step_time"],
            arguments["batches"],
            accelerator=arguments["accelerator"],
            verify=arguments["verify"],
            time=arguments["time"],
            storage_mbps=job["storage_mbps"],
        )
    if arguments["html"] is not None:
        report.to_html(arguments["html"])
    if arguments["trace"] is not None:
        report.to_trace(arguments["trace"])
    if arguments["json"]:
        sys.stdout.write(f"{report.to_json()}\n")
    else:
        show(report.findings)
    sys.stdout.flush()


@contextlib.contextmanager
def _progress(seconds: float) -> Iterator[None]:
    """A bar on the terminal, by the clock: how long it measures is the one thing that is known beforehand."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        begun = time.monotonic()
        while not done.wait(0.1):
            passed = time.monotonic() - begun
            bar = "#" * min(40, int(40 * passed / seconds))
            sys.stderr.write(f"\rmeasuring [{bar:<40}] {passed:.0f} s of about {seconds:.0f} s")
            sys.stderr.flush()
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    bar = threading.Thread(target=show, daemon=True)
    bar.start()
    try:
        yield
    finally:
        done.set()
        bar.join()


def _open(path: str, transform: Any) -> NativeDataset:
    return Manifest(path, transform) if Path(path).is_file() else ImageFolder(path, transform)


def _pipeline(name: str, size: int) -> transforms.Compose:
    """The pipelines that `sutler bench` runs as well."""
    last = [transforms.Normalize(_MEAN, _STD)]
    if name == "train":
        first = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    else:
        first = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
    return transforms.Compose([*first, *last])
