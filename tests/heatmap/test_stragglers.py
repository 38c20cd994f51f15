"""From a store to the verdict: the right rank with evidence that can be asked again, or a reason not to judge."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from megascope.collectors.reading.store import Store
from megascope.heatmap.report import render
from megascope.heatmap.stragglers import STAGES, find_stragglers
from megascope.heatmap.verdict import Outcome, StragglerVerdict, to_json
from support.span_store import Span, meeting, write_spans
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store


def synthetic(root: Path, job: SyntheticJob) -> Store:
    write_synthetic_store(root / "store", job)
    return Store(root / "store")


def verdict_of(root: Path, job: SyntheticJob) -> StragglerVerdict:
    store = synthetic(root, job)
    return find_stragglers(store, store.attempt())


@pytest.fixture(scope="module")
def slow_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return synthetic(tmp_path_factory.mktemp("slow"), SyntheticJob(steps=40, slow=Slow(5, 1.5, 15)))


def test_the_slowed_rank_and_only_it_is_named(slow_store: Store) -> None:
    verdict = find_stragglers(slow_store, slow_store.attempt())
    assert verdict.verdict == Outcome.FINDINGS
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.hosts, culprit.kind) == ((5,), ("node0000",), "rank")
    assert (culprit.segment, culprit.cause, culprit.pattern) == ("forward", "slow-compute", "chronic")
    assert culprit.steps == (15, 39)
    assert culprit.ratio == pytest.approx(1.5, rel=0.05)
    assert verdict.sentence().startswith("Rank 5 on node0000 took x1.5")


def test_progress_is_told_part_by_part(slow_store: Store) -> None:
    told: list[tuple[int, int]] = []
    find_stragglers(slow_store, slow_store.attempt(), progress=lambda done, total: told.append((done, total)))
    assert told == [(done, STAGES) for done in range(1, STAGES + 1)]


def test_evidence_can_be_asked_again(slow_store: Store) -> None:
    verdict = find_stragglers(slow_store, slow_store.attempt())
    evidence = verdict.culprits[0].evidence
    assert len(evidence) >= 2
    for one in evidence:
        table = slow_store.query(one.sql)
        assert table.column(0)[0].as_py() == pytest.approx(one.value)
        shown = [f"{one.value:{how}}" for how in (".2f", ".1f", ".0%")]
        assert any(number in one.statement for number in shown)
    assert evidence[1].value == pytest.approx(1.5, rel=0.05)


def test_the_json_is_the_contract(slow_store: Store) -> None:
    value = json.loads(json.dumps(to_json(find_stragglers(slow_store, slow_store.attempt())), allow_nan=False))
    assert set(value) == {
        "schema", "run", "attempt", "data_age_s", "verdict", "culprits", "abstained", "slowdown", "m_w", "m_s",
        "whatif", "warnings", "arrivals", "visible_ratio",
    }  # fmt: skip
    assert value["schema"] == 1
    assert value["slowdown"] is value["m_w"] is value["m_s"] is None
    assert set(value["culprits"][0]) == {
        "ranks", "hosts", "confidence", "severity", "evidence", "kind", "cause", "segment", "ratio", "steps",
        "pattern", "lost_share", "stage", "against_own_past",
    }  # fmt: skip
    assert set(value["culprits"][0]["evidence"][0]) == {"statement", "value", "peers", "table", "sql"}
    assert all(set(one) == {"signal", "reason"} for one in value["abstained"])
    assert "what-if" in {one["signal"] for one in value["abstained"]}


def test_the_report_shows_sentence_evidence_and_what_was_not_judged(slow_store: Store) -> None:
    verdict = find_stragglers(slow_store, slow_store.attempt())
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(render(verdict))
    text = console.export_text()
    assert verdict.sentence() in text
    assert verdict.culprits[0].evidence[0].statement in text
    assert "Not judged" in text
    assert "warm-up" in text


def test_steps_and_ranks_can_be_chosen(slow_store: Store) -> None:
    attempt = slow_store.attempt()
    assert find_stragglers(slow_store, attempt, steps=(0, 14)).culprits == ()
    late = find_stragglers(slow_store, attempt, steps=(20, 35))
    assert late.culprits[0].steps == (20, 35)
    assert find_stragglers(slow_store, attempt, ranks=[0, 1, 2, 3]).culprits == ()
    alone = find_stragglers(slow_store, attempt, ranks=[5])
    assert alone.verdict == Outcome.INSUFFICIENT
    assert any("single rank" in one.reason for one in alone.abstained)


def uneven(rank: int, step: int) -> float:
    """Work of a healthy rank, ms: a few percent up and down."""
    return 20 * (1 + 0.01 * ((rank * 7 + step * 3) % 5))


def test_an_even_job_is_healthy(tmp_path: Path) -> None:
    store = write_spans(tmp_path / "store", meeting(4, 33, uneven), layout={"dp": 4})
    verdict = find_stragglers(store, store.attempt())
    assert verdict.verdict == Outcome.HEALTHY
    assert verdict.visible_ratio is not None
    said = f"No straggler of x{verdict.visible_ratio:.2f} or more."
    assert verdict.sentence() == said
    assert to_json(verdict)["visible_ratio"] == verdict.visible_ratio
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render(verdict))
    assert console.export_text().startswith(said)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (SyntheticJob(steps=8), "only 7 steps after warm-up"),
        (SyntheticJob(steps=20, slow=Slow(5, 1.4, 12)), "at least 30 are needed"),
        (SyntheticJob(steps=30, layout={"pp": 4}), "fewer than two ranks of a stage"),
        (
            SyntheticJob(steps=30, missing=[(3, step) for step in range(30)]),
            "1 rank of the job has no timed work",
        ),
        (SyntheticJob(steps=30, layout={"dp": 1}), "single rank has no peers"),
    ],
    ids=["few-steps", "began-late", "no-peers", "missing-rank", "one-rank"],
)
def test_without_evidence_nobody_is_called_healthy(tmp_path: Path, job: SyntheticJob, reason: str) -> None:
    verdict = verdict_of(tmp_path, job)
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert any(reason in one.reason for one in verdict.abstained), verdict.abstained


def test_a_slow_host_is_one_finding(tmp_path: Path) -> None:
    """Its hosts' clocks are unknown: that the others wait for its ranks shows without them."""
    spans = meeting(8, 30, lambda rank, step: (1.4 if rank in {2, 3} else 1.0) * uneven(rank, step))
    hosts = {rank: f"node{rank // 2}" for rank in range(8)}
    store = write_spans(tmp_path / "store", spans, layout={"dp": 8}, hosts=hosts)
    [culprit] = find_stragglers(store, store.attempt()).culprits
    assert (culprit.kind, culprit.ranks, culprit.hosts) == ("host", (2, 3), ("node1",))
    assert culprit.ratio == pytest.approx(1.4, rel=0.05)


def test_unmeasured_segments_are_told_and_not_counted_as_zero(tmp_path: Path) -> None:
    """One rank lacks its forward (traceml#257): the rest is judged, the missing is named."""
    spans = [Span(rank, step, "forward", step * 50, 20.0, status="opaque") for rank in range(4) for step in range(20)]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 4})
    verdict = find_stragglers(store, store.attempt())
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert any("forward" in one.reason and "trusted" in one.reason for one in verdict.abstained)


def test_communication_times_accuse_nobody(tmp_path: Path) -> None:
    """The last to arrive has the shortest collective; whoever has the longest only waits."""
    spans = meeting(4, 33, lambda rank, step: 5.0 if rank == 2 else uneven(rank, step))
    store = write_spans(tmp_path / "store", spans, layout={"dp": 4})
    waits = store.query(
        "SELECT rank, avg(exposed_ns) AS ns FROM spans WHERE kind = 'collective' GROUP BY 1"
    ).to_pylist()
    assert max(waits, key=lambda row: row["ns"])["rank"] == 2
    assert find_stragglers(store, store.attempt()).culprits == ()


def test_waiting_that_does_not_follow_from_the_work_is_not_all_waiting(tmp_path: Path) -> None:
    """One collective is timed, and whoever takes longer before it waits as long there as all others."""
    spans = [replace(span, exposed_ms=9.0) if span.kind == "collective" else span for span in meeting(4, 40, uneven)]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 4})
    verdict = find_stragglers(store, store.attempt())
    assert (verdict.verdict, verdict.culprits) == (Outcome.INSUFFICIENT, ())
    assert any("may contain unmeasured synchronisation" in one.reason for one in verdict.abstained)


def test_names_are_data(tmp_path: Path) -> None:
    name = 'for\'ward "x"\n[bold]'
    spans = meeting(4, 33, lambda rank, step: 30.0 if rank == 1 else uneven(rank, step), name)
    store = write_spans(tmp_path / "store", spans, layout={"dp": 4})
    verdict = find_stragglers(store, store.attempt())
    assert [culprit.segment for culprit in verdict.culprits] == [name]
    assert verdict.culprits[0].evidence
    Console(file=io.StringIO()).print(render(verdict))
