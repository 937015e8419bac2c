"""`Subset` and `random_split` of a native dataset: PyTorch's samples in PyTorch's order, prepared by native threads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import sutler.testing
import torch
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler._backend import NativeBackend
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset, random_split

PART = [7, 3, 22, 40, 12, 0, 25, -2, 18, 30, 5]
#: Two samples come twice, one of them under two names.
REPEATED = [7, 3, 3, 40, 12, 0, 25, -1, 18, 30, 5]


def equal(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def served(loader: Any) -> list[tuple[int, bytes]]:
    """What a loader with ids serves: each sample by its index, with its bytes."""
    return [
        (int(number), image.numpy().tobytes())
        for images, _, ids in loader
        for number, image in zip(ids, images, strict=True)
    ]


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples that were asked for in Python."""
    asked: list[int] = []
    get = sutler.datasets.NativeDataset.__getitem__

    def watched(self: sutler.datasets.NativeDataset, index: int) -> Any:
        asked.append(index)
        return get(self, index)

    monkeypatch.setattr(sutler.datasets.NativeDataset, "__getitem__", watched)
    return asked


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 3, "sampler": [10, 0, -2, 2]},
        {"batch_sampler": [[0, 1, 2], [7], [10, -2]]},
        {"batch_sampler": BatchSampler(range(11), 4, False)},
    ],
    ids=str,
)
def test_batches_are_pytorchs_and_nothing_is_prepared_in_python(
    augmented: sutler.ImageFolder, arguments: dict[str, Any], in_python: list[int]
) -> None:
    subset = Subset(augmented, PART)
    theirs = list(DataLoader(subset, **arguments))
    in_python.clear()
    with sutler.Loader(subset, **arguments) as loader:
        assert isinstance(loader._backend, NativeBackend)
        assert loader.num_workers > 0
        assert loader.dataset is subset
        assert len(loader) == len(theirs)
        ours = list(loader)
    assert in_python == []
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        if arguments.get("batch_size", 1) is None:
            mine, other = [mine[0], torch.tensor(mine[1])], [other[0], torch.as_tensor(other[1])]
        assert equal(mine, other)


@pytest.mark.parametrize(
    "indices",
    [PART, tuple(PART), range(3, 40, 5), np.array(PART), torch.tensor(PART), [np.int64(3), torch.tensor(4)]],
    ids=lambda indices: type(indices).__name__,
)
def test_indices_may_be_of_any_kind_that_pytorch_takes(augmented: sutler.ImageFolder, indices: Any) -> None:
    subset = Subset(augmented, indices)
    expected = [augmented[int(index)][0] for index in indices]
    with sutler.Loader(subset, batch_size=None) as loader:
        assert equal([image for image, _ in loader], expected)


def test_a_subset_of_a_subset(augmented: sutler.ImageFolder) -> None:
    subset = Subset(Subset(augmented, PART), [4, -1, 0])
    theirs = next(iter(DataLoader(subset, batch_size=3)))
    with sutler.Loader(subset, batch_size=3) as loader:
        assert isinstance(loader._backend, NativeBackend)
        assert equal(next(iter(loader)), theirs)


def test_random_split_shuffles_each_part_on_its_own(augmented: sutler.ImageFolder) -> None:
    parts = random_split(augmented, [0.7, 0.3], generator=torch.Generator().manual_seed(0))
    names = []
    for part in parts:
        with sutler.Loader(part, batch_size=4, shuffle=True, return_ids=True) as loader:
            epochs = [served(loader) for _ in range(2)]
        for epoch in epochs:
            assert sorted(number for number, _ in epoch) == list(range(len(part)))
        assert [number for number, _ in epochs[0]] != [number for number, _ in epochs[1]]
        assert dict(epochs[0]) != dict(epochs[1]), "other epochs, other crops"
        for number, bytes_ in epochs[0]:
            assert bytes_ == part[number][0].numpy().tobytes(), "epoch 0 is what indexing gives"
        names += [part.indices[number] for number, _ in epochs[0]]
    assert sorted(names) == list(range(len(augmented)))


def test_ranks_share_a_subset_as_pytorchs_sampler_would(augmented: sutler.ImageFolder) -> None:
    subset = Subset(augmented, PART)
    for rank in range(3):
        sampler: Any = torch.utils.data.DistributedSampler(subset, num_replicas=3, rank=rank, shuffle=False)
        theirs = list(DataLoader(subset, batch_size=2, sampler=sampler))
        with sutler.Loader(subset, batch_size=2, rank=rank, world_size=3) as loader:
            for mine, other in zip(loader, theirs, strict=True):
                assert equal(mine, other)


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("sampler", [None, [9, 1, 1, 4, 0, 10]], ids=["shuffle", "sampler"])
def test_a_subset_resumes_at_every_batch(
    augmented: sutler.ImageFolder, order: Literal["strict", "ready"], sampler: list[int] | None
) -> None:
    subset = Subset(augmented, REPEATED)

    def make() -> sutler.Loader:
        shuffle = None if sampler else True
        return sutler.Loader(
            subset,
            batch_size=2,
            shuffle=shuffle,
            sampler=sampler,
            order=order,
            return_ids=True,
            num_workers=2,
        )

    with make() as loader:
        whole = sorted(served(loader))
    for stop in range(len(whole) // 2 + 1):
        with make() as loader:
            iterator = iter(loader)
            before = [next(iterator) for _ in range(stop)]
            state = loader.state_dict()
        with make() as loader:
            loader.load_state_dict(state)
            assert sorted(served(before) + served(loader)) == whole


def test_a_sample_that_comes_twice_is_augmented_anew(augmented: sutler.ImageFolder) -> None:
    def images(dataset: Any, workers: int, **arguments: Any) -> list[bytes]:
        with sutler.Loader(dataset, 4, num_workers=workers, return_ids=True, **arguments) as loader:
            return [image for _, image in served(loader)]

    in_place = images(Subset(augmented, REPEATED), 1)
    assert len(set(in_place)) == len(REPEATED)
    assert images(Subset(augmented, REPEATED), 3) == in_place
    assert images(augmented, 2, sampler=REPEATED) == in_place, "drawn by a sampler in the same order"
    assert images(Subset(augmented, PART), 2, sampler=[1, 3, 1]) == [in_place[1], in_place[3], in_place[2]]


def test_a_state_of_another_part_is_refused(augmented: sutler.ImageFolder) -> None:
    first, second = Subset(augmented, PART), Subset(augmented, PART[::-1])
    with sutler.Loader(first) as one, sutler.Loader(second) as other, sutler.Loader(augmented) as whole:
        assert len({loader._backend.fingerprint() for loader in (one, other, whole)}) == 3
        with pytest.raises(
            ValueError, match=r"the state was saved for fingerprint .*The Subset names other samples"
        ):
            other.load_state_dict(one.state_dict())
        with pytest.raises(ValueError, match="or the state is of a Subset"):
            whole.load_state_dict(one.state_dict())
    with (
        sutler.Loader([1, 2]) as two,
        sutler.Loader([1, 2, 3]) as three,
        pytest.raises(ValueError, match="Its class, its length or its own fingerprint was another then"),
    ):
        three.load_state_dict(two.state_dict())


def test_transforms_and_labels_in_python_are_those_of_the_dataset(photos: Path) -> None:
    dataset = sutler.ImageFolder(
        photos,
        T.Compose([T.Resize(20), T.CenterCrop(20), T.ToDtype("float32"), T.Lambda(lambda image: image + 1)]),
        target_transform=lambda label: label * 10,
    )
    subset = Subset(dataset, REPEATED)
    theirs = next(iter(DataLoader(subset, batch_size=11)))
    with sutler.Loader(subset, batch_size=11, return_ids=True) as loader:
        images, labels, ids = next(iter(loader))
    assert equal([images, labels], theirs)
    assert ids.tolist() == [0, 1, 1, 3, 4, 5, 6, 3, 8, 9, 10], "two are there twice, and are the same"


@pytest.mark.parametrize("ahead", [False, True])
def test_indices_that_change_count_from_the_next_epoch_on(augmented: sutler.ImageFolder, ahead: bool) -> None:
    indices = [0, 1]
    subset = Subset(augmented, indices)
    with sutler.Loader(subset, batch_size=8, persistent_workers=True, overlap_epochs=ahead) as loader:
        assert [len(labels) for _, labels in loader] == [2]
        indices.append(30)
        assert len(loader) == 1
        assert [len(labels) for _, labels in loader] == [3]


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_batch_size_that_stands_for_everything(augmented: sutler.ImageFolder, order: Any) -> None:
    indices = [3, 1]
    subset = Subset(augmented, indices)
    with sutler.Loader(subset, sys.maxsize, return_ids=True, order=order) as loader:
        for more in ([], [9, 8, 7, 6, 5]):
            indices += more
            expected = sorted(served(sutler.Loader(subset, 100, return_ids=True)))
            loader.set_epoch(0)
            batches = list(loader)
            assert len(batches) == len(loader) == 1
            assert sorted(served(batches)) == expected
    assert list(sutler.Loader(subset, sys.maxsize, drop_last=True)) == []


def test_an_index_that_is_none_is_refused_when_the_loader_is_made(augmented: sutler.ImageFolder) -> None:
    with pytest.raises(
        IndexError, match="the Subset names sample 41, and the ImageFolder that it is made of has 41 samples"
    ):
        sutler.Loader(Subset(augmented, [0, 41]))
    words: Any = ["a"]
    with pytest.raises(TypeError, match="should be integers, and one of them is 'a'"):
        sutler.Loader(Subset(augmented, words))
    with (
        sutler.Loader(Subset(augmented, [5]), sampler=[1]) as loader,
        pytest.raises(IndexError, match=r"the sampler drew index 1, but the dataset has 1 sample$"),
    ):
        next(iter(loader))


def test_an_empty_subset_has_no_batches(augmented: sutler.ImageFolder) -> None:
    with sutler.Loader(Subset(augmented, []), batch_size=2) as loader:
        assert list(loader) == []
    with pytest.raises(ValueError, match="num_samples=0"):
        sutler.Loader(Subset(augmented, []), shuffle=True)


def test_what_serves_all_samples_refuses_a_part(augmented: sutler.ImageFolder) -> None:
    with pytest.raises(
        ValueError, match=r"Subset is a part of one; pass order='ready', or list the part in a"
    ):
        sutler.Loader(Subset(augmented, PART), order="shared")


def test_bad_samples_are_named_as_the_subset_names_them(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos, T.Compose([T.Resize(16), T.CenterCrop(16)]))
    subset = Subset(dataset, [11, 7, 3, 5])
    broken = [Path(dataset.path(index)) for index in (7, 5)]
    for path in broken:
        path.write_bytes(b"broken")
    with sutler.Loader(subset, batch_size=4, errors="skip", return_ids=True) as loader:
        ((_, _, ids),) = list(loader)
        assert ids.tolist() == [0, 2]
        found = sorted((failure.id, failure.path) for failure in loader.failures())
        assert found == [(1, str(broken[0])), (3, str(broken[1]))]
    with sutler.Loader(subset) as loader, pytest.raises(sutler.DecodeError) as raised:
        list(loader)
    assert (raised.value.sample, raised.value.path) == (1, str(broken[0]))
    with (
        sutler.Loader(subset, errors=sutler.Errors(max=1)) as loader,
        pytest.raises(sutler.ErrorBudgetExceeded) as exceeded,
    ):
        list(loader)
    assert exceeded.value.last.sample in (1, 3)


def test_a_subset_class_of_the_users_own_is_python(augmented: sutler.ImageFolder) -> None:
    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            image, label = super().__getitem__(index)
            return image, label * 2

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    subset = Doubled(augmented, PART)
    with sutler.Loader(subset, batch_size=4) as loader:
        assert not isinstance(loader._backend, NativeBackend)
        for mine, other in zip(loader, DataLoader(subset, batch_size=4), strict=True):
            assert equal(mine, other)


def test_a_cache_serves_the_same_bytes(augmented: sutler.ImageFolder) -> None:
    subset = Subset(augmented, PART)
    with (
        sutler.Loader(subset, batch_size=4, cache="16MiB") as kept,
        sutler.Loader(subset, batch_size=4) as plain,
    ):
        for _ in range(2):
            for mine, other in zip(kept, plain, strict=True):
                assert equal(mine, other)
        assert kept.stats()["served"]["encoded"] >= 10, "the second epoch, but for what is there twice"


@pytest.mark.filterwarnings("ignore:ConcatDataset puts native datasets together")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_concatenation_draws_anew_in_every_epoch(augmented: sutler.ImageFolder, workers: int) -> None:
    both: ConcatDataset[Any] = ConcatDataset([Subset(augmented, PART), augmented])
    outside = augmented[0][0]
    context = "fork" if workers else None
    with (
        sutler.Loader(
            both, batch_size=8, num_workers=workers, multiprocessing_context=context, seed=3
        ) as loader,
        sutler.Loader(augmented, batch_size=None, seed=3) as native,
    ):
        for _ in range(2):
            expected = [image for image, _ in native]
            images = torch.cat([images for images, _ in loader])
            order = [*PART, *range(len(augmented))]
            assert equal(list(images), [expected[index] for index in order])
    assert torch.equal(augmented[0][0], outside), "outside a loader it is epoch 0"


def test_a_concatenation_of_native_datasets_says_what_it_costs(augmented: sutler.ImageFolder) -> None:
    with pytest.warns(RuntimeWarning, match="A sutler.Manifest that lists the files of all of them"):
        sutler.Loader(ConcatDataset([augmented, augmented]))


def test_a_subset_of_sound_is_padded_and_bucketed(tmp_path: Path) -> None:
    sutler.testing.make_tones(tmp_path, count=12, classes=2)
    dataset = sutler.AudioFolder(tmp_path)
    subset = Subset(dataset, [11, 2, 5, 7, 7])
    with sutler.Loader(subset, batch_size=5) as loader:
        padded, lengths, labels = next(iter(loader))
    for row, length, label, index in zip(padded, lengths, labels, subset.indices, strict=True):
        clip, expected = dataset[index]
        assert torch.equal(row[:length], clip)
        assert label == expected
    buckets = sutler.LengthBuckets(subset, batch_size=2, shuffle=False)
    assert [dataset.durations[subset.indices[k]] for batch in buckets for k in batch] == sorted(
        dataset.durations[index] for index in subset.indices
    )
    with sutler.Loader(subset, batch_sampler=buckets, return_ids=True) as loader:
        assert sum(len(batch[-1]) for batch in loader) == 5


def test_a_subset_of_volumes(tmp_path: Path) -> None:
    sutler.testing.make_volumes(tmp_path, count=4, shape=(12, 14, 16))
    for transform in (T.RandBalancedCrop(8), T.Compose([T.RandBalancedCrop(8), T.Lambda(lambda pair: pair)])):
        subset = Subset(sutler.VolumeFolder(tmp_path, transform), [3, 0, 2])
        theirs = next(iter(DataLoader(subset, batch_size=3)))
        with sutler.Loader(subset, batch_size=3, return_ids=True) as loader:
            *ours, ids = next(iter(loader))
        assert equal(ours, theirs)
        assert ids.tolist() == [0, 1, 2]


def test_the_transform_of_a_native_dataset_changes_with_the_dataset_only(photos: Path) -> None:
    large = sutler.ImageFolder(photos, T.Resize([16, 16]))
    with pytest.raises(AttributeError, match=r"transform of this ImageFolder is fixed.*with_transform"):
        large.transform = T.Resize([8, 8])
    small = large.with_transform(T.Resize([8, 8]))
    assert (small.transform, small.fingerprint) == (T.Resize([8, 8]), large.fingerprint)
    for dataset, side in ((large, 16), (small, 8), (Subset(small, [3, 4]), 8)):
        (images, _), *_ = sutler.Loader(dataset, batch_size=2)
        assert images.shape == (2, 3, side, side)
        assert dataset[1][0].shape == (3, side, side)
    with pytest.warns(sutler.PythonTransformWarning, match="CountedSteps"):
        large.with_transform(CountedSteps())


class CountedSteps:
    """A transform without a native form that no other test has been warned of."""

    def __call__(self, image: Any) -> Any:
        return image
