"""The agent with ranks in this process: tables, heartbeats, stalls, quota, full disks, strangers in the spool."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.collectors.agent.agent import Agent, AgentSettings, run_agent
from megascope.collectors.drains.attempt import AttemptDrain
from megascope.collectors.reading.store import Store
from megascope.collectors.spool import rank_metadata
from megascope.collectors.writing import writer
from megascope.profiler.box.box import RECORD_BYTES
from megascope.profiler.errors import MegascopeError
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology, group_id
from support.collecting import collective, drain_all, newest_attempt, read_table

Open = Callable[..., Recorder]


def test_everything_a_rank_tells_is_in_its_table(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    rank = recorder(rank=0, world_size=1)
    rank.topology(Topology.of(dp=1), 0)
    rank.configuration({"lr": 0.1})
    rank.schedule([
        {"stage": 0, "position": 0, "action": "forward", "chunk": 0, "microbatch": 0, "depends_on": []},
        {"stage": 0, "position": 1, "action": "backward", "chunk": 0, "microbatch": 0, "depends_on": [[0, 0]]},
    ])  # fmt: skip
    before_ns = time.time_ns()
    rank.fault({"fault": "slow rank", "kind": "slow", "ranks": [0], "factor": 1.5, "first_ns": time.monotonic_ns()})
    forward = rank.segment("forward")
    for step in range(3):
        rank.step(step)
        with rank.span(forward, microbatch=1, chunk=0):
            collective(rank, step + 1)
        rank.step_metrics(step, loss=1.0 + step, tokens=128)
    rank.close("finished")
    drain_all(agent())
    found = newest_attempt(store_root)
    assert (found.layout, found.world_size, found.configuration) == ({"dp": 1}, 1, {"lr": 0.1})
    assert found.exit_reason == "finished"
    assert found.start_ns is not None
    assert found.end_ns is not None
    assert found.start_ns <= found.end_ns <= time.time_ns()
    spans = read_table(store_root, "spans", where="segment_name = 'forward'")
    assert [(s["step"], s["microbatch"], s["chunk"], s["kind"], s["dp"]) for s in spans] == [
        (step, 1, 0, "compute", 0) for step in range(3)
    ]
    assert all(s["start_ns"] >= before_ns - 10**6 and s["self_ns"] <= s["duration_ns"] for s in spans)
    inner = read_table(store_root, "spans", where="segment_name = 'dp_all_reduce'")
    assert [(s["sequence"], s["size_bytes"], s["group"], s["parent"]) for s in inner] == [
        (step + 1, 64, group_id("dp", (0, 1)), spans[0]["segment"]) for step in range(3)
    ]
    assert [(s["step"], s["loss"], s["tokens"]) for s in read_table(store_root, "steps")] == [
        (step, 1.0 + step, 128) for step in range(3)
    ]
    schedule = {row["position"]: row for row in read_table(store_root, "schedule")}
    assert schedule[1]["depends_on"] == [{"stage": 0, "position": 0}]
    (fault,) = read_table(store_root, "faults")
    assert (fault["kind"], fault["ranks"], fault["factor"]) == ("slow", [0], 1.5)
    assert abs(fault["first_ns"] - before_ns) < 10**9
    (offset,) = read_table(store_root, "clock_offsets")
    assert (offset["host"], offset["offset_ns"], offset["drift_ppb"]) == (socket.gethostname(), 0, 0.0)
    assert offset["uncertainty_ns"] >= 1
    (place,) = read_table(store_root, "ranks")
    assert (place["host"], place["pid"], place["dp"]) == (socket.gethostname(), os.getpid(), 0)
    assert not list(spool.rglob("*.box"))


def test_heartbeats_show_what_is_in_flight(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank = recorder(world_size=2)
    watcher = agent(heartbeat_s=0.0)
    rank.step(4)
    forward = rank.begin(rank.segment("forward"), 2)
    collective(rank, 1)
    stuck = collective(rank, 2, wait=False)
    watcher.poll(flush=True)
    beat = read_table(store_root, "heartbeats")[-1]
    assert [(f["segment"], f["sequence"], f["microbatch"]) for f in beat["in_flight"]] == [
        ("forward", None, 2), ("dp_all_reduce", 2, None),
    ]  # fmt: skip
    assert all(0 <= beat["moment_ns"] - f["begun_ns"] < 10**10 for f in beat["in_flight"])
    assert beat["progress"] == [{"group": group_id("dp", (0, 1)), "issued": 2, "completed": 1}]
    assert (beat["step"], beat["spans"], beat["lost_spans"]) == (4, 1, 0)
    assert beat["process_state"] in {"running", "sleeping", "disk-sleep"}
    assert beat["cpu_ns"] > 0
    rank.end_async(stuck)
    watcher.poll(flush=True)
    assert [f["segment"] for f in read_table(store_root, "heartbeats")[-1]["in_flight"]] == ["forward"]
    rank.end(forward)


def test_spans_that_were_overwritten_are_counted(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank = recorder(records=512)
    segment = rank.segment("forward")
    watcher = agent(heartbeat_s=0.0)
    watcher.poll(flush=True)
    for _ in range(2000):
        with rank.span(segment):
            pass
    watcher.poll(flush=True)
    with rank.span(segment):
        pass
    rank.close("finished")
    drain_all(watcher)
    beat = read_table(store_root, "heartbeats")[-1]
    stored = len(read_table(store_root, "events"))
    assert beat["spans"] == 2001
    assert beat["process_state"] == "exited"
    assert 500 <= stored <= 513
    assert stored + beat["lost_spans"] == 2001


def test_a_stall_is_an_incident_with_two_snapshots_until_it_moves_again(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.drains.attempt.SNAPSHOT_GAP_S", 0.2)
    ranks = [recorder(rank=rank, world_size=2) for rank in range(2)]
    watcher = agent(stall_s=0.3)
    for step in range(3, 8):  # a job that is past its warm-up: one that starts gets more time
        ranks[0].step(step)
        watcher.poll()
    stuck = collective(ranks[0], 1, wait=False)
    watcher.poll(flush=True)
    assert read_table(store_root, "incidents") == []
    for _ in range(9):
        time.sleep(0.1)
        watcher.poll(flush=True)
    (incident,) = read_table(store_root, "incidents")
    assert (incident["kind"], incident["closed_ns"]) == ("stalled", None)
    flights = read_table(store_root, "in_flight")
    assert sorted(f["snapshot"] for f in flights) == [1, 2]
    assert {(f["rank"], f["segment"], f["sequence"], f["step"], f["source"]) for f in flights} == {
        (0, "dp_all_reduce", 1, 7, "own")
    }
    assert len({f["begun_ns"] for f in flights}) == 1
    ranks[0].end_async(stuck)
    watcher.poll(flush=True)
    (incident,) = read_table(store_root, "incidents")
    assert incident["closed_ns"] > incident["opened_ns"]


def test_work_that_goes_on_is_no_stall(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    ranks = [recorder(rank=rank, world_size=2) for rank in range(2)]
    watcher = agent(stall_s=0.3)
    collective(ranks[0], 1, wait=False)
    for number in range(8):
        time.sleep(0.1)
        collective(ranks[1], number + 1)
        watcher.poll(flush=True)
    assert read_table(store_root, "incidents") == []


def test_idle_ranks_are_no_stall(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank = recorder()
    watcher = agent(stall_s=0.1)
    collective(rank, 1)
    for _ in range(3):
        time.sleep(0.1)
        watcher.poll(flush=True)
    assert read_table(store_root, "incidents") == []


def test_beyond_the_quota_spans_are_dropped_and_counted_and_small_tables_go_on(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = recorder()
    watcher = agent(quota_bytes=1000, heartbeat_s=0.0)
    rank.step(0)
    collective(rank, 1)
    watcher.poll(flush=True)
    rank.step(1)
    for number in range(10):
        collective(rank, number + 2)
    watcher.poll(flush=True)
    watcher.poll(flush=True)
    rank.close("finished")
    drain_all(watcher)
    assert len(read_table(store_root, "events")) <= 1
    assert read_table(store_root, "heartbeats")[-1]["lost_spans"] >= 10
    assert [row["step"] for row in read_table(store_root, "steps")] == [0, 1]
    assert caplog.text.count("more than its quota") == 1
    assert newest_attempt(store_root).exit_reason == "finished"


def test_a_full_disk_loses_nothing(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    rank = recorder()
    watcher = agent()
    collective(rank, 1)
    watcher.poll(flush=True)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_durably", full)
        for number in range(5):
            rank.step(number)
            collective(rank, number + 2)
            watcher.poll(flush=True)
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]
    assert caplog.text.count("cannot be written") == 1
    rank.close("finished")
    drain_all(watcher)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in read_table(store_root, "steps")] == [0, 1, 2, 3, 4]


def test_a_store_that_cannot_be_made_yet_is_waited_for(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    store_root.parent.mkdir(exist_ok=True)
    store_root.write_text("in the way")
    rank = recorder()
    watcher = agent()
    collective(rank, 1)
    rank.close("finished")
    watcher.poll(flush=True)
    assert list(spool.rglob("*.box"))
    store_root.unlink()
    drain_all(watcher)
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]


def test_memory_stays_bounded_while_the_store_is_away(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.drains.run.MOST_PENDING_SPANS", 50)
    rank = recorder(records=4096)
    watcher = agent()
    watcher.poll(flush=True)
    with monkeypatch.context() as patch:
        patch.setattr(writer.TableWriter, "commit", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
        for number in range(10):
            for each in range(20):
                collective(rank, 20 * number + each + 1)
            watcher.poll(flush=True)
        pending = sum(run.pending_spans for run in watcher.runs.values())
        assert 50 <= pending < 80
    rank.close("finished")
    drain_all(watcher)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == list(range(1, 201))


def test_a_backlog_is_taken_in_pieces(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ranks left while no agent ran is more than one poll may take into memory: every rank has its share."""
    monkeypatch.setattr("megascope.collectors.drains.run.MOST_SPANS_AT_ONCE", 50)
    ranks = [recorder(rank=rank, world_size=2) for rank in range(2)]
    for number in range(200):
        collective(ranks[0], number + 1)
    for number in range(30):
        collective(ranks[1], number + 1)
    for rank in ranks:
        rank.close("finished")
    watcher = agent()
    seen: list[tuple[int, int]] = []
    while not seen or watcher.is_behind:
        watcher.poll()
        assert not any(run.pending_spans for run in watcher.runs.values()), "what was taken is committed at once"
        stored = [row["rank"] for row in read_table(store_root, "events")]
        seen.append((stored.count(0), stored.count(1)))
    assert seen == [(25 * poll, min(25 * poll, 30)) for poll in range(1, 9)]
    drain_all(watcher)
    assert len(read_table(store_root, "events")) == 230
    assert newest_attempt(store_root).exit_reason == "finished"


def test_strangers_in_the_spool_harm_nothing(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("megascope.collectors.drains.attempt._UNREADABLE_AFTER_NS", 0)
    rank = recorder()
    folder = spool / "run" / "0"
    (folder / "rank-00001.box").write_bytes(b"no box")
    (folder / "rank-00002.box").write_bytes(b"\0" * 5000)
    (folder / "notes.txt").write_text("hello")
    (spool / "run" / "not-a-number").mkdir()
    (spool / "file").touch()
    with (folder / "rank-00000.meta.jsonl").open("a") as file:
        file.write('not json\n{"kind": "segment"}\n{"kind": "nonsense"}\n[1]\n{"kind": "step", "step": "x"}\n')
    collective(rank, 1)
    rank.close("finished")
    _end_of = agent()
    for _ in range(3):
        _end_of.poll(flush=True)
        time.sleep(0.01)
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]
    assert sorted(path.name for path in folder.iterdir()) == [
        "clock.json", "notes.txt", "rank-00001.box", "rank-00002.box",
    ]  # fmt: skip
    assert caplog.text.count("left where it is") == 2


def test_two_ranks_that_claim_one_place_both_count(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    twins = [recorder(rank=0), recorder(rank=0)]
    for number, twin in enumerate(twins):
        collective(twin, number + 1)
        twin.close("finished")
    drain_all(agent())
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2]


def test_a_box_made_anew_under_the_same_name_is_read_from_its_start(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    """The positions of an earlier box do not hold for one that took its name."""
    first = recorder(world_size=2)
    collective(first, 1)
    watcher = agent()
    watcher.poll(flush=True)
    watcher.close()
    for path in (spool / "run" / "0").iterdir():
        path.unlink()
    second = recorder(world_size=2)
    collective(second, 2)
    agent().poll(flush=True)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2]


@pytest.mark.parametrize("removed", [(), (0,), (0, 1)])
def test_an_agent_that_died_while_it_deleted_the_spool_is_succeeded(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch,
    removed: tuple[int, ...],
) -> None:  # fmt: skip
    """All was committed; some boxes are gone: nothing may be read again, and no table be written anew from the rest."""
    for rank in range(2):
        each = recorder(rank=rank, world_size=2)
        collective(each, 1)
        each.close("finished")
    first = agent()
    with monkeypatch.context() as patch:
        patch.setattr(AttemptDrain, "remove_spool", AttemptDrain.close)
        first.poll(flush=True)
    assert first.runs["run"].attempts == {}
    first.close()
    for rank in removed:
        (spool / "run" / "0" / f"rank-{rank:05d}.box").unlink()
    second = agent()
    for _ in range(2):
        second.poll(flush=True)
    assert not list(spool.rglob("*.box"))
    assert [row["rank"] for row in read_table(store_root, "ranks")] == [0, 1]
    assert [row["rank"] for row in sorted(read_table(store_root, "events"), key=lambda row: row["rank"])] == [0, 1]
    assert newest_attempt(store_root).exit_reason == "finished"


def test_a_rank_that_comes_after_the_end_is_added(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    watcher = agent()
    for rank in range(2):
        each = recorder(rank=0, world_size=1)
        each.topology(Topology.of(dp=1), 0)
        collective(each, rank + 1)
        each.close("finished")
        drain_all(watcher)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2]
    assert len(read_table(store_root, "ranks")) == 1


def test_a_span_that_was_written_but_still_has_its_slot_counts_once(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    """A kill may come between writing the span and giving its slot free."""
    rank = recorder()
    span = collective(rank, 1, wait=False)
    rank.end_async(span)
    place = slice(span.slot, span.slot + RECORD_BYTES)
    in_slot = rank._map[place]
    rank.wait_begin(span)
    rank.wait_end(span)
    rank._map[place] = in_slot
    other = collective(rank, 2, wait=False)
    rank.end_async(other)
    rank.close("finished")
    drain_all(agent())
    events = sorted(read_table(store_root, "events"), key=lambda row: row["sequence"])
    assert [(row["sequence"], row["exposed_ns"] is None) for row in events] == [(1, False), (2, True)]


def test_runs_are_kept_apart_and_can_be_chosen(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    for attempt in range(2):
        rank = recorder(run="a", attempt=attempt)
        collective(rank, attempt + 1)
        rank.close("finished")
    chosen = agent(run="a", attempt=1)
    for _ in range(2):
        chosen.poll(flush=True)
    with Store(store_root) as store:
        assert [(a.run, a.attempt) for a in store.attempts()] == [("a", 1)]
    assert (spool / "a" / "0").exists()
    chosen.close()
    drain_all(agent())
    with Store(store_root) as store:
        assert sorted((a.run, a.attempt) for a in store.attempts()) == [("a", 0), ("a", 1)]


def test_a_rank_on_another_host_is_never_declared_dead(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process cannot be seen from here: only its box tells whether it lives."""
    rank = recorder()
    collective(rank, 1)
    monkeypatch.setattr(rank_metadata, "host_name", lambda: "x")
    watcher = agent(heartbeat_s=0.0, idle_exit_s=0.2)
    watcher.poll(flush=True)
    beat = read_table(store_root, "heartbeats")[-1]
    assert (beat["process_state"], beat["cpu_ns"]) == (None, None)
    assert newest_attempt(store_root).end_ns is None
    rank.close("finished")
    drain_all(watcher)


def test_health_is_sampled_while_something_runs(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank = recorder()
    collective(rank, 1)
    agent().poll(flush=True)
    metrics = {row["metric"] for row in read_table(store_root, "health")}
    assert {"cpu_percent", "memory_percent"} <= metrics


def test_a_spool_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MegascopeError, match="spool"):
        run_agent(AgentSettings(spool=tmp_path / "file" / "spool", store=tmp_path / "store"))


@pytest.mark.timeout(60)
def test_the_catalog_is_written_at_thedrain_all(recorder: Open, spool: Path, store_root: Path) -> None:
    rank = recorder()
    collective(rank, 1)
    rank.close("finished")
    settings = AgentSettings(spool=spool, store=store_root, poll_s=0.02, idle_exit_s=0.1)
    assert run_agent(settings, threading.Event()) == 0
    assert (store_root / "catalog.duckdb").exists()
    assert not spool.exists(), "the agent leaves nothing of its own behind"


@pytest.mark.timeout(60)
def test_a_log_that_says_something_stays(recorder: Open, spool: Path, store_root: Path) -> None:
    recorder().close("finished")
    (spool / "agent.log").write_text("a warning\n")
    settings = AgentSettings(spool=spool, store=store_root, poll_s=0.02, idle_exit_s=0.1)
    assert run_agent(settings, threading.Event()) == 0
    assert [path.name for path in spool.iterdir()] == ["agent.log"]


def test_an_exception_is_a_crash_with_its_text(recorder: Open, agent: Callable[..., Agent], store_root: Path) -> None:
    rank = recorder()
    rank.begin(rank.segment("backward"))
    rank.exception(ValueError("bad batch"))
    rank.close("crashed")
    drain_all(agent())
    assert newest_attempt(store_root).exit_reason == "crashed"
    (incident,) = read_table(store_root, "incidents")
    assert incident["kind"] == "rank-died"
    actions = json.loads(incident["actions"])
    assert (actions[0]["rank"], actions[0]["type"], actions[0]["message"]) == (0, "ValueError", "bad batch")
    assert [f["segment"] for f in read_table(store_root, "in_flight")] == ["backward"]


def test_interrupted_ranks_make_an_interrupted_attempt(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    for rank, reason in enumerate(("finished", "interrupted")):
        each = recorder(rank=rank, world_size=2)
        collective(each, 1)
        each.close(reason)
    drain_all(agent())
    assert newest_attempt(store_root).exit_reason == "interrupted"
    assert read_table(store_root, "incidents") == []


class Clock:
    """Stands for the module ``time`` in the agent: a pause passes at once, and ``acts`` happen once they are due."""

    def __init__(self, acts: list[tuple[float, Callable[[], None]]]) -> None:
        self.passed_s, self._acts = 0.0, acts

    def monotonic(self) -> float:
        return self.passed_s

    def sleep(self, pause_s: float) -> None:
        self.passed_s += pause_s
        while self._acts and self._acts[0][0] <= self.passed_s:
            self._acts.pop(0)[1]()


@pytest.fixture
def stopped(
    recorder: Open, agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[tuple[float, Callable[[Recorder], None]]]], float]:
    """Tells an agent to end while a rank of it is alive; seconds until it has."""

    def stop(acts: list[tuple[float, Callable[[Recorder], None]]]) -> float:
        rank = recorder()
        collective(rank, 1)
        clock = Clock([(moment, lambda act=act: act(rank)) for moment, act in acts])  # type: ignore[misc]
        monkeypatch.setattr("megascope.collectors.agent.agent.time", clock)
        its_agent = agent()
        its_agent.poll()
        its_agent._stop.set()
        its_agent.run()
        return clock.passed_s

    return stop


def test_an_agent_that_is_to_end_waits_for_what_a_living_rank_still_records(
    stopped: Callable[..., float], store_root: Path
) -> None:
    took_s = stopped([(8.0, lambda rank: collective(rank, 2)), (9.0, lambda rank: rank.close("finished"))])
    assert 9.0 <= took_s < 10.0
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1, 2]
    assert newest_attempt(store_root).exit_reason == "finished"


def test_an_agent_that_is_to_end_does_not_wait_for_ever(stopped: Callable[..., float], store_root: Path) -> None:
    assert 10.0 <= stopped([]) < 10.5
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]


def test_an_agent_that_is_to_end_does_not_wait_for_ranks_that_have_ended(stopped: Callable[..., float]) -> None:
    assert stopped([(0.0, lambda rank: rank.close("finished"))]) < 0.5
