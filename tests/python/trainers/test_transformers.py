"""Transformers' Trainer: its own arguments decide the loader, and a checkpoint goes on exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from sutler import Loader

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from sutler.integrations.transformers import TrainerMixin  # noqa: E402 - only where there are Transformers

#: 41 photos in batches of 8.
BATCHES = 6


class Classifier(torch.nn.Module):
    """Learns a little from the colours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        #: Draws from the generator that seeds of workers are drawn from, too.
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.dropout(self.layer(pixel_values.float().mean((2, 3)) / 255))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Trainer(TrainerMixin, transformers.Trainer):  # type: ignore[name-defined]
    """Keeps a sum of each batch that it trains with."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.trained: list[tuple[int, int]] = []

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any) -> torch.Tensor:
        self.trained.append((len(inputs["labels"]), int(inputs["pixel_values"].double().sum() * 4096)))
        return super().training_step(model, inputs, *more)  # type: ignore[no-any-return]


def trainer_of(folder: Path, train: Any, evaluation: Any = None, **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    settings = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 3,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 5,
        **arguments,
    }
    return Trainer(
        model=Classifier(),
        args=transformers.TrainingArguments(str(folder), **settings),
        train_dataset=train,
        eval_dataset=evaluation,
    )


def test_each_epoch_is_the_one_a_plain_loop_gets(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, augmented)
    trainer.train()
    plain = Loader(augmented, 8, True, seed=5)
    assert trainer.trained == [
        (len(labels), int(images.double().sum() * 4096)) for _ in range(3) for images, labels in plain
    ]


@pytest.mark.parametrize("accumulated", [1, 4])
@pytest.mark.parametrize("at_step", [1, 2, 4])
def test_a_checkpoint_goes_on_with_the_exact_rest(
    augmented: sutler.ImageFolder, tmp_path: Path, at_step: int, accumulated: int
) -> None:
    arguments = {"gradient_accumulation_steps": accumulated}
    whole = trainer_of(tmp_path, augmented, save_strategy="steps", save_steps=at_step, **arguments)
    whole.train()
    resumed = trainer_of(tmp_path, augmented, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at_step}"))
    steps_per_epoch = -(-BATCHES // accumulated)
    epochs, steps = divmod(at_step, steps_per_epoch)
    assert resumed.trained == whole.trained[epochs * BATCHES + steps * accumulated :]
    torch.testing.assert_close(resumed.model.layer.weight, whole.model.layer.weight, rtol=0, atol=0)
    assert resumed.state.epoch == whole.state.epoch == 3


def test_what_is_skipped_on_resume_is_not_prepared(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    trainer_of(tmp_path, augmented, save_strategy="steps", save_steps=4, num_train_epochs=1).train()
    resumed = trainer_of(tmp_path, augmented, num_train_epochs=1)
    prepared = resumed.get_train_dataloader()
    resumed.get_train_dataloader = lambda: prepared  # type: ignore[method-assign]
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert prepared.loader.stats()["samples"] == 41 - 4 * 8


def test_evaluation_and_prediction_see_each_sample_once(
    augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    labels = np.array([augmented[index][1] for index in range(41)])
    trainer = trainer_of(tmp_path, augmented, augmented)
    trainer.compute_metrics = lambda answer: {"same": bool((answer.label_ids == labels).all())}
    assert trainer.evaluate()["eval_same"] is True
    assert trainer.predict(augmented).predictions.shape == (41, 4)


class Levels(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Grey pictures, each a little lighter than the one before."""

    def __len__(self) -> int:
        return 41

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.full((3, 4, 4), 6 * index, dtype=torch.uint8), "labels": index % 4}


@pytest.mark.parametrize("drop_last", [False, True])
def test_evaluation_and_prediction_have_the_plain_trainers_loss(tmp_path: Path, drop_last: bool) -> None:
    ours = trainer_of(tmp_path, None, Levels(), dataloader_drop_last=drop_last)
    plain = transformers.Trainer(model=ours.model, args=ours.args, eval_dataset=Levels())
    answers, expected = ours.predict(Levels()), plain.predict(Levels())
    assert (answers.predictions == expected.predictions).all()
    assert answers.metrics["test_loss"] == expected.metrics["test_loss"]
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"] == expected.metrics["test_loss"]
    served = torch.from_numpy(answers.predictions)
    true = torch.nn.functional.cross_entropy(served, torch.arange(len(served)) % 4)
    assert answers.metrics["test_loss"] == pytest.approx(true.item(), rel=1e-5)


def test_the_training_arguments_decide_the_loader(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path,
        augmented,
        data_seed=7,
        dataloader_drop_last=True,
        dataloader_num_workers=2,
        dataloader_prefetch_factor=3,
    )
    loader = trainer.get_train_dataloader().loader
    assert (loader.batch_size, loader.shuffle, loader.seed, loader.drop_last) == (8, True, 7, True)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.collate_fn is None, "native batches need no copy"
    assert not trainer.get_eval_dataloader(augmented).loader.shuffle
    ordered = trainer_of(tmp_path, augmented, train_sampling_strategy="sequential").get_train_dataloader()
    assert not ordered.loader.shuffle
    for get in ("get_train_dataloader", "get_eval_dataloader"):
        with pytest.raises(ValueError, match="dataset"):
            getattr(trainer_of(tmp_path, None), get)()


class Points(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset in Python, with random numbers and a column that the model does not take."""

    def __len__(self) -> int:
        return 41

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.rand(3, 4, 4), "label": index % 4, "name": f"point {index}"}


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_in_python_keep_their_collator_and_resume_too(tmp_path: Path, workers: int) -> None:
    arguments = {"dataloader_num_workers": workers, "num_train_epochs": 3}
    whole = trainer_of(tmp_path, Points(), save_strategy="steps", save_steps=4, **arguments)
    whole.train()
    resumed = trainer_of(tmp_path, Points(), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert len(whole.trained) == 3 * BATCHES
    assert resumed.trained == whole.trained[4:]
    torch.testing.assert_close(resumed.model.layer.weight, whole.model.layer.weight, rtol=0, atol=0)


def numbers_of(trained: list[tuple[int, int]]) -> list[int]:
    """Which levels each batch held, as the sum of their numbers."""
    return [total // (4096 * 6 * 48) for _, total in trained]


class Light(Trainer):
    """Draws the lighter half of the levels only, as a program for classes of unequal size would."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        weights = [0.0] * 21 + [1.0] * 20
        return torch.utils.data.WeightedRandomSampler(weights, 16, generator=torch.Generator().manual_seed(3))


class LightWithoutArgument(Light):
    """As for releases of Transformers that did not tell the method the dataset."""

    def _get_train_sampler(self) -> Any:  # type: ignore[override]
        return super()._get_train_sampler()

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return range(0, 41, 2)


class AsDrawnBefore(Trainer):
    """Overrides the method without changing anything."""

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return super()._get_train_sampler(*arguments)


class Unsaid(Trainer):
    """Leaves the order to the loader, for which the plain trainer has the dataset's own."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return None


def own_trainer(kind: type[Trainer], folder: Path, **arguments: Any) -> Trainer:
    made = trainer_of(folder, Levels(), Levels(), **arguments)
    return kind(model=made.model, args=made.args, train_dataset=Levels(), eval_dataset=Levels())


@pytest.mark.parametrize("kind", [Light, LightWithoutArgument])
def test_a_sampler_of_the_users_class_decides_what_is_trained_with(
    kind: type[Trainer], tmp_path: Path
) -> None:
    arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 4}
    whole = own_trainer(kind, tmp_path, save_strategy="steps", save_steps=2, **arguments)
    whole.train()
    drawn = list(Light._get_train_sampler(whole))
    assert numbers_of(whole.trained) == [sum(drawn[at : at + 4]) for at in range(0, 16, 4)]
    assert min(drawn) >= 21
    resumed = own_trainer(kind, tmp_path, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.trained == whole.trained[2:]


def test_a_sampler_of_the_users_class_decides_what_is_evaluated(tmp_path: Path) -> None:
    trainer = own_trainer(LightWithoutArgument, tmp_path)
    assert (trainer.predict(Levels()).label_ids == [index % 4 for index in range(0, 41, 2)]).all()


def test_a_method_that_only_passes_on_what_the_trainer_says_changes_nothing(tmp_path: Path) -> None:
    asked = own_trainer(AsDrawnBefore, tmp_path).get_train_dataloader().loader
    assert asked.shuffle, "a resume in the shuffled order is exact, which that of a sampler need not be"
    assert not own_trainer(Unsaid, tmp_path).get_train_dataloader().loader.shuffle


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sentences of different lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)
        return {"input_ids": [0] * (1 + index % 10), "labels": 0}


@pytest.mark.parametrize(
    ("strategy", "drawn_by"),
    [("group_by_length", "LengthGroupedSampler"), ("batch_rebalance", "BatchRebalanceSampler")],
)
def test_the_trainers_other_orders_are_its_own(tmp_path: Path, strategy: str, drawn_by: str) -> None:
    def lengths(rows: list[dict[str, Any]]) -> list[int]:
        return [len(row["input_ids"]) for row in rows]

    args = trainer_of(tmp_path, None, train_sampling_strategy=strategy, remove_unused_columns=False).args
    trainer = Trainer(model=Classifier(), args=args, train_dataset=Sentences(), data_collator=lengths)
    prepared = trainer.get_train_dataloader()
    samplers = {type(prepared.loader.sampler).__name__, type(prepared.loader.batch_sampler).__name__}
    assert drawn_by in samplers
    batches = list(prepared)
    assert Counter(length for batch in batches for length in batch) == dict.fromkeys(range(1, 11), 4)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """The levels, one after the other."""

    def __iter__(self) -> Any:
        return (Levels()[index] for index in range(41))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_trained_with_evaluated_and_resumed(tmp_path: Path, workers: int) -> None:
    arguments = {"max_steps": 9, "num_train_epochs": 1, "dataloader_num_workers": workers}
    whole = trainer_of(tmp_path, Stream(), Stream(), save_strategy="steps", save_steps=4, **arguments)
    whole.train()
    epoch = [sum(range(at, min(at + 8, 41))) for at in range(0, 41, 8)]
    assert numbers_of(whole.trained) == [*epoch, *epoch[:3]]
    assert (whole.predict(Stream()).label_ids == np.arange(41) % 4).all()
    resumed = trainer_of(tmp_path, Stream(), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.trained == whole.trained[4:]
