"""Several processes under `torchrun`: every sample once, ranks in step, and a checkpoint that all go on from."""

from __future__ import annotations

import functools
import json
import shutil
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
from sutler import Loader

from tests.python.trainers.conftest import ABORTED, Ended, Program, RunPrograms, run_command

data = pytest.importorskip("torch.utils.data")

JOB = Path(__file__).parent / "job.py"

#: The photos that are spoiled in one test: unequally many on each rank, and never all of a batch.
SPOILED = (2, 4, 6, 12, 13, 37)

#: What `torchrun` itself starts. The others are forked, in the environment that it would give them.
BY_TORCHRUN = ("plain", 2)

Results = list[dict[str, Any]]


def environments(world_size: int) -> list[dict[str, str]]:
    """What `torchrun` on one machine tells each rank."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        for rank in range(world_size)
    ]


@pytest.fixture(scope="module")
def run_job(
    photos: Path, tmp_path_factory: pytest.TempPathFactory, run_programs: RunPrograms
) -> Callable[[str, int], Results]:
    """Runs a part of the job on so many ranks, and returns what each of them wrote."""
    spoiled = tmp_path_factory.mktemp("spoiled") / "photos"
    shutil.copytree(photos, spoiled)
    dataset = sutler.ImageFolder(spoiled)
    for index in SPOILED:
        Path(dataset.path(index)).write_bytes(b"not a photo")

    @functools.cache  # several tests look at what came of a launch
    def launch(part: str, world_size: int) -> tuple[list[Ended], Path]:
        folder = tmp_path_factory.mktemp(part)
        command = [str(JOB), part, str(photos), str(spoiled), str(folder)]
        if (part, world_size) == BY_TORCHRUN:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
            ended = run_command([*torchrun, *command], folder)
            if ABORTED in ended.errors:
                ended = run_command([*torchrun, *command], folder)
            return [ended], folder
        ranks = [Program(command, folder, environment) for environment in environments(world_size)]
        return run_programs(ranks), folder

    def run(part: str, world_size: int) -> Results:
        ended, folder = launch(part, world_size)
        assert not any(each.code for each in ended), "\n".join(map(str, ended))
        results = [json.loads(file.read_text()) for file in sorted(folder.glob("rank-*.json"))]
        assert [(each["rank"], each["world_size"]) for each in results] == [
            (rank, world_size) for rank in range(world_size)
        ]
        return results

    return run


def check_each_sample_once(ranks: list[list[list[int]]], samples: int = 41) -> None:
    """As DistributedSampler would: all samples, and the first few again to fill the ranks up."""
    assert len({tuple(len(batch) for batch in rank) for rank in ranks}) == 1, "ranks are not in step"
    counts = Counter(index for rank in ranks for batch in rank for index in batch)
    assert sorted(counts) == list(range(samples))
    assert sum(counts.values()) == -(-samples // len(ranks)) * len(ranks)
    assert max(counts.values()) <= 2


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", ["native", "python", "sampler"])
def test_ranks_share_every_epoch(run_job: Any, world_size: int, kind: str) -> None:
    results = run_job("plain", world_size)
    epochs = list(zip(*(rank[kind]["epochs"] for rank in results), strict=True))
    for ranks in epochs:
        check_each_sample_once(list(ranks))
    assert len({json.dumps(ranks) for ranks in epochs}) == 3, "each epoch has an order of its own"
    assert {rank[kind]["length"] for rank in results} == {len(epochs[0][0])}


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_iterator_that_was_there_before_its_process_group_serves_its_ranks_share(
    run_job: Any, world_size: int
) -> None:
    results = run_job("plain", world_size)
    check_each_sample_once([rank["waiting"] for rank in results])
    assert [rank["waiting"] for rank in results] == [rank["python"]["epochs"][0] for rank in results]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_distributed_sampler_decides_each_rank(run_job: Any, world_size: int) -> None:
    for rank, result in enumerate(run_job("plain", world_size)):
        sampler = data.DistributedSampler(range(41), world_size, rank, shuffle=True, seed=2)
        for epoch, batches in enumerate(result["sampler"]["epochs"]):
            sampler.set_epoch(epoch)
            assert [index for batch in batches for index in batch] == list(sampler)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", ["native", "python", "sampler"])
def test_each_rank_goes_on_in_the_middle_of_an_epoch(run_job: Any, world_size: int, kind: str) -> None:
    for result in run_job("plain", world_size):
        assert result[kind]["rest"] == result[kind]["epochs"][1][2:]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_with_unequally_many_bad_samples_stay_in_step(run_job: Any, world_size: int) -> None:
    results = run_job("plain", world_size)
    assert len({len(rank["skipping"]["steps"]) for rank in results}) == 1
    assert len({rank["skipping"]["failed"] for rank in results}) > 1, "the test spoils them unequally"
    served = {index for rank in results for step in rank["skipping"]["steps"] for index in step}
    assert served == set(range(41)) - set(SPOILED)
    assert all(rank["weights"] == results[0]["weights"] for rank in results)


def test_accelerate_shares_and_resumes_over_ranks(run_job: Any) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    results = run_job("accelerate", 3)
    for rank in results:
        assert rank["unprepared"] == rank["prepared"]
        assert rank["rest"] == rank["skipped"] == rank["prepared"][2:]
        assert rank["weights"] == results[0]["weights"]
    check_each_sample_once([rank["prepared"] for rank in results])


def test_accelerate_gathers_each_sample_once_and_in_order(run_job: Any) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    for rank in run_job("accelerate", 3):
        for samples in (39, 40, 41):
            assert rank["gathered"][str(samples)] == list(range(samples))


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_accelerate_gathers_is_what_its_own_loader_has(run_job: Any, world_size: int) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    for rank in run_job("evaluation", world_size):
        gathered = rank["gathered"]
        assert len(gathered) == 22
        for name in ("native", "subset"):
            assert gathered.pop(name) == list(range(41))
            assert gathered.pop(f"{name}, skipped") == list(range(4 * world_size, 41))
        for samples in (3, 8, 10, 11, 20, 24, 41):
            assert gathered[f"{samples} samples"][1]["rows"] == list(range(samples))
        for name, (theirs, ours) in gathered.items():
            if "ready" in name:  # batches are the same only as a whole
                assert len(ours["losses"]) == len(theirs["losses"])
                assert len(ours["rows"]) == len(set(ours["rows"])) == len(theirs["rows"])
            else:
                assert ours == theirs, name
        theirs, ours = gathered["in ready order"]
        assert sum(ours["losses"]) == pytest.approx(sum(theirs["losses"]))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_take_the_batches_of_samplers_and_streams_in_turn(run_job: Any, world_size: int) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    results = run_job("divided", world_size)
    for name in results[0]["compared"]:
        theirs, ours = zip(*(rank["compared"][name] for rank in results), strict=True)
        if "stream, 3" in name or "stream, 10" in name:  # which we fill up with samples of the last step
            assert [list(map(len, rank)) for rank in ours] == [list(map(len, rank)) for rank in theirs], name
            samples = {number for rank in ours for batch in rank for number in batch}
            assert samples == {number for rank in theirs for batch in rank for number in batch}, name
        else:
            assert ours == theirs, name


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_draw_alike_and_get_every_sample_once(run_job: Any, world_size: int) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    results = run_job("divided", world_size)
    first, second = (
        [number for rank in results for batch in rank["drawn"][epoch] for number in batch]
        for epoch in range(2)
    )
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second, "each epoch has an order of its own"
    for number, rank in enumerate(results):
        assert rank["gathered"] == list(range(7))
        assert rank["everything"] == [list(range(24))] * 2, (
            "no memory is filled up to a size that means all there is"
        )
        assert [index for batch in rank["knowing"] for index in batch] == list(range(number, 24, world_size))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_divide_a_sampler_or_stream_go_on_from_one_state(run_job: Any, world_size: int) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    for number, rank in enumerate(run_job("divided", world_size)):
        for whole, rest, skipped in rank["rests"].values():
            assert rest == skipped == whole[1:]
        if number:
            assert "batches of different sizes" in rank["refused"]
        else:
            assert rank["refused"] is None


@pytest.mark.parametrize("world_size", [2, 3])
def test_transformers_evaluate_and_predict_as_without_us(run_job: Any, world_size: int) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    for rank in run_job("evaluation", world_size):
        assert len(rank["evaluated"]) == 4
        for name, (theirs, ours) in rank["evaluated"].items():
            assert ours == theirs, name
        for samples in (10, 11, 41):
            _, ours = rank["evaluated"][f"{samples} samples"]
            assert ours["predictions"] == ours["labels"] == list(range(samples))


def test_lightning_shares_and_resumes_over_ranks(run_job: Any, photos: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    results = run_job("lightning", 2)
    batches = len(results[0]["trained"]) // 2
    check_each_sample_once([rank["trained"][:batches] for rank in results])
    check_each_sample_once([rank["trained"][batches:] for rank in results])
    for number, rank in enumerate(results):
        loader = Loader(
            sutler.ImageFolder(photos), 4, True, seed=1, rank=number, world_size=2, return_ids=True
        )
        assert rank["trained"] == [batch for _ in range(2) for batch in loader_ids(loader)]
        assert rank["rest"] == rank["trained"][4:]
        assert rank["weights"][0] == rank["weights"][1] == results[0]["weights"][0]


def test_lightning_says_where_a_sampler_is_not_divided(run_job: Any) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    results = run_job("lightning", 2)
    for number, rank in enumerate(results):
        share = loader_ids(Loader(range(41), 4, rank=number, world_size=2))
        assert rank["validated"]["own order"] == rank["validated"]["wrapped"] == share
        assert sum(map(len, rank["validated"]["sampler"])) == 41
        assert len(rank["said"]) == 1, (
            "Lightning divides a loader without a sampler, so nothing is said of that"
        )
        assert "all that range draws" in rank["said"][0]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_share_of_a_loader_that_was_told_nothing_is_spoken_of_once(run_job: Any, world_size: int) -> None:
    for rank in run_job("plain", world_size):
        share = -(-41 // world_size)
        assert rank["validated"] == [share, share]
        assert len(rank["said"]) == 1
        assert f"This rank gets {share} of 41 samples" in rank["said"][0]


@pytest.mark.parametrize(
    ("part", "world_size"),
    [("accelerate", 3), ("evaluation", 2), ("divided", 2), ("fabric", 2), ("transformers", 2)],
)
def test_shares_that_a_trainer_sees_to_are_not_spoken_of(run_job: Any, part: str, world_size: int) -> None:
    pytest.importorskip(
        {"evaluation": "transformers", "divided": "accelerate", "fabric": "lightning"}.get(part, part),
        reason="it is not installed",
    )
    assert [rank["said"] for rank in run_job(part, world_size)] == [[]] * world_size


def test_fabric_shares_and_resumes_over_ranks(run_job: Any) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    results = run_job("fabric", 2)
    check_each_sample_once([rank["trained"] for rank in results])
    for rank in results:
        assert rank["rest"] == rank["trained"][2:]


def test_fabrics_ranks_divide_a_sampler(run_job: Any) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    drawn = [
        *range(40, -1, -1),
        *range(40, 33, -1),
    ]  # filled up from the beginning to six steps of four on two ranks
    for number, rank in enumerate(run_job("fabric", 2)):
        assert rank["sampled"] == [drawn[at : at + 4] for at in range(4 * number, 48, 8)]
        assert [index for batch in rank["in full"] for index in batch] == list(range(41))


def loader_ids(loader: Loader) -> list[list[int]]:
    rows = list(loader.batch_sampler)
    loader.set_epoch(loader.sampler.epoch + 1)
    return rows


def test_transformers_share_and_resume_over_ranks(run_job: Any) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    results = run_job("transformers", 2)
    assert results[0]["trained"] != results[1]["trained"]
    for rank in results:
        assert len(rank["trained"]) == 12
        assert rank["rest"] == rank["trained"][4:]
        assert rank["weights"][0] == rank["weights"][1] == results[0]["weights"][0]
        assert rank["predictions"] == 41
