"""The constructor: its arguments, what it refuses and in which words, and the attributes it leaves."""

from __future__ import annotations

import inspect
import multiprocessing
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate, default_convert

from .datasets import Numbers, flat

POSITIONAL: dict[str, Any] = {
    "dataset": inspect.Parameter.empty,
    "batch_size": 1,
    "shuffle": None,
    "sampler": None,
    "batch_sampler": None,
    "num_workers": 0,
    "collate_fn": None,
    "pin_memory": False,
    "drop_last": False,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "generator": None,
}
BY_KEYWORD: dict[str, Any] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory_device": "",
    "in_order": True,
}

SIZES: list[Any] = [0, -1, 1.5, True, "2"]
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "negative workers": (
        {"num_workers": -1},
        ValueError,
        "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.",
    ),
    "negative timeout": ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
    "prefetch without workers": (
        {"num_workers": 0, "prefetch_factor": 3},
        ValueError,
        "prefetch_factor option could only be specified in multiprocessing.",
    ),
    "negative prefetch": (
        {"num_workers": 1, "prefetch_factor": -1},
        ValueError,
        "prefetch_factor option should be non-negative",
    ),
    "persistent without workers": (
        {"num_workers": 0, "persistent_workers": True},
        ValueError,
        "persistent_workers option needs num_workers > 0",
    ),
    "sampler and shuffle": (
        {"sampler": [0], "shuffle": True},
        ValueError,
        "sampler option is mutually exclusive with shuffle",
    ),
    "no batches to drop the last of": (
        {"batch_size": None, "drop_last": True},
        ValueError,
        "batch_size=None option disables auto-batching and is mutually exclusive with drop_last",
    ),
    "context without workers": (
        {"num_workers": 0, "multiprocessing_context": "fork"},
        ValueError,
        "multiprocessing_context can only be used with multi-process loading (num_workers > 0), "
        "but got num_workers=0",
    ),
    "unknown context": (
        {"num_workers": 1, "multiprocessing_context": "clone"},
        ValueError,
        "multiprocessing_context option should specify a valid start method in ",
    ),
    "context of another type": (
        {"num_workers": 1, "multiprocessing_context": 3},
        TypeError,
        "multiprocessing_context option should be a valid context object or a string specifying the start method",
    ),
    "drop_last of another type": (
        {"batch_size": 2, "drop_last": 1},
        ValueError,
        "drop_last should be a boolean value, but got drop_last=1",
    ),
}
for size in SIZES:
    REFUSED[f"batch_size {size!r}"] = (
        {"batch_size": size},
        ValueError,
        f"batch_size should be a positive integer value, but got batch_size={size}",
    )


def test_arguments_have_the_same_names_order_and_defaults(
    loader_class: Any, differs: Callable[[str], bool]
) -> None:
    positional, by_keyword = dict(POSITIONAL), dict(BY_KEYWORD)
    if differs("num_workers_default"):
        positional["num_workers"] = None
    parameters = inspect.signature(loader_class).parameters
    found = {
        name: each.default for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD
    }
    assert list(found.items()) == list(positional.items())
    keywords = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert keywords.items() >= by_keyword.items()


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_work_is_refused(
    loader_class: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        loader_class(Numbers(4), **options)


@pytest.mark.parametrize(
    "others", [{"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True}], ids=str
)
def test_a_batch_sampler_excludes_what_it_decides(loader_class: Any, others: dict[str, Any]) -> None:
    message = "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
    with pytest.raises(ValueError, match=message):
        loader_class(Numbers(4), batch_sampler=[[0], [1]], **others)


def test_shuffling_nothing_is_refused(loader_class: Any) -> None:
    with pytest.raises(
        ValueError, match="num_samples should be a positive integer value, but got num_samples=0"
    ):
        loader_class(Numbers(0), shuffle=True)


# PyTorch's half-made iterator complains once more when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_prefetch_factor_of_zero_cannot_work(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    if differs("prefetch_factor_zero"):
        with pytest.raises(ValueError, match="prefetch_factor"):
            load(Numbers(4), num_workers=1, prefetch_factor=0)
        return
    loader = load(Numbers(4), num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match="prefetch_factor"):
        iter(loader)


@pytest.mark.parametrize("name", ["collate_fn", "generator"])
def test_arguments_of_a_wrong_type_are_type_errors(
    load: Callable[..., Any], differs: Callable[[str], bool], name: str
) -> None:
    wrong: dict[str, Any] = {name: 5}
    if differs("wrong_types"):
        with pytest.raises(TypeError, match=f"{name} should be .* got 5"):
            load(Numbers(4), shuffle=True, **wrong)
        return
    loader = load(Numbers(4), shuffle=True, **wrong)
    with pytest.raises(TypeError):
        next(iter(loader))


@pytest.mark.parametrize("name", ["shuffle", "in_order"])
def test_what_may_be_true_or_false_may_be_a_number(
    load: Callable[..., Any], differs: Callable[[str], bool], name: str
) -> None:
    for value in (0, 1, np.bool_(True)):
        given: dict[str, Any] = {name: value}
        assert sorted(flat(load(Numbers(4), num_workers=1, **given))) == [0, 1, 2, 3]
    word: dict[str, Any] = {name: "no"}
    if differs("truth_values"):
        with pytest.raises((TypeError, ValueError), match=f"{name} should be a bool"):
            load(Numbers(4), **word)
        return
    assert sorted(flat(load(Numbers(4), **word))) == [0, 1, 2, 3]


def test_a_timeout_needs_workers(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    loader = load(Numbers(4), timeout=5)
    if differs("timeout_without_workers"):
        assert flat(loader) == [0, 1, 2, 3]
        return
    with pytest.raises(AssertionError, match="timeout"):
        iter(loader)


def test_every_argument_is_an_attribute(loader_class: Any) -> None:
    dataset, generator = Numbers(10), torch.Generator()
    loader = loader_class(
        dataset,
        batch_size=3,
        num_workers=2,
        collate_fn=list,
        pin_memory=True,
        drop_last=True,
        timeout=7,
        worker_init_fn=print,
        generator=generator,
        prefetch_factor=5,
        persistent_workers=True,
        in_order=False,
    )
    assert loader.dataset is dataset
    assert loader.batch_size == 3
    assert loader.num_workers == 2
    assert loader.collate_fn is list
    assert loader.pin_memory is True
    assert loader.drop_last is True
    assert loader.timeout == 7
    assert loader.worker_init_fn is print
    assert loader.generator is generator
    assert loader.prefetch_factor == 5
    assert loader.persistent_workers is True
    assert loader.in_order is False
    assert loader.pin_memory_device == ""


def test_arguments_may_be_given_by_position(loader_class: Any) -> None:
    loader = loader_class(Numbers(5), 2, False, None, None, 0, list, False, True, 0, None, None, None)
    assert list(loader) == [[0, 1], [2, 3]]


def test_attributes_that_were_left_out(loader_class: Any, differs: Callable[[str], bool]) -> None:
    loader = loader_class(Numbers(10))
    assert loader.batch_size == 1
    assert loader.num_workers == 0
    assert loader.prefetch_factor == (2 if differs("prefetch_factor_default") else None)
    assert loader.collate_fn is default_collate
    assert loader.multiprocessing_context is None
    assert loader.generator is None
    assert loader.drop_last is False
    assert loader_class(Numbers(10), num_workers=1).prefetch_factor == 2
    assert loader_class(Numbers(10), batch_size=None).collate_fn is default_convert


def test_the_samplers_are_attributes_of_pytorchs_kinds(
    loader_class: Any, differs: Callable[[str], bool]
) -> None:
    loader = loader_class(Numbers(10), batch_size=4, drop_last=True)
    shuffled = loader_class(Numbers(10), batch_size=4, shuffle=True)
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(shuffled.sampler, RandomSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    own = differs("own_samplers")
    assert type(loader.sampler).__name__ == ("EpochSampler" if own else "SequentialSampler")
    assert list(loader.sampler) == list(range(10))
    assert len(loader.sampler) == 10
    assert sorted(shuffled.sampler) == list(range(10))
    assert list(loader.batch_sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, True)
    assert loader.batch_sampler.sampler is loader.sampler


def test_given_samplers_are_attributes(loader_class: Any) -> None:
    sampler, batches = [3, 1], [[0, 1], [2]]
    loader = loader_class(Numbers(4), sampler=sampler)
    assert loader.sampler is sampler
    assert loader.batch_sampler.sampler is sampler
    loader = loader_class(Numbers(4), batch_sampler=batches)
    assert loader.batch_sampler is batches
    assert loader.batch_size is None
    assert loader.drop_last is False
    assert loader_class(Numbers(4), batch_size=None).batch_sampler is None


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_the_order_rests_on_cannot_be_changed_later(loader_class: Any, name: str) -> None:
    loader = loader_class(Numbers(4))
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after \\w+ is initialized"):
        setattr(loader, name, None)


def test_a_context_that_is_set_later_is_checked_as_well(load: Callable[..., Any]) -> None:
    loader = load(Numbers(4))
    with pytest.raises(ValueError, match="can only be used with multi-process loading"):
        loader.multiprocessing_context = "fork"
    with_workers = load(Numbers(4), num_workers=1)
    with pytest.raises(ValueError, match="should specify a valid start method"):
        with_workers.multiprocessing_context = "knife"
    with pytest.raises(TypeError, match="should be a valid context object"):
        with_workers.multiprocessing_context = 7
    with_workers.multiprocessing_context = "fork"
    assert with_workers.multiprocessing_context.get_start_method() == "fork"
    with_workers.multiprocessing_context = None
    assert with_workers.multiprocessing_context is None


def test_other_attributes_can_be_changed_later(load: Callable[..., Any]) -> None:
    loader = load(Numbers(4), batch_size=2)
    loader.collate_fn = tuple
    assert list(loader) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("given", ["fork", multiprocessing.get_context("fork")], ids=["name", "context"])
def test_a_context_is_given_by_name_or_as_it_is(loader_class: Any, given: Any) -> None:
    loader = loader_class(Numbers(4), num_workers=1, multiprocessing_context=given)
    assert isinstance(loader.multiprocessing_context, multiprocessing.context.BaseContext)
    assert loader.multiprocessing_context.get_start_method() == "fork"


def test_anything_with_getitem_and_length_is_a_dataset(load: Callable[..., Any]) -> None:
    assert flat(load([5, 6, 7], batch_size=2)) == [5, 6, 7]
    assert flat(load((5, 6, 7), batch_size=2)) == [5, 6, 7]
    assert flat(load(range(3), batch_size=2)) == [0, 1, 2]
    assert flat(load(torch.arange(3), batch_size=2)) == [0, 1, 2]


def test_whether_a_loader_is_an_instance_of_pytorchs(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    assert isinstance(load(Numbers(2)), torch.utils.data.DataLoader) != differs("no_subclass")


def test_loaders_can_be_annotated_with_their_batches(loader_class: Any) -> None:
    annotated = loader_class[list[int]]
    assert [batch.tolist() for batch in annotated(Numbers(2))] == [[0], [1]]


def test_the_length_of_an_iterator_stays_what_it_was(load: Callable[..., Any]) -> None:
    for workers in (0, 1):
        iterator = iter(load(Numbers(6), batch_size=2, num_workers=workers))
        assert len(iterator) == 3
        next(iterator)
        assert len(iterator) == 3
        del iterator
