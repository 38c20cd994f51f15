"""A simulated store: rollups equal the spans, ends of an operation agree, and small tables are complete."""

from __future__ import annotations

import pytest

from megascope.collectors.reading.store import Attempt, Store
from megascope.profiler.topology import group_id
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise_fit import COMPLETION
from megascope.trainer.simulator.noise_tables import BUILTIN
from megascope.trainer.simulator.tables import spans_per_step
from support.small_job import ALL, EVENTS, WINDOWS, job_of, open_simulated


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Attempt, SimulatedJob]:
    """A job with right clocks, all of whose spans are kept."""
    job = job_of()
    return *open_simulated(tmp_path_factory.mktemp("whole"), job, ALL), job


def test_rollups_are_the_sums_of_the_spans(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    store, attempt, _ = whole
    expected = " UNION ALL ".join(EVENTS.format(length=length) for length in (10, 100, 1000))
    for one, other in ((WINDOWS, expected), (expected, WINDOWS)):
        assert store.query(f"({one}) EXCEPT ({other})", attempt=attempt).to_pylist()[:3] == []
    segments = {row["name"] for row in store.read("segments", attempt).to_pylist()}
    seen = store.query("SELECT DISTINCT segment_name FROM spans", attempt=attempt)["segment_name"].to_pylist()
    assert set(seen) == segments


def test_histograms_hold_the_bins_of_the_spans(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    store, attempt, _ = whole
    from support.histograms import bin_sql

    windows = """SELECT rank, segment, first_step, unnest(duration_bins) AS bin, unnest(duration_bin_counts) AS n
                 FROM rank_windows WHERE window_steps = 10"""
    merged = f"SELECT rank, segment, first_step, bin, sum(n) AS n FROM ({windows}) GROUP BY ALL"
    spans = f"""SELECT rank, segment, step // 10 * 10 AS first_step, {bin_sql("duration_ns")} AS bin, count(*) AS n
                FROM events GROUP BY ALL"""
    assert store.query(f"({merged}) EXCEPT ({spans})", attempt=attempt).num_rows == 0
    assert store.query(f"({spans}) EXCEPT ({merged})", attempt=attempt).num_rows == 0


def test_every_span_is_there_once(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    store, attempt, job = whole
    pauses = "segment_name NOT IN ('gc', 'checkpoint')"
    rows = store.query(f"SELECT stage, count(*) AS n FROM spans WHERE {pauses} GROUP BY 1 ORDER BY 1", attempt=attempt)
    assert rows["n"].to_pylist() == [spans_per_step(job, stage) * 4 * 25 for stage in range(2)]
    doubled = """SELECT rank, "group", sequence, segment FROM events WHERE "group" IS NOT NULL
                 GROUP BY ALL HAVING count(*) > 1"""
    assert store.query(doubled, attempt=attempt).num_rows == 0
    gaps = """SELECT rank, "group", segment_name LIKE 'send%' AS sends, max(sequence) - count(*) AS gap FROM spans
              WHERE "group" IS NOT NULL GROUP BY ALL HAVING gap <> 0"""
    assert store.query(gaps, attempt=attempt).num_rows == 0


def test_both_ends_of_an_operation_agree(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    """Members of a collective end nearly together, and a receive with its send; none before the last has come."""
    store, attempt, _ = whole
    rows = store.query(
        """SELECT groups.kind AS kind, max(start_ns + duration_ns) - min(start_ns + duration_ns) AS spread,
               min(start_ns + duration_ns) - max(start_ns) AS transfer, count(*) AS members,
               any_value(len(groups.ranks)) AS size, count(DISTINCT replace(segment_name, 'recv', 'send')) AS names
           FROM spans JOIN groups USING ("group") GROUP BY "group", sequence, groups.kind""",
        attempt=attempt,
    ).to_pylist()
    assert {row["spread"] for row in rows if row["kind"] == "tp"} == {0}
    latest = 1e3 * BUILTIN[COMPLETION].span[-1]  # who sees an operation complete last, sees it so much later
    assert 0 < max(row["spread"] for row in rows) <= latest + 1
    assert min(row["transfer"] for row in rows) > 0
    assert all(row["members"] == row["size"] and row["names"] == 1 for row in rows)
    peers = """SELECT count(*) AS n FROM spans AS a JOIN spans AS b ON a."group" = b."group" AND a.sequence = b.sequence
               AND a.peer = b.rank AND b.peer = a.rank AND a.microbatch = b.microbatch
               WHERE a.segment_name LIKE 'send%' AND b.segment_name LIKE 'recv%'"""
    sends = "SELECT count(*) AS n FROM spans WHERE segment_name LIKE 'send%'"
    assert store.query(peers, attempt=attempt).to_pylist() == store.query(sends, attempt=attempt).to_pylist()


def test_work_on_a_rank_does_not_overlap_and_fills_the_step(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    store, attempt, _ = whole
    rows = store.query(
        """SELECT rank, step, start_ns, start_ns + duration_ns AS end_ns FROM spans
           WHERE kind IN ('compute', 'data', 'gc', 'optimizer', 'checkpoint') ORDER BY rank, start_ns""",
        attempt=attempt,
    )
    rank, start, end = (rows[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    same = rank[1:] == rank[:-1]
    assert (start[1:] >= end[:-1])[same].all()
    inside = """SELECT count(*) AS n FROM spans JOIN steps USING (run, attempt, rank, step)
                WHERE kind = 'compute' AND (spans.start_ns < steps.start_ns
                OR spans.start_ns + spans.duration_ns > steps.start_ns + steps.duration_ns)"""
    assert store.query(inside, attempt=attempt).to_pylist() == [{"n": 0}]
    steps = store.query(
        """SELECT count(*) AS n
           FROM (SELECT *, lead(start_ns) OVER (PARTITION BY rank ORDER BY step) AS next FROM steps)
           WHERE next <> start_ns + duration_ns""",
        attempt=attempt,
    )
    assert steps.to_pylist() == [{"n": 0}]


def test_waiting_is_what_work_does_not_fill(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    """Own times and exposed waiting of a rank add up to its step, but for an all-gather that a step leaves behind."""
    store, attempt, _ = whole
    rows = store.query(
        """SELECT rank, sum(CASE WHEN kind IN ('collective', 'p2p') THEN exposed_ns ELSE self_ns END) AS spent,
               (SELECT sum(duration_ns) FROM steps WHERE steps.rank = spans.rank) AS whole
           FROM spans GROUP BY rank""",
        attempt=attempt,
    ).to_pylist()
    assert [row["spent"] for row in rows] == [row["whole"] for row in rows]


def test_small_tables(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    store, attempt, job = whole
    assert (attempt.layout, attempt.world_size, attempt.exit_reason) == ({"pp": 2, "dp": 2, "tp": 2}, 8, "finished")
    ranks = store.query("SELECT rank, host, local_rank, pp, dp, tp FROM ranks ORDER BY rank", attempt=attempt)
    assert ranks.to_pylist() == [
        {"rank": r, "host": f"node{r // 2:04d}", "local_rank": r % 2, **job.topology.coordinates(r)} for r in range(8)
    ]
    found = {row["group"]: row for row in store.read("groups", attempt).to_pylist()}
    for group, row in found.items():
        assert group == group_id(row["kind"], row["ranks"])
    kinds = {"tp": 4, "dp": 4, "pp": 4, "world": 1} | dict.fromkeys(
        ("pp_forward", "pp_backward", "pp_forward_wrap", "pp_backward_wrap"), 4
    )
    assert {kind: sum(row["kind"] == kind for row in found.values()) for kind in kinds} == kinds
    schedule = store.query("SELECT count(*) AS n, max(len(depends_on)) AS d FROM schedule", attempt=attempt)
    assert schedule.to_pylist() == [{"n": sum(len(one) for one in job.schedule), "d": 4}]
    beats = store.query("SELECT count(DISTINCT rank) AS ranks, count(*) AS n FROM heartbeats", attempt=attempt)
    assert beats["ranks"].to_pylist() == [8]
    step = store.query("SELECT min(mfu) AS mfu, min(tokens) AS tokens FROM steps", attempt=attempt).to_pylist()[0]
    assert 0 < step["mfu"] < 1
    assert step["tokens"] == 4096


def test_edges_are_named_as_the_trainer_names_them(whole: tuple[Store, Attempt, SimulatedJob]) -> None:
    from megascope.trainer.topology import pipeline_edges

    store, attempt, job = whole
    expected = {
        group_id(str(edge.kind), (edge.source, edge.destination)) for edge in pipeline_edges(job.topology, job.chunks)
    }
    found = store.query("""SELECT DISTINCT "group" FROM spans WHERE kind = 'p2p'""", attempt=attempt)
    assert set(found["group"].to_pylist()) == expected
