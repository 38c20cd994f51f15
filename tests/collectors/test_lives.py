"""Beginnings and ends: who counts as dead, which agent looks at which box, and by which clock all of it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.collectors.agent.agent import Agent, AgentSettings, run_agent
from megascope.collectors.drains import attempt as attempt_drain
from megascope.collectors.drains.attempt import AttemptDrain
from megascope.collectors.drains.attempt_tables import _fault_rows
from megascope.collectors.hardware.watch import HardwareWatch
from megascope.collectors.reading.store import Store
from megascope.collectors.spool import rank_drain, rank_metadata
from megascope.collectors.spool.processes import ProcessSample, ProcessState
from megascope.collectors.spool.rank_metadata import RankMetadata
from megascope.collectors.storage.locks import FileLock
from megascope.profiler.recorder import Recorder
from support.collecting import collective, drain_all, newest_attempt, read_table

Open = Callable[..., Recorder]


class _Watch:
    """Rank 0's process looks gone, as it does from another namespace of process ids; others live."""

    def __init__(self, _: int, box: Path) -> None:
        self._state = ProcessState.GONE if box.name == "rank-00000.box" else ProcessState.RUNNING

    def sample(self) -> ProcessSample:
        return ProcessSample(self._state, None)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of rank 0 looks gone, though it lives."""
    monkeypatch.setattr(rank_drain, "ProcessWatch", _Watch)
    monkeypatch.setattr(rank_drain, "QUIET_NS", 20_000_000)


# -- death ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gone")
def test_a_rank_with_process_ids_of_its_own_is_never_declared_dead(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_drain, "pid_namespace", lambda: 1)
    rank = recorder()
    watcher = agent(heartbeat_s=0.0)
    for number in range(3):
        collective(rank, number + 1)
        time.sleep(0.03)
        watcher.poll(flush=True)
        watcher.poll(flush=True)
    assert {row["process_state"] for row in read_table(store_root, "heartbeats")} == {None}
    assert read_table(store_root, "incidents") == []
    rank.close("finished")
    drain_all(watcher)
    assert newest_attempt(store_root).exit_reason == "finished"


def test_the_hardware_under_ranks_in_other_containers_is_sampled(
    recorder: Open, agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as their boxes move; not under those of another host, whose spool is shared."""
    seen: list[int] = []
    monkeypatch.setattr(HardwareWatch, "poll", lambda _, attempts: seen.append(len(attempts)))
    monkeypatch.setattr(rank_drain, "pid_namespace", lambda: 1)
    rank, watcher = recorder(), agent()
    watcher.poll()
    with monkeypatch.context() as patch:
        patch.setattr(rank_metadata, "host_name", lambda: "another")
        watcher.poll()
    with monkeypatch.context() as patch:
        patch.setattr(rank_drain, "RESTING_NS", 0)
        watcher.poll()
    rank.close("finished")
    watcher.poll()
    assert seen == [1, 0, 0, 0]


@pytest.mark.usefixtures("gone")
def test_a_rank_that_cannot_be_seen_and_is_silent_for_hours_is_dead(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_drain, "pid_namespace", lambda: 1)
    monkeypatch.setattr(rank_drain, "SILENT_NS", 50_000_000)
    rank = recorder()
    collective(rank, 1)
    watcher = agent()
    watcher.poll(flush=True)
    time.sleep(0.06)
    drain_all(watcher)
    assert newest_attempt(store_root).exit_reason == "crashed"


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_rank_that_was_taken_for_dead_and_goes_on_is_read_again(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, restarted: bool
) -> None:
    """One of two ranks looks dead, with an operation that is done and not waited for: nothing is lost or doubled."""
    rank, other = recorder(rank=0, world_size=2), recorder(rank=1, world_size=2)
    watcher = agent(heartbeat_s=0.0)
    collective(rank, 1)
    pending = collective(rank, 2, wait=False)
    rank.end_async(pending)
    collective(other, 1)
    watcher.poll(flush=True)
    time.sleep(0.03)
    watcher.poll(flush=True)
    assert [row["kind"] for row in read_table(store_root, "incidents")] == ["rank-died"]
    if restarted:
        watcher.close()
        watcher = agent(heartbeat_s=0.0)
    rank.wait_begin(pending)
    rank.wait_end(pending)
    collective(rank, 3)
    watcher.poll(flush=True)
    (incident,) = read_table(store_root, "incidents")
    actions = [action["action"] for action in json.loads(incident["actions"]) if action.get("rank") == 0]
    assert actions == ["took-for-dead", "came-back"]
    assert incident["closed_ns"] is not None
    time.sleep(0.03)
    watcher.poll(flush=True)
    for each in (other, rank):
        collective(each, 4)
        each.close("finished")
    drain_all(watcher)
    events = read_table(store_root, "events")
    assert sorted(row["sequence"] for row in events if row["rank"] == 0) == [1, 2, 3, 4]
    assert newest_attempt(store_root).exit_reason == "finished"
    assert not list(spool.rglob("*.box"))


@pytest.mark.usefixtures("gone")
def test_a_box_that_still_moves_is_not_deleted(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = recorder()
    collective(rank, 1)
    watcher = agent()
    watcher.poll(flush=True)
    time.sleep(0.03)
    committed = AttemptDrain.committed

    def commit_and_move(attempt: AttemptDrain) -> None:
        committed(attempt)
        if attempt.is_over and not attempt.ranks[0].came_back and not rank.metadata_lost:
            rank.metadata_lost = 1
            collective(rank, 2)

    monkeypatch.setattr(AttemptDrain, "committed", commit_and_move)
    watcher.poll(flush=True)
    assert list(watcher.runs["run"].attempts) == [0]
    rank.close("finished")
    drain_all(watcher)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2]
    assert newest_attempt(store_root).exit_reason == "finished"


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("finished", "finished"), "finished"),
        (("finished", "exited"), "exited"),
        (("exited", "interrupted"), "interrupted"),
        (("exception", "interrupted"), "crashed"),
        (("crashed", "finished"), "crashed"),
        (("finished", "interrupted"), "interrupted"),
    ],
)
def test_the_worst_goodbye_counts(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, reasons: tuple[str, str], expected: str
) -> None:
    for rank, reason in enumerate(reasons):
        recorder(rank=rank, world_size=2).close(reason)
    drain_all(agent())
    assert newest_attempt(store_root).exit_reason == expected


# -- agents -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_a_box_that_comes_while_the_agent_ends_is_not_left_alone(
    recorder: Open, spool: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first agent is past its last look, and still has the lock."""
    first = recorder()
    collective(first, 1)
    first.close("finished")
    close = Agent.close

    def late(agent: Agent) -> None:
        if len(late_ranks) == 0:
            late_ranks.append(rank := recorder(attempt=1))
            collective(rank, 2)
            rank.close("finished")
        close(agent)

    late_ranks: list[Recorder] = []
    monkeypatch.setattr(Agent, "close", late)
    settings = AgentSettings(spool=spool, store=store_root, poll_s=0.02, idle_exit_s=0.1)
    assert run_agent(settings, threading.Event()) == 0
    with Store(store_root) as store:
        assert [(a.attempt, a.exit_reason) for a in store.attempts()] == [(0, "finished"), (1, "finished")]
    assert not list(spool.rglob("*.box"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", [None, "run"])
def test_a_second_agent_waits_for_the_first_to_end(
    recorder: Open, spool: Path, store_root: Path, run: str | None
) -> None:
    rank = recorder()
    collective(rank, 1)
    rank.close("finished")
    held = FileLock.acquire(spool / ("agent.lock" if run is None else f"{run}.run.lock"))
    assert held is not None
    timer = threading.Timer(0.5, held.release)
    timer.start()
    settings = AgentSettings(spool=spool, store=store_root, run=run, poll_s=0.02, idle_exit_s=0.7)
    assert run_agent(settings, threading.Event()) == 0
    timer.join()
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]


@pytest.mark.timeout(60)
def test_a_box_that_nobody_can_read_does_not_keep_the_agent(recorder: Open, spool: Path, store_root: Path) -> None:
    rank = recorder()
    collective(rank, 1)
    rank.close("finished")
    strange = spool / "run" / "7"
    strange.mkdir()
    (strange / "rank-00000.box").write_bytes(b"x" * 10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_drain, "_UNREADABLE_AFTER_NS", 10_000_000)
        settings = AgentSettings(spool=spool, store=store_root, poll_s=0.02, idle_exit_s=0.1)
        assert run_agent(settings, threading.Event()) == 0
    assert newest_attempt(store_root).exit_reason == "finished"


@pytest.mark.timeout(60)
def test_an_agent_that_may_end_when_idle_waits_for_a_store_that_cannot_be_written(
    recorder: Open, spool: Path, store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_root.write_text("in the way")
    rank = recorder()
    collective(rank, 1)
    rank.close("finished")
    settings = AgentSettings(spool=spool, store=store_root, poll_s=0.02, idle_exit_s=0.1)
    agent = threading.Thread(target=run_agent, args=(settings, threading.Event()))
    agent.start()
    agent.join(0.6)
    assert agent.is_alive()
    assert caplog.text.count("waits for its store") == 1
    store_root.unlink()
    agent.join(30)
    assert not agent.is_alive()
    assert [row["sequence"] for row in read_table(store_root, "events")] == [1]


def test_a_writer_that_is_held_for_a_moment_is_tried_again(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    """A sweep takes the locks of writers that are gone."""
    rank = recorder()
    collective(rank, 1)
    first = agent()
    first.poll(flush=True)
    first.close()
    held = FileLock.acquire(next((store_root / "_manifests").iterdir()) / "lock")
    assert held is not None
    second = agent()
    second.poll(flush=True)
    held.release()
    rank.close("finished")
    drain_all(second)
    assert newest_attempt(store_root).exit_reason == "finished"


def test_the_catalog_is_written_only_when_something_changed(
    recorder: Open, agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    written, opened = [], []
    write, open_store = Store.write_catalog, Store

    def noted_write(store: Store) -> Path:
        written.append(store.version())
        return write(store)

    def noted_open(root: Path) -> Store:
        opened.append(root)
        return open_store(root)

    monkeypatch.setattr(Store, "write_catalog", noted_write)
    monkeypatch.setattr("megascope.collectors.agent.agent.Store", noted_open)
    rank = recorder()
    watcher = agent(catalog_s=0.0, flush_s=1e9, heartbeat_s=1e9, health_s=1e9)
    for number in range(2):
        collective(rank, number + 1)
        watcher.poll(flush=True)
        watcher._catalog_is_stale = True
        watcher.poll(flush=False)
    assert (len(written), len(opened)) == (2, 1)


# -- clocks -----------------------------------------------------------------------------------------------------


def test_a_stepping_wall_clock_changes_no_moment(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats, health, incidents and the gap between snapshots follow the clock of the spans."""
    monkeypatch.setattr(attempt_drain, "SNAPSHOT_GAP_S", 0.15)
    rank = recorder()
    before_ns = time.time_ns()
    watcher = agent(heartbeat_s=0.0, health_s=0.0, stall_s=0.05)
    for step in range(5):
        rank.step(step)
        watcher.poll()
    collective(rank, 1, wait=False)
    now, steps = time.time_ns, iter((7200 * 10**9, -7200 * 10**9) * 100)
    monkeypatch.setattr(time, "time_ns", lambda: now() + next(steps))
    for _ in range(6):
        watcher.poll(flush=True)
        time.sleep(0.05)
    watcher.poll(flush=True)
    monkeypatch.undo()
    after_ns = time.time_ns()
    moments = [row["moment_ns"] for table in ("heartbeats", "health") for row in read_table(store_root, table)]
    (incident,) = read_table(store_root, "incidents")
    actions = json.loads(incident["actions"])
    moments += [incident["opened_ns"], *(action["moment_ns"] for action in actions)]
    assert all(before_ns - 10**7 <= moment <= after_ns + 10**7 for moment in moments)
    looks = [action["moment_ns"] for action in actions if action["action"] == "snapshot"]
    assert len(looks) == 2
    assert 0.15e9 <= looks[1] - looks[0] <= 0.6e9


# -- what is counted --------------------------------------------------------------------------------------------


def test_heartbeats_tell_of_spans_without_slots_and_of_lost_metadata(
    recorder: Open, agent: Callable[..., Agent], store_root: Path
) -> None:
    rank = recorder()
    segment = rank.segment("forward")
    spans = [rank.begin(segment) for _ in range(70)]
    rank.step_metrics(0, loss="a word")
    watcher = agent(heartbeat_s=0.0)
    watcher.poll(flush=True)
    beat = read_table(store_root, "heartbeats")[-1]
    # 64 have a slot, and the innermost one is open in its ring.
    assert (beat["unslotted_spans"], beat["lost_metadata"], len(beat["in_flight"])) == (5, 1, 65)
    for span in reversed(spans):
        rank.end(span)


def test_what_began_just_now_has_its_name(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may be registered between the look at the metadata and the look at the slots."""
    rank = recorder()
    watcher = agent(heartbeat_s=0.0)
    watcher.poll(flush=True)
    drain = rank_drain.RankDrain.drain

    def drain_and_begin(box: rank_drain.RankDrain, most: int) -> int:
        count = drain(box, most)
        rank.begin(rank.segment("brand new"))
        return count

    monkeypatch.setattr(rank_drain.RankDrain, "drain", drain_and_begin)
    watcher.poll(flush=True)
    assert [f["segment"] for f in read_table(store_root, "heartbeats")[-1]["in_flight"]] == ["brand new"]


def test_a_fault_of_several_ranks_spans_all_their_moments() -> None:
    ranks = [RankMetadata(Path("rank-00000.box")), RankMetadata(Path("rank-00001.box"))]
    ranks[0].faults["slow"] = {"fault": "slow", "first_ns": 10, "last_ns": 90}
    ranks[1].faults["slow"] = {"fault": "slow", "first_ns": 20, "last_ns": None}
    assert _fault_rows(ranks) == [{"fault": "slow", "first_ns": 10, "last_ns": 90}]
