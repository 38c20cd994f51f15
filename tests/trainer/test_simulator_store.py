"""A simulated store: rollups equal the spans, ends of an operation agree, clocks are wrong as told, verbs read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.clocks import load_clocks
from megascope.collectors.store import Attempt, Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.errors import UsageError
from megascope.profiler.topology import group_id
from megascope.trainer.simulator.clocks import HostClocks
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.noise_fit import COMPLETION
from megascope.trainer.simulator.noise_tables import BUILTIN
from megascope.trainer.simulator.tables import spans_per_step
from megascope.trainer.simulator.writing import Recording, simulate

MS = 1e6
COSTS = Costs(
    forward_ns=(8 * MS,), backward_ns=(16 * MS,), tp_pairs=2, tp_ns=2e5, tp_bytes=1000, p2p_network_ns=3e5,
    p2p_host_ns=1e5, p2p_bytes=500, reduce_scatter_ns=3 * MS, all_gather_ns=2 * MS, norm_ns=1e5, optimizer_ns=MS,
    data_ns=MS, gc_ns=2 * MS, gc_every_steps=7, checkpoint_ns=5 * MS, checkpoint_every_steps=10, tokens_per_step=4096,
    flops_per_step=1e12, peak_flops=1e12,
)  # fmt: skip
ALL = Recording(span_ranks=None)


def job_of(**more: Any) -> SimulatedJob:
    settings: dict[str, Any] = {
        "layout": {"pp": 2, "dp": 2, "tp": 2}, "steps": 25, "microbatches": 4, "chunks": 2, "costs": COSTS,
        "gpus_per_host": 2, "noise": load_noise("builtin"), "seed": 5,
    }  # fmt: skip
    return SimulatedJob(**{**settings, **more})


def open_simulated(folder: Path, job: SimulatedJob, *arguments: Any, **more: Any) -> tuple[Store, Attempt]:
    simulate(job, folder, *arguments, **more)
    store = Store(folder)
    return store, store.attempt()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Attempt, SimulatedJob]:
    """A job with right clocks, all of whose spans are kept."""
    job = job_of()
    return *open_simulated(tmp_path_factory.mktemp("whole"), job, ALL), job


WINDOWS = """
    SELECT rank, segment, window_steps, first_step, sum(duration_count) AS count, sum(duration_sum_ns) AS total,
        min(duration_min_ns) AS least, max(duration_max_ns) AS largest, sum(self_count) AS self_count,
        sum(self_sum_ns) AS self_total, min(self_min_ns) AS self_least, sum(exposed_count) AS waits,
        sum(exposed_sum_ns) AS waited, sum(list_sum(duration_bin_counts)) AS binned,
        sum(list_sum(self_bin_counts)) AS self_binned
    FROM rank_windows GROUP BY ALL"""

EVENTS = """
    SELECT rank, segment, {length} AS window_steps, step // {length} * {length} AS first_step, count(*) AS count,
        sum(duration_ns) AS total, min(duration_ns) AS least, max(duration_ns) AS largest, count(self_ns) AS self_count,
        sum(self_ns) AS self_total, min(self_ns) AS self_least, count(exposed_ns) AS waits,
        coalesce(sum(exposed_ns), 0) AS waited, count(*) AS binned, count(*) AS self_binned
    FROM events GROUP BY ALL"""


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
    from megascope.collectors.histogram import bin_sql

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


def test_clocks_are_wrong_as_told_and_nothing_else_changes(
    whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path
) -> None:
    store, attempt, right = whole
    job = job_of(skew_ms=2000.0, drift_ppm=50.0, run="skewed")
    skewed, other = open_simulated(tmp_path, job, ALL)
    sql = """SELECT rank, host, start_ns, duration_ns FROM spans
             ORDER BY rank, segment, step, chunk, microbatch, sequence"""
    true, shown = store.query(sql, attempt=attempt), skewed.query(sql, attempt=other)
    clocks = HostClocks.of(job)
    assert not clocks.are_right
    assert HostClocks.of(right).are_right
    host = job.grid.host[true["rank"].to_numpy()]
    difference = shown["start_ns"].to_numpy() - true["start_ns"].to_numpy()
    assert np.abs(difference[host > 0]).max() > 100 * MS
    assert (difference[host == 0] == 0).all()
    assert np.array_equal(clocks.recorded_ns(true["start_ns"].to_numpy(), host), shown["start_ns"].to_numpy())
    assert np.abs(shown["duration_ns"].to_numpy() - true["duration_ns"].to_numpy()).max() < 1000 * MS * 60e-6
    assert skewed.query("SELECT * FROM clock_offsets", attempt=other).num_rows == 0
    told = other.configuration["simulation"]["clocks"]
    assert [told[f"node{number:04d}"][0] for number in range(4)] == clocks.skew_ns.tolist()
    assert "clock" not in json.dumps({k: v for k, v in attempt.configuration["simulation"].items() if k != "clocks"})


def test_alignment_finds_the_true_clocks_within_its_uncertainty(tmp_path: Path) -> None:
    job = job_of(layout={"pp": 2, "dp": 4, "tp": 2}, gpus_per_host=4, skew_ms=1500.0, drift_ppm=50.0, chunks=1)
    store, attempt = open_simulated(tmp_path, job, ALL)
    clocks, found = HostClocks.of(job), load_clocks(store, attempt)
    for true_ns in np.linspace(job.start_ns, attempt.end_ns or 0, 5).astype(np.int64)[1:-1].tolist():
        for host in range(1, job.grid.hosts):
            name = job.host_name(host)
            shown = int(clocks.recorded_ns(np.array([true_ns]), np.array([host]))[0])
            uncertainty = found.uncertainty_ns(job.host_name(0), name, shown)
            assert uncertainty is not None
            assert abs(found.aligned_ns(name, shown) - true_ns) <= uncertainty < MS


def test_true_offsets_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    job = job_of(skew_ms=1500.0, drift_ppm=20.0, steps=3)
    store, attempt = open_simulated(tmp_path, job, Recording(span_ranks=None, clock_offsets=True))
    ends = """SELECT max(start_ns + duration_ns) - min(start_ns + duration_ns) AS spread FROM {view}
              WHERE "group" IS NOT NULL GROUP BY "group", sequence"""
    raw = store.query(ends.format(view="events"), attempt=attempt)["spread"].to_numpy()
    aligned = store.query(ends.format(view="events_aligned"), attempt=attempt)["spread"].to_numpy()
    assert raw.max() > 100 * MS
    latest = 1e3 * BUILTIN[COMPLETION].span[-1]
    assert aligned.max() <= latest + 40_000  # a duration is the host clock's too, and drifts


def test_spans_of_chosen_ranks_and_steps(whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path) -> None:
    everything, of_everything, job = whole
    store, attempt = open_simulated(tmp_path, job, Recording(span_ranks=(1, 6), span_steps=(9, 12)))
    sql = "SELECT * EXCLUDE (run, attempt) FROM events WHERE rank IN (1, 6) AND step BETWEEN 9 AND 12 ORDER BY ALL"
    chosen = store.query("SELECT * EXCLUDE (run, attempt) FROM events ORDER BY ALL", attempt=attempt)
    assert chosen.to_pylist() == everything.query(sql, attempt=of_everything).to_pylist()
    assert chosen.num_rows > 500
    for rank in (1, 6):  # one of each stage: their spans come in files of their own
        order = store.query("SELECT step, start_ns FROM events WHERE rank = ?", [rank], attempt=attempt).to_pylist()
        rows = [tuple(row.values()) for row in order]
        assert rows == sorted(rows)


def test_equal_seeds_give_equal_stores(whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path) -> None:
    store, attempt, job = whole
    again, other = open_simulated(tmp_path, job, Recording())
    sql = "SELECT * EXCLUDE (run, attempt) FROM rank_windows ORDER BY ALL"
    assert again.query(sql, attempt=other).equals(store.query(sql, attempt=attempt))


def test_a_fault_is_found_from_rollups_alone_and_its_truth_is_kept(tmp_path: Path) -> None:
    job = job_of(layout={"pp": 2, "dp": 8, "tp": 2}, steps=150, chunks=1)
    fault = parse_fault("slow-gpu:rank=9:factor=1.4:steps=60-")
    store, attempt = open_simulated(tmp_path, job, Recording(), faults=[fault])
    verdict = find_stragglers(store, attempt)
    assert [culprit.ranks for culprit in verdict.culprits] == [(9,)]
    (row,) = store.read("faults", attempt).to_pylist()
    assert (row["kind"], row["ranks"], row["factor"], row["first_step"]) == ("slow-gpu", [9], 1.4, 60)
    begin = store.query("SELECT min(start_ns) AS n FROM steps WHERE step = 60", attempt=attempt).to_pylist()[0]["n"]
    assert abs(row["first_ns"] - begin) < 20 * MS


def test_steps_before_a_hang_are_simulated(tmp_path: Path) -> None:
    job = job_of(chunks=1)
    fault = parse_fault("host-stuck:rank=5:step=12")
    store, attempt = open_simulated(tmp_path, job, ALL, faults=[fault])
    assert attempt.end_ns is None
    ends = "SELECT segment_name, max(step) AS n FROM spans GROUP BY 1"
    assert {row["n"] for row in store.query(ends, attempt=attempt).to_pylist()} == {6, 9, 11}  # gc, checkpoint, others
    assert store.query("SELECT max(step) AS n FROM steps", attempt=attempt).to_pylist() == [{"n": 11}]
    assert store.read("faults", attempt)["kind"].to_pylist() == ["host-stuck"]
    beat = store.query("SELECT min(moment_ns) AS n FROM heartbeats WHERE rank = 5", attempt=attempt).to_pylist()[0]["n"]
    end = store.query("SELECT max(start_ns + duration_ns) AS n FROM steps WHERE rank = 5", attempt=attempt)
    assert beat == end["n"].to_pylist()[0]


def test_a_resumed_job_begins_at_its_step_and_repeats_it_alike(tmp_path: Path) -> None:
    job, resumed = job_of(run="whole"), job_of(run="resumed", first_step=13, steps=12, attempt=1)
    simulate(job, tmp_path, ALL)
    store, _ = open_simulated(tmp_path, resumed, ALL)
    first, again = store.attempt("whole"), store.attempt("resumed", 1)
    expected = " UNION ALL ".join(EVENTS.format(length=length) for length in (10, 100, 1000))
    assert store.query(f"({WINDOWS}) EXCEPT ({expected})", attempt=again).num_rows == 0
    own = "SELECT rank, segment, step, self_ns FROM spans WHERE kind = 'compute' AND step > 13 ORDER BY ALL"
    assert store.query(own, attempt=again).equals(store.query(own, attempt=first))


def test_progress_rises_to_its_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    simulate(job_of(layout={"dp": 300}, steps=120, chunks=1), tmp_path, Recording(span_ranks=(1,)),
             progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert len(seen) >= 6


def test_a_run_is_not_written_twice(tmp_path: Path) -> None:
    job = job_of(steps=2)
    simulate(job, tmp_path)
    with pytest.raises(UsageError, match="has a run 'simulated' already"):
        simulate(job, tmp_path)
    simulate(job_of(steps=2, run="another"), tmp_path)
    assert {attempt.run for attempt in Store(tmp_path).attempts()} == {"simulated", "another"}


@pytest.mark.parametrize(
    ("recording", "faults", "sentence"),
    [
        (Recording(span_ranks=(8,)), [], "ranks 0 to 7"),
        (Recording(span_ranks=(1,), span_steps=(20, 30)), [], None),
        (Recording(span_ranks=(1,), span_steps=(25, 30)), [], "steps 0 to 24"),
        (Recording(), ["slow-gpu:rank=99:factor=2"], "99"),
        (Recording(), ["dead:rank=1:step=3", "dead:rank=2:step=3"], "both make the job hang"),
    ],
)
def test_what_does_not_fit_is_refused(
    recording: Recording, faults: list[str], sentence: str | None, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"faults": [parse_fault(text) for text in faults]}
    if sentence is None:
        simulate(job_of(), tmp_path, recording, **arguments)
        return
    with pytest.raises(UsageError, match=sentence):
        simulate(job_of(), tmp_path, recording, **arguments)
