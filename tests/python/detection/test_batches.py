"""Batches of pictures with boxes: framed, every picture once, in every order, and resumed exactly."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import torch
from sutler import transforms as T  # noqa: N812 - as users write it
from torch.utils.data import ConcatDataset

TRAIN = T.Compose([T.ResizeShortest(64, max_size=100), T.RandomHorizontalFlip(), T.Normalize([0.5], [0.5])])

Order = Literal["strict", "ready"]


def make(folder: Path, transform: Any = TRAIN, **options: Any) -> sutler.CocoDetection:
    return sutler.CocoDetection(folder, folder / "annotations.json", transform, **options)


def content(image: Any, target: Any) -> bytes:
    """A sample without its frame, as bytes."""
    height, width = (int(side) for side in target["size"])
    arrays = [image[:, :height, :width], *(target[key] for key in sorted(target))]
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def contents(batch: Any) -> dict[int, bytes]:
    """What a batch with ids has of each sample."""
    images, targets, ids = batch
    assert len(images) == len(targets) == len(ids)
    return {
        int(number): content(image, target)
        for image, target, number in zip(images, targets, ids, strict=True)
    }


def test_batches_are_frames_and_what_is_on_the_pictures(shapes: Path) -> None:
    dataset = make(shapes)
    seen = 0
    for images, targets in sutler.Loader(dataset, batch_size=8):
        assert images.dtype == torch.float32
        sizes = torch.stack([target["size"] for target in targets])
        assert images.shape[:2] == (len(targets), 3)
        assert list(images.shape[2:]) == [-(-int(side) // 32) * 32 for side in sizes.max(0).values]
        for image, target in zip(images, targets, strict=True):
            alone, expected = dataset[seen]
            assert target.keys() == expected.keys()
            for key, value in target.items():
                assert isinstance(value, torch.Tensor)
                assert torch.equal(value, expected[key]), key
                assert value.dtype == expected[key].dtype
            height, width = target["size"].tolist()
            assert torch.equal(image[:, :height, :width], alone)
            assert not image[:, height:].any()
            assert not image[:, :, width:].any()
            assert int(target["image_id"]) == dataset.ids[seen]
            seen += 1
    assert seen == len(dataset) == 30
    kinds = {key: (value.dtype, value.ndim) for key, value in dataset[0][1].items()}
    assert kinds == {
        "boxes": (torch.float32, 2),
        "labels": (torch.int64, 1),
        "image_id": (torch.int64, 0),
        "area": (torch.float32, 1),
        "iscrowd": (torch.int64, 1),
        "size": (torch.int64, 1),
        "orig_size": (torch.int64, 1),
    }


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("transform", [None, TRAIN])
def test_every_output_and_layout_has_the_same_values(
    shapes: Path, output: Any, channels_last: bool, transform: Any
) -> None:
    dataset = make(shapes, transform)
    batches = list(
        sutler.Loader(dataset, batch_size=7, output=output, channels_last=channels_last, return_ids=True)
    )
    assert len(batches) == 5
    for images, targets, ids in batches:
        array = np.asarray(images)
        assert array.dtype == (np.uint8 if transform is None else np.float32)
        if channels_last:
            assert array.transpose(0, 2, 3, 1).flags.c_contiguous
        found = contents((array, targets, np.asarray(ids)))
        assert found == {int(index): content(*dataset[int(index)]) for index in np.asarray(ids)}
        kind = torch.Tensor if output == "torch" else np.ndarray
        assert all(isinstance(value, kind) for target in targets for value in target.values())


def test_pictures_without_boxes_have_empty_arrays(shapes: Path) -> None:
    dataset = make(shapes)
    empty = [index for index in range(30) if len(dataset[index][1]["labels"]) == 0]
    assert len(empty) == 3
    for output in ("torch", "numpy"):
        for _, (target,) in sutler.Loader(dataset, sampler=empty, output=output):
            assert tuple(target["boxes"].shape) == (0, 4)
            assert tuple(target["labels"].shape) == (0,)
    assert len(make(shapes, keep_empty=False)) == 27
    assert make(shapes, keep_empty=False).left_out["empty_images"] == 3


@pytest.mark.parametrize("order", ["strict", "ready", "shared"])
@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_bytes_on_any_number_of_threads(shapes: Path, order: Any, workers: int) -> None:
    dataset = make(shapes)

    def epochs(order: Any, workers: int) -> list[dict[int, bytes]]:
        with sutler.Loader(
            dataset, 8, shuffle=True, order=order, num_workers=workers, seed=3, return_ids=True
        ) as loader:
            found = []
            for _ in range(2):
                epoch: dict[int, bytes] = {}
                for batch in loader:
                    assert not epoch.keys() & contents(batch).keys()
                    epoch |= contents(batch)
                found.append(epoch)
            return found

    first, second = epochs(order, workers)
    assert len(first) == len(second) == 30
    assert first != second, "every epoch is another draw"
    assert [first, second] == epochs("strict", 1)


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("grouped", [False, True])
def test_an_epoch_resumes_at_every_batch(shapes: Path, order: Order, grouped: bool) -> None:
    dataset = make(shapes)

    def loader() -> sutler.Loader[Any]:
        options: dict[str, Any] = (
            {"batch_sampler": sutler.AspectGroups(dataset, 4)}
            if grouped
            else {"batch_size": 4, "shuffle": True}
        )
        return sutler.Loader(dataset, order=order, num_workers=2, return_ids=True, **options)

    with loader() as whole_loader:
        whole = [[contents(batch) for batch in whole_loader] for _ in range(2)]
    assert [sum(map(len, epoch)) for epoch in whole] == [30, 30]
    for stop in range(len(whole[1])):
        with loader() as first:
            for _ in first:
                pass
            iterator = iter(first)
            done = [contents(next(iterator)) for _ in range(stop)]
            state = json.loads(json.dumps(first.state_dict()))
        with loader() as second:
            second.load_state_dict(state)
            rest = [contents(batch) for batch in second]
        if order == "strict":
            assert done + rest == whole[1]
        both = [item for batch in done + rest for item in batch.items()]
        assert sorted(both) == sorted(item for batch in whole[1] for item in batch.items())


def test_copies_in_memory_change_nothing(shapes: Path) -> None:
    dataset = make(shapes)
    plain = sutler.Loader(dataset, 6, shuffle=True, return_ids=True)
    expected = [[contents(batch) for batch in plain] for _ in range(3)]
    for split in ("100-0-0", "0-100-0"):
        kept = sutler.Loader(
            dataset, 6, shuffle=True, return_ids=True, cache=sutler.Cache(memory="64MiB", split=split)
        )
        assert [[contents(batch) for batch in kept] for _ in range(3)] == expected
        served = kept.stats()["served"]
        assert served["encoded"] + served["decoded"] == 60


def test_a_copy_of_the_dataset_is_the_same(shapes: Path) -> None:
    dataset = make(shapes, labels="contiguous", size_divisible=16)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.fingerprint == dataset.fingerprint
    assert content(*copy[3]) == content(*dataset[3])
    assert copy.size_divisible == 16


def test_what_a_dataset_tells(shapes: Path) -> None:
    dataset = make(shapes)
    annotations = json.loads((shapes / "annotations.json").read_text())
    assert dataset.ids == sorted(image["id"] for image in annotations["images"])
    assert dataset.categories == {1: "red", 3: "green", 7: "blue"}
    assert dataset.classes == ["red", "green", "blue"]
    assert dataset.class_to_idx == {"red": 1, "green": 3, "blue": 7}
    assert dataset.box_count == len(annotations["annotations"])
    assert sum(ratio < 1 for ratio in dataset.aspect_ratios) == 7
    assert set(dataset.left_out.values()) == {0}
    contiguous = make(shapes, labels="contiguous")
    assert contiguous.categories == {1: "red", 2: "green", 3: "blue"}
    assert contiguous.fingerprint != dataset.fingerprint
    labels = [{1: 1, 3: 2, 7: 3}[int(label)] for label in dataset[0][1]["labels"]]
    assert contiguous[0][1]["labels"].tolist() == labels
    crowds = sum(entry["iscrowd"] for entry in annotations["annotations"])
    assert make(shapes, keep_crowds=False).left_out["crowds"] == crowds > 0
    assert "Boxes: " in repr(dataset)
    assert not hasattr(dataset, "targets")
    assert not hasattr(dataset, "samples")


def test_functions_may_follow_and_see_both(shapes: Path) -> None:
    def halve(image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return image[:, ::2, ::2], target | {"boxes": target["boxes"] / 2}

    dataset = make(shapes, T.Compose([T.ResizeShortest(64, max_size=100), T.Lambda(halve)]))
    plain = make(shapes, T.ResizeShortest(64, max_size=100))
    for output in ("torch", "numpy"):
        seen = 0
        for images, targets in sutler.Loader(dataset, batch_size=8, output=output):
            assert images.shape[2] % 32 == images.shape[3] % 32 == 0
            for image, target in zip(images, targets, strict=True):
                whole, expected = plain[seen]
                height, width = (int(side) for side in target["size"])
                assert (height, width) == tuple(-(-side // 2) for side in whole.shape[1:])
                assert np.array_equal(image[:, :height, :width], whole[:, ::2, ::2])
                assert np.allclose(target["boxes"], expected["boxes"] / 2)
                seen += 1
        assert seen == 30


def test_targets_and_batches_may_be_made_by_functions(shapes: Path) -> None:
    dataset = make(shapes, target_transform=lambda target: len(target["labels"]))
    counts = [count for _, targets in sutler.Loader(dataset, 8) for count in targets]
    assert counts == [dataset[index][1] for index in range(30)]
    plain = make(shapes)
    images, targets = next(
        iter(sutler.Loader(plain, batch_size=3, collate_fn=lambda batch: tuple(zip(*batch, strict=True))))
    )
    assert [content(*pair) for pair in zip(images, targets, strict=True)] == [
        content(*plain[index]) for index in range(3)
    ]
    image, target = next(iter(sutler.Loader(plain, batch_size=None)))
    assert content(image, target) == content(*plain[0])


def test_upright_pictures_come_apart_from_oblong_ones(shapes: Path) -> None:
    dataset = make(shapes)

    def epoch(loader: sutler.Loader[Any]) -> tuple[list[int], float]:
        served: list[int] = []
        values = total = 0
        for images, targets, ids in loader:
            kinds = {dataset.aspect_ratios[index] > 1 for index in ids.tolist()}
            assert len(kinds) == 1 or loader.batch_size is not None
            served += ids.tolist()
            values += sum(int(target["size"].prod()) for target in targets)
            total += images.shape[0] * images.shape[2] * images.shape[3]
        return served, values / total

    grouped = sutler.Loader(dataset, batch_sampler=sutler.AspectGroups(dataset, 4, seed=1), return_ids=True)
    assert len(grouped) == 8
    (first, full), (second, _) = epoch(grouped), epoch(grouped)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    plain = sutler.Loader(dataset, batch_size=4, shuffle=True, return_ids=True)
    assert full > epoch(plain)[1] + 0.05


def test_ranks_get_one_kind_in_each_step_and_equally_many(shapes: Path) -> None:
    ratios = make(shapes).aspect_ratios
    ranks = [list(sutler.AspectGroups(ratios, 3, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(batch) for batch in ranks[0]] == [len(batch) for batch in ranks[1]]
    for pair in zip(*ranks, strict=True):
        assert len({ratios[index] > 1 for batch in pair for index in batch}) == 1
    assert {index for rank in ranks for batch in rank for index in batch} == set(range(30))


def test_a_part_of_a_dataset_is_served_and_grouped_natively(shapes: Path) -> None:
    dataset = make(shapes)
    part = torch.utils.data.Subset(dataset, range(20, 5, -1))
    plain = sutler.Loader(part, batch_size=4, return_ids=True)
    grouped = sutler.Loader(part, batch_sampler=sutler.AspectGroups(part, 4), return_ids=True)
    for loader in (plain, grouped):
        found: dict[int, bytes] = {}
        for batch in loader:
            found |= contents(batch)
        assert found == {place: content(*dataset[20 - place]) for place in range(15)}
    with pytest.raises(
        ValueError, match="the AspectGroups were made of 30 shapes, and the dataset has 15 samples"
    ):
        sutler.Loader(part, batch_sampler=sutler.AspectGroups(dataset, 4))


@pytest.mark.filterwarnings("ignore:ConcatDataset puts native datasets together")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_concatenation_draws_what_a_loader_of_the_dataset_draws(shapes: Path, workers: int) -> None:
    def jitter(image: Any, target: Any) -> tuple[Any, Any]:
        return image + torch.rand(()), target

    dataset = make(shapes, T.Compose([*TRAIN.transforms, T.Lambda(jitter)]))
    twice: ConcatDataset[Any] = ConcatDataset([dataset, dataset])
    context = "fork" if workers else None
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": context}
    with (
        sutler.Loader(twice, batch_size=None, seed=3, **options) as loader,
        sutler.Loader(dataset, batch_size=None, seed=3) as native,
    ):
        epochs = []
        for _ in range(2):
            expected = [content(*sample) for sample in native]
            assert [content(*sample) for sample in loader] == expected * 2
            epochs.append(expected)
    assert epochs[0] != epochs[1]


@pytest.mark.filterwarnings("ignore:ConcatDataset puts native datasets together")
def test_a_picture_that_is_drawn_again_is_flipped_anew(shapes: Path) -> None:
    dataset = make(shapes)
    part: ConcatDataset[Any] = ConcatDataset([dataset])
    again = [number for number in range(10) for _ in range(2)]
    with (
        sutler.Loader(part, batch_size=None, sampler=again, num_workers=0) as loader,
        sutler.Loader(dataset, batch_size=None, sampler=again) as native,
    ):
        assert [content(*sample) for sample in loader] == [content(*sample) for sample in native]


def test_a_device_gets_pictures_and_targets(shapes: Path) -> None:
    dataset = make(shapes)
    for images, targets in sutler.Loader(dataset, batch_size=8, device="cpu"):
        assert images.device == targets[0]["boxes"].device == torch.device("cpu")
    with pytest.raises(ValueError, match="would normalise the zeros that surround"):
        sutler.Loader(dataset, batch_size=8, device="cpu", device_normalize=True)
