"""Each benchmark runs on few pictures and hands over what its table shows; how fast it is, is not looked at here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sutler.testing import make_photos

from benchmarks import contenders, machine, outcome, plan_report, report
from benchmarks.__main__ import main
from benchmarks.contenders import Epoch
from benchmarks.photos import find_photos, photo_tree
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError, Direct, check_delivered

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_photos(root, 6, 2)
    return root


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders in this process: one process for each would import torch again, which takes longer than the rest."""
    monkeypatch.setattr("benchmarks.images.Worker", Direct)
    monkeypatch.setattr("benchmarks.startup.Worker", Direct)


@pytest.fixture
def bench(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a benchmark on the photos and returns what it printed and its JSON."""

    def run(name: str, *words: str) -> tuple[str, dict[str, Any]]:
        written = tmp_path / "figures.json"
        assert main([name, "--data", str(photos), "--json", str(written), *words]) == 0
        return capsys.readouterr().out, json.loads(written.read_text())

    return run


@pytest.mark.usefixtures("direct")
def test_images_takes_turns_and_says_who_is_missing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = contenders.Entry("Nobody", "nobody", "Nobody", ("no_such_module.at_all",))
    monkeypatch.setitem(contenders.CONTENDERS, "dali", absent)
    options = ("--threads", "1", "--rounds", "2", "--batch-size", "4", "--repeat", "2")
    printed, figures = bench("images", *options, "--peers", "bare", "torch-v2", "dali")
    assert set(figures["contenders"]) == {"sutler", "bare", "torch-v2"}
    assert all(len(each["per_s"]) == 2 for each in figures["contenders"].values())
    assert {epoch["samples"] for each in figures["contenders"].values() for epoch in each["epochs"]} == {12}
    assert figures["notes"] == [
        "Nobody is left out: `no_such_module.at_all` is not installed here; `make bench` installs the peers."
    ]
    assert "Sutler / it" in printed
    assert "target ≥ 0.85 × bare loop" in printed


@pytest.mark.usefixtures("direct")
def test_startup_lists_and_fetches_a_first_batch(bench: Any) -> None:
    printed, figures = bench(
        "startup", "--files", "40", "--rounds", "1", "--threads", "1", "--batch-size", "4"
    )
    assert set(figures["contenders"]["sutler"][0]) == {"listing", "first_batch"}
    assert "then first batch" in printed


def test_memory_reports_each_epoch_of_a_contender_in_its_own_process(bench: Any) -> None:
    printed, figures = bench(
        "memory", "--epochs", "5", "--threads", "1", "--batch-size", "2", "--repeat", "1"
    )
    assert len(figures["resident_bytes"]) == 5
    assert "KiB per epoch" in printed


def test_quality_compares_every_pipeline(bench: Any) -> None:
    printed, figures = bench("quality", "--samples", "4")
    assert len(figures["differences"]) == 13
    assert all(0 <= each["differing"] <= 1 for each in figures["differences"].values())
    assert "train pipeline, bicubic, DCT scaling" in printed


def test_training_runs_without_a_gpu(bench: Any) -> None:
    torch.set_num_threads(
        1
    )  # so small a batch is not worth more, and on a busy machine they wait for each other
    options = ("--device", "cpu", "--samples", "4", "--batch-size", "2", "--size", "32", "--epochs", "2")
    printed, figures = bench("h200", *options, "--threads", "1")
    assert {"synthetic", "torch + PIL", "Sutler", "Sutler, bytes"} < set(figures["feeds"])
    assert all(epoch["samples"] == 4 for epochs in figures["feeds"].values() for epoch in epochs)
    assert "stalled" in printed


def test_reports_of_a_training_are_pages_texts_and_json_without_paths(bench: Any, tmp_path: Path) -> None:
    from sutler import Report

    torch.set_num_threads(1)
    out = tmp_path / "reports"
    options = (
        "--device",
        "cpu",
        "--models",
        "resnet18",
        "--repeat",
        "4",
        "--batch-size",
        "2",
        "--size",
        "32",
        "--warm-up",
        "0.01",
    )
    printed, figures = bench("reports", *options, "--threads", "1", "--time", "0.3", "--out", str(out))
    assert sorted(path.name for path in out.iterdir()) == [
        "index.md", "resnet18.html", "resnet18.json", "resnet18.txt",
    ]  # fmt: skip
    made = Report.from_json(out / "resnet18.json")
    assert made.subject.dataset == "photos, ResNet-18 on the processor"
    assert made.rates["G"].samples > 0
    assert set(figures["reports"]) == {"resnet18"}
    index = (out / "index.md").read_text()
    assert "[page](resnet18.html)" in index
    assert made.recommendation.text in index
    assert made.recommendation.text in printed
    written = "".join(path.read_text() for path in out.iterdir())
    assert str(tmp_path) not in written
    assert "sutler-bench-" not in written


def test_accounting_holds_the_book_against_the_work(bench: Any) -> None:
    printed, figures = bench(
        "accounting", "--samples", "24", "--batch-size", "8", "--threads", "1", "--rounds", "1"
    )
    assert len(figures["shares"]) == 3
    assert all(share > 0 for share in figures["shares"].values())
    assert "figures take ≤ 1% of photos, training at 224" in printed


def test_own_resnet_has_as_many_parameters_as_torchvisions() -> None:
    from torchvision.models import resnet18

    from benchmarks.resnet import resnet18 as own

    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (own(), resnet18())]
    assert counts[0] == counts[1]


def test_a_saved_run_is_a_dated_folder_without_paths_of_this_machine(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outcome, "RUNS", tmp_path)
    words = ["quality", "--data", str(photos), "--samples", "1", "--save", "two-cores"]
    assert main(words) == 0
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "raw.json", "summary.txt"]
    assert folder.name.endswith("-two-cores")
    assert str(photos) not in "".join(path.read_text() for path in folder.iterdir())
    assert main(words) == 1
    assert "pass another name" in capsys.readouterr().err


def test_a_folder_without_photos_is_an_error_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", "--data", str(tmp_path)]) == 1
    assert "holds no JPEGs" in capsys.readouterr().err


def test_photo_tree_links_each_photo_as_often_as_asked_and_cleans_up(photos: Path) -> None:
    with photo_tree(photos, repeat=3) as tree:
        assert tree.samples == len(find_photos(tree.root)) == 18
        assert sorted(path.name for path in tree.root.iterdir()) == ["class_0", "class_1"]
        root = tree.root
    assert not root.exists()
    with photo_tree(photos, samples=10, classes=5) as tree:
        assert [len(list(folder.iterdir())) for folder in tree.root.iterdir()] == [2] * 5
    with photo_tree(photos, copied=True) as tree:
        assert {path.stat().st_nlink for _, path in find_photos(tree.root)} == {1}


def test_another_contender_begins_in_every_round() -> None:
    assert ["".join(in_turn("abc", number)) for number in range(4)] == ["abc", "bac", "cab", "acb"]
    assert all(in_turn("abcd", number)[0] == "abcd"[number % 4] for number in range(8))
    assert all(sorted(in_turn("abcd", number)) == list("abcd") for number in range(8))
    assert in_turn([], 3) == []


def test_a_contender_that_left_samples_out_has_no_figures() -> None:
    all_of_it, less = Epoch(10, 1.0, 0.1, 7), Epoch(9, 1.0, 0.1, 7)
    without_labels, others = Epoch(10, 1.0, 0.1, None), Epoch(10, 1.0, 0.1, 8)
    check_delivered({"a": [all_of_it, all_of_it], "b": [without_labels]}, 10)
    for wrong in (less, others):
        with pytest.raises(ContenderError, match="did not deliver the same samples"):
            check_delivered({"a": [all_of_it], "b": [wrong]}, 10)


def test_tables_and_sparklines() -> None:
    assert report.table(["", "img/s"], [["Sutler", "1,000"]]) == "        img/s\n------  -----\nSutler  1,000"
    assert report.sparkline([1, 1]) == "▁▁"
    assert report.sparkline([0, 7]) == "▁█"
    assert report.ratios([4, 9], [2, 3]) == [2, 3]
    assert (
        machine.command(["images", "--data", "/some/where/photos"])
        == 'make bench BENCH="images --data photos"'
    )


def test_plan_compares_predictions_with_epochs(bench: Any) -> None:
    # Slow storage, an accelerator beside it, and two jobs that share.
    options = ("--set-ups", "4", "12", "15", "--size", "16", "--time", "0.05", "--epochs-time", "0.01")
    printed, figures = bench("plan", *options, "--rounds", "2", "--threads", "1", "--batch-size", "16")
    assert [each["jobs"] for each in figures["set_ups"]] == [1, 1, 2]
    assert [each["device_samples_per_s"] is None for each in figures["set_ups"]] == [True, False, True]
    for set_up in figures["set_ups"]:
        assert set_up["storage_mbps"] > 0
        points = set_up["points"]
        assert {"no cache", "100-0-0", "50-50-0", "0-100-0"} <= {point["split"] for point in points}
        # The planned split is measured twice.
        planned = [(point["split"], point["repeated"]) for point in points if point["chosen"]]
        assert planned == [(planned[0][0], False), (planned[0][0], True)]
        for rounds in ("measured_rounds", "predicted_rounds", "published_rounds"):
            assert all(len(point[rounds]) == 2 and min(point[rounds]) > 0 for point in points)
    verdict = figures["verdict"]
    assert verdict["points"] == sum(len(each["points"]) - 1 for each in figures["set_ups"])
    assert len(verdict["noise"]) == 3
    assert all(0 < share <= 1 for share in verdict["chosen_of_best"])
    assert "target: r ≥ 0.95" in printed
    assert "published model: r" in printed


def test_planned_is_compared_with_the_best_round_by_round() -> None:
    def point(split: str, rates: list[float], **more: bool) -> plan_report.Point:
        return plan_report.Point(
            split,
            chosen=more.get("chosen", False),
            repeated=more.get("repeated", False),
            measured_rounds=rates,
            predicted_rounds=[110.0] * 3,
            published_rounds=[200.0] * 3,
        )

    points = [
        point("no cache", [10.0, 10.0, 10.0]),
        # Better than the planned one by a tenth in every round, although the machine was twice as fast in the last.
        point("0-100-0", [110.0, 110.0, 220.0]),
        point("50-50-0", [100.0, 100.0, 200.0], chosen=True),
        point("50-50-0", [102.0, 98.0, 200.0], chosen=True, repeated=True),
    ]
    result = plan_report.Measured("train", 25.0, 0.3, 1000, 2, 1, None, {}, points)
    assert result.chosen_of_best == pytest.approx(100 / 110)
    assert result.noise == pytest.approx(0.02, abs=1e-3)
    assert points[2].error == pytest.approx(0.1)
    figures = plan_report.verdict([result])
    assert figures["points"] == 3
    assert figures["published"]["mean_error"] > figures["ours"]["mean_error"] > 0
    text = plan_report.summary([result], figures)
    assert "target: planned split / best measured, worst ≥ 0.95: 0.909, missed" in text
    assert "train, 25 MB/s, memory 30%, 2 threads" in text
