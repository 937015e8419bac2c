"""Accelerate: a prepared loader is counted, checkpointed and skipped in like a prepared DataLoader."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler
import torch
from sutler import Loader

from .samplers import Remembering

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

from sutler.integrations.accelerate import prepare  # noqa: E402 - only where there is Accelerate

BATCHES = 6


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def loader_of(dataset: Any, *, shuffle: bool = True, **arguments: Any) -> Loader:
    return Loader(dataset, 8, shuffle, num_workers=1, return_ids=True, seed=3, **arguments)


def ids_of(batches: Any) -> list[list[int]]:
    return [ids.tolist() for *_, ids in batches]


def test_accelerators_own_prepare_hands_a_loader_back_as_it_is(
    accelerator: Any, augmented: sutler.ImageFolder
) -> None:
    loader = loader_of(augmented)
    model, same = accelerator.prepare(torch.nn.Linear(1, 1), loader)
    assert same is loader
    assert ids_of(same) == ids_of(loader_of(augmented))
    # What the guide warns of: skipping makes another loader of one that is not prepared.
    assert type(accelerate.skip_first_batches(loader, 1)) is torch.utils.data.DataLoader
    prepared = prepare(accelerator, loader)
    assert accelerator.prepare(prepared) is prepared
    assert accelerator.prepare(model, prepared)[1] is prepared


def test_a_prepared_loader_delivers_the_loaders_batches(
    accelerator: Any, augmented: sutler.ImageFolder
) -> None:
    plain = loader_of(augmented)
    prepared = prepare(accelerator, loader_of(augmented))
    assert len(prepared) == len(plain) == BATCHES
    for epoch in (0, 1, 5, 6):
        if epoch == 5:
            plain.set_epoch(epoch)
            prepared.set_epoch(epoch)
        for (images, labels, ids), (a, b, c) in zip(plain, prepared, strict=True):
            assert torch.equal(images, a)
            assert torch.equal(labels, b)
            assert torch.equal(ids, c)


def test_gradients_are_synchronised_at_the_end_of_an_epoch(
    accelerator: Any, augmented: sutler.ImageFolder
) -> None:
    model = accelerator.prepare(torch.nn.Linear(1, 1))

    def syncs(loader: Any) -> list[bool]:
        found = []
        for _ in loader:
            with accelerator.accumulate(model):
                found.append(accelerator.sync_gradients)
        return found

    theirs = accelerator.prepare(torch.utils.data.DataLoader(range(41), 8))  # type: ignore[arg-type]
    expected = syncs(theirs) + syncs(theirs)
    assert expected == [False, False, False, True, False, True] * 2
    loader = loader_of(augmented, progress=True)
    assert syncs(prepare(accelerator, loader)) + syncs(prepare(accelerator, loader)) == expected
    assert not accelerator.gradient_state.in_dataloader
    # Without preparation the accelerator does not know that an epoch ends.
    assert syncs(loader) == [False, False, False, True, False, False]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_of_a_sampler_is_known_as_such(
    accelerator: Any, workers: int, drop_last: bool
) -> None:
    def ends(prepared: Any) -> list[bool]:
        return [accelerator.gradient_state.end_of_dataloader for _ in prepared]

    def make(**order: Any) -> Any:
        return prepare(accelerator, Loader(range(41), num_workers=workers, **order))

    sampler = torch.utils.data.SequentialSampler(range(41))
    batches = 5 if drop_last else 6
    sampled = make(batch_size=8, sampler=sampler, drop_last=drop_last)
    for prepared in (
        sampled,
        make(batch_sampler=torch.utils.data.BatchSampler(sampler, 8, drop_last)),
        make(batch_size=8, sampler=iter(range(41)), drop_last=drop_last),  # without a length
    )[: 3 if workers else 2]:
        assert ends(prepared) == [False] * (batches - 1) + [True]
    iterator = iter(sampled)
    for _ in range(2):
        next(iterator)
    sampled.load_state_dict(sampled.state_dict())
    assert ends(sampled) == [False] * (batches - 3) + [True]
    for _ in sampled:
        break
    assert ends(sampled) == [False] * (batches - 1) + [True], "after an epoch that was left early"


def test_skipping_begins_in_the_epoch_after_one_that_was_left_early(accelerator: Any) -> None:
    plain = Loader(torch.arange(12), 4, shuffle=True, seed=3)
    epochs = [[batch.tolist() for batch in plain] for _ in range(3)]
    prepared = prepare(accelerator, Loader(torch.arange(12), 4, shuffle=True, seed=3))
    for _ in prepared:
        break
    assert [batch.tolist() for batch in accelerate.skip_first_batches(prepared, 1)] == epochs[1][1:]
    assert [batch.tolist() for batch in prepared] == epochs[2]


def test_an_epoch_that_is_left_early_is_not_counted_as_running(
    accelerator: Any, augmented: sutler.ImageFolder
) -> None:
    prepared = prepare(accelerator, loader_of(augmented))
    for _ in prepared:
        assert accelerator.gradient_state.active_dataloader is prepared
        break
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("step", [1, 4, BATCHES, BATCHES + 2])
def test_a_saved_state_goes_on_with_the_exact_rest(
    accelerator: Any, augmented: sutler.ImageFolder, tmp_path: Path, step: int
) -> None:
    prepared = prepare(accelerator, loader_of(augmented))
    trained = []
    for _ in range(3):
        for *_, ids in prepared:
            trained.append(ids.tolist())
            if len(trained) == step:
                accelerator.save_state(str(tmp_path))
    assert len(trained) == 3 * BATCHES

    prepared.load_state_dict(loader_of(augmented).state_dict())
    accelerator.load_state(str(tmp_path))
    rest = [ids for _ in range(3) for ids in ids_of(prepared)]
    assert rest[: len(trained) - step] == trained[step:]


@pytest.mark.parametrize("step", [4, BATCHES, BATCHES + 2, 2 * BATCHES])
def test_a_saved_state_has_that_of_a_sampler_also_after_the_last_batch(
    accelerator: Any, augmented: sutler.ImageFolder, tmp_path: Path, step: int
) -> None:
    def make() -> Loader:
        return loader_of(augmented, shuffle=False, sampler=Remembering(augmented))

    prepared = prepare(accelerator, make())
    trained = []
    for _ in range(3):
        for *_, ids in prepared:
            trained.append(ids.tolist())
            if len(trained) == step:
                state = prepared.state_dict()
    resumed = prepare(accelerator, make(), checkpoint=False)
    resumed.load_state_dict(state)
    epochs_left = 3 - step // BATCHES
    assert [ids for _ in range(epochs_left) for ids in ids_of(resumed)] == trained[step:]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("step", [1, 3, 4])
def test_random_numbers_of_the_trainer_go_on_as_well(
    accelerator: Any, tmp_path: Path, step: int, workers: dict[str, Any]
) -> None:
    """Accelerate restores the generator that dropout draws from, and unseeded samplers."""

    def make() -> Any:
        sampler = torch.utils.data.RandomSampler(range(12))
        return prepare(accelerator, Loader(torch.arange(12), 4, sampler=sampler, **workers))

    def train(prepared: Any, epochs: int) -> Iterator[tuple[list[int], float]]:
        for _ in range(epochs):
            for batch in prepared:
                yield batch.tolist(), torch.rand(1).item()

    prepared = make()
    trained = []
    for one in train(prepared, 3):
        trained.append(one)
        if len(trained) == step:
            accelerator.save_state(str(tmp_path))
    torch.manual_seed(5)
    accelerator._custom_objects.clear()
    resumed = make()
    accelerator.load_state(str(tmp_path))
    assert list(train(resumed, 3 - step // 3)) == trained[step:]


@pytest.mark.parametrize("skipped", [0, 1, 4, BATCHES])
@pytest.mark.parametrize("order", ["own", "sampler", "batch_sampler"])
def test_skipping_batches_keeps_the_engine_and_the_epoch(
    accelerator: Any, augmented: sutler.ImageFolder, skipped: int, order: str
) -> None:
    def make() -> Loader:
        sampler = torch.utils.data.DistributedSampler(augmented, num_replicas=2, rank=0)  # type: ignore[var-annotated]
        if order == "own":
            return loader_of(augmented)
        if order == "sampler":
            return Loader(augmented, 4, sampler=sampler, num_workers=1, return_ids=True)
        batches = torch.utils.data.BatchSampler(sampler, 4, False)
        return Loader(augmented, batch_sampler=batches, num_workers=1, return_ids=True)

    plain = make()
    plain.set_epoch(2)
    expected = list(plain)
    prepared = prepare(accelerator, make())
    rest = accelerate.skip_first_batches(prepared, skipped)
    prepared.set_epoch(2)
    ends = []
    for (images, _, ids), (a, _, b) in zip(expected[skipped:], rest, strict=True):
        assert torch.equal(images, a)
        assert torch.equal(ids, b)
        ends.append(accelerator.gradient_state.end_of_dataloader)
    assert ends == [False] * (len(expected) - skipped - 1) + [True] * (skipped < len(expected))
    assert not accelerator.gradient_state.in_dataloader
    prepared_loader = prepared.loader
    if order == "own" and 0 < skipped < BATCHES:
        assert prepared_loader.stats()["samples"] == 41 - 8 * skipped, "what is skipped is not prepared"
    plain.set_epoch(3)
    prepared.set_epoch(3)
    assert ids_of(prepared) == ids_of(plain)


def draws_of(batches: Any) -> int:
    """How many seeds going through batches draws from PyTorch's global generator."""
    torch.manual_seed(0)
    for _ in batches:
        pass
    after = torch.get_rng_state()
    torch.manual_seed(0)
    for draws in range(10):
        if torch.equal(torch.get_rng_state(), after):
            return draws
        torch.empty((), dtype=torch.int64).random_()
    raise AssertionError("something else was drawn, too")


@pytest.mark.usefixtures("no_other_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_skipped_in_draws_and_ends_workers_as_a_whole_one(
    accelerator: Any, workers: int
) -> None:
    prepared = prepare(accelerator, Loader(torch.arange(12), 4, shuffle=True, num_workers=workers))
    assert [draws_of(prepared), draws_of(prepared)] == [1, 1]
    rest = accelerate.skip_first_batches(prepared, 1)
    assert draws_of(rest) == 1
    assert multiprocessing.active_children() == []
    assert [draws_of(prepared), draws_of(prepared)] == [1, 1]
    assert draws_of(rest) == 1


@pytest.mark.usefixtures("no_other_workers")
def test_workers_end_with_the_last_batch_for_trainers_that_count_batches(accelerator: Any) -> None:
    loader = Loader(torch.arange(12), 4, num_workers=2)
    for batches in (prepared := prepare(accelerator, loader), accelerate.skip_first_batches(prepared, 1)):
        iterator = iter(batches)
        for _ in range(len(batches)):
            next(iterator)
        assert multiprocessing.active_children() == []


def test_a_sampler_that_has_more_than_it_said_is_gone_through(accelerator: Any) -> None:
    class Understated(list[int]):
        def __len__(self) -> int:
            return 4

    prepared = prepare(
        accelerator, Loader(torch.arange(12), 4, sampler=Understated(range(12)), num_workers=0)
    )
    found = [(batch.tolist()[0], accelerator.gradient_state.end_of_dataloader) for batch in prepared]
    assert found == [(0, False), (4, False), (8, False)]


def test_a_prepared_loader_shows_the_dataset_and_the_sizes_that_programs_look_up(
    accelerator: Any, augmented: sutler.ImageFolder
) -> None:
    prepared = prepare(accelerator, loader_of(augmented))
    assert (prepared.total_batch_size, prepared.total_dataset_length, len(prepared.dataset)) == (8, 41, 41)
    assert prepared.dataset.classes == augmented.classes
    assert prepared.dataset[3][1] == augmented[3][1]
    with pytest.raises(AttributeError, match="tokenizer"):
        _ = prepared.dataset.tokenizer


def test_batches_get_names_for_models_that_want_them(accelerator: Any, augmented: sutler.ImageFolder) -> None:
    prepared = prepare(accelerator, loader_of(augmented), names=("pixel_values", "labels", "ids"))
    batch = next(iter(prepared))
    assert list(batch) == ["pixel_values", "labels", "ids"]
    assert batch["pixel_values"].shape == (8, 3, 24, 24)
    wrong = prepare(accelerator, loader_of(augmented), names=("pixel_values", "labels"))
    with pytest.raises(ValueError, match="3 parts, and names has 2 names for them: pixel_values, labels"):
        next(iter(wrong))


def test_what_cannot_be_prepared_is_refused(accelerator: Any, augmented: sutler.ImageFolder) -> None:
    with pytest.raises(TypeError, match="a DataLoader goes to accelerator"):
        prepare(accelerator, torch.utils.data.DataLoader(range(3)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="to 3 ranks, the accelerator has 1"):
        prepare(accelerator, loader_of(augmented, rank=0, world_size=3))

    unordered = prepare(accelerator, loader_of(augmented, order="ready"))
    assert sorted(index for ids in ids_of(unordered) for index in ids) == list(range(41))
    with pytest.raises(ValueError, match=r"order='ready' serves samples as they get ready"):
        list(accelerate.skip_first_batches(unordered, 1))


def test_a_stream_is_skipped_in_by_reading_it(accelerator: Any) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

        def __len__(self) -> int:
            return 10

    stream = prepare(accelerator, Loader(Stream(), 4))
    assert [batch.tolist() for batch in stream] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    rest = accelerate.skip_first_batches(stream, 1)
    assert [batch.tolist() for batch in rest] == [[4, 5, 6, 7], [8, 9]]


def losses_of(accelerator: Any, batches: Any, size: int = 4) -> list[float]:
    """The losses of all samples as Hugging Face's programs gather them: that of a batch, as often as it has rows."""
    gathered = [accelerator.gather_for_metrics(batch.mean().repeat(size)) for batch in batches]
    return [] if not gathered else torch.cat(gathered).tolist()


@pytest.mark.parametrize("samples", [8, 10, 3])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_small_last_batch_weighs_as_much_in_the_loss_as_with_a_data_loader(
    accelerator: Any, samples: int, workers: int
) -> None:
    dataset = torch.arange(float(samples))
    backwards = list(range(samples))[::-1]
    orders: list[dict[str, Any]] = [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 4, "sampler": backwards},
        {"batch_size": 4, "sampler": backwards, "drop_last": True},
        {"batch_sampler": torch.utils.data.BatchSampler(backwards, 4, False)},
    ]
    for order in orders:
        theirs = accelerator.prepare(torch.utils.data.DataLoader(dataset, **order))  # type: ignore[arg-type]
        expected = losses_of(accelerator, theirs)
        ours = prepare(accelerator, Loader(dataset, num_workers=workers, **order))
        assert losses_of(accelerator, ours) == expected, order
        assert losses_of(accelerator, accelerate.skip_first_batches(ours, 1)) == expected[4:], order
    assert len(losses_of(accelerator, prepare(accelerator, Loader(dataset, 4, shuffle=True)))) == samples
    # Batches of any size: nobody can say how often a loss is to count.
    sizes = prepare(accelerator, Loader(dataset, batch_sampler=[[0], [1, 2]], num_workers=workers))
    assert losses_of(accelerator, sizes) == [0.0] * 4 + [1.5] * 4


def test_a_small_last_batch_weighs_less_in_any_order_and_after_a_resume(accelerator: Any) -> None:
    dataset = torch.arange(10.0)
    for order in ("strict", "ready"):

        def make(size: int, order: Any = order) -> Any:
            return prepare(accelerator, Loader(dataset, size, num_workers=1, order=order))

        prepared = make(4)
        assert len(losses_of(accelerator, prepared)) == 10
        next(iter(prepared))
        resumed = make(5)
        resumed.load_state_dict(prepared.state_dict())
        assert len(losses_of(accelerator, resumed, 5)) == 6


def test_samples_that_are_no_batches_are_gathered_whole(accelerator: Any) -> None:
    prepared = prepare(accelerator, Loader(torch.arange(12.0).reshape(3, 4), batch_size=None))
    assert [accelerator.gather_for_metrics(sample).numel() for sample in prepared] == [4, 4, 4]


def shares_of(samples: int, world_size: int, drop_last: bool) -> list[list[list[int]]]:
    """The batches that Accelerate gives each rank."""
    batches = torch.utils.data.BatchSampler(range(samples), 4, drop_last)
    return [
        list(accelerate.data_loader.BatchSamplerShard(batches, world_size, rank))
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", ["native", "subset", "python", "workers"])
def test_ranks_take_the_batches_in_turn_that_accelerate_gives_them(
    augmented: sutler.ImageFolder, world_size: int, kind: str
) -> None:
    for samples, drop_last in ((3, False), (10, False), (10, True), (24, False), (41, False), (41, True)):
        if (kind == "native" and samples < 41) or (kind == "workers" and samples != 10):
            continue
        native = augmented if kind == "native" else torch.utils.data.Subset(augmented, range(samples))
        dataset: Any = native if kind in ("native", "subset") else range(samples)
        for rank, expected in enumerate(shares_of(samples, world_size, drop_last)):
            loader = Loader(
                dataset,
                4,
                drop_last=drop_last,
                num_workers=int(kind != "python"),
                persistent_workers=kind == "workers",
                return_ids=True,
                rank=rank,
                world_size=world_size,
            )
            strided = list(loader.batch_sampler)
            loader._take_turns()
            assert list(loader.batch_sampler) == expected
            assert (len(loader), len(loader.sampler)) == (len(expected), 4 * len(expected))
            states = [loader.state_dict()]
            served = []
            for *_, ids in loader:
                served.append(ids.tolist())
                states.append(loader.state_dict())
            assert served == expected
            assert len(strided) == len(expected), "a step has the same samples, however they are dealt out"
            for step, state in enumerate(states[: len(expected)]):
                assert state["consumed"] == step * 4 * world_size
                loader.load_state_dict(state)
                assert ids_of(loader) == expected[step:]
            loader.close()


def test_ranks_that_take_turns_go_on_from_any_number_of_them(accelerator: Any) -> None:
    def make(rank: int, world_size: int, *, turns: bool = True) -> Loader:
        loader = Loader(torch.arange(41), 4, rank=rank, world_size=world_size)
        if turns:
            loader._take_turns()
        return loader

    for world_size, turns in ((2, True), (3, True), (3, False), (1, True)):
        first = make(0, world_size, turns=turns)
        next(iter(first))
        state = first.state_dict()
        ranks = [make(rank, 3) for rank in range(3)]
        for rank in ranks:
            rank.load_state_dict(state)
        steps = [torch.cat(step).tolist() for step in zip(*ranks, strict=True)]
        rest = [index for step in steps for index in step]
        assert rest[: 41 - 4 * world_size] == list(range(4 * world_size, 41))


def test_random_numbers_of_ranks_that_take_turns_do_not_depend_on_workers() -> None:
    class Random(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(2)

    def batches(workers: int, rank: int) -> list[torch.Tensor]:
        loader = Loader(Random(), 4, num_workers=workers, rank=rank, world_size=3)
        loader._take_turns()
        return list(loader)

    alone = torch.cat(list(Loader(Random(), 4)))
    for rank in range(3):
        inline, in_worker = batches(0, rank), batches(1, rank)
        assert all(torch.equal(a, b) for a, b in zip(inline, in_worker, strict=True))
        own = alone[rank * 4 : rank * 4 + 4]
        assert torch.equal(inline[0][: len(own)], own), "a sample's are those it has on one rank"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_come_on_the_accelerators_device(augmented: sutler.ImageFolder) -> None:
    accelerator = accelerate.Accelerator()
    prepared = prepare(accelerator, loader_of(augmented))
    assert prepared.loader.device == accelerator.device
    for (images, _, ids), (expected, _, same) in zip(prepared, loader_of(augmented), strict=True):
        assert images.device == ids.device
        assert images.device.type == accelerator.device.type
        assert torch.equal(images.cpu(), expected)
        assert torch.equal(ids.cpu(), same)
