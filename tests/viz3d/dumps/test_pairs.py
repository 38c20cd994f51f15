"""Two ranks that are in different operations, or a rank without a dump: what dumps of gloo leave open, NCCL's tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import HangVerdict, State
from support.dumps import Call, GlooJob, Job, absent_member

PAIR = {"0": ("tp", (0, 1)), "1": ("dp", (0, 1))}


def verdict_of(job: Job, folder: Path, ranks: list[int] | None = None, *, as_json: bool = False) -> HangVerdict:
    return judge_dumps([read_folder(job.write(folder, ranks, as_json=as_json))]).verdict


def crosswise(kind: type[Job]) -> Job:
    """Rank 1 waits in tp for rank 0, which waits in dp for it: one left out a call, or took it late."""
    job = kind(PAIR)
    for rank in range(2):
        job.calls[rank] = [Call("0", 1), Call("1", 1), Call("1" if rank == 0 else "0", 2, done=False)]
    return job


def unlike(kind: type[Job], members: int = 2, late: tuple[int, ...] = ()) -> Job:
    """One of a group of members is in a gather where the others reduce, or have not come yet."""
    job = kind({"0": ("tp", tuple(range(members)))})
    for rank in range(members):
        job.calls[rank] = [Call("0", 1), Call("0", 2, done=False, name="all_gather" if rank == 1 else "all_reduce")]
        job.calls[rank] = job.calls[rank][: 1 if rank in late else 2]
    return job


@pytest.mark.parametrize("build", [crosswise, unlike])
def test_of_two_that_differ_gloo_does_not_tell_who_is_right(build: Callable[[type[Job]], Job], tmp_path: Path) -> None:
    verdict = verdict_of(build(GlooJob), tmp_path / "gloo")
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(0, 1)]
    assert all(one.confidence < 0.5 for one in verdict.culprits)
    assert "one of them left out a call" in " ".join(one.reason for one in verdict.abstained)
    assert verdict_of(build(Job), tmp_path / "nccl").verdict == State.HANG


@pytest.mark.parametrize(("job", "written"), [(unlike(GlooJob, 4, (2, 3)), None), (unlike(GlooJob, 3), [0, 1])])
def test_nor_where_others_of_the_group_have_not_come_or_left_no_dump(
    job: Job, written: list[int] | None, tmp_path: Path
) -> None:
    verdict = verdict_of(job, tmp_path, written)
    assert verdict.verdict == State.INCONCLUSIVE
    assert {0, 1} <= {rank for one in verdict.culprits for rank in one.ranks}
    assert all(one.confidence < 0.5 for one in verdict.culprits)


def circle(calls: dict[int, str]) -> Job:
    """Four ranks, dp 2 and tp 2: the next calls of each, in tp (t), dp (d) or the group of all (w), the last in
    flight."""
    pairs = {"t0": ("tp", (0, 1)), "t1": ("tp", (2, 3)), "d0": ("dp", (0, 2)), "d1": ("dp", (1, 3))}
    job = GlooJob({**pairs, "w": ("world", (0, 1, 2, 3))})
    for rank in range(4):
        own = {"t": f"t{rank // 2}", "d": f"d{rank % 2}", "w": "w"}
        job.calls[rank] = [Call(name, 1) for name in own.values()]
        *over, held = (own[letter] for letter in calls[rank])
        job.calls[rank] += [*(Call(name, 2) for name in over), Call(held, 2, done=False)]
    return job


def test_a_circle_that_one_rank_may_have_made_alone_is_not_of_all_in_it(tmp_path: Path) -> None:
    """Rank 3 left its call in tp out: 2 waits there, 0 in dp for 2, 3 in the group of all for both."""
    verdict = verdict_of(circle({0: "td", 1: "tdw", 2: "t", 3: "dw"}), tmp_path)
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(0, 2, 3)]


def test_two_orders_of_two_groups_are_made_by_two_ranks_at_least(tmp_path: Path) -> None:
    verdict = verdict_of(circle({0: "t", 1: "d", 2: "d", 3: "t"}), tmp_path)
    assert verdict.verdict == State.HANG
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((0, 1, 2, 3), "order-inversion")]


def evaluates(kind: type[Job], sides: dict[int, str]) -> Job:
    """Pipeline 4, data 2. After three steps ranks reduce over dp (d), as each step does first, or over the world (w),
    as each evaluation does, of which there was one after the second step."""
    pairs = {f"d{stage}": ("dp", (2 * stage, 2 * stage + 1)) for stage in range(4)}
    pipes = {f"p{replica}": ("pp", tuple(range(replica, 8, 2))) for replica in range(2)}
    job = kind({"w": ("world", tuple(range(8))), **pairs, **pipes})
    for rank, side in sides.items():
        pair = f"d{rank // 2}"
        job.calls[rank] = [Call(pair, 1), Call("w", 1), Call(pair, 2), Call("w", 2), Call("w", 3), Call(pair, 3)]
        held = [("w", 5)] if side == "w" else [(pair, 4), (pair, 5)]  # two buckets
        job.calls[rank] += [Call("w", 4), *(Call(group, number, done=False) for group, number in held)]
    return job


STEPS = {rank: "w" if rank % 2 else "d" for rank in range(8)}
"""Replica 1 has run its last step twice, and evaluates again where the others go on."""


@pytest.mark.parametrize("kind", [GlooJob, Job])
def test_a_replica_in_another_step_is_not_told_from_another_order(kind: type[Job], tmp_path: Path) -> None:
    verdict = verdict_of(evaluates(kind, STEPS), tmp_path)
    assert verdict.verdict == State.INCONCLUSIVE
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [(tuple(range(8)), "order-inversion")]
    assert verdict.culprits[0].confidence < 0.5
    assert "whole replicas are in another step" in " ".join(one.reason for one in verdict.abstained)


@pytest.mark.parametrize("group", ["dp", "tp"])
def test_replicas_may_run_along_either_axis(group: str, tmp_path: Path) -> None:
    """All ranks of one group of tp (or of dp) are in the group of all, the others in dp (tp)."""
    last = {0: "d", 1: "d", 2: "w", 3: "w"} if group == "dp" else {0: "t", 1: "w", 2: "t", 3: "w"}
    verdict = verdict_of(circle(last), tmp_path)
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(0, 1, 2, 3)]


def test_ranks_of_one_replica_in_different_operations_are_in_another_order(tmp_path: Path) -> None:
    """Of each pair over tp, which lies inside a replica, one is in the group of all."""
    verdict = verdict_of(circle({0: "d", 1: "w", 2: "w", 3: "d"}), tmp_path)
    assert verdict.verdict == State.HANG
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((0, 1, 2, 3), "order-inversion")]


def test_stages_of_one_replica_in_different_operations_are_in_another_order(tmp_path: Path) -> None:
    """As in another step, but in the last two stages it is the other replica."""
    verdict = verdict_of(evaluates(GlooJob, {**STEPS, 4: "w", 5: "d", 6: "w", 7: "d"}), tmp_path)
    assert verdict.verdict == State.HANG
    assert [str(one.kind) for one in verdict.culprits] == ["order-inversion"]


def test_a_group_that_runs_across_replicas_does_not_bind_them(tmp_path: Path) -> None:
    """Experts are spread over two replicas: their group lies in that over dp, and runs across replicas as that does."""
    groups = {"w": ("world", (0, 1, 2, 3)), "d": ("dp", (0, 1, 2, 3)), "e0": ("ep", (0, 1)), "e1": ("ep", (2, 3))}
    job = GlooJob({**groups, "t0": ("tp", (0, 2)), "t1": ("tp", (1, 3))})
    for rank in range(4):
        held = "w" if rank in (1, 3) else f"e{rank // 2}"
        job.calls[rank] = [Call(name, 1) for name in ("w", "d", f"e{rank // 2}", f"t{rank % 2}")]
        job.calls[rank].append(Call(held, 2, done=False))
    assert verdict_of(job, tmp_path).verdict == State.INCONCLUSIVE


class LateStatus(GlooJob):
    """The count of what completed is written by several threads: here rank 2's lags behind what its entries show."""

    def value(self, rank: int) -> dict[str, Any]:
        """The plain values of one rank's dump."""
        value = super().value(rank)
        for status in value["pg_status"].values() if rank == 2 else ():
            status["last_completed_collective"] = max(status["last_completed_collective"] - 2, -1)
        return value


def test_a_count_that_lags_behind_the_entries_hides_no_circle(tmp_path: Path) -> None:
    verdict = verdict_of(evaluates(LateStatus, STEPS), tmp_path)
    assert [one.ranks for one in verdict.culprits] == [tuple(range(8))]


def test_of_more_the_majority_tells(tmp_path: Path) -> None:
    verdict = verdict_of(unlike(GlooJob, 4), tmp_path)
    assert (verdict.verdict, [one.ranks for one in verdict.culprits]) == (State.HANG, [(1,)])


def test_nobody_is_suspected_for_a_difference_beside_a_rank_that_is_sure(tmp_path: Path) -> None:
    job = unlike(GlooJob, 2)
    job.groups = {**job.groups, "2": ("tp", (2, 3, 4, 5))}
    for rank in range(2, 6):
        name = "broadcast" if rank == 4 else "all_reduce"
        job.calls[rank] = [Call("2", 1), Call("2", 2, done=False, name=name)]
    verdict = verdict_of(job, tmp_path)
    assert (verdict.verdict, [one.ranks for one in verdict.culprits]) == (State.HANG, [(4,)])


def test_who_is_idle_is_not_suspected_beside_two_that_differ(tmp_path: Path) -> None:
    """Rank 3 waits for rank 2, which may wait in a message for one of the two."""
    job = unlike(GlooJob)
    job.groups = {**job.groups, "1": ("pp", (0, 1, 2, 3)), "2": ("tp", (2, 3))}
    job.calls |= {2: [Call("2", 1)], 3: [Call("2", 1), Call("2", 2, done=False)]}
    verdict = verdict_of(job, tmp_path)
    assert (verdict.verdict, [one.ranks for one in verdict.culprits]) == (State.INCONCLUSIVE, [(0, 1)])


@pytest.mark.parametrize(("kind", "as_json", "state", "named"), [
    (GlooJob, False, State.INCONCLUSIVE, "host-stuck"),
    (Job, True, State.INCONCLUSIVE, "host-stuck"),
    (Job, False, State.HANG, "dead"),
])  # fmt: skip
def test_a_rank_without_a_dump_that_its_own_thread_would_have_written_need_not_be_dead(
    kind: type[Job], as_json: bool, state: State, named: str, tmp_path: Path
) -> None:
    plain = absent_member(range(9), 2)
    job = kind(plain.groups, plain.calls)
    verdict = verdict_of(job, tmp_path, [rank for rank in range(9) if rank != 2], as_json=as_json)
    assert verdict.verdict == state
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((2,), named)]
    assert (verdict.victims, verdict.explained) == (8, 8)
    if state == State.INCONCLUSIVE:
        assert verdict.culprits[0].confidence < 0.5
        assert "does not tell whether it is dead" in " ".join(one.reason for one in verdict.abstained)


def test_json_is_json_whatever_the_file_is_called(tmp_path: Path) -> None:
    plain = absent_member(range(9), 2)
    folder = Job(plain.groups, plain.calls).write(tmp_path, [rank for rank in range(9) if rank != 2], as_json=True)
    for path in folder.glob("*_[0-9].json"):
        path.rename(path.with_suffix(""))
    read = read_folder(folder)
    assert len(read.dumps) == 8
    assert all(one.is_json for one in read.dumps.values())
    assert judge_dumps([read]).verdict.verdict == State.INCONCLUSIVE
