"""A loop with Accelerate, saved in the middle of an epoch: run it with `python` or `accelerate launch`."""

import sutler
import sutler.testing
import torch
from accelerate import Accelerator
from sutler import transforms as T  # noqa: N812 - the usual name
from sutler.integrations.accelerate import prepare

CLASSES = 4


def main() -> None:
    """Trains for three epochs, then goes on once more from the middle of the second."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    if accelerator.is_main_process:
        sutler.testing.make_photos("accelerate-photos", count=64, classes=CLASSES, longer_side=64)
    accelerator.wait_for_everyone()

    transform = T.Compose(
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    photos = sutler.ImageFolder("accelerate-photos", transform=transform)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, CLASSES),
    )
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    train = prepare(accelerator, sutler.Loader(photos, batch_size=8, shuffle=True, seed=1))

    def run_epoch(save_at: int | None = None) -> int:
        steps = 0
        for images, labels in train:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
            if steps == save_at:
                accelerator.save_state("accelerate-checkpoint")
        return steps

    accelerator.print(f"epochs of {run_epoch()}, {run_epoch(save_at=2)} and {run_epoch()} steps")
    accelerator.load_state("accelerate-checkpoint")
    accelerator.print(f"once more from step 2 of the second epoch: {run_epoch()} steps")


if __name__ == "__main__":
    main()
