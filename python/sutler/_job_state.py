"""The states of all ranks of a job, put together to go on with another number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._epoch import Position
from sutler._words import counted

if TYPE_CHECKING:
    from sutler.loader import Loader


def check_job_states(loader: Loader, states: list[tuple[dict[str, Any], Position]]) -> Position:
    """Where this rank goes on, from the states of all ranks of a job: each already found to be this loader's."""
    if not states:
        raise ValueError(
            "this is not a state of a sutler.Loader but an empty list; pass the states of all ranks that the job had"
        )
    _check_agreement([state for state, _ in states])
    first, position = states[0]
    if first["served"] is None:
        return position  # no rank has gaps, so any state will do
    by_rank = _by_rank(states)
    if len(by_rank) == loader.world_size:
        return by_rank[loader.rank]
    if first["sampling"] not in ("shuffle", "sequential"):
        raise ValueError(
            f"the states were saved by {len(by_rank)} ranks with a {first['sampling']} of yours, and this job has "
            f"{loader.world_size}. Only the {first['sampling']} knows how the rest of the epoch is shared out, so go "
            f"on with {len(by_rank)} ranks, or begin the next epoch with another number; what shuffle=True shares out "
            "can be dealt out anew."
        )
    return _dealt_anew(loader, by_rank)


def _check_agreement(states: list[dict[str, Any]]) -> None:
    """Refuses states of different jobs, or of different moments of one."""
    first = states[0]
    for number, state in enumerate(states[1:], start=1):
        for key in ("order", "epoch", "consumed"):
            if state[key] != first[key]:
                raise ValueError(
                    f"the states do not belong together: number 0 of the list has {key}={first[key]!r}, number "
                    f"{number} has {key}={state[key]!r}. Pass the states that all ranks of one job saved after the "
                    "same batch."
                )
        if state.get("before") != first.get("before"):
            raise ValueError(
                f"the states do not belong together: number 0 and number {number} of the list go on from different "
                "earlier states. Pass the states that all ranks of one job saved after the same batch."
            )


def _by_rank(states: list[tuple[dict[str, Any], Position]]) -> list[Position]:
    """The positions in the order of their ranks, of which none may be missing."""
    found: dict[int, Position] = {}
    worlds = {state["place"][1] for state, _ in states if state["served"] is not None}
    if len(worlds) > 1:
        raise ValueError(
            f"the states do not belong together: they are of jobs with {' and '.join(map(str, sorted(worlds)))} ranks. "
            "Pass the states of all ranks of one job."
        )
    (world,) = worlds
    for number, (state, position) in enumerate(states):
        if state["served"] is None:
            raise ValueError(
                f"the states do not belong together: number {number} of the list was saved before the first batch of "
                "the epoch and others after it. Pass the states that all ranks saved after the same batch."
            )
        rank = state["place"][0]
        if rank in found:
            raise ValueError(f"two of the states were saved by rank {rank} of {world}; pass one of each rank")
        found[rank] = position
    missing = [rank for rank in range(world) if rank not in found]
    if missing:
        raise ValueError(
            f"the job had {world} ranks, and the {'state' if len(missing) == 1 else 'states'} of "
            f"{' and '.join(f'rank {rank}' for rank in missing)} {'is' if len(missing) == 1 else 'are'} missing; what "
            "is left of the epoch is only known from all of them"
        )
    ranks = [found[rank] for rank in range(world)]
    done = [_count(position) for position in ranks]
    if len(set(done)) > 1:
        least, most = done.index(min(done)), done.index(max(done))
        raise ValueError(
            f"the states were saved after different batches: rank {least} had been served "
            f"{counted(done[least], 'sample')}, rank {most} {done[most]}. Pass the states that all ranks "
            "saved after the same batch."
        )
    return ranks


def _count(position: Position) -> int:
    return 0 if position.served is None else len(position.served)


def _dealt_anew(loader: Loader, ranks: list[Position]) -> Position:
    """The beginning of a share of what is left of the epoch, for each of another number of ranks."""
    first = ranks[0]
    position = Position(first.epoch, first.consumed)
    position.seeded = first.seeded
    position.before = _sutler.Served.by_ranks(
        [rank.served for rank in ranks if rank.served is not None],
        samples=len(loader.dataset),
        shuffle=loader.shuffle,
        seed=loader.seed,
        epoch=first.epoch,
        consumed=first.consumed,
        before=first.before,
        # Where jobs share what they prepare, the order is nobody's to foresee, so their books are by sample.
        by_sample=loader.order == "shared",
    )
    return position
