"""A rank of a gloo job that left no dump while all others did is the first suspect, before those that are idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import HangVerdict, State
from support.dumps import Call, GlooJob, Job


def job() -> Job:
    """Eight ranks in pairs: rank 7 waits for rank 6 over tp, and ranks 2 and 3 for ranks 0 and 1, which are in none."""
    pairs = {f"tp{first}": ("tp", (first, first + 1)) for first in range(0, 8, 2)}
    edges = {f"pp{first}": ("pp", (first, first + 2)) for first in range(4)}
    found = GlooJob({**pairs, **edges, "dp0": ("dp", (0, 2)), "dp1": ("dp", (1, 3))})
    for rank in range(8):
        found.calls[rank] = [Call(f"tp{rank // 2 * 2}", number) for number in (1, 2)]
    found.calls[7].append(Call("tp6", 3, done=False))
    for rank in (2, 3):
        found.calls[rank].append(Call(f"dp{rank - 2}", 1, done=False))
    return found


def verdict_of(folder: Path, ranks: list[int]) -> HangVerdict:
    return judge_dumps([read_folder(job().write(folder, ranks))]).verdict


def test_who_did_not_answer_is_the_first_suspect(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, [rank for rank in range(8) if rank != 6])
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(6,), (0,), (1,)]
    first, *others = verdict.culprits
    assert all(one.confidence < first.confidence < 0.5 for one in others)
    assert "and it did not" in first.evidence[0].statement


@pytest.mark.parametrize("there", [[0, 1, 2, 3, 7], [0, 1, 2, 3, 4, 6, 7]])
def test_nobody_is_suspected_for_a_dump_that_many_lack_or_none_waits_for(tmp_path: Path, there: list[int]) -> None:
    """Three dumps are missing, one of a rank that others wait for; or that of rank 5 alone, for which nobody waits."""
    verdict = verdict_of(tmp_path, there)
    assert (set(range(8)) - set(there)).isdisjoint(rank for one in verdict.culprits for rank in one.ranks)
