"""What must not change a verdict of dumps: numbers of ranks, names of groups, more victims."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import HangVerdict, State
from support.dumps import absent_member


def verdict_of(members: list[int], absent: int, name: str = "0") -> HangVerdict:
    with tempfile.TemporaryDirectory() as folder:
        job = absent_member(members, absent, name=name)
        return judge_dumps([read_folder(job.write(Path(folder)))]).verdict


@settings(max_examples=40, deadline=None)
@given(members=st.lists(st.integers(0, 500), min_size=3, max_size=10, unique=True), data=st.data())
def test_new_numbers_and_names_give_the_same_verdict(members: list[int], data: st.DataObject) -> None:
    absent = data.draw(st.sampled_from(members))
    name = data.draw(st.sampled_from(["0", "7", "dp_group", "undefined"]))
    verdict = verdict_of(members, absent, name)
    plain = verdict_of(list(range(len(members))), sorted(members).index(absent))
    assert verdict.verdict == plain.verdict == State.HANG
    assert [one.ranks for one in verdict.culprits] == [(absent,)]
    assert [one.kind for one in verdict.culprits] == [one.kind for one in plain.culprits]
    assert verdict.victims == verdict.explained == len(members) - 1


@settings(max_examples=20, deadline=None)
@given(more=st.integers(1, 30))
def test_more_victims_change_no_culprit(more: int) -> None:
    few, many = verdict_of([0, 1, 2], 1), verdict_of(list(range(3 + more)), 1)
    assert [(one.ranks, one.kind) for one in few.culprits] == [(one.ranks, one.kind) for one in many.culprits]
    assert many.victims == few.victims + more
