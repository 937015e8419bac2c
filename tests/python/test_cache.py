"""A cache saves reads and decoding, and changes no batch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Cache, Loader
from sutler import transforms as T  # noqa: N812 - as users write it


def epochs(dataset: sutler.ImageFolder, count: int, **arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """The batches of some epochs, and the figures after them."""
    with Loader(dataset, 8, True, output="numpy", num_workers=2, **arguments) as loader:
        batches = [[(images.copy(), labels.copy()) for images, labels in loader] for _ in range(count)]
        return batches, loader.stats()


def assert_same(left: list[Any], right: list[Any]) -> None:
    for one, other in zip(left, right, strict=True):
        for (images, labels), (other_images, other_labels) in zip(one, other, strict=True):
            np.testing.assert_array_equal(images, other_images)
            np.testing.assert_array_equal(labels, other_labels)


@pytest.mark.parametrize("policy", ["pinned", "lru", "random"])
@pytest.mark.parametrize("split", ["100-0-0", "0-100-0", "40-60-0"])
def test_batches_are_the_same_with_and_without(
    augmented: sutler.ImageFolder, split: str, policy: Any
) -> None:
    plain, _ = epochs(augmented, 3)
    cached, stats = epochs(
        augmented, 3, cache=Cache("120KiB" if split == "100-0-0" else "400KiB", split, policy)
    )
    assert_same(plain, cached)
    assert sum(stats["served"].values()) == stats["samples"] == 3 * len(augmented)
    assert stats["served"]["encoded"] + stats["served"]["decoded"] > 0


def test_with_room_for_all_each_file_is_read_once(augmented: sutler.ImageFolder) -> None:
    count = len(augmented)
    size = sum(Path(path).stat().st_size for path, _ in augmented.samples)
    for split, form in (("100-0-0", "encoded"), ("0-100-0", "decoded")):
        _, stats = epochs(augmented, 3, cache=Cache(memory="64MiB", split=split))
        assert stats["served"] == {
            "storage": count,
            "encoded": 0,
            "decoded": 0,
            "augmented": 0,
            form: 2 * count,
        }
        assert (stats["storage_reads"], stats["storage_bytes"]) == (count, size)
        assert stats["reads_per_sample"] == pytest.approx(1 / 3)
        assert stats["unique_fraction"] == 1.0
        cache = stats["cache"]
        assert cache["budget_bytes"] == 64 << 20
        assert size <= cache["used_bytes"] <= 64 << 20
        assert cache[form]["entries"] == count
        assert (cache["evicted"], cache["corrupt"]) == (0, 0)


def test_a_pinned_part_is_missed_no_more(augmented: sutler.ImageFolder) -> None:
    # Every file of the set takes at least a page, so that this has room for some and not for all.
    _, stats = epochs(augmented, 5, cache="100KiB")
    kept = stats["cache"]["encoded"]["entries"]
    assert 0 < kept < len(augmented)
    assert stats["served"]["encoded"] == 4 * kept
    assert stats["storage_reads"] == 5 * len(augmented) - 4 * kept


def test_a_resumed_epoch_finds_an_empty_cache_and_the_same_batches(augmented: sutler.ImageFolder) -> None:
    with Loader(augmented, 8, True, output="numpy", cache="64MiB") as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [(images.copy(), labels.copy()) for images, labels in batches]
    with Loader(augmented, 8, True, output="numpy", cache=Cache("64MiB", "0-100-0")) as loader:
        loader.load_state_dict(state)
        assert_same([rest], [list(loader)])


def test_samples_that_come_as_they_get_ready_are_the_same(augmented: sutler.ImageFolder) -> None:
    def by_id(**arguments: Any) -> list[dict[int, Any]]:
        with Loader(augmented, 8, True, output="numpy", return_ids=True, **arguments) as loader:
            served = [[(images.copy(), ids.copy()) for images, _, ids in loader] for _ in range(3)]
        return [
            {int(i): image for images, ids in epoch for i, image in zip(ids, images, strict=True)}
            for epoch in served
        ]

    cache = Cache("400KiB", "40-60-0", "lru")
    for plain, cached in zip(by_id(), by_id(order="ready", cache=cache), strict=True):
        assert set(plain) == set(cached) == set(range(len(augmented)))
        for index, image in plain.items():
            np.testing.assert_array_equal(image, cached[index])


def test_figures_stay_after_closing(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 8, output="numpy", cache=10_000_000)
    assert loader.stats()["cache"]["budget_bytes"] == 10_000_000
    assert loader.stats()["cache"]["encoded"] == {"entries": 0, "bytes": 0}
    list(loader)
    before = loader.stats()
    loader.close()
    assert loader.stats()["cache"] == before["cache"]
    assert before["cache"]["encoded"]["entries"] == len(augmented)


def test_without_a_cache_there_are_no_figures_of_one(augmented: sutler.ImageFolder) -> None:
    _, stats = epochs(augmented, 1)
    assert stats["cache"] is None


def test_a_forked_child_has_a_cache_of_its_own(augmented: sutler.ImageFolder) -> None:
    with Loader(augmented, 8, output="numpy", cache="64MiB", num_workers=1) as loader:
        expected = [(images.copy(), labels.copy()) for images, labels in loader]
        loader.set_epoch(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that forking with threads is risky
            child = os.fork()
        if child == 0:
            status = 1
            try:
                assert_same([expected], [list(loader)])
                assert loader.stats()["served"]["storage"] == len(augmented)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        loader.set_epoch(0)
        assert_same([expected], [list(loader)])
        assert loader.stats()["served"]["encoded"] == len(augmented)


def test_evaluation_is_kept_almost_finished(photos: Path) -> None:
    transform = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToDtype("float32")])
    dataset = sutler.ImageFolder(photos, transform=transform)
    plain, _ = epochs(dataset, 2)
    cached, stats = epochs(dataset, 2, cache=Cache("4MiB", "0-100-0"))
    assert_same(plain, cached)
    assert stats["cache"]["decoded"] == {"entries": len(dataset), "bytes": len(dataset) * (32 * 32 * 3 + 36)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"memory": "8 gigs"},
            '"8 gigs" is not a positive number of bytes. Write a number and a unit, such as 8GiB',
        ),
        ({"memory": 0}, "positive number of bytes, got 0"),
        ({"memory": "1GiB", "split": "58-43-0"}, "'58-43-0' adds up to 101 percent"),
        ({"memory": "1GiB", "split": "58-42"}, "such as '58-42-0', got '58-42'"),
        ({"memory": 1, "split": "automatic"}, "'auto' or the percentages"),
        ({"memory": "1GiB", "policy": "fifo"}, r"\('pinned', 'lru', 'random'\), got 'fifo'"),
    ],
)
def test_what_is_no_cache_is_refused_in_words(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cache(**arguments)


def test_sizes_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match=r"such as '8GiB', got 1\.5"):
        Cache(1.5)  # type: ignore[arg-type]


def test_a_loader_refuses_what_it_cannot_keep(augmented: sutler.ImageFolder) -> None:
    with pytest.raises(ValueError, match=r"asks for 900\.0 TiB, which is more than the .* Ask for less"):
        Loader(augmented, cache="900TiB")
    with pytest.raises(ValueError, match="has no room for samples"):
        Loader(augmented, cache=100)
    with pytest.raises(ValueError, match="'redis://here' names a server"):
        Loader(augmented, cache="redis://here")
    alone = (
        r"this loader has none to share with\. Give their share to decoded samples \(split='50-50-0'\), or"
    )
    with pytest.raises(ValueError, match=alone):
        Loader(augmented, cache=Cache("1GiB", split="50-30-20"))
