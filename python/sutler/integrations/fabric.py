"""Lightning Fabric: loaders that go where a ``Fabric`` trains.

``fabric.setup_dataloaders`` takes PyTorch's class only, since what it does is rebuild a ``DataLoader`` with a sampler
for the ranks, and set the sampler's epoch. A :class:`sutler.Loader` does both by itself in its own order. What is left
is to divide a sampler of the user's, and to have the batches on the right device; :func:`setup_dataloaders` sees to
that.
"""

from __future__ import annotations

from typing import Any

import torch

from sutler.loader import Loader

__all__ = ["setup_dataloaders"]


def setup_dataloaders(
    fabric: Any, *loaders: Loader, use_distributed_sampler: bool = True, move_to_device: bool = True
) -> Loader | list[Loader]:
    """Sets loaders up for a fabric, as ``fabric.setup_dataloaders`` does with a ``DataLoader``.

    The loaders come back as they are, with batches on the fabric's device, copied ahead of the trainer. ``fabric.save``
    and ``fabric.load`` take them as part of a state, and keep their place.

    Args:
        fabric: The ``lightning.fabric.Fabric``, launched where it has several processes.
        loaders: The loaders. Leave their ``rank`` and ``world_size`` out; they are the fabric's.
        use_distributed_sampler: Have the ranks take whole batches in turn of what a sampler or batch sampler draws,
            which must be the same on all of them. One that divides by itself is left alone, as is a stream.
        move_to_device: ``False`` leaves batches in the memory of the host, for ``fabric.to_device``.

    Returns:
        The loader, or a list of them where several were passed.

    Raises:
        ValueError: A loader was given another number of ranks than the fabric has.

    Examples:
        >>> import lightning.fabric, sutler, sutler.testing, tempfile
        >>> from sutler.integrations.fabric import setup_dataloaders
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=10, classes=2)
        >>> fabric = lightning.fabric.Fabric(accelerator="cpu", devices=1)
        >>> photos = sutler.ImageFolder(folder, transform=sutler.transforms.RandomResizedCrop(32))
        >>> train = setup_dataloaders(fabric, sutler.Loader(photos, batch_size=4, shuffle=True))
        >>> [len(labels) for images, labels in train]
        [4, 4, 2]
    """
    if not loaders:
        raise ValueError("setup_dataloaders needs at least one loader")
    for loader in loaders:
        _check(fabric, loader)
    device = torch.device(fabric.device)
    for loader in loaders:
        loader._shares_settled = True
        if use_distributed_sampler:
            loader._divide_sampler()
        if move_to_device and device.type != "cpu" and loader.device is None:
            loader.device = device
    return loaders[0] if len(loaders) == 1 else list(loaders)


def _check(fabric: Any, loader: Loader) -> None:
    if not isinstance(loader, Loader):
        raise TypeError(
            f"this sets up sutler.Loader objects, got a {type(loader).__name__}; a DataLoader goes to "
            "fabric.setup_dataloaders"
        )
    if loader.world_size != fabric.world_size:
        raise ValueError(
            f"the loader deals its samples out to {loader.world_size} ranks, the fabric has {fabric.world_size}. Call "
            "fabric.launch() first, and leave rank and world_size out, or pass fabric.global_rank and "
            "fabric.world_size."
        )
    if loader.output != "torch" and torch.device(fabric.device).type != "cpu":
        raise ValueError(
            f"the loader has output={loader.output!r}, which stays in the memory of the host, and the fabric trains on "
            f"{fabric.device}; leave output out, or set the loader's batches up yourself"
        )
