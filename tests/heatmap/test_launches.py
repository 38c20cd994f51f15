"""Launches that spread out by turns are the sign of garbage collection; those of one late rank are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.jobwide.launch_drift import SIGNAL, find_launch_drift
from megascope.heatmap.launches import launch_spread, launched, launches_of
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, Outcome, Pattern, describe
from megascope.scoring.runs import SPANS
from megascope.scoring.trials import COSTS, Trial
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.noise import MeasuredNoise
from megascope.trainer.simulator.writing import simulate
from support.faulty_job import faulty_job
from support.rollup_store import with_rollups
from support.span_store import Span, write_spans

LAYOUT = (("pp", 2), ("dp", 8), ("tp", 1))
FIRST, LAST = (2, 34), (67, 99)


def simulated(root: Path, *faults: str) -> Store:
    job = replace(Trial("", "", LAYOUT, 11, looks_at_hangs=False).job(), noise=MeasuredNoise())
    simulate(job, root, replace(SPANS, clock_offsets=True), faults=[parse_fault(fault) for fault in faults])
    return Store(root)


def test_a_drift_of_collections_spreads_the_launches_out_more_and_more(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", "gc-drift:growth_ms=200:every=5") as store:
        [culprit] = find_stragglers(store, store.attempt()).culprits
        assert (culprit.cause, culprit.ranks) == (Cause.GC_DRIFT, ())
        [_, launches] = culprit.evidence
        assert launches.statement.startswith("launches of dp_reduce_scatter lie ")
        assert launches.value is not None
        assert launches.peers is not None
        assert launches.value > 1.5 * launches.peers
        assert store.query(launches.sql).column(0)[0].as_py() == pytest.approx(launches.value)


@pytest.mark.parametrize("faults", [(), ("slow-gpu:rank=3:factor=1.5:steps=50-",)])
def test_a_healthy_job_and_one_late_rank_are_no_such_sign(tmp_path: Path, faults: tuple[str, ...]) -> None:
    with simulated(tmp_path / "store", *faults) as store:
        found = launch_spread(store, store.attempt(), FIRST, LAST)
        assert found is not None
        assert not found.grows
        assert (found.late_ms > 2 * found.early_ms) == bool(faults)


def without(source: Store, root: Path, segment: str, group: str = '"group"', unknown: tuple[str, ...] = ()) -> Store:
    """A copy of a store in which nobody recorded a segment. ``group`` is SQL for the group of each collective;
    ``unknown`` are columns of the spans that are NULL. Without a ``sequence`` no clocks are known."""
    attempt = source.attempt()
    with TableWriter(root, "copy") as writer:
        for table in ("runs", "ranks", "segments", "steps", "groups", "schedule", "clock_offsets"):
            if table == "clock_offsets" and "sequence" in unknown:
                continue
            rows = source.read(table, attempt)
            writer.write(
                table, attempt.run, attempt.attempt, rows, axes=list(attempt.layout) if table == "ranks" else ()
            )
        where = f"segment NOT IN (SELECT segment FROM segments WHERE name = '{segment}')"
        changed = ", ".join(
            [f'CAST({group} AS BIGINT) AS "group"', *(f"CAST(NULL AS BIGINT) AS {one}" for one in unknown)]
        )
        events = f"SELECT * REPLACE ({changed}) FROM events WHERE {where}"
        writer.write("events", attempt.run, attempt.attempt, source.query(events, attempt=attempt))
        writer.commit()
    return Store(root)


def test_collections_that_nobody_recorded_show_by_the_launches_alone(tmp_path: Path) -> None:
    with simulated(tmp_path / "all", "gc-drift:growth_ms=300:every=5") as source:
        store = without(source, tmp_path / "some", "gc")
        [culprit] = find_stragglers(store, store.attempt()).culprits
        assert (culprit.kind, culprit.cause, culprit.ranks) == (CulpritKind.JOB, Cause.GC_DRIFT, ())
        assert (culprit.segment, culprit.pattern) == ("dp_reduce_scatter", Pattern.DRIFTING)
        assert culprit.ratio > 1.5
        assert 0.01 < culprit.lost_share < 0.5
        [evidence] = culprit.evidence
        assert f"{evidence.value:.2f} ms apart" in evidence.statement
        assert store.query(evidence.sql).column(0)[0].as_py() == pytest.approx(evidence.value)
        assert describe(culprit).startswith("Hosts pause by turns, longer and longer, and no span shows it")


def test_the_launches_told_early_and_late_are_of_the_same_groups(tmp_path: Path) -> None:
    """Pairs under the same name, too small to be judged by who is last, are in neither number."""
    pairs = """CASE WHEN "group" IS NOT NULL AND rank >= 8 THEN 1000 + rank // 2 ELSE "group" END"""
    with simulated(tmp_path / "all", "gc-drift:growth_ms=300:every=5") as source:
        store = without(source, tmp_path / "some", "gc", pairs)
        [culprit] = find_launch_drift(store, store.attempt(), observe(store, store.attempt())).culprits
        [evidence] = culprit.evidence
        assert evidence.value is not None
        assert evidence.peers is not None
        assert evidence.value / evidence.peers == pytest.approx(culprit.ratio, rel=1e-3)
        assert store.query(evidence.sql).column(0)[0].as_py() == pytest.approx(evidence.value)


@pytest.mark.parametrize(
    "faults",
    [
        (),
        ("slow-gpu:rank=3:factor=1.5:steps=50-",),
        ("uneven-sequences:spread=0.4:steps=40-",),
        ("uneven-sequences:spread=0.1:steps=30-", "uneven-sequences:spread=0.4:steps=60-"),
        ("gc-drift:growth_ms=300:rank=3",),
        ("degraded-nic:rank=5:bandwidth=0.1:steps=50-",),
        ("data-stall:delay_ms=400:steps=50-",),
    ],
)
def test_other_lateness_is_not_taken_for_collections(tmp_path: Path, faults: tuple[str, ...]) -> None:
    with simulated(tmp_path / "all", *faults) as source:
        store = without(source, tmp_path / "some", "gc")
        assert find_launch_drift(store, store.attempt(), observe(store, store.attempt())).culprits == ()


def not_judged(store: Store) -> list[str]:
    """Why launches were not judged."""
    notes = find_stragglers(store, store.attempt()).abstained
    return [one.reason for one in notes if one.signal == SIGNAL and "launches of" in one.reason]


@pytest.mark.parametrize(
    ("column", "why"), [("sequence", "clocks are not aligned"), ("exposed_ns", "waiting was not recorded")]
)
def test_what_launches_need_and_have_not_is_told(tmp_path: Path, column: str, why: str) -> None:
    with simulated(tmp_path / "all", "gc-drift:growth_ms=300:every=5") as source:
        store = without(source, tmp_path / "some", "gc", unknown=(column,))
        found = find_launch_drift(store, store.attempt(), observe(store, store.attempt()))
        assert (found.culprits, found.blocking) == ((), ())
        [note] = found.abstained
        assert (note.signal, why in note.reason, "dp_reduce_scatter" in note.reason) == (SIGNAL, True, True)
        assert not_judged(store) == [note.reason]


@pytest.mark.parametrize("recorded", [False, True], ids=["no-collections", "collections"])
def test_a_healthy_fleet_stays_healthy_where_launches_are_not_judged(tmp_path: Path, recorded: bool) -> None:
    """Rollups do not say when ranks launched; collections that were recorded are judged by themselves."""
    costs = COSTS if recorded else replace(COSTS, gc_ns=0.0, gc_every_steps=0)
    with faulty_job(tmp_path / "store", rollups=True, steps=100, costs=costs) as store:
        assert find_stragglers(store, store.attempt()).verdict == Outcome.HEALTHY
        assert ["rollups were read" in one for one in not_judged(store)] == ([] if recorded else [True])


@pytest.mark.parametrize("least", ["cp_reduce_scatter", "dp_reduce_scatter"])
def test_rollups_name_the_collective_whose_launches_spans_would_be_asked_for(tmp_path: Path, least: str) -> None:
    """The one that is launched least often, whatever the order of the names."""
    spans = [
        Span(rank, step, name, 100.0 * step + at, 1.0, kind="collective")
        for rank, step in np.ndindex(2, 12)
        for name in ("cp_reduce_scatter", "dp_reduce_scatter")
        for at in ((0, 10) if name == least else (0, 10, 20, 30))
    ]
    source = write_spans(tmp_path / "spans", spans, layout={"dp": 2})
    with source, with_rollups(source, tmp_path / "rollups", span_ranks=()) as store:
        assert launched(store, store.attempt()) == least


@pytest.mark.parametrize("faults", [(), ("gc-drift:growth_ms=300:every=5",)])
def test_launches_that_were_judged_are_not_told_of(tmp_path: Path, faults: tuple[str, ...]) -> None:
    with simulated(tmp_path / "all", *faults) as source:
        assert not_judged(source) == []
        assert not_judged(without(source, tmp_path / "some", "gc")) == []


def test_a_job_that_launches_nothing_of_the_kind_is_not_told_of(tmp_path: Path) -> None:
    with simulated(tmp_path / "all") as source:
        store = without(source, tmp_path / "some", "dp_reduce_scatter", unknown=("sequence",))
        assert find_launch_drift(store, store.attempt(), observe(store, store.attempt())) == Findings()


def test_a_launch_whose_moment_is_not_known_is_no_member(tmp_path: Path) -> None:
    """Of groups of four on two hosts, of which one has a clock, two launches are known: too few to tell who is last."""
    with simulated(tmp_path / "all") as source:
        attempt, root = source.attempt(), tmp_path / "some"
        without(source, root, "gc", """CASE WHEN "group" IS NOT NULL THEN rank % 4 END""", ("sequence",)).close()
        with TableWriter(root, "clocks") as writer:
            known = source.read("clock_offsets", attempt)
            first = known.filter(pc.equal(known["host"], known["host"][0]))
            writer.write("clock_offsets", attempt.run, attempt.attempt, first)
            writer.commit()
        with Store(root) as store:
            launches = launches_of(store, attempt, (FIRST[0], LAST[1]))
            assert launches is not None
            assert (set(launches.ranks), set(launches.members)) == ({4}, {2})
            assert np.isfinite(launches.spread_ms).all()
            found = find_launch_drift(store, attempt, observe(store, attempt))
            assert ["clocks are not aligned" in one.reason for one in found.abstained] == [True]


def test_hosts_whose_clocks_are_not_known_tell_nothing(tmp_path: Path) -> None:
    job = replace(Trial("", "", LAYOUT, 11, looks_at_hangs=False).job(), steps=10)
    simulate(job, tmp_path / "store", SPANS)
    with Store(tmp_path / "store") as store:
        assert launch_spread(store, store.attempt(), (0, 4), (5, 9)) is None
