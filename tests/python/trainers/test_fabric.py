"""Lightning Fabric: loaders that are set up go to its device, and are part of its checkpoints."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import sutler
import torch
from sutler import Loader

lightning_fabric = pytest.importorskip("lightning.fabric", reason="lightning is not installed")

from sutler.integrations.fabric import setup_dataloaders  # noqa: E402 - only where there is Lightning


def loader_of(dataset: Any, **arguments: Any) -> Loader:
    return Loader(
        dataset, 8, **{"shuffle": True, "num_workers": 1, "return_ids": True, "seed": 3, **arguments}
    )


def ids_of(batches: Any) -> list[list[int]]:
    return [ids.tolist() for *_, ids in batches]


@pytest.fixture
def fabric() -> Any:
    return lightning_fabric.Fabric(accelerator="cpu", devices=1)


def test_fabric_itself_takes_no_loader(fabric: Any, augmented: sutler.ImageFolder) -> None:
    # Should this ever pass, the helper and what the guide says of it can go.
    with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
        fabric.setup_dataloaders(loader_of(augmented))


def test_a_fabric_trains_on_a_loader_and_goes_on_in_the_middle_of_an_epoch(
    fabric: Any, augmented: sutler.ImageFolder, tmp_path: Path
) -> None:
    def start() -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = fabric.setup(model, optimizer)
        return model, optimizer, setup_dataloaders(fabric, loader_of(augmented))

    def train(model: Any, optimizer: Any, batches: Any) -> list[list[int]]:
        trained = []
        for images, labels, ids in batches:
            optimizer.zero_grad()
            values = images.float().mean((2, 3)) / 255
            fabric.backward(torch.nn.functional.cross_entropy(model(values), labels % 4))
            optimizer.step()
            trained.append(ids.tolist())
        return trained

    model, optimizer, loader = start()
    whole = train(model, optimizer, loader)
    batches = iter(loader)
    whole += train(model, optimizer, itertools.islice(batches, 2))
    fabric.save(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "loader": loader})
    whole += train(model, optimizer, batches)
    expected = model.weight.tolist()

    model, optimizer, loader = start()
    fabric.load(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "loader": loader})
    assert train(model, optimizer, loader) == whole[8:]
    assert model.weight.tolist() == expected
    assert whole == ids_of(reference := loader_of(augmented)) + ids_of(reference)


def test_several_loaders_and_what_is_refused(fabric: Any, augmented: sutler.ImageFolder) -> None:
    loaders = [loader_of(augmented), loader_of(augmented)]
    assert setup_dataloaders(fabric, *loaders) == loaders
    with pytest.raises(ValueError, match="at least one loader"):
        setup_dataloaders(fabric)
    wrong: Any = torch.utils.data.DataLoader(range(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got a DataLoader; a DataLoader goes to fabric\.setup_dataloaders"):
        setup_dataloaders(fabric, wrong)
    with pytest.raises(ValueError, match="to 3 ranks, the fabric has 1"):
        setup_dataloaders(fabric, loader_of(augmented, rank=0, world_size=3))


class Elsewhere:
    """A fabric on a device that every machine has: its tensors have shapes and no values."""

    device = torch.device("meta")
    world_size = 1


def test_batches_come_on_the_fabrics_device(augmented: sutler.ImageFolder) -> None:
    there: Any = setup_dataloaders(Elsewhere(), loader_of(augmented))
    images, labels, _ = next(iter(there))
    assert (images.device.type, labels.device.type) == ("meta", "meta")
    on_host: Any = setup_dataloaders(Elsewhere(), loader_of(augmented), move_to_device=False)
    assert next(iter(on_host))[0].device.type == "cpu"
    with pytest.raises(ValueError, match="output='numpy'"):
        setup_dataloaders(Elsewhere(), loader_of(augmented, output="numpy"))
