"""Transformers: a ``Trainer`` whose data come from Sutler."""

from __future__ import annotations

from typing import Any

from transformers import default_data_collator

from sutler._selection import origin_of
from sutler._stream_reader import is_stream
from sutler.datasets import NativeDataset
from sutler.integrations.accelerate import PreparedLoader, prepare
from sutler.loader import Loader

__all__ = ["TrainerMixin"]


class TrainerMixin:
    """Makes a ``transformers.Trainer`` read its datasets with :class:`sutler.Loader`.

    Name it before the trainer among the bases, and change nothing else: batch size, seed, workers and ``drop_last``
    come from the ``TrainingArguments``. ``resume_from_checkpoint`` goes on with the exact rest of the epoch, and does
    not prepare the batches that it passes over.

    Examples:
        >>> import transformers
        >>> from sutler.integrations.transformers import TrainerMixin
        >>> class Trainer(TrainerMixin, transformers.Trainer):
        ...     batch_names = ("pixel_values", "labels")
    """

    #: The names by which the model takes the parts of a native dataset's batch.
    batch_names: tuple[str, ...] = ("pixel_values", "labels")

    # What the trainer has; the types are its own.
    args: Any
    accelerator: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    _train_batch_size: int
    _get_collator_with_removed_columns: Any

    def get_train_dataloader(self) -> PreparedLoader:
        """The training batches: shuffled anew in each epoch, each rank its share."""
        if self.train_dataset is None:
            raise ValueError("training needs a train_dataset; pass one to the trainer")
        strategy = getattr(self.args, "train_sampling_strategy", "random")
        if strategy not in ("random", "sequential"):
            raise ValueError(
                f"train_sampling_strategy={strategy!r} is not one that Sutler has; leave it out, or override "
                "get_train_dataloader and give sutler.Loader a sampler or batch_sampler of that kind"
            )
        return self._prepare(self.train_dataset, self._train_batch_size, strategy == "random", "Training")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> PreparedLoader:
        """The batches to evaluate on, in order."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset; pass one to the trainer or to evaluate()")
        return self._prepare(dataset, self.args.eval_batch_size, False, "Evaluation")

    def get_test_dataloader(self, test_dataset: Any) -> PreparedLoader:
        """The batches to predict for, in order."""
        return self._prepare(test_dataset, self.args.eval_batch_size, False, "test")

    def _prepare(self, dataset: Any, batch_size: int, shuffle: bool, description: str) -> PreparedLoader:
        if is_stream(dataset):
            raise TypeError(
                f"{type(dataset).__name__} has no __getitem__, and a trainer cannot resume in the middle of such a "
                "dataset. Leave TrainerMixin out for it, or give the dataset __getitem__ and __len__."
            )
        args = self.args
        native = isinstance(origin_of(dataset), NativeDataset)
        collator = self.data_collator
        if native:
            # The default makes dictionaries of dictionaries; a native dataset's parts are named without a copy.
            collator = None if collator is default_data_collator else collator
        else:
            collator = self._get_collator_with_removed_columns(collator, description)
        workers = args.dataloader_num_workers
        loader = Loader(
            dataset,
            batch_size,
            shuffle,
            # The trainer's default is none at all, which is no choice where workers are threads.
            num_workers=None if native and workers == 0 else workers,
            collate_fn=collator,
            drop_last=args.dataloader_drop_last,
            prefetch_factor=args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        names = self.batch_names if native and collator is None else None
        # The trainer saves its step and skips to it; the loader's state would be a second word on the same thing.
        return prepare(self.accelerator, loader, names=names, checkpoint=False)
