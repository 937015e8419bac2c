"""PyTorch's arguments: its defaults, its refusals, its attributes."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import warnings
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Loader
from sutler._copying import arguments_of

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

REFUSED_BY_BOTH: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"num_workers": 0, "prefetch_factor": 3},
    {"num_workers": 2, "prefetch_factor": -1},
    {"num_workers": 0, "persistent_workers": True},
    {"sampler": [0, 1], "shuffle": True},
    {"batch_sampler": [[0, 1]], "batch_size": 2},
    {"batch_sampler": [[0, 1]], "shuffle": True},
    {"batch_sampler": [[0, 1]], "sampler": [0, 1]},
    {"batch_sampler": [[0, 1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 1.5},
    {"batch_size": True},
    {"drop_last": "yes"},
    {"num_workers": 0, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "no-such-method"},
]


@pytest.mark.parametrize("arguments", REFUSED_BY_BOTH, ids=str)
def test_what_pytorch_refuses_is_refused_in_the_same_words(
    augmented: sutler.ImageFolder, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=" ") as theirs:
        torch_data.DataLoader([1, 2, 3], **arguments)
    with pytest.raises(ValueError, match=" ") as ours:
        Loader(augmented, **arguments)
    assert str(ours.value).replace(", 'thread'", "") == str(theirs.value), "threads are ours alone"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "chaos"}, r"order should be one that this release has \(.*\), got 'chaos'"),
        ({"seed": -1}, "seed should be an integer"),
        ({"seed": 2**64}, "seed should be an integer"),
        ({"rank": 0}, "rank and world_size go together"),
        ({"rank": 3, "world_size": 3}, r"Invalid rank 3, rank should be in the interval \[0, 2\]"),
        ({"rank": -1, "world_size": 3}, "Invalid rank -1"),
        ({"rank": 0, "world_size": 0}, "world_size should be at least 1, got 0"),
        ({"errors": "ignore"}, "errors should be 'raise', 'skip', or a budget"),
        ({"output": "jax"}, "output should be 'torch', 'numpy' or 'dlpack', got 'jax'"),
        ({"device_normalize": True}, "device_normalize=True needs a device"),
        ({"device": "cpu", "output": "numpy"}, "device='cpu' needs output='torch', got output='numpy'"),
        ({"timeout": float("nan")}, "timeout option should be non-negative"),
        ({"shuffle": "often"}, "shuffle should be a bool or None"),
        (
            {"in_order": False, "order": "strict"},
            "in_order=False asks for samples as they get ready and order='strict'",
        ),
        (
            {"num_workers": 2, "prefetch_factor": 0},
            "prefetch_factor should be at least 1, got 0: workers would",
        ),
    ],
    ids=str,
)
def test_our_own_arguments_are_checked(
    augmented: sutler.ImageFolder, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(augmented, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": 1.5}, "seed should be an integer from 0 to 2\\*\\*64 - 1, got 1.5"),
        ({"seed": None}, "seed should be an integer .* got None"),
        ({"seed": True}, "seed should be an integer .* got True"),
        ({"timeout": "5"}, "timeout should be a number of seconds, with 0 for no limit, got '5'"),
        ({"timeout": None}, "timeout should be a number of seconds"),
        ({"rank": "0", "world_size": 2}, "rank should be the number of this process, .* got '0'"),
        ({"rank": 0, "world_size": 2.0}, "world_size should be the number of processes, .* got 2.0"),
        ({"device": []}, r"device should be a device of PyTorch's, such as 'cuda', .* got \[\]"),
        ({"device": True}, "device should be a device of PyTorch's, .* got True"),
        ({"channels_last": "y"}, "channels_last should be a bool, got 'y'"),
        ({"return_ids": 1}, "return_ids should be a bool, got 1"),
        ({"progress": None}, "progress should be a bool, got None"),
        (
            {"collate_fn": 5},
            "collate_fn should be a function from a list of samples to a batch, or None, got 5",
        ),
        ({"worker_init_fn": 5}, "worker_init_fn should be a function of a worker's number, or None, got 5"),
        ({"generator": 5}, "generator should be a torch.Generator, whose seed counts, or None, got 5"),
        ({"num_workers": 1.5}, "num_workers should be an integer from 0, got 1.5"),
        ({"prefetch_factor": "a"}, "prefetch_factor should be a number of batches, .* got 'a'"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_type_are_refused_by_name(
    augmented: sutler.ImageFolder, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Loader(augmented, **arguments)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "", -1])
def test_what_is_no_device_to_pytorch_is_none_to_us(augmented: sutler.ImageFolder, device: Any) -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.device(device)
    with pytest.raises(RuntimeError, match=r"is no device of PyTorch's: .* leave device out") as ours:
        Loader(augmented, device=device)
    assert str(theirs.value).splitlines()[0] in str(ours.value)


def test_a_device_that_is_not_here_is_refused_when_the_loader_is_made(augmented: sutler.ImageFolder) -> None:
    absent = next(name for name in ("xpu", "mps", "hpu") if not _has(name))
    with pytest.raises(RuntimeError, match=f"device='{absent}' cannot be used here: .* Leave device out"):
        Loader(augmented, device=absent)


def _has(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except Exception:
        return False
    return True


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, 0 is one")
def test_a_number_is_the_device_that_pytorch_takes_it_for(augmented: sutler.ImageFolder) -> None:
    with pytest.raises(RuntimeError, match="device='cuda:0' asks for a CUDA device, and PyTorch finds none"):
        Loader(augmented, device=0)


def test_in_order_and_order_are_two_words_for_one_thing(augmented: sutler.ImageFolder) -> None:
    orders: list[tuple[dict[str, Any], str]] = [
        ({}, "strict"),
        ({"in_order": True}, "strict"),
        ({"in_order": False}, "ready"),
        ({"in_order": False, "order": "ready"}, "ready"),
        ({"order": "strict"}, "strict"),
        ({"order": "ready"}, "ready"),
    ]
    for given, expected in orders:
        loader = Loader(augmented, **given)
        assert (loader.order, loader.in_order) == (expected, expected == "strict")


@pytest.mark.parametrize(
    "arguments",
    [{"persistent_workers": True}, {"multiprocessing_context": "fork"}, {"prefetch_factor": 3}],
    ids=str,
)
def test_what_needs_workers_is_refused_where_a_python_dataset_has_none(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=" ") as theirs:
        torch_data.DataLoader([1, 2, 3], **arguments)
    with pytest.raises(ValueError, match=" ") as ours:
        Loader([1, 2, 3], **arguments)
    assert str(ours.value) == str(theirs.value)


def test_lateness_without_an_order_that_allows_it_is_said_to_be_in_vain(
    augmented: sutler.ImageFolder,
) -> None:
    with pytest.warns(RuntimeWarning, match=r"lateness=4 has no effect in strict order.*order=\"ready\""):
        Loader(augmented, lateness=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(augmented, lateness=4, order="ready")
        Loader(augmented, lateness=4, in_order=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_workers": 1}, 'in strict order.*pass order="ready" as well'),
        ({"num_workers": "auto", "order": "ready"}, 'with num_workers="auto".*pass their number'),
        ({"order": "ready"}, "without workers.*pass num_workers as well"),
        ({"num_workers": 1, "order": "ready", "multiprocessing_context": "thread"}, "with worker threads"),
    ],
)
def test_hand_over_where_nothing_is_put_aside_is_said_to_be_in_vain(
    augmented: sutler.ImageFolder, arguments: dict[str, Any], told: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"hand_over=True has no effect {told}"):
        Loader([1, 2, 3], hand_over=True, **arguments)
    with pytest.warns(
        RuntimeWarning, match="hand_over=True has no effect for a native dataset.*leave it out"
    ):
        Loader(augmented, hand_over=True, order="ready")
    with pytest.warns(RuntimeWarning, match="hand_over=True has no effect for a stream.*leave it out"):
        Loader(iter([1, 2, 3]), hand_over=True, order="ready")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "without workers.*pass num_workers as well"),
        ({"num_workers": 1}, "where workers end with their epoch; pass persistent_workers=True as well"),
        ({"num_workers": 1, "persistent_workers": True, "sampler": [0, 2]}, "with a sampler"),
        ({"num_workers": 1, "persistent_workers": True, "batch_sampler": [[0, 2]]}, "with a sampler"),
        ({"num_workers": 1, "persistent_workers": True, "device": "cpu"}, "with device="),
    ],
)
def test_overlap_where_the_next_epoch_is_not_foreseen_is_said_to_be_in_vain(
    augmented: sutler.ImageFolder, arguments: dict[str, Any], told: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"overlap_epochs=True has no effect {told}"):
        Loader([1, 2, 3], overlap_epochs=True, **arguments)
    with pytest.warns(RuntimeWarning, match="overlap_epochs=True has no effect for a subset"):
        Loader(torch_data.Subset(augmented, [0, 1]), overlap_epochs=True)
    with pytest.warns(RuntimeWarning, match="overlap_epochs=True has no effect for a stream"):
        Loader(iter([1, 2, 3]), overlap_epochs=True, num_workers=1)


@pytest.mark.processes
def test_what_has_an_effect_is_not_warned_of(augmented: sutler.ImageFolder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader([1, 2, 3], hand_over=True, order="ready", num_workers=1)
        Loader([1, 2, 3], overlap_epochs=True, num_workers=1, persistent_workers=True)
        Loader(augmented, overlap_epochs=True, order="ready")


@pytest.mark.parametrize("epoch", ["a", 1.5, None])
def test_an_epoch_that_is_no_number_is_refused_by_name(augmented: sutler.ImageFolder, epoch: Any) -> None:
    loader = Loader(augmented)
    int_of_numpys: Any = np.int64(3)
    with pytest.raises(TypeError, match=f"epoch should be an integer from 0 to .* got {epoch!r}"):
        loader.set_epoch(epoch)
    with pytest.raises(ValueError, match="epoch should be from 0"):
        loader.set_epoch(-1)
    loader.set_epoch(int_of_numpys)
    assert loader.sampler.epoch == 3


@pytest.mark.parametrize("index", ["a", 1.5, None, slice(2)])
def test_a_sample_is_named_by_an_integer(augmented: sutler.ImageFolder, index: Any) -> None:
    with pytest.raises(TypeError, match="samples are named by integers, got"):
        augmented[index]
    others: list[Any] = [np.int64(3), torch.tensor(3)]
    assert [augmented[other][1] for other in others] == [augmented[3][1]] * 2


def test_pinning_without_pytorch_says_what_is_missing(
    augmented: sutler.ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sutler._arguments.torch_is_installed", lambda: False)
    with pytest.raises(ModuleNotFoundError, match="pin_memory=True needs PyTorch, which is not installed"):
        Loader(augmented, pin_memory=True, output="numpy")


def test_what_has_no_samples_to_ask_for_is_refused() -> None:
    dataset: Any = object()
    with pytest.raises(TypeError, match=r"builtins\.object"):
        Loader(dataset)


def test_a_wrong_context_or_in_order_is_a_type_error(augmented: sutler.ImageFolder) -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match="multiprocessing_context option should be a valid context"):
        Loader(augmented, multiprocessing_context=wrong)
    with pytest.raises(TypeError, match="in_order should be a bool"):
        Loader(augmented, in_order=wrong)


def test_names_and_order_of_the_arguments_are_pytorchs() -> None:
    ours = list(inspect.signature(Loader).parameters.values())
    theirs = list(inspect.signature(torch_data.DataLoader).parameters.values())
    positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours][: len(positional)] == positional
    assert {p.name for p in theirs} <= {p.name for p in ours}
    their_defaults = {p.name: p.default for p in theirs}
    for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "timeout", "in_order"):
        assert inspect.signature(Loader).parameters[name].default == their_defaults[name], name


def test_each_argument_is_an_attribute(augmented: sutler.ImageFolder) -> None:
    given: dict[str, Any] = {
        "batch_size": 3,
        "num_workers": 2,
        "collate_fn": list,
        "pin_memory": False,
        "drop_last": True,
        "timeout": 5,
        "worker_init_fn": print,
        "multiprocessing_context": multiprocessing.get_context("spawn"),
        "prefetch_factor": 4,
        "persistent_workers": True,
        "in_order": True,
        "order": "strict",
        "seed": 7,
        "rank": 1,
        "world_size": 2,
        "errors": "skip",
        "return_ids": True,
        "output": "numpy",
        "channels_last": True,
        "device": None,
        "device_normalize": False,
        "progress": False,
    }
    loader = Loader(augmented, shuffle=True, **given)
    for name, value in given.items():
        assert getattr(loader, name) == value, name
    assert loader.dataset is augmented
    assert loader.shuffle is True
    assert loader.batch_sampler.batch_size == 3
    assert loader.batch_sampler.sampler is loader.sampler


def test_a_loader_is_no_dataloader_but_is_sized(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, batch_size=4)
    assert not isinstance(loader, torch_data.DataLoader)
    assert hasattr(loader.sampler, "set_epoch")
    assert "41 samples" in repr(loader)
    assert "of 1 sample, " in repr(Loader([1]))


@pytest.mark.parametrize("samples", [40, 41])
@pytest.mark.parametrize("batch_size", [1, 4, 40, 41, 100, None])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_len_is_pytorchs_and_the_truth(
    augmented: sutler.ImageFolder, samples: int, batch_size: int | None, drop_last: bool, given: bool
) -> None:
    if batch_size is None and drop_last:
        pytest.skip("both refuse it")
    arguments: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    if given or samples != len(augmented):
        arguments["sampler"] = range(samples)
    loader = Loader(augmented, num_workers=1, output="numpy", **arguments)
    theirs = torch_data.DataLoader(list(range(samples)), batch_size=batch_size, drop_last=drop_last)
    assert len(loader) == len(theirs)
    assert sum(1 for _ in loader) == len(theirs)


def test_len_is_unknown_where_the_sampler_has_none(augmented: sutler.ImageFolder) -> None:
    class Unsized:
        def __iter__(self) -> Any:
            return iter([3, 1])

    with pytest.raises(TypeError):
        len(Loader(augmented, sampler=Unsized()))
    assert len(list(Loader(augmented, sampler=Unsized()))) == 2


def test_more_threads_or_memory_than_there_is_is_an_error_and_not_a_crash(
    augmented: sutler.ImageFolder,
) -> None:
    with pytest.raises(MemoryError, match="lower batch_size or prefetch_factor"):
        # What a sampler may draw, unlike what an epoch of the loader's own has, could fill such a batch.
        next(iter(Loader(augmented, batch_size=2**40, sampler=range(41))))


def test_a_copy_has_all_arguments(augmented: sutler.ImageFolder) -> None:
    given: dict[str, Any] = {
        "dataset": augmented,
        "batch_size": 3,
        "shuffle": True,
        "num_workers": 1,
        "drop_last": True,
        "timeout": 7,
        "prefetch_factor": 5,
        "order": "ready",
        "lateness": 9,
        "overlap_epochs": True,
        "seed": 11,
        "rank": 1,
        "world_size": 2,
        "cache": "1MiB",
        "errors": sutler.Errors(max=3),
        "return_ids": True,
        "output": "numpy",
        "channels_last": True,
    }
    loader = sutler.Loader(**given)
    copied = copy.copy(loader)
    for name in {*given} - {"cache"}:
        assert getattr(copied, name) == given[name], name
    assert copied.cache == loader.cache
    for batches in zip(loader, copied, strict=True):
        assert sorted(batches[0][2].tolist()) == sorted(batches[1][2].tolist())
    assert copied._room is not loader._room
    loader.close()
    assert next(iter(copied)) is not None


def test_what_a_loader_chose_itself_its_copy_chooses_anew(augmented: sutler.ImageFolder) -> None:
    with sutler.Loader(augmented, num_workers="auto", output="numpy") as loader:
        arguments = arguments_of(loader)
        assert arguments["num_workers"] == "auto"
        assert {"prefetch_factor", "lateness", "rank", "world_size"}.isdisjoint(arguments)
        loader.num_workers = 1
        assert copy.copy(loader).num_workers == 1
    loader = sutler.Loader([1, 2], num_workers=1, prefetch_factor=3, persistent_workers=True)
    loader.num_workers = 0
    assert copy.copy(loader).num_workers == 0


def test_every_argument_is_known_to_who_copies(augmented: sutler.ImageFolder) -> None:
    drawing = sutler.Loader(
        [1, 2], batch_sampler=[[0]], num_workers=1, prefetch_factor=1, order="ready", lateness=1
    )
    own = sutler.Loader(augmented, rank=0, world_size=1)
    known = {*arguments_of(drawing), *arguments_of(own), "in_order"}  # which order= says
    assert known == set(inspect.signature(sutler.Loader).parameters)
