"""Who waits longer for a processor core than its peers is not slow; who works longer is, also where that is unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.heatmap.cores import SIGNAL, Cores, Stretch
from megascope.heatmap.observations import observe
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Outcome, Pattern, StragglerVerdict
from support.rollup_store import with_rollups
from support.span_store import FIRST_NS, MS, Span, write_spans

RANKS, STEPS, STEP_MS = 4, 60, 600.0
SEGMENTS = {"data": 5.0, "forward": 20.0, "backward": 40.0}


@dataclass(frozen=True)
class Job:
    """Ranks that work so long in each segment and are stretched so much by waiting for a core, each times ``slow``,
    ``sleeps_ms`` or ``stretch`` of their own; ``known`` is the share of steps that tell how long they worked."""

    stretch: tuple[float, ...] = (1.2,) * RANKS
    slow: tuple[float, ...] = (1.0,) * RANKS
    sleeps_ms: tuple[float, ...] = (0.0,) * RANKS
    known: tuple[float, ...] = (1.0,) * RANKS
    clock: str = "host"
    every: int = 1
    """Steps from one to the next in which the stretch is not that of the others."""
    inside: bool = False
    """Whether ranks wait for each other inside of ``backward``, unseen by ``self_ns``."""


def store_of(root: Path, job: Job) -> Store:
    """The store of such a job, whose ranks meet in a collective at the end of every step."""
    random, spans = np.random.default_rng(4), []
    worked = np.zeros((RANKS, STEPS))
    for step in range(STEPS):
        ends, last = np.zeros(RANKS), []
        for rank in range(RANKS):
            stretch = job.stretch[rank] if step % job.every == 0 else min(job.stretch)
            for name, usual in SEGMENTS.items():
                is_data, sleeps = name == "data", job.sleeps_ms[rank] if name == "forward" else 0.0
                works = usual * random.lognormal(0, 0.03) * (1.0 if is_data else job.slow[rank])
                took = works * (1 + (stretch - 1) * random.lognormal(0, 0.2)) + sleeps
                worked[rank, step] += 0.0 if is_data else works + sleeps
                at = step * STEP_MS + ends[rank]
                spans.append(Span(rank, step, name, at, took, kind="data" if is_data else "compute"))
                ends[rank] += took
            last.append(spans.pop())
        for rank, span in enumerate(last):
            waits, at = float(ends.max() - ends[rank]) + 1.0, step * STEP_MS + ends[rank]
            unseen, exposed = (waits, None) if job.inside else (0.0, waits)
            worked[rank, step] += unseen
            spans.append(replace(span, duration_ms=span.duration_ms + unseen))
            spans.append(Span(rank, step, "all_reduce", at, waits, exposed_ms=exposed, kind="collective"))
    known = random.random((RANKS, STEPS)) < np.array(job.known)[:, None]
    return _write(root, spans, worked, known, job.clock)


def _write(root: Path, spans: list[Span], worked: FloatArray, known: npt.NDArray[np.bool_], clock: str) -> Store:
    rank, step = np.divmod(np.arange(RANKS * STEPS), STEPS)
    rows: dict[str, Any] = {
        "rank": rank,
        "step": step,
        "start_ns": FIRST_NS + (step * STEP_MS * MS).astype(np.int64),
        "duration_ns": np.full(rank.size, round(STEP_MS * MS / 3)),
        "worked_ns": [
            round(float(ms) * MS) if is_known else None
            for ms, is_known in zip(worked.ravel(), known.ravel(), strict=True)
        ],
    }
    return write_spans(root, spans, layout={"dp": RANKS}, more={"steps": rows}, clock=clock)


def verdict_of(store: Store) -> StragglerVerdict:
    with store:
        return find_stragglers(store, store.attempt())


STARVED = (1.8, 1.2, 1.2, 1.2)
SLOW = (1.0, 1.0, 1.5, 1.0)


@pytest.mark.parametrize(
    "job",
    [
        Job(STARVED),
        Job(STARVED, known=(0.7, 0.8, 1.0, 0.7)),
        Job((6.0, 4.0, 4.0, 4.0)),
        Job((6.0, 1.2, 1.2, 1.2), every=4),
        Job(STARVED, inside=True),
    ],
    ids=["plainly", "not known in all steps", "all share cores", "now and then", "others wait inside of their work"],
)
def test_a_rank_short_of_cores_is_not_accused(tmp_path: Path, job: Job) -> None:
    found = verdict_of(store_of(tmp_path / "s", job))
    assert (found.culprits, found.verdict, found.warnings) == ((), Outcome.INSUFFICIENT, ())
    notes = [one.reason for one in found.abstained if one.signal == SIGNAL]
    assert notes
    assert all(one.startswith("rank 0 on node0 took x") for one in notes)
    assert "short of cores" in found.sentence()


@pytest.mark.parametrize(
    "job",
    [
        Job(slow=SLOW),
        Job(slow=SLOW, known=(0.0,) * RANKS),
        Job(slow=SLOW, known=(1.0, 1.0, 0.0, 1.0)),
        Job(slow=SLOW, known=(0.0, 0.0, 1.0, 0.0)),
        Job((1.2, 1.2, 1.8, 1.2), known=(1.0, 0.0, 1.0, 0.0)),
        Job((4.0,) * RANKS, slow=SLOW),
        Job((4.0, 4.0, 5.0, 4.0), slow=SLOW),
        Job((3.0,) * RANKS, sleeps_ms=(0.0, 0.0, 80.0, 0.0)),
        Job((1.2, 1.2, 1.9, 1.2), clock="device"),
    ],
    ids=[
        "known", "unknown", "unknown of the slow one", "unknown of its peers", "known of one", "all share cores",
        "and waits longer", "asleep where all share cores", "on a device",
    ],
)  # fmt: skip
def test_a_slow_rank_is_accused(tmp_path: Path, job: Job) -> None:
    found = verdict_of(store_of(tmp_path / "s", job))
    assert [one.ranks for one in found.culprits] == [(2,)]
    assert SIGNAL not in {one.signal for one in found.abstained}


def test_what_all_ranks_worked_is_read_only_where_an_accused_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fleet that takes longer than all else, and most accuse nobody who told."""

    def unread(*_: Any) -> FloatArray:
        raise AssertionError("read")

    monkeypatch.setattr("megascope.heatmap.cores.worked_ms", unread)
    silent = Job(slow=SLOW, known=(1.0, 1.0, 0.0, 1.0))
    assert [one.ranks for one in verdict_of(store_of(tmp_path / "silent", silent)).culprits] == [(2,)]
    with pytest.raises(AssertionError, match="read"):
        verdict_of(store_of(tmp_path / "told", Job(slow=SLOW)))


def test_beside_a_starved_rank_the_slow_one_is_named(tmp_path: Path) -> None:
    found = verdict_of(store_of(tmp_path / "s", Job(STARVED, slow=SLOW)))
    assert [one.ranks for one in found.culprits] == [(2,)]
    assert any(one.signal == SIGNAL and one.reason.startswith("rank 0 ") for one in found.abstained)


def test_all_that_a_starved_rank_is_late_with_is_told_at_once(tmp_path: Path) -> None:
    found = verdict_of(store_of(tmp_path / "s", Job(STARVED)))
    [note] = [one.reason for one in found.abstained if one.signal == SIGNAL]
    assert all(f" in {segment}, " in note for segment in SEGMENTS)


def test_data_alone_is_no_stall_where_compute_is_stretched_as_much(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", Job(STARVED)) as store:
        cores = Cores(store, attempt := store.attempt(), seen := observe(store, attempt))
        steps = int(seen.steps[0]), int(seen.steps[-1])
        why = cores.explains(0, (1, 2, 3), "data", "data", steps, 3.0, Pattern.CHRONIC)
        assert why is not None
        assert "its compute, too, takes x1.8" in why
        assert cores.explains(1, (2, 3), "data", "data", steps, 3.0, Pattern.CHRONIC) is None


@pytest.mark.parametrize(("job", "named"), [(Job(STARVED), []), (Job(slow=SLOW), [(2,)])])
def test_rollups_tell_the_same(tmp_path: Path, job: Job, named: list[tuple[int]]) -> None:
    with store_of(tmp_path / "spans", job) as spans:
        found = verdict_of(with_rollups(spans, tmp_path / "rollups", span_ranks=()))
    assert [one.ranks for one in found.culprits] == named
    assert (SIGNAL in {one.signal for one in found.abstained}) == (named == [])


@given(stretch=st.floats(1, 20), own=st.floats(1, 20), works=st.floats(1, 1000), more=st.floats(0, 3))
def test_what_explains_an_excess_adds_up_to_it(stretch: float, own: float, works: float, more: float) -> None:
    """More work that is stretched as that of all is never taken for waiting, however much they wait."""
    taken = works * (1 + more) * own - works * stretch
    found = Stretch(taken, works * more, 0.02 * works, own, stretch)
    assert found.more_work_ms + found.waited_ms == pytest.approx(taken)
    excess = works * more * stretch
    if own <= stretch and more > 0.04:
        assert not found.is_waiting(excess)
    assert not Stretch(0.0, 0.0, found.alike_ms, own, own).is_waiting(works), "what neither explains stands"
    if more == 0 and own > 1.2 * stretch:
        assert found.is_waiting(taken)
