"""A verdict is about the job and not about names: other numbers of ranks, other hosts, axes and kinds of groups."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.looks import compare_looks
from megascope.viz3d.verdict import CulpritKind
from support.hang_kinds import CASES, MESH, told
from support.relabelling import Labels, labels, relabelled_look


@pytest.mark.parametrize("name", CASES)
def test_the_scenes_are_judged_as_they_were_built(name: str) -> None:
    case = CASES[name]
    diagnosis = compare_looks(*case.scene().looks())
    assert (diagnosis.state, told(diagnosis)) == (case.state, case.told)


def test_the_scenes_have_all_kinds_that_two_looks_alone_tell() -> None:
    """Of an exception only its process tells."""
    assert {kind for case in CASES.values() for _, kind in case.told} == set(CulpritKind) - {CulpritKind.EXCEPTION}


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(CASES)), labels(8, ["node0"], [*MESH.names, "world"]))
def test_other_numbers_and_names_give_the_same_verdict(name: str, new: Labels) -> None:
    case = CASES[name]
    looks = case.scene().looks()
    earlier, later = (relabelled_look(look, new) for look in looks)
    plain, diagnosis = compare_looks(*looks), compare_looks(earlier, later)
    assert diagnosis.state == plain.state
    assert told(diagnosis) == {(tuple(sorted(new.ranks[rank] for rank in root)), kind) for root, kind in case.told}
    assert diagnosis.waiting == {new.ranks[rank] for rank in plain.waiting}
    assert diagnosis.explained == {new.ranks[rank] for rank in plain.explained}
    assert sorted(root.confidence for root in diagnosis.roots) == sorted(root.confidence for root in plain.roots)
    assert sorted(root.waiters for root in diagnosis.roots) == sorted(root.waiters for root in plain.roots)
