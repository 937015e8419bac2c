"""DistributedDataParallel: `torchrun --nproc-per-node 2 examples/torch_ddp.py`. The loader finds its rank by itself."""

import sutler
import sutler.testing
import torch
import torch.distributed
from sutler import transforms as T  # noqa: N812 - the usual name
from torch.nn.parallel import DistributedDataParallel

CLASSES = 4


def report(line: str) -> None:
    """Prints a line once, not on every rank."""
    if torch.distributed.get_rank() == 0:
        print(line)


def main() -> None:
    """Trains for two epochs, saves in the middle of the third, and goes on from there."""
    torch.distributed.init_process_group("gloo")
    if torch.distributed.get_rank() == 0:
        sutler.testing.make_photos("ddp-photos", count=61, classes=CLASSES, longer_side=64)
    torch.distributed.barrier()

    transform = T.Compose(
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    photos = sutler.ImageFolder("ddp-photos", transform=transform)
    loader = sutler.Loader(photos, batch_size=8, shuffle=True, seed=1)

    model = DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, CLASSES),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train_step(images: torch.Tensor, labels: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    for epoch in range(2):
        losses = [train_step(images, labels) for images, labels in loader]
        report(
            f"epoch {epoch}: {len(losses)} steps on each of {loader.world_size} ranks, loss {losses[-1]:.3f}"
        )

    batches = iter(loader)
    train_step(*next(batches))
    if loader.rank == 0:  # all ranks stand at the same step, so one state is enough for all
        torch.save({"model": model.module.state_dict(), "loader": loader.state_dict()}, "ddp-checkpoint.pt")
    torch.distributed.barrier()

    saved = torch.load("ddp-checkpoint.pt")
    model.module.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
    losses = [train_step(images, labels) for images, labels in loader]
    report(f"epoch 2: the remaining {len(losses)} steps, loss {losses[-1]:.3f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
