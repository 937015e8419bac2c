"""From samples to a batch: the default collation, type by type, and `collate_fn`."""

from __future__ import annotations

import os
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from .datasets import Box, Computed, Listed, Numbers, Point, flat
from .expect import raises

TENSOR_TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
ARRAY_TYPES = [
    "bool",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "float16",
    "float32",
    "float64",
    "complex64",
]


class Tagged(dict[str, Any]):
    """A mapping with something of its own."""

    tag = "none"


@pytest.fixture(params=[0, 2], ids=["main", "workers"])
def collate(request: pytest.FixtureRequest, load: Callable[..., Any]) -> Callable[..., Any]:
    """The batch that a loader makes of some samples, and a second one like it.

    Twice the same, since a loader may learn from the first batch what the later ones look like.
    """

    def through_a_loader(samples: list[Any], **options: Any) -> Any:
        loader = load(
            Listed(samples * 3), batch_size=len(samples), num_workers=min(request.param, 1), **options
        )
        batches = list(loader)
        assert len(batches) == 3
        assert repr(batches[0]) == repr(batches[2])
        return batches[1]

    return through_a_loader


@pytest.mark.parametrize("dtype", TENSOR_TYPES, ids=str)
def test_tensors_of_every_type_are_stacked(collate: Callable[..., Any], dtype: torch.dtype) -> None:
    samples = [torch.tensor([[0, 1, 2], [3, 4, at]]).to(dtype) for at in range(3)]
    batch = collate(samples)
    assert batch.dtype == dtype
    assert batch.shape == (3, 2, 3)
    assert all(torch.equal(row, sample) for row, sample in zip(batch, samples, strict=True))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1, 1), (2, 3, 4, 5, 6)], ids=str)
def test_tensors_of_every_shape_are_stacked(collate: Callable[..., Any], shape: tuple[int, ...]) -> None:
    batch = collate([torch.full(shape, at) for at in range(2)])
    assert batch.shape == (2, *shape)
    assert batch.dtype == torch.int64
    assert all((batch[at] == at).all() for at in range(2))


@pytest.mark.parametrize(
    "make", [torch.tensor, lambda values, dtype: torch.tensor(values, dtype=dtype).numpy()]
)
def test_samples_of_different_types_get_one_that_holds_them_all(
    load: Callable[..., Any], differs: Callable[[str], bool], make: Callable[..., Any]
) -> None:
    samples = [make([0.5], dtype=torch.float32), make([1 / 3], dtype=torch.float64)]
    (batch,) = load(Listed(samples), batch_size=2)
    assert batch.dtype == torch.float64
    (from_worker,) = load(Listed(samples), batch_size=2, num_workers=1)
    assert from_worker.dtype == (torch.float64 if differs("mixed_types_in_workers") else torch.float32)
    if differs("mixed_types_in_workers"):
        assert from_worker.tolist() == batch.tolist() == [[0.5], [1 / 3]]


@pytest.mark.parametrize("dtype", ARRAY_TYPES)
def test_arrays_become_tensors(collate: Callable[..., Any], dtype: str) -> None:
    batch = collate([np.array([[0, 1], [2, at]], dtype=dtype) for at in range(3)])
    assert isinstance(batch, torch.Tensor)
    assert batch.dtype == getattr(torch, dtype)
    assert batch.tolist() == [np.array([[0, 1], [2, at]], dtype=dtype).tolist() for at in range(3)]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_array_scalars_become_tensors(collate: Callable[..., Any], dtype: str) -> None:
    kind = getattr(np, "bool_" if dtype == "bool" else dtype)
    batch = collate([kind(0), kind(1), kind(3)])
    assert batch.dtype == getattr(torch, dtype)
    assert batch.tolist() == [kind(0), kind(1), kind(3)]


def test_arrays_without_dimensions_become_tensors(collate: Callable[..., Any]) -> None:
    batch = collate([np.array(1.5), np.array(2.5)])
    assert batch.dtype == torch.float64
    assert batch.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([1, -2, 3], torch.int64),
        ([0.5, 1.5], torch.float64),
        ([True, False], torch.bool),
        ([1.5, 2], torch.float64),
        ([1, 2.5], torch.float32),
        ([2**62, -(2**62)], torch.int64),
    ],
    ids=str,
)
def test_numbers_become_tensors(collate: Callable[..., Any], samples: list[Any], dtype: torch.dtype) -> None:
    batch = collate(samples)
    assert batch.dtype == dtype
    assert batch.tolist() == samples


@pytest.mark.parametrize("samples", [["a", "", "longer"], [b"a", b"", b"\x00\xff"]], ids=["str", "bytes"])
def test_texts_are_left_alone(collate: Callable[..., Any], samples: list[Any]) -> None:
    assert list(collate(samples)) == samples


def test_dicts_are_collated_by_key(collate: Callable[..., Any]) -> None:
    batch = collate([{"x": torch.ones(2) * at, "name": f"n{at}", "y": at} for at in range(3)])
    assert list(batch) == ["x", "name", "y"]
    assert batch["x"].shape == (3, 2)
    assert list(batch["name"]) == ["n0", "n1", "n2"]
    assert batch["y"].tolist() == [0, 1, 2]


def test_keys_beyond_those_of_the_first_sample_are_dropped(collate: Callable[..., Any]) -> None:
    batch = collate([{"x": 1}, {"x": 2, "y": 3}])
    assert {key: value.tolist() for key, value in batch.items()} == {"x": [1, 2]}


def test_kinds_of_mappings_are_kept(collate: Callable[..., Any]) -> None:
    kinds: list[Callable[[dict[str, int]], Any]] = [dict, OrderedDict, partial(defaultdict, list), UserDict]
    for kind in kinds:
        sample = kind({"x": 1})
        batch = collate([sample, sample])
        assert type(batch) is type(sample)
        assert batch["x"].tolist() == [1, 1]


def test_what_a_mapping_has_beyond_its_keys_is_kept(collate: Callable[..., Any]) -> None:
    sample = Tagged(x=1)
    sample.tag = "kept"
    batch = collate([sample, sample])
    assert type(batch) is Tagged
    assert batch.tag == "kept"


def test_tuples_and_lists_become_lists(collate: Callable[..., Any]) -> None:
    for kind in (tuple, list):
        batch = collate([kind((at, f"n{at}", torch.zeros(2))) for at in range(3)])
        assert type(batch) is list
        assert batch[0].tolist() == [0, 1, 2]
        assert list(batch[1]) == ["n0", "n1", "n2"]
        assert batch[2].shape == (3, 2)


def test_named_tuples_stay_what_they_are(collate: Callable[..., Any]) -> None:
    batch = collate([Point(at, {"deep": (float(at), "s")}) for at in range(2)])
    assert type(batch) is Point
    assert batch.x.tolist() == [0, 1]
    assert batch.y["deep"][0].tolist() == [0.0, 1.0]
    assert list(batch.y["deep"][1]) == ["s", "s"]


def test_nesting_goes_to_any_depth(collate: Callable[..., Any]) -> None:
    batch = collate([{"a": [({"b": [torch.tensor(at)]}, at)]} for at in range(2)])
    assert batch["a"][0][0]["b"][0].tolist() == [0, 1]
    assert batch["a"][0][1].tolist() == [0, 1]


def test_other_sequences_become_lists(collate: Callable[..., Any]) -> None:
    assert [column.tolist() for column in collate([range(2), range(2)])] == [[0, 0], [1, 1]]


def test_empty_containers(collate: Callable[..., Any]) -> None:
    assert collate([{}, {}]) == {}
    assert collate([(), ()]) == []


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (
            [None, None],
            TypeError,
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists",
        ),
        ([Box(1), Box(2)], TypeError, "default_collate: batch must contain .*; found <class '.*Box'>"),
        ([{1, 2}, {1, 2}], TypeError, "default_collate: batch must contain .*; found <class 'set'>"),
        ([np.array(["a"]), np.array(["b"])], TypeError, "default_collate: batch must contain .*; found <U1"),
        (
            [np.array([None]), np.array([None])],
            TypeError,
            "default_collate: batch must contain .*; found object",
        ),
        ([torch.zeros(2), torch.zeros(3)], RuntimeError, "stack expects each tensor to be equal size"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], RuntimeError, "stack expects each tensor to be equal size"),
        ([[1, 2], [1]], RuntimeError, "each element in list of batch should be of equal size"),
        ([{"x": 1}, {"y": 1}], KeyError, "x"),
        ([1, "a"], TypeError, None),
        (
            [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
            RuntimeError,
            "Batches of sparse tensors are not currently supported by the default collate_fn",
        ),
    ],
    ids=[
        "None",
        "class",
        "set",
        "array of text",
        "array of objects",
        "shapes",
        "array shapes",
        "lengths",
        "keys",
        "types",
        "sparse",
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_collated_raises(
    load: Callable[..., Any], samples: list[Any], error: type[Exception], message: str | None, workers: int
) -> None:
    loader = load(Listed(samples), batch_size=len(samples), num_workers=workers)
    with raises(error, match=message):
        list(loader)


def test_samples_that_differ_from_the_first_batch(load: Callable[..., Any]) -> None:
    """Types and shapes may change from batch to batch, as long as those of a batch agree."""
    samples = [
        torch.zeros(2),
        torch.zeros(2),
        torch.zeros(3),
        torch.zeros(3),
        1,
        2,
        "a",
        "b",
        {"x": 1},
        {"x": 2},
    ]
    for workers in (0, 1):
        batches = list(load(Listed(samples), batch_size=2, num_workers=workers))
        assert [getattr(batch, "shape", type(batch)) for batch in batches] == [
            (2, 2),
            (2, 3),
            (2,),
            list,
            dict,
        ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("collate_fn", "expected"),
    [
        (lambda batch: batch, [[0, 1, 2], [3, 4]]),
        (partial(map, str), None),
        (sum, [3, 7]),
        (tuple, [(0, 1, 2), (3, 4)]),
        (lambda batch: None, [None, None]),
        (len, [3, 2]),
    ],
    ids=["lambda", "partial", "builtin", "class", "nothing", "length"],
)
def test_collate_fn_makes_the_batch_of_a_list(
    load: Callable[..., Any], collate_fn: Callable[..., Any], expected: Any, workers: int
) -> None:
    if expected is None:
        collate_fn, expected = partial(sorted, reverse=True), [[2, 1, 0], [4, 3]]
    assert list(load(Numbers(5), batch_size=3, collate_fn=collate_fn, num_workers=workers)) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_fn_may_return_anything(load: Callable[..., Any], workers: int) -> None:
    (batch,) = load(Numbers(3), batch_size=3, collate_fn=lambda batch: Box(sum(batch)), num_workers=workers)
    assert batch.value == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_fn_gets_the_samples_as_they_are(load: Callable[..., Any], workers: int) -> None:
    sample = (1, 2.0, "three", np.float32(4), np.arange(5), torch.arange(6), None, Point(7, 8), True, b"9")

    def types(batch: Any) -> Any:
        assert type(batch) is list
        return [[type(part) for part in each] for each in batch]

    loader = load(Listed([sample] * 6), batch_size=2, collate_fn=types, num_workers=workers)
    assert list(loader) == [[[type(part) for part in sample]] * 2] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_without_batches_collate_fn_gets_each_sample(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(3), batch_size=None, collate_fn=lambda sample: sample * 10, num_workers=workers)
    assert list(loader) == [0, 10, 20]


@pytest.mark.parametrize("workers", [0, 1])
def test_without_batches_arrays_become_tensors_and_the_rest_stays(
    load: Callable[..., Any], workers: int
) -> None:
    sample = {
        "array": np.arange(3),
        "scalar": np.float32(1),
        "number": 2,
        "text": "t",
        "pair": (np.zeros(1), 3),
    }
    (converted, *_) = load(Listed([sample] * 2), batch_size=None, num_workers=workers)
    assert converted["array"].tolist() == [0, 1, 2]
    assert isinstance(converted["array"], torch.Tensor)
    assert isinstance(converted["scalar"], torch.Tensor)
    assert type(converted["number"]) is int
    assert converted["text"] == "t"
    assert type(converted["pair"]) is list
    assert isinstance(converted["pair"][0], torch.Tensor)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_type_can_be_given_a_collation_of_its_own(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    def boxes(batch: list[Box], *, collate_fn_map: Any = None) -> torch.Tensor:
        return torch.tensor([box.value for box in batch])

    monkeypatch.setitem(default_collate_fn_map, Box, boxes)
    loader = load(Computed(4, lambda index: (index, Box(index))), batch_size=2, num_workers=workers)
    assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_where_collate_fn_runs(load: Callable[..., Any]) -> None:
    ours = os.getpid()
    for batch_size in (2, None):
        loader = load(Numbers(4), batch_size=batch_size, collate_fn=lambda batch: os.getpid(), num_workers=1)
        assert ours not in list(loader)
    assert list(load(Numbers(2), batch_size=2, collate_fn=lambda batch: os.getpid())) == [ours]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize("workers", [0, 1])
def test_pinning_without_a_device_changes_nothing(load: Callable[..., Any], workers: int) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is a device to pin memory for")
    loader = load(Numbers(4), batch_size=2, pin_memory=True, num_workers=workers)
    assert flat(loader) == [0, 1, 2, 3]
    assert not next(iter(loader)).is_pinned()
