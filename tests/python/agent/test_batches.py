"""The same batches as embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - as users write it

from .serving import COMMON, SHARED, Agent, assert_same, batches, dataset


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"channels_last": True, "drop_last": True, "seed": 7},
        {"shuffle": None, "sampler": [5, 3, 3, 40, -1, 0, 2]},
        {"shuffle": None, "batch_size": 1, "batch_sampler": [[1, 2], [3], [4, 5, 6, 7, 8, 9], [0]]},
        {"rank": 1, "world_size": 3},
        {"batch_size": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_an_embedded_loader(
    agent: Agent, photos: Path, arguments: dict[str, Any]
) -> None:
    arguments = COMMON | arguments
    with (
        sutler.Loader(dataset(photos), **arguments) as embedded,
        sutler.Loader(dataset(photos), **arguments, agent=agent.socket) as attached,
    ):
        for _ in range(2):
            assert_same(batches(attached), batches(embedded))
        assert len(attached) == len(embedded)
        ours, theirs = attached.stats(), embedded.stats()
        for key in ("samples", "batches", "failed", "storage_bytes"):
            assert ours[key] == theirs[key], key
        assert ours["stages"].keys() == theirs["stages"].keys()


def test_a_subset_is_served_as_by_an_embedded_loader(agent: Agent, photos: Path) -> None:
    subset = pytest.importorskip("torch.utils.data").Subset(dataset(photos), [30, 2, 2, 17, -1, 5, 9])
    for arguments in ({}, {"shuffle": None, "sampler": [6, 0, 3]}, {"order": "ready"}):
        with (
            sutler.Loader(subset, **COMMON | arguments) as embedded,
            sutler.Loader(subset, **COMMON | arguments, agent=agent.socket) as attached,
        ):
            if "order" in arguments:
                ids = [
                    np.concatenate([batch[-1] for batch in batches(each)]) for each in (attached, embedded)
                ]
                assert sorted(ids[0]) == sorted(ids[1])
            else:
                assert_same(batches(attached), batches(embedded))


def test_images_that_differ_in_size_come_one_by_one(agent: Agent, photos: Path) -> None:
    arguments = COMMON | {"batch_size": None, "shuffle": None}
    with (
        sutler.Loader(dataset(photos, None), **arguments) as embedded,
        sutler.Loader(dataset(photos, None), **arguments, agent=agent.socket) as attached,
    ):
        assert_same(batches(attached), batches(embedded))


def test_sound_is_padded_where_it_arrives(agent: Agent, tmp_path: Path) -> None:
    sutler.testing.make_tones(tmp_path / "tones", count=20, classes=2)
    speech = sutler.AudioFolder(
        tmp_path / "tones",
        T.Compose([T.SpeedPerturb(), T.LogMel(n_mels=16)]),
        padding_value=-1.0,
        max_duration=0.6,
    )
    with (
        sutler.Loader(speech, **COMMON) as embedded,
        sutler.Loader(speech, **COMMON, agent=agent.socket) as attached,
    ):
        for _ in range(2):
            assert_same(batches(attached), batches(embedded))


def test_hoarded_batches_stay_as_they_were(agent: Agent, photos: Path) -> None:
    with sutler.Loader(dataset(photos), **COMMON) as embedded:
        expected = batches(embedded)
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as attached:
        hoard = list(attached)
        assert_same([tuple(batch) for batch in hoard], expected)
    agent.kill()
    assert_same(
        [tuple(batch) for batch in hoard], expected
    )  # neither the loader nor the agent is there any more


def test_figures_are_those_of_the_batches_in_hand(photos: Path, agent: Agent) -> None:
    """Whatever is on its way: what is counted of samples is counted when the trainer has them."""
    for options in (COMMON, SHARED):
        with sutler.Loader(dataset(photos), agent=agent.socket, **options) as loader:
            sizes = [Path(path).stat().st_size for path, _ in loader.dataset.samples]
            seen: list[int] = []
            for _ in range(2):
                for _, _, ids in loader:
                    seen += ids.tolist()
                    figures = loader.stats()
                    assert figures["samples"] == len(seen)
                    assert figures["served"] == {
                        "storage": len(seen),
                        "encoded": 0,
                        "decoded": 0,
                        "augmented": 0,
                    }
                    assert figures["storage_reads"] == len(seen)
                    assert figures["storage_bytes"] == sum(sizes[index] for index in seen)
            batches_seen = figures["batches"]
            # What was sent and not taken does not count.
            next(iter(loader))
            assert loader.stats()["batches"] == batches_seen + 1
            assert loader.stats()["storage_reads"] == loader.stats()["samples"]


def test_figures_count_what_bad_samples_cost(tmp_path: Path, agent: Agent) -> None:
    """A batch without a good sample is passed over; that its files were read is counted all the same."""
    sutler.testing.make_photos(tmp_path / "some", count=12, classes=2, longer_side=64)
    files = sorted((tmp_path / "some").rglob("*.jpg"))
    for path in files[-6:]:
        path.write_bytes(b"broken")
    photos = dataset(tmp_path / "some")
    with sutler.Loader(photos, batch_size=3, output="numpy", errors="skip", agent=agent.socket) as ours:
        assert sum(len(labels) for _, labels in ours) == 6
        figures = ours.stats()
    assert (figures["samples"], figures["failed"], figures["served"]["storage"]) == (6, 6, 6)
    assert figures["storage_reads"] == 12
    assert figures["storage_bytes"] == sum(path.stat().st_size for path in files)


def test_batches_without_a_good_sample_are_drawn_past(tmp_path: Path, agent: Agent) -> None:
    """Many of them in a row: the agent waits for what the sampler draws, and has to say that it does."""
    sutler.testing.make_photos(tmp_path / "some", count=12, classes=2, longer_side=64)
    for path in sorted((tmp_path / "some").rglob("*.jpg"))[:6]:
        path.write_bytes(b"broken")
    batches = [[at, at + 1] for at in range(0, 12, 2)] * 4
    with sutler.Loader(
        dataset(tmp_path / "some"), batch_sampler=batches, errors="skip", agent=agent.socket, timeout=20
    ) as ours:
        assert sum(len(labels) for _, labels in ours) == 24
        assert len(ours.failures()) == 24


def test_a_dataset_that_has_changed_is_refused(agent: Agent, own_photos: Path) -> None:
    listed = dataset(own_photos)
    next(own_photos.rglob("*.jpg")).unlink()
    with (
        sutler.Loader(listed, **COMMON, agent=agent.socket) as loader,
        pytest.raises(ValueError, match=r"the loader listed fingerprint .* the agent finds fingerprint"),
    ):
        iter(loader)


def test_bad_samples_are_the_same_errors(agent: Agent, own_photos: Path) -> None:
    for path in sorted(own_photos.rglob("*.jpg"))[3:5]:
        path.write_bytes(b"not a picture")
    arguments = COMMON | {"shuffle": False}
    with (
        sutler.Loader(dataset(own_photos), **arguments, errors="skip") as embedded,
        sutler.Loader(dataset(own_photos), **arguments, errors="skip", agent=agent.socket) as attached,
    ):
        assert_same(batches(attached), batches(embedded))
        assert attached.failures() == embedded.failures()
        assert len(attached.failures()) == attached.stats()["failed"] == 2
    for policy in ("raise", sutler.Errors(max=1)):
        errors = []
        for where in (None, agent.socket):
            with sutler.Loader(dataset(own_photos), **arguments, errors=policy, agent=where) as loader:
                with pytest.raises(sutler.SutlerError) as raised:
                    list(loader)
                errors.append((type(raised.value), str(raised.value)))
        assert errors[0] == errors[1]
