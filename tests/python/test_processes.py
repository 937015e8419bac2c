"""However a process ends, forks or is interrupted: promptly, exactly, and with nothing left behind.

Each test runs in processes of its own. They use NumPy output, since importing PyTorch takes longer than all the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

#: What every script begins with: a dataset of 41 photos, a loader, and ways to look at them.
PRELUDE = """
import signal
# Whoever runs the tests in the background may have had Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

import hashlib, os, sys, threading, time
import numpy as np
import sutler
from sutler import transforms as T

photos = sys.argv[1]
dataset = sutler.ImageFolder(photos, T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip()]))

def make(batch_size=4, **arguments):
    arguments = {"num_workers": 2, "seed": 1, "output": "numpy", "return_ids": True} | arguments
    return sutler.Loader(dataset, batch_size, shuffle=True, **arguments)

def contents(batches):
    return [(ids.tolist(), hashlib.sha256(images.tobytes()).hexdigest()) for images, _, ids in batches]

def workers():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read())
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            pass
    return sum(name.startswith("sutler-") for name in names)

def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
"""


@pytest.fixture
def script(run_script: Run, photos: Path) -> Run:
    def run(code: str, **arguments: Any) -> subprocess.CompletedProcess[str]:
        return run_script(PRELUDE + textwrap.dedent(code), photos, **arguments)

    return run


def test_leaving_a_loop_early_costs_nothing(script: Run) -> None:
    script("""
        loader = make()
        for stop in (0, 1, 5):
            for number, batch in enumerate(loader):
                if number == stop:
                    break
            try:
                for number, batch in enumerate(loader):
                    if number == stop:
                        raise KeyError("the trainer's own")
            except KeyError:
                pass
        loader.set_epoch(0)
        assert contents(loader) == contents(make(num_workers=0))
        wait_for(lambda: workers() == 2, "threads are missing")
        loader.close()
        wait_for(lambda: workers() == 0, "threads are left")
    """)


def test_dropping_the_loader_ends_its_threads(script: Run) -> None:
    script("""
        loader = make(num_workers=5)
        iterator = iter(loader)
        batch = next(iterator)
        before = batch[0].copy()
        wait_for(lambda: workers() == 5, "threads are missing")
        del loader
        next(iterator)
        del iterator
        wait_for(lambda: workers() == 0, "threads are left")
        np.testing.assert_array_equal(batch[0], before)
    """)


@pytest.mark.parametrize(
    ("ending", "device"),
    [
        ("sys.exit(7)", None),
        ("os._exit(7)", None),
        ("threading.Thread(target=lambda: [None for _ in loader]).start(); sys.exit(7)", None),
        ("sys.exit(7)", "cpu"),
    ],
    ids=["sys.exit", "os._exit", "thread", "copying"],
)
def test_the_interpreter_may_end_in_the_middle(script: Run, ending: str, device: str | None) -> None:
    if device is not None:
        pytest.importorskip("torch")
    output = "torch" if device else "numpy"
    done = script(
        f"""
        loader = make(output={output!r}, device={device!r})
        iterator = iter(loader)
        next(iterator)
        {ending}
        """,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_a_daemon_thread_that_waits_does_not_crash_the_end(script: Run) -> None:
    done = script(
        """
        slow = sutler.ImageFolder(photos, T.Compose([T.Resize(900), T.GaussianBlur(23), T.CenterCrop(16)]))
        loader = sutler.Loader(slow, 41, num_workers=1, output="numpy")
        threading.Thread(target=lambda: list(loader), daemon=True).start()
        wait_for(lambda: workers() == 1, "the thread never began")
        sys.exit(7)
        """,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "panicked" not in done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("timeout", [0, 1000])
def test_ctrl_c_ends_a_wait(photos: Path, tmp_path: Path, threads: int, timeout: int) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        PRELUDE
        + textwrap.dedent(f"""
            slow = T.Compose([T.Resize(1200), T.GaussianBlur(23), T.CenterCrop(16)])
            order = list(range(41)) * 200  # minutes of work for one batch
            loader = sutler.Loader(sutler.ImageFolder(photos, slow), len(order), sampler=order,
                                   num_workers={threads}, timeout={timeout}, output="numpy")
            iterator = iter(loader)
            try:
                print("waiting", flush=True)
                next(iterator)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                consumed = loader.state_dict()["consumed"]
                assert consumed == 0
                sys.exit(5)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(photos)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)  # for it to begin to wait; where that takes longer, it is interrupted before
    process.send_signal(signal.SIGINT)
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (output, errors, process.returncode) == ("interrupted\n", "", 5)


def test_an_uncaught_ctrl_c_ends_the_process_as_python_does(script: Run) -> None:
    done = script(
        """
        for batch in make():
            signal.raise_signal(signal.SIGINT)
        """,
        check=False,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


FORK = """
def forked(child):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid

def joined(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.parametrize("threads", [0, 2])
def test_after_a_fork_both_go_on_exactly(script: Run, threads: int) -> None:
    script(
        FORK
        + f"""
arguments = {{"num_workers": {threads}}}
whole = contents(make(**arguments))
for stop in (0, 1, 4, 10):
    loader = make(**arguments)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(stop)]

    def child():
        assert contents(iterator) == whole[stop:], "the child's rest"
        assert loader.state_dict()["epoch"] == 1
        wait_for(lambda: workers() == {threads}, "threads are missing")
        del before[:]  # memory of the parent's engine
        loader.set_epoch(0)
        assert contents(loader) == whole, "the child's own epoch"
        assert loader.stats()["samples"] == 2 * 41 - sum(len(ids) for ids, _ in whole[:stop])
        loader.close()
        wait_for(lambda: workers() == 0, "threads are left")

    pid = forked(child)
    assert contents(iterator) == whole[stop:], "the parent's rest"
    joined(pid)
    loader.set_epoch(0)
    assert contents(loader) == whole
"""
    )


def test_forks_in_a_busy_moment_never_hang(script: Run) -> None:
    script(
        FORK
        + """
whole = contents(make())
loader = make(batch_size=1, num_workers=3)
pids = []
for number, batch in enumerate(loader):
    if number % 4 == 0:
        def child():
            assert contents(make()) == whole
            assert sum(1 for _ in loader) == 41
        pids.append(forked(child))
    if len(pids) > 2:
        joined(pids.pop(0))
for pid in pids:
    joined(pid)
""",
    )


def test_a_sampler_is_not_asked_again_after_a_fork(script: Run) -> None:
    script(
        FORK
        + """
import random
class Restless:
    def __iter__(self):
        return iter(random.sample(range(41), 41))

loader = sutler.Loader(dataset, 4, sampler=Restless(), output="numpy", return_ids=True)
iterator = iter(loader)
first = [i for _ in range(3) for i in next(iterator)[2].tolist()]

def child():
    random.seed(99)
    rest = [i for _, _, ids in iterator for i in ids.tolist()]
    assert sorted(first + rest) == list(range(41))

joined(forked(child))
rest = [i for _, _, ids in iterator for i in ids.tolist()]
assert sorted(first + rest) == list(range(41))
"""
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_datasets_travel_to_other_processes(script: Run, method: str) -> None:
    script(
        f"""
        import multiprocessing

        def digest(dataset, index):
            return hashlib.sha256(np.asarray(dataset[index][0]).tobytes()).hexdigest()

        sutler.datasets.resolve_output = lambda output: "numpy"  # for importing PyTorch takes seconds

        if __name__ == "__main__":
            here = [digest(dataset, index) for index in range(8)]
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                there = pool.starmap(digest, [(dataset, index) for index in range(8)])
            assert here == there
        """
    )


def test_a_dataset_that_changed_on_the_way_is_refused(own_photos: Path) -> None:
    import pickle

    import sutler

    sent = pickle.dumps(sutler.ImageFolder(own_photos))
    assert len(pickle.loads(sent)) == 12
    (own_photos / "class_0" / "photo_000000.jpg").unlink()
    with pytest.raises(ValueError, match=r"fingerprint .* \(11 samples\)"):
        pickle.loads(sent)


def test_kill_leaves_nothing_behind(
    photos: Path, tmp_path: Path, shared_memory_of: Callable[[int], set[str]]
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        PRELUDE + "iterator = iter(make())\nnext(iterator)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    own_tmp = tmp_path / "tmp"
    own_tmp.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(photos)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(own_tmp)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    shared = shared_memory_of(process.pid)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert children == "", "threads, not processes"
    assert shared == set()
    assert os.listdir(own_tmp) == []


def test_memory_stays_flat_over_epochs_and_hoarding_is_given_back(script: Run) -> None:
    script("""
        import gc

        def resident():
            gc.collect()
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

        loader = make()
        for _ in range(5):
            list(loader)
        settled = resident()
        for _ in range(20):
            for batch in loader:
                pass
            hoard = list(loader)
            del hoard
        grown = resident() - settled
        assert grown < 8, f"{grown:.1f} MiB more after 40 epochs"

        # Fresh loaders, each broken off: nothing of them may stay.
        del batch, loader
        for _ in range(60):
            loader = make()
            iterator = iter(loader)
            next(iterator)
            del loader, iterator
        wait_for(lambda: workers() == 0, "threads are left")
        grown = resident() - settled
        assert grown < 16, f"{grown:.1f} MiB more after 60 loaders"
    """)


def test_running_out_of_memory_is_an_error_and_not_a_hang(script: Run) -> None:
    script("""
        import resource
        big = sutler.ImageFolder(photos, T.Compose([T.Resize(512), T.CenterCrop(512)]))
        loader = sutler.Loader(big, 20, num_workers=2, output="numpy", sampler=list(range(41)) * 20)
        iterator = iter(loader)
        hoard = [next(iterator)]
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))
        try:
            for batch in iterator:
                hoard.append(batch)
        except MemoryError as error:
            assert "batch memory could not be had" in str(error)
            assert len(hoard) > 4
        else:
            raise AssertionError("there cannot have been so much memory")
    """)
