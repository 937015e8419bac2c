"""Functions behind native transforms in worker processes: the same batches as from the trainer, and sooner."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
import torch
from sutler import PythonTransformWarning, _functions
from sutler import transforms as T  # noqa: N812 - as users write it
from torch.utils.data import RandomSampler, Subset

from tests.python.agent.serving import Agent

#: All of this is about processes: where workers are threads, the trainer runs functions.
pytestmark = pytest.mark.processes

SAMPLES = 22

#: What JAX says of a fork, where another test has imported it.
FORKED = r"os\.fork\(\) was called"


def noisy(sample: Any) -> Any:
    return sample + float(torch.rand(())) + np.random.rand()


def noisy_pair(pair: Any) -> Any:
    image, labels = pair
    return noisy(image), labels


def noisy_picture(image: Any, target: dict[str, Any]) -> Any:
    return image[..., : image.shape[-1] - int(torch.randint(8, ()))], target


def uneven(clip: Any) -> Any:
    return noisy(clip)[: 200 + 100 * int(torch.randint(9, ()))]


def of_one_length(clip: Any) -> Any:
    return noisy(clip)[:200]


def tokens(line: str) -> list[int]:
    return [len(word) + int(torch.randint(4, ())) for word in line.split()]


def unchanged(sample: Any) -> Any:
    return sample


def photos(folder: Path, *functions: Any) -> Any:
    sutler.testing.make_photos(folder, SAMPLES, 2, longer_side=48)
    steps = [T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True)]
    return sutler.ImageFolder(
        folder, T.Compose([*steps, *(T.Lambda(each) for each in functions or (noisy,))])
    )


def sound(folder: Path) -> Any:
    sutler.testing.make_tones(folder, SAMPLES, 2)
    return sutler.AudioFolder(folder, T.Compose([T.PreEmphasis(), T.Lambda(uneven)]), padding_value=-1.0)


def clips(folder: Path) -> Any:
    return sound(folder).with_transform(T.Compose([T.PreEmphasis(), T.Lambda(of_one_length)]))


def volumes(folder: Path) -> Any:
    sutler.testing.make_volumes(folder, SAMPLES, shape=(16, 16, 16))
    return sutler.VolumeFolder(folder, T.Compose([T.RandBalancedCrop(8), T.Lambda(noisy_pair)]))


def detection(folder: Path) -> Any:
    annotations = sutler.testing.make_detection(folder, SAMPLES)
    transform = T.Compose([T.ResizeShortest(32, max_size=60), T.Lambda(noisy_picture)])
    return sutler.CocoDetection(folder, annotations, transform, size_divisible=4)


def lines(folder: Path) -> Any:
    texts = ["some words in a line " * (1 + number % 5) for number in range(SAMPLES)]
    (folder / "lines.txt").write_text("\n".join(texts))
    return sutler.TextLines(folder / "lines.txt", tokens, pad=0, attention_mask=True)


MAKERS = [photos, sound, clips, volumes, detection, lines]


def as_list(samples: Any) -> list[Any]:
    return list(samples)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return bool(one.keys() == other.keys() and all(same(one[key], other[key]) for key in one))
    if isinstance(one, (list, tuple)):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(same(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    if hasattr(one, "dtype"):
        return bool(type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other))
    return bool(one == other)


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_functions, "_warned_of", set())


def both_ways(dataset: Any, **arguments: Any) -> tuple[Any, Any]:
    """Loaders of which one has workers run the functions, and the other the trainer."""
    there = sutler.Loader(dataset, num_workers=2, **arguments)
    here = sutler.Loader(dataset, num_workers=0, **arguments)
    assert (there._functions_in_workers, here._functions_in_workers) == (True, False)
    return there, here


# --- the same batches -----------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "as it is": {"batch_size": 4},
    "shuffled, with ids": {"batch_size": 5, "shuffle": True, "return_ids": True},
    "a sampler that repeats": {"batch_size": 4, "sampler": [3, 1, 3, -1, 0, 3], "return_ids": True},
    "a batch sampler": {"batch_sampler": [[4, 2], [7], [1, 0, 2]]},
    "single samples": {"batch_size": None},
    "single samples with ids": {"batch_size": None, "return_ids": True},
    "collated by a function": {"batch_size": 4, "collate_fn": as_list, "return_ids": True},
    "single samples through a function": {"batch_size": None, "collate_fn": as_list},
    "in NumPy": {"batch_size": 4, "output": "numpy", "return_ids": True},
    "lent": {"batch_size": 4, "output": "dlpack"},
    "copied to a device": {"batch_size": 4, "device": "cpu"},
    "a rank of three": {"batch_size": 4, "shuffle": True, "rank": 1, "world_size": 3},
    "the rest left out": {"batch_size": 4, "drop_last": True},
    "pinned": {"batch_size": 4, "pin_memory": True},
    "with the pixels' values together": {"batch_size": 4, "channels_last": True},
    "as many as are needed": {"batch_size": 4, "num_workers": "auto"},
}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("make", MAKERS)
def test_batches_are_the_same_as_from_the_trainer(
    make: Callable[[Path], Any], arguments: dict[str, Any], tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    mine: dict[str, Any] = {"seed": 3, "num_workers": 2} | arguments
    theirs = mine | {"num_workers": 0}
    with sutler.Loader(dataset, **mine) as there, sutler.Loader(dataset, **theirs) as here:
        assert there._functions_in_workers
        assert not here._functions_in_workers
        for _ in range(2):
            found = list(there)
            assert len(found) > 0
            assert same(found, list(here))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_subset_is_served_the_same_too(
    make: Callable[[Path], Any], in_batches: bool, tmp_path: Path
) -> None:
    subset = Subset(Subset(make(tmp_path), range(2, 20)), [5, 0, 3, 5, -1, 9, 4])
    order: dict[str, Any] = {"batch_sampler": [[1, 0], [5, 3, 6]]} if in_batches else {"batch_size": 3}
    there, here = both_ways(subset, return_ids=True, **order)
    with there, here:
        assert same(list(there), list(here))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("hand_over", [False, True])
def test_samples_that_come_as_they_get_ready_are_the_same(
    make: Callable[[Path], Any], hand_over: bool, tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    arguments: dict[str, Any] = {"batch_size": 1, "shuffle": True, "return_ids": True, "seed": 1}
    with (
        sutler.Loader(dataset, num_workers=2, order="ready", hand_over=hand_over, **arguments) as there,
        sutler.Loader(dataset, num_workers=0, **arguments) as here,
    ):
        found, expected = ({int(batch[-1]): batch for batch in loader} for loader in (there, here))
    assert sorted(found) == sorted(expected) == list(range(SAMPLES))
    assert all(same(found[index], expected[index]) for index in expected)


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("way", ["from workers to the trainer", "from the trainer to workers"])
@pytest.mark.parametrize("given", ["shuffled", "a subset", "a sampler"])
def test_an_epoch_goes_on_the_other_way(order: Any, way: str, given: str, tmp_path: Path) -> None:
    dataset: Any = photos(tmp_path)
    arguments: dict[str, Any] = {"batch_size": 3, "order": order, "return_ids": True, "shuffle": True}
    if given == "a subset":
        dataset = Subset(dataset, list(range(19, 3, -1)))
    if given == "a sampler":
        arguments |= {"shuffle": None, "sampler": RandomSampler(dataset)}
    first, second = both_ways(dataset, **arguments)
    if way == "from the trainer to workers":
        first, second = second, first
    with first, second:
        begun = iter(first)
        before = [next(begun) for _ in range(3)]
        state = first.state_dict()
        rest = list(begun)
        second.load_state_dict(state)
        assert second.state_dict() == state
        gone_on = list(second)
    served = sorted(int(index) for batch in before + gone_on for index in batch[-1])
    assert served == list(range(len(dataset)))
    if order == "strict":
        assert same(gone_on, rest)


def test_the_trainers_generators_stay_where_they_are(tmp_path: Path) -> None:
    dataset = photos(tmp_path)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with sutler.Loader(dataset, batch_size=4, num_workers=2) as loader:
        list(loader)
    assert torch.equal(before, torch.get_rng_state())


def test_a_function_may_ask_another_dataset_for_samples(tmp_path: Path) -> None:
    other = photos(tmp_path)

    def mixed(image: Any) -> Any:
        return image + other[3][0] + float(torch.rand(()))

    steps = [T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True), T.Lambda(mixed)]
    there, here = both_ways(other.with_transform(T.Compose(steps)), batch_size=SAMPLES)
    with there, here:
        first, second = zip(there, here, strict=True), zip(there, here, strict=True)
        batches = [*first, *second]
        assert all(same(mine, theirs) for mine, theirs in batches)
        assert not torch.equal(batches[0][0][0], batches[1][0][0])
        assert [step["name"] for step in there.stats()["steps"]] == ["load", "mixed"]


# --- sooner ---------------------------------------------------------------------------------------------------------

SLEEP = 0.04


def slow(sample: Any) -> Any:
    time.sleep(SLEEP)
    return sample


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_slow_function_is_spread_over_the_workers(order: Any, tmp_path: Path) -> None:
    dataset = photos(tmp_path, slow)
    with sutler.Loader(dataset, batch_size=2, num_workers=4, order=order, persistent_workers=True) as loader:
        assert len(list(loader)) == 11  # starts the workers
        began = time.perf_counter()
        assert len(list(loader)) == 11
        took = time.perf_counter() - began
        stats = loader.stats()
    assert took < 0.6 * SAMPLES * SLEEP
    load, step = stats["steps"]
    assert (load["name"], step["name"], step["count"]) == ("load", "slow", 2 * SAMPLES)
    assert all(step[key] >= SLEEP for key in ("mean", "p50", "p95", "p99"))
    assert load["mean"] < SLEEP
    assert stats["stalls"]["prep"] > 0.5 * stats["wait_seconds"]


def one_slow(image: Any) -> Any:
    time.sleep(0.8 if float(image.max()) == 0.0 else 0.001)
    return image


def test_one_slow_sample_holds_up_no_batch_in_ready_order(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    first = sutler.ImageFolder(tmp_path).path(0)
    black = np.zeros((48, 48, 3), dtype=np.uint8)
    __import__("PIL.Image").Image.fromarray(black).save(first)
    dataset = sutler.ImageFolder(tmp_path, T.Compose([T.Resize([16, 16]), T.ToDtype("float32"), one_slow]))
    with sutler.Loader(dataset, batch_size=4, num_workers=2, order="ready", return_ids=True) as loader:
        batches = [ids.tolist() for _, _, ids in loader]
    assert 0 not in batches[0]
    assert sorted(index for batch in batches for index in batch) == list(range(SAMPLES))


def test_with_hand_over_samples_make_room_before_each_function(tmp_path: Path) -> None:
    dataset = photos(tmp_path, slow, noisy)
    with (
        warnings.catch_warnings(),
        sutler.Loader(dataset, batch_size=4, num_workers=2, order="ready", hand_over=True) as loader,
    ):
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", FORKED)
        assert len(list(loader)) == 6
        steps = loader.stats()["steps"]
    assert [(step["name"], step["count"]) for step in steps] == [
        ("load", SAMPLES),
        ("slow", SAMPLES),
        ("noisy", SAMPLES),
    ]


def marked(image: Any) -> Any:
    image[0, 0, 0] = 1000.0 * (float(torch.rand(())) < 0.25)
    return pausing(image)


def pausing(image: Any) -> Any:
    time.sleep(0.03 if image[0, 0, 0] > 500.0 else 0.001)
    return image


def thread(image: Any) -> Any:
    return torch.tensor(threading.get_ident())


def test_what_makes_room_lets_others_go_first_between_two_functions(tmp_path: Path) -> None:
    dataset = photos(tmp_path, marked, pausing, pausing, thread)
    arguments: dict[str, Any] = {"batch_size": 2, "num_workers": 1, "order": "ready", "prefetch_factor": 4}
    threads = {}
    for hand_over in (False, True):
        with sutler.Loader(dataset, hand_over=hand_over, persistent_workers=True, **arguments) as loader:
            threads[hand_over] = {int(each) for _ in range(3) for batch in loader for each in batch[0]}
    assert len(threads[False]) == 1
    assert len(threads[True]) > 1


# --- what goes wrong ------------------------------------------------------------------------------------------------


def damaged(folder: Path, *functions: Any) -> tuple[Any, str]:
    """Photos of which number 5 is cut off, and where that is."""
    dataset = photos(folder, *functions)
    path = dataset.path(5)
    Path(path).write_bytes(Path(path).read_bytes()[:200])
    return dataset, path


@pytest.mark.parametrize("part", [False, True])
def test_a_bad_file_is_named_as_by_native_threads(part: bool, tmp_path: Path) -> None:
    dataset, path = damaged(tmp_path)
    served: Any = Subset(dataset, [7, 5, 6]) if part else dataset
    raised = []
    for loader in both_ways(served, batch_size=4):
        with loader, pytest.raises(sutler.DecodeError) as caught:
            list(loader)
        raised.append(caught.value)
    mine, theirs = raised
    assert (mine.sample, mine.path, mine.kind, mine.reason) == (
        theirs.sample,
        theirs.path,
        theirs.kind,
        theirs.reason,
    )
    assert (mine.sample, mine.path, str(mine)) == (1 if part else 5, path, str(theirs))
    assert isinstance(mine, OSError)


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("part", [False, True])
def test_a_bad_file_is_left_out_and_listed_as_by_native_threads(
    order: Any, part: bool, tmp_path: Path
) -> None:
    dataset, path = damaged(tmp_path)
    served: Any = Subset(dataset, range(3, 12)) if part else dataset
    there, here = both_ways(served, batch_size=4, errors="skip", return_ids=True, order=order)
    with there, here:
        found, expected = ({int(i) for batch in loader for i in batch[-1]} for loader in (there, here))
        assert found == expected == set(range(len(served))) - {2 if part else 5}
        (failure,) = there.failures()
        assert there.failures() == here.failures()
    assert failure.path == path
    assert failure.kind not in ("", "exception")


def test_a_bad_line_is_listed_as_by_native_threads(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"good\nbad \xff line\nanother good one\n")
    dataset = sutler.TextLines(tmp_path / "lines.txt", tokens, pad=0)
    there, here = both_ways(dataset, batch_size=2, errors="skip")
    with there, here:
        assert same(list(there), list(here))
        assert there.failures() == here.failures() != []


def test_a_budget_names_the_file_that_was_one_too_many(tmp_path: Path) -> None:
    dataset, path = damaged(tmp_path)
    raised = []
    for loader in both_ways(Subset(dataset, [4, 5]), batch_size=1, errors=sutler.Errors(max=0)):
        with loader, pytest.raises(sutler.ErrorBudgetExceeded) as caught:
            list(loader)
        raised.append(caught.value)
    assert str(raised[0]) == str(raised[1])
    assert (raised[0].last.path, raised[0].last.sample) == (path, 1)


class OddError(ValueError):
    pass


def failing(image: Any) -> Any:
    if float(torch.rand(())) < 0.2:
        raise OddError("this picture is odd")
    return image


def test_what_a_function_raises_keeps_its_type_and_tells_where_it_was(tmp_path: Path) -> None:
    with (
        sutler.Loader(photos(tmp_path, failing), batch_size=4, num_workers=2) as loader,
        pytest.raises(OddError, match=r"this picture is odd") as caught,
    ):
        list(loader)
    assert "in failing" in str(caught.value)
    assert "DataLoader worker process" in str(caught.value)


@pytest.mark.parametrize("arguments", [{}, {"collate_fn": as_list}, {"order": "ready"}], ids=repr)
@pytest.mark.parametrize("errors", ["skip", sutler.Errors(max=SAMPLES)], ids=str)
def test_what_a_function_raises_comes_through_with_any_policy(
    errors: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    dataset, path = damaged(tmp_path, failing)
    for loader in both_ways(dataset, batch_size=6, errors=errors, **arguments):
        with loader, pytest.raises(OddError, match="this picture is odd"):
            list(loader)
        assert {failure.path for failure in loader.failures()} <= {path}


@pytest.mark.parametrize("part", [False, True])
def test_a_bad_file_of_another_dataset_that_a_function_asks_keeps_its_name(
    part: bool, tmp_path: Path
) -> None:
    other, path = damaged(tmp_path / "other")
    dataset = photos(tmp_path / "own", lambda image: image + other[5][0])
    served: Any = Subset(dataset, [0, 1]) if part else dataset
    for loader in both_ways(served, batch_size=2):
        with loader, pytest.raises(sutler.DecodeError) as caught:
            list(loader)
        assert (caught.value.sample, caught.value.path) == (5, path)


def deadly(image: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    return image


@pytest.mark.parametrize("errors", ["skip", sutler.Errors(max=1)])
def test_a_bad_file_of_another_dataset_is_none_of_this_one(errors: Any, tmp_path: Path) -> None:
    other = photos(tmp_path / "other")
    bad = Path(other.path(3))
    bad.write_bytes(bad.read_bytes()[:200])

    def ask(image: Any) -> Any:
        assert other[3] is not None
        return image

    dataset = photos(tmp_path / "own", ask)
    with sutler.Loader(dataset, batch_size=4, num_workers=2, errors=errors) as loader:
        with pytest.raises(sutler.DecodeError) as raised:
            list(loader)
        assert raised.value.path == str(bad)
        assert loader.failures() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_functions_get_samples_that_lie_the_same_wherever_they_run(num_workers: int, tmp_path: Path) -> None:
    def flat(image: Any, target: Any) -> Any:
        return image.view(-1)[:10], target

    annotations = sutler.testing.make_detection(tmp_path, 4)
    dataset = sutler.CocoDetection(tmp_path, annotations, T.Compose([T.Resize([16, 16]), T.Lambda(flat)]))
    with pytest.warns(
        RuntimeWarning, match="channels_last=True has no effect where functions make the samples"
    ):
        loader = sutler.Loader(dataset, batch_size=None, num_workers=num_workers, channels_last=True)
    with loader:
        assert [tuple(image.shape) for image, _ in loader] == [(10,)] * 4


def test_a_worker_that_dies_is_told_with_the_file_that_it_was_at(tmp_path: Path) -> None:
    dataset = Subset(photos(tmp_path, deadly), [6])
    with sutler.Loader(dataset, num_workers=1) as loader, pytest.raises(sutler.WorkerError) as caught:
        list(loader)
    assert (caught.value.sample, caught.value.path) == (0, dataset.dataset.path(6))  # type: ignore[attr-defined]


def test_images_of_different_sizes_are_told_of_in_our_words(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, 8, 2, longer_side=48)
    sizes = iter(range(8, 100))

    def another_size(image: Any) -> Any:
        return image[:, :, : next(sizes)]

    dataset = sutler.ImageFolder(tmp_path, T.Compose([T.ToDtype("float32"), another_size]))
    with (
        sutler.Loader(dataset, batch_size=4, num_workers=1) as loader,
        pytest.raises(RuntimeError, match="add a Resize or crop to the transform"),
    ):
        list(loader)


# --- when -----------------------------------------------------------------------------------------------------------


def pid(image: Any) -> Any:
    return torch.zeros((), dtype=torch.int64) + os.getpid()


def pids_of(loader: Any) -> set[int]:
    return {int(number) for batch in loader for number in batch[0]}


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_functions_that_can_be_sent_run_in_workers_however_they_are_started(
    context: str, tmp_path: Path
) -> None:
    dataset = photos(tmp_path, pid)
    with sutler.Loader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context) as loader:
        assert os.getpid() not in pids_of(loader)


def test_a_function_that_cannot_be_sent_runs_in_the_trainers_process_and_the_warning_says_why(
    tmp_path: Path,
) -> None:
    dataset = photos(tmp_path, lambda image: slow(pid(image)))
    with (
        sutler.Loader(dataset, batch_size=2, num_workers=2, multiprocessing_context="spawn") as loader,
        pytest.warns(PythonTransformWarning, match="cannot be sent to workers that are started by 'spawn'"),
    ):
        assert pids_of(loader) == {os.getpid()}
    with sutler.Loader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork") as loader:
        assert os.getpid() not in pids_of(loader)


def test_so_does_one_of_a_session_that_workers_cannot_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")  # as a notebook's: it has no file
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(unchanged, "__module__", "__main__")
    monkeypatch.setattr(main, "unchanged", unchanged, raising=False)
    with sutler.Loader(
        photos(tmp_path, unchanged), batch_size=4, num_workers=2, multiprocessing_context="forkserver"
    ) as loader:
        assert loader._in_trainer is not None
        assert "has something of this session" in loader._in_trainer.reason
        assert len(list(loader)) == 6


def test_so_does_one_whose_collate_fn_cannot_be_sent(tmp_path: Path) -> None:
    dataset = photos(tmp_path, pid)
    context = multiprocessing.get_context("spawn")
    with sutler.Loader(dataset, batch_size=2, num_workers=2, collate_fn=lambda samples: samples) as loader:
        assert loader._functions_in_workers
        loader.multiprocessing_context = context
        assert {int(pid) for batch in loader for pid, _ in batch} == {os.getpid()}


def test_the_context_counts_that_is_set_when_the_epoch_begins(tmp_path: Path) -> None:
    dataset = photos(tmp_path, lambda image: pid(image))
    with sutler.Loader(dataset, batch_size=2, num_workers=2, multiprocessing_context="spawn") as loader:
        loader.multiprocessing_context = "fork"
        assert os.getpid() not in pids_of(loader)
        loader.multiprocessing_context = "spawn"
        assert pids_of(loader) == {os.getpid()}


def test_so_does_the_number_of_workers(tmp_path: Path) -> None:
    dataset = photos(tmp_path, pid)
    with sutler.Loader(dataset, batch_size=2, num_workers=0) as loader:
        assert pids_of(loader) == {os.getpid()}
        loader.num_workers = 2
        assert os.getpid() not in pids_of(loader)
        assert loader.stats()["workers"] == 2
        loader.num_workers = 0
        assert pids_of(loader) == {os.getpid()}


@pytest.mark.parametrize("arguments", [{"cache": "1MiB"}, {"order": "shared"}], ids=["cache", "shared"])
def test_what_only_native_threads_do_leaves_functions_to_the_trainer(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    with sutler.Loader(photos(tmp_path, pid), batch_size=2, num_workers=2, **arguments) as loader:
        assert pids_of(loader) == {os.getpid()}


def test_so_does_an_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    dataset = photos(tmp_path / "photos", lambda image: slow(pid(image)))
    try:
        with (
            sutler.Loader(dataset, batch_size=2, num_workers=2, agent=tmp_path / "agent.sock") as loader,
            pytest.warns(PythonTransformWarning, match="Leave agent= out"),
        ):
            assert pids_of(loader) == {os.getpid()}
    finally:
        agent.stop()


def test_worker_threads_leave_functions_to_the_trainer_whose_generators_they_share(tmp_path: Path) -> None:
    dataset = photos(tmp_path, slow)
    with (
        sutler.Loader(dataset, batch_size=2, num_workers=2, multiprocessing_context="thread") as loader,
        pytest.warns(
            PythonTransformWarning, match='Pass multiprocessing_context="fork", or "forkserver" where'
        ),
    ):
        assert len(list(loader)) == 11


def _serve(dataset: Any, found: Any) -> None:
    with sutler.Loader(dataset, batch_size=2, num_workers=2) as loader:
        found.put(pids_of(loader) == {os.getpid()})


def test_in_a_worker_of_another_process_functions_run_there(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    process = context.Process(target=_serve, args=(photos(tmp_path, pid), found), daemon=True)
    process.start()
    assert found.get(timeout=60)
    process.join()


@pytest.mark.usefixtures("no_other_workers")
def test_nothing_is_started_before_the_first_epoch_and_workers_end_with_it(tmp_path: Path) -> None:
    with sutler.Loader(photos(tmp_path, pid), batch_size=2, num_workers=2) as loader:
        assert not multiprocessing.active_children()
        first = pids_of(loader)
        assert not multiprocessing.active_children()
        assert not first & pids_of(loader)


@pytest.mark.parametrize("argument", ["persistent_workers", "overlap_epochs"])
def test_workers_that_are_to_stay_do(argument: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {argument: True}
    with (
        warnings.catch_warnings(),
        sutler.Loader(photos(tmp_path, pid), batch_size=2, num_workers=1, **arguments) as loader,
    ):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", FORKED)
        assert pids_of(loader) == pids_of(loader) != {os.getpid()}


def test_ids_follow_a_subset_that_changes_though_workers_stay(tmp_path: Path) -> None:
    subset = Subset(photos(tmp_path), [4, 8, 2, 6])
    with sutler.Loader(
        subset, batch_size=4, num_workers=1, return_ids=True, persistent_workers=True
    ) as loader:
        ((first, _, ids),) = loader
        assert ids.tolist() == [0, 1, 2, 3]
        subset.indices = [2, 4, 6]
        ((_, _, ids),) = loader
        assert ids.tolist() == [0, 1, 2]
    assert len(first) == 4


def note_worker(worker: int) -> None:
    info = sutler.get_worker_info()
    info.dataset.worker = worker


def told_worker(image: Any) -> Any:
    return torch.tensor(sutler.get_worker_info().dataset.worker)


def test_worker_init_fn_is_called_and_finds_the_dataset(tmp_path: Path) -> None:
    dataset = photos(tmp_path, told_worker)
    with sutler.Loader(dataset, batch_size=2, num_workers=2, worker_init_fn=note_worker) as loader:
        assert {int(worker) for batch in loader for worker in batch[0]} <= {0, 1}
    assert not hasattr(dataset, "worker")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_of_the_loader_serves_the_same(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    with (
        sutler.Loader(photos(tmp_path), batch_size=4, num_workers=2, shuffle=True) as loader,
        copied(loader) as other,
    ):
        assert other._functions_in_workers
        assert same(list(other), list(loader))


def _go_on(iterator: Any, rest: Any) -> None:
    rest.put([labels.tolist() for _, labels in iterator])


def test_a_forked_trainer_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    rest = context.Queue()
    with sutler.Loader(photos(tmp_path), batch_size=4, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        process = context.Process(target=_go_on, args=(iterator, rest))
        process.start()
        expected = [labels.tolist() for _, labels in iterator]
        assert rest.get(timeout=60) == expected
        process.join()


def test_figures_and_the_timeline_are_those_of_workers(tmp_path: Path) -> None:
    with sutler.Loader(photos(tmp_path, slow), batch_size=4, num_workers=2) as loader:
        list(loader)
        stats, timeline = loader.stats(), loader.timeline()
    assert (stats["samples"], stats["batches"], stats["workers"]) == (SAMPLES, 6, 2)
    assert len(timeline["batches"]) == 6
    assert len(timeline["samples"]) == SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
def test_sound_of_types_that_numpy_has_not_is_padded(tmp_path: Path, workers: int) -> None:
    def halve(clip: Any) -> Any:
        return clip[..., : 40 + 10 * (clip.shape[-1] % 7)].bfloat16()

    dataset = sound(tmp_path).with_transform(T.Lambda(halve))
    clips, lengths, _ = next(iter(sutler.Loader(dataset, batch_size=4, num_workers=workers)))
    assert clips.dtype == torch.bfloat16
    for index, (clip, length) in enumerate(zip(clips, lengths.tolist(), strict=True)):
        assert torch.equal(clip[..., :length], dataset[index][0])
        assert (clip[..., length:] == -1).all()
