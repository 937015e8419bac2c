"""What each process of a `torchrun` job in these tests runs: a part that is named, whose results go to a file per rank.

Usage: torchrun ... job.py PART PHOTOS SPOILED FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import sutler
import torch
import torch.distributed
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.ToDtype("float32", scale=True)])


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset written in Python."""

    def __len__(self) -> int:
        return 41

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 2, 2), float(index)), index % 4


class Classifier(torch.nn.Module):
    """The least that can be trained on images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(pixel_values.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def ids_of(batches: Any) -> list[list[int]]:
    return [batch[-1].tolist() for batch in batches]


def make(dataset: Any, **arguments: Any) -> Loader:
    return Loader(dataset, 4, num_workers=1, return_ids=True, **{"shuffle": True, "seed": 1, **arguments})


def sampled(dataset: Any) -> Loader:
    sampler: Any = torch.utils.data.DistributedSampler(dataset, shuffle=True, seed=2)
    return make(dataset, shuffle=None, sampler=sampler)


def plain(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """DistributedDataParallel in a loop of one's own."""
    native = sutler.ImageFolder(photos, TRANSFORM)
    early = make(native)  # before there is a process group
    assert (early.world_size, len(early)) == (1, 11)
    assert len(ids_of(early)) == 11
    waiting = iter(make(Pairs()))
    torch.distributed.init_process_group("gloo")
    results: dict[str, Any] = {"world_size": early.world_size, "rank": early.rank}
    results["waiting"] = ids_of(waiting)

    makers = {"native": lambda: early, "python": lambda: make(Pairs()), "sampler": lambda: sampled(native)}
    for name, maker in makers.items():
        loader = maker()
        epochs = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            epochs.append(ids_of(loader))
        results[name] = {"length": len(loader), "epochs": epochs}

        loader.set_epoch(1)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        states = [loader.state_dict()]
        if name != "sampler":  # whose shares only their own ranks know
            torch.distributed.broadcast_object_list(states, src=0)
        resumed = sampled(native) if name == "sampler" else make(loader.dataset)
        resumed.load_state_dict(states[0])
        if name == "sampler":
            resumed.set_epoch(1)
        results[name]["rest"] = ids_of(resumed)

    # What a rank was told, or what a sampler says, is no surprise; the loaders below have their shares without either.
    told = make(Pairs(), shuffle=False, rank=0, world_size=1)
    in_full = make(Pairs(), shuffle=None, sampler=range(41))
    assert ids_of(told) == ids_of(in_full) == [list(range(at, min(at + 4, 41))) for at in range(0, 41, 4)]
    results["validated"] = [sum(map(len, ids_of(make(Pairs(), shuffle=False)))) for _ in range(2)]

    model = torch.nn.parallel.DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = make(sutler.ImageFolder(spoiled, TRANSFORM), shuffle=False, errors="skip")
    steps = []
    for images, labels, ids in loader:  # ranks exchange gradients, so one that fell behind would hang here
        optimizer.zero_grad()
        model(images, labels)["loss"].backward()
        optimizer.step()
        steps.append(ids.tolist())
    results["skipping"] = {"steps": steps, "failed": len(loader.failures())}
    results["weights"] = model.module.layer.weight.tolist()
    torch.distributed.destroy_process_group()
    return results


def accelerated(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """Accelerate, with the loader prepared and not."""
    import accelerate
    from sutler.integrations.accelerate import prepare

    native = sutler.ImageFolder(photos, TRANSFORM)
    early = make(native)
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(Classifier())
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), 0.1))
    unprepared = accelerator.prepare(early)
    train = prepare(accelerator, make(native))
    results: dict[str, Any] = {
        "world_size": train.loader.world_size,
        "rank": train.loader.rank,
        "unprepared": ids_of(unprepared),
        "prepared": [],
    }
    for images, labels, ids in train:
        optimizer.zero_grad()
        accelerator.backward(model(images, labels)["loss"])
        optimizer.step()
        results["prepared"].append(ids.tolist())
        if len(results["prepared"]) == 2:
            accelerator.save_state(str(folder / "state"))
    results["weights"] = accelerator.unwrap_model(model).layer.weight.tolist()
    accelerator.wait_for_everyone()
    accelerator.load_state(str(folder / "state"))
    results["rest"] = ids_of(train)
    train.set_epoch(0)
    results["skipped"] = ids_of(accelerate.skip_first_batches(train, 2))

    results["gathered"] = {}
    for samples in (39, 40, 41):  # none, two and one sample too few to divide among three ranks
        part = torch.utils.data.Subset(Pairs(), range(samples))
        evaluation = prepare(accelerator, make(part, shuffle=False), checkpoint=False)
        gathered = [accelerator.gather_for_metrics(ids).tolist() for *_, ids in evaluation]
        results["gathered"][samples] = [index for step in gathered for index in step]
    accelerator.end_training()
    return results


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that a model can tell apart."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"value": torch.tensor([float(index)]), "labels": index}


class Echo(torch.nn.Module):
    """Predicts what it is shown, and has a loss that says what was in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, value: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (value**2).mean(), "logits": value + 0 * self.layer(value)}


def evaluation(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """What Accelerate and Transformers gather of all ranks, with their own loaders and with ours."""
    import accelerate
    import transformers
    from sutler.integrations.accelerate import prepare
    from sutler.integrations.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        pass

    accelerator = accelerate.Accelerator(cpu=True)
    results: dict[str, Any] = {
        "world_size": accelerator.num_processes,
        "rank": accelerator.process_index,
        "gathered": {},
        "evaluated": {},
    }

    def gather(batches: Any) -> dict[str, list[float]]:
        """All rows, and the losses as Hugging Face's programs gather them."""
        steps = [
            (accelerator.gather_for_metrics(batch), accelerator.gather_for_metrics(batch.mean().repeat(4)))
            for batch in batches
        ]
        rows, losses = zip(*steps, strict=True) if steps else ((), ())
        return {
            "rows": [row for step in rows for row in step.tolist()],
            "losses": [loss for step in losses for loss in step.tolist()],
        }

    def compare(name: str, samples: int, ours: Any = None, **arguments: Any) -> None:
        dataset = torch.arange(float(samples))
        theirs = accelerator.prepare(torch.utils.data.DataLoader(dataset, 4, **arguments))  # type: ignore[arg-type]
        loader = Loader(dataset, 4, **{**arguments, **(ours or {})})
        prepared = prepare(accelerator, loader, checkpoint=False)
        results["gathered"][name] = [gather(theirs), gather(prepared)]

    for samples in (3, 8, 10, 11, 20, 24, 41):
        compare(f"{samples} samples", samples)
        compare(f"{samples} samples, drop_last", samples, drop_last=True)
    compare("in workers", 41, {"num_workers": 1})
    compare("in ready order", 24, {"num_workers": 1, "order": "ready"})
    compare("in ready order, drop_last", 41, {"num_workers": 1, "order": "ready"}, drop_last=True)
    compare("of a sampler", 10, {"sampler": range(10)})
    for name, dataset in (
        ("native", sutler.ImageFolder(photos, TRANSFORM)),
        ("subset", torch.utils.data.Subset(sutler.ImageFolder(photos, TRANSFORM), range(40, -1, -1))),
    ):
        prepared = prepare(accelerator, make(dataset, shuffle=False), checkpoint=False)
        ids = [accelerator.gather_for_metrics(ids) for *_, ids in prepared]
        results["gathered"][name] = torch.cat(ids).tolist()
        skipped = accelerate.skip_first_batches(prepared, 1)
        rest = [accelerator.gather_for_metrics(ids) for *_, ids in skipped]
        results["gathered"][f"{name}, skipped"] = torch.cat(rest).tolist()

    for samples, drop_last in ((10, False), (11, False), (11, True), (41, False)):
        outcomes = []
        for kind in (transformers.Trainer, Trainer):
            args = transformers.TrainingArguments(
                str(folder),
                per_device_eval_batch_size=2,
                dataloader_drop_last=drop_last,
                use_cpu=True,
                ddp_backend="gloo",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = kind(model=Echo(), args=args, eval_dataset=Numbers(samples))
            predicted = trainer.predict(trainer.eval_dataset)
            outcomes.append(
                {
                    "predictions": predicted.predictions.ravel().tolist(),
                    "labels": predicted.label_ids.tolist(),
                    "loss": predicted.metrics["test_loss"],
                    "eval_loss": trainer.evaluate()["eval_loss"],
                }
            )
        results["evaluated"][f"{samples} samples{', drop_last' * drop_last}"] = outcomes
    accelerator.end_training()
    return results


class Range(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A stream of numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(torch.arange(self.samples))

    def __len__(self) -> int:
        return self.samples


def divided(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """What ranks get of samplers, batch samplers and streams that know nothing of ranks."""
    import accelerate
    from accelerate.data_loader import prepare_data_loader
    from sutler.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    results: dict[str, Any] = {
        "world_size": accelerator.num_processes,
        "rank": accelerator.process_index,
        "compared": {},
    }

    def in_batches(samples: int) -> list[list[int]]:
        """Batches of different sizes."""
        order = list(range(samples))
        return [order[at : at + 1 + at % 3] for at in range(0, samples, 3)]

    def compare(name: str, dataset: Any, **arguments: Any) -> None:
        # Accelerate's other way with streams, which sends batches to the ranks, fails where there are none.
        theirs = prepare_data_loader(
            torch.utils.data.DataLoader(dataset, **arguments), dispatch_batches=False
        )
        ours = prepare(accelerator, Loader(dataset, **arguments), checkpoint=False)
        results["compared"][name] = [[batch.tolist() for batch in each] for each in (theirs, ours)]
        if not isinstance(dataset, Range):
            assert len(ours) == len(theirs)

    for samples in (3, 10, 24):
        dataset, backwards = torch.arange(samples), range(samples - 1, -1, -1)
        for drop_last in (False, True):
            ending = f"{samples} samples{', drop_last' * drop_last}"
            compare(f"sampler, {ending}", dataset, sampler=backwards, batch_size=4, drop_last=drop_last)
            batches = torch.utils.data.BatchSampler(backwards, 4, drop_last)
            compare(f"batch sampler, {ending}", dataset, batch_sampler=batches)
            compare(f"stream, {ending}", Range(samples), batch_size=4, drop_last=drop_last)
        compare(f"uneven batches, {samples} samples", dataset, batch_sampler=in_batches(samples))
    compare("in workers", torch.arange(24), sampler=range(23, -1, -1), batch_size=4, num_workers=1)
    compare("stream in workers", Range(24), batch_size=4, num_workers=1)

    drawn = torch.utils.data.SubsetRandomSampler(range(24))
    torch.manual_seed(accelerator.process_index)  # ranks need not be seeded alike
    sampled = prepare(accelerator, Loader(torch.arange(24), 4, sampler=drawn), checkpoint=False)
    results["drawn"] = [[batch.tolist() for batch in sampled] for _ in range(2)]

    gathered = prepare(accelerator, Loader(torch.arange(24), 4, sampler=range(7)), checkpoint=False)
    results["gathered"] = [row for rows in gathered for row in accelerator.gather_for_metrics(rows).tolist()]

    everything = 2**31
    results["everything"] = [
        sorted({int(number) for batch in prepare(accelerator, loader, checkpoint=False) for number in batch})
        for loader in (Loader(torch.arange(24), everything, sampler=range(24)), Loader(Range(24), everything))
    ]

    results["rests"] = {}
    for name, loader in {
        "sampler": Loader(torch.arange(24), 2, sampler=range(23, -1, -1)),
        "stream": Loader(Range(24), 2),
    }.items():
        resumed = prepare(accelerator, loader)
        whole = [batch.tolist() for batch in resumed]
        next(iter(resumed))
        accelerator.save_state(str(folder / name))
        accelerator.wait_for_everyone()
        accelerator.load_state(str(folder / name))
        rest = [batch.tolist() for batch in resumed]
        skipped = [batch.tolist() for batch in accelerate.skip_first_batches(resumed, 1)]
        results["rests"][name] = [whole, rest, skipped]
    uneven = prepare(accelerator, Loader(torch.arange(24), batch_sampler=in_batches(24)), checkpoint=False)
    next(iter(uneven))
    states = [uneven.state_dict()]
    torch.distributed.broadcast_object_list(states, src=0)
    try:
        uneven.load_state_dict(states[0])
        results["refused"] = None
    except ValueError as error:
        results["refused"] = str(error)

    knowing: Any = torch.utils.data.DistributedSampler(Numbers(24), shuffle=False)
    alone = prepare(accelerator, Loader(torch.arange(24), 4, sampler=knowing), checkpoint=False)
    results["knowing"] = [batch.tolist() for batch in alone]
    accelerator.end_training()
    return results


def lightning(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """Lightning's DDP strategy, which makes the process group long after the loader."""
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = Classifier()
            self.trained: list[list[int]] = []
            self.validated: list[list[int]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.trained.append(batch[2].tolist())
            return self.classifier(batch[0], batch[1])["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: Any, _: int) -> None:
            self.validated.append(batch[2].tolist())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(*callbacks: Any, checkpoint: Path | None = None) -> Module:
        model = Module()
        loader = make(sutler.ImageFolder(photos, TRANSFORM))
        trainer = Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=2,
            max_epochs=2,
            callbacks=list(callbacks),
            enable_checkpointing=bool(callbacks),
            default_root_dir=folder,
            logger=False,
            **quiet,
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
        assert trainer.train_dataloader is loader
        return model

    def validate(**arguments: Any) -> list[list[int]]:
        model = Module()
        loader = make(Pairs(), **arguments)
        Trainer(accelerator="cpu", strategy="ddp", devices=2, logger=False, **quiet).validate(model, loader)
        return model.validated

    validated = {
        "own order": validate(shuffle=False),
        "sampler": validate(shuffle=None, sampler=range(41)),
        "wrapped": validate(shuffle=None, sampler=DistributedSamplerWrapper(range(41), shuffle=False)),
    }
    whole = fit(ModelCheckpoint(folder, "{step}", every_n_train_steps=4, save_top_k=-1))
    resumed = fit(checkpoint=folder / "step=4.ckpt")
    return {
        "world_size": torch.distributed.get_world_size(),
        "rank": torch.distributed.get_rank(),
        "trained": whole.trained,
        "rest": resumed.trained,
        "validated": validated,
        "weights": [whole.classifier.layer.weight.tolist(), resumed.classifier.layer.weight.tolist()],
    }


def fabric(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """Lightning Fabric's DDP strategy."""
    from lightning.fabric import Fabric
    from sutler.integrations.fabric import setup_dataloaders

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    classifier = Classifier()
    model, optimizer = fabric.setup(classifier, torch.optim.SGD(classifier.parameters(), 0.1))
    loader: Any = setup_dataloaders(fabric, make(sutler.ImageFolder(photos, TRANSFORM)))
    trained = []
    for step, (images, labels, ids) in enumerate(loader):
        optimizer.zero_grad()
        fabric.backward(model(images, labels)["loss"])
        optimizer.step()
        trained.append(ids.tolist())
        if step == 1:
            fabric.save(folder / "state.ckpt", {"model": model, "loader": loader})
    resumed = make(loader.dataset)
    fabric.load(folder / "state.ckpt", {"model": model, "loader": resumed})
    sampled: Any = setup_dataloaders(fabric, make(loader.dataset, shuffle=None, sampler=range(40, -1, -1)))
    in_full: Any = setup_dataloaders(
        fabric, make(loader.dataset, shuffle=None, sampler=range(41)), use_distributed_sampler=False
    )
    return {
        "world_size": fabric.world_size,
        "rank": fabric.global_rank,
        "trained": trained,
        "sampled": ids_of(sampled),
        "in full": ids_of(in_full),
        "rest": ids_of(resumed),
    }


def transformers(photos: str, spoiled: str, folder: Path) -> dict[str, Any]:
    """Transformers' Trainer."""
    import transformers
    from sutler.integrations.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        trained: list[float]

        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            self.trained.append(float(inputs["pixel_values"].double().sum()))
            return super().training_step(model, inputs, *more)

    def make_trainer(**arguments: Any) -> Trainer:
        settings = {
            "save_strategy": "no",
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            **arguments,
        }
        args = transformers.TrainingArguments(
            str(folder), use_cpu=True, ddp_backend="gloo", report_to="none", disable_tqdm=True, **settings
        )
        dataset = sutler.ImageFolder(photos, TRANSFORM)
        trainer = Trainer(model=Classifier(), args=args, train_dataset=dataset, eval_dataset=dataset)
        trainer.trained = []
        return trainer

    whole = make_trainer(save_strategy="steps", save_steps=4)
    whole.train()
    resumed = make_trainer()
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    return {
        "world_size": torch.distributed.get_world_size(),
        "rank": torch.distributed.get_rank(),
        "trained": whole.trained,
        "rest": resumed.trained,
        "predictions": len(whole.predict(whole.eval_dataset).predictions),
        "weights": [each.model.layer.weight.tolist() for each in (whole, resumed)],
    }


if __name__ == "__main__":
    part, photos, spoiled, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts = {
        "plain": plain,
        "accelerate": accelerated,
        "evaluation": evaluation,
        "divided": divided,
        "lightning": lightning,
        "fabric": fabric,
        "transformers": transformers,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", sutler.RankShareWarning)
        results = parts[part](photos, spoiled, Path(folder))
    results["said"] = [str(each.message) for each in caught if each.category is sutler.RankShareWarning]
    (Path(folder) / f"rank-{results['rank']}.json").write_text(json.dumps(results))
