"""Map-style datasets that have a state of their own: a checkpoint has what each worker's copy had come to."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sutler
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

SAMPLES = 23


pytestmark = pytest.mark.usefixtures("no_other_workers")


class Counting(Dataset[torch.Tensor]):
    """Tells with every sample how many it was asked for before, and a digest of which."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.calls = self.digest = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        self.calls += 1
        self.digest = (31 * self.digest + index) % 1_000_003
        return torch.tensor([index, self.calls, self.digest])

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls, "digest": self.digest}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls, self.digest = state["calls"], state["digest"]


class AtOnce(Counting):
    """Is asked for all samples of a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def doubled(samples: list[torch.Tensor]) -> torch.Tensor:
    return 2 * torch.stack(samples)


def indices(batches: Iterable[Any]) -> list[int]:
    return sorted(int(index) for batch in batches for index in batch.reshape(-1, 3)[:, 0])


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def assert_resumes_everywhere(make: Callable[[], Any], same: Callable[[list[Any], list[Any]], None]) -> None:
    """Saves after every batch of two epochs, and goes on from each state in a loader of its own."""
    with make() as loader:
        served: list[Any] = []
        states = [(loader.state_dict(), 2)]
        for passes in (2, 1):
            for batch in loader:
                served.append(batch)
                states.append((loader.state_dict(), passes))
        states.append((loader.state_dict(), 0))
    done = [0, *range(1, len(served) + 1), len(served)]
    for count, (state, passes) in zip(done, states, strict=True):
        with make() as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.state_dict() == state
            same([batch for _ in range(passes) for batch in loader], served[count:])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"num_workers": 1, "shuffle": True},
        {"drop_last": True},
        {"collate_fn": doubled, "shuffle": True},
        {"batch_size": None},
        {"multiprocessing_context": "thread"},
        {"device": "cpu"},
        {"output": "numpy"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_the_rest_of_two_epochs_is_exact_after_every_batch(
    arguments: dict[str, Any], persistent: bool
) -> None:
    def make() -> sutler.Loader:
        chosen = {"batch_size": 4, "num_workers": 2, "seed": 3, "persistent_workers": persistent} | arguments
        return sutler.Loader(Counting(9 if chosen["batch_size"] is None else SAMPLES), **chosen)

    def same(found: list[Any], expected: list[Any]) -> None:
        assert_same([torch.as_tensor(one) for one in found], [torch.as_tensor(one) for one in expected])

    assert_resumes_everywhere(make, same)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_so_it_is_without_workers(device: str | None) -> None:
    assert_resumes_everywhere(
        lambda: sutler.Loader(Counting(), batch_size=4, shuffle=True, device=device), assert_same
    )


@pytest.mark.parametrize("in_batches", [False, True])
def test_so_it_is_where_a_sampler_draws(in_batches: bool) -> None:
    def make() -> sutler.Loader:
        dataset = Counting()
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5))
        if in_batches:
            return sutler.Loader(dataset, batch_sampler=BatchSampler(sampler, 4, False), num_workers=2)
        return sutler.Loader(dataset, batch_size=4, sampler=sampler, num_workers=2)

    assert_resumes_everywhere(make, assert_same)


def test_so_it_is_where_all_samples_of_a_batch_are_asked_for_at_once() -> None:
    assert_resumes_everywhere(lambda: sutler.Loader(AtOnce(), batch_size=4, num_workers=2), assert_same)


@pytest.mark.parametrize("persistent", [False, True])
def test_where_batches_overtake_each_other_every_sample_comes_once(persistent: bool) -> None:
    def same(found: list[Any], expected: list[Any]) -> None:
        assert indices(found) == indices(expected)

    assert_resumes_everywhere(
        lambda: sutler.Loader(
            Counting(), batch_size=4, num_workers=2, order="ready", persistent_workers=persistent
        ),
        same,
    )


def test_where_batches_overtake_each_other_each_copy_goes_on_from_its_own_state() -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(Counting(), batch_size=2, num_workers=2, order="ready")

    with make() as loader:
        batches = iter(loader)
        taken = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        del batches
    calls = [0 if one is None else one["calls"] for one in state["dataset_workers"]["states"]]
    assert sum(calls) == sum(len(batch) for batch in taken)
    with make() as loader:
        loader.load_state_dict(state)
        rest = torch.cat(list(loader))
    # Each copy counts on, so that the last ones it gives have all the numbers up to how often it was asked in all.
    assert sorted(indices(taken) + rest[:, 0].tolist()) == list(range(SAMPLES))
    assert rest[:, 1].max() > max(calls)
    assert rest[:, 1].min() > min(calls)


def test_batches_and_workers_go_together_as_pytorchs_do() -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be fewer cores
        theirs = list(DataLoader(Counting(), **arguments))
        ours = list(sutler.Loader(Counting(), **arguments))
    assert_same(ours, theirs)


def test_an_epoch_that_was_left_counts_as_far_as_it_was_served() -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(Counting(), batch_size=2, num_workers=2, persistent_workers=True)

    with make() as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
        left = loader.state_dict()
        loader.set_epoch(1)
        between = loader.state_dict()
        second = list(loader)
    assert left["consumed"] == 6
    assert sum(state["calls"] for state in left["dataset_workers"]["states"]) == 6
    assert (between["epoch"], between["consumed"]) == (1, 0)
    assert between["dataset_workers"]["states"] == left["dataset_workers"]["states"]
    with make() as resumed:
        resumed.load_state_dict(between)
        assert_same(list(resumed), second)


def test_copies_that_do_not_stay_begin_every_epoch_anew() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        first = list(loader)
        assert loader.state_dict()["dataset_workers"] is None
        assert_same(list(loader), first)


def test_a_state_that_is_loaded_between_two_epochs_takes_the_place_of_what_copies_had_come_to() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = list(batches)
        for _ in range(2):
            loader.load_state_dict(state)
            assert_same(list(loader), expected)


def test_a_state_that_is_loaded_once_an_iterator_is_made_counts() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = list(batches)
        batches = iter(loader)
        loader.load_state_dict(state)
        assert_same(list(batches), expected)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_resumes_as_the_loader_would(way: Callable[[Any], Any]) -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = list(batches)
        loader.load_state_dict(state)
        with way(loader) as copied:
            assert_same(list(copied), expected)
        assert_same(list(loader), expected)


def test_a_pass_that_begins_ends_the_one_before_and_that_says_so() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        first = iter(loader)
        begun = [next(first), next(first)]
        second = iter(loader)
        begun.append(next(first))  # until a batch is asked for, an iterator is none
        assert_same([next(second), next(second), next(second)], begun)
        with pytest.raises(
            RuntimeError, match="another pass over this loader has begun, and the workers of Counting"
        ):
            next(first)
        assert indices(second) == list(range(12, SAMPLES))


def test_a_forked_child_goes_on_from_where_its_parent_was() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(theirs, pickle.dumps([batch.tolist() for batch in batches]))
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as told:
            assert pickle.load(told) == [batch.tolist() for batch in batches]
        os.waitpid(child, 0)


def test_a_copy_of_a_loader_between_two_epochs_begins_the_next_one_as_the_loader_does() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        copied = copy.deepcopy(loader)
        expected = list(loader)
        with copied:
            assert_same(list(copied), expected)


def test_a_trainer_that_chooses_the_epoch_after_a_loaded_one_goes_on_with_the_copies() -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(Counting(), batch_size=4, num_workers=2, persistent_workers=True)

    with make() as loader:
        loader.set_epoch(0)
        list(loader)
        state = loader.state_dict() | {
            "within": 0
        }  # as Lightning has it saved with the last batch of an epoch
        loader.set_epoch(1)
        expected = list(loader)
    with make() as resumed:
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        assert_same(list(resumed), expected)


def ranks(num_workers: int, order: Any = "strict") -> list[sutler.Loader]:
    return [
        sutler.Loader(
            Counting(24), batch_size=3, num_workers=num_workers, order=order, rank=rank, world_size=2
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_rank_goes_on_with_what_its_own_dataset_had_come_to(num_workers: int) -> None:
    before = ranks(num_workers)
    iterators = [iter(loader) for loader in before]
    for batches in iterators:
        next(batches)
    states = [loader.state_dict() for loader in before]
    expected = [list(batches) for batches in iterators]
    for alone in (True, False):
        for rank, loader in enumerate(ranks(num_workers)):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loader.load_state_dict(states[rank] if alone else states)
            assert_same(list(loader), expected[rank])
    other = ranks(num_workers)[1]
    with pytest.warns(
        UserWarning, match="saved by rank 0 of 2, and this is rank 1 of 2: the order goes on"
    ) as told:
        other.load_state_dict(states[0])
    assert told[0].filename == __file__
    assert indices(other) == indices(expected[1])
    # Nor is there anything to tell another number of ranks.
    with pytest.warns(UserWarning, match="what Counting remembers is not told to it"):
        sutler.Loader(Counting(24), batch_size=3, num_workers=num_workers).load_state_dict(states[0])


class Failing(Counting):
    """Cannot give some of its samples."""

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        if index in (3, 8, 9, 10, 11):
            raise LookupError(f"no sample {index}")
        return sample


def test_after_a_batch_that_raised_copies_are_where_pytorchs_are() -> None:
    def served(loader: Any) -> list[Any]:
        batches, found = iter(loader), []
        for _ in range(len(loader)):
            try:
                found.append(next(batches).tolist())
            except LookupError as error:
                # What it passed through holds the iterator, and PyTorch's workers would end with the garbage of it.
                traceback.clear_frames(error.__traceback__)
                found.append(None)
        return found

    for num_workers in (0, 1, 2):
        arguments: dict[str, Any] = {"batch_size": 3, "num_workers": num_workers}
        expected = served(DataLoader(Failing(), **arguments))
        assert served(sutler.Loader(Failing(), **arguments)) == expected
        assert expected.count(None) == 3


@pytest.mark.parametrize("context", ["fork", "thread"])
def test_samples_and_batches_that_are_left_out_do_not_change_whose_turn_it_is(context: str) -> None:
    # Of the batches of four, the first has a bad sample and the third has none that is good.
    assert_resumes_everywhere(
        lambda: sutler.Loader(
            Failing(), batch_size=4, num_workers=2, errors="skip", multiprocessing_context=context
        ),
        assert_same,
    )


def test_the_iterator_goes_on_behind_a_batch_that_raised() -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(Failing(8), batch_size=2, num_workers=2)

    with make() as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(LookupError, match="no sample 3"):
            next(batches)
        state = loader.state_dict()
        third = next(batches)
        later = loader.state_dict()
        fourth = next(batches)
    assert (state["consumed"], later["consumed"]) == (2, 6)
    with make() as loader:
        loader.load_state_dict(later)
        assert_same(list(loader), [fourth])
        loader.load_state_dict(state)
        batches = iter(loader)
        with pytest.raises(LookupError, match="no sample 3"):
            next(batches)
        assert torch.equal(next(batches), third)


class Deadly(Counting):
    """Kills the worker that is asked for one sample, the first time."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.flag = flag

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9 and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_worker_that_takes_the_place_of_a_lost_one_goes_on_from_where_that_was(
    tmp_path: Any, pause: float
) -> None:
    # However far the trainer is by then.
    dataset = Deadly(str(tmp_path / "flag"))
    with sutler.Loader(dataset, batch_size=2, num_workers=1, errors="skip") as loader:
        served = []
        for batch in loader:
            served.append(batch)
            time.sleep(pause)
    assert_same(served, list(DataLoader(Counting(), batch_size=2, num_workers=1)))


class Cursed(Counting):
    """Kills every worker that is asked for one sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
def test_so_does_a_run_that_resumes_behind_a_batch_whose_worker_was_lost(persistent: bool) -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(
            Cursed(16), batch_size=2, num_workers=2, errors="skip", persistent_workers=persistent
        )

    with make() as loader:
        served, states = [], []
        for batch in loader:
            served.append(batch)
            states.append(loader.state_dict())
    assert indices(served) == [index for index in range(16) if index != 9]
    for done, state in enumerate(states, start=1):
        with make() as loader:
            loader.load_state_dict(state)
            assert_same(list(loader), served[done:])


def test_another_number_of_workers_is_refused_and_the_message_says_what_to_do() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        del batches
    for number, told in ((0, "0"), (3, "3"), ("auto", '"auto"')):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there may be fewer cores
            loader = sutler.Loader(Counting(), batch_size=4, num_workers=number)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"saved with num_workers=2, this loader has num_workers={told}"):
            loader.load_state_dict(state)
        loader.load_state_dict(state | {"dataset": None, "dataset_workers": None})
        assert indices(loader) == list(range(4, SAMPLES))
        loader.close()


def test_a_state_without_workers_is_refused_with_some() -> None:
    loader = sutler.Loader(Counting(), batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    with (
        sutler.Loader(Counting(), batch_size=4, num_workers=1) as other,
        pytest.raises(ValueError, match="saved with num_workers=0, this loader has num_workers=1"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("damage", [{"turn": 5}, {"states": 3}, {"turn": None}, {"states": []}])
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        state["dataset_workers"] |= damage
        with pytest.raises(ValueError, match="the state is damaged: its dataset_workers is"):
            loader.load_state_dict(state)


def test_where_workers_come_and_go_a_warning_says_that_nothing_is_kept() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers="auto") as loader:
        with pytest.warns(
            UserWarning, match="Counting has a state_dict, but what it holds is not saved"
        ) as told:
            state = loader.state_dict()
        assert told[0].filename == __file__
        assert state["dataset"] is None
        assert state["dataset_workers"] is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.state_dict()  # once is enough


class Refusing(Counting):
    """Raises where it is asked for its state, or told one."""

    def __init__(self, *, save: bool) -> None:
        super().__init__()
        self.save = save

    def state_dict(self) -> dict[str, int]:
        if self.save:
            raise RuntimeError("there is no telling")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise RuntimeError(f"what is {state['calls']} to me")


@pytest.mark.parametrize("context", ["fork", "thread"])
def test_what_a_dataset_raises_over_its_state_is_for_whoever_saves_one(context: str) -> None:
    with sutler.Loader(
        Refusing(save=True),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=True,
    ) as loader:
        for _ in range(2):
            batches = iter(loader)
            next(batches)
            with pytest.raises(RuntimeError, match="there is no telling"):
                loader.state_dict()
            assert indices(batches) == list(range(4, SAMPLES))


def test_what_it_raises_when_it_is_told_one_reaches_the_trainer() -> None:
    with sutler.Loader(Refusing(save=False), batch_size=4, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="what is 4 to me"):
            next(iter(loader))


def test_ids_are_returned_with_batches_that_workers_collate() -> None:
    with sutler.Loader(Counting(), batch_size=4, num_workers=2, return_ids=True, shuffle=True) as loader:
        for batch, ids in loader:
            assert batch[:, 0].tolist() == ids.tolist()


class Short(AtOnce):
    """Returns fewer samples than it was asked for."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return super().__getitems__(indices)[:-1]


def test_a_batch_of_another_size_is_taken_unless_its_ids_are_asked_for() -> None:
    with sutler.Loader(Short(), batch_size=4, num_workers=2) as loader:
        assert [len(batch) for batch in loader][:2] == [3, 3]
    with (
        sutler.Loader(Short(), batch_size=4, num_workers=2, return_ids=True) as loader,
        pytest.raises(RuntimeError, match="__getitems__ returned 3 samples for 4 indices"),
    ):
        next(iter(loader))


def test_large_batches_travel_in_shared_memory_with_the_state_beside_them() -> None:
    class Large(Counting):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((3, 256, 256), float(super().__getitem__(index)[1]))

    def make() -> sutler.Loader:
        return sutler.Loader(Large(), batch_size=4, num_workers=2)

    with make() as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        expected = [batch.clone() for batch in batches]
    with make() as loader:
        loader.load_state_dict(state)
        assert_same([batch.clone() for batch in loader], expected)


@pytest.mark.parametrize("half", ["state_dict", "load_state_dict"])
def test_half_a_state_is_warned_of(half: str) -> None:
    class Half(list[int]):
        pass

    setattr(Half, half, lambda self, state=None: {})
    loader = sutler.Loader(Half(range(4)), batch_size=2)
    with pytest.warns(UserWarning, match=f"Half has a {half} and no .*; give it both") as warned:
        assert loader.state_dict()["dataset"] is None
    assert warned[0].filename == __file__
    loader.state_dict()  # once is enough
    assert len(warned) == 1
