"""Resume with samplers of the user's: from every batch, with 0 workers and with some."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sutler import Loader

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

SAMPLES = 22


class Noisy:
    """Each sample has its index and a random number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, torch.rand(1)


def values_of(batches: Any) -> list[list[Any]]:
    return [[torch.as_tensor(indices).tolist(), noise.tolist()] for indices, noise in batches]


def saved(loader: Loader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


SAME_EVERY_EPOCH: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"batch_size": 4, "sampler": list(range(SAMPLES))},
    "drop_last": lambda: {"batch_size": 4, "sampler": list(range(SAMPLES)), "drop_last": True},
    "batches": lambda: {"batch_sampler": [[0, 1, 2], [3], [4, 5, 6, 7]]},
    "distributed": lambda: {"batch_size": 4, "sampler": data.DistributedSampler(Noisy(), 2, 1, seed=3)},
    "distributed in batches": lambda: {
        "batch_sampler": data.BatchSampler(data.DistributedSampler(Noisy(), 2, 1, seed=3), 4, True)
    },
    "single": lambda: {"batch_size": None, "sampler": [3, 1, 2]},
}


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2}]
)
@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("name", SAME_EVERY_EPOCH)
def test_every_batch_is_a_place_to_resume_from(name: str, order: Any, workers: dict[str, Any]) -> None:
    def make() -> Loader:
        return Loader(Noisy(), order=order, **workers, **SAME_EVERY_EPOCH[name]())

    # Where samples are served as they get ready, they may come in other batches.
    comparable: Callable[[Any], Any] = list if order == "strict" else _samples_of
    loader = make()
    states = [saved(loader)]
    epoch = []
    for batch in loader:
        epoch += values_of([batch])
        states.append(saved(loader))
    after = saved(loader)
    following = values_of(loader)

    assert [state["epoch"] for state in states] == [0] * (len(epoch) + 1)
    assert (after["epoch"], after["consumed"], after["served"]) == (1, 0, None)
    for number, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(state)
        assert comparable(values_of(resumed)) == comparable(epoch[number:])
        assert comparable(values_of(resumed)) == comparable(following)


def _samples_of(batches: list[Any]) -> list[Any]:
    samples: list[Any] = []
    for indices, noise in batches:
        samples += zip(indices, noise, strict=True) if isinstance(indices, list) else [(indices, noise)]
    return sorted(samples)


def test_the_state_after_the_last_batch_is_the_same_when_its_iterator_is_gone() -> None:
    loader = Loader(Noisy(), batch_size=11, sampler=range(SAMPLES), num_workers=0)
    for batch, _ in enumerate(loader):
        if batch == 1:
            break
    assert (saved(loader)["epoch"], saved(loader)["consumed"]) == (0, SAMPLES)


class OneByOne:
    """Draws each index when it is asked for, from Python's and NumPy's global generators."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield (random.randrange(SAMPLES) + int(np.random.randint(SAMPLES))) % SAMPLES


class AtOnce:
    """Draws as soon as it is asked for an iterator."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())


class CountsOn:
    """Begins every epoch with another order, which only its state tells."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        yield from np.random.default_rng(self.epochs).permutation(SAMPLES).tolist()

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


class PassesOver:
    """Like torchdata's: its state counts what it yielded, and one that was loaded makes the next epoch begin there."""

    def __init__(self) -> None:
        self.yielded = 0
        self.pass_over = 0

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.pass_over = self.pass_over, 0
        for index in range(self.yielded, SAMPLES):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.pass_over = state["yielded"]


class DrawsAtOnce(CountsOn):
    """The same, but with ``iter()`` already."""

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(np.random.default_rng(self.epochs).permutation(SAMPLES).tolist())


class PassesOverAtRandom(data.RandomSampler):  # type: ignore[name-defined]
    """Counts what it yielded as well, of an order that it draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(Noisy(), generator=seeded_once())
        self.yielded = 0
        self.pass_over = 0

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.pass_over = self.pass_over, 0
        for index in list(super().__iter__())[self.yielded :]:
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.pass_over = state["yielded"]


class Buckets:
    """Draws batches of different sizes, from a generator that only its state has."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.random.sample(range(SAMPLES), SAMPLES)
        yield from (order[:3], order[3:10], order[10:])

    def __len__(self) -> int:
        return 3

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))


def seeded_once() -> Any:
    return torch.Generator().manual_seed(5)


def in_batches(sampler: Any) -> dict[str, Any]:
    return {"batch_sampler": data.BatchSampler(sampler, 4, False)}


def one_by_one(sampler: Any) -> dict[str, Any]:
    return {"batch_size": 4, "sampler": sampler}


WEIGHTS = [1.0] * SAMPLES
OTHER_EVERY_EPOCH: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: one_by_one(data.RandomSampler(Noisy())),
    "random, own generator": lambda: one_by_one(data.RandomSampler(Noisy(), generator=seeded_once())),
    "with replacement": lambda: one_by_one(data.RandomSampler(Noisy(), True, 50)),
    "weighted": lambda: one_by_one(data.WeightedRandomSampler(WEIGHTS, SAMPLES)),
    "weighted, own generator": lambda: one_by_one(
        data.WeightedRandomSampler(WEIGHTS, SAMPLES, generator=seeded_once())
    ),
    "subset": lambda: one_by_one(data.SubsetRandomSampler(range(3, SAMPLES))),
    "batches": lambda: in_batches(data.RandomSampler(Noisy())),
    "batches, own generator": lambda: in_batches(data.RandomSampler(Noisy(), generator=seeded_once())),
    "at once": lambda: one_by_one(AtOnce()),
    "counts on": lambda: one_by_one(CountsOn()),
    "counts on in batches": lambda: in_batches(CountsOn()),
    "passes over": lambda: one_by_one(PassesOver()),
}


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def global_states() -> tuple[Any, ...]:
    numpys: Any = np.random.get_state()
    return random.getstate(), numpys[1].tolist(), numpys[2], torch.get_rng_state().tolist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", OTHER_EVERY_EPOCH)
def test_a_job_that_is_seeded_otherwise_goes_on_with_what_was_drawn(name: str, workers: int) -> None:
    """In the second epoch, where a generator that was seeded once is no longer where it began."""

    def make() -> Loader:
        return Loader(Noisy(), num_workers=workers, **OTHER_EVERY_EPOCH[name]())

    seed_all(1)
    loader = make()
    list(loader)
    epoch, states = [], []
    for batch in loader:
        epoch += values_of([batch])
        states.append(saved(loader))
    own_generator = "own" in name
    following = values_of(loader)

    for number, state in enumerate(states, start=1):
        seed_all(2)
        resumed = make()
        resumed.load_state_dict(state)
        assert values_of(resumed) == epoch[number:]
        if own_generator:  # which nobody but the loader puts back
            assert values_of(resumed) == following


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_one_by_one_goes_on_where_the_trainer_has_the_generators(workers: int) -> None:
    def make() -> Loader:
        return Loader(Noisy(), batch_size=4, sampler=OneByOne(), num_workers=workers)

    loader = make()
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    pythons, numpys = random.getstate(), np.random.get_state()
    rest = values_of(batches)
    seed_all(2)
    resumed = make()
    resumed.load_state_dict(state)
    random.setstate(pythons)
    np.random.set_state(numpys)
    assert values_of(resumed) == rest


RESUMED: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "random": lambda: one_by_one(data.RandomSampler(Noisy())),
    "at once": lambda: one_by_one(AtOnce()),
    "one by one": lambda: one_by_one(OneByOne()),
    "batches": lambda: in_batches(data.RandomSampler(Noisy())),
}


@pytest.mark.parametrize("name", RESUMED)
def test_beginning_the_rest_of_an_epoch_leaves_the_generators_of_the_process_alone(name: str) -> None:
    """The seeds of its workers were drawn when the epoch began, and so was what the sampler draws again."""

    def make() -> Loader:
        return Loader(Noisy(), num_workers=0, **RESUMED[name]())

    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(saved(loader))
    seed_all(3)
    before = global_states()
    iter(resumed)
    assert global_states() == before


def trained(
    loader: Loader, checkpoint: tuple[Any, Any] | None = None, *, stop: tuple[int, int] | None = None
) -> tuple[list[Any], Any]:
    """Three epochs of a trainer that draws a random number for each batch, as dropout does.

    It goes on from its checkpoint, and stops after a batch of an epoch, or after none before the epoch begins.
    """
    torch.manual_seed(0)
    if checkpoint is not None:
        loader.load_state_dict(checkpoint[0])
        torch.set_rng_state(checkpoint[1])
    found = []
    for epoch in range(0 if checkpoint is None else checkpoint[0]["epoch"], 3):
        if stop == (epoch, 0):
            break
        for batch, (indices, noise) in enumerate(loader, start=1):
            found.append((epoch, indices.tolist(), noise.tolist(), torch.rand(1).item()))
            if stop == (epoch, batch):
                return found, (saved(loader), torch.get_rng_state())
    return found, (saved(loader), torch.get_rng_state())


@pytest.mark.parametrize("stop", [(0, 1), (1, 0), (1, 3), (2, 0)])
@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
@pytest.mark.parametrize("name", ["shuffled", "random", "batches"])
def test_a_trainer_that_restores_its_generator_goes_on_with_the_same_random_numbers(
    name: str, workers: dict[str, Any], stop: tuple[int, int]
) -> None:
    def make() -> Loader:
        return Loader(Noisy(), **workers, **RESUMED[name]())

    whole, _ = trained(make())
    begun, checkpoint = trained(make(), stop=stop)
    rest, _ = trained(make(), checkpoint)
    assert begun + rest == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_of_a_loader_is_left_alone_by_the_rest_of_an_epoch(workers: int) -> None:
    def make(generator: Any) -> Loader:
        return Loader(Noisy(), batch_size=4, num_workers=workers, generator=generator)

    loader = make(seeded_once())
    next(iter(loader))
    generator = seeded_once()
    resumed = make(generator)
    resumed.load_state_dict(saved(loader))
    before = generator.get_state()
    list(resumed)
    assert torch.equal(generator.get_state(), before)
    list(resumed)  # a whole epoch
    assert not torch.equal(generator.get_state(), before)


def test_a_state_that_does_not_tell_of_seeds_is_loaded() -> None:
    dataset = Noisy()
    loader = Loader(dataset, batch_size=4, shuffle=True, num_workers=0)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    assert state.pop("seeded")
    resumed = Loader(dataset, batch_size=4, shuffle=True, num_workers=0)
    resumed.load_state_dict(state)
    before = global_states()
    assert values_of(resumed) == values_of(batches)
    assert global_states() == before


WITH_A_STATE: dict[str, Callable[[], dict[str, Any]]] = {
    "counts on": lambda: one_by_one(CountsOn()),
    "counts on in batches": lambda: in_batches(CountsOn()),
    "draws at once": lambda: one_by_one(DrawsAtOnce()),
    "passes over": lambda: one_by_one(PassesOver()),
    "passes over in batches": lambda: in_batches(PassesOver()),
    "passes over at random": lambda: one_by_one(PassesOverAtRandom()),
    "buckets": lambda: {"batch_sampler": Buckets()},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", WITH_A_STATE)
def test_a_state_from_between_two_epochs_has_that_of_the_sampler(name: str, workers: int) -> None:
    def make() -> Loader:
        return Loader(Noisy(), num_workers=workers, **WITH_A_STATE[name]())

    loader = make()
    states, epochs = [], []
    for _ in range(4):
        states.append(saved(loader))
        epochs.append(values_of(loader))
    for epoch, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(state)
        assert saved(resumed)["epoch"] == epoch
        assert [values_of(resumed) for _ in epochs[epoch:]] == epochs[epoch:]


@pytest.mark.parametrize("name", WITH_A_STATE)
def test_a_state_from_between_two_epochs_is_as_good_when_it_was_loaded_itself(name: str) -> None:
    def make() -> Loader:
        return Loader(Noisy(), num_workers=0, **WITH_A_STATE[name]())

    loader, once, twice = make(), make(), make()
    list(loader)
    once.load_state_dict(saved(loader))
    twice.load_state_dict(saved(once))
    expected = values_of(loader)
    assert values_of(twice) == values_of(once) == expected


@pytest.mark.parametrize("name", WITH_A_STATE)
def test_what_was_drawn_ahead_for_an_epoch_that_has_not_begun_is_not_in_the_state(name: str) -> None:
    def make() -> Loader:
        return Loader(Noisy(), num_workers=2, **WITH_A_STATE[name]())

    loader, resumed, told_late = make(), make(), make()
    list(loader)
    coming = iter(loader)  # its workers are at work
    state = saved(loader)
    expected = values_of(coming)
    resumed.load_state_dict(state)
    assert values_of(resumed) == expected
    made_before = iter(told_late)
    told_late.load_state_dict(state)
    assert values_of(made_before) == expected


def randomly_sampled(workers: int) -> Loader:
    return Loader(Noisy(), batch_size=4, sampler=data.RandomSampler(Noisy()), num_workers=workers)


def test_a_state_of_a_resumed_epoch_is_as_good() -> None:
    loader = randomly_sampled(0)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    rest = values_of(batches)
    for stop in range(3):
        resumed = randomly_sampled(0)
        resumed.load_state_dict(state)
        assert saved(resumed) == state
        batches = iter(resumed)
        assert values_of([next(batches)]) == rest[stop : stop + 1]
        state = saved(resumed)


def test_a_state_may_be_loaded_when_an_iterator_was_made_already() -> None:
    loader = randomly_sampled(2)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    resumed = randomly_sampled(2)
    made_before = iter(resumed)
    resumed.load_state_dict(state)
    assert values_of(made_before) == values_of(batches)


def test_a_trainer_may_seed_the_generator_of_a_sampler_for_every_epoch() -> None:
    def run(loader: Loader, generator: Any, epochs: range) -> list[Any]:
        found = []
        for epoch in epochs:
            generator.manual_seed(epoch)
            found.append(values_of(loader))
        return found

    def make(generator: Any) -> Loader:
        return Loader(Noisy(), batch_size=4, sampler=data.RandomSampler(Noisy(), generator=generator))

    generator = torch.Generator()
    loader = make(generator)
    run(loader, generator, range(2))
    state = saved(loader)
    other = torch.Generator()
    resumed = make(other)
    resumed.load_state_dict(state)
    assert run(resumed, other, range(2, 4)) == run(loader, generator, range(2, 4))


def test_an_older_state_is_loaded_and_checked() -> None:
    def make(seed: int) -> Loader:
        sampler = data.RandomSampler(Noisy(), generator=torch.Generator().manual_seed(seed))
        return Loader(Noisy(), batch_size=4, sampler=sampler, num_workers=0)

    loader = make(1)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    del state["drawn_from"]
    same, another = make(1), make(2)
    same.load_state_dict(state)
    assert values_of(same) == values_of(batches)
    another.load_state_dict(state)
    with pytest.raises(ValueError, match=r"drew another order.*torch.Generator in its attribute 'generator'"):
        list(another)


def test_a_state_is_small_where_nothing_is_drawn_at_random_and_kept_small_where_something_is() -> None:
    def size(sampler: Any) -> int:
        loader = Loader(Noisy(), batch_size=4, sampler=sampler, num_workers=0)
        next(iter(loader))
        return len(json.dumps(loader.state_dict()))

    assert size(range(SAMPLES)) < 500
    assert size(data.DistributedSampler(Noisy(), 2, 1)) < 500
    assert size(data.RandomSampler(Noisy())) < 5000


def test_a_damaged_entry_is_named() -> None:
    loader = Loader(Noisy(), batch_size=4, sampler=data.RandomSampler(Noisy()), num_workers=0)
    next(iter(loader))
    state = saved(loader)
    state["drawn_from"]["at_draw"]["torch"] = "AAAA"
    with pytest.raises(ValueError, match="the state is damaged: its drawn_from"):
        loader.load_state_dict(state)
