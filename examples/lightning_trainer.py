"""Lightning's Trainer takes the loader as it is, and keeps its place in every checkpoint."""

from pathlib import Path

import sutler
import sutler.testing
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sutler import transforms as T  # noqa: N812 - the usual name

CLASSES = 4


class Classifier(LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, CLASSES),
        )
        self.steps_here = 0

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        self.steps_here += 1
        return torch.nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """The accuracy on a batch."""
        images, labels = batch
        self.log("accuracy", (self.layers(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(checkpoint: Path | None = None) -> Classifier:
    """Trains for three epochs of eight steps, from a checkpoint if there is one."""
    transform = T.Compose(
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    train = sutler.Loader(
        sutler.ImageFolder("lightning-photos", transform=transform), batch_size=8, shuffle=True, seed=1
    )
    plain = T.Compose([T.Resize([16, 16]), T.ToDtype("float32", scale=True)])
    validation = sutler.Loader(sutler.ImageFolder("lightning-photos", transform=plain), batch_size=8)
    model = Classifier()
    trainer = Trainer(
        max_epochs=3,
        callbacks=[ModelCheckpoint("lightning-checkpoints", "{step}", every_n_train_steps=11, save_top_k=-1)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train, validation, ckpt_path=checkpoint)
    print(f"trained {model.steps_here} steps here, accuracy {trainer.callback_metrics['accuracy']:.2f}")
    return model


if __name__ == "__main__":
    sutler.testing.make_photos("lightning-photos", count=64, classes=CLASSES, longer_side=64)
    whole = fit()
    resumed = fit(checkpoint=Path("lightning-checkpoints/step=11.ckpt"))
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"resumed from step 11: the same weights as without a stop: {same}")
