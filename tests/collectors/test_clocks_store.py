"""Clocks in a store: rows are written window by window, read back as pieces, and applied to events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.agent import clock_watch
from megascope.collectors.agent.clock_watch import ClockWatch, Presence
from megascope.collectors.clocks import update as clock_update
from megascope.collectors.clocks.clocks import load_clocks
from megascope.collectors.clocks.pairs import Ends, Side
from megascope.collectors.clocks.samples import SharedGroups, find_shared_groups, read_ends
from megascope.collectors.clocks.update import ClockKeeper, update_clock_offsets
from megascope.collectors.reading.clock_sql import OffsetSource
from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.timeline import export_chrome
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.upkeep.retention_plan import Retention
from megascope.collectors.upkeep.upkeep import upkeep
from megascope.collectors.writing.writer import TableWriter
from support.clock_scenes import FIRST_NS, SECOND, Truth
from support.clock_store import clocks_of, shown, write_job

HOSTS = ("node0", "node1", "node2")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TableWriter]:
    with TableWriter(tmp_path / "store", "test") as opened:
        yield opened


def update(writer: TableWriter) -> int:
    return update_clock_offsets(writer.root)


def offsets(root: Path) -> list[dict[str, Any]]:
    with Store(root) as store:
        return list(store.query("SELECT * FROM clock_offsets ORDER BY host, moment_ns").to_pylist())


def spread_ns(root: Path) -> np.ndarray[Any, Any]:
    """How far apart the ends of each operation are in `events_aligned`."""
    sql = "SELECT max(start_ns + duration_ns) - min(start_ns + duration_ns) AS s FROM events_aligned GROUP BY sequence"
    with Store(root) as store:
        return np.asarray(store.query(sql, attempt=store.attempt())["s"].to_numpy())


def assert_right(root: Path, truth: Truth, seconds: range) -> None:
    """Aligned moments are those of the reference clock, give or take the uncertainty."""
    with Store(root) as store:
        clocks = load_clocks(store, store.attempt())
    for second in seconds:
        for at, host in enumerate(HOSTS):
            moment = shown(truth, at, second * SECOND)
            uncertainty = clocks.uncertainty_ns("node0", host, moment)
            assert uncertainty is not None
            assert uncertainty < 2 * 10**5
            assert abs(clocks.aligned_ns(host, moment) - FIRST_NS - second * SECOND) <= uncertainty


def test_events_of_a_job_that_ended_are_aligned(writer: TableWriter) -> None:
    truth = clocks_of(3)
    write_job(writer, truth, range(300), hosts=HOSTS, exit_reason="finished")
    assert update(writer) == 3 * 2 * 3, "two rows for each host and window: of a minute, to the third, to the end"
    assert {row["source"] for row in offsets(writer.root)} == {OffsetSource.ENDS}
    assert np.median(spread_ns(writer.root)) < 10**5
    assert_right(writer.root, truth, range(1, 299, 7))
    assert update(writer) == 0


def test_windows_are_appended_as_they_close(writer: TableWriter) -> None:
    truth = clocks_of(3, seed=4)
    write_job(writer, truth, range(80), hosts=HOSTS)
    assert update(writer) == 0, "the first minute may still get rows from slower agents"
    write_job(writer, truth, range(80, 95), hosts=HOSTS)
    assert update(writer) == 6
    first = offsets(writer.root)
    write_job(writer, truth, range(95, 230), hosts=HOSTS)
    assert update(writer) == 6
    write_job(writer, truth, range(230, 300), hosts=HOSTS, exit_reason="finished")
    assert update(writer) == 6
    assert [row for row in offsets(writer.root) if row in first] == first
    assert_right(writer.root, truth, range(1, 299, 7))


def test_after_the_last_window_the_uncertainty_grows(writer: TableWriter) -> None:
    truth = clocks_of(3, seed=2)
    write_job(writer, truth, range(95), hosts=HOSTS)
    update(writer)
    with Store(writer.root) as store:
        clock = load_clocks(store, store.attempt()).known["node1"]
    moments = [shown(truth, 1, second * SECOND) for second in (59, 120, 600)]
    stated = [clock.uncertainty_ns(moment) for moment in moments]
    assert stated[0] < stated[1] < stated[2]
    for moment, uncertainty, second in zip(moments, stated, (59, 120, 600), strict=True):
        assert abs(clock.aligned_ns(moment) - FIRST_NS - second * SECOND) <= uncertainty


def test_hosts_that_cannot_be_aligned_have_no_aligned_start(writer: TableWriter) -> None:
    hosts = (*HOSTS, "node3", "node4")
    write_job(writer, clocks_of(5), range(60), hosts=hosts, exit_reason="finished", groups=((0, 1, 2), (3, 4)))
    update(writer)
    with Store(writer.root) as store:
        rows = store.query(
            "SELECT rank, count(start_ns) AS aligned, count(uncertainty_ns) AS sure, count(host_start_ns) AS shown "
            "FROM events_aligned GROUP BY rank ORDER BY rank",
            attempt=store.attempt(),
        ).to_pylist()
        assert sorted(load_clocks(store, store.attempt()).known) == list(HOSTS)
    assert [(row["aligned"] > 0, row["sure"] > 0) for row in rows] == [(True, True)] * 3 + [(False, False)] * 2
    assert len({row["shown"] for row in rows}) == 1


def test_a_job_of_several_hosts_without_offsets_is_never_taken_for_aligned(writer: TableWriter) -> None:
    write_job(writer, clocks_of(3), range(5), hosts=HOSTS)
    with Store(writer.root) as store:
        (row,) = store.query("SELECT count(start_ns) AS n FROM events_aligned", attempt=store.attempt()).to_pylist()
    assert row["n"] == 0


def test_a_job_of_one_host_is_aligned_as_it_is(writer: TableWriter) -> None:
    write_job(writer, Truth(np.zeros(2), np.zeros(2)), range(5), hosts=("node0", "node0"))
    assert update(writer) == 0
    with Store(writer.root) as store:
        rows = store.read(
            "events_aligned", store.attempt(), ["start_ns", "host_start_ns", "uncertainty_ns"]
        ).to_pylist()
    assert rows
    assert all(row["start_ns"] == row["host_start_ns"] and row["uncertainty_ns"] == 0 for row in rows)


def test_a_host_that_comes_back_with_another_clock_is_uncertain_only_where_that_happened(writer: TableWriter) -> None:
    """Between two windows the clock of node1 jumps by a second: the windows themselves are right."""
    before, after = clocks_of(3, seed=6), clocks_of(3, seed=6)
    after.offset_ns[1] += SECOND
    write_job(writer, before, range(175), hosts=HOSTS)
    write_job(writer, after, range(182, 400), hosts=HOSTS, exit_reason="finished")
    update(writer)
    assert_right(writer.root, before, range(1, 170, 13))
    assert_right(writer.root, after, range(190, 390, 13))


# -- the exchange at the start ----------------------------------------------------------------------------------


def exchange(truth: Truth, wrong_ns: int = 0, uncertainty_ns: int = 50_000) -> dict[str, dict[str, list[Any]]]:
    """Rows of an exchange at second 1; node1's is off by so much."""
    found = [round(truth.offset_at_ns(FIRST_NS + SECOND)[at]) + (wrong_ns if at == 1 else 0) for at in range(3)]
    return {
        "clock_offsets": {
            "host": list(HOSTS),
            "moment_ns": [shown(truth, at, SECOND) for at in range(3)],
            "offset_ns": found,
            "drift_ppb": [0.0, None, None],
            "uncertainty_ns": [0, uncertainty_ns, uncertainty_ns],
            "source": [OffsetSource.EXCHANGE] * 3,
        }
    }


def test_before_there_are_ends_the_exchange_aligns_ever_less_surely(writer: TableWriter) -> None:
    truth = clocks_of(3)
    write_job(writer, truth, range(3), hosts=HOSTS, more=exchange(truth))
    with Store(writer.root) as store:
        clocks = load_clocks(store, store.attempt())
    for second in (1, 60, 3600):
        moment = shown(truth, 1, second * SECOND)
        uncertainty = clocks.uncertainty_ns("node0", "node1", moment)
        assert uncertainty is not None
        assert abs(uncertainty - 50_000 - (second - 1) * 100_000) < 1_000_000
        assert abs(clocks.aligned_ns("node1", moment) - FIRST_NS - second * SECOND) <= uncertainty


def test_an_exchange_that_agrees_changes_nothing(writer: TableWriter) -> None:
    truth = clocks_of(3)
    write_job(writer, truth, range(60), hosts=HOSTS, exit_reason="finished", more=exchange(truth))
    with Store(writer.root) as store:
        keeper = ClockKeeper(store.attempt())
        rows = keeper.new_rows(store, is_over=True)
    assert keeper.disagreements == ()
    assert {row["source"] for row in rows} == {OffsetSource.ENDS}


def test_a_disagreement_is_reported_and_the_exchange_believed(
    writer: TableWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Ends that node1 always notes 2 ms late look like another offset; messages tell."""
    truth = clocks_of(3, seed=1)
    late = Truth(truth.offset_ns.copy(), truth.drift)
    late.offset_ns[1] -= 2_000_000
    write_job(writer, late, range(230), hosts=HOSTS, exit_reason="finished", more=exchange(truth))
    with Store(writer.root) as store, caplog.at_level(logging.WARNING):
        keeper = ClockKeeper(store.attempt())
        rows = keeper.new_rows(store, is_over=True)
    (found,) = keeper.disagreements
    assert found.host == "node1"
    assert abs(found.exchange_ns - found.ends_ns - 2_000_000) < 150_000
    assert "the messages are believed" in caplog.text
    assert {row["source"] for row in rows if row["host"] == "node1"} == {OffsetSource.BOTH}
    for row in rows:
        at = HOSTS.index(row["host"])
        true_ns = truth.offset_at_ns(row["moment_ns"] + row["offset_ns"])[at]
        assert abs(row["offset_ns"] - true_ns) <= row["uncertainty_ns"]


# -- agents -----------------------------------------------------------------------------------------------------


def test_the_agent_that_ends_last_writes_the_rest(writer: TableWriter) -> None:
    """Each agent sees only its own host; the store tells whether the others are done."""
    truth = clocks_of(3)
    key = ("job", 0)
    first, last = ClockWatch(writer.root, every_s=0.0), ClockWatch(writer.root, every_s=3600.0)
    first.poll({key: Presence(is_shared=True, has_reference=True)})
    write_job(writer, truth, range(95), hosts=HOSTS)
    first.poll({key: Presence(is_shared=True, has_reference=True)})
    last.poll({key: Presence(is_shared=True, has_reference=False)})
    assert len(offsets(writer.root)) == 6, "the agent of the reference host writes what has closed"
    first.poll({})
    assert len(offsets(writer.root)) == 6, "other agents are not done"
    write_job(writer, truth, range(95, 170), hosts=HOSTS, exit_reason="finished")
    last.poll({})
    assert len(offsets(writer.root)) == 12
    assert_right(writer.root, truth, range(1, 169, 7))


def test_agents_of_one_host_write_nothing_and_a_missing_store_stops_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ClockWatch(tmp_path / "nowhere", every_s=0.0)
    watch.poll({("job", 0): Presence(is_shared=False, has_reference=True)})
    watch.poll({})
    assert not caplog.records
    watch.poll({("job", 1): Presence(is_shared=True, has_reference=True)})
    watch.poll({("job", 1): Presence(is_shared=True, has_reference=True)})
    assert len(caplog.records) == 1


def test_upkeep_notes_offsets_before_it_deletes_the_spans_that_tell_them(writer: TableWriter) -> None:
    truth = clocks_of(3)
    write_job(writer, truth, range(170), hosts=HOSTS, exit_reason="finished")
    writer.close()
    report = upkeep(writer.root, Retention(raw_age_s=0.0), quiet_s=0.0)
    assert report.problems == []
    with Store(writer.root) as store:
        assert store.entries("events") == []
    assert len(offsets(writer.root)) == 12
    assert_right(writer.root, truth, range(1, 169, 7))


# -- one definition ---------------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(
    knots=st.lists(
        st.tuples(
            st.integers(0, 10**12),
            st.integers(-(10**10), 10**10),
            st.none() | st.floats(-1e5, 1e5),
            st.integers(0, 10**6),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda knot: knot[0],
    ),
    moments=st.lists(st.integers(-(10**12), 2 * 10**12), min_size=1, max_size=8),
)
def test_sql_and_python_align_alike(
    tmp_path_factory: pytest.TempPathFactory,
    knots: list[tuple[int, int, float | None, int]],
    moments: list[int],
) -> None:
    root = tmp_path_factory.mktemp("pieces") / "store"
    count = len(moments)
    with TableWriter(root, "test") as writer:
        writer.write("ranks", "job", 0, {"rank": [0, 1], "host": ["a", "b"]})
        columns = [list(column) for column in zip(*knots, strict=True)]
        names = ("moment_ns", "offset_ns", "drift_ppb", "uncertainty_ns")
        rows: dict[str, list[Any]] = dict(zip(names, columns, strict=True))
        rows["moment_ns"] = [FIRST_NS + moment for moment in rows["moment_ns"]]
        writer.write("clock_offsets", "job", 0, {"host": ["b"] * len(knots), **rows})
        starts = [FIRST_NS + moment for moment in moments]
        same = {"segment": [7] * count, "clock": ["host"] * count, "status": ["ok"] * count}
        writer.write("events", "job", 0, {"rank": [1] * count, "start_ns": starts, **same})
        writer.commit()
    with Store(root) as store:
        clock = load_clocks(store, store.attempt()).known["b"]
        found = store.read("events_aligned", store.attempt()).to_pylist()
    assert len(found) == count
    for row in found:
        moment = row["host_start_ns"]
        assert abs(row["start_ns"] - clock.aligned_ns(moment)) <= 1
        assert abs(row["uncertainty_ns"] - clock.uncertainty_ns(moment)) <= 1
        assert row["uncertainty_ns"] >= min(knot[3] for knot in knots)
        offset = float(clock.offsets_ns(np.array([float(moment - FIRST_NS)]), FIRST_NS)[0])
        assert abs(moment + offset - row["start_ns"]) <= 600


def test_of_rows_that_contradict_each_other_the_surest_counts_and_none_is_excluded(writer: TableWriter) -> None:
    rows: dict[str, list[Any]] = {
        "host": ["b"] * 3,
        "moment_ns": [FIRST_NS] * 3,
        "offset_ns": [900, 500, 100],
        "drift_ppb": [9.0, 5.0, 1.0],
        "uncertainty_ns": [30, 10, 20],
        "source": [None, OffsetSource.EXCHANGE, OffsetSource.HOST],
    }
    writer.write("ranks", "job", 0, {"rank": [0, 1], "host": ["a", "b"]})
    writer.write("clock_offsets", "job", 0, rows)
    writer.commit()
    with Store(writer.root) as store:
        clock = load_clocks(store, store.attempt()).known["b"]
    assert clock.aligned_ns(FIRST_NS) == FIRST_NS + 500
    assert clock.pieces[-1].slope == 5e-9
    assert clock.uncertainty_ns(FIRST_NS) == 30 + 800


def test_an_offset_that_is_written_again_replaces_the_older_one_also_after_compaction(tmp_path: Path) -> None:
    def write(host: str, offset_ns: int, source: str | None) -> None:
        row: dict[str, list[Any]] = {"host": [host], "moment_ns": [100], "uncertainty_ns": [5]}
        with TableWriter(tmp_path / "store", host) as one:
            one.write("clock_offsets", "job", 0, {**row, "offset_ns": [offset_ns], "source": [source]}, replace=True)
            one.commit()

    def shown_rows() -> list[tuple[Any, ...]]:
        return [(row["host"], row["offset_ns"], row["source"]) for row in offsets(tmp_path / "store")]

    write("a", 1, OffsetSource.EXCHANGE)
    write("b", 2, None)
    assert compact(tmp_path / "store", quiet_s=0.0).files_after == 1
    write("a", 999, OffsetSource.EXCHANGE)
    write("b", 888, None)
    for _ in range(2):
        assert shown_rows() == [("a", 999, OffsetSource.EXCHANGE), ("b", 888, None)]
        compact(tmp_path / "store", quiet_s=0.0)


# -- windows that nobody can align -----------------------------------------------------------------------------


def test_windows_that_cannot_be_aligned_are_read_once_and_a_few_at_a_time(
    writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(store: Store, attempt: Attempt, groups: SharedGroups, steps: Sequence[int]) -> Ends:
        read.append(min(steps))
        return read_ends(store, attempt, groups, steps)

    alone = ((0,), (1,), (2,))
    write_job(writer, clocks_of(3), range(300), hosts=HOSTS, groups=alone, step_s=10.0)
    monkeypatch.setattr(clock_update, "read_ends", counted)
    with Store(writer.root) as store:
        keeper = ClockKeeper(store.attempt())
        for whole in (3, 6, 6, 6):
            assert keeper.new_rows(store, is_over=False, most=3) == []
            assert len(read) == whole, "windows of 60, 180, 600, 1200, 1800 and 2400 s have closed"
            assert keeper.is_behind == (whole == 3)
        write_job(writer, clocks_of(3), range(300, 306), hosts=HOSTS, groups=alone, step_s=10.0)
        store.refresh()
        keeper.new_rows(store, is_over=False)
        assert len(read) == len(set(read)) == 7, "one more has closed"


def test_an_agent_that_finds_hours_of_windows_takes_them_poll_by_poll(
    writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_watch, "MOST_WINDOWS", 2)
    write_job(writer, clocks_of(3), range(300), hosts=HOSTS, step_s=10.0, exit_reason="finished")
    here = {("job", 0): Presence(is_shared=True, has_reference=True)}
    watch = ClockWatch(writer.root, every_s=3600.0)
    watch._due = 0.0
    counts = []
    for present in (here, here, here, {}, {}):
        watch.poll(present)
        counts.append(len(offsets(writer.root)))
    assert counts == [12, 24, 36, 42, 42]


# -- readers ----------------------------------------------------------------------------------------------------


def test_a_reader_aligns_what_no_writer_has_aligned(writer: TableWriter) -> None:
    truth = clocks_of(3, seed=9)
    write_job(writer, truth, range(120), hosts=HOSTS, exit_reason="finished")
    assert_right(writer.root, truth, range(1, 119, 7))
    assert offsets(writer.root) == [], "nothing is written"
    with Store(writer.root) as store:
        attempt = store.attempt()
        load_clocks(store, attempt)
        sql = "SELECT count(start_ns) AS n, count(*) AS all FROM events_aligned"
        (row,) = store.query(sql, attempt=attempt).to_pylist()
        assert row["n"] == row["all"] > 0
        before = store.query("SELECT count(*) AS n FROM clock_offsets", attempt=attempt).to_pylist()
        load_clocks(store, attempt)
        assert store.query("SELECT count(*) AS n FROM clock_offsets", attempt=attempt).to_pylist() == before


def test_offsets_that_somebody_told_are_left_alone(writer: TableWriter) -> None:
    """Such as an importer's or a simulator's, who may know better than the ends."""
    told: dict[str, list[Any]] = {
        "host": list(HOSTS),
        "moment_ns": [FIRST_NS] * 3,
        "offset_ns": [0, 7, 9],
        "uncertainty_ns": [1] * 3,
    }
    write_job(writer, clocks_of(3), range(40), hosts=HOSTS, exit_reason="finished", more={"clock_offsets": told})
    with Store(writer.root) as store:
        clocks = load_clocks(store, store.attempt())
    assert clocks.aligned_ns("node1", FIRST_NS) == FIRST_NS + 7


def test_a_timeline_of_a_store_that_nobody_aligned_is_aligned(writer: TableWriter, tmp_path: Path) -> None:
    write_job(writer, clocks_of(3, seed=9), range(40), hosts=HOSTS, exit_reason="finished")
    with Store(writer.root) as store:
        export_chrome(store, store.attempt(), tmp_path / "trace.json")
    spans = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ends: dict[str, list[float]] = {}
    for span in spans:
        if span["ph"] == "X":
            ends.setdefault(span["args"]["sequence"], []).append(span["ts"] + span["dur"])
    assert len(ends) == 160
    assert np.median([max(moments) - min(moments) for moments in ends.values()]) < 100


def test_a_timeline_names_the_hosts_that_it_shows_by_their_own_clocks(writer: TableWriter, tmp_path: Path) -> None:
    groups = ((0, 1), (2,))
    write_job(writer, clocks_of(3), range(20), hosts=HOSTS, exit_reason="finished", groups=groups)
    with Store(writer.root) as store:
        export_chrome(store, store.attempt(), tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["otherData"]["hosts_on_a_clock_of_their_own"] == ["node2"]
    assert len([span for span in document["traceEvents"] if span["ph"] == "X"]) == 20 * 4 * 3


def test_a_transfer_is_known_by_its_group_sender_and_number(writer: TableWriter) -> None:
    """Both ends of the edge count their sends alone; a broadcast and what failed are left out."""
    rows = [  # rank, name, sequence, peer, end, status
        (0, "send_forward", 1, 1, 100, "ok"),
        (1, "recv_forward", 1, 0, 110, "ok"),
        (1, "send_forward", 1, 0, 300, "ok"),
        (0, "recv_forward", 1, 1, 330, "ok"),
        (0, "send_forward", 2, 1, 500, "aborted"),
        (1, "recv_forward", 2, 0, 510, "ok"),
        (0, "pp_broadcast", 9, None, 600, "ok"),
        (1, "pp_broadcast", 9, None, 700, "ok"),
    ]
    names = sorted({row[1] for row in rows})
    kinds = ["collective" if name == "pp_broadcast" else "p2p" for name in names]
    writer.write("ranks", "job", 0, {"rank": [0, 1], "host": ["a", "b"]})
    writer.write("groups", "job", 0, {"group": [5], "kind": ["pp_forward"], "ranks": [[0, 1]]})
    writer.write("segments", "job", 0, {"segment": list(range(len(names))), "name": names, "kind": kinds})
    columns = {
        "rank": [row[0] for row in rows],
        "segment": [names.index(row[1]) for row in rows],
        "sequence": [row[2] for row in rows],
        "peer": [row[3] for row in rows],
        "start_ns": [row[4] - 40 for row in rows],
        "status": [row[5] for row in rows],
    }
    same = {"step": [0] * len(rows), "group": [5] * len(rows), "clock": ["host"] * len(rows)}
    writer.write("events", "job", 0, {**columns, **same, "duration_ns": [40] * len(rows)})
    writer.commit()
    with Store(writer.root) as store:
        groups = find_shared_groups(store, store.attempt())
        ends = read_ends(store, store.attempt(), groups, [0])
    assert groups.hosts == ("a", "b")
    found: dict[int, list[tuple[int, int, int]]] = {}
    for at in np.argsort(ends.end_ns):
        row = (int(ends.host[at]), int(ends.side[at]), int(ends.end_ns[at]))
        found.setdefault(int(ends.operation[at]), []).append(row)
    assert sorted(found.values()) == [
        [(0, Side.SEND, 100), (1, Side.RECEIVE, 110)],
        [(1, Side.SEND, 300), (0, Side.RECEIVE, 330)],
        [(1, Side.RECEIVE, 510)],
    ]
