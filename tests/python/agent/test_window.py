"""Jobs that share what an agent has prepared."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - as users write it

from .serving import COMMON, SHARED, Agent, assert_same, batches, dataset, take_turns


def test_jobs_share_what_is_prepared(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock", "--window", "0.5")
    with contextlib.ExitStack() as stack:
        stack.callback(agent.stop)
        loaders = [
            stack.enter_context(sutler.Loader(dataset(photos), agent=agent.socket, seed=seed, **SHARED))
            for seed in range(3)
        ]
        epochs = take_turns(loaders, 4)
        samples = len(loaders[0].dataset)
        for number in range(3):
            mine = [epoch[number] for epoch in epochs]
            assert all(sorted(epoch) == list(range(samples)) for epoch in mine)
            tensors = [value for epoch in mine for value in epoch.values()]
            assert len(set(tensors)) == len(tensors), "no tensor twice"
        figures = [loader.stats() for loader in loaders]
        assert sum(each["served"]["augmented"] for each in figures) > samples * 4
        reads = sum(each["storage_reads"] for each in figures) / sum(each["samples"] for each in figures)
        assert reads < 0.6
        (pool,) = agent.status()["shared"]["pools"]
        assert pool["served"]["taken"] == sum(each["served"]["augmented"] for each in figures)
        for loader in loaders:
            loader.close()
        agent.wait_for(lambda jobs: not jobs)
        assert agent.status()["shared"]["window_bytes_max"] == 0, "nobody is left to share"


def test_an_augmented_share_of_the_memory_is_the_window(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock", "--memory", "2MiB", "--split", "0-50-50")
    with contextlib.ExitStack() as stack:
        stack.callback(agent.stop)
        arguments = SHARED | {"cache": sutler.Cache("1GiB", split="0-50-50")}  # the agent's own counts
        loaders = [
            stack.enter_context(sutler.Loader(dataset(photos), agent=agent.socket, seed=seed, **arguments))
            for seed in range(2)
        ]
        take_turns(loaders, 3)
        figures = [loader.stats() for loader in loaders]
        samples = len(loaders[0].dataset)
        # In the first epoch the one that begins first may have all of it before the other has come. From then on the
        # other is expected, and of each sample one of the two prepares what both get; but for those that are passed by
        # on purpose, to mix.
        assert sum(each["served"]["augmented"] for each in figures) >= 0.9 * 2 * samples
        shared = agent.status()["shared"]
        assert shared["split"] == "0-50-50"
        assert 0 < shared["window_bytes_max"] <= 1 << 20
        (cache,) = shared["caches"]
        assert cache["budget_bytes"] == 1 << 20
        assert sum(each["storage_reads"] for each in figures) < samples * 3


def test_an_agents_cache_serves_all_jobs(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock", "--memory", "64MiB", "--split", "0-100-0")
    with contextlib.ExitStack() as stack:
        stack.callback(agent.stop)
        embedded = batches(stack.enter_context(sutler.Loader(dataset(photos), **COMMON)))
        first = stack.enter_context(sutler.Loader(dataset(photos), agent=agent.socket, **COMMON))
        assert_same(batches(first), embedded)
        second = stack.enter_context(sutler.Loader(dataset(photos), agent=agent.socket, **COMMON))
        assert_same(batches(second), embedded)
        assert second.stats()["served"]["decoded"] == len(second.dataset)
        assert second.stats()["storage_reads"] == 0
        (cache,) = agent.status()["shared"]["caches"]
        assert cache["decoded"]["entries"] == len(second.dataset)


def test_shared_order_without_an_agent_is_an_order_like_any_other(photos: Path) -> None:
    with sutler.Loader(dataset(photos), **SHARED) as loader:
        for _ in range(2):
            assert sorted(index for _, _, ids in loader for index in ids.tolist()) == list(range(41))
    with pytest.raises(ValueError, match="order='shared' serves every sample once"):
        sutler.Loader(dataset(photos), order="shared", sampler=[1, 2])
    with pytest.raises(ValueError, match="order='shared' shares the samples of native datasets"):
        sutler.Loader([1, 2, 3], order="shared")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "50-40-0"], "is no split"),
        (["--split", "50-40-10"], "say how much with --memory"),
        (["--split", "auto"], "--split auto shares out memory, and there is none"),
        (["--split", "100-0-0"], "say how much with --memory"),
        (["--memory", "8MiB", "--split", "50-40-10", "--window", "0.1"], "leave one of them out"),
        (["--window", "2"], "is no share of a dataset"),
        (["--memory", "lots"], "lots"),
    ],
)
def test_wrong_shares_are_refused(options: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sutler", "serve", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    if "Usage:" in done.stderr:
        assert "Usage: sutler serve" in done.stderr


def test_alone_shared_order_has_the_samples_of_any_other(photos: Path) -> None:
    """Whoever has nobody to share with gets the same tensors for the same seed, in every run."""

    def by_id(order: str) -> dict[tuple[int, int], bytes]:
        with sutler.Loader(dataset(photos), **(COMMON | {"order": order, "return_ids": True})) as loader:
            return {
                (epoch, int(sample)): np.asarray(image).tobytes()
                for epoch in range(2)
                for images, _, ids in loader
                for sample, image in zip(ids, images, strict=True)
            }

    assert by_id("shared") == by_id("strict")


def test_a_cache_of_its_own_is_said_to_be_idle(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock", "--memory", "1MiB")
    try:
        with pytest.warns(RuntimeWarning, match="cache= has no effect with an agent"):
            loader = sutler.Loader(dataset(photos), agent=agent.socket, cache="8MiB", **COMMON)
        with loader:
            list(loader)
            assert loader.stats()["cache"] is None
    finally:
        agent.stop()


@pytest.mark.parametrize("taken", [5, 99], ids=["in an epoch", "between epochs"])
def test_a_job_that_resumes_gets_nothing_again_that_it_has_had(
    photos: Path, tmp_path: Path, taken: int
) -> None:
    agent = Agent(tmp_path / "agent.sock", "--window", "1")
    dataset = sutler.ImageFolder(photos, transform=T.Compose([T.RandomResizedCrop(16)]))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "order": "shared", "output": "numpy"}

    def make(seed: int) -> sutler.Loader[Any]:
        return sutler.Loader(dataset, seed=seed, agent=agent.socket, **options)

    had: set[bytes] = set()

    def take(loader: sutler.Loader[Any], batches: int) -> tuple[int, int]:
        """How many samples came, and how many of them had come before."""
        rows = [
            row.tobytes() for _, (images, _) in zip(range(batches), loader, strict=False) for row in images
        ]
        again = sum(row in had for row in rows)
        had.update(rows)
        return len(rows), again

    try:
        # The other one pauses, so that what is prepared for both stands for a long time.
        with make(2) as other, make(1) as first:
            next(iter(other))
            count, again = take(first, taken)
            state = first.state_dict()
            first.close()
            with make(1) as second:
                second.load_state_dict(state)
                for epoch in range(2):
                    more, more_again = take(second, 99)
                    count, again = count + more, again + more_again
                    assert count in ((epoch + 1) * len(dataset), (epoch + 2) * len(dataset))
        assert again == 0
    finally:
        agent.stop()
