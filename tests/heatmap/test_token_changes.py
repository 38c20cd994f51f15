"""Between two sides, ranks whose number of tokens changed are not called slower; and MFU says that tokens differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.against.analysis import compare_runs
from megascope.heatmap.against.result import Against, Change, Place, Verdict
from megascope.heatmap.against.words import sentence_of
from megascope.heatmap.mfu.analysis import find_mfu
from megascope.heatmap.per_token import SIGNAL
from support.rollup_store import with_rollups
from support.token_store import RANKS, Job, one_of, store_of

LONG, SLOW = Job(one_of(1.3)), Job(slow=one_of(1.3))


def compare(root: Path, now: Job, then: Job, *, told: tuple[bool, bool] = (True, True)) -> Against:
    with store_of(root / "now", now, told[0]) as mine, store_of(root / "then", then, told[1]) as theirs:
        return compare_runs(mine, mine.attempt(), theirs, theirs.attempt())


def accused(found: Against) -> set[tuple[int, ...]]:
    both = [*found.findings, *found.small]
    return {one.ranks for one in both if one.place in (Place.RANK, Place.HOST)}


def notes_of(found: Against) -> str:
    return "; ".join(one.reason for one in found.abstained if one.signal == SIGNAL)


def test_longer_sequences_than_then_make_no_rank_slower(tmp_path: Path) -> None:
    untold = compare(tmp_path / "untold", LONG, Job(), told=(False, False))
    assert (accused(untold), notes_of(untold)) == ({(2,)}, "")
    found = compare(tmp_path / "told", LONG, Job())
    assert accused(found) == set()
    assert "the tokens of rank 2 (x1.30 now, x1.00 then) changed by over 2 %" in notes_of(found)


def test_a_rank_that_gets_equally_long_sequences_again_is_named_too(tmp_path: Path) -> None:
    """It is as slow as it was with longer ones: whether it got slower is not known."""
    found = compare(tmp_path, SLOW, LONG)
    assert accused(found) == set()
    assert "rank 2 (x1.00 now, x1.30 then)" in notes_of(found)


def test_unequal_tokens_that_stayed_as_they_were_hide_no_slower_rank(tmp_path: Path) -> None:
    found = compare(tmp_path, replace(LONG, slow=one_of(1.2)), LONG)
    assert accused(found) == {(2,)}
    assert notes_of(found) == ""


@pytest.mark.parametrize("factor", [1.015, 1.03])
def test_two_percent_are_where_tokens_are_other_ones(tmp_path: Path, factor: float) -> None:
    found = compare(tmp_path, Job(one_of(factor), one_of(1.3)), Job())
    assert (accused(found) == {(2,)}) == (factor < 1.02)
    assert ("rank 2 (x1.03 now" in notes_of(found)) == (factor > 1.02)


def test_a_slower_rank_is_found_beside_longer_sequences_of_another(tmp_path: Path) -> None:
    found = compare(tmp_path, replace(LONG, slow=one_of(1.3, 4)), Job())
    assert accused(found) == {(4,)}
    assert "rank 2 (" in notes_of(found)
    assert "rank 4 (" not in notes_of(found)


def test_windows_of_one_attempt_and_rollups(tmp_path: Path) -> None:
    job = replace(LONG, steps=400, since=200)
    with store_of(tmp_path / "spans", job) as spans, with_rollups(spans, tmp_path / "rolled", span_ranks=()) as rolled:
        for store in (spans, rolled):
            found = compare_runs(store, store.attempt(), store, store.attempt(), steps=(200, 399), other_steps=(0, 199))
            assert accused(found) == set()
            assert "rank 2 (x1.30 now, x1.00 then)" in notes_of(found)


def test_lengths_that_are_drawn_anew_hide_no_slower_rank(tmp_path: Path) -> None:
    job = Job(drawn=0.3, slow=one_of(1.6), steps=200, slow_since=100)
    with store_of(tmp_path, job) as store:
        found = compare_runs(store, store.attempt(), store, store.attempt(), steps=(100, 199), other_steps=(0, 99))
    assert accused(found) == {(2,)}
    assert "rank 2" not in notes_of(found)


def test_longer_steps_that_nothing_explains_say_who_was_left_out() -> None:
    step = Change(110.0, 100.0, 1.1, 1.09, 1.11)
    said = [sentence_of(Verdict.SLOWER, [], 0, step, [], left_out) for left_out in (0, 2)]
    assert "other tokens" not in said[0]
    assert said[1].endswith("explains it (2 ranks with other tokens were not compared).")


def mfu_notes(store: Store) -> list[str]:
    with store:
        return [one.reason for one in find_mfu(store, [store.attempt()]).abstained if one.signal == SIGNAL]


def test_mfu_says_that_its_parts_are_not_per_token(tmp_path: Path) -> None:
    [*_, note] = sorted(mfu_notes(store_of(tmp_path / "long", LONG)), key=len)
    assert "x1.30 (rank 2)" in note
    assert "times as they were" in note
    equal = mfu_notes(store_of(tmp_path / "equal", Job((1.0,) * RANKS)))
    assert not any("times as they were" in one for one in equal)
