"""Whether a model learns as well in another order as in a plain shuffle: the same training, seed by seed.

A small network learns to tell gratings by their direction, under so much noise that it does not get all of them right;
or, with `--speech`, which digit is spoken, where a fifth of the clips is slow and `ready` has something to put off.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.convergence_tasks import SIZE, Digits, Gratings, Task
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.paced import PacedJob
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
    parser.add_argument(
        "--speech",
        type=Path,
        metavar="FOLDER",
        help="learn the spoken digits in this folder, which has one folder of WAV files for each, instead of gratings",
    )
    parser.add_argument("--samples", type=int, default=4000, help="how many gratings")
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
    #: The samples of each epoch in the order in which they came.
    served: list[list[int]] = field(default_factory=list, repr=False)

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    @property
    def mean(self) -> float:
        """Over all epochs: higher where it learns sooner."""
        return statistics.fmean(self.accuracy)


def measure(arguments: argparse.Namespace) -> Outcome:
    if arguments.speech is not None and "shared" in arguments.orders:
        raise ContenderError(
            "`shared` is measured on gratings, as what is kept of them is: leave --speech out, or that order"
        )
    trainings: list[Training] = []
    with tempfile.TemporaryDirectory(prefix="sutler-bench-") as scratch:
        task: Task = (
            Gratings.make(Path(scratch), arguments.samples)
            if arguments.speech is None
            else Digits.make(arguments.speech, Path(scratch))
        )
        with ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn")) as pool:
            begun = [
                pool.submit(train, order, arguments.first_seed + number, task, arguments)
                for number in range(arguments.seeds)
                for order in arguments.orders
            ]
            for each in begun:
                trainings.append(each.result())
                say(f"seed {trainings[-1].seed}: {trainings[-1].order} {trainings[-1].final:.2%}")
        said = _summary(arguments, task.description, trainings)
        raw = {
            "benchmark": "convergence",
            "trainings": [asdict(replace(each, served=[])) for each in trainings],
            "moved": [asdict(each) for each in _moves(arguments, trainings)],
        }
        return Outcome("\n".join(said), raw, Path(scratch))


@contextmanager
def _loader(order: str, seed: int, task: Task, arguments: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """The loader of a training, and what to call after every step."""
    import sutler

    dataset = task.dataset()
    drawn_from = seed + 1_000_000 if order == AGAIN else seed
    options: dict[str, Any] = {
        "batch_size": arguments.batch_size,
        "seed": drawn_from,
        "num_workers": 2,
        "return_ids": True,
    }
    if order != "shared":
        options |= {"shuffle": order != CONTROL, "order": "ready" if order == "ready" else "strict"}
        with sutler.Loader(dataset, **options) as loader:
            yield loader, lambda: None
        return
    memory = round(arguments.samples * arguments.kept * _KEPT_BYTES)
    with serving("--threads", 2, "--window", 0.02, "--memory", memory) as agent, ExitStack() as stack:
        other = PacedJob(
            task.root / "train", agent.socket, seed=1000 + seed, batch_size=arguments.batch_size, size=SIZE
        )
        stack.callback(other.end)
        steps = arguments.samples // arguments.batch_size
        for _ in range(random.Random(seed).randrange(steps)):
            other.step()
        other.catch_up()
        options |= {"shuffle": True, "agent": agent.socket, "order": "shared"}
        loader = stack.enter_context(sutler.Loader(dataset, **options))
        yield loader, other.step


def train(order: str, seed: int, task: Task, arguments: argparse.Namespace) -> Training:
    """Trains from nothing and tests after every epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = task.model()
    steps = arguments.epochs * -(-task.samples // arguments.batch_size)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    measure_loss = nn.CrossEntropyLoss()
    tests, answers = _test_set(task)
    accuracy = []
    served: list[list[int]] = []
    loss = torch.zeros(())
    with _loader(order, seed, task, arguments) as (loader, after_step):
        for _ in range(arguments.epochs):
            model.train()
            served.append([])
            for batch in loader:
                inputs, labels = task.inputs(batch)
                optimiser.zero_grad()
                loss = measure_loss(model(inputs), labels)
                loss.backward()
                optimiser.step()
                schedule.step()
                served[-1] += batch[-1].tolist()
                after_step()
            if sorted(served[-1]) != list(range(task.samples)):
                raise ContenderError(
                    f"an epoch in {order} order had {len(served[-1]):,} samples, {len(set(served[-1])):,} of them "
                    f"different, instead of each of {task.samples:,} once"
                )
            model.eval()
            with torch.no_grad():
                accuracy.append(float((model(tests).argmax(1) == answers).float().mean()))
        shared = int(loader.stats()["served"]["augmented"])
    with torch.no_grad():
        return Training(order, seed, accuracy, float(measure_loss(model(tests), answers)), shared, served)


def _test_set(task: Task) -> tuple[Any, Any]:
    """All that is tested on, as two tensors."""
    import sutler
    import torch

    with sutler.Loader(task.tests(), batch_size=100) as loader:
        batches = [[each.clone() for each in task.inputs(batch)] for batch in loader]
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([labels for _, labels in batches])


@dataclass(frozen=True)
class Moves:
    """How far from their places in strict order the samples of a training came."""

    #: The share that came in another batch.
    share: float
    #: In batches, of those.
    mean: float
    latest: int


def moves(served: list[list[int]], strict: list[list[int]], batch_size: int) -> Moves:
    """Compares what was served in each epoch with what strict order has there."""
    distances: list[int] = []
    for epoch, other in zip(served, strict, strict=True):
        places = {sample: place // batch_size for place, sample in enumerate(other)}
        distances += [place // batch_size - places[sample] for place, sample in enumerate(epoch)]
    moved = [abs(distance) for distance in distances if distance]
    return Moves(len(moved) / len(distances), statistics.fmean(moved or [0]), max(distances))


def _moves(arguments: argparse.Namespace, trainings: list[Training]) -> list[Moves]:
    """How far samples moved in ready order, seed by seed; the other orders draw what they serve anew, or not at all."""
    strict = {each.seed: each.served for each in trainings if each.order == REFERENCE}
    return [
        moves(each.served, strict[each.seed], arguments.batch_size)
        for each in trainings
        if each.order == "ready"
    ]


def _told_moves(found: list[Moves]) -> str:
    return (
        f"In ready order {statistics.fmean(each.share for each in found):.0%} of the samples came in another batch "
        f"than in strict order, {statistics.fmean(each.mean for each in found):.1f} batches away on average and at "
        f"most {max(each.latest for each in found)} later."
    )


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


def _summary(arguments: argparse.Namespace, description: str, trainings: list[Training]) -> list[str]:
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
        f"convergence: {description}, {arguments.epochs} epochs in batches of {arguments.batch_size}, "
        f"{arguments.seeds} seeds in each order\n",
        report.table(header, rows),
        "",
        f"A difference of {detectable:.1%} of accuracy at the end would be found four times in five.",
        *([_told_moves(moved)] if (moved := _moves(arguments, trainings)) else []),
        *verdicts,
    ]


def _mean_and_deviation(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2%} ± {deviation:.2%}"
