"""The host agent: the same batches as embedded, for many clients, whoever dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import _agent, _sutler
from sutler import transforms as T  # noqa: N812 - as users write it


class Agent:
    """`sutler serve` in a process of its own."""

    def __init__(self, socket: Path, *options: str) -> None:
        self.socket = socket
        self.options = options
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "sutler",
            "serve",
            "--socket",
            self.socket,
            "--threads",
            "2",
            "--json",
            *self.options,
        ]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert json.loads(line) == {"ready": True, "socket": str(self.socket), "http": None}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def pause(self) -> None:
        """Stops it until it is told to go on; what it was at when it was told goes on for a moment."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def stop(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(signal_number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_sutler.agent_status(self.socket))
        return found

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["jobs"]
        return found

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 120
        while not condition(jobs := self.jobs()):
            assert time.monotonic() < deadline, jobs
            time.sleep(0.02)
        return jobs


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    started = Agent(tmp_path / "agent.sock")
    yield started
    if started.process.poll() is None:
        started.stop()


TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32")])


def dataset(folder: Path, transform: Any = TRANSFORM) -> sutler.ImageFolder:
    return sutler.ImageFolder(folder, transform=transform)


def batches(loader: sutler.Loader) -> list[tuple[Any, ...]]:
    return [tuple(np.array(part) for part in batch) for batch in loader]


def assert_same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


COMMON: dict[str, Any] = {"batch_size": 4, "shuffle": True, "output": "numpy", "return_ids": True}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"channels_last": True, "drop_last": True, "seed": 7},
        {"shuffle": None, "sampler": [5, 3, 3, 40, -1, 0, 2]},
        {"shuffle": None, "batch_size": 1, "batch_sampler": [[1, 2], [3], [4, 5, 6, 7, 8, 9], [0]]},
        {"rank": 1, "world_size": 3},
        {"batch_size": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_an_embedded_loader(
    agent: Agent, photos: Path, arguments: dict[str, Any]
) -> None:
    arguments = COMMON | arguments
    with (
        sutler.Loader(dataset(photos), **arguments) as embedded,
        sutler.Loader(dataset(photos), **arguments, agent=agent.socket) as attached,
    ):
        for _ in range(2):
            assert_same(batches(attached), batches(embedded))
        assert len(attached) == len(embedded)
        ours, theirs = attached.stats(), embedded.stats()
        for key in ("samples", "batches", "failed", "storage_bytes"):
            assert ours[key] == theirs[key], key
        assert ours["stages"].keys() == theirs["stages"].keys()


def test_a_subset_is_served_as_by_an_embedded_loader(agent: Agent, photos: Path) -> None:
    subset = pytest.importorskip("torch.utils.data").Subset(dataset(photos), [30, 2, 2, 17, -1, 5, 9])
    for arguments in ({}, {"shuffle": None, "sampler": [6, 0, 3]}, {"order": "ready"}):
        with (
            sutler.Loader(subset, **COMMON | arguments) as embedded,
            sutler.Loader(subset, **COMMON | arguments, agent=agent.socket) as attached,
        ):
            if "order" in arguments:
                ids = [
                    np.concatenate([batch[-1] for batch in batches(each)]) for each in (attached, embedded)
                ]
                assert sorted(ids[0]) == sorted(ids[1])
            else:
                assert_same(batches(attached), batches(embedded))


def test_images_that_differ_in_size_come_one_by_one(agent: Agent, photos: Path) -> None:
    arguments = COMMON | {"batch_size": None, "shuffle": None}
    with (
        sutler.Loader(dataset(photos, None), **arguments) as embedded,
        sutler.Loader(dataset(photos, None), **arguments, agent=agent.socket) as attached,
    ):
        assert_same(batches(attached), batches(embedded))


def test_sound_is_padded_where_it_arrives(agent: Agent, tmp_path: Path) -> None:
    sutler.testing.make_tones(tmp_path / "tones", count=20, classes=2)
    speech = sutler.AudioFolder(
        tmp_path / "tones",
        T.Compose([T.SpeedPerturb(), T.LogMel(n_mels=16)]),
        padding_value=-1.0,
        max_duration=0.6,
    )
    with (
        sutler.Loader(speech, **COMMON) as embedded,
        sutler.Loader(speech, **COMMON, agent=agent.socket) as attached,
    ):
        for _ in range(2):
            assert_same(batches(attached), batches(embedded))


def test_hoarded_batches_stay_as_they_were(agent: Agent, photos: Path) -> None:
    with sutler.Loader(dataset(photos), **COMMON) as embedded:
        expected = batches(embedded)
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as attached:
        hoard = list(attached)
        assert_same([tuple(batch) for batch in hoard], expected)
    agent.kill()
    assert_same(
        [tuple(batch) for batch in hoard], expected
    )  # neither the loader nor the agent is there any more


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


def test_without_an_agent_auto_says_one_line_and_a_path_is_an_error(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUTLER_AGENT", str(tmp_path / "nobody.sock"))
    with pytest.warns(RuntimeWarning, match=r"there is no such socket; .*`sutler serve`") as said:
        loader = sutler.Loader(dataset(photos), **COMMON, agent="auto")
    assert len(said) == 1
    assert said[0].filename == __file__
    with loader, sutler.Loader(dataset(photos), **COMMON) as embedded:
        assert_same(batches(loader), batches(embedded))
    with pytest.raises(ConnectionError, match="there is no such socket"):
        sutler.Loader(dataset(photos), **COMMON, agent=tmp_path / "nobody.sock")
    (tmp_path / "plain").touch()
    for no_socket in (tmp_path / "plain", tmp_path):
        with pytest.raises(ConnectionError, match=r": that is no socket; start one"):
            sutler.Loader(dataset(photos), **COMMON, agent=no_socket)
    with pytest.raises(ValueError, match="agent='' names no socket"):
        sutler.Loader(dataset(photos), **COMMON, agent="")


def test_a_dataset_written_in_python_stays_here(agent: Agent) -> None:
    with pytest.warns(RuntimeWarning, match="an agent prepares native datasets"):
        loader = sutler.Loader(list(range(5)), agent=agent.socket)
    assert len(list(loader)) == 5
    assert agent.jobs() == []


@pytest.mark.parametrize(("arguments", "error"), [({"agent": 3}, TypeError), ({"job_name": "x"}, ValueError)])
def test_wrong_arguments(photos: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        sutler.Loader(dataset(photos), **arguments)


def client(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A training process that prints as it goes."""
    prelude = """
        import os, signal, sys, time
        # Whoever runs the tests in the background may have had Ctrl-C ignored, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import sutler
        from sutler import transforms as T
        folder, socket = sys.argv[1:3]
        data = sutler.ImageFolder(folder, transform=T.Compose([T.Resize([32, 32])]))
        def loader(**arguments):
            return sutler.Loader(data, batch_size=4, output="numpy", return_ids=True, agent=socket, **arguments)
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    command = [sys.executable, "-u", "-c", code, *map(str, arguments)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a forked child"])
def test_what_a_killed_client_held_is_given_back_and_others_go_on(
    agent: Agent, photos: Path, with_child: bool
) -> None:
    victim = client(
        f"""
        mine = loader()
        iterator = iter(mine)
        held = [next(iterator) for _ in range(3)]
        if {with_child} and os.fork() == 0:
            os.close(1)
            os.close(2)
            time.sleep(60)  # keeps the parent's socket open
            os._exit(0)
        print("holding")
        time.sleep(60)
        """,
        photos,
        agent.socket,
    )
    assert first_line(victim) == "holding"
    (job,) = agent.wait_for(lambda jobs: jobs[0]["batches_held"] > 3)
    assert job["pid"] == victim.pid
    # Three in its hands, and those that came with them or are on their way: the first alone, then up to four at once.
    assert 4 <= job["batches_held"] <= 9
    assert job["memory_bytes"] >= 4 * 3 * 32 * 32
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as other:
        iterator = iter(other)
        next(iterator)
        victim.kill()
        victim.communicate()
        jobs = agent.wait_for(lambda jobs: len(jobs) == 1)
        assert jobs[0]["pid"] == os.getpid()
        assert sum(1 for _ in iterator) == 10
    agent.wait_for(lambda jobs: not jobs)


def test_ranks_and_jobs_share_an_agent(agent: Agent, photos: Path) -> None:
    script = """
        rank, world = int(sys.argv[3]), int(sys.argv[4])
        mine = loader(shuffle=True, rank=rank, world_size=world)
        for _ in range(3):
            print(*[int(i) for _, _, ids in mine for i in ids])
    """
    ranks = [client(script, photos, agent.socket, rank, 2) for rank in range(2)]
    another = client(script, photos, agent.socket, 0, 1)
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as here:
        seen = sorted(int(i) for _, _, ids in here for i in ids)
    assert seen == list(range(41))
    outputs = [process.communicate(timeout=120) for process in (*ranks, another)]
    assert all(not errors for _, errors in outputs)
    epochs = [[list(map(int, line.split())) for line in out.splitlines()] for out, _ in outputs]
    for zero, one, whole in zip(*epochs, strict=True):
        assert len(zero) == len(one) == 21  # of 41 samples one comes twice
        assert set(zero + one) == set(range(41))
        assert sorted(whole) == list(range(41))
    assert epochs[2][0] != epochs[2][1]


def test_ranks_may_come_one_after_the_other_to_an_epoch_of_another_length(agent: Agent, photos: Path) -> None:
    named: dict[str, Any] = COMMON | {"agent": agent.socket, "job_name": "longer", "world_size": 2}
    subset = pytest.importorskip("torch.utils.data").Subset
    parts = [subset(dataset(photos), range(20)) for _ in range(2)]
    with (
        sutler.Loader(parts[0], **named, rank=0) as first,
        sutler.Loader(parts[1], **named, rank=1) as second,
    ):
        for samples in (20, 41):
            for part in parts:
                part.indices = range(samples)
            assert len(batches(first)) == len(batches(second)) == -(-samples // 2 // 4)


def test_jobs_of_one_name_have_the_same_arguments(agent: Agent, photos: Path) -> None:
    differences: list[tuple[dict[str, Any], str]] = [
        ({"seed": 3}, "seed 0, this one asks for 3"),
        ({"world_size": 3}, "world_size 2, this one asks for 3"),
        ({"shuffle": False}, "shuffle True, this one asks for False"),
        ({"drop_last": True}, "drop_last False, this one asks for True"),
        ({"order": "shared"}, 'order "strict", this one asks for "shared"'),
        (
            {"errors": sutler.Errors(max=3)},
            r'errors "raise", this one asks for Errors\(max=3, rate=None\)',
        ),
    ]
    named: dict[str, Any] = COMMON | {"agent": agent.socket, "job_name": "vision", "world_size": 2, "rank": 1}
    with (
        sutler.Loader(dataset(photos), **named | {"rank": 0}) as first,
        sutler.Loader(dataset(photos), **named) as second,
    ):
        assert len(batches(first)) == len(batches(second))
        for differently, message in differences:
            with (
                sutler.Loader(dataset(photos), **named | differently) as wrong,
                pytest.raises(
                    ValueError, match=rf'a job named "vision" runs with {message}; ranks of one job'
                ),
            ):
                next(iter(wrong))
        assert len(batches(first)) == len(batches(second))


def test_ranks_may_have_different_numbers_of_workers(agent: Agent, photos: Path) -> None:
    named: dict[str, Any] = COMMON | {"batch_size": 1, "agent": agent.socket, "job_name": "ranks"}
    named |= {"world_size": 2, "order": "ready"}
    with (
        sutler.Loader(dataset(photos), **named | {"rank": 0, "num_workers": 2}) as first,
        sutler.Loader(dataset(photos), **named | {"rank": 1, "num_workers": 16}) as second,
        sutler.Loader(dataset(photos), **named | {"rank": 1, "lateness": 9}) as wrong,
    ):
        assert first.lateness != second.lateness
        assert len(batches(first)) == len(batches(second))
        with pytest.raises(ValueError, match="lateness None, this one asks for 9; ranks of one job"):
            next(iter(wrong))


def test_a_dataset_that_has_changed_is_refused(agent: Agent, own_photos: Path) -> None:
    listed = dataset(own_photos)
    next(own_photos.rglob("*.jpg")).unlink()
    with (
        sutler.Loader(listed, **COMMON, agent=agent.socket) as loader,
        pytest.raises(ValueError, match=r"the loader listed fingerprint .* the agent finds fingerprint"),
    ):
        iter(loader)


def test_bad_samples_are_the_same_errors(agent: Agent, own_photos: Path) -> None:
    for path in sorted(own_photos.rglob("*.jpg"))[3:5]:
        path.write_bytes(b"not a picture")
    arguments = COMMON | {"shuffle": False}
    with (
        sutler.Loader(dataset(own_photos), **arguments, errors="skip") as embedded,
        sutler.Loader(dataset(own_photos), **arguments, errors="skip", agent=agent.socket) as attached,
    ):
        assert_same(batches(attached), batches(embedded))
        assert attached.failures() == embedded.failures()
        assert len(attached.failures()) == attached.stats()["failed"] == 2
    for policy in ("raise", sutler.Errors(max=1)):
        errors = []
        for where in (None, agent.socket):
            with sutler.Loader(dataset(own_photos), **arguments, errors=policy, agent=where) as loader:
                with pytest.raises(sutler.SutlerError) as raised:
                    list(loader)
                errors.append((type(raised.value), str(raised.value)))
        assert errors[0] == errors[1]


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


def test_a_forked_child_attaches_for_itself(agent: Agent, photos: Path) -> None:
    forking = client(
        """
        mine = loader()
        iterator = iter(mine)
        seen = [list(map(int, next(iterator)[2]))]
        sys.stdout.flush()
        child = os.fork()
        seen += [list(map(int, ids)) for _, _, ids in iterator]
        flat = [i for ids in seen for i in ids]
        assert flat == list(range(41)), flat
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print("done")
        """,
        photos,
        agent.socket,
    )
    out, errors = forking.communicate(timeout=120)
    assert out == "done\n", errors


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_other_users_are_not_served(agent: Agent) -> None:
    agent.socket.chmod(0o666)  # so that only the check of who is there keeps them out
    for folder in agent.socket.parents:
        if folder.stat().st_uid == 0 and folder.parts[-1:] != ("/",):
            folder.chmod(folder.stat().st_mode | 0o011)
    code = f"""
        import os, socket
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect({str(agent.socket)!r})
            print(stream.recv(4000))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "the agent serves its own user and root only: it belongs to user 65534" in done.stdout, done.stderr
    status, errors = agent.stop()
    assert status == 0
    assert "a connection was refused: it belongs to user 65534" in errors


def test_nonsense_ends_the_connection_and_nothing_else(agent: Agent, photos: Path) -> None:
    for nonsense in (
        b"\xff\xff\xff\xff",
        b"\x02\x00\x00\x00{}",
        b"GET / HTTP/1.1\r\n\r\n",
        b'\x05\x00\x00\x00"stop',
    ):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(30)
            stream.connect(str(agent.socket))
            stream.sendall(nonsense)
            stream.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # it did not even read all of it
                assert stream.recv(100) == b""
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(batches(loader)) == 11


SHARED: dict[str, Any] = {**COMMON, "order": "shared"}


def take_turns(loaders: list[sutler.Loader], epochs: int) -> list[list[dict[int, bytes]]]:
    """Epochs of several loaders, a batch of each in turn: for each loader and epoch the bytes of every sample."""
    found: list[list[dict[int, bytes]]] = []
    for _ in range(epochs):
        iterators = [iter(loader) for loader in loaders]
        epoch: list[dict[int, bytes]] = [{} for _ in loaders]
        running = list(range(len(loaders)))
        while running:
            for number in list(running):
                batch = next(iterators[number], None)
                if batch is None:
                    running.remove(number)
                    continue
                images, _, ids = batch
                for index, image in zip(ids.tolist(), images, strict=True):
                    assert index not in epoch[number], "twice in an epoch"
                    epoch[number][index] = image.tobytes()
        found.append(epoch)
    return found


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


def test_figures_are_those_of_the_batches_in_hand(photos: Path, agent: Agent) -> None:
    """Whatever is on its way: what is counted of samples is counted when the trainer has them."""
    for options in (COMMON, SHARED):
        with sutler.Loader(dataset(photos), agent=agent.socket, **options) as loader:
            sizes = [Path(path).stat().st_size for path, _ in loader.dataset.samples]
            seen: list[int] = []
            for _ in range(2):
                for _, _, ids in loader:
                    seen += ids.tolist()
                    figures = loader.stats()
                    assert figures["samples"] == len(seen)
                    assert figures["served"] == {
                        "storage": len(seen),
                        "encoded": 0,
                        "decoded": 0,
                        "augmented": 0,
                    }
                    assert figures["storage_reads"] == len(seen)
                    assert figures["storage_bytes"] == sum(sizes[index] for index in seen)
            batches_seen = figures["batches"]
            # What was sent and not taken does not count.
            next(iter(loader))
            assert loader.stats()["batches"] == batches_seen + 1
            assert loader.stats()["storage_reads"] == loader.stats()["samples"]


def test_figures_count_what_bad_samples_cost(tmp_path: Path, agent: Agent) -> None:
    """A batch without a good sample is passed over; that its files were read is counted all the same."""
    sutler.testing.make_photos(tmp_path / "some", count=12, classes=2, longer_side=64)
    files = sorted((tmp_path / "some").rglob("*.jpg"))
    for path in files[-6:]:
        path.write_bytes(b"broken")
    photos = dataset(tmp_path / "some")
    with sutler.Loader(photos, batch_size=3, output="numpy", errors="skip", agent=agent.socket) as ours:
        assert sum(len(labels) for _, labels in ours) == 6
        figures = ours.stats()
    assert (figures["samples"], figures["failed"], figures["served"]["storage"]) == (6, 6, 6)
    assert figures["storage_reads"] == 12
    assert figures["storage_bytes"] == sum(path.stat().st_size for path in files)


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
