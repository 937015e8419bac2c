"""Batches of clips: padded, with lengths, every clip once, in every order, and resumed exactly."""

from __future__ import annotations

import json
import math
import pickle
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import torch
from sutler import transforms as T  # noqa: N812 - as users write it

from . import references

TRAIN = T.Compose(
    [
        T.SpeedPerturb(),
        T.Dither(),
        T.PreEmphasis(),
        T.LogMel(n_fft=256, hop_length=80, n_mels=20, normalize="per_feature"),
        T.SpecAugment(max_freq=4),
        T.FrameStack(3),
    ]
)

Order = Literal["strict", "ready"]


def contents(batch: Any) -> dict[int, bytes]:
    """What a batch with ids has of each sample, without the padding."""
    padded, lengths, labels, ids = batch
    assert padded.shape[-1] == lengths.max()
    return {
        int(number): np.asarray(row)[..., : int(length)].tobytes() + bytes([int(label)])
        for row, length, label, number in zip(padded, lengths, labels, ids, strict=True)
    }


def test_batches_are_padded_signals_their_lengths_and_labels(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, padding_value=-9.0)
    assert len(dataset) == 30
    assert dataset.classes == ["class_0", "class_1", "class_2"]
    seen = 0
    for padded, lengths, labels in sutler.Loader(dataset, batch_size=8):
        assert padded.dtype == torch.float32
        assert lengths.dtype == labels.dtype == torch.int64
        assert padded.shape == (len(labels), int(lengths.max()))
        for row, length, label in zip(padded, lengths.tolist(), labels.tolist(), strict=True):
            clip, expected = dataset[seen]
            assert (length, label) == (len(clip), expected)
            assert torch.equal(row[:length], clip)
            assert (row[length:] == -9.0).all()
            seen += 1
    assert seen == 30
    assert dataset.lengths == [len(dataset[index][0]) for index in range(30)]


def test_features_are_what_the_dataset_gives(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, TRAIN)
    for batch in sutler.Loader(dataset, batch_size=7, return_ids=True, num_workers=3):
        assert batch[0].shape[1] == 60
        for index, found in contents(batch).items():
            features, label = dataset[index]
            assert found == np.ascontiguousarray(features).tobytes() + bytes([label])


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_bytes_on_any_number_of_threads(tones: Path, order: Order, workers: int) -> None:
    dataset = sutler.AudioFolder(tones, TRAIN)

    def epochs(order: Order, workers: int) -> list[dict[int, bytes]]:
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
    assert all(first[index] != second[index] for index in first), "every epoch is another draw"
    assert [first, second] == epochs("strict", 1)


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("bucketed", [False, True])
def test_an_epoch_resumes_at_every_batch(tones: Path, order: Order, bucketed: bool) -> None:
    dataset = sutler.AudioFolder(tones, TRAIN)

    def make() -> sutler.Loader[Any]:
        options: dict[str, Any] = (
            {"batch_sampler": sutler.LengthBuckets(dataset, 4, buckets=3)}
            if bucketed
            else {"batch_size": 4, "shuffle": True}
        )
        return sutler.Loader(dataset, order=order, num_workers=2, return_ids=True, **options)

    with make() as loader:
        whole = [[contents(batch) for batch in loader] for _ in range(2)]
    assert [sum(map(len, epoch)) for epoch in whole] == [30, 30]
    for stop in range(len(whole[1]) + 1):
        with make() as loader:
            for _ in loader:
                pass
            iterator = iter(loader)
            done = [contents(next(iterator)) for _ in range(stop)]
            state = json.loads(json.dumps(loader.state_dict()))
        with make() as loader:
            loader.load_state_dict(state)
            rest = [contents(batch) for batch in loader]
        if order == "strict":
            assert done + rest == whole[1]
        both = [item for batch in done + rest for item in batch.items()]
        assert sorted(both) == sorted(item for batch in whole[1] for item in batch.items())


def test_buckets_pad_less_and_serve_every_clip_once(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones)

    def padding(loader: sutler.Loader[Any]) -> tuple[float, list[int]]:
        values = total = 0
        served: list[int] = []
        for padded, lengths, _, ids in loader:
            values += int(lengths.sum())
            total += padded.numel()
            served += ids.tolist()
        return 1 - values / total, served

    sampler = sutler.LengthBuckets(dataset, 5, buckets=6, seed=1)
    with sutler.Loader(dataset, batch_sampler=sampler, return_ids=True) as loader:
        assert len(loader) == 6
        first, served = padding(loader)
        _, served_next = padding(loader)
    with sutler.Loader(dataset, 5, shuffle=True, return_ids=True) as loader:
        plain, _ = padding(loader)
    assert sorted(served) == sorted(served_next) == list(range(30))
    assert served != served_next, "the loader tells the sampler its epoch"
    assert first < plain / 2


def test_ranks_have_as_many_batches_and_share_the_clips(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones)
    ranks = [sutler.LengthBuckets(dataset, 4, rank=rank, world_size=4) for rank in range(4)]
    batches = [list(sampler) for sampler in ranks]
    assert [list(map(len, rank)) for rank in batches] == [[4, 4]] * 4
    assert [len(sampler) for sampler in ranks] == [2] * 4
    assert {index for rank in batches for batch in rank for index in batch} == set(range(30))


def test_a_bad_clip_is_reported_with_its_path(tones: Path) -> None:
    bad = tones / "class_1" / "tone_000012.wav"
    bad.write_bytes(bad.read_bytes()[:500])
    dataset = sutler.AudioFolder(tones)
    assert [index for index, length in enumerate(dataset.lengths) if length == 0] == [12]
    with (
        sutler.Loader(dataset, 8) as loader,
        pytest.raises(sutler.DecodeError, match=r"tone_000012\.wav.*ends at byte 500"),
    ):
        list(loader)
    with sutler.Loader(dataset, 8, errors="skip", return_ids=True) as loader:
        served = [number for *_, ids in loader for number in ids.tolist()]
        assert served == [index for index in range(30) if index != 12]
        assert [(failure.id, failure.kind) for failure in loader.failures()] == [(12, "truncated")]
    with (
        sutler.Loader(dataset, 8, errors=sutler.Errors(max=0)) as loader,
        pytest.raises(sutler.ErrorBudgetExceeded),
    ):
        list(loader)
    assert len(sutler.AudioFolder(tones, max_duration=60)) == 30, (
        "what cannot be read is reported, not left out"
    )


def test_long_files_can_be_left_out(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones)
    limit = sorted(dataset.durations)[19]
    shorter = sutler.AudioFolder(tones, max_duration=limit)
    assert len(shorter) == 20
    assert max(shorter.durations) == limit
    assert shorter.fingerprint != dataset.fingerprint
    assert shorter.classes == dataset.classes
    kept = {path for path, _ in shorter.samples}
    assert kept == {
        path
        for (path, _), seconds in zip(dataset.samples, dataset.durations, strict=True)
        if seconds <= limit
    }


def test_channels_stay_apart_if_asked(tmp_path: Path) -> None:
    both = np.stack([references.signal(), -references.signal()])
    for number in range(3):
        references.write_wav(tmp_path / "a" / f"{number}.wav", both[:, : 2000 + number * 500])
    dataset = sutler.AudioFolder(tmp_path, T.MelSpectrogram(n_mels=16), mono=False)
    ((padded, lengths, _),) = list(sutler.Loader(dataset, 3))
    assert padded.shape == (3, 2, 16, int(lengths.max()))
    assert torch.equal(padded[:, 0], padded[:, 1]), "power has no sign"
    assert not np.asarray(sutler.AudioFolder(tmp_path)[0][0]).any()
    references.write_wav(tmp_path / "a" / "3.wav", references.signal())
    with pytest.raises(RuntimeError, match="pass mono=True"):
        list(sutler.Loader(sutler.AudioFolder(tmp_path, mono=False), 4))


def test_functions_and_collation_run_in_python(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, T.Compose([T.PreEmphasis(), T.Lambda(lambda clip: clip[::2] * 2)]))
    for (padded, lengths, labels), (plain, plain_lengths, _) in zip(
        sutler.Loader(dataset, 8), sutler.Loader(sutler.AudioFolder(tones, T.PreEmphasis()), 8), strict=True
    ):
        assert torch.equal(lengths, (plain_lengths + 1) // 2)
        assert torch.equal(padded, plain[:, ::2] * 2)
        assert labels.dtype == torch.int64
    collated = list(sutler.Loader(sutler.AudioFolder(tones), 8, collate_fn=lambda samples: samples))
    assert [len(batch) for batch in collated] == [8, 8, 8, 6]
    clip, label = collated[0][0]
    assert torch.equal(clip, dataset.__class__(tones)[0][0])
    assert label == 0


def test_single_samples_and_numpy(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, target_transform=lambda label: label * 10)
    clip, label = next(iter(sutler.Loader(dataset, batch_size=None)))
    assert torch.equal(clip, dataset[0][0])
    assert label == 0
    padded, lengths, labels = list(sutler.Loader(dataset, 10, output="numpy"))[2]
    assert isinstance(padded, np.ndarray)
    assert padded.dtype == np.float32
    assert lengths.max() == padded.shape[1]
    assert labels.tolist() == [20] * 10


def test_memory_goes_from_batch_to_batch(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones)
    addresses = set()
    with sutler.Loader(dataset, 5, num_workers=2) as loader:
        for _ in range(6):
            for padded, _, _ in loader:
                addresses.add(padded.data_ptr())
                del padded
    assert len(addresses) < 18, "36 batches were delivered"


def test_a_delivered_batch_keeps_its_values(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones)
    with sutler.Loader(dataset, 5, num_workers=2) as loader:
        held = [padded for _ in range(3) for padded, _, _ in loader]
    copies = [padded.clone() for padded, _, _ in sutler.Loader(dataset, 5)]
    assert all(torch.equal(held[index], copies[index % 6]) for index in range(18))


def test_a_dataset_travels_to_another_process(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, T.LogMel(n_mels=16), max_duration=0.5)
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == len(dataset) < 30
    assert torch.equal(copy[3][0], dataset[3][0])


def test_wrong_arguments_are_named(tones: Path) -> None:
    with pytest.raises(ValueError, match=r"SpeedPerturb: max_rate=0\.5 should be from 0\.85"):
        T.SpeedPerturb(0.85, 0.5)
    with pytest.raises(ValueError, match="MelSpectrogram: win_length=800 should be from 1 to 400"):
        T.MelSpectrogram(win_length=800)
    with pytest.raises(ValueError, match="TrimSilence: top_db=-5 should be above 0 and at most 1000"):
        T.TrimSilence(-5)
    with pytest.raises(ValueError, match="Dither: amount=nan should be finite"):
        T.Dither(math.nan)
    with pytest.raises(ValueError, match=r"SpeedPerturb: factors=\[1\.0, inf\] should be finite"):
        T.SpeedPerturb(factors=[1, math.inf])
    with pytest.raises(ValueError, match="put MelSpectrogram or LogMel before it"):
        sutler.AudioFolder(tones, T.SpecAugment())
    with pytest.raises(ValueError, match="leave out either"):
        sutler.AudioFolder(tones, T.Compose([T.MelSpectrogram(), T.LogMel(n_mels=4)]))
    with pytest.raises(TypeError, match="transform on images"):
        sutler.AudioFolder(tones, T.Resize(4))
    with pytest.raises(ValueError, match="put functions behind them"):
        sutler.AudioFolder(tones, T.Compose([T.Lambda(abs), T.PreEmphasis()]))
    with pytest.raises(sutler.SampleError, match=r"put Resample\(new_freq=16000\) before it"):
        sutler.AudioFolder(tones, T.MelSpectrogram(16_000))[0]
    with pytest.raises(ValueError, match="batch_size should be a positive integer"):
        sutler.LengthBuckets([1, 2], 0)
    with pytest.raises(TypeError, match=r"sutler\.AudioFolder"):
        T.PreEmphasis()(torch.zeros(4))
    with pytest.raises(FileNotFoundError, match=r"all ending in \.wav"):
        sutler.ImageFolder(tones)


def wav_of(encoding: int, bits: int, *, order: str = "<") -> bytes:
    """A short WAV file of one channel, or a RIFX file where the order of bytes is the other one."""
    layout = struct.pack(f"{order}HHIIHH", encoding, 1, 8000, 8000, max(1, bits // 8), bits)
    chunks = b"WAVEfmt " + struct.pack(f"{order}I", len(layout)) + layout
    chunks += b"data" + struct.pack(f"{order}I", 800) + bytes(800)
    return (b"RIFF" if order == "<" else b"RIFX") + struct.pack(f"{order}I", len(chunks)) + chunks


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            wav_of(1, 16, order=">"),
            "not supported: RIFX, .* big-endian numbers; convert it to PCM WAV or FLAC",
        ),
        (wav_of(2, 4), "not supported: Microsoft ADPCM; convert it to PCM WAV or FLAC"),
        (wav_of(17, 4), "not supported: IMA ADPCM; convert it to PCM WAV or FLAC"),
    ],
)
def test_kinds_of_wav_that_are_not_read_say_what_they_are(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "spoken").mkdir()
    (tmp_path / "spoken" / "word.wav").write_bytes(content)
    with pytest.raises(sutler.DecodeError, match=message):
        list(sutler.Loader(sutler.AudioFolder(tmp_path), num_workers=1))
    with pytest.warns(RuntimeWarning, match="Every sample"):
        assert not list(sutler.Loader(sutler.AudioFolder(tmp_path), num_workers=1, errors="skip"))


@pytest.mark.parametrize(("encoding", "bits"), [(1, 8), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8)])
def test_kinds_of_wav_that_are_read(tmp_path: Path, encoding: int, bits: int) -> None:
    (tmp_path / "spoken").mkdir()
    (tmp_path / "spoken" / "word.wav").write_bytes(wav_of(encoding, bits))
    signal, _ = sutler.AudioFolder(tmp_path)[0]
    assert len(signal) == 800 * 8 // bits
