"""`sutler.analyze` as a user calls it: what it says, what it leaves alone, and what bad input gets."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.analysis import doubts
from sutler.analysis.accelerators import ACCELERATORS, accelerator
from sutler.analysis.model import CAUSES, Findings
from sutler.analysis.page import render_page
from sutler.analysis.proof import device_bytes, drop_from_page_cache, processor_waits
from sutler.analysis.wording import spread
from sutler.testing import SlowDisk, make_photos

from tests.python.analysis.conftest import BRIEF
from tests.python.analysis.injected import BATCH, BATCHES, Delays, InjectedDataset, write_files
from tests.python.analysis.quiet import skip_if_busy, undisturbed
from tests.python.conftest import DEADLINE


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("injected") / "files")


def make_loader(photos: Path, **changes: Any) -> sutler.Loader[Any]:
    transform = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32")])
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 2} | changes
    return sutler.Loader(sutler.ImageFolder(photos, transform=transform), **arguments)


@pytest.fixture(scope="module")
def report(forty_photos: Path) -> Iterator[sutler.Report]:
    with make_loader(forty_photos, cache="64KiB") as loader:
        yield sutler.analyze(loader, 0.01, time=BRIEF, storage_mbps=2.0)


def test_a_report_has_rates_shares_and_a_recommendation(report: sutler.Report) -> None:
    assert set(report.rates) == {"G", "P", "F", "C", "S"}
    for rate in report.rates.values():
        known = rate.samples_per_s
        assert 0 < known.low <= known.value <= known.high
    assert report.rates["P"].proven is True
    assert report.rates["P"].bytes_read == 0
    assert report.subject.sample_bytes is not None
    assert report.rates["S"].bytes_read == report.rates["S"].samples * report.subject.sample_bytes
    assert sum(getattr(report.stalls, cause) for cause in CAUSES) == pytest.approx(1.0)
    assert 0.1 < report.subject.cached < 0.5
    assert {"fetch", "decode", "augment"} <= {stage.name for stage in report.stages}
    assert len(report.timeline) >= 8
    assert str(report.recommendation) == report.recommendation.text
    assert report.recommendation.text[:20] in report.recommendation
    assert dict(report.stalls) == {cause: getattr(report.stalls, cause) for cause in CAUSES}
    with pytest.raises(KeyError):
        report.stalls["waiting"]
    what_if = report.what_if(cores=2)
    assert float(what_if) == float(what_if.predicted) == what_if.predicted.value
    assert float(report.rates["P"]) == report.rates["P"].samples_per_s.value
    assert report.accelerator is not None
    assert report.accelerator.utilisation == report.stalls.trainer
    assert "Recommendation" in str(report)


def test_json_has_the_keys_that_programs_rely_on_and_can_be_read_back(
    report: sutler.Report, tmp_path: Path
) -> None:
    facts = json.loads(report.to_json(tmp_path / "report.json"))
    assert set(facts["rates"]) == {"G", "P", "F", "C", "S"}
    assert all(isinstance(rate, float) for rate in facts["rates"].values())
    assert set(facts["stalls"]) == set(CAUSES)
    assert {"cache", "cores", "storage_mbps", "remote", "jobs"} <= set(facts["what_if"])
    assert {"text", "binding", "change", "code", "gain", "amounts", "tried"} == set(facts["recommendation"])
    assert sutler.Report.from_json(tmp_path / "report.json").findings == report.findings
    assert sutler.Report.from_json(report.to_json()).findings == report.findings
    with pytest.raises(ValueError, match="schema_version is 99"):
        Findings.from_dict(facts | {"schema_version": 99})
    with pytest.raises(ValueError, match="no report"):
        Findings.from_json("[]")
    with pytest.raises(
        ValueError, match=r"this is no report, as it is no JSON: .*; give what Report\.to_json wrote"
    ) as caught:
        sutler.Report.from_json("{rates: 1}")
    assert type(caught.value) is ValueError
    (tmp_path / "picture").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ValueError, match="picture is no report: it is not even text"):
        sutler.Report.from_json(tmp_path / "picture")
    broken = {key: value for key, value in facts.items() if key != "stalls"}
    with pytest.raises(ValueError, match="has no stalls"):
        Findings.from_dict(broken)


def test_files_are_written(report: sutler.Report, tmp_path: Path) -> None:
    report.to_html(tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()
    report.to_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for write in (report.to_html, report.to_json, report.to_trace):
        with pytest.raises(
            FileNotFoundError, match=r"there is no folder .*nowhere to write report into; make it"
        ):
            write(tmp_path / "nowhere" / "report")
        with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
            write(tmp_path)


def test_what_ifs_go_the_right_way(report: sutler.Report) -> None:
    slower, faster = report.what_if(storage_mbps=0.5), report.what_if(storage_mbps=1.0)
    assert slower.predicted.value < faster.predicted.value
    assert slower.bound_by == "storage"
    both = report.what_if(cache="1GiB", cores=64)
    assert both.predicted.value >= report.what_if(cache="1GiB").predicted.value * 0.99
    assert both.axis == "cache+cores"
    for axis in ("cache", "storage_mbps"):
        points = [point.predicted.value for point in report.findings.what_if[axis]]
        assert all(less <= more * 1.2 for less, more in itertools.pairwise(points)), points
        assert sum(point.now for point in report.findings.what_if[axis]) == 1


@pytest.mark.parametrize(
    ("question", "match"),
    [
        ({}, "say what should be different"),
        ({"cores": 0}, "cores should be a whole number"),
        ({"cores": 1.5}, "cores should be a whole number"),
        ({"storage_mbps": -1}, "storage_mbps should be a positive number"),
        ({"cache": "much"}, "much"),
        ({"remote": -1}, "remote"),
        ({"jobs": True}, "jobs"),
    ],
    ids=str,
)
def test_questions_that_are_none(report: sutler.Report, question: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        report.what_if(**question)


def test_the_loader_is_left_as_it_was(forty_photos: Path) -> None:
    with make_loader(forty_photos) as loader, make_loader(forty_photos) as untouched:
        next(iter(loader))
        next(iter(untouched))
        sutler.analyze(loader, 0.001, time=BRIEF)
        assert loader.state_dict() == untouched.state_dict()
        rest, expected = list(loader), list(untouched)
        assert len(rest) == len(expected)
        assert all(np.array_equal(one[0], other[0]) for one, other in zip(rest, expected, strict=True))


def test_pytorchs_loader_and_generators_are_left_as_they_were(files: Path) -> None:
    torch = pytest.importorskip("torch")
    dataset: Any = InjectedDataset(files, Delays(0, 0, 0))
    generator = torch.Generator().manual_seed(3)
    own, others = generator.get_state(), torch.random.get_rng_state()
    loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, generator=generator)
    found = sutler.analyze(loader, 0.001, time=BRIEF)
    assert torch.equal(generator.get_state(), own)
    assert torch.equal(torch.random.get_rng_state(), others)
    assert (found.subject.kind, found.subject.workers, found.subject.batch_size) == ("torch", 0, BATCH)


@pytest.mark.parametrize("whose", ["sutler", "torch"])
def test_what_can_be_drawn_from_only_once_is_refused_and_left_whole(whose: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    make: Any = sutler.Loader if whose == "sutler" else data.DataLoader
    batches = [[index, index + 1] for index in range(0, 64, 2)]
    dataset = list(range(64))
    for loader in (
        make(dataset, 2, sampler=(index for index in range(64))),
        make(dataset, batch_sampler=(batch for batch in batches)),
        make(dataset, batch_sampler=data.BatchSampler((index for index in range(64)), 2, False)),
    ):
        with pytest.raises(ValueError, match=r"draws from a generator.*sampler=list"):
            sutler.analyze(loader, 0.001, time=BRIEF)
        assert sum(1 for _ in loader) == 32
    # What goes once and can be copied is left as it was.
    copied = make(dataset, 2, sampler=iter(range(64)))
    sutler.analyze(copied, 0.001, time=BRIEF)
    assert sum(1 for _ in copied) == 32


class Tape:
    """A stream that is its own iterator, and goes on where it was."""

    def __init__(self, rewinds: bool) -> None:
        self._rewinds = rewinds
        self._place = 0

    def __iter__(self) -> Iterator[int]:
        if self._rewinds:
            self._place = 0
        return self

    def __next__(self) -> int:
        if self._place == 64:
            raise StopIteration
        self._place += 1
        return self._place


@pytest.mark.parametrize("whose", ["sutler", "torch"])
def test_a_stream_that_would_be_used_up_is_refused_and_left_whole(whose: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    make: Any = sutler.Loader if whose == "sutler" else data.DataLoader

    class TorchTape(Tape, data.IterableDataset):  # type: ignore[name-defined]
        pass

    loader = make(TorchTape(rewinds=False), 4)
    with pytest.raises(ValueError, match=r"a stream \(TorchTape\) that can be gone through only once"):
        sutler.analyze(loader, 0.001, time=BRIEF)
    assert sum(1 for _ in loader) == 16
    for whole in (make(TorchTape(rewinds=True), 4), make(TorchTape(rewinds=False), 4, num_workers=1)):
        sutler.analyze(whole, 0.001, time=BRIEF)
        assert sum(1 for _ in whole) == 16


def test_a_real_step_gets_the_loaders_batches(forty_photos: Path) -> None:
    seen: list[tuple[int, ...]] = []
    with make_loader(forty_photos) as loader:
        sutler.analyze(loader, lambda batch: seen.append(tuple(batch[0].shape)), time=BRIEF)
    assert set(seen) == {(4, 3, 32, 32)}


class Sentences:
    """Samples as a tokenizer of transformers makes them, which a list keeps."""

    def __init__(self) -> None:
        self._samples: list[dict[str, Any]] = [
            {"ids": np.arange(3), "labels": (number, {"weight": 1.0})} for number in range(40)
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, labels = self._samples[index].values()
        return {"ids": ids, "labels": (labels[0], dict(labels[1]))}


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("whose", ["pytorch", "sutler"])
def test_a_step_may_take_its_batch_apart(whose: str, workers: int, batch_size: int | None) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    make = torch_data.DataLoader if whose == "pytorch" else sutler.Loader
    loader = make(Sentences(), batch_size=batch_size, num_workers=workers)

    def step(batch: dict[str, Any]) -> None:
        _numbers, details = batch.pop("labels")
        details.pop("weight")
        assert list(batch) == ["ids"]

    assert sutler.analyze(loader, step, time=BRIEF).rates["G"].passes >= 2


@pytest.mark.parametrize(("good", "when"), [(0, "the first"), (9, "after 9 that went well")])
def test_a_step_that_raises_is_said_to_be_the_step(good: int, when: str, forty_photos: Path) -> None:
    calls = itertools.count()

    def step(_batch: Any) -> None:
        if next(calls) >= good:
            raise ZeroDivisionError("no loss")

    with make_loader(forty_photos) as loader, pytest.raises(ZeroDivisionError, match="no loss") as caught:
        sutler.analyze(loader, step, time=BRIEF)
    (note,) = caught.value.__notes__
    assert f"raised by the step that sutler.analyze was given, in a call ({when})" in note
    assert "nothing was measured" not in note


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"step": "fast"}, TypeError, "step should be a function"),
        ({"step": True}, TypeError, "step should be a function"),
        ({"step": -0.1}, ValueError, "step should be a number of seconds"),
        ({"batches": 0}, ValueError, "batches should be"),
        ({"time": 0}, ValueError, "time should be"),
        ({"time": "x"}, TypeError, "time should be a positive number of seconds, got 'x'"),
        ({"time": True}, TypeError, "time should be a positive number of seconds, got True"),
        ({"storage_mbps": 0}, ValueError, "storage_mbps should be"),
        ({"storage_mbps": "x"}, TypeError, "storage_mbps should be a positive number of megabytes"),
        ({"storage_mbps": True}, TypeError, "storage_mbps should be a positive number of megabytes"),
        ({"accelerator": 5}, TypeError, "accelerator should be a name, one of unet3d-a100, .*, got 5"),
        ({"accelerator": "abacus"}, ValueError, "resnet50-h100"),
        ({"accelerator": "resnet50-h100", "step": 1.0}, ValueError, "either step or accelerator"),
    ],
    ids=str,
)
def test_wrong_arguments(
    forty_photos: Path, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with make_loader(forty_photos) as loader, pytest.raises(error, match=match):
        sutler.analyze(loader, **arguments)


@pytest.mark.parametrize("step", [np.float32(0.002), np.int64(0), Fraction(1, 500)], ids=repr)
def test_a_step_may_be_any_real_number(step: Any, forty_photos: Path) -> None:
    fifty: Any = np.float32(50)
    with make_loader(forty_photos) as loader:
        found = sutler.analyze(loader, step, time=np.float64(BRIEF), storage_mbps=fifty)
    assert json.loads(found.to_json())["subject"]["storage_mbps"] == 50.0
    if step:
        assert found.accelerator is not None
        assert found.accelerator.step_seconds > 0.0019


def test_the_start_of_workers_is_a_part_of_what_it_is_going_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doubts, "LONGER_SECONDS", 0.5
    )  # on a fast machine a few workers are there in little more
    loader = sutler.Loader(list(range(64)), 4, num_workers=1, multiprocessing_context="spawn")
    with pytest.warns(UserWarning, match=r"Of all that, .* s go into starting workers") as said:
        found = sutler.analyze(loader, 0.0, 8, time=0.1)
    least = float(str(said[0].message).split()[7])
    assert least < 2 * found.findings.seconds


def test_what_is_no_loader_is_refused(forty_photos: Path, files: Path) -> None:
    with pytest.raises(TypeError, match=r"builtins\.list is neither"):
        sutler.analyze([1, 2, 3])
    dataset = InjectedDataset(files, Delays(0, 0, 0))
    with (
        sutler.Loader(dataset, BATCH) as python,
        pytest.raises(ValueError, match="cannot be slowed down from here"),
    ):
        sutler.analyze(python, storage_mbps=1.0)


def test_less_time_than_it_takes_is_said_beforehand(files: Path) -> None:
    with (
        sutler.Loader(InjectedDataset(files, Delays(0, 20, 0)), BATCH) as loader,
        pytest.warns(UserWarning, match=r"is going to take about .* s, and not 500 ms") as said,
    ):
        found = sutler.analyze(loader, 0.001, time=0.5)
    assert [warning.filename for warning in said] == [__file__]
    assert str(said[0].message) in found.warnings
    least = float(str(said[0].message).split()[7])
    assert 0.5 * least < found.findings.seconds < 3 * least + 5


def test_a_slow_step_is_not_counted_into_passes_that_have_none() -> None:
    with pytest.warns(UserWarning, match="is going to take about") as said:
        found = sutler.analyze(sutler.Loader(OneBad(bad=None), 2, num_workers=0), 0.05, time=0.5)
    foretold = float(str(said[0].message).split()[7])
    assert 0.8 < found.findings.seconds / foretold < 2


class Sleepy:
    """Samples that are waited for, by nobody's processor."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


class Burning(Sleepy):
    """Samples that keep an interpreter busy."""

    def __getitem__(self, index: int) -> int:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            pass
        return index


def test_workers_that_wait_may_be_more_than_cores_and_what_is_recommended_is_run() -> None:
    with undisturbed(), sutler.Loader(Sleepy(), 4, num_workers=1, multiprocessing_context="fork") as loader:
        found = sutler.analyze(loader, 0.01, time=2, verify=True)
    recommended = found.recommendation
    assert recommended.binding == "processors"
    assert recommended.text.startswith("The workers bind")
    page = render_page(found.findings)
    assert "<dt>What binds</dt><dd>workers</dd>" in page
    assert "<small>tried</small>" in page
    # 400 samples a second, a quarter more to be sure, and each worker prepares not quite a hundred.
    assert recommended.amounts["workers"] in (5, 6)
    assert recommended.tried
    assert recommended.code == f"num_workers={int(recommended.amounts['workers'])}, persistent_workers=True"
    (tried,) = (
        point for point in found.findings.what_if["cores"] if point.value == recommended.amounts["workers"]
    )
    assert tried.verified is not None
    assert "Tried here it gave" in recommended.text
    assert recommended.gain == pytest.approx(tried.verified / found.findings.measured.value)
    assert found.what_if(cores=int(tried.value)) == tried, "what was run is what is answered"
    assert found.what_if(cores=1).now
    assert any("every job prepares for itself" in warning for warning in found.warnings)


def test_more_workers_than_there_are_batches_for_are_not_tried() -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset: Any = Sleepy()
    found = sutler.analyze(data.DataLoader(dataset, 4, num_workers=1), 0.01, 24, time=2, verify=True)
    recommended = int(found.recommendation.amounts["workers"])
    assert recommended > 4
    assert any(f"{recommended} workers, as recommended, were not tried" in each for each in found.warnings)
    assert "Tried here" not in found.recommendation.text


def test_a_step_that_takes_a_core_from_the_workers_is_told(forty_photos: Path) -> None:
    def burns(_batch: Any) -> None:
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass

    cores = sutler._sutler.usable_cores()
    with make_loader(forty_photos, num_workers=cores) as loader:
        for _ in range(3):  # a busy machine may take the processor away
            found = sutler.analyze(loader, burns, time=BRIEF)
            if found.findings.facts["step_busy"] > 0.5:
                break
    assert found.findings.facts["step_busy"] > 0.5
    assert any("The step keeps a processor of this machine busy" in each for each in found.warnings)
    assert found.recommendation.binding != "order"


def test_being_in_line_for_a_processor_is_counted() -> None:
    allowed = os.sched_getaffinity(0)
    place = min(allowed)
    pinned = f"import os; os.sched_setaffinity(0, {{{place}}}); print(flush=True)\nwhile True: pass"
    rival = subprocess.Popen([sys.executable, "-c", pinned], stdout=subprocess.PIPE)
    try:
        assert rival.stdout is not None
        rival.stdout.readline()
        os.sched_setaffinity(0, {place})
        waited, until = processor_waits(), time.perf_counter() + 0.2
        while time.perf_counter() < until:
            pass
        # The rival is of the family as well, and of two that want one processor one is always in line.
        assert processor_waits() - waited > 0.05
    finally:
        os.sched_setaffinity(0, allowed)
        rival.kill()
        rival.communicate()


def start_slowly(_worker: int) -> None:
    time.sleep(0.2)


@pytest.mark.parametrize("whose", ["sutler", "torch"])
def test_workers_that_start_slowly_in_every_epoch_are_told(whose: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    make: Any = sutler.Loader if whose == "sutler" else data.DataLoader
    dataset: Any = OneBad(bad=None)
    found = {}
    for stay in (False, True):
        loader = make(dataset, 2, num_workers=2, worker_init_fn=start_slowly, persistent_workers=stay)
        found[stay] = sutler.analyze(loader, 0.005, time=BRIEF)
    (said,) = [warning for warning in found[False].warnings if "to start" in warning]
    took = re.match(r"Workers take ([\d.]+) ms to start, and they are started anew for every epoch", said)
    assert took is not None, said
    assert 180 < float(took[1]) < 500
    # Twenty batches of five milliseconds, and a fifth of a second before.
    share = re.search(r"another (\d+) % of it", said)
    assert share is not None, said
    assert 80 < int(share[1]) < 500
    assert "persistent_workers=True" in found[False].recommendation.code
    assert "persistent_workers=True" in found[False].recommendation.text
    assert not [warning for warning in found[True].warnings if "to start" in warning]


def test_figures_that_scatter_are_doubted(forty_photos: Path) -> None:
    calls = itertools.count()

    def slower_and_slower(_batch: Any) -> None:
        time.sleep(next(calls) * 1e-4)

    with make_loader(forty_photos) as loader:
        found = sutler.analyze(loader, slower_and_slower, time=BRIEF)
    known = spread(found.rates["G"].samples_per_s)
    assert any(f"the step alone ({known} after" in warning for warning in found.warnings)


def test_without_a_step_nothing_is_said_of_one(forty_photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make_loader(forty_photos) as loader, caplog.at_level(logging.INFO, "sutler.analysis"):
        found = sutler.analyze(loader, None, time=BRIEF)
    assert not any("the step alone" in warning for warning in found.warnings)
    assert not any(message.startswith("step:") for message in caplog.messages)
    (shown,) = [line.split() for line in str(found).splitlines() if line.startswith("G  ")]
    assert shown[1:5] == ["no", "limit", "–", "–"], "neither an interval nor bytes"
    for text in (str(found), render_page(found.findings)):
        assert "no limit" in text
        assert "1,000,000,000" not in text


def test_too_few_samples_are_said_to_say_little(forty_photos: Path) -> None:
    with make_loader(forty_photos, batch_size=64) as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF)
    assert any("fewer than a batch" in warning for warning in found.warnings)
    assert found.recommendation.text.startswith("Nothing can be recommended: there is a single batch")
    with (
        make_loader(forty_photos, batch_size=64, drop_last=True) as loader,
        pytest.raises(ValueError, match="no batches"),
    ):
        sutler.analyze(loader, time=BRIEF)


class Stream:
    """Samples that can only be gone through."""

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        for number in range(64):
            yield np.full(4, number)


def test_a_stream_is_analysed_as_far_as_it_can_be() -> None:
    with sutler.Loader(Stream(), batch_size=4) as loader:
        found = sutler.analyze(loader, 0.002, time=BRIEF)
    assert found.subject.kind == "stream"
    assert found.subject.samples is None
    assert set(found.rates) == {"G", "P"}
    assert any("stream" in warning for warning in found.warnings)
    assert any("could not be found out" in warning for warning in found.warnings)
    assert found.stalls.fetch == 0.0, "what is fetched counts as prepared"
    assert "cache" not in found.findings.what_if
    for question in ({"cache": "1GiB"}, {"storage_mbps": 100.0}):
        with pytest.raises(ValueError, match="not known how many bytes a sample has"):
            found.what_if(**question)
    # The trainer prepares for itself, so it shares with nobody.
    assert float(found.what_if(jobs=100)) == pytest.approx(float(found.what_if(jobs=1)))


class OneBad:
    """A dataset with one bad sample."""

    def __init__(self, bad: int | None = 5) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == self._bad:
            raise ValueError("number five is bad")
        return index


def test_bad_samples_that_the_loader_leaves_out_are_left_out() -> None:
    report = sutler.analyze(sutler.Loader(OneBad(), 8, errors="skip"), 0.001, time=0.5)
    assert report.rates["P"].samples > 0
    with pytest.raises(ValueError, match="number five"):
        sutler.analyze(sutler.Loader(OneBad(), 8), 0.001, time=0.5)


def test_broken_files_are_counted_and_named(tmp_path: Path) -> None:
    make_photos(tmp_path / "good", 40, 2)
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
        (tmp_path / "good" / "class_0" / name).write_bytes(b"\xff\xd8 and then nothing")
    with make_loader(tmp_path / "good", errors="skip") as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF)
    (warning,) = [warning for warning in found.warnings if "could not be prepared" in warning]
    assert "4 of the 44 samples" in warning
    assert "count neither as samples nor as time" in warning
    assert sum(f"{name}.jpg (" in warning for name in "abcd") == 3
    assert found.rates["S"].samples == 40 * found.rates["S"].passes


def test_a_folder_of_broken_files_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "bad" / "class_0").mkdir(parents=True)
    for number in range(6):
        (tmp_path / "bad" / "class_0" / f"{number}.jpg").write_bytes(b"\xff\xd8 and then nothing")
    with (
        make_loader(tmp_path / "bad", errors="skip") as loader,
        pytest.raises(
            ValueError, match=r"of the 6 samples that were tried, none could be prepared.*\.jpg \("
        ),
    ):
        sutler.analyze(loader, 0.001, time=BRIEF)


def test_the_present_cache_is_shown_as_it_was_given(forty_photos: Path) -> None:
    with make_loader(forty_photos, cache="64MiB") as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF)
    (now,) = [point for point in found.findings.what_if["cache"] if point.now]
    assert now.label.startswith("64.0 MiB, ")
    assert now.label.endswith("iB used")


class Kept:
    """A dataset that takes a while to prepare samples, which are the same in every epoch."""

    def __init__(self, files: Path) -> None:
        self.samples = [(str(path), 0) for path in sorted(files.iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    @sutler.deterministic
    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        time.sleep(0.01)
        return np.fromfile(self.samples[index][0], np.uint8, 3000)


def test_a_cache_of_what_is_prepared_is_left_as_it_is(files: Path) -> None:
    half = BATCH * BATCHES // 2 * 4200
    with sutler.Loader(Kept(files), BATCH, shuffle=True, num_workers=0, cache=half) as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF, verify=True)
    assert 0.4 < found.subject.cached < 0.6
    # Half of the pauses are spared, so it is less than ten milliseconds for each sample, in memory as in the run.
    with_all_pauses = 1 / 0.01
    assert found.rates["P"].samples_per_s.value > 1.2 * with_all_pauses
    assert "cache" not in found.findings.what_if
    assert found.recommendation.code != "" or found.recommendation.binding == "device"
    assert "cache" not in found.recommendation.code
    assert any("The cache keeps what the dataset prepares" in warning for warning in found.warnings)
    with pytest.raises(ValueError, match="another cache cannot be asked about"):
        found.what_if(cache="1GiB")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no file system in memory here")
def test_storage_that_is_memory_is_not_taken_for_a_device() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        make_photos(folder, 40, 2)
        with make_loader(Path(folder)) as loader:
            found = sutler.analyze(loader, 0.001, time=BRIEF)
    assert found.rates["S"].proven is False
    assert any("page cache could not be kept out" in warning for warning in found.warnings)


#: Of a process that has become another user's, or says that it should not be looked into, the system tells it nothing.
UNCOUNTED = """
import ctypes, os, sys
import sutler
from sutler import transforms as T
from sutler.analysis.analyzing import analyze
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
else:
    ctypes.CDLL(None).prctl(4, 0)
dataset = sutler.ImageFolder(sys.argv[1], transform=T.RandomResizedCrop(32))
found = analyze(sutler.Loader(dataset, batch_size=4, output="numpy", num_workers=1), 0.001, time=0.1)
for name in "PSF":
    assert found.rates[name].bytes_read is None and found.rates[name].proven is False, found.rates[name]
print(*found.warnings)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="nobody is told here what devices deliver")
def test_where_nobody_counts_what_devices_deliver_nothing_counts_as_shown() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_photos(folder, 16, 2)
        os.chmod(folder, 0o755)
        done = subprocess.run(
            [sys.executable, "-c", UNCOUNTED, folder],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "Whether the page cache was kept out is not known" in done.stdout


def test_files_leave_the_page_cache_and_come_back_from_the_device(files: Path) -> None:
    paths = [str(path) for path in files.iterdir()]
    size = sum(os.path.getsize(path) for path in paths)

    def read() -> int:
        before = device_bytes()
        for path in paths:
            Path(path).read_bytes()
        after = device_bytes()
        assert before is not None
        assert after is not None
        return after - before

    assert drop_from_page_cache(paths, written=True) == len(paths)
    assert read() >= size
    assert read() == 0
    assert drop_from_page_cache(["nowhere"], written=False) == 0


def test_a_slow_disk_is_slow_once(files: Path) -> None:
    path = next(iter(files.iterdir()))
    disk = SlowDisk(400_000)

    def seconds() -> float:
        begun = time.monotonic()
        assert disk.read(path) == path.read_bytes()
        return time.monotonic() - begun

    for _attempt in range(10):  # the system forgets what nothing else is busy with
        drop_from_page_cache([str(path)], written=True)
        took = seconds()
        if took >= 0.1:
            break
    assert took >= 0.1
    assert seconds() < took
    with pytest.raises(ValueError, match="should be positive"):
        SlowDisk(0)


# --- the same verdict, whoever loads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delays", "binding"),
    [(Delays(10, 2, 1), "storage"), (Delays(1, 16, 1), "processors"), (Delays(1, 1, 12), "device")],
    ids=str,
)
def test_the_verdict_is_the_same_for_pytorch_and_for_sutler(
    files: Path, delays: Delays, binding: str
) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset: Any = InjectedDataset(files, delays)
    step = delays.step * BATCH / 1e3
    for _attempt in range(3):
        with undisturbed():
            theirs = sutler.analyze(data.DataLoader(dataset, BATCH, num_workers=2), step, 10, time=1)
            with sutler.Loader(dataset, BATCH, num_workers=2, multiprocessing_context="fork") as loader:
                ours = sutler.analyze(loader, step, 10, time=1)
        found = (theirs.recommendation.binding, ours.recommendation.binding)
        if found == (binding, binding):
            break
    else:
        skip_if_busy()
    assert found == (binding, binding)
    if binding == "processors":
        assert "num_workers=" in theirs.recommendation.code
        assert "num_workers=" in ours.recommendation.code


# --- accelerators -----------------------------------------------------------------------------------------------------


def test_an_accelerator_has_a_pass_line_and_asks_for_a_large_dataset(forty_photos: Path) -> None:
    assert accelerator("RESNET50_H100") is ACCELERATORS["resnet50-h100"]
    with make_loader(forty_photos, batch_size=1) as loader:
        found = sutler.analyze(loader, accelerator="cosmoflow-h100", time=BRIEF)
    device = found.accelerator
    assert device is not None
    assert (device.name, device.pass_line) == ("cosmoflow-h100", 0.70)
    assert device.step_seconds >= 0.0035
    assert device.passed == (device.utilisation >= 0.70)
    assert "cosmoflow_h100.yaml" in device.source
    assert any("five times the memory" in warning for warning in found.warnings)
    assert not any("published step time" in warning for warning in found.warnings)
    with make_loader(forty_photos, batch_size=4) as loader:
        other = sutler.analyze(loader, accelerator="cosmoflow-h100", time=BRIEF)
    assert any("that of a batch of 1" in warning for warning in other.warnings)


class Drawing:
    """Samples that are random, as augmented ones are."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        import torch

        return random.random() + float(np.random.rand()) + float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("whose", ["sutler", "torch"])
def test_an_analysis_leaves_all_generators_alone(whose: str, workers: int) -> None:
    torch = pytest.importorskip("torch")
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)

    def states() -> list[Any]:
        numpy_state: Any = np.random.get_state(legacy=False)
        return [
            random.getstate(),
            numpy_state["state"]["key"].tolist(),
            torch.random.get_rng_state().tolist(),
        ]

    before = states()
    make = sutler.Loader if whose == "sutler" else torch.utils.data.DataLoader
    loader = make(Drawing(), 4, shuffle=True, num_workers=workers)
    sutler.analyze(loader, 0.001, 8, time=0.3)
    assert states() == before

    def step(_batch: Any) -> None:
        random.random()
        np.random.rand(1000)
        torch.rand(())
        raise ZeroDivisionError("no loss")

    with pytest.raises(ZeroDivisionError):
        sutler.analyze(loader, step, 8, time=0.3)
    assert states() == before


def test_threads_of_one_interpreter_are_not_said_to_gain_by_cores() -> None:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("threads run at the same time here")
    with sutler.Loader(Burning(), 4, num_workers=2, multiprocessing_context="thread") as loader:
        found = sutler.analyze(loader, 0.001, 12, time=1)
    more = found.what_if(cores=8).predicted.value
    assert more < 1.3 * found.findings.measured.value
    assert any("run Python one at a time" in warning for warning in found.warnings)


class RarelySlow:
    """From some index on one sample in thirty takes sixty times as long as the others."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 900

    def __getitem__(self, index: int) -> int:
        slow = index >= self.first and index % 30 == 7
        time.sleep(0.06 if slow else 0.001)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_rare_slow_samples_of_a_pytorch_loader_are_warned_of(workers: int) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    loader = data.DataLoader(RarelySlow(0), 4, num_workers=workers)
    found = sutler.analyze(loader, 0.004, 64, time=3)
    assert re.search(r"very different times, and only \d+ of 900 were looked at", str(found.warnings))


@pytest.mark.parametrize("workers", [0, 2])
def test_slow_samples_after_those_that_are_measured_are_warned_of_too(workers: int) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    with undisturbed():
        found = sutler.analyze(data.DataLoader(RarelySlow(210), 4, num_workers=workers), 0.004, time=6)
    seen = re.search(r"very different times, and only (\d+) of 900 were looked at", str(found.warnings))
    assert seen is not None
    assert int(seen[1]) <= 217  # the first one that is slow


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_take_the_same_time_are_not_called_different(workers: int) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    found = sutler.analyze(data.DataLoader(RarelySlow(900), 4, num_workers=workers), 0.004, time=3)
    assert not any("very different times" in each for each in found.warnings)


def test_a_bad_sample_after_those_that_are_measured_is_not_met() -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")

    class Broken(RarelySlow):
        def __getitem__(self, index: int) -> int:
            if index >= 240:
                raise ValueError("it is broken")
            return super().__getitem__(index)

    assert sutler.analyze(data.DataLoader(Broken(900), 4), 0.004, time=6).rates["P"].samples_per_s.value > 0
