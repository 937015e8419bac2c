"""A ResNet-18 in training, fed by Sutler and by its peers: how long the accelerator waits.

The step is the usual fast one: channels last, bfloat16 autocast, the host running ahead of the device. Its rate on one
batch that stays on the device is the ceiling; what a feed falls short of it, the accelerator stalls. Feeds take turns;
the first epoch of each starts workers and fills the page cache, and is shown apart.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import report
from benchmarks.contenders.base import MEAN, STD, Settings
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.worker import ContenderError

#: The share of time the accelerator may wait from the second epoch on.
TARGET_STALLED = 0.05
CLASSES = 1000
#: Steps before a rate is taken: kernels are chosen and memory is found in the first ones.
STEPS_WARMING_UP = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=20_480, help="samples in an epoch, made by linking")
    parser.add_argument("--epochs", type=int, default=6, help="epochs per feed, the first uncounted")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--cache", help="also feed from decoded samples kept in so much memory, such as 40GiB"
    )
    parser.add_argument("--seconds-max", type=float, default=330, help="begin no round after this long")


@dataclass
class Fed:
    """One epoch of training."""

    samples: int
    seconds: float
    first_batch_seconds: float
    #: Time that the host spent waiting for batches; the device may have been busy meanwhile.
    wait_seconds: float

    @property
    def per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def steady_per_second(self) -> float:
        """The rate once the first batch is there: what a long epoch comes close to."""
        return self.samples / (self.seconds - self.first_batch_seconds)


class Trainer:
    """The model and its step."""

    def __init__(self, device: str, learning_rate: float = 0.01, architecture: str = "resnet18") -> None:
        import torch
        from torch import nn

        self.torch = torch
        self.device = torch.device(device)
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise ContenderError(
                    "this benchmark needs a CUDA device; pass --device cpu to try it without one"
                )
            torch.backends.cudnn.benchmark = True
        self.precision = "bfloat16" if self.device.type == "cuda" else "float32"
        model, self.model_name = _model(architecture)
        self.model = model.to(self.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        self.mean = torch.tensor(MEAN, device=self.device).view(1, 3, 1, 1)
        self.std = torch.tensor(STD, device=self.device).view(1, 3, 1, 1)

    @property
    def device_name(self) -> str:
        if self.device.type == "cuda":
            return str(self.torch.cuda.get_device_name(self.device))
        return "the processor"

    def step(self, images: Any, labels: Any) -> None:
        torch = self.torch
        images = images.to(self.device, memory_format=torch.channels_last, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = images.float().div_(255).sub_(self.mean).div_(self.std)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            loss = self.loss(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def train(self, batches: Iterable[Any]) -> Fed:
        """An epoch; the device's work is waited for before the clock is stopped."""
        samples = 0
        waited = first = 0.0
        started = asked = time.perf_counter()
        for images, labels in batches:
            waited += time.perf_counter() - asked
            if not samples:
                first = waited
            samples += len(labels)
            self.step(images, labels)
            asked = time.perf_counter()
        self.wait()
        return Fed(samples, time.perf_counter() - started, first, waited)


#: The models that can be trained, as people write them.
MODELS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}


def _model(architecture: str) -> tuple[Any, str]:
    name = MODELS[architecture]
    if importlib.util.find_spec("torchvision") is not None:
        from torchvision import models

        return models.get_model(architecture), f"torchvision's {name}"
    if architecture != "resnet18":
        raise ContenderError(f"{name} is torchvision's, and `torchvision` is not installed here")
    from benchmarks.resnet import resnet18

    return resnet18(CLASSES), f"an own {name}, as torchvision is not installed"


class Feeds:
    """The ways to feed the trainer: under each name, what can be iterated over for an epoch."""

    def __init__(self, settings: Settings, trainer: Trainer, steps: int, cache: str | None = None) -> None:
        self.settings = settings
        self.cache = cache
        self.trainer = trainer
        self.steps = steps
        self.notes: list[str] = []
        self.epochs: dict[str, Iterable[Any]] = {"synthetic": self._synthetic()}
        self._closers: list[Callable[[], None]] = []
        # PyTorch's go first: their workers are forked in their first epoch, before Sutler has threads.
        if importlib.util.find_spec("torchvision") is None:
            self.notes.append("torch's feeds are left out: `torchvision` is not installed here.")
        else:
            self._add_torch()
        self._add_sutler()

    def _synthetic(self) -> list[Any]:
        torch, settings = self.trainer.torch, self.settings
        shape = (settings.batch_size, 3, settings.size, settings.size)
        images = torch.randn(shape, device=self.trainer.device).to(memory_format=torch.channels_last)
        labels = torch.randint(CLASSES, (settings.batch_size,), device=self.trainer.device)
        return [(images, labels)] * self.steps

    def _add_torch(self) -> None:
        from torch.utils.data import DataLoader

        from benchmarks.contenders.torch_loader import pil_dataset, v2_dataset

        for name, dataset in (("torch + PIL", pil_dataset), ("torch + decode_jpeg + v2", v2_dataset)):
            loader: DataLoader[Any] = DataLoader(
                dataset(self.settings),
                batch_size=self.settings.batch_size,
                shuffle=True,
                num_workers=self.settings.threads,
                pin_memory=self.trainer.device.type == "cuda",
                drop_last=True,
                persistent_workers=True,
            )
            self.epochs[name] = loader

    def _add_sutler(self) -> None:
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        from benchmarks.contenders.sutler_loader import pipeline

        prepare = pipeline(self.settings)
        to_bytes = T.Compose([T.RandomResizedCrop(self.settings.size), T.RandomHorizontalFlip()])
        feeds: list[tuple[str, Any, bool, Any]] = [
            ("Sutler", prepare, False, None),
            ("Sutler, device_normalize", prepare, True, None),
            ("Sutler, bytes", to_bytes, False, None),
        ]
        if self.cache is not None:
            kept = sutler.Cache(self.cache, split="0-100-0")
            feeds.append(("Sutler, device_normalize, decoded kept", prepare, True, kept))
        for name, transform, device_normalize, cache in feeds:
            loader = sutler.Loader(
                sutler.ImageFolder(self.settings.root, transform=transform, progress=False),
                batch_size=self.settings.batch_size,
                shuffle=True,
                num_workers=self.settings.threads,
                drop_last=True,
                channels_last=True,
                device=self.trainer.device,
                device_normalize=device_normalize,
                cache=cache,
            )
            self.epochs[name] = loader
            self._closers.append(loader.close)

    def close(self) -> None:
        for close in self._closers:
            close()


def measure(arguments: argparse.Namespace) -> Outcome:
    if importlib.util.find_spec("torch") is None:
        raise ContenderError("this benchmark trains with PyTorch: `torch` is not installed here")
    began = time.perf_counter()
    trainer = Trainer(arguments.device)
    with photo_tree(arguments.data, samples=arguments.samples) as photos:
        settings = Settings(
            str(photos.root), batch_size=arguments.batch_size, threads=arguments.threads, size=arguments.size
        )
        feeds = Feeds(settings, trainer, steps=photos.samples // arguments.batch_size, cache=arguments.cache)
        try:
            fed = _take_turns(feeds, arguments, began)
        finally:
            feeds.close()
        device = trainer.device_name
        head = (
            f"training: {trainer.model_name}, {trainer.precision}, channels last, on {device}\n"
            f"{photos.description}, {settings.threads} threads or workers, batches of {settings.batch_size}, "
            f"{len(fed['synthetic'])} interleaved epochs each, the first apart\n"
        )
        summary = "\n".join([head, _table(fed), "", *_verdicts(fed), *feeds.notes]).rstrip()
        raw = {
            "benchmark": "h200",
            "data": photos.description,
            "device": device,
            "model": trainer.model_name,
            "settings": {key: value for key, value in asdict(settings).items() if key != "root"},
            "notes": feeds.notes,
            "feeds": {name: [asdict(epoch) for epoch in epochs] for name, epochs in fed.items()},
            "stalled": {name: report.median(stalled(fed, name)) for name in fed},
        }
        return Outcome(summary, raw, photos.root.parent)


def _take_turns(feeds: Feeds, arguments: argparse.Namespace, began: float) -> dict[str, list[Fed]]:
    trainer = feeds.trainer
    fed: dict[str, list[Fed]] = {name: [] for name in feeds.epochs}
    for batch in itertools.islice(feeds.epochs["synthetic"], STEPS_WARMING_UP):
        trainer.step(*batch)
    trainer.wait()
    for number in range(arguments.epochs):
        if number and time.perf_counter() - began > arguments.seconds_max:
            feeds.notes.append(f"Only {number} of {arguments.epochs} epochs: the time was up.")
            break
        for name in list(fed):
            try:
                epoch = trainer.train(feeds.epochs[name])
            except Exception as error:
                # A peer that fails, for example for want of shared memory, must not cost the others their figures.
                if name == "synthetic" or name.startswith("Sutler"):
                    raise
                feeds.notes.append(f"{name} is left out, as it failed in epoch {number}: {error}")
                del fed[name]
                continue
            fed[name].append(epoch)
            print(
                f"epoch {number}  {name:26} {epoch.per_second:9,.0f} img/s  "
                f"steady {epoch.steady_per_second:9,.0f}  first batch {epoch.first_batch_seconds:6.2f} s",
                flush=True,
            )
    return fed


def _counted(epochs: list[Fed]) -> list[Fed]:
    """All but the first, where there are others."""
    return epochs[1:] or epochs


def stalled(fed: dict[str, list[Fed]], name: str) -> list[float]:
    """The share of each counted epoch that the accelerator lost, against the synthetic rate of the same round."""
    pairs = zip(_counted(fed[name]), _counted(fed["synthetic"]), strict=True)
    return [max(0.0, 1 - epoch.per_second / ceiling.per_second) for epoch, ceiling in pairs]


def _table(fed: dict[str, list[Fed]]) -> str:
    rows = []
    for name, epochs in fed.items():
        counted = _counted(epochs)
        rates = [epoch.per_second for epoch in counted]
        lost = stalled(fed, name)
        waits = [epoch.wait_seconds / epoch.seconds for epoch in counted]
        rows.append(
            [
                name,
                f"{epochs[0].per_second:,.0f}",
                f"{report.median(rates):,.0f}",
                report.spread(rates),
                f"{report.median([epoch.steady_per_second for epoch in counted]):,.0f}",
                f"{1 - report.median(lost):.1%}",
                f"{report.median(lost):.1%}",
                f"{report.median(waits):.1%}",
                f"{report.median([epoch.first_batch_seconds for epoch in counted]):.2f} s",
            ]
        )
    header = [
        "",
        "first epoch",
        "img/s",
        "min..max",
        "steady",
        "of synthetic",
        "stalled",
        "host waits",
        "first batch",
    ]
    return report.table(header, rows)


def _verdicts(fed: dict[str, list[Fed]]) -> list[str]:
    lines = []
    for name in fed:
        if name.startswith("Sutler"):
            lost = report.median(stalled(fed, name))
            verdict = (
                "reached" if lost <= TARGET_STALLED else f"missed by {lost - TARGET_STALLED:.1%} of the time"
            )
            lines.append(
                f"target: {name} stalls ≤ {TARGET_STALLED:.0%} from the second epoch on: {lost:.1%}, {verdict}"
            )
    return lines
