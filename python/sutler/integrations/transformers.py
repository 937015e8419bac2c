"""Transformers: a ``Trainer`` whose data come from Sutler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from transformers import default_data_collator

from sutler._selection import origin_of
from sutler._stream_reader import is_stream
from sutler.datasets import NativeDataset
from sutler.integrations.accelerate import PreparedLoader, prepare
from sutler.loader import Loader

__all__ = ["TrainerMixin"]

#: The trainer's samplers that draw whole batches; by their names, as not every release of Transformers has them.
_BATCH_SAMPLERS = frozenset({"BatchRebalanceSampler"})


class TrainerMixin:
    """Makes a ``transformers.Trainer`` read its datasets with :class:`sutler.Loader`.

    Name it before the trainer among the bases, and change nothing else: batch size, seed, workers and ``drop_last``
    come from the ``TrainingArguments``, and the order from the trainer's ``_get_train_sampler`` and
    ``_get_eval_sampler``, also where a class of yours overrides them. ``resume_from_checkpoint`` goes on with the exact
    rest of the epoch, and does not prepare the batches that it passes over, unless they come from a stream.

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
    _get_train_sampler: Any
    _get_eval_sampler: Any

    def get_train_dataloader(self) -> PreparedLoader:
        """The training batches, in the order of the trainer's sampler: by default shuffled anew in each epoch."""
        if self.train_dataset is None:
            raise ValueError("training needs a train_dataset; pass one to the trainer")
        return self._prepare(self.train_dataset, self._train_batch_size, self._get_train_sampler, "Training")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> PreparedLoader:
        """The batches to evaluate on, by default in the dataset's order."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset; pass one to the trainer or to evaluate()")
        return self._prepare(dataset, self.args.eval_batch_size, self._get_eval_sampler, "Evaluation")

    def get_test_dataloader(self, test_dataset: Any) -> PreparedLoader:
        """The batches to predict for, by default in the dataset's order."""
        return self._prepare(test_dataset, self.args.eval_batch_size, self._get_eval_sampler, "test")

    def _prepare(
        self, dataset: Any, batch_size: int, get_sampler: Callable[..., Any], description: str
    ) -> PreparedLoader:
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
            # The trainer's default is none at all, which is no choice where workers are threads.
            num_workers=None if native and workers == 0 else workers,
            collate_fn=collator,
            prefetch_factor=args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
            seed=args.seed if args.data_seed is None else args.data_seed,
            **self._order(dataset, batch_size, get_sampler),
        )
        names = self.batch_names if native and collator is None else None
        # The trainer saves its step and skips to it; the loader's state would be a second word on the same thing.
        return prepare(self.accelerator, loader, names=names, checkpoint=False)

    def _order(self, dataset: Any, batch_size: int, get_sampler: Callable[..., Any]) -> dict[str, Any]:
        """The loader's arguments that say which samples come in which batch."""
        if is_stream(dataset):
            return {"batch_size": batch_size}  # without drop_last, as the trainer's own loader
        sampler = _ask_for_sampler(get_sampler, dataset)
        if type(sampler).__name__ in _BATCH_SAMPLERS:
            return {"batch_sampler": sampler}
        order: dict[str, Any] = {"batch_size": batch_size, "drop_last": self.args.dataloader_drop_last}
        if _is_plain_shuffle(sampler, dataset):
            return {**order, "shuffle": True}
        if sampler is None or (type(sampler) is SequentialSampler and sampler.data_source is dataset):
            return order
        return {**order, "sampler": sampler}


def _ask_for_sampler(get_sampler: Callable[..., Any], dataset: Any) -> Any:
    """What a trainer's method says the order is; older releases of Transformers did not tell it the dataset."""
    takes_dataset = bool(inspect.signature(get_sampler).parameters)
    return get_sampler(dataset) if takes_dataset else get_sampler()


def _is_plain_shuffle(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler means no more than ``shuffle=True`` does, which goes on exactly after a resume."""
    return (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and sampler.generator is None
        and not sampler.replacement
        and sampler.num_samples == len(dataset)
    )
