"""Worker processes of datasets written in Python: whatever happens to the trainer or to them, nothing stays behind.

The scripts use NumPy output, since importing PyTorch takes longer than all the rest.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Gone = Callable[[list[int]], list[int]]

PRELUDE = """
import multiprocessing, os, signal, sys, time
import numpy as np
import sutler

class Squares:
    def __init__(self, count, seconds=0.0):
        self.count, self.seconds = count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.full(3, index), index * index

def make(dataset, **arguments):
    arguments = {"batch_size": 4, "num_workers": 2, "output": "numpy", "multiprocessing_context": "fork"} | arguments
    return sutler.Loader(dataset, **arguments)

def workers():
    return [process.pid for process in multiprocessing.active_children()]
"""


@pytest.mark.parametrize("seconds", [0.0, 0.5], ids=["quick samples", "slow samples"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_trainer_takes_its_workers_along(
    tmp_path: Path,
    wait_until_gone: Gone,
    shared_memory_of: Callable[[int], set[str]],
    seconds: float,
    persistent: bool,
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        PRELUDE
        + f"iterator = iter(make(Squares(1000, {seconds}), persistent_workers={persistent}, batch_size=1))\n"
        + "next(iterator)\nprint(*workers(), flush=True)\ntime.sleep(60)\n"
    )
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2
    shared = {name for pid in [trainer.pid, *pids] for name in shared_memory_of(pid)}
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    trainer.stdout.close()
    assert wait_until_gone(pids) == []
    assert shared == set()


def test_a_killed_trainer_does_not_wait_for_samples_under_way(tmp_path: Path, wait_until_gone: Gone) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        PRELUDE
        + "iterator = iter(make(Squares(1000, 600.0)))\nprint(*workers(), flush=True)\nnext(iterator)\n"
    )
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    time.sleep(0.2)  # for them to begin with a sample
    trainer.kill()
    trainer.wait(10)
    trainer.stdout.close()
    assert len(pids) == 2
    assert wait_until_gone(pids) == []


def test_a_killed_trainer_leaves_no_socket_of_the_fork_server(
    run_script: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run_script(
        PRELUDE
        + """
if __name__ == "__main__":
    loader = make(Squares(8), multiprocessing_context="forkserver")
    assert len(list(loader)) == 2
    assert workers() == []  # none is left that could delete anything
    print(os.listdir(os.environ["TMPDIR"]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
""",
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "pymp-" in done.stdout
    deadline = time.monotonic() + 60
    while left := list(tmp_path.rglob("*")):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_that_stay_outlast_a_long_pause(run_script: Run, context: str) -> None:
    run_script(
        PRELUDE
        + f"""
if __name__ == "__main__":
    loader = make(Squares(8), persistent_workers=True, multiprocessing_context={context!r})
    assert len(list(loader)) == 2
    time.sleep(2.5)
    assert len(list(loader)) == 2
"""
    )


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_dead_worker_is_noticed_though_a_process_of_its_own_lives_on(run_script: Run, errors: str) -> None:
    run_script(
        PRELUDE
        + f"""
trainer = os.getpid()

class Deadly(Squares):
    def __getitem__(self, index):
        if index == 7:
            if os.fork() == 0:
                os.close(1), os.close(2)  # whoever runs this waits until nobody can write any more
                while os.path.exists(f"/proc/{{trainer}}/exe"):
                    time.sleep(0.05)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

try:
    ids = [int(each) for *_, batch in make(Deadly(20), errors={errors!r}, return_ids=True) for each in batch]
    assert sorted(ids) == [each for each in range(20) if each != 7], ids
except sutler.WorkerError as error:
    assert {errors!r} == "raise" and error.sample == 7, error
"""
    )


def test_workers_that_come_too_late_for_a_short_epoch_say_nothing(run_script: Run) -> None:
    done = run_script(
        PRELUDE
        + "for _ in range(12):\n    assert len(list(make(Squares(4), batch_size=2, num_workers=4))) == 2\n"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "del loader, iterator", "loader.close()"])
def test_a_trainer_that_ends_in_the_middle_leaves_no_worker(
    run_script: Run, wait_until_gone: Gone, ending: str
) -> None:
    done = run_script(
        PRELUDE
        + "loader = make(Squares(1000), persistent_workers=True)\niterator = iter(loader)\nnext(iterator)\n"
        + f"print(*workers(), flush=True)\n{ending}\n"
    )
    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert wait_until_gone(pids) == []


def test_a_dropped_loader_ends_workers_that_were_to_stay(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
loader = make(Squares(20), persistent_workers=True)
assert len(list(loader)) == 5 and len(workers()) == 2
del loader
assert workers() == []
"""
    )


def test_a_sample_that_kills_its_worker_is_left_out_on_request(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
class Deadly(Squares):
    def __getitem__(self, index):
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

loader = make(Deadly(20), errors="skip", return_ids=True)
ids = [int(each) for *_, batch in loader for each in batch]
assert sorted(ids) == [each for each in range(20) if each != 7], ids
(failure,) = loader.failures()
assert (failure.id, failure.kind) == (7, "worker_lost"), failure
assert "signal 9 (SIGKILL)" in failure.reason, failure
"""
    )


@pytest.mark.parametrize(
    ("context", "errors", "order"),
    [
        ("spawn", "skip", "ready"),
        ("spawn", "skip", "strict"),
        ("spawn", "raise", "strict"),
        ("forkserver", "skip", "ready"),
    ],
)
def test_workers_that_cannot_import_the_script_are_an_error_at_once(
    run_script: Run, context: str, errors: str, order: str
) -> None:
    run_script(
        PRELUDE
        + f"""
open(sys.argv[0] + ".starts", "a").write("x")
loader = make(Squares(20), multiprocessing_context={context!r}, errors={errors!r}, order={order!r})
try:
    list(loader)
except sutler.WorkerStartError as error:
    assert isinstance(error, RuntimeError)
    assert str(error).startswith("Python's fork server ended before it could start DataLoader worker 0") or (
        "ended with exit code 1 before it could take its first sample" in str(error)
    ), error
    assert 'if __name__ == "__main__":' in str(error), error
    assert loader.failures() == [], loader.failures()
    # This process and two workers, or the fork server where that imports it: none is started in place of those.
    assert len(open(sys.argv[0] + ".starts").read()) <= 3
else:
    raise AssertionError("no worker can begin")
"""
    )


@pytest.mark.parametrize(("dataset", "samples"), [("Squares(20)", 20), ("Stream()", 2 * 20)])
def test_a_fork_server_that_ends_is_an_error_at_once(
    run_script: Run, tmp_path: Path, dataset: str, samples: int
) -> None:
    # From Python 3.14 on it ends over a script that nothing guards; a module that it is to import does it in any.
    (tmp_path / "unfit_for_servers.py").write_text("raise RuntimeError('this module is unfit for servers')")
    run_script(
        PRELUDE
        + f"""
import multiprocessing

class Stream:
    def __iter__(self):
        return iter(range(20))

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = {str(tmp_path)!r}  # the server's path is this or, later, that of this process
    sys.path.append(os.environ["PYTHONPATH"])
    multiprocessing.set_forkserver_preload(["unfit_for_servers"])
    loader = make({dataset}, multiprocessing_context="forkserver")
    try:
        list(loader)
    except sutler.WorkerStartError as error:
        assert "fork server ended before it could start DataLoader worker 0" in str(error), error
    else:
        raise AssertionError("no worker can begin")
    multiprocessing.set_forkserver_preload([])
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # until the server is gone Python starts no other
    assert sum(len(batch[0] if isinstance(batch, list) else batch) for batch in loader) == {samples}
"""
    )


@pytest.mark.parametrize(
    ("dataset", "errors", "tries"),
    [("Squares(20)", "raise", 1), ("Squares(20)", "skip", 2), ("Stream()", "raise", 1)],
)
def test_workers_that_are_killed_at_their_start_are_tried_once_more_at_most(
    run_script: Run, dataset: str, errors: str, tries: int
) -> None:
    run_script(
        PRELUDE
        + f"""
class Stream:
    def __iter__(self):
        return iter(range(20))

def fatal(worker):
    with open(sys.argv[0] + ".starts", "a") as starts:
        starts.write("x")
    os.kill(os.getpid(), signal.SIGKILL)

try:
    list(make({dataset}, num_workers=1, worker_init_fn=fatal, errors={errors!r}))
except sutler.WorkerStartError as error:
    assert "was killed by signal 9 (SIGKILL) before it could take its first sample" in str(error), error
    assert "worker_init_fn" in str(error), error
else:
    raise AssertionError("no worker can begin")
assert len(open(sys.argv[0] + ".starts").read()) == {tries}
"""
    )


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", ["Squares(20)", "Stream()"])
@pytest.mark.parametrize("when", ["at its start", "later"])
def test_no_worker_outlives_one_whose_death_ended_the_epoch(
    run_script: Run, dataset: str, persistent: bool, when: str
) -> None:
    """Though somebody keeps the error, and with it all that was under way."""
    run_script(
        PRELUDE
        + f"""
mark = sys.argv[0] + ".died"

def die_once():
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(5)

class Stream:
    def __iter__(self):
        for index in range(20):
            yield Squares(20)[index]

class Deadly(Squares):
    def __getitem__(self, index):
        if index == 13:
            die_once()
        return super().__getitem__(index)

class DeadlyStream(Stream):
    def __iter__(self):
        for index, sample in enumerate(super().__iter__()):
            if index == 13:
                die_once()
            yield sample

def fatal_once(worker):
    if worker == 1:
        die_once()

if {when!r} == "later":
    dataset = Deadly(20) if {dataset!r} == "Squares(20)" else DeadlyStream()
    loader = make(dataset, persistent_workers={persistent})
    expected = sutler.WorkerError
else:
    loader = make({dataset}, worker_init_fn=fatal_once, persistent_workers={persistent})
    expected = sutler.WorkerStartError

batches = iter(loader)
errors = []
for _ in range(20):
    try:
        next(batches)
    except expected as error:
        errors.append(error)
        assert workers() == [], "the others live on"
    if len(errors) == 3:
        break
assert len({{str(error) for error in errors}}) == 1, "it stays as it is"
assert len(errors) == 3

streams = not isinstance(loader.dataset, Squares)
assert sum(len(squares) for _, squares in loader) == (40 if streams else 20), "the next epoch has new workers"
assert len(workers()) == (2 if {persistent} else 0)
"""
    )


def test_a_failed_start_leaves_nothing_to_the_garbage_collector(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
import gc, weakref

def fatal(worker):
    os._exit(5)

gc.disable()
loader = make(Squares(20), worker_init_fn=fatal)
alive = weakref.ref(loader)
try:
    list(loader)
except sutler.WorkerStartError:
    pass
del loader
assert alive() is None
"""
    )


def test_a_worker_that_is_killed_once_at_its_start_costs_no_sample(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
def fatal_once(worker):
    mark = f"{sys.argv[0]}.{worker}"
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

loader = make(Squares(20), worker_init_fn=fatal_once, errors="skip", return_ids=True)
assert sorted(int(each) for *_, ids in loader for each in ids) == list(range(20))
assert loader.failures() == []
assert sum(os.path.exists(f"{sys.argv[0]}.{worker}") for worker in range(2)) > 0
"""
    )


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_sample_whose_worker_died_once_is_tried_again_where_errors_allow(
    run_script: Run, order: str
) -> None:
    run_script(
        PRELUDE
        + f"""
class DeadlyOnce(Squares):
    def __init__(self, count, path):
        super().__init__(count)
        self.path = path
    def __getitem__(self, index):
        if index == 7 and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

loader = make(DeadlyOnce(20, sys.argv[0] + ".died"), errors="skip", return_ids=True, order={order!r})
batches = list(loader)
assert sorted(int(each) for *_, ids in batches for each in ids) == list(range(20))
assert all((squares == ids**2).all() for _, squares, ids in batches)
assert loader.failures() == []

try:
    list(make(DeadlyOnce(20, sys.argv[0] + ".died again"), order={order!r}))
except sutler.WorkerError as error:
    assert error.sample == 7, error
else:
    raise AssertionError("errors='raise' allows no second try")
"""
    )


def test_a_slow_sample_keeps_its_worker_and_not_the_rest_of_its_batch(run_script: Run) -> None:
    """The slow one is done when all others of its batch, and of the next, are: by the other worker."""
    run_script(
        PRELUDE
        + """
class Last(Squares):
    others = multiprocessing.Value("i", 0)
    def __getitem__(self, index):
        if index == 96:
            deadline = time.monotonic() + 60
            while self.others.value < 15:
                assert time.monotonic() < deadline, self.others.value
                time.sleep(0.001)
        elif index > 96:
            with self.others.get_lock():
                self.others.value += 1
        return super().__getitem__(index)

# Ten milliseconds each, since samples that take microseconds are handed over several at a time.
loader = make(Last(112, 0.01), batch_size=8)
assert [row.tolist() for row, _ in loader][12][0] == [96] * 3
"""
    )


def test_keys_and_numbers_are_named_as_they_were_drawn(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
words = {"one": 1, "two": 2, -3: 3}
for count in (0, 2):
    context = "fork" if count else None
    options = {"num_workers": count, "multiprocessing_context": context, "return_ids": True, "batch_size": 2}
    loader = make(words, sampler=["two", -3, "one"], **options)
    assert [ids for _, ids in loader] == [["two", -3], ["one"]]
    state = loader.state_dict()
    assert state["epoch"] == 1
loader = make(words, sampler=["two", "four", "one"], errors="skip", batch_size=1)
assert [batch.tolist() for batch in loader] == [[2], [1]]
(failure,) = loader.failures()
assert failure.path == "key 'four'" and "KeyError" in failure.reason, failure
"""
    )


def test_random_numbers_of_a_sample_depend_on_neither_workers_nor_neighbours(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
class Drawing(Squares):
    def __getitem__(self, key):
        return np.random.random()

def values(count, sampler, size):
    context = "fork" if count else None
    loader = make(Drawing(9), num_workers=count, multiprocessing_context=context, batch_size=size, sampler=sampler)
    return {key: float(value) for key, value in zip(sampler, np.concatenate(list(loader)), strict=True)}

keys = [3, "word", -1, (2, "pair"), 5]
expected = values(0, keys, 2)
assert len(set(expected.values())) == 5
assert values(1, keys, 3) == values(2, keys[::-1], 4) == expected
"""
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_says_what_a_sample_that_raises_does(run_script: Run, workers: int) -> None:
    run_script(
        PRELUDE
        + f"options = {{'num_workers': {workers}, 'multiprocessing_context': {'fork' if workers else None!r}}}"
        + """
class Bad(Squares):
    def __getitem__(self, index):
        if 4 <= index < 8 or index == 13:
            raise ValueError(f"no sample {index}")
        return super().__getitem__(index)

loader = make(Bad(20), errors="skip", return_ids=True, **options)
assert [batch[-1].tolist() for batch in loader] == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 14, 15], [16, 17, 18, 19]]
failures = loader.failures()
assert [failure.id for failure in failures] == [4, 5, 6, 7, 13]
assert {failure.kind for failure in failures} == {"exception"}
assert failures[0].path == "index 4" and failures[0].reason == "ValueError: no sample 4", failures[0]
for budget in (sutler.Errors(max=5), sutler.Errors(rate=0.25), sutler.Errors()):
    assert len(list(make(Bad(20), errors=budget, **options))) == 4
for budget in (sutler.Errors(max=4), sutler.Errors(rate=0.24), sutler.Errors(max=9, rate=0.1)):
    try:
        list(make(Bad(20), errors=budget, **options))
    except sutler.ErrorBudgetExceeded as error:
        assert error.failed > error.allowed
        last = error.last
        assert type(last) is sutler.SampleError, type(last)
        assert str(last) == f"sample {last.sample} (`index {last.sample}`): ValueError: no sample {last.sample}", last
        assert isinstance(error.__cause__, ValueError), error.__cause__
        assert str(error).endswith(f"{last}. loader.failures() lists them all."), error
    else:
        raise AssertionError(budget)
"""
    )


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_in_which_every_sample_failed_is_warned_of(
    run_script: Run, workers: int, order: str
) -> None:
    run_script(
        PRELUDE
        + f"options = {{'num_workers': {workers}, 'multiprocessing_context': {'fork' if workers else None!r}}}\n"
        + f"options |= {{'order': {order!r}, 'errors': 'skip'}}"
        + """
import warnings

class Misspelt(Squares):
    def __getitem__(self, index):
        if index >= 10:
            time.sleep(self.later)  # so that in ready order, too, they come behind the good one
        return undefined_name if index >= self.good else index
    good = later = 0

def said(loader):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        served = sum(map(len, loader))
    return served, [(each.category, str(each.message)) for each in caught if each.category is RuntimeWarning]

reason = "NameError: name 'undefined_name' is not defined"
loader = make(Misspelt(20), **options)
for epoch in range(2):
    served, [(category, text)] = said(loader)
    assert served == 0 and category is RuntimeWarning
    assert text.startswith(f"Every sample of epoch {epoch} failed, so there was no batch. The first was sample "), text
    assert f"{reason}. loader.failures() lists them all" in text, text
    assert len(loader.failures()) == 20

some = Misspelt(20)
some.good = 1  # in ready order several might come in different batches
some.later = 0.05
loader = make(some, **options)
iterator = iter(loader)
next(iterator)
state = loader.state_dict()
assert sum(map(len, iterator)) == 0
assert said(loader) == (1, []), "a batch was served"
rest = make(some, **options)
rest.load_state_dict(state)
served, [(_, text)] = said(rest)
assert served == 0 and text.startswith("Every sample of the rest of epoch 0 failed"), text
assert said(make(Squares(0), **options)) == (0, []), "nothing was there to fail"
"""
    )


def test_searching_for_garbage_copies_nothing_that_a_worker_shares_with_its_trainer(run_script: Run) -> None:
    run_script(
        PRELUDE
        + """
import gc

def private_bytes():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty"))

class Large(Squares):
    entries = [[number] for number in range(400_000)]
    def __getitem__(self, index):
        before = private_bytes()
        gc.collect()
        return private_bytes() - before

grown = max(int(batch.max()) for batch in make(Large(4)))
assert grown < 4 << 20, f"{grown:,} bytes were copied"  # all the lists have 32 MB
"""
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_a_death_is_told_while_another_worker_is_at_a_long_sample(run_script: Run, persistent: bool) -> None:
    run_script(
        PRELUDE
        + f"persistent = {persistent}"
        + """
import multiprocessing, signal

class Deadly(Squares):
    def __getitem__(self, index):
        if index == 0:
            time.sleep(60)
        if index == 1:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

began = time.monotonic()
try:
    list(make(Deadly(8), num_workers=2, persistent_workers=persistent))
except sutler.WorkerError as error:
    assert "index 1" in str(error) or "sample 1" in str(error), error
else:
    raise AssertionError("nothing was raised")
assert time.monotonic() - began < 4
assert multiprocessing.active_children() == []
"""
    )


@pytest.mark.processes
@pytest.mark.parametrize("collated", [False, True], ids=["samples", "whole batches"])
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_timeout_names_the_sample_that_is_waited_for(run_script: Run, order: str, collated: bool) -> None:
    """Also where a worker was given several samples at once, and where it collates whole batches."""
    done = run_script(
        PRELUDE
        + f"""
class Held(Squares):
    def __getitem__(self, index):
        if index == 1234:
            time.sleep(60)
        return super().__getitem__(index)

loader = make(Held(2000), timeout=3, order={order!r}, lateness=0, collate_fn={"list" if collated else None})
try:
    for _ in loader:
        pass
except RuntimeError as error:
    print(error)
loader.close()
""",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"DataLoader timed out after 3 seconds; worker \d \(pid \d+\) is at index 1234\n", done.stdout
    )
