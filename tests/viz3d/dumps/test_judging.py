"""What hand-built dumps come to: sizes that differ, two groups of the same ranks, another format, lost dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.topology_file import NamedGroup, TopologyFile, write_topology_file
from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.merging import merged
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State
from support.dumps import Call, Job, absent_member


def verdict_of(job: Job, folder: Path) -> HangVerdict:
    return judge_dumps([read_folder(job.write(folder))]).verdict


def all_joined(**odd: Any) -> Job:
    """Four ranks in collective 4 of one group, of which rank 3 brought something else."""
    job = Job({"0": ("default_pg", (0, 1, 2, 3))})
    for rank in range(4):
        call = Call("0", 4, done=False)
        job.calls[rank] = [Call("0", 3), replace(call, **odd) if rank == 3 else call]
    return job


@pytest.mark.parametrize("odd", [{"elements": 7}, {"dtype": "Half"}, {"name": "broadcast"}])
def test_a_rank_with_another_size_type_or_operation_is_the_mismatch(tmp_path: Path, odd: dict[str, Any]) -> None:
    verdict = verdict_of(all_joined(**odd), tmp_path)
    assert verdict.verdict == State.HANG
    assert [(one.kind, one.ranks) for one in verdict.culprits] == [(CulpritKind.MISMATCH, (3,))]


def test_ranks_may_bring_different_sizes_to_an_all_to_all(tmp_path: Path) -> None:
    job = all_joined(elements=7)
    for calls in job.calls.values():
        calls[:] = [replace(one, name="all_to_all") for one in calls if isinstance(one, Call)]
    verdict = verdict_of(job, tmp_path)
    assert verdict.verdict == State.INCONCLUSIVE
    assert all(one.kind != CulpritKind.MISMATCH for one in verdict.culprits)


def test_all_joined_and_alike_accuses_nobody_for_certain(tmp_path: Path) -> None:
    verdict = verdict_of(all_joined(), tmp_path)
    assert verdict.verdict == State.INCONCLUSIVE
    assert "all have joined" in " ".join(one.reason for one in verdict.abstained)


def test_two_groups_of_the_same_ranks_count_by_themselves(tmp_path: Path) -> None:
    members = (0, 1, 2, 3)
    job = Job({"0": ("default_pg", members), "1": ("dp", members), "2": ("dp", members)})
    for rank in members:
        job.calls[rank] = [Call("1", 1), Call("2", 50)]
        if rank != 2:
            job.calls[rank].append(Call("1", 2, done=False))
    verdict = verdict_of(job, tmp_path)
    assert [one.ranks for one in verdict.culprits] == [(2,)]
    assert verdict.victims == 3


def test_a_stuck_group_explains_those_who_wait_for_its_members(tmp_path: Path) -> None:
    job = Job({"0": ("default_pg", (0, 1, 2, 3)), "1": ("tp", (0, 1)), "2": ("tp", (2, 3))})
    job.calls = {
        0: [Call("0", 1), Call("1", 5, done=False)],
        1: [Call("0", 1)],
        2: [Call("0", 1), Call("0", 2, done=False)],
        3: [Call("0", 1), Call("0", 2, done=False)],
    }
    verdict = verdict_of(job, tmp_path)
    assert [one.ranks for one in verdict.culprits] == [(1,)]
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_the_topology_beside_dumps_tells_hosts_and_the_ranks_that_left_none(tmp_path: Path) -> None:
    absent_member(range(3), 1).write(tmp_path)
    hosts = {rank: f"node{rank}" for rank in range(4)}
    write_topology_file(tmp_path, TopologyFile(4, groups=(NamedGroup("world", (0, 1, 2, 3)),), hosts=hosts))
    verdict = judge_dumps([read_folder(tmp_path)]).verdict
    assert verdict.missing == (3,)
    assert next(one for one in verdict.culprits if one.ranks == (1,)).hosts == ("node1",)


def test_dumps_of_another_format_are_listed(tmp_path: Path) -> None:
    job = absent_member(range(3), 1)
    job.version = "3.1"
    found = read_folder(job.write(tmp_path))
    assert not found.dumps
    assert {one.reason for one in found.damaged} == {"it has format 3.1, and 2.x is read: upgrade megascope"}


def test_sets_of_different_ranks_are_one_and_those_of_the_same_two(tmp_path: Path) -> None:
    job = absent_member(range(4), 2)
    one, other = (read_folder(job.write(tmp_path / str(ranks[0]), ranks)) for ranks in ((0, 1), (2, 3)))
    again = read_folder(job.write(tmp_path / "again"))
    assert [sorted(folder.dumps) for folder in merged([other, one])] == [[0, 1, 2, 3]]
    assert len(merged([one, other, again])) == 2
