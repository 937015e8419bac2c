"""An agent that dies, stays away or is stopped, and what its clients do then."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import _agent

from .serving import COMMON, SHARED, Agent, assert_same, batches, client, dataset, first_line


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("sampled", [False, True])
def test_an_agent_that_is_killed_and_restarted_loses_and_repeats_nothing(
    agent: Agent, photos: Path, order: str, sampled: bool
) -> None:
    arguments = COMMON | {"order": order}
    if sampled:
        arguments |= {"shuffle": None, "sampler": list(reversed(range(41)))}
    with sutler.Loader(dataset(photos), **arguments) as embedded:
        expected = batches(embedded)
    with sutler.Loader(dataset(photos), **arguments, agent=agent.socket) as attached:
        seen, held = [], []
        for index, batch in enumerate(attached):
            held.append(batch)
            seen.append(tuple(np.array(part) for part in batch))
            if index in (2, 6):
                agent.kill()
                agent.start()
        stats = attached.stats()
    assert stats["samples"] == 41
    assert stats["batches"] == 11
    assert_same([tuple(batch) for batch in held], seen)  # what the dead agents delivered is still there
    if order == "strict":
        assert_same(seen, expected)
    else:
        values = {int(i): image for images, _, ids in expected for image, i in zip(images, ids, strict=True)}
        ids = [int(i) for _, _, ids in seen for i in ids]
        assert sorted(ids) == list(range(41))
        for images, _, ids_of_batch in seen:
            for image, i in zip(images, ids_of_batch, strict=True):
                np.testing.assert_array_equal(image, values[int(i)])


def test_kills_at_random_moments_lose_and_repeat_nothing(agent: Agent, photos: Path) -> None:
    """Longer with more rounds: SUTLER_KILL_ROUNDS=50 kills some 500 agents."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(int(os.environ.get("SUTLER_KILL_ROUNDS", "1"))):
        ended = threading.Event()
        seen: list[int] = []

        def kill_now_and_then(moments: random.Random, ended: threading.Event, seen: list[int]) -> None:
            before = -1
            while not ended.wait(moments.uniform(0, 0.1)):
                if len(seen) > before:  # an agent that has delivered nothing is not missed
                    before = len(seen)
                    agent.kill()
                    agent.start()

        killer = threading.Thread(target=kill_now_and_then, args=(random.Random(draw.random()), ended, seen))
        arguments = COMMON | {"batch_size": draw.choice([1, 3]), "order": draw.choice(["strict", "ready"])}
        with sutler.Loader(dataset(photos), **arguments, agent=agent.socket) as loader:
            iterator = iter(loader)
            killer.start()
            try:
                for _, _, ids in iterator:
                    seen += ids.tolist()
                    time.sleep(draw.uniform(0, 0.02))
            finally:
                ended.set()
                killer.join()
        assert sorted(seen) == list(range(41))


@pytest.mark.parametrize("order", ["strict", "ready", "shared"])
def test_a_state_has_what_the_trainer_had_and_not_what_came_along(
    agent: Agent, photos: Path, order: Literal["strict", "ready", "shared"]
) -> None:
    """Small batches come several at a time, and those that wait in the client survive the agent."""
    arguments: dict[str, Any] = COMMON | {"batch_size": 2, "order": order}
    with sutler.Loader(dataset(photos), **arguments, agent=agent.socket) as loader:
        seen: list[int] = []
        for number, (_, _, ids) in enumerate(loader):
            seen += ids.tolist()
            if number == 4:
                state = json.loads(json.dumps(loader.state_dict()))
                middle = list(seen)
                agent.kill()
                agent.start()
        assert sorted(seen) == list(range(41))
    with sutler.Loader(dataset(photos), **arguments) as loader:
        loader.load_state_dict(state)
        rest = [index for _, _, ids in loader for index in ids.tolist()]
    assert sorted(middle + rest) == list(range(41))
    if order == "strict":
        assert middle + rest == seen


def test_an_agent_that_stays_away_is_an_error_and_no_hang(
    agent: Agent, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_agent, "PATIENCE", 0.3)
    loader = sutler.Loader(dataset(photos), **COMMON, agent=agent.socket)
    iterator = iter(loader)
    first = next(iterator)
    agent.kill()
    with pytest.raises(ConnectionError, match=r"is gone: it hung up, and none has come back within 0\.3 s"):
        for _ in iterator:
            pass
    assert first[0].shape == (4, 3, 32, 32)
    state = loader.state_dict()
    loader.close()
    with sutler.Loader(dataset(photos), **COMMON) as embedded:
        embedded.load_state_dict(state)
        assert 41 - sum(len(ids) for _, _, ids in embedded) == state["consumed"]


def test_with_auto_a_loader_goes_on_by_itself(
    agent: Agent, photos: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_agent, "PATIENCE", 0.3)
    monkeypatch.setenv("SUTLER_AGENT", str(agent.socket))
    with sutler.Loader(dataset(photos), **COMMON) as embedded:
        expected = batches(embedded) + batches(embedded)
    with sutler.Loader(dataset(photos), **COMMON, agent="auto") as attached:
        seen = []
        for index, batch in enumerate(attached):
            seen.append(tuple(np.array(part) for part in batch))
            if index == 2:
                agent.kill()
        seen += batches(attached)
        assert attached.stats()["samples"] == 82
    assert_same(seen, expected)
    assert capfd.readouterr().err.count("this loader goes on by itself\n") == 1


def test_a_stopped_agent_times_out_and_ctrl_c_is_heard(agent: Agent, photos: Path) -> None:
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket, timeout=3) as loader:
        iterator = iter(loader)
        next(iterator)
        agent.pause()
        try:
            with pytest.raises(RuntimeError, match="timed out after 3 seconds"):
                for _ in iterator:
                    pass
            loader.timeout = 0
        finally:
            agent.process.send_signal(signal.SIGCONT)
    waiting = client(
        """
        iterator = iter(loader())
        next(iterator)
        print("holding")
        sys.stdin.readline()
        try:
            print("waiting")
            for _ in iterator: pass
        except KeyboardInterrupt:
            print("heard")
        """,
        photos,
        agent.socket,
    )
    assert first_line(waiting) == "holding"
    agent.pause()
    try:
        assert waiting.stdin is not None
        waiting.stdin.write("go on\n")
        waiting.stdin.flush()
        assert first_line(waiting) == "waiting"
        time.sleep(0.2)  # for it to begin to wait; where that takes longer, it is interrupted before
        waiting.send_signal(signal.SIGINT)
        out, errors = waiting.communicate(timeout=120)
    finally:
        agent.process.send_signal(signal.SIGCONT)
    assert out == "heard\n", errors


def test_a_shared_epoch_goes_on_after_the_agent_was_killed(photos: Path, agent: Agent) -> None:
    with sutler.Loader(dataset(photos), agent=agent.socket, **SHARED) as loader:
        seen: list[int] = []
        for number, (_, _, ids) in enumerate(loader):
            seen += ids.tolist()
            if number == 2:
                state = loader.state_dict()
                middle = list(seen)
                agent.kill()
                agent.start()
        assert sorted(seen) == list(range(len(loader.dataset)))
    with sutler.Loader(dataset(photos), agent=agent.socket, **SHARED) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        rest = [index for _, _, ids in loader for index in ids.tolist()]
        assert sorted(middle + rest) == list(range(len(loader.dataset)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_told_to_end_leaves_nothing_behind(agent: Agent, number: int) -> None:
    assert agent.socket.stat().st_mode & 0o777 == 0o600
    assert agent.stop(number) == (0, "")
    assert not agent.socket.exists()


def serve(socket: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sutler", "serve", "--socket", str(socket)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_sockets_of_dead_agents_are_replaced_and_those_of_live_ones_are_not(
    agent: Agent, tmp_path: Path
) -> None:
    second = serve(agent.socket)
    assert second.returncode == 1
    assert f"an agent (process {agent.process.pid}) already listens" in second.stderr
    agent.kill()
    assert agent.socket.exists()
    agent.start()
    assert agent.jobs() == []
    plain = tmp_path / "file"
    plain.write_text("mine")
    refused = serve(plain)
    assert refused.returncode == 1
    assert "is not a socket" in refused.stderr
    assert plain.read_text() == "mine"
    assert serve(tmp_path / ("long" * 40)).returncode == 1
