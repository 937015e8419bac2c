"""What Sutler does differently from PyTorch's ``DataLoader`` for the same arguments, and why it means to.

The tests look a difference up by its name and check what is written here; a name that no test looks up, or that is
looked up and not written here, fails ``test_differences.py``.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One deliberate departure."""

    #: What PyTorch does.
    torch: str
    #: What Sutler does.
    sutler: str
    #: What users gain by it.
    reason: str


DIFFERENCES = {
    "num_workers_default": Difference(
        torch="`num_workers` is 0 where nothing is passed.",
        sutler="The default is `None`: one thread per usable core for a native dataset, 0 for one written in Python.",
        reason="Native threads need no start-up and no pickling, so there is no cost to spare users by default.",
    ),
    "prefetch_factor_default": Difference(
        torch="`prefetch_factor` is `None`, and becomes 2 with workers; passing 2 without workers is an error.",
        sutler="Left out, it is 2 in the beginning, with and without workers; batches ahead become up to four times "
        "as many where the trainer waits for want of them; passing 2 without workers is no error.",
        reason="Native threads prefetch, too, whichever way `num_workers` is given. A slow sample can be begun only as "
        "early as its batch is prepared ahead, and how early it should be nobody knows beforehand.",
    ),
    "prefetch_factor_zero": Difference(
        torch="`prefetch_factor=0` is accepted and fails with an `AssertionError` when iteration begins.",
        sutler="It is a `ValueError` when the loader is made.",
        reason="An argument that cannot work should be refused where it is written.",
    ),
    "wrong_types": Difference(
        torch="A `collate_fn`, `worker_init_fn` or `generator` of a wrong type, or a `num_workers` of 2.0, is "
        "accepted and fails where it is used.",
        sutler="It is a `TypeError` when the loader is made, which names the argument.",
        reason="An argument that cannot work should be refused where it is written.",
    ),
    "truth_values": Difference(
        torch="`shuffle` and `in_order` go by their truth value, whatever they are; `shuffle='no'` shuffles.",
        sutler="They are `True` or `False`, or the numbers 1 or 0; anything else is an error when the loader is made.",
        reason="What can only be a mistake should be refused where it is written.",
    ),
    "mixed_types_in_workers": Difference(
        torch="Tensors and arrays of different types in one batch get the type that holds them all without workers; "
        "with workers that of the first, or a `TypeError` where it cannot hold the others.",
        sutler="They get the type that holds them all, with and without workers.",
        reason="A batch should depend neither on `num_workers` nor on which sample comes first, and nothing be rounded "
        "unasked.",
    ),
    "timeout_without_workers": Difference(
        torch="A `timeout` without workers is accepted and fails with an `AssertionError` when iteration begins.",
        sutler="It has no effect.",
        reason="`num_workers` is often turned to 0 to debug; nothing is waited for then, so nothing times out.",
    ),
    "shuffle_order": Difference(
        torch="The order of `shuffle=True` comes from `generator`, or else from PyTorch's global generator.",
        sutler="It comes from `seed` (or the generator's initial seed) and the epoch's number, and from nothing else.",
        reason="An epoch can be repeated, resumed and split over other ranks without replaying those before it.",
    ),
    "loaders_made_alike": Difference(
        torch="Each `iter(loader)` draws another order: of a loader made anew, and of two loaders made alike or with "
        "one `generator`. Seeding that again repeats an order.",
        sutler="Loaders made alike have the same orders, and one made anew begins with epoch 0 again: call "
        "`set_epoch`, and pass another `seed` to one of two that are iterated together, of which a `SameOrderWarning` "
        "tells. What a `generator` was seeded with counts when the loader is made.",
        reason="Equal arguments give equal batches, whatever else the program draws.",
    ),
    "batches_with_states_in_turn": Difference(
        torch="Workers take whole batches, in turn or, with `in_order=False`, as they get free. There is no "
        "`state_dict()`; torchdata's `StatefulDataLoader` keeps that of a map-style dataset, once per worker.",
        sutler="They do so where the dataset has `state_dict()` and `load_state_dict()`, and a state of the loader has "
        "those of all workers; else samples go to whichever worker is free. One pass over such a dataset at a time.",
        reason="What a worker's copy has come to depends on which samples it was asked for.",
    ),
    "random_numbers_per_sample": Difference(
        torch="`random`, NumPy and PyTorch are seeded once per worker, so a sample's values depend on `num_workers`.",
        sutler="They are seeded for each sample from seed, epoch, index and how often it came before, so they do not.",
        reason="Samples are handed to whichever worker is free, and the data stay the same on any machine.",
    ),
    "threads_without_a_gil": Difference(
        torch="Workers are processes on every Python; `multiprocessing_context` takes its start methods only.",
        sutler="They are threads where Python has no interpreter lock, unless a start method is given; "
        '`multiprocessing_context="thread"` asks for threads anywhere.',
        reason="Threads that run at the same time need no pickling, no copies of the dataset and no time to start.",
    ),
    "ready_by_sample": Difference(
        torch="With `in_order=False` whole batches overtake each other; each is what the sampler drew.",
        sutler="Samples do: a batch is filled with those that are ready. What a batch sampler drew stays together.",
        reason="A slow sample holds up neither its batch nor the others in it, and is late by a bounded number.",
    ),
    "length_warning": Difference(
        torch="The warning about a stream that is longer than it said compares batches with the samples it announced.",
        sutler="It compares samples with samples.",
        reason="A stream that comes once per worker is what it is about, and with batches PyTorch keeps silent.",
    ),
    "seeds_of_worker_init_fn": Difference(
        torch="A seed that `worker_init_fn` sets is the beginning of all random numbers of that worker.",
        sutler="It holds until the worker's first sample, for which the generators are seeded as for every other.",
        reason="What a sample is like does not depend on which worker prepares it, nor on what it prepared before.",
    ),
    "workers_give_way": Difference(
        torch="Workers are scheduled as the trainer is.",
        sutler="They are `SCHED_BATCH` on Linux, unless the trainer or `worker_init_fn` has set another policy.",
        reason="A worker that is woken does not take the trainer's core; its share of all cores is the same.",
    ),
    "empty_batches": Difference(
        torch="A batch sampler's empty list is collated: to whatever `collate_fn` makes of it, or to an `IndexError`.",
        sutler="It is a `ValueError` that names the batch.",
        reason="There is nothing in it to train on, so it is a mistake of the sampler's.",
    ),
    "own_samplers": Difference(
        torch="A loader that is given none has a `SequentialSampler` or a `RandomSampler`, and a `BatchSampler`.",
        sutler="It has an `EpochSampler` and an `EpochBatchSampler`, which are instances of those classes, too.",
        reason="They have `set_epoch`, which trainers call, and give the order that the epoch really has.",
    ),
    "batches_of_several_workers": Difference(
        torch="One worker prepares all samples of a batch, and the workers take turns.",
        sutler="The workers that are free share a batch, unless a `collate_fn` or `__getitems__` wants all of it.",
        reason="A batch is ready sooner, and a slow sample keeps one worker busy, not the batches behind it.",
    ),
    "iterator_internals": Difference(
        torch="Iterators have private attributes for queues, fetchers and threads, such as `_index_queues`.",
        sutler="Of those there are `_workers`, the worker processes, and `_shutdown_workers()`, which ends the epoch.",
        reason="Nothing else has a counterpart, as there are no queues.",
    ),
    "pin_memory_thread": Difference(
        torch="With `pin_memory=True`, workers and a GPU, iterators have a `_pin_memory_thread`, which pins batches.",
        sutler="They have none. Native batches are written into pinned memory by the threads that prepare them; those "
        "of datasets written in Python are copied into it by whoever takes them: the trainer, or with `device=` the "
        "thread that copies to the device.",
        reason="No batch needs another thread on its way, and native ones need no copy.",
    ),
    "no_subclass": Difference(
        torch="A `DataLoader` is an instance of `torch.utils.data.DataLoader`.",
        sutler="A `Loader` is not.",
        reason="Libraries take instances apart and build them anew from private attributes, without what Sutler adds.",
    ),
    "exceptions_as_they_were": Difference(
        torch="An exception from a worker whose class cannot be made from a message alone becomes a `RuntimeError`; "
        "one whose class cannot be pickled, as a class inside of a function, is never heard of.",
        sutler="The first arrives as it was, with its attributes, and has the worker's traceback as a note; the second "
        "as the nearest of its base classes that can be.",
        reason="Whoever catches a class of exceptions without workers catches it with them.",
    ),
    "same_iterator": Difference(
        torch="With `persistent_workers=True` each `iter(loader)` is the same object, which begins anew.",
        sutler="It is another one. The workers are the same.",
        reason="An iterator that somebody still holds is not moved to another epoch behind their back.",
    ),
    "worker_error": Difference(
        torch="The death of a worker is a `RuntimeError`.",
        sutler="It is a `sutler.WorkerError`, a subclass, which also knows the sample that was being prepared; or a "
        "`sutler.WorkerStartError`, another one, of a worker that had not begun with any.",
        reason="Code that catches PyTorch's error catches it, and the sample to look at is named.",
    ),
    "unpicklable_samples": Difference(
        torch="A worker drops a batch that cannot be pickled, and the trainer waits for ever (or until `timeout`).",
        sutler="The trainer gets an error that says what cannot be pickled.",
        reason="A wait without end tells nobody what is wrong.",
    ),
    "unpicklable_keys": Difference(
        torch="Workers are never told of what a sampler draws that cannot be pickled, and the trainer waits for ever.",
        sutler="It is a `TypeError` that shows what was drawn. Without workers such keys are served, as in PyTorch.",
        reason="A wait without end tells nobody what is wrong.",
    ),
    "samples_are_sent": Difference(
        torch="The default collation runs in the workers, so samples of a class that is registered in "
        "`default_collate_fn_map` need not be picklable.",
        sutler="It runs in the trainer, so they have to be; an error says what is not. A `collate_fn` of your own, be "
        "it one that just calls `default_collate`, runs in the workers.",
        reason="Several workers share a batch, and arrays and numbers are written into its memory at once.",
    ),
    "negative_strides": Difference(
        torch="The default collation refuses arrays with negative strides, such as mirrored pictures: `ValueError`.",
        sutler="They are collated, with and without workers.",
        reason="Their values are copied into the batch, so that it makes no difference how they lay in memory.",
    ),
    "strides_with_gaps": Difference(
        torch="A tensor from a worker's `collate_fn`, or from a dataset with `batch_size=None`, has the strides it had "
        "there, be it expanded or every second row of another.",
        sutler="One whose elements fill its memory has them, too: channels last, transposed. An expanded tensor, or "
        "one with gaps in its memory, comes out contiguous.",
        reason="Only the elements travel, not all of the memory that they lie in.",
    ),
    "tensors_of_getitems": Difference(
        torch="The default collation refuses a tensor from `__getitems__`: `TypeError`.",
        sutler="Its rows are the samples, with and without workers.",
        reason="What samples it holds is plain, and a batch of them is the same tensor.",
    ),
    "conjugate_views": Difference(
        torch="In a worker the default collation fails for tensors that are conjugate or negative views of others, or "
        "that require gradients.",
        sutler="They are collated, as they are without workers.",
        reason="Whether a batch can be made should not depend on `num_workers`.",
    ),
    "death_interrupts_the_trainer": Difference(
        torch="A worker's death raises wherever the main thread happens to be: in the model's step, in another loader.",
        sutler="It is raised where the batch is asked for.",
        reason="Only there can a trainer catch it and know which loader it is about.",
    ),
    "stop_iteration": Difference(
        torch="A `StopIteration` from `__getitem__` ends the epoch silently, whatever is left of it.",
        sutler="It is a `RuntimeError`, as in a generator.",
        reason="An epoch delivers each sample once, or says why not.",
    ),
    "indices_are_ints": Difference(
        torch="What a sampler draws reaches `__getitem__` as it is, be it a tensor or a number of NumPy's.",
        sutler="What stands for an integer, a tensor without dimensions for instance, comes as an `int`.",
        reason="The same sample is then the same, whoever draws it, and has the same random numbers.",
    ),
    "streams_of_any_class": Difference(
        torch="A dataset that has `__iter__` only is a `TypeError`, unless its class derives from `IterableDataset`.",
        sutler="It is a stream, whatever its class.",
        reason="What it has says what it is, and a dataset need not import PyTorch.",
    ),
    "pipes_that_do_not_shuffle": Difference(
        torch="`shuffle=True` with data pipes of which none shuffles warns that one is added, and adds none.",
        sutler="It warns, and one is added.",
        reason="What was asked for, and said to be done, is done.",
    ),
    "tensors_in_shared_memory": Difference(
        torch="Tensors that come from workers are in PyTorch's shared memory: `is_shared()` is true.",
        sutler="`is_shared()` is false; `share_memory_()` and PyTorch's queues copy them there, as any other tensor.",
        reason="They are in memory that the loader's processes have mapped and use again, without a file for each.",
    ),
}
