"""Samples that are hard to carry from one process to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sutler import _payload
from torch.utils.data import IterableDataset, default_collate, default_convert
from torch.utils.data._utils.collate import default_collate_fn_map

from .datasets import Computed, Listed, Numbers, flat
from .expect import raises


class IteratedOnce(IterableDataset[Any]):
    """A stream of samples that were made beforehand."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Marked(torch.Tensor):
    """A tensor with a class of its own."""


def big(index: int) -> torch.Tensor:
    return torch.full((50, 1 << 20), index, dtype=torch.uint8)


@pytest.fixture(params=[0, 1], ids=["main", "worker"])
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def test_samples_of_fifty_megabytes(load: Callable[..., Any], workers: int) -> None:
    seen = []
    for batch in load(
        Computed(4, big), batch_size=1, num_workers=workers, prefetch_factor=2 if workers else None
    ):
        assert batch.shape == (1, 50, 1 << 20)
        assert int(batch[0, 0, 0]) == int(batch[0, -1, -1])
        seen.append(int(batch[0, 25, 1000]))
    assert seen == [0, 1, 2, 3]


def test_samples_that_grow(load: Callable[..., Any], workers: int) -> None:
    sizes = [1, 10, 1000, 100_000, 10_000_000, 1, 5_000_000]
    loader = load(
        Computed(7, lambda index: np.full(sizes[index], index, dtype=np.uint8)), num_workers=workers
    )
    for at, batch in enumerate(loader):
        assert batch.shape == (1, sizes[at])
        assert int(batch.sum() % 256) == at * sizes[at] % 256


def test_views_and_strides(load: Callable[..., Any], workers: int) -> None:
    base = torch.arange(24).reshape(4, 6)
    samples = [base.t(), base[:, ::2].expand(4, 3), base[1:3], base.flip(0)]
    for sample in samples:
        for batch in load(Listed([sample] * 4), batch_size=2, num_workers=workers):
            assert torch.equal(batch, torch.stack([sample, sample]))
    arrays = [
        np.arange(24).reshape(4, 6).T,
        np.arange(24)[::3],
        np.asfortranarray(np.eye(3)),
        np.arange(6)[2:4],
    ]
    for array in arrays:
        for batch in load(Listed([array] * 4), batch_size=2, num_workers=workers):
            assert np.array_equal(batch.numpy(), np.stack([array, array]))


def permuted_tensors() -> dict[str, torch.Tensor]:
    """Tensors without gaps whose dimensions do not follow each other in memory as in the shape."""
    picture = torch.rand(2, 3, 4, 5)
    return {
        "channels last": picture.to(memory_format=torch.channels_last),
        "one channel last": picture[:, :1].to(memory_format=torch.channels_last),
        "channels last 3d": torch.rand(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d),
        "transposed": torch.arange(6).reshape(2, 3).t(),
        "permuted": picture.to(torch.bfloat16).permute(2, 0, 3, 1),
        "none": torch.rand(4, 0, 3).transpose(0, 2),
        "large": torch.rand(4, 3, 256, 256).to(memory_format=torch.channels_last),
    }


def itself(value: Any) -> Any:
    return value


@pytest.mark.parametrize("name", permuted_tensors())
def test_tensors_keep_their_strides(load: Callable[..., Any], workers: int, name: str) -> None:
    """Of a `collate_fn`, of samples that are batches already, and of streams of both."""
    tensor = permuted_tensors()[name]
    samples = [{"x": tensor}] * 6
    collated = {"batch_size": 2, "collate_fn": lambda batch: batch[0]}
    for dataset in (Listed(samples), IteratedOnce(samples)):
        for options in (collated, {"batch_size": None}, {"batch_size": None, "collate_fn": itself}):
            for batch in load(dataset, **options, num_workers=workers):
                assert batch["x"].stride() == tensor.stride()
                assert torch.equal(batch["x"], tensor)


def test_arrays_keep_their_strides(load: Callable[..., Any], workers: int) -> None:
    """Those in the order of Fortran as they are; others, which PyTorch's workers pickle in C's, as tensors."""
    array = np.arange(24.0).reshape(2, 3, 4)
    fortran, transposed = np.asfortranarray(array), array.transpose(0, 2, 1)
    for make in (Listed, IteratedOnce):
        single = load(make([fortran] * 4), batch_size=None, collate_fn=itself, num_workers=workers)
        several = load(
            make([fortran] * 4), batch_size=2, collate_fn=lambda batch: batch[0], num_workers=workers
        )
        for found in [*single, *several]:
            assert found.strides == fortran.strides
            assert np.array_equal(found, fortran)
        for expected in (fortran, transposed):
            for tensor in load(make([expected] * 4), batch_size=None, num_workers=workers):
                assert tensor.stride() == torch.from_numpy(expected).stride()
                assert np.array_equal(tensor.numpy(), expected)


def test_strides_of_what_is_collated_by_default(load: Callable[..., Any]) -> None:
    """Workers stack into contiguous batches, however samples lie in memory: the first batch, too, and the last."""
    sample = torch.rand(3, 4, 5, 6).to(memory_format=torch.channels_last)
    for dataset in (Listed([sample] * 9), IteratedOnce([sample] * 9)):
        for batch in load(dataset, batch_size=2, num_workers=1):
            assert batch.is_contiguous()
            assert torch.equal(batch[0], sample)


def test_strides_of_tensors_with_gaps(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    base = torch.arange(24).reshape(4, 6)
    for tensor in (base[:, ::2], base[0].expand(4, 6), base.t()[::2]):
        for found in load(Listed([tensor] * 2), batch_size=None, num_workers=1):
            assert torch.equal(found, tensor)
            if differs("strides_with_gaps"):
                assert found.is_contiguous()
            else:
                assert found.stride() == tensor.stride()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_arrays_that_cannot_be_written_to(load: Callable[..., Any], workers: int) -> None:
    array = np.arange(4)
    array.setflags(write=False)
    batches = list(load(Listed([array] * 4), batch_size=2, num_workers=workers))
    assert [batch.tolist() for batch in batches] == [[[0, 1, 2, 3]] * 2] * 2


def mirrored() -> list[Any]:
    array = np.arange(6.0).reshape(2, 3)
    return [array[:, ::-1], {"picture": array[::-1], "label": 1}, (array[::-1, ::-1], "text")]


@pytest.mark.parametrize("sample", mirrored(), ids=["array", "dict", "tuple"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_negative_strides(
    load: Callable[..., Any],
    workers: int,
    differs: Callable[[str], bool],
    sample: Any,
    batch_size: int | None,
) -> None:
    loader = load(Listed([sample] * 4), batch_size=batch_size, num_workers=workers)
    stream = load(IteratedOnce([sample] * 4), batch_size=batch_size, num_workers=workers)
    if not differs("negative_strides"):
        for refused in (loader, stream):
            with raises(ValueError, match="negative"):
                list(refused)
        return
    convert = default_convert if batch_size is None else default_collate
    plain = _payload.copied(sample)
    expected = str(convert(plain if batch_size is None else [plain] * 2))
    for served in (loader, stream):
        assert [str(batch) for batch in served] == [expected] * (4 if batch_size is None else 2)


def test_conjugate_and_negative_views(
    load: Callable[..., Any], workers: int, differs: Callable[[str], bool]
) -> None:
    sample = torch.tensor([1 + 2j, 3 - 4j])
    for view in (sample.conj(), sample.conj().imag):
        loader = load(Listed([view, view]), batch_size=2, num_workers=workers)
        if workers and not differs("conjugate_views"):
            with raises(RuntimeError, match="DispatchKey"):
                list(loader)
            continue
        (batch,) = loader
        assert batch.tolist() == [view.tolist()] * 2


def test_subclasses_of_tensors(load: Callable[..., Any], workers: int) -> None:
    samples = [torch.ones(2).as_subclass(Marked) for _ in range(4)]
    for batch in load(Listed(samples), batch_size=2, num_workers=workers):
        assert isinstance(batch, torch.Tensor)
        assert batch.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    (single, *_) = load(Listed(samples), batch_size=None, num_workers=workers)
    assert single.tolist() == [1.0, 1.0]


def test_parameters_and_gradients(
    load: Callable[..., Any], workers: int, differs: Callable[[str], bool]
) -> None:
    leaf = torch.ones(2, requires_grad=True)
    (batch,) = load(Listed([leaf.detach(), leaf.detach()]), batch_size=2, num_workers=workers)
    assert not batch.requires_grad
    loader = load(Listed([leaf, leaf]), batch_size=2, num_workers=workers)
    if workers and not differs("conjugate_views"):
        with raises(RuntimeError, match="automatic differentiation"):
            list(loader)
    else:
        (batch,) = loader
        assert batch.tolist() == [[1.0, 1.0]] * 2


def test_tensors_of_one_storage_stay_equal_when_apart(load: Callable[..., Any], workers: int) -> None:
    whole = torch.arange(10)
    batches = list(load(Listed([(whole[:5], whole[5:])] * 4), batch_size=2, num_workers=workers))
    assert all(batch[0][1].tolist() == [0, 1, 2, 3, 4] for batch in batches)
    assert all(batch[1][0].tolist() == [5, 6, 7, 8, 9] for batch in batches)


def test_batches_stay_what_they_were(load: Callable[..., Any], workers: int) -> None:
    """A delivered batch belongs to the trainer: later ones must not be written over it."""
    loader = load(Computed(40, lambda index: torch.full((1000,), index)), batch_size=2, num_workers=workers)
    batches = list(loader)
    assert [batch[:, 999].tolist() for batch in batches] == [[at, at + 1] for at in range(0, 40, 2)]


def test_batches_can_be_written_to(
    load: Callable[..., Any], workers: int, differs: Callable[[str], bool]
) -> None:
    for batch in load(Computed(8, lambda index: torch.full((3,), index)), batch_size=2, num_workers=workers):
        assert batch.is_shared() == (workers > 0 and not differs("tensors_in_shared_memory"))
        batch += 1
        batch[0] = -1
        assert batch[0].tolist() == [-1, -1, -1]
        assert batch.share_memory_().is_shared()
        assert batch[0].tolist() == [-1, -1, -1]
    sample = torch.zeros(3)
    for single in load(Listed([sample, sample]), batch_size=None, num_workers=1):
        single += 1
    assert sample.tolist() == [0, 0, 0]


def test_long_texts_and_bytes(load: Callable[..., Any], workers: int) -> None:
    samples = ["é" * 1_000_000, "", "\N{SNOWMAN}\x00"]
    (batch,) = load(Listed(samples), batch_size=3, num_workers=workers)
    assert list(batch) == samples


def test_large_integers_as_they_are(load: Callable[..., Any], workers: int) -> None:
    loader = load(Listed([2**70, -(2**70)]), batch_size=2, collate_fn=list, num_workers=workers)
    assert list(loader) == [[2**70, -(2**70)]]


def test_a_sample_that_cannot_be_pickled(
    load: Callable[..., Any], differs: Callable[[str], bool], capfd: pytest.CaptureFixture[str]
) -> None:
    says_so = differs("unpicklable_samples")
    dataset = Computed(4, lambda index: lambda: index)
    options = {"batch_size": 2, "collate_fn": list, "num_workers": 1}
    loader = load(dataset, **options, timeout=0 if says_so else 3)  # where it would wait for ever
    if says_so:
        with raises(Exception, match=r"(?i)pickle"):
            list(loader)
    else:
        with raises(RuntimeError, match="DataLoader timed out after 3 seconds"):
            list(loader)
    capfd.readouterr()  # the worker's feeder thread prints a traceback


def test_views_of_memory_are_collated(load: Callable[..., Any], workers: int) -> None:
    views = [memoryview(bytes([at, at + 1])) for at in range(4)]
    batches = list(load(Listed(views), batch_size=2, num_workers=workers))
    assert [[column.tolist() for column in batch] for batch in batches] == [
        [[0, 1], [1, 2]],
        [[2, 3], [3, 4]],
    ]
    wide = [{"view": np.arange(6, dtype=np.float64).data[::2], "number": at} for at in range(2)]
    (batch,) = load(Listed(wide), batch_size=2, num_workers=workers)
    assert [column.tolist() for column in batch["view"]] == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]


class Sealed:
    """Can be collated, with the function that is registered for it, and not pickled."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.get = lambda: value


def test_samples_of_a_registered_class_that_cannot_be_pickled(
    load: Callable[..., Any],
    workers: int,
    differs: Callable[[str], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def values(batch: list[Sealed], *, collate_fn_map: Any = None) -> torch.Tensor:
        return torch.tensor([sealed.value for sealed in batch])

    monkeypatch.setitem(default_collate_fn_map, Sealed, values)
    dataset = Computed(4, lambda index: {"sealed": Sealed(index), "index": index})
    loader = load(dataset, batch_size=2, num_workers=workers)
    if workers and differs("samples_are_sent"):
        with raises(TypeError, match="can be collated but not pickled"):
            list(loader)
    else:
        assert [batch["sealed"].tolist() for batch in loader] == [[0, 1], [2, 3]]
    # What the message says to do.
    own = load(
        dataset, batch_size=2, num_workers=workers, collate_fn=lambda samples: default_collate(samples)
    )
    assert [batch["sealed"].tolist() for batch in own] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lambda: 1, TypeError, "default_collate: batch must contain"),
        (lambda: (torch.ones(2), lambda: 1), TypeError, "default_collate: batch must contain"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            RuntimeError,
            "nested tensors are not currently supported by the default collate_fn",
        ),
    ],
    ids=["function", "function in a tuple", "nested tensor"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_can_neither_be_collated_nor_sent(
    load: Callable[..., Any], workers: int, make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with raises(error, match=message):
        list(load(Listed([make()] * 4), batch_size=2, num_workers=workers))


def test_two_thousand_small_samples_take_no_absurd_time(load: Callable[..., Any]) -> None:
    for workers in (0, 2):
        started = time.monotonic()
        assert len(flat(load(Numbers(2000), batch_size=16, num_workers=workers))) == 2000
        assert time.monotonic() - started < 60
