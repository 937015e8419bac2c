"""PyTorch Lightning's Trainer takes a Loader as it is: epochs, checkpoints in the middle of them, and its options."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler
import torch
from sutler import Loader

from .samplers import Remembering

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402 - only where there is Lightning
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402

#: 41 photos in batches of 8.
BATCHES = 6


class Classifier(lightning.LightningModule):  # type: ignore[name-defined]
    """Learns a little, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.trained: list[list[int]] = []
        self.pixels: list[int] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels, ids = batch
        self.trained.append(ids.tolist())
        self.pixels.append(int(images.sum()))
        return torch.nn.functional.cross_entropy(self.layer(images.float().mean((2, 3)) / 255), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(batch[2].tolist())

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch[2].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer_of(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
        **{"max_epochs": 2, **arguments},
    )


def loader_of(dataset: Any, *, shuffle: bool = True, **arguments: Any) -> Loader:
    return Loader(dataset, 8, shuffle, num_workers=1, return_ids=True, seed=3, **arguments)


def epochs_of(dataset: Any, count: int, batches: int = BATCHES) -> list[list[int]]:
    """What a loop without Lightning gets."""
    loader = loader_of(dataset)
    return [ids.tolist() for _ in range(count) for _, _, ids in list(loader)[:batches]]


def test_each_epoch_is_the_one_a_plain_loop_gets(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    model = Classifier()
    trainer_of(tmp_path, max_epochs=3).fit(model, loader_of(augmented))
    assert model.trained == epochs_of(augmented, 3)
    assert model.trained[:BATCHES] != model.trained[BATCHES : 2 * BATCHES]


def test_validation_and_its_sanity_check_see_the_validation_set(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    model = Classifier()
    validation = loader_of(augmented, shuffle=False)
    trainer = trainer_of(tmp_path, num_sanity_val_steps=2)
    trainer.fit(model, loader_of(augmented), validation)
    whole = [list(range(start, min(start + 8, 41))) for start in range(0, 41, 8)]
    assert model.validated == whole[:2] + whole + whole
    assert model.trained == epochs_of(augmented, 2)
    model.validated.clear()
    trainer.validate(model, validation, verbose=False)
    assert model.validated == whole
    assert trainer.predict(model, validation) == whole


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "shuffle": lambda _: {},
    "distributed": lambda dataset: {
        "shuffle": False,
        "sampler": torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0),
    },
    # Nobody can tell it the epoch.
    "weighted": lambda dataset: {
        "shuffle": False,
        "sampler": torch.utils.data.WeightedRandomSampler(
            [1.0] * len(dataset), len(dataset), generator=torch.Generator().manual_seed(3)
        ),
    },
    "with a state": lambda dataset: {"shuffle": False, "sampler": Remembering(dataset)},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("at_step", [1, 4, BATCHES, BATCHES + 2, 2 * BATCHES])
def test_a_checkpoint_in_an_epoch_goes_on_with_its_exact_rest(
    augmented: sutler.ImageFolder, tmp_path: Path, at_step: int, sampler: str
) -> None:
    def train(model: Classifier, *callbacks: Any, checkpoint: str | None = None) -> Loader:
        loader = loader_of(augmented, **SAMPLERS[sampler](augmented))
        trainer_of(tmp_path, *callbacks, max_epochs=3).fit(model, loader, ckpt_path=checkpoint)
        return loader

    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=at_step, save_top_k=-1)
    whole = Classifier()
    train(whole, saving)
    resumed = Classifier()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not resumable.*")
        train(resumed, checkpoint=str(tmp_path / f"step={at_step}.ckpt"))
    assert resumed.trained == whole.trained[at_step:]
    assert resumed.pixels == whole.pixels[at_step:]
    torch.testing.assert_close(resumed.layer.weight, whole.layer.weight, rtol=0, atol=0)


def test_looking_for_the_end_keeps_what_a_sampler_raises_for_its_batch() -> None:
    def sampler() -> Iterator[int]:
        yield 5
        raise KeyError("no more")

    loader = Loader(list(range(9)), sampler=sampler(), num_workers=0)
    # Lightning's state after the last batch is of the next epoch. Which batch is the last only drawing tells.
    combined = CombinedLoader(loader)
    batches = iter(combined)
    next(batches)
    (state,) = combined._state_dicts()
    assert (state["epoch"], state["consumed"]) == (0, 1)
    with pytest.raises(KeyError, match="no more"):
        next(batches)


def test_a_checkpoint_at_the_end_of_a_shortened_epoch_goes_on_with_the_next(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    saving = ModelCheckpoint(tmp_path, "{epoch}", every_n_epochs=1, save_top_k=-1)
    whole = Classifier()
    trainer_of(tmp_path, saving, max_epochs=3, limit_train_batches=2).fit(whole, loader_of(augmented))
    assert whole.trained == epochs_of(augmented, 3, batches=2)
    resumed = Classifier()
    trainer_of(tmp_path, max_epochs=3, limit_train_batches=2).fit(
        resumed, loader_of(augmented), ckpt_path=str(tmp_path / "epoch=0.ckpt")
    )
    assert resumed.trained == whole.trained[2:]


def test_a_loader_from_a_hook_that_is_made_anew_gets_its_epoch(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    made = []

    class Hooked(Classifier):
        def train_dataloader(self) -> Loader:
            made.append(loader_of(augmented))
            return made[-1]

    model = Hooked()
    trainer_of(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(model)
    assert len(made) == 3
    assert model.trained == epochs_of(augmented, 3)


def test_overfitting_takes_the_same_batches_and_does_not_replace_the_loader(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    model = Classifier()
    loader = loader_of(augmented, shuffle=False)
    trainer = trainer_of(tmp_path, overfit_batches=2)
    trainer.fit(model, loader)
    assert trainer.train_dataloader is loader
    assert model.trained == [list(range(8)), list(range(8, 16))] * 2
    # Lightning would make a new DataLoader to turn the shuffling off, and says that it cannot.
    with pytest.raises(ValueError, match="DataLoader"):
        trainer_of(tmp_path, overfit_batches=2).fit(Classifier(), loader_of(augmented))


def test_nothing_is_warned_of_but_a_validation_set_that_is_shuffled(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    def fit(validation: Loader) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer_of(tmp_path, max_epochs=1).fit(Classifier(), loader_of(augmented), validation)
        return [str(each.message) for each in caught if "loader" in str(each.message)]

    assert fit(loader_of(augmented, shuffle=False)) == []
    (warning,) = fit(loader_of(augmented))
    assert "shuffling enabled" in warning


def test_datasets_in_python_resume_too(tmp_path: Path) -> None:
    class Points(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 41

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.rand(3, 4, 4), index % 4

    def fit(*callbacks: Any, checkpoint: Path | None = None) -> Classifier:
        model = Classifier()
        trainer_of(tmp_path, *callbacks).fit(model, loader_of(Points()), ckpt_path=checkpoint)
        return model

    whole = fit(ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1))
    resumed = fit(checkpoint=tmp_path / "step=4.ckpt")
    assert resumed.trained == whole.trained[4:]
    assert resumed.pixels == whole.pixels[4:]


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Samples without an index; how many is known or not."""

    def __iter__(self) -> Any:
        return ((torch.ones(3, 4, 4), index % 4, index) for index in range(41))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 41


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stream", [SizedStream, Stream])
def test_a_stream_resumes_exactly_also_where_lightning_looks_a_batch_ahead(
    tmp_path: Path, stream: type[Stream], workers: int
) -> None:
    def fit(*callbacks: Any, checkpoint: Path | None = None) -> Classifier:
        model = Classifier()
        with warnings.catch_warnings(), Loader(stream(), 8, num_workers=workers) as loader:
            warnings.simplefilter("ignore")  # each worker goes through all of it
            trainer_of(tmp_path, *callbacks, max_epochs=2).fit(model, loader, ckpt_path=checkpoint)
        return model

    whole = fit(ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    steps = len(whole.trained)
    assert steps == 2 * BATCHES * (max(1, workers) if stream is Stream else 1)
    for step in (1, 2, steps // 2 - 1, steps // 2, steps // 2 + 1, steps - 1):
        resumed = fit(checkpoint=tmp_path / f"step={step}.ckpt")
        assert resumed.trained == whole.trained[step:], step


class StreamInPasses(SizedStream):
    """Keeps its pass and its position in itself; each worker reads its part."""

    def __init__(self) -> None:
        self.done = 0
        self.position = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int, int]]:
        info = torch.utils.data.get_worker_info()
        part = range(info.id, 41, info.num_workers) if info else range(41)
        while self.position < len(part):
            self.position += 1
            yield torch.ones(3, 4, 4), 0, 100 * self.done + part[self.position - 1]
        self.done += 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self.position = state["done"], state["position"]


def test_lightning_takes_nothing_from_a_stream_that_it_only_looks_at(tmp_path: Path) -> None:
    def trained(loader: Any) -> list[list[int]]:
        model = Classifier()
        trainer_of(tmp_path, max_epochs=1).fit(model, loader)
        return model.trained

    options: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "persistent_workers": True}
    expected = trained(torch.utils.data.DataLoader(StreamInPasses(), **options))
    assert sorted(number for batch in expected for number in batch) == list(range(41))
    with Loader(StreamInPasses(), **options) as loader:
        assert trained(loader) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_with_the_last_batch_knows_where_a_stream_was(tmp_path: Path, workers: int) -> None:
    def fit(*callbacks: Any, checkpoint: Path | None = None) -> Classifier:
        model = Classifier()
        with Loader(StreamInPasses(), 8, num_workers=workers, persistent_workers=workers > 0) as loader:
            trainer_of(tmp_path, *callbacks).fit(model, loader, ckpt_path=checkpoint)
        return model

    at_the_end = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=BATCHES, save_top_k=-1)
    whole = fit(at_the_end)
    resumed = fit(checkpoint=tmp_path / f"step={BATCHES}.ckpt")
    assert resumed.trained == whole.trained[BATCHES:]
    assert min(number for batch in resumed.trained for number in batch) == 100


def test_fabric_refuses_to_set_up_what_is_no_dataloader(augmented: sutler.ImageFolder) -> None:
    from lightning.fabric import Fabric

    with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
        Fabric(accelerator="cpu").setup_dataloaders(loader_of(augmented))


def test_several_loaders_are_checkpointed_each(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    class Both(Classifier):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.trained.append(batch["other"][2].tolist())
            return super().training_step(batch["one"], index)

    def loaders() -> dict[str, Loader]:
        other = Loader(augmented, 8, True, num_workers=1, return_ids=True, seed=9)
        return {"one": loader_of(augmented), "other": other}

    whole, resumed = Both(), Both()
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)
    trainer_of(tmp_path, saving).fit(whole, loaders())
    trainer_of(tmp_path).fit(resumed, loaders(), ckpt_path=str(tmp_path / "step=4.ckpt"))
    assert resumed.trained == whole.trained[8:]


class Pair(lightning.LightningModule):  # type: ignore[name-defined]
    """Keeps what it was given by two loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[tuple[int, list[int], list[int]]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.trained.append((self.current_epoch, batch["short"].tolist(), batch["long"].tolist()))
        return torch.as_tensor(self.layer(torch.ones(1)).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


#: As many as a shorter loader has.
NUMBERS: Any = range(22)


def drawn_by_a_generator() -> torch.utils.data.RandomSampler:
    return torch.utils.data.RandomSampler(NUMBERS, generator=torch.Generator().manual_seed(3))


SHORT: dict[str, Callable[[], Loader]] = {
    "shuffle": lambda: Loader(NUMBERS, 4, True, seed=1),
    "workers": lambda: Loader(NUMBERS, 4, True, seed=1, num_workers=1),
    "several times": lambda: Loader(NUMBERS, 8, True, seed=1),
    "sequential": lambda: Loader(NUMBERS, 4),
    "sampler": lambda: Loader(NUMBERS, 4, sampler=drawn_by_a_generator()),
    "told sampler": lambda: Loader(
        NUMBERS, 4, sampler=torch.utils.data.DistributedSampler(NUMBERS, num_replicas=1, rank=0)
    ),
    "batch sampler": lambda: Loader(
        NUMBERS, batch_sampler=torch.utils.data.BatchSampler(drawn_by_a_generator(), 4, False)
    ),
}


@pytest.mark.parametrize(
    ("short", "limit"), [*((short, 1.0) for short in SHORT), ("shuffle", 7), ("sampler", 7)]
)
def test_a_shorter_loader_of_two_goes_on_with_its_exact_rest_from_every_step(
    tmp_path: Path, short: str, limit: float
) -> None:
    def fit(*callbacks: Any, checkpoint: Path | None = None) -> list[tuple[int, list[int], list[int]]]:
        model = Pair()
        loaders = {"short": SHORT[short](), "long": Loader(range(100, 122), 3, True, seed=2)}
        trainer = trainer_of(tmp_path, *callbacks, limit_train_batches=limit)
        trainer.fit(model, loaders, ckpt_path=checkpoint)
        return model.trained

    whole = fit(ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    steps = len(whole) // 2
    assert steps == (8 if limit == 1.0 else 7)
    for step in range(1, 2 * steps):
        resumed = fit(
            ModelCheckpoint(tmp_path / f"from {step}", "{step}", every_n_train_steps=1, save_top_k=-1),
            checkpoint=tmp_path / f"step={step}.ckpt",
        )
        assert resumed == whole[step:], step
        # Lightning loses its own count in a run that was resumed between two epochs, with one loader, too.
        if step % steps and step + 1 < 2 * steps:
            again = fit(checkpoint=tmp_path / f"from {step}" / f"step={step + 1}.ckpt")
            assert again == whole[step + 1 :], step


def test_a_state_from_the_beginning_of_an_epoch_begins_the_shorter_loader_anew() -> None:
    def combined() -> tuple[Loader, Any]:
        short = SHORT["shuffle"]()
        return short, CombinedLoader([short, Loader(range(100, 122), 3, True, seed=2)], "max_size_cycle")

    short, loaders = combined()
    short.sampler.set_epoch(0)
    assert len(list(loaders)) == 8
    short.sampler.set_epoch(1)  # which is the one that it is in the middle of
    states = loaders._state_dicts()
    expected = [batch[0].tolist() for batch, _, _ in loaders]
    resumed, others = combined()
    others._load_state_dicts(states)
    resumed.sampler.set_epoch(1)
    assert [batch[0].tolist() for batch, _, _ in others] == expected


def test_a_state_that_lightning_saved_gives_way_to_another_epoch() -> None:
    short = SHORT["shuffle"]()
    loaders = CombinedLoader([short, Loader(range(100, 122), 3, True, seed=2)], "max_size_cycle")
    short.sampler.set_epoch(0)
    batches = iter(loaders)
    for _ in range(7):
        next(batches)
    state = loaders._state_dicts()[0]
    assert (state["epoch"], state["consumed"], state["within"]) == (1, 4, 0)
    reference = SHORT["shuffle"]()
    whole = [[batch.tolist() for batch in reference] for _ in range(4)]
    for chosen, expected in ((None, whole[1][1:]), (0, whole[1][1:]), (1, whole[1]), (3, whole[3])):
        resumed = SHORT["shuffle"]()
        resumed.load_state_dict(state)
        if chosen is not None:
            resumed.set_epoch(chosen)
        assert [batch.tolist() for batch in pickle.loads(pickle.dumps(resumed))] == expected, chosen
        assert [batch.tolist() for batch in resumed] == expected, chosen


def test_a_sampler_begins_anew_after_a_shortened_epoch_in_a_resumed_run_too(tmp_path: Path) -> None:
    class Numbers(Pair):
        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.trained.append((self.current_epoch, batch.tolist(), []))
            return torch.as_tensor(self.layer(torch.ones(1)).sum())

    def fit(*callbacks: Any, checkpoint: Path | None = None) -> list[tuple[int, list[int], list[int]]]:
        model = Numbers()
        trainer_of(tmp_path, *callbacks, limit_train_batches=2).fit(
            model, SHORT["sampler"](), ckpt_path=checkpoint
        )
        return model.trained

    whole = fit(ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    assert fit(checkpoint=tmp_path / "step=2.ckpt") == whole[2:]
