"""Exceptions reach the trainer with their class, their message and the worker's traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sutler
import torch

from . import processes
from .datasets import Box, Numbers, OddError, PlainError, Raising, flat
from .expect import raises


def missing_file() -> Exception:
    return FileNotFoundError(2, "No such file or directory", "sample.jpg")


def bad_text() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def local_error() -> Exception:
    class HiddenError(LookupError):
        pass

    return HiddenError("nobody else knows this class")


class WordedError(ValueError):
    """Says something that its arguments do not, and cannot be made from a message."""

    def __init__(self, *, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"it has code {self.code}"


ERRORS: list[tuple[Callable[[], Exception], type[Exception], type[Exception], str]] = [
    # what is raised, what arrives without workers, what arrives from a worker in PyTorch, a part of the message
    (lambda: ValueError("bad value"), ValueError, ValueError, "bad value"),
    (lambda: KeyError("lost key"), KeyError, KeyError, "lost key"),
    (lambda: IndexError("far out"), IndexError, IndexError, "far out"),
    (lambda: TypeError(), TypeError, TypeError, ""),
    (lambda: AssertionError("never"), AssertionError, AssertionError, "never"),
    (lambda: NotImplementedError("some day"), NotImplementedError, NotImplementedError, "some day"),
    (missing_file, FileNotFoundError, FileNotFoundError, "sample.jpg"),
    (lambda: torch.OutOfMemoryError("too much"), torch.OutOfMemoryError, torch.OutOfMemoryError, "too much"),
    # Not that no batch came in time.
    (lambda: TimeoutError("no answer"), TimeoutError, TimeoutError, "no answer"),
    (lambda: PlainError("plain"), PlainError, PlainError, "plain"),
    (lambda: OddError(7, "odd"), OddError, RuntimeError, "7: odd"),
    (bad_text, UnicodeDecodeError, RuntimeError, "invalid start byte"),
    (lambda: WordedError(code=7), WordedError, RuntimeError, "it has code 7"),
]


@pytest.mark.parametrize(
    ("make", "plain", "carried", "message"), ERRORS, ids=[plain.__name__ for _, plain, _, _ in ERRORS]
)
def test_an_exception_in_getitem_reaches_the_trainer(
    load: Callable[..., Any],
    differs: Callable[[str], bool],
    make: Callable[[], Exception],
    plain: type[Exception],
    carried: type[Exception],
    message: str,
) -> None:
    with raises(plain, match=message or None) as caught:
        flat(load(Raising(6, 3, make), batch_size=2))
    assert type(caught.value) is plain
    assert "worker" not in str(caught.value)

    as_it_was = carried is not plain and differs("exceptions_as_they_were")
    with raises(plain if as_it_was else carried) as caught:
        flat(load(Raising(6, 3, make), batch_size=2, num_workers=1))
    assert type(caught.value) is (plain if as_it_was else carried)
    text = str(caught.value)
    if as_it_was:
        assert text == str(make())
        assert vars(make()).items() <= vars(caught.value).items()
        (text,) = caught.value.__notes__
    assert text.startswith(
        f"Caught {type(make()).__name__} in DataLoader worker process 0.\nOriginal Traceback"
    )
    assert "in __getitem__\n    raise self.make_error()" in text
    assert message in text


def test_a_group_of_exceptions_is_one_with_workers_as_well() -> None:
    # PyTorch raises a `TypeError` in its stead, as it cannot make a group from a message.
    def several() -> Exception:
        return ExceptionGroup("two at once", [ValueError("one"), KeyError("other")])

    for workers in (0, 1):
        with pytest.raises(ExceptionGroup, match="two at once") as caught:
            flat(sutler.Loader(Raising(2, 1, several), num_workers=workers))
        assert [type(each) for each in caught.value.exceptions] == [ValueError, KeyError]
    assert "in __getitem__" in caught.value.__notes__[0]


def test_an_exception_keeps_its_own_object_without_workers(load: Callable[..., Any]) -> None:
    error = OddError(7, "odd")
    with raises(OddError) as caught:
        flat(load(Raising(2, 1, lambda: error)))
    assert caught.value is error


def test_the_message_of_a_key_error_is_not_quoted(load: Callable[..., Any]) -> None:
    with raises(KeyError) as caught:
        flat(load(Raising(2, 1, lambda: KeyError("lost")), num_workers=1))
    assert "\\n" not in str(caught.value)
    assert "KeyError: 'lost'" in str(caught.value)


def test_an_exception_with_a_cause_tells_of_both(load: Callable[..., Any]) -> None:
    def chained() -> Exception:
        try:
            raise OSError("the disk is gone")
        except OSError as error:
            wrapped = ValueError("no sample")
            wrapped.__cause__ = error
            return wrapped

    with raises(ValueError, match="no sample") as caught:
        flat(load(Raising(2, 1, chained), num_workers=1))
    assert "the disk is gone" in str(caught.value)


def test_batches_before_the_exception_are_delivered(load: Callable[..., Any]) -> None:
    for workers in (0, 2):
        iterator = iter(load(Raising(8, 5, lambda: ValueError("bad")), batch_size=2, num_workers=workers))
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with raises(ValueError, match="bad"):
            next(iterator)
        del iterator


def test_the_epoch_goes_on_after_an_exception(load: Callable[..., Any]) -> None:
    for workers in (0, 1):
        iterator = iter(load(Raising(6, 2, lambda: ValueError("bad")), batch_size=2, num_workers=workers))
        assert next(iterator).tolist() == [0, 1]
        with raises(ValueError, match="bad"):
            next(iterator)
        assert next(iterator).tolist() == [4, 5]
        with raises(StopIteration):
            next(iterator)
        del iterator


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str
)
def test_a_loader_can_be_used_again_after_an_exception(
    load: Callable[..., Any], options: dict[str, Any]
) -> None:
    loader = load(Raising(4, 3, lambda: ValueError("bad")), batch_size=2, **options)

    def twice() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="bad"):
                flat(loader)

    processes.in_a_child(twice)


def test_an_exception_in_collate_fn(load: Callable[..., Any]) -> None:
    def broken(batch: list[Any]) -> Any:
        raise PlainError("cannot collate")

    for workers in (0, 1):
        with raises(PlainError, match="cannot collate") as caught:
            list(load(Numbers(4), batch_size=2, collate_fn=broken, num_workers=workers))
        carried = str(caught.value).startswith("Caught PlainError in DataLoader worker process 0.")
        assert carried == (workers == 1)


def test_the_epoch_goes_on_after_an_exception_in_collate_fn(load: Callable[..., Any]) -> None:
    def picky(batch: list[Any]) -> Any:
        if 2 in batch:
            raise PlainError("cannot collate")
        return batch

    for workers in (0, 1):
        iterator = iter(load(Numbers(6), batch_size=2, collate_fn=picky, num_workers=workers))
        assert next(iterator) == [0, 1]
        with raises(PlainError, match="cannot collate"):
            next(iterator)
        assert list(iterator) == [[4, 5]]
        del iterator


def test_what_collate_fn_returns_must_be_picklable(
    load: Callable[..., Any], differs: Callable[[str], bool], capfd: pytest.CaptureFixture[str]
) -> None:
    says_so = differs("unpicklable_samples")
    options = {"batch_size": 2, "collate_fn": lambda batch: lambda: batch, "num_workers": 1}
    loader = load(Numbers(2), **options, timeout=0 if says_so else 3)
    with raises(Exception) as caught:
        list(loader)
    assert ("ickle" in str(caught.value)) == says_so
    capfd.readouterr()  # the worker's feeder thread prints a traceback


def test_an_exception_in_a_sampler(load: Callable[..., Any]) -> None:
    def broken() -> Iterator[int]:
        yield 0
        yield 1
        raise PlainError("cannot sample")

    for workers in (0, 1):
        with raises(PlainError, match="cannot sample"):
            list(load(Numbers(4), batch_size=2, sampler=broken(), num_workers=workers))


def test_an_index_out_of_range(load: Callable[..., Any]) -> None:
    for workers in (0, 1):
        with raises(IndexError, match="no sample 9 among 4"):
            flat(load(Numbers(4), batch_size=2, sampler=[0, 9], num_workers=workers))


def test_an_exception_in_getitems(load: Callable[..., Any]) -> None:
    class BrokenBulk(Numbers):
        def __getitem__(self, index: int) -> int:
            raise PlainError("bulk is broken")

        def __getitems__(self, indices: list[int]) -> list[int]:
            raise PlainError("bulk is broken")

    for workers in (0, 1):
        with raises(PlainError, match="bulk is broken"):
            flat(load(BrokenBulk(4), batch_size=2, num_workers=workers))


def test_an_exception_whose_class_only_the_worker_knows(
    load: Callable[..., Any], differs: Callable[[str], bool], capfd: pytest.CaptureFixture[str]
) -> None:
    says_so = differs("unpicklable_samples")
    loader = load(Raising(4, 1, local_error), batch_size=2, num_workers=1, timeout=0 if says_so else 3)
    with raises(Exception) as caught:
        flat(loader)
    if says_so:
        assert "nobody else knows this class" in str(caught.value)
        assert type(caught.value) is LookupError  # the nearest that everybody knows
    else:
        assert "timed out" in str(caught.value)
    capfd.readouterr()  # the worker's feeder thread prints a traceback


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_from_a_sample(
    load: Callable[..., Any], differs: Callable[[str], bool], workers: int
) -> None:
    loader = load(Raising(6, 2, StopIteration), batch_size=2, num_workers=workers)
    if differs("stop_iteration"):
        with raises(RuntimeError, match="StopIteration"):
            flat(loader)
    else:
        assert processes.in_a_child(lambda: flat(loader)) == [0, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_async_iteration_from_a_sample(load: Callable[..., Any], workers: int) -> None:
    loader = load(Raising(6, 2, lambda: StopAsyncIteration("nothing awaits")), num_workers=workers)
    with raises(StopAsyncIteration, match="nothing awaits"):
        flat(loader)


def test_an_exception_in_the_trainers_own_loop(load: Callable[..., Any]) -> None:
    for workers in (0, 2):
        with raises(PlainError, match="the trainer's own"):
            for batch in load(Numbers(40), batch_size=2, num_workers=workers):
                if int(batch[0]) == 4:
                    raise PlainError("the trainer's own")


def test_the_same_exception_from_all_workers(load: Callable[..., Any]) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            raise PlainError(f"sample {index}")

    with raises(PlainError, match="sample 0"):
        flat(load(Broken(20), batch_size=1, num_workers=2))


def test_samples_that_are_exceptions_are_samples(load: Callable[..., Any]) -> None:
    for workers in (0, 1):
        loader = load([ValueError("a sample"), Box(1)], batch_size=2, collate_fn=list, num_workers=workers)
        ((first, second),) = loader
        assert isinstance(first, ValueError)
        assert second.value == 1
