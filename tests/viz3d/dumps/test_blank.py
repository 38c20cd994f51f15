"""A dump into which nothing was recorded tells nothing of its rank: neither that it was idle, nor that it is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import HangVerdict, State
from support.dumps import absent_member

RECORDED_ELSEWHERE = {
    "version": "2.10", "comm_lib_version": "", "nccl_comm_state": {}, "pg_status": {},
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(9)))}},
}  # fmt: skip
"""What the general recorder gives on a rank of NCCL, with torch's groups filled in."""


def blank(folder: Path, rank: int, **more: Any) -> Path:
    path = folder / f"_dump_{rank}.json"
    path.write_text(json.dumps({**RECORDED_ELSEWHERE, **more}))
    return path


def verdict_of(folder: Path) -> HangVerdict:
    return judge_dumps([read_folder(folder)]).verdict


def test_the_rank_without_a_dump_is_accused_and_one_with_a_blank_dump_is_not(tmp_path: Path) -> None:
    """Eight of nine ranks wait for rank 2. That it left no dump is evidence; that a recorder was empty is not."""
    everyone, others = range(9), [rank for rank in range(9) if rank != 2]
    absent = verdict_of(absent_member(everyone, 2).write(tmp_path / "absent", others))
    assert (absent.verdict, [one.ranks for one in absent.culprits]) == (State.HANG, [(2,)])
    folder = absent_member(everyone, 2).write(tmp_path / "blank", others)
    blank(folder, 2)
    verdict = verdict_of(folder)
    assert (verdict.verdict, verdict.culprits, verdict.missing) == (State.INCONCLUSIVE, (), (2,))
    told = " ".join(one.reason for one in verdict.abstained)
    assert "rank 2: _dump_2.json: it holds no operation and no count" in told
    assert "others wait for rank 2" in told


def test_blank_dumps_beside_those_that_accuse_somebody_else_change_nothing(tmp_path: Path) -> None:
    """The dumps of ranks 3 and 4 were taken from the recorder that NCCL does not use."""
    folder = absent_member(range(9), 2).write(tmp_path / "dumps", [0, 1, 2, 5, 6, 7, 8])
    for rank in (3, 4):
        blank(folder, rank)
    verdict = verdict_of(folder)
    assert verdict.verdict == State.HANG
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((2,), "host-stuck")]


def test_nothing_but_blank_dumps_is_nobodys_fault(tmp_path: Path) -> None:
    for rank in range(4):
        blank(tmp_path, rank)
    verdict = verdict_of(tmp_path)
    assert (verdict.verdict, verdict.culprits) == (State.INCONCLUSIVE, ())


@pytest.mark.parametrize("blank_is_newer", [True, False])
def test_a_blank_dump_does_not_stand_for_a_real_one_of_its_rank(tmp_path: Path, blank_is_newer: bool) -> None:
    """NCCL writes `_dump_1` by itself; what was taken on request lies beside it."""
    absent_member(range(3), 1).write(tmp_path)
    path = blank(tmp_path, 1)
    moment = 2_000_000_000 if blank_is_newer else 1_000_000_000
    os.utime(path, (moment, moment))
    found = read_folder(tmp_path)
    assert (sorted(found.dumps), found.damaged) == ([0, 1, 2], ())
    assert [one.ranks for one in judge_dumps([found]).verdict.culprits] == [(1,)]


@pytest.mark.parametrize("more", [{"comm_lib_version": "2.27.3"}, {"pg_status": {"0": {
    "last_enqueued_collective": "7", "last_started_collective": "-1", "last_completed_collective": "7"}}}])  # fmt: skip
def test_a_dump_without_operations_of_a_recorder_that_was_on_tells_that_there_are_none(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Only operations in flight may have been asked for: a rank with none is idle, and that is evidence."""
    absent_member(range(3), 1).write(tmp_path, [0, 2])
    blank(tmp_path, 1, **more)
    verdict = verdict_of(tmp_path)
    assert (verdict.verdict, [one.ranks for one in verdict.culprits]) == (State.HANG, [(1,)])
