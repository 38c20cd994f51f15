"""Data that the whole job waits for is a finding that names nobody; a rank's own stall, and hidden loading, are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.jobwide.data_stalls import SIGNAL, find_data_stalls
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, Outcome, Pattern, describe
from support.faulty_job import check_evidence, faulty_job
from support.span_store import FIRST_NS, MS, Span, write_spans

STEPS = 60
FORWARD_MS = 100.0


def loading(
    root: Path,
    load_ms: Callable[[int, int], float | None],
    *,
    ranks: int = 4,
    hosts: int = 2,
    beside: bool = False,
    waits: bool = True,
    timed: bool = True,
) -> Store:
    """Ranks that load, compute and meet. ``beside``: the device computes while the host loads for the next step.

    ``waits``: communication is recorded; ``timed``: with how long it was waited for.
    """
    spans, at = [], 0.0
    steps: dict[str, list[int]] = {"rank": [], "step": [], "start_ns": [], "duration_ns": []}
    for step in range(STEPS):
        loads = [load_ms(rank, step) for rank in range(ranks)]
        longest = max(0.0 if one is None or beside else one for one in loads)
        for rank, took in enumerate(loads):
            work = FORWARD_MS + (rank * 7 + step * 3) % 5 * 0.2
            begins = at + (0.0 if took is None or beside else took)
            if took is not None:
                spans.append(Span(rank, step, "data", at, took, kind="data"))
            spans.append(Span(rank, step, "forward", begins, work))
            ends = at + longest + FORWARD_MS + 3.0
            waited = ends - begins - work
            exposed = waited if timed else None
            spans.append(
                Span(rank, step, "all_reduce", ends - waited, waited, exposed_ms=exposed, kind="collective")
                if waits
                else Span(rank, step, "optimizer", ends - waited, 1.0, kind="optimizer")
            )
            row = (rank, step, FIRST_NS + round(at * MS), round((longest + FORWARD_MS + 3.0) * MS))
            for column, value in zip(steps.values(), row, strict=True):
                column.append(value)
        at += longest + FORWARD_MS + 3.0
    places = {rank: f"node{rank * hosts // ranks}" for rank in range(ranks)}
    return write_spans(root, spans, layout={"dp": ranks}, hosts=places, more={"steps": steps})


def _findings(store: Store) -> Findings:
    attempt = store.attempt()
    return find_data_stalls(store, attempt, observe(store, attempt))


@pytest.mark.parametrize(
    ("load_ms", "pattern", "share", "steps"),
    [
        (lambda rank, step: 400.0 if step % 4 == 0 else 1.0, Pattern.INTERMITTENT, (0.4, 0.55), (4, 56)),
        (lambda rank, step: 100.0, Pattern.CHRONIC, (0.45, 0.5), (2, 59)),
        (lambda rank, step: 2.0 + 1.5 * step, Pattern.DRIFTING, (0.25, 0.4), (2, 59)),
        (lambda rank, step: 80.0 if step >= 30 else 1.0, Pattern.CHRONIC, (0.25, 0.35), (30, 59)),
        (lambda rank, step: 80.0 if 20 <= step < 40 else 1.0, Pattern.ONE_OFF, (0.15, 0.25), (20, 39)),
        (lambda rank, step: 400.0 if (step + rank) % 4 == 0 else 1.0, Pattern.INTERMITTENT, (0.15, 0.25), (2, 59)),
        (lambda rank, step: 1500.0 if step == 33 else 1.0, Pattern.ONE_OFF, (0.15, 0.22), (33, 33)),
        (lambda rank, step: 200.0 if step % 20 == 10 else 1.0, Pattern.INTERMITTENT, (0.07, 0.12), (10, 50)),
        (lambda rank, step: 1.0 + 0.15 * step, Pattern.DRIFTING, (0.02, 0.04), (2, 59)),
    ],
    ids=["every-fourth", "every", "growing", "since-half", "for-a-while", "by-turns", "once", "seldom", "slowly"],
)
def test_data_that_all_wait_for_is_the_jobs(
    tmp_path: Path,
    load_ms: Callable[[int, int], float],
    pattern: Pattern,
    share: tuple[float, float],
    steps: tuple[int, int],
) -> None:
    with loading(tmp_path, load_ms) as store:
        verdict = find_stragglers(store, store.attempt())
        assert verdict.verdict == Outcome.FINDINGS
        (one,) = [culprit for culprit in verdict.culprits if culprit.kind == CulpritKind.JOB]
        assert (one.cause, one.segment, one.ranks, one.hosts) == (Cause.DATA_STALL, "data", (), ())
        assert (one.pattern, one.steps) == (pattern, steps)
        assert share[0] < one.lost_share < share[1]
        assert [culprit.ranks for culprit in verdict.culprits] == [()]
        check_evidence(store, one.evidence)
        assert describe(one).startswith("Loading data holds up the whole job, on all ranks that load alike: data in")


def test_steps_that_grow_with_the_loading_are_explained(tmp_path: Path) -> None:
    with loading(tmp_path, lambda rank, step: 2.0 + 1.5 * step) as store:
        assert not [one for one in find_stragglers(store, store.attempt()).abstained if one.signal == "step-time"]


@pytest.mark.parametrize(
    ("load_ms", "noted"),
    [
        (lambda rank, step: 1.0, False),
        (lambda rank, step: 5.0, True),
        (lambda rank, step: 250.0 if step == 8 else 1.0, True),
        (lambda rank, step: 250.0 if step == 33 else 1.0, True),
        (lambda rank, step: 250.0 if step == 50 else 1.0, True),
        (lambda rank, step: 100.0 if rank == 2 else 1.0, False),
        (lambda rank, step: 400.0 if rank == 1 and step % 4 == 0 else 1.0, False),
        (lambda rank, step: None, False),
    ],
    ids=[
        "cheap",
        "notable",
        "a-stall-early",
        "a-stall-midway",
        "a-stall-late",
        "one-rank",
        "one-rank-sometimes",
        "none",
    ],
)
def test_cheap_loading_and_one_ranks_stalls_are_not_the_jobs(
    tmp_path: Path, load_ms: Callable[[int, int], float | None], noted: bool
) -> None:
    with loading(tmp_path, load_ms) as store:
        found = _findings(store)
        assert (found.culprits, found.blocking) == ((), ())
        assert ["% of the job's time on all ranks that load alike" in one.reason for one in found.abstained] == (
            [True] if noted else []
        )


def test_of_two_ranks_one_that_stalls_is_not_the_job(tmp_path: Path) -> None:
    with loading(tmp_path, lambda rank, step: 100.0 if rank else 1.0, ranks=2) as store:
        assert _findings(store) == Findings()


def test_a_single_rank_waits_for_data_too(tmp_path: Path) -> None:
    with loading(tmp_path, lambda rank, step: 100.0, ranks=1, hosts=1) as store:
        (one,) = _findings(store).culprits
        assert (one.kind, one.cause) == (CulpritKind.JOB, Cause.DATA_STALL)
        assert one.evidence[0].statement.startswith("the only rank that loads data spends ")
        check_evidence(store, one.evidence)


def test_loading_beside_the_device_costs_nothing(tmp_path: Path) -> None:
    with loading(tmp_path, lambda rank, step: 80.0, beside=True) as store:
        assert _findings(store) == Findings()


@pytest.mark.parametrize("waits", [False, True], ids=["no-communication", "no-times-of-it"])
@pytest.mark.parametrize(("load_ms", "told"), [(80.0, True), (1.0, False), (None, False)])
def test_without_recorded_waiting_costly_loading_is_not_judged(
    tmp_path: Path, waits: bool, load_ms: float | None, told: bool
) -> None:
    """Others may have gone on beside it; what costs little whatever they did is no finding either way."""
    with loading(tmp_path, lambda rank, step: load_ms, waits=waits, timed=False) as store:
        found = _findings(store)
        assert (found.culprits, found.blocking) == ((), ())
        assert [(one.signal, "waiting was not recorded" in one.reason) for one in found.abstained] == (
            [(SIGNAL, True)] if told else []
        )
        assert set(found.abstained) <= set(find_stragglers(store, store.attempt()).abstained)


@pytest.mark.parametrize(
    ("loads", "who"), [(lambda rank: rank == 0, "rank 0"), (lambda rank: rank < 2, "node0")], ids=["rank", "host"]
)
def test_where_one_machine_loads_for_all_it_cannot_be_told(
    tmp_path: Path, loads: Callable[[int], bool], who: str
) -> None:
    with loading(tmp_path, lambda rank, step: 60.0 if loads(rank) else None) as store:
        found = _findings(store)
        assert found.culprits == ()
        (note,) = found.blocking
        assert f"only {who} loads data for so long" in note.reason
        assert find_stragglers(store, store.attempt()).verdict == Outcome.INSUFFICIENT


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
@pytest.mark.parametrize(
    ("fault", "least"), [("data-stall:delay_ms=60", 0.1), ("data-stall:delay_ms=400:every=3:steps=21-50", 0.1)]
)
def test_the_simulated_job_that_stalls_as_a_whole(tmp_path: Path, rollups: bool, fault: str, least: float) -> None:
    with faulty_job(tmp_path / "s", fault, rollups=rollups) as store:
        verdict = find_stragglers(store, store.attempt())
        (one,) = verdict.culprits
        assert (one.kind, one.cause, one.ranks) == (CulpritKind.JOB, Cause.DATA_STALL, ())
        assert one.lost_share > least
        check_evidence(store, one.evidence)


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
@pytest.mark.parametrize("place", ["rank=3", "host=0", "host=0:every=4", "host=0:steps=30-"])
def test_a_simulated_stall_with_a_place_is_not_the_jobs(tmp_path: Path, rollups: bool, place: str) -> None:
    """A host holds half of the ranks of a stage."""
    with faulty_job(tmp_path / "s", f"data-stall:{place}:delay_ms=200", rollups=rollups) as store:
        assert _findings(store).culprits == ()


def test_what_only_the_last_stage_loads_late_counts_beyond_the_first_forwards(tmp_path: Path) -> None:
    """A stage that waits for its first micro-batch anyway may load meanwhile."""
    last = ",".join(str(rank) for rank in range(8, 16))
    for delay, expected in ((5, 0), (80, 1)):
        with faulty_job(tmp_path / str(delay), f"data-stall:rank={last}:delay_ms={delay}") as store:
            assert len(_findings(store).culprits) == expected
