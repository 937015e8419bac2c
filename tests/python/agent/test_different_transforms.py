"""Jobs of one agent whose transforms differ, datasets that share its memory, plans, and the page that shows it all."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from PIL import Image
from sutler import transforms as T  # noqa: N812 - as users write it

from .serving import Agent

SAMPLES = 240

#: What a job can be ahead of another that takes its batches in turn: two batches of 8 in the making, two that have come
#: together, and two that were asked for ahead. A window that holds so many loses nothing, however the processes are
#: scheduled.
AHEAD = 6 * 8
WINDOW = str(1.25 * AHEAD / SAMPLES)

#: Transforms that draw nothing that matters: a sample has the same bytes in every order. All decode differently.
DIFFERENT: dict[str, list[T.Transform]] = {
    "crop": [T.Resize(32), T.CenterCrop(32)],
    "mirror": [T.Resize((40, 28)), T.RandomHorizontalFlip(1.0)],
    "grey": [T.CenterCrop(24), T.RandomGrayscale(1.0)],
}

#: The same beginning, so that all decode alike.
ALIKE: dict[str, list[T.Transform]] = {
    "mirror": [T.Resize((30, 30)), T.RandomHorizontalFlip(1.0)],
    "stand": [T.Resize((30, 30)), T.RandomVerticalFlip(1.0)],
    "grey": [T.Resize((30, 30)), T.RandomGrayscale(1.0)],
}

#: A training job: takes a batch whenever it is told to, so that all jobs are equally fast, and tells what it had.
JOB = """
import hashlib, json, sys
import sutler
from sutler import transforms as T
folder, socket, transform, epochs, options = json.loads(sys.argv[1])
made = sutler.ImageFolder(folder, transform=T.Compose([getattr(T, name)(*given) for name, given in transform]))
loader = sutler.Loader(made, batch_size=8, shuffle=True, output="numpy", return_ids=True, agent=socket, **options)
print("ready", flush=True)
digests = []
stats = []
sys.stdin.readline()
for _ in range(epochs):
    epoch = {}
    for images, labels, ids in loader:
        for index, image in zip(ids.tolist(), images):
            assert index not in epoch, "twice in an epoch"
            epoch[index] = hashlib.sha1(image.tobytes()).hexdigest()
        print("batch", flush=True)
        sys.stdin.readline()
    digests.append(epoch)
    stats.append(loader.stats())
print(json.dumps({"digests": digests, "stats": stats}), flush=True)
sys.stdin.readline()
"""


def make_pictures(folder: Path, count: int, size: tuple[int, int] = (60, 44)) -> Path:
    (folder / "only").mkdir(parents=True)
    rng = np.random.default_rng(count)
    for number in range(count):
        pixels = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
        picture.save(folder / "only" / f"{number:04}.jpg", quality=90)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "data", SAMPLES)


def transform_of(steps: list[T.Transform]) -> list[tuple[str, list[Any]]]:
    """The steps as the job makes them again."""
    made = {"Resize": "size", "CenterCrop": "size"}
    return [(type(step).__name__, [getattr(step, made.get(type(step).__name__, "p"))]) for step in steps]


def embedded(folder: Path, steps: list[T.Transform]) -> dict[int, str]:
    with sutler.Loader(
        sutler.ImageFolder(folder, transform=T.Compose(steps)), batch_size=16, output="numpy", return_ids=True
    ) as loader:
        return {
            index: hashlib.sha1(image.tobytes()).hexdigest()
            for images, _, ids in loader
            for index, image in zip(ids.tolist(), images, strict=True)
        }


def run_jobs(
    agent: Agent, folder: Path, jobs: dict[str, list[T.Transform]], epochs: int, **options: Any
) -> dict[str, dict[str, Any]]:
    """Runs a process for each job, all at once, and returns what each told; every sample came once and as embedded."""
    processes = {}
    for name, steps in jobs.items():
        arguments = json.dumps([str(folder), str(agent.socket), transform_of(steps), epochs, options])
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", JOB, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    told: dict[str, dict[str, Any]] = {}
    while len(told) < len(processes):
        for name, process in processes.items():
            assert process.stdout is not None
            line = "" if name in told else process.stdout.readline()
            if line.startswith("{"):
                told[name] = json.loads(line)
        for process in (process for name, process in processes.items() if name not in told):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
    for name, process in processes.items():
        process.communicate("end\n")
        assert process.returncode == 0
        expected = {str(index): digest for index, digest in embedded(folder, jobs[name]).items()}
        assert len(expected) == len(list((folder / "only").iterdir()))
        for epoch in told[name]["digests"]:
            assert epoch == expected, f"{name}: the bytes are those of an embedded loader, each sample once"
    return told


def settled(told: dict[str, dict[str, Any]], name: str) -> dict[str, int]:
    """What a job counted after its first epoch.

    In that the first job to begin is alone until the others have come, for as long as they take.
    """
    first, last = told[name]["stats"][0], told[name]["stats"][-1]
    counts = {
        "samples": last["samples"] - first["samples"],
        "reads": last["storage_reads"] - first["storage_reads"],
    }
    return counts | {form: last["served"][form] - first["served"][form] for form in last["served"]}


def reads_per_sample(told: dict[str, dict[str, Any]]) -> float:
    counts = [settled(told, name) for name in told]
    return sum(each["reads"] for each in counts) / sum(each["samples"] for each in counts)


@pytest.mark.parametrize("jobs", [2, 3])
@pytest.mark.parametrize("transforms", [DIFFERENT, ALIKE], ids=["different", "alike"])
def test_jobs_with_different_transforms_share_what_was_read(
    serve: Callable[..., Agent], pictures: Path, transforms: dict[str, list[T.Transform]], jobs: int
) -> None:
    agent = serve("--window", WINDOW)
    chosen = dict(list(transforms.items())[:jobs])
    told = run_jobs(agent, pictures, chosen, epochs=3, order="shared")
    # What is above the least is what jobs pass by on purpose, to mix.
    assert reads_per_sample(told) <= 1.05 / jobs
    each = [settled(told, name) for name in chosen]
    served = {form: sum(counts[form] for counts in each) for form in told["mirror"]["stats"][0]["served"]}
    assert served["augmented"] == 0
    assert sum(served.values()) == 2 * jobs * SAMPLES
    taken = served["decoded"] if transforms is ALIKE else served["encoded"]
    assert taken >= 0.95 * (jobs - 1) / jobs * sum(served.values()), served
    deadline = time.monotonic() + 20
    while agent.datasets()[0]["window"]["window_bytes"] > 0:
        assert time.monotonic() < deadline, "something is kept for nobody"
        time.sleep(0.05)


def test_what_is_kept_is_read_by_nobody(serve: Callable[..., Agent], pictures: Path) -> None:
    """The least there can be: what is not kept, once for all jobs."""
    agent = serve("--window", WINDOW, "--memory", "600KB")
    run_jobs(agent, pictures, {"crop": DIFFERENT["crop"]}, epochs=1)  # fills the cache
    (dataset,) = agent.datasets()
    kept = dataset["cache"]["encoded"]["entries"] / SAMPLES
    assert 0.3 < kept < 0.8
    told = run_jobs(agent, pictures, dict(list(DIFFERENT.items())[:2]), epochs=3, order="shared")
    assert reads_per_sample(told) <= 1.05 * (1 - kept) / 2


def test_finished_samples_are_shared_beside_what_differs(serve: Callable[..., Agent], pictures: Path) -> None:
    agent = serve("--window", WINDOW)
    jobs = {**DIFFERENT, "crop again": DIFFERENT["crop"], "mirror again": DIFFERENT["mirror"]}
    told = run_jobs(agent, pictures, jobs, epochs=3, order="shared")
    assert reads_per_sample(told) <= 1.05 / 5
    for name in ("crop", "mirror"):
        pair = [settled(told, each)["augmented"] for each in (name, f"{name} again")]
        # One of the two prepares what both get; which one is up to chance. Where two threads of the agent are at the
        # same sample for both at the same moment, both finish it, and that is a matter of timing.
        assert sum(pair) >= 0.7 * 2 * SAMPLES, (name, pair)
    assert settled(told, "grey")["augmented"] == 0


@pytest.mark.parametrize(("split", "form"), [("100-0-0", "encoded"), ("0-100-0", "decoded")])
def test_one_cache_serves_jobs_with_different_transforms(
    serve: Callable[..., Agent], pictures: Path, split: str, form: str
) -> None:
    """Random transforms in strict order: the bytes are those of an embedded loader, seed for seed."""
    agent = serve("--memory", "64MiB", "--split", split)
    pipelines = [
        T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip()]),
        T.Compose([T.RandomResizedCrop(24, scale=(0.5, 1.0)), T.ColorJitter(0.4)]),
        T.Compose([T.RandomCrop(20), T.RandomVerticalFlip()]),
    ]
    for number, pipeline in enumerate(pipelines):
        photos = sutler.ImageFolder(pictures, transform=pipeline)
        common: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": number, "output": "numpy"}
        with (
            sutler.Loader(photos, agent=agent.socket, **common) as ours,
            sutler.Loader(photos, **common) as alone,
        ):
            for (images, _), (expected, _) in zip(ours, alone, strict=True):
                np.testing.assert_array_equal(images, expected)
            stats = ours.stats()
        found = stats["served"][form]
        assert found == (0 if number == 0 else SAMPLES), (number, stats["served"])
    (dataset,) = agent.datasets()
    assert dataset["cache"][form]["entries"] == SAMPLES


def test_copies_for_other_transforms_are_never_mistaken(serve: Callable[..., Agent], pictures: Path) -> None:
    """Decoded copies after one resize are of no use after another, and the other finds its way."""
    agent = serve("--memory", "64MiB", "--split", "50-50-0")
    for size in (20, 28, 20):
        steps = [T.Resize((size, size)), T.RandomHorizontalFlip()]
        photos = sutler.ImageFolder(pictures, transform=T.Compose(steps))
        common: dict[str, Any] = {"batch_size": 8, "shuffle": True, "output": "numpy"}
        with (
            sutler.Loader(photos, agent=agent.socket, **common) as ours,
            sutler.Loader(photos, **common) as alone,
        ):
            for _ in range(2):
                for (images, _), (expected, _) in zip(ours, alone, strict=True):
                    np.testing.assert_array_equal(images, expected)
            served = ours.stats()["served"]
        if size == 28:
            assert served == {"storage": SAMPLES, "encoded": SAMPLES, "decoded": 0, "augmented": 0}
    assert served["decoded"] == 2 * SAMPLES


def test_folders_with_the_same_names_in_them_are_not_the_same(
    serve: Callable[..., Agent], tmp_path: Path
) -> None:
    """A fingerprint names files, not what is in them."""
    agent = serve("--memory", "16MiB")
    steps = T.Compose([T.Resize((16, 16))])

    def check(folder: Path) -> dict[str, int]:
        photos = sutler.ImageFolder(folder, transform=steps)
        with (
            sutler.Loader(photos, 4, output="numpy", agent=agent.socket) as ours,
            sutler.Loader(photos, 4, output="numpy") as alone,
        ):
            for (images, _), (expected, _) in zip(ours, alone, strict=True):
                np.testing.assert_array_equal(images, expected)
            served: dict[str, int] = ours.stats()["served"]
            return served

    one, other = make_pictures(tmp_path / "one", 12), make_pictures(tmp_path / "other", 12, (48, 48))
    assert sutler.ImageFolder(one).fingerprint == sutler.ImageFolder(other).fingerprint
    assert [check(folder)["storage"] for folder in (one, other, one)] == [12, 12, 0]
    # Replaced under their old names while nobody uses them.
    shutil.rmtree(one)
    make_pictures(one, 12, (52, 40))
    assert check(one)["storage"] == 12


def open_loader(agent: Agent, folder: Path, **options: Any) -> sutler.Loader:
    steps = T.Compose([T.RandomResizedCrop(24), T.ToDtype("float32")])
    photos = sutler.ImageFolder(folder, transform=steps)
    return sutler.Loader(photos, batch_size=8, shuffle=True, output="numpy", agent=agent.socket, **options)


def test_datasets_divide_the_memory_by_what_they_can_use(serve: Callable[..., Agent], tmp_path: Path) -> None:
    memory = 2 << 20
    agent = serve("--memory", str(memory))
    small = make_pictures(tmp_path / "small", 60, (320, 240))
    large = make_pictures(tmp_path / "large", 180, (320, 240))

    def check() -> dict[str, dict[str, Any]]:
        found = {Path(each["place"]).name: each for each in agent.datasets()}
        assert sum(each["cache"]["budget_bytes"] for each in found.values()) <= memory
        for each in found.values():
            assert each["cache"]["used_bytes"] <= each["cache"]["budget_bytes"]
        return found

    with open_loader(agent, small) as first:
        for _ in first:
            check()
        alone = check()["small"]
        assert alone["budget_bytes"] == memory
        with open_loader(agent, large) as second:
            for _ in zip(first, second, strict=False):
                check()
            both = check()
            assert both["large"]["budget_bytes"] > 2.5 * both["small"]["budget_bytes"]
            assert both["small"]["budget_bytes"] + both["large"]["budget_bytes"] > 0.99 * memory
            assert both["large"]["cache"]["encoded"]["entries"] > 0
        # A dataset that nobody uses stays for a while: the next job of a search is about to come. That the loader
        # has hung up reaches the agent a moment later.
        deadline = time.monotonic() + 60
        while (idle := check()["large"]["idle_seconds"]) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert idle >= 0


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.05)
    return found


def events(agent: Agent) -> list[dict[str, Any]]:
    (dataset,) = agent.datasets()
    found: list[dict[str, Any]] = dataset["plan"]["events"]
    return found


def test_a_plan_follows_the_number_of_jobs(serve: Callable[..., Agent], pictures: Path) -> None:
    agent = serve("--memory", "1MiB", "--split", "auto")
    with open_loader(agent, pictures, order="shared") as first:
        for _ in first:
            pass
        begun = events(agent)
        assert [(event["reason"], event["jobs"]) for event in begun] == [("the dataset was measured", 1)]
        with open_loader(agent, pictures, order="shared") as second:
            next(iter(second))
            later = events(agent)
            assert later[-1]["jobs"] == 2
            assert later[-1]["reason"] == "the number of jobs has changed"
            (dataset,) = agent.datasets()
            assert dataset["plan"]["by"] == "planner"
            assert dataset["plan"]["predicted"] > 0
            encoded, decoded, augmented = map(int, dataset["plan"]["split"].split("-"))
            assert encoded + decoded + augmented == 100
        wait_for(lambda: events(agent)[-1]["jobs"] == 1)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/status.json", "application/json"), ("/metrics", "text/plain; version=0.0.4")],
)
def test_the_page_and_its_figures(serve: Callable[..., Agent], pictures: Path, path: str, kind: str) -> None:
    agent = serve("--http", "127.0.0.1:0", "--memory", "8MiB")
    port = int(agent.ready["http"].rpartition(":")[2])
    assert agent.ready["http"] == f"http://127.0.0.1:{port}"

    def ask(method: str, path: str, host: str | None = None) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()

    with open_loader(agent, pictures, job_name='the "first"') as loader:
        for _ in loader:
            pass
        status, found, body = ask("GET", path)
        assert status == 200
        assert found.startswith(kind)
        if path == "/":
            assert "http" not in body.replace("http-equiv", ""), "it asks for nothing from elsewhere"
        elif path == "/status.json":
            (job,) = json.loads(body)["jobs"]
            assert job["name"] == 'the "first"'
            assert job["progress"] == {"epoch": 0, "batches": SAMPLES // 8, "planned": SAMPLES // 8}
            assert job["samples"] == job["served"]["storage"] == SAMPLES
            assert job["reads_per_sample"] == 1
            assert set(job["stalls"]) == {"fetch", "prep", "transport", "trainer"}
            wait_for(lambda: json.loads(ask("GET", "/status.json")[2])["jobs"][0]["samples_per_s"] >= 0)
        else:
            assert 'sutler_job_samples_total{job="the \\"first\\"",' in body
            assert f"}} {SAMPLES}\n" in body
    assert ask("HEAD", path)[2] == ""
    assert ask("GET", "/etc/passwd")[0] == 404
    assert ask("POST", path)[0] == 405
    assert ask("GET", path, "evil.example")[0] == 403
    assert ask("GET", path, f"localhost:{port}")[0] == 200


def test_the_page_is_not_for_other_machines_by_accident(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sutler", "serve", "--socket", tmp_path / "a.sock", "--http", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--http-public" in done.stderr
    assert not (tmp_path / "a.sock").exists()
