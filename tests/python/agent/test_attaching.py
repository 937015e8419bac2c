"""Who attaches to an agent, and who does not."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing

from .serving import COMMON, Agent, assert_same, batches, client, dataset, first_line


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
    # Two came before the third, however they travelled; with the third came up to three others; and up to four were
    # asked for when it came.
    assert 4 <= job["batches_held"] <= 2 + 4 + 4
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


def test_its_workers_do_not_give_way(agent: Agent) -> None:
    """As they do in a trainer's process: here they would only be late."""

    def workers_of() -> list[int]:
        tasks = Path(f"/proc/{agent.process.pid}/task").iterdir()
        return [int(task.name) for task in tasks if (task / "comm").read_text().startswith("sutler-")]

    deadline = time.monotonic() + 60
    while len(workers := workers_of()) < 2:  # a thread takes its name once it runs
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {os.sched_getscheduler(worker) for worker in workers} == {os.sched_getscheduler(0)}


def test_figures_tell_who_prepares(agent: Agent, photos: Path) -> None:
    with sutler.Loader(dataset(photos), **COMMON, agent=agent.socket) as attached:
        assert attached.stats()["agent"] == str(agent.socket)
    with sutler.Loader(dataset(photos), **COMMON) as embedded:
        assert embedded.stats()["agent"] is None


def test_a_socket_in_no_folder_is_said_to_be_one(tmp_path: Path) -> None:
    socket_path = tmp_path / "nowhere" / "agent.sock"
    words = [sys.executable, "-m", "sutler", "serve", "--socket", str(socket_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"there is no folder {socket_path.parent} to put the socket" in done.stderr
