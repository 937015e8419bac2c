"""Plans: what `sutler.plan` says, and that a cache which plans for itself changes no batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Cache, Loader, _sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.testing import make_photos, set_rate, throttled
from torch.utils.data import Subset

MEASURED = {
    "encoded_bytes",
    "decoded_bytes",
    "storage_bytes_per_s",
    "read_s",
    "read_work_s",
    "recall_s",
    "decode_s",
    "augment_s",
    "share",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_photos(root, 24, 2)
    return root


@pytest.fixture(scope="module")
def dataset(photos: Path) -> sutler.ImageFolder:
    return sutler.ImageFolder(
        photos, transform=T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToDtype("float32")])
    )


# --- from Python ------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_is_best_and_of_which_measurements(dataset: sutler.ImageFolder) -> None:
    plan = sutler.plan(dataset, memory="1MiB", time=0.2, num_workers=2)
    assert plan.memory == 1 << 20
    assert plan.profile["samples"] == len(dataset)
    assert plan.profile["threads"] == 2
    assert plan.profile["cores"] == min(2, _sutler.usable_cores())
    assert plan.profile["share"] <= 1
    assert all(plan.profile[name] > 0 for name in MEASURED - {"decode_s", "augment_s"})
    mean_size = np.mean([Path(path).stat().st_size for path, _ in dataset.samples])
    assert plan.profile["encoded_bytes"] == pytest.approx(mean_size)
    assert plan.profile["augmented_bytes"] == 64 * 64 * 3 * 4
    assert len(plan.splits) == len(plan.published.splits) == 5151
    assert plan.best.predicted == pytest.approx(max(each.predicted for each in plan.splits))
    assert plan.best.predicted == plan.predicted(plan.best.split)
    assert plan.best.bound_by in ("storage", "cache", "processors")
    assert f'Use cache=sutler.Cache(1048576, split="{plan.best.split}")' in str(plan)
    assert "published model" in str(plan)
    assert json.loads(plan.to_json())["best"]["split"] == plan.best.split
    with pytest.raises(ValueError, match="add up to 100"):
        plan.predicted("50-60-0")


def test_a_device_can_be_what_binds(dataset: sutler.ImageFolder) -> None:
    plan = sutler.plan(dataset, memory="64MiB", time=0.1, batch_size=10, step_time=2.0, jobs=3)
    assert plan.best.bound_by == "device"
    assert plan.best.predicted == pytest.approx(15.0)
    assert plan.best.split == "100-0-0"


def test_room_for_everything_and_a_single_sample(photos: Path, tmp_path: Path) -> None:
    roomy = sutler.plan(sutler.ImageFolder(photos), memory="4096TiB", time=0.1)
    assert roomy.best.bound_by != "storage"
    assert "4096.0 TiB is more than the" in str(roomy)
    assert "Use cache" not in str(roomy)
    make_photos(tmp_path, 1, 1)
    single = sutler.plan(sutler.ImageFolder(tmp_path), memory="1MiB", time=0.1)
    assert single.profile["samples"] == 1
    assert single.best.predicted > 0


def test_slow_storage_is_found_slow(dataset: sutler.ImageFolder) -> None:
    slow = throttled(dataset, 1e6)
    assert len(slow) == len(dataset)
    assert slow.fingerprint == dataset.fingerprint
    np.testing.assert_array_equal(slow[3][0], dataset[3][0])
    plan = sutler.plan(slow, memory="1MiB", time=1.0)
    assert plan.profile["storage_bytes_per_s"] == pytest.approx(1e6, rel=0.1)
    no_cache = sutler.plan(slow, memory=1, time=0.2)
    assert no_cache.best.bound_by == "storage"
    assert no_cache.best.predicted == pytest.approx(1e6 / no_cache.profile["encoded_bytes"], rel=0.15)
    with pytest.raises(ValueError, match="positive"):
        throttled(dataset, 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"memory": "much"}, "not a positive number of bytes"),
        ({"memory": "1MiB", "jobs": 0}, "jobs should be"),
        ({"memory": "1MiB", "batch_size": 0}, "batch_size should be"),
        ({"memory": "1MiB", "step_time": -1.0}, "step_time should be"),
        ({"memory": "1MiB", "time": float("nan")}, "time should be"),
    ],
)
def test_arguments_that_make_no_sense(
    dataset: sutler.ImageFolder, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        sutler.plan(dataset, **arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"time": "1s"}, "time should be a number of seconds, such as 0.03, got '1s'"),
        ({"time": None}, "time should be a number of seconds, .* got None"),
        ({"step_time": "30ms"}, "step_time should be a number of seconds, .* got '30ms'"),
        ({"jobs": 1.5}, "jobs should be a positive integer, got 1.5"),
        ({"num_workers": "2"}, "num_workers should be a positive integer, got '2'"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_type_are_named(
    dataset: sutler.ImageFolder, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        sutler.plan(dataset, memory="1MiB", **arguments)


def test_only_native_datasets_are_planned_for() -> None:
    with pytest.raises(TypeError, match="list is none"):
        sutler.plan([1, 2, 3], memory="1MiB")  # type: ignore[arg-type]


def test_a_part_is_planned_for_by_its_length(dataset: sutler.ImageFolder) -> None:
    found = sutler.plan(Subset(dataset, [1, 3, 3, 5]), memory="1MiB", time=0.1)
    assert found.profile["samples"] == 3, "one of them is there twice"
    with pytest.raises(ValueError, match="the Subset names no sample"):
        sutler.plan(Subset(dataset, []), memory="1MiB", time=0.1)


def test_a_dataset_without_a_good_sample_says_so(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"of 1 sample tried none .*broken\.jpg"):
        sutler.plan(sutler.ImageFolder(tmp_path), memory="1MiB")


# --- a cache that plans for itself ------------------------------------------------------------------------------------


def epochs(loader: Loader, count: int) -> list[Any]:
    return [[(images.copy(), labels.copy()) for images, labels in loader] for _ in range(count)]


def assert_same(left: list[Any], right: list[Any]) -> None:
    for one, other in zip(left, right, strict=True):
        for (images, labels), (other_images, other_labels) in zip(one, other, strict=True):
            np.testing.assert_array_equal(images, other_images)
            np.testing.assert_array_equal(labels, other_labels)


def test_auto_plans_when_the_first_epoch_begins_and_changes_no_batch(dataset: sutler.ImageFolder) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "output": "numpy", "num_workers": 2}
    with Loader(dataset, **arguments) as loader:
        expected = epochs(loader, 3)
    with Loader(dataset, cache=Cache("400KiB", split="auto"), **arguments) as loader:
        assert loader.stats()["cache"]["plan"] is None
        assert_same(expected, epochs(loader, 3))
        cache = loader.stats()["cache"]
        assert cache["plan"]["seconds"] > 0
        assert cache["plan"]["predicted"] > 0
        assert cache["plan"]["changes"] in (0, 1)
        assert cache["used_bytes"] <= cache["budget_bytes"] == 400 << 10
        shares = [int(share) for share in cache["plan"]["split"].split("-")]
        assert sum(shares) == 100
        assert shares[2] == 0
        served = loader.stats()["served"]
        assert served["encoded"] + served["decoded"] > 0
    assert loader.stats()["cache"]["plan"]["split"] == cache["plan"]["split"]


def test_auto_keeps_decoded_samples_where_they_all_fit(dataset: sutler.ImageFolder) -> None:
    with Loader(dataset, 8, output="numpy", num_workers=1, cache=Cache("256MiB", split="auto")) as loader:
        epochs(loader, 2)
        stats = loader.stats()
    assert stats["cache"]["plan"]["bound_by"] == "processors"
    assert stats["cache"]["decoded"]["entries"] == len(dataset)


def test_a_split_that_changes_between_epochs_changes_no_batch(dataset: sutler.ImageFolder) -> None:
    # Without threads nothing is prepared ahead, so that after the first batch all others come under the new split.
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "output": "numpy", "num_workers": 0}
    with Loader(dataset, **arguments) as loader:
        expected = epochs(loader, 5)
    with Loader(dataset, cache=Cache("400KiB", split="auto"), **arguments) as loader:
        for epoch, shares in enumerate([(100, 0), (0, 100), (60, 40), (100, 0), (0, 100)]):
            batches = iter(loader)
            found = [
                tuple(part.copy() for part in next(batches))
            ]  # what the loader plans itself, it has planned now
            cache = loader._backend._cache  # type: ignore[attr-defined]
            cache.set_split(*shares)
            before = json.loads(cache.figures())
            found += [tuple(part.copy() for part in batch) for batch in batches]
            assert_same([expected[epoch]], [found])
            after = loader.stats()["cache"]
            assert 0.85 * after["budget_bytes"] < after["used_bytes"] <= after["budget_bytes"]
            if shares[1] == 100:
                assert after["decoded"]["bytes"] >= before["decoded"]["bytes"]
                assert after["decoded"]["bytes"] > 0.8 * after["used_bytes"], "it has won the room"
            elif epoch > 0:
                assert after["encoded"]["bytes"] >= before["encoded"]["bytes"], "it has room to win"


def test_auto_follows_storage_and_drops_nothing_that_fits(tmp_path: Path) -> None:
    """Storage turns slow while training goes on: the split moves from decoded to encoded samples.

    A decoded sample takes a sixth more memory than an encoded one and saves all of the decoding: on fast storage it
    pays. On slow storage a sixth more samples that need no read do.
    """
    make_photos(tmp_path, 40, 2, longer_side=400)
    transform = T.Compose([T.Resize(120), T.RandomCrop(64), T.ToDtype("float32")])
    plain = sutler.ImageFolder(tmp_path, transform=transform)
    fast, slow = 1e9, 2e6
    dataset = throttled(plain, fast)
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "output": "numpy", "num_workers": 2}
    with Loader(plain, **arguments) as loader:
        expected = epochs(loader, 20)
    # 23 encoded samples fit, or 19 decoded ones.
    with Loader(dataset, cache=Cache("1200KiB", split="auto"), **arguments) as loader:
        epoch = iter(range(20))

        def train() -> dict[str, Any]:
            """One epoch; returns what was planned and kept."""
            assert_same([expected[next(epoch)]], epochs(loader, 1))
            cache: dict[str, Any] = loader.stats()["cache"]
            assert cache["used_bytes"] <= cache["budget_bytes"]
            return cache

        def train_until(split: str, most: int) -> dict[str, Any]:
            """Figures of a busy machine are noisy, and each epoch is another look."""
            for _ in range(most):
                cache = train()
                if cache["plan"]["split"] == split:
                    return cache
            pytest.fail(f"after {most} epochs the plan is {cache['plan']}, not {split}")

        train_until("0-100-0", 10)
        assert train()["decoded"]["entries"] >= 12
        set_rate(dataset, slow)
        # An epoch is served by the old split and observed, and the one after it fills the new one.
        kept = train_until("100-0-0", 4)
        assert kept["plan"]["bound_by"] == "storage"
        assert kept["encoded"]["entries"] >= 18
        read_before = loader.stats()["served"]["storage"]
        assert train()["encoded"] == kept["encoded"]
        # Whatever fits is there: nothing that was kept is read again.
        assert loader.stats()["served"]["storage"] - read_before == 40 - kept["encoded"]["entries"]
        set_rate(dataset, fast)
        # Whether the old split is clearly better again depends on how long reads take on this machine; that storage is
        # fast again does not.
        train()
        assert train()["plan"]["predicted"] > 2 * kept["plan"]["predicted"]


def test_a_plan_that_cannot_be_made_is_said_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "broken.jpg").write_bytes(b"no picture")
    bad = sutler.ImageFolder(tmp_path, transform=T.CenterCrop(8))
    with Loader(bad, output="numpy", errors="skip", cache=Cache("1MiB", split="auto")) as loader:
        with pytest.warns(UserWarning, match="could not plan.*of 1 sample tried none"):
            assert list(loader) == []
        plan = loader.stats()["cache"]["plan"]
    assert plan["split"] == "100-0-0"
    assert "of 1 sample tried none" in plan["reason"]


def test_a_profile_is_mended_by_what_was_seen_and_not_by_noise() -> None:
    profile = {
        "samples": 1000,
        "encoded_bytes": 1e5,
        "encoded_kept_bytes": 1e5,
        "decoded_bytes": 5e5,
        "augmented_bytes": 5e5,
        "storage_bytes_per_s": 1e9,
        "cache_bytes_per_s": 1e10,
        "network": None,
        "read_s": 1e-4,
        "read_work_s": 0.0,
        "recall_s": 0.0,
        "decode_s": 4e-3,
        "augment_s": 1e-3,
        "copy_s": 0.0,
        "threads": 2.0,
        "cores": 2.0,
        "share": 1.0,
        "bus_bytes_per_s": None,
        "device_samples_per_s": 1e9,
        "jobs": 1,
        "window": False,
    }
    as_expected = {"storage": 500, "encoded": 0, "decoded": 500, "fetch_s": 0.05, "prepare_s": 3.0}
    assert _sutler.correct_profile(json.dumps(profile), json.dumps(as_expected)) is None
    slow_storage = as_expected | {"fetch_s": 50.0}
    mended = _sutler.correct_profile(json.dumps(profile), json.dumps(slow_storage))
    assert mended is not None
    # With processors scarce it was worth decoding ahead; with storage that slow every read counts more.
    before = json.loads(_sutler.choose_split(json.dumps(profile), 50_000_000))
    after = json.loads(_sutler.choose_split(mended, 50_000_000, (before["encoded"], before["decoded"])))
    assert before["decoded"] == 100
    assert (after["encoded"], after["bound_by"]) == (100, "storage")
