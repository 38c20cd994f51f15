"""Ranks that only wait, for the culprit or for other victims, change no culprit: through the whole judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.history import StoreHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.pace import StorePace
from megascope.viz3d.snapshot import take_looks
from megascope.viz3d.verdict import State
from support.hang_kinds import CASES, told
from support.simulated_hangs import FAULTS, WORLD, hung_store
from support.victims import with_victims

APART_NS = 20 * 10**9


def check(plain: Diagnosis, more: Diagnosis, first: int, count: int) -> None:
    """The same is told, and all that are new wait for it."""
    new = set(range(first, first + count))
    assert more.state == plain.state
    assert told(more) == told(plain)
    assert {root.why for root in more.roots} == {root.why for root in plain.roots}
    assert {root.confidence for root in more.roots} == {root.confidence for root in plain.roots}
    assert more.waiting == plain.waiting | new
    assert more.explained == plain.explained | new


def to_wait_for(diagnosis: Diagnosis) -> list[int]:
    """Ranks at which a chain of waits goes on to a culprit, or ends."""
    return sorted(diagnosis.explained | {rank for root in diagnosis.roots for rank in root.ranks})


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_more_victims_change_no_culprit_of_any_scene(name: str, data: st.DataObject) -> None:
    scene = CASES[name].scene()
    looks = scene.looks()
    plain = compare_looks(*looks)
    targets = data.draw(st.lists(st.sampled_from(to_wait_for(plain)), min_size=1, max_size=12))
    check(plain, compare_looks(*with_victims(looks, targets)), scene.mesh.world_size, len(targets))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.startswith(("dead", "exception"))])
def test_more_victims_change_no_culprit_of_a_job_with_a_past(tmp_path: Path, fault: str) -> None:
    """Jobs of which a rank died are not judged by two looks."""
    with hung_store(tmp_path, fault, in_flight=8 - 7 * (FAULTS.index(fault) % 2)) as store:
        attempt = store.attempt()
        looks = take_looks(store, attempt, APART_NS)
        past, pace = StoreHistory(store, attempt), StorePace(store, attempt, looks[1].moment_ns)
        plain = compare_looks(*looks, past, pace)
        assert plain.state in (State.HANG, State.INCONCLUSIVE)
        assert plain.roots

        @settings(deadline=None, max_examples=5)
        @given(st.lists(st.sampled_from(to_wait_for(plain)), min_size=1, max_size=12))
        def judge(targets: list[int]) -> None:
            check(plain, compare_looks(*with_victims(looks, targets), past, pace), WORLD, len(targets))

        judge()
