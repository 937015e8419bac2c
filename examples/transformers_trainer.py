"""Transformers' Trainer with its data from Sutler, resumed in the middle of an epoch."""

import sutler
import sutler.testing
import torch
import transformers
from sutler import transforms as T  # noqa: N812 - the usual name
from sutler.integrations.transformers import TrainerMixin

CLASSES = 4


class Trainer(TrainerMixin, transformers.Trainer):
    """The trainer as it is, but for where its batches come from."""


def make_trainer(**arguments: object) -> Trainer:
    """A trainer of a tiny residual network."""
    transform = T.Compose(
        [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize([0.5] * 3, [0.5] * 3)]
    )
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=CLASSES
        )
    )
    settings = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": 5,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        **arguments,
    }
    return Trainer(
        model=model,
        args=transformers.TrainingArguments("transformers-checkpoints", **settings),
        train_dataset=sutler.ImageFolder("transformers-photos", transform=transform),
    )


if __name__ == "__main__":
    sutler.testing.make_photos("transformers-photos", count=64, classes=CLASSES, longer_side=64)
    whole = make_trainer()
    print(f"trained {whole.train().global_step} steps")
    resumed = make_trainer()
    resumed.train(resume_from_checkpoint="transformers-checkpoints/checkpoint-5")
    weights = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in weights)
    print(f"resumed from step 5: the same weights as without a stop: {same}")
