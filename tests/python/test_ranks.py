"""Several ranks: together everything, each the same amount, dealt out as PyTorch's DistributedSampler does."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sutler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

data = pytest.importorskip("torch.utils.data")

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def batches_of(dataset: sutler.ImageFolder, **arguments: Any) -> list[list[int]]:
    loader = Loader(dataset, num_workers=1, return_ids=True, output="numpy", **arguments)
    batches = [ids.tolist() for _, _, ids in loader]
    assert len(loader) == len(batches)
    return batches


@few
@given(
    world=st.integers(1, 50), batch_size=st.integers(1, 20), shuffle=st.booleans(), drop_last=st.booleans()
)
def test_ranks_together_serve_all_samples_in_equal_parts(
    augmented: sutler.ImageFolder, world: int, batch_size: int, shuffle: bool, drop_last: bool
) -> None:
    ranks = [
        batches_of(
            augmented,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world,
        )
        for rank in (range(world) if world <= 6 else (0, world - 1))
    ]
    assert all([len(b) for b in rank] == [len(b) for b in ranks[0]] for rank in ranks)
    if world > 6:
        return
    counts = Counter(index for rank in ranks for batch in rank for index in batch)
    if drop_last:
        assert max(counts.values(), default=1) == 1
        assert len(counts) == 41 // world // batch_size * batch_size * world
    else:
        assert len(counts) == 41
        assert sum(counts.values()) == -(-41 // world) * world


@pytest.mark.parametrize("world", [1, 2, 3, 5, 41, 60])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_deal_is_that_of_distributed_sampler(
    augmented: sutler.ImageFolder, world: int, drop_last: bool
) -> None:
    for rank in range(world):
        theirs = data.DistributedSampler(
            range(41), num_replicas=world, rank=rank, shuffle=False, drop_last=drop_last
        )
        ours = Loader(augmented, 1, rank=rank, world_size=world, drop_last=drop_last)
        assert list(ours.sampler) == list(theirs)
        assert len(ours.sampler) == len(theirs)
        if rank in (0, world - 1):
            served = batches_of(augmented, batch_size=4, rank=rank, world_size=world)
            indices = list(data.DistributedSampler(range(41), num_replicas=world, rank=rank, shuffle=False))
            assert served == list(data.BatchSampler(indices, 4, False))


def test_ranks_of_a_running_process_group_are_found(run_script: Any, photos: Any, tmp_path: Any) -> None:
    code = """
        import sys
        import torch.distributed
        import torch.multiprocessing
        import sutler

        def work(rank, photos, rendezvous):
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
            loader = sutler.Loader(sutler.ImageFolder(photos), batch_size=None, return_ids=True, output="numpy")
            assert (loader.rank, loader.world_size) == (rank, 2)
            assert [ids for _, _, ids in loader] == [i % 41 for i in range(rank, 42, 2)]
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            torch.multiprocessing.spawn(work, args=(sys.argv[1], sys.argv[2]), nprocs=2)
    """
    run_script(code, photos, tmp_path / "rendezvous")


class SomeBroken:
    """Fails for its first samples."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index < 4:
            raise ValueError(f"sample {index} is broken")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_rank_whose_python_dataset_has_no_batch_says_so_too(workers: int) -> None:
    loader = Loader(SomeBroken(), 2, num_workers=workers, rank=0, world_size=2, errors="skip", output="numpy")
    with pytest.raises(sutler.RankOutOfStep, match=r"batch 0 failed.*fall behind"):
        list(loader)
    alone = Loader(SomeBroken(), 2, num_workers=workers, errors="skip", output="numpy")
    assert [batch.tolist() for batch in alone] == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_rank_without_a_batch_says_so_instead_of_falling_behind(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos, T.Resize([12, 12]))
    for index in range(0, 8, 2):
        Path(dataset.path(index)).write_bytes(b"broken")
    loader = Loader(dataset, 2, rank=0, world_size=2, errors="skip", output="numpy")
    with pytest.raises(sutler.RankOutOfStep, match="fall behind"):
        list(loader)
    alone = Loader(dataset, 2, errors="skip", output="numpy")
    assert sum(len(labels) for _, labels in alone) == len(dataset) - 4


def test_a_sampler_that_is_not_divided_is_warned_of(augmented: sutler.ImageFolder) -> None:
    ranks: dict[str, Any] = {"rank": 1, "world_size": 3}
    with pytest.warns(UserWarning, match="every rank gets all that it draws"):
        sutler.Loader(augmented, sampler=range(len(augmented)), **ranks)
    divided = data.DistributedSampler(augmented, num_replicas=3, rank=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sutler.Loader(augmented, sampler=divided, **ranks)
