"""Whether a model learns as well in another order as in a plain shuffle: the same training, seed by seed.

A small network learns to tell gratings by their direction, under so much noise that it does not get all of them right.
`shared` is what it should be at its hardest: beside another job at a random distance that takes a step for every step
of the training, with an agent that keeps a part of the dataset. `sorted` serves class after class. It is there as a
control: were it no worse than the others, this benchmark could not tell a good order from a bad one. `again` is a plain
shuffle with other random numbers: what it differs by is what chance makes of two orders that are equally good.

Trainings of one seed begin with the same weights, so orders are compared seed by seed. The p-value is that of a
permutation test: how often the differences, each with a sign drawn anew, would have a mean as far from zero as theirs.
Two statistics are tested, where a training ends and how soon it gets there (the mean over epochs), and either may be
the one that shows a difference; so the smaller p counts twice.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import operator
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders.base import MEAN, STD
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.paced import PacedJob, pipeline
from benchmarks.serving import serving
from benchmarks.worker import ContenderError

#: What orders are compared with.
REFERENCE = "strict"
CONTROL = "sorted"
#: The reference with other random numbers.
AGAIN = "again"
ORDERS = (REFERENCE, AGAIN, "ready", "shared", CONTROL)
#: Orders differ significantly below this.
SIGNIFICANT = 0.05

_CLASSES = 10
_SIDE = 32
_SIZE = 24
#: What a picture takes in the agent's cache at most: one of its blocks with the notes on it.
_KEPT_BYTES = 4096 + 20 + 16
#: Beyond so many ways of dealing out, a part of them is drawn.
_DEALS_MAX = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--orders",
        type=_orders,
        default=(REFERENCE, "shared", CONTROL),
        help=f"of {', '.join(ORDERS)}; with commas between them",
    )
    parser.add_argument("--seeds", type=int, default=10, help="trainings in each order")
    parser.add_argument("--first-seed", type=int, default=0, help="for other seeds than those of another run")
    parser.add_argument(
        "--at-once",
        type=int,
        choices=range(1, 65),
        metavar="N",
        default=1,
        help="how many trainings run at a time",
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument(
        "--kept", type=float, default=0.3, help="the share of the dataset that the agent keeps"
    )


def _orders(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if wrong := [order for order in chosen if order not in ORDERS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no order; choose of {', '.join(ORDERS)}")
    return (REFERENCE, *(order for order in chosen if order != REFERENCE))


@dataclass
class Training:
    """How one training went."""

    order: str
    seed: int
    #: The share of test pictures that were told right, after each epoch.
    accuracy: list[float]
    loss: float
    #: Samples that the other job had prepared, where there was one.
    shared: int = 0

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    @property
    def mean(self) -> float:
        """Over all epochs: higher where it learns sooner."""
        return statistics.fmean(self.accuracy)


def make_gratings(root: Path, count: int, seed: int) -> None:
    """Pictures of stripes in noise: what class one is in is the direction of its stripes."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    across, down = np.meshgrid(np.arange(_SIDE), np.arange(_SIDE))
    for index in range(count):
        label = index % _CLASSES
        angle = (label + rng.uniform(-0.6, 0.6)) * math.pi / _CLASSES
        wave = rng.uniform(0.5, 0.9)
        along = across * math.cos(angle) + down * math.sin(angle)
        stripes = np.sin(along * wave + rng.uniform(0, 2 * math.pi))
        colour = rng.uniform(8, 24, 3)
        values = 128 + stripes[..., None] * colour + rng.normal(0, 60, (_SIDE, _SIDE, 3))
        folder = root / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(folder / f"{index:06d}.jpg", quality=85)


def measure(arguments: argparse.Namespace) -> Outcome:
    trainings: list[Training] = []
    with tempfile.TemporaryDirectory(prefix="sutler-bench-") as scratch:
        folders = Path(scratch) / "train", Path(scratch) / "test"
        make_gratings(folders[0], arguments.samples, seed=1)
        make_gratings(folders[1], max(_CLASSES, arguments.samples // 2), seed=2)
        with ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn")) as pool:
            begun = [
                pool.submit(train, order, arguments.first_seed + number, folders, arguments)
                for number in range(arguments.seeds)
                for order in arguments.orders
            ]
            for each in begun:
                trainings.append(each.result())
                say(f"seed {trainings[-1].seed}: {trainings[-1].order} {trainings[-1].final:.2%}")
        raw = {"benchmark": "convergence", "trainings": [asdict(each) for each in trainings]}
        return Outcome("\n".join(_summary(arguments, trainings)), raw, Path(scratch))


@contextmanager
def _loader(order: str, seed: int, root: Path, arguments: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """The loader of a training, and what to call after every step."""
    import sutler

    dataset = sutler.ImageFolder(root, transform=pipeline(_SIZE), progress=False)
    drawn_from = seed + 1_000_000 if order == AGAIN else seed
    options: dict[str, Any] = {"batch_size": arguments.batch_size, "seed": drawn_from, "num_workers": 2}
    if order != "shared":
        options |= {"shuffle": order != CONTROL, "order": "ready" if order == "ready" else "strict"}
        with sutler.Loader(dataset, **options) as loader:
            yield loader, lambda: None
        return
    memory = round(arguments.samples * arguments.kept * _KEPT_BYTES)
    with serving("--threads", 2, "--window", 0.02, "--memory", memory) as agent, ExitStack() as stack:
        other = PacedJob(root, agent.socket, seed=1000 + seed, batch_size=arguments.batch_size, size=_SIZE)
        stack.callback(other.end)
        steps = arguments.samples // arguments.batch_size
        for _ in range(random.Random(seed).randrange(steps)):
            other.step()
        other.catch_up()
        options |= {"shuffle": True, "agent": agent.socket, "order": "shared"}
        loader = stack.enter_context(sutler.Loader(dataset, **options))
        yield loader, other.step


def train(order: str, seed: int, folders: tuple[Path, Path], arguments: argparse.Namespace) -> Training:
    """Trains from nothing and tests after every epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, _CLASSES),
    )
    steps = arguments.epochs * -(-arguments.samples // arguments.batch_size)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    measure_loss = nn.CrossEntropyLoss()
    tests, answers = _test_set(folders[1])
    accuracy = []
    loss = torch.zeros(())
    with _loader(order, seed, folders[0], arguments) as (loader, after_step):
        for _ in range(arguments.epochs):
            model.train()
            served = 0
            for images, labels in loader:
                optimiser.zero_grad()
                loss = measure_loss(model(images), labels)
                loss.backward()
                optimiser.step()
                schedule.step()
                served += len(labels)
                after_step()
            if served != arguments.samples:
                raise ContenderError(f"an epoch in {order} order had {served} samples of {arguments.samples}")
            model.eval()
            with torch.no_grad():
                accuracy.append(float((model(tests).argmax(1) == answers).float().mean()))
        shared = int(loader.stats()["served"]["augmented"])
    with torch.no_grad():
        return Training(order, seed, accuracy, float(measure_loss(model(tests), answers)), shared)


def _test_set(root: Path) -> tuple[Any, Any]:
    """All test pictures as two tensors."""
    import sutler
    import torch
    from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

    transform = T.Compose([T.Resize(_SIZE + 4), T.CenterCrop(_SIZE), T.Normalize(MEAN, STD)])
    with sutler.Loader(
        sutler.ImageFolder(root, transform=transform, progress=False), batch_size=100
    ) as loader:
        batches = [(images.clone(), labels.clone()) for images, labels in loader]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def paired_p(differences: Sequence[float]) -> float:
    """How likely a mean as far from zero as that of these differences is if each may as well have the other sign."""
    observed = abs(math.fsum(differences)) * (1 - 1e-9)
    if 2 ** len(differences) <= _DEALS_MAX:
        signs = itertools.product((1, -1), repeat=len(differences))
        deals = [abs(math.fsum(map(operator.mul, differences, each))) >= observed for each in signs]
        return sum(deals) / len(deals)
    rng = random.Random(0)
    drawn = sum(
        abs(math.fsum(each * rng.choice((1, -1)) for each in differences)) >= observed
        for _ in range(_DEALS_MAX)
    )
    # What was observed is one way of dealing out, too: a p of 0 would claim more than was tried.
    return (drawn + 1) / (_DEALS_MAX + 1)


def _summary(arguments: argparse.Namespace, trainings: list[Training]) -> list[str]:
    by_order = {order: [each for each in trainings if each.order == order] for order in arguments.orders}
    reference = by_order[REFERENCE]
    rows, verdicts = [], []
    detectable = math.nan
    for order, runs in by_order.items():
        pairs = list(zip(runs, reference, strict=True))
        assert all(run.seed == other.seed for run, other in pairs)
        finals = [run.final - other.final for run, other in pairs]
        p_final = paired_p(finals)
        p_mean = paired_p([run.mean - other.mean for run, other in pairs])
        same = order == REFERENCE
        rows.append(
            [
                order,
                _mean_and_deviation([run.final for run in runs]),
                "" if same else f"{p_final:.3f}",
                _mean_and_deviation([run.mean for run in runs]),
                "" if same else f"{p_mean:.3f}",
                f"{statistics.fmean(run.loss for run in runs):.3f}",
                f"{statistics.fmean(run.shared for run in runs):,.0f}",
            ]
        )
        if same:
            continue
        if order != CONTROL and len(runs) > 1:
            found = 2.8 * statistics.stdev(finals) / math.sqrt(len(runs))
            detectable = found if math.isnan(detectable) else max(detectable, found)
        p = min(1.0, 2 * min(p_final, p_mean))
        if 2 * 2 / 2 ** len(runs) >= SIGNIFICANT:
            # Even differences that all point the same way would not be significant.
            verdicts.append(f"{order} order against {REFERENCE}: {len(runs)} seeds are too few to tell")
        elif order == CONTROL:
            told = p < SIGNIFICANT
            said = "told apart, as it should be" if told else "NOT told apart: the benchmark shows nothing"
            verdicts.append(f"control: {order} order against {REFERENCE}: {said}")
        else:
            said = "missed" if p < SIGNIFICANT else "reached"
            verdicts.append(
                f"target: no significant difference of {order} from {REFERENCE}, corrected for two statistics: "
                f"p {p:.3f}, {said}"
            )
    header = ["order", "accuracy at the end", "p", "mean over epochs", "p", "test loss", "from the window"]
    return [
        f"convergence: {arguments.samples:,} generated pictures in {_CLASSES} classes, {arguments.epochs} epochs in "
        f"batches of {arguments.batch_size}, {arguments.seeds} seeds in each order\n",
        report.table(header, rows),
        "",
        f"A difference of {detectable:.1%} of accuracy at the end would be found four times in five.",
        *verdicts,
    ]


def _mean_and_deviation(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2%} ± {deviation:.2%}"
