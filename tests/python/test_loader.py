"""What comes out of a loader: every sample once, the same bytes on any number of threads, in the shape asked for."""

from __future__ import annotations

import gc
import hashlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import sutler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

#: Fixtures of these tests are only read, so examples may share them.
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def contents(loader: Loader) -> list[tuple[list[int], str]]:
    """The ids of every batch and a digest of its bytes."""
    return [
        (np.asarray(ids).tolist(), hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest())
        for images, _, ids in loader
    ]


@few
@given(
    batch_size=st.integers(1, 50),
    threads=st.sampled_from([0, 1, 2, 8]),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_epoch_has_every_sample_once(
    augmented: sutler.ImageFolder, batch_size: int, threads: int, shuffle: bool, drop_last: bool, seed: int
) -> None:
    loader = Loader(
        augmented,
        batch_size,
        shuffle,
        num_workers=threads,
        drop_last=drop_last,
        seed=seed,
        return_ids=True,
        output="numpy",
    )
    orders = []
    for _ in range(3):
        batches = list(loader)
        assert [len(ids) for _, _, ids in batches[:-1]] == [batch_size] * (len(batches) - 1)
        ids = [int(i) for _, _, batch in batches for i in batch]
        labels = [int(label) for _, batch, _ in batches for label in batch]
        assert labels == [augmented.targets[i] for i in ids]
        assert max(Counter(ids).values(), default=1) == 1
        assert len(ids) == len(augmented) - (len(augmented) % batch_size if drop_last else 0)
        orders.append(ids)
    assert (orders[0] == orders[1]) is (not shuffle or not orders[0])
    if not shuffle:
        assert orders[0] == list(range(len(orders[0])))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_same_bytes_come_from_any_number_of_threads(
    augmented: sutler.ImageFolder, channels_last: bool
) -> None:
    def epochs(threads: int) -> list[list[tuple[list[int], str]]]:
        loader = Loader(
            augmented,
            7,
            True,
            num_workers=threads,
            seed=3,
            return_ids=True,
            output="numpy",
            channels_last=channels_last,
        )
        return [contents(loader) for _ in range(2)]

    one = epochs(1)
    assert one[0] != one[1]
    assert epochs(0) == epochs(2) == epochs(8) == one


def test_a_sample_is_augmented_anew_in_each_epoch(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, len(augmented), num_workers=2, output="numpy")
    (first, _), (second, _) = next(iter(loader)), next(iter(loader))
    assert all((a != b).any() for a, b in zip(first, second, strict=True))


def test_an_item_of_the_dataset_is_what_epoch_0_delivers(augmented: sutler.ImageFolder) -> None:
    (images, labels, ids) = next(
        iter(Loader(augmented, len(augmented), True, return_ids=True, output="numpy"))
    )
    for image, label, index in zip(images, labels, ids, strict=True):
        item, item_label = augmented[int(index)]
        np.testing.assert_array_equal(np.asarray(item), image)
        assert item_label == label
    assert augmented[-1][1] == augmented[len(augmented) - 1][1]
    with pytest.raises(IndexError, match="sample 41 of a dataset with 41 samples"):
        augmented[len(augmented)]


def test_set_epoch_chooses_the_epoch(augmented: sutler.ImageFolder) -> None:
    counting = Loader(augmented, 8, True, return_ids=True, output="numpy")
    epochs = [contents(counting) for _ in range(4)]
    choosing = Loader(augmented, 8, True, return_ids=True, output="numpy")
    for epoch in (2, 0, 3):
        choosing.set_epoch(epoch)
        assert list(choosing.sampler) == [i for ids, _ in epochs[epoch] for i in ids]
        assert contents(choosing) == epochs[epoch]
    choosing.sampler.set_epoch(1)  # as Lightning does
    assert list(choosing.batch_sampler) == [ids for ids, _ in epochs[1]]
    assert contents(choosing) == epochs[1]
    assert contents(choosing) == epochs[2]
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match="epoch should be from 0"):
            choosing.set_epoch(wrong)


def test_iterators_over_one_loader_do_not_mix(augmented: sutler.ImageFolder) -> None:
    def epochs(count: int) -> list[list[tuple[list[int], str]]]:
        loader = Loader(augmented, 5, True, num_workers=2, return_ids=True, output="numpy")
        return [contents(loader) for _ in range(count)]

    one_by_one = epochs(3)
    loader = Loader(augmented, 5, True, num_workers=2, return_ids=True, output="numpy")
    at_once = zip(iter(loader), iter(loader), iter(loader), strict=True)
    columns: list[list[Any]] = [[], [], []]
    for batches in at_once:
        for column, batch in zip(columns, batches, strict=True):
            column.append(batch)
    assert [contents(column) for column in columns] == one_by_one  # type: ignore[arg-type]


def test_a_loader_can_be_used_from_a_thread(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 5, True, return_ids=True, output="numpy")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(contents(loader)))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert found == contents(Loader(augmented, 5, True, return_ids=True, output="numpy"))


def test_without_batch_size_samples_come_one_by_one(augmented: sutler.ImageFolder) -> None:
    samples = list(Loader(augmented, None, num_workers=2))
    assert len(samples) == len(augmented)
    for index, (image, label) in enumerate(samples):
        assert image.shape == (3, 24, 24)
        assert (image == augmented[index][0]).all()
        assert label == augmented.targets[index]


def test_images_of_many_sizes_come_one_by_one_or_through_a_collate_fn(photos: Path) -> None:
    as_they_are = sutler.ImageFolder(photos)
    shapes = [tuple(image.shape) for image, _ in Loader(as_they_are, None, output="numpy")]
    assert len(set(shapes)) > 1
    batches = list(Loader(as_they_are, 8, collate_fn=list, output="numpy"))
    assert [image.shape for batch in batches for image, _ in batch] == shapes
    for output, error in (("numpy", ValueError), ("torch", RuntimeError)):
        with pytest.raises(
            error, match=r"the images of a batch differ in shape \(\(3, .* add a Resize or crop"
        ):
            next(iter(Loader(as_they_are, 8, output=cast(Any, output))))


@pytest.mark.parametrize(("output", "error"), [("numpy", ValueError), ("torch", RuntimeError)])
def test_labels_of_many_shapes_are_not_called_images(
    photos: Path, output: Any, error: type[Exception]
) -> None:
    def some_zeros(label: int) -> Any:
        zeros = np.zeros(label + 1)
        return pytest.importorskip("torch").from_numpy(zeros) if output == "torch" else zeros

    dataset = sutler.ImageFolder(photos, T.Resize([8, 8]), target_transform=some_zeros)
    with pytest.raises(
        error, match=r"the labels of a batch differ in shape .* let target_transform return one"
    ):
        next(iter(Loader(dataset, len(dataset), output=output)))


def test_a_collate_fn_gets_what_pytorch_gives_it(augmented: sutler.ImageFolder) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> int:
        seen.extend(samples)
        return len(samples)

    assert list(Loader(augmented, 15, collate_fn=collate)) == [15, 15, 11]
    assert all(type(sample) is tuple and type(sample[1]) is int for sample in seen)
    assert list(Loader(augmented, None, collate_fn=lambda sample: sample[1])) == augmented.targets
    with_ids = Loader(augmented, 41, collate_fn=lambda samples: [s[2] for s in samples], return_ids=True)
    assert next(iter(with_ids)) == list(range(41))


def test_stop_iteration_from_user_code_does_not_pass_for_the_end(augmented: sutler.ImageFolder) -> None:
    def collate(_: list[Any]) -> Any:
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(Loader(augmented, 4, collate_fn=collate))


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_target_transform_is_applied_in_every_output(
    photos: Path, output: Any, batch_size: int | None
) -> None:
    crop = T.Compose([T.Resize(8), T.CenterCrop(8)])
    dataset = sutler.ImageFolder(photos, crop, target_transform=lambda label: label * 100)
    labels: list[int] = []
    for _, batch in Loader(dataset, batch_size, output=output):
        labels.extend([batch] if batch_size is None else np.asarray(batch).tolist())
    assert labels == [label * 100 for label in dataset.targets]
    assert dataset[40][1] == dataset.targets[40] * 100


@pytest.mark.parametrize("threads", [0, 2])
def test_a_timeout_is_pytorchs_error_and_nothing_is_lost(photos: Path, threads: int) -> None:
    dataset = sutler.ImageFolder(photos, T.Compose([T.Resize(900), T.GaussianBlur(21), T.CenterCrop(8)]))
    loader = Loader(dataset, 20, num_workers=threads, timeout=0.001, return_ids=True, output="numpy")
    ids: list[int] = []
    messages: list[str] = []
    iterator = iter(loader)
    while True:
        try:
            ids.extend(next(iterator)[2].tolist())
        except RuntimeError as error:
            messages.append(str(error))
        except StopIteration:
            break
    assert set(messages) == {"DataLoader timed out after 0.001 seconds"}
    assert ids == list(range(41))


def test_no_timeout_is_too_long(augmented: sutler.ImageFolder) -> None:
    for timeout in (1e6, 1e30, float("inf")):
        assert len(list(Loader(augmented, 20, timeout=timeout, output="numpy"))) == 3


def test_an_empty_dataset_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    dataset = sutler.ImageFolder(tmp_path, allow_empty=True)
    assert len(dataset) == 0
    for shuffle in (False, True):
        for rank in range(2):
            loader = Loader(dataset, 4, shuffle, rank=rank, world_size=2)
            assert len(loader) == 0
            assert list(loader) == []


def test_closing_is_final_and_figures_stay(augmented: sutler.ImageFolder) -> None:
    with Loader(augmented, 8, output="numpy") as loader:
        iterator = iter(loader)
        images, _ = next(iterator)
        before = images.copy()
    loader.close()
    assert loader.stats()["samples"] == 8
    assert loader.failures() == []
    # An epoch that was cut short must not look like one that is over.
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        iter(loader)
    np.testing.assert_array_equal(images, before)
    with Loader([1, 2, 3]) as in_process:
        pass
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        iter(in_process)


def test_closing_ends_a_wait_in_another_thread(photos: Path) -> None:
    slow = T.Compose([T.Resize(1500), T.GaussianBlur(23), T.CenterCrop(8)])
    loader = Loader(sutler.ImageFolder(photos, slow), 41, num_workers=1, output="numpy")
    seen: list[BaseException] = []

    def consume() -> None:
        try:
            list(loader)
        except RuntimeError as error:
            seen.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    while not loader._iterators:
        pass
    loader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert "closed" in str(seen[0])


def test_a_dropped_loader_is_gone_without_a_collection(augmented: sutler.ImageFolder) -> None:
    import weakref

    gc.disable()
    try:
        loader = Loader(augmented, 4, output="numpy")
        iterator = iter(loader)
        next(iterator)
        gone = weakref.ref(loader)
        del loader, iterator
        assert gone() is None
    finally:
        gc.enable()


def test_progress_shows_a_bar_and_changes_nothing(
    augmented: sutler.ImageFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    loader = Loader(augmented, 8, True, progress=True, return_ids=True, output="numpy")
    assert contents(loader) == contents(Loader(augmented, 8, True, return_ids=True, output="numpy"))
    assert "epoch 0" in capfd.readouterr().err
