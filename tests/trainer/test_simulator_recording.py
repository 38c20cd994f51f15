"""What of a simulated job is kept: chosen spans, faults as the truth, steps before a hang; and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.errors import UsageError
from megascope.trainer.simulator import engine
from megascope.trainer.simulator.effects import FloatArray, IntArray
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.writing import Recording, simulate
from support.small_job import ALL, EVENTS, MS, WINDOWS, job_of, open_simulated


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Attempt, SimulatedJob]:
    """A job with right clocks, all of whose spans are kept."""
    job = job_of()
    return *open_simulated(tmp_path_factory.mktemp("whole"), job, ALL), job


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
    assert beat == end["n"].to_pylist()[0] - 10**9  # one look is from a second before the step of the hang


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
        (
            Recording(),
            ["dead:rank=1:step=9", "slow-gpu:rank=2:factor=2:steps=9-"],
            "begins in step 9",
        ),
        (Recording(), ["dead:rank=1:step=9", "slow-gpu:rank=2:factor=2:steps=8-"], None),
        (Recording(), ["dead:rank=1:step=9", "lost-heartbeats:rank=2:steps=1-8"], "those after the hang in step 9"),
        (Recording(span_ranks=(1,), span_steps=(9, 12)), ["dead:rank=1:step=9"], "hangs in step 9"),
        (Recording(span_ranks=(1,), span_steps=(8, 12)), ["dead:rank=1:step=9"], None),
        (Recording(heartbeat_s=float("inf")), [], "Heartbeats every inf seconds"),
        (Recording(heartbeat_s=float("nan")), [], "Heartbeats every nan seconds"),
        (Recording(heartbeat_s=1e-9), [], "Heartbeats every 1e-09 seconds"),
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


def test_a_run_that_another_writer_wrote_is_not_written_again(tmp_path: Path) -> None:
    with TableWriter(tmp_path, "agents") as writer:
        writer.write("runs", "simulated", 0, {"world_size": [1], "start_ns": [1]})
        writer.commit()
    with pytest.raises(UsageError, match="has a run 'simulated' already"):
        simulate(job_of(steps=2), tmp_path)
    simulate(job_of(steps=2, attempt=1), tmp_path)


def test_what_the_job_ran_is_what_is_kept_of_all(whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path) -> None:
    """Pauses are spans too."""
    store, attempt, job = whole
    done = simulate(job, tmp_path, ALL)
    kept = store.query("SELECT count(*) AS n FROM events", attempt=attempt)["n"].to_pylist()
    assert [done.spans] == [done.written_spans] == kept


def test_spans_do_not_depend_on_how_many_steps_are_computed_at_once(
    whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, of_everything, job = whole
    monkeypatch.setattr(engine, "PIECE_ELEMENTS", 4 * job.world_size * job.chunks)
    ran: list[int] = []
    run = engine.Engine.run

    def run_and_note(self: engine.Engine, index: IntArray) -> FloatArray:
        ran.append(len(index))
        return run(self, index)

    monkeypatch.setattr(engine.Engine, "run", run_and_note)
    store, attempt = open_simulated(tmp_path, job, ALL)
    assert max(ran[3:]) == 4  # after three pieces of ten steps or fewer: three steps, and one more
    sql = "SELECT * EXCLUDE (run, attempt) FROM events ORDER BY ALL"
    assert store.query(sql, attempt=attempt).equals(everything.query(sql, attempt=of_everything))


def test_faults_beside_a_hang_are_seen_and_have_their_moments(tmp_path: Path) -> None:
    faults = ["host-stuck:rank=5:step=12", "lost-heartbeats:rank=2", "slow-gpu:rank=1:factor=1.5:steps=4-20"]
    job = job_of(chunks=1)
    store, attempt = open_simulated(tmp_path, job, Recording(), faults=[parse_fault(text) for text in faults])
    rows = {row["kind"]: row for row in store.read("faults", attempt).to_pylist()}
    steps = store.query(
        "SELECT step, min(start_ns) AS begin, max(start_ns + duration_ns) AS last FROM steps GROUP BY 1 ORDER BY 1",
        attempt=attempt,
    ).to_pylist()
    assert abs(rows["slow-gpu"]["first_ns"] - steps[4]["begin"]) < 20 * MS
    assert abs(rows["slow-gpu"]["last_ns"] - steps[11]["last"]) < 20 * MS
    assert rows["lost-heartbeats"]["first_ns"] > steps[11]["last"]
    beats = store.query("SELECT rank, max(moment_ns) AS last FROM heartbeats GROUP BY 1", attempt=attempt).to_pylist()
    last = {row["rank"]: row["last"] for row in beats}
    assert last[2] < rows["lost-heartbeats"]["first_ns"] < last[5]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"skew_ms": float("inf")}, "skew_ms inf"),
        ({"drift_ppm": float("inf")}, "drift_ppm inf"),
        ({"drift_ppm": float("nan")}, "drift_ppm nan"),
        ({"skew_ms": -1.0}, "skew_ms -1.0"),
        ({"run": ""}, "run name '' cannot be used"),
        ({"run": ".."}, "run name '..' cannot be used"),
    ],
)
def test_a_job_that_cannot_be_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        job_of(**more)


def test_what_nobody_recorded_is_in_no_table_and_the_rest_as_it_was(
    whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path
) -> None:
    everything, of_everything, job = whole
    recording = Recording(span_ranks=None, leaves_out=frozenset({"optimizer"}))
    store, attempt = open_simulated(tmp_path, job, recording)
    rollups = "(SELECT w.*, s.name AS segment_name FROM rank_windows w JOIN segments s USING (segment))"
    for table in ("spans", rollups):
        sql = f"SELECT * EXCLUDE (run, attempt) FROM {table} WHERE segment_name <> 'optimizer' ORDER BY ALL"
        there = store.query(f"SELECT count(*) AS n FROM {table}", attempt=attempt)["n"][0].as_py()
        rows = store.query(sql, attempt=attempt)
        assert rows.num_rows == there > 0
        assert rows.equals(everything.query(sql, attempt=of_everything))
    assert "optimizer" not in store.read("segments", attempt)["name"].to_pylist()
    steps = "SELECT rank, step, duration_ns FROM steps ORDER BY ALL"
    assert store.query(steps, attempt=attempt).equals(everything.query(steps, attempt=of_everything))


def test_a_segment_that_no_job_has_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Segments garbage are to be left out"):
        simulate(job_of(), tmp_path / "store", Recording(leaves_out=frozenset({"garbage"})))
