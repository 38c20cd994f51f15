"""What `megascope watch` judges where no agent does is kept in the store, once; and it asks for stragglers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from megascope import watching
from megascope.collectors.alarms.alarms import AlarmSettings
from megascope.collectors.alarms.verdict_alarms import alarms_of_stragglers
from megascope.collectors.incidents import straggling, watched
from megascope.collectors.incidents.diagnosing import diagnosis_claim
from megascope.collectors.incidents.question import Answer
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology
from support.hang_now import looks
from support.hang_scenes import cascade
from support.hang_store import write_scene

NOBODY = AlarmSettings()


def silent_store(root: Path) -> Path:
    """A job whose rank 5 stands in its forward, for which all others wait; its agents fell silent a minute ago."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "forward")
    write_scene(root, looks(scene, age_s=60)).close()
    return root


def kept(root: Path) -> list[dict[str, Any]]:
    with Store(root) as store:
        sql = "SELECT * FROM incidents WHERE kind = 'watched' ORDER BY opened_ns"
        return list(store.query(sql, attempt=store.attempt()).to_pylist())


def frozen(root: Path) -> list[dict[str, Any]]:
    with Store(root) as store:
        return list(store.query("SELECT * FROM in_flight", attempt=store.attempt()).to_pylist())


def look_once(root: Path, **more: Any) -> list[str]:
    watch = watching.Watch(root, NOBODY, **more)
    try:
        return [one.what for one in watch.look()]
    finally:
        watch.close()


def test_where_the_agents_are_gone_the_verdict_is_kept_with_two_snapshots(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store")
    assert look_once(root) == ["watched", "silent", "hang"]
    [incident] = kept(root)
    assert incident["closed_ns"] is None
    assert json.loads(incident["verdict"])["culprits"][0]["ranks"] == [5]
    actions = json.loads(incident["actions"])
    assert [one["action"] for one in actions] == ["snapshot", "snapshot", "diagnosed"]
    rows = frozen(root)
    assert {row["snapshot"] for row in rows} == {1, 2}
    assert {row["rank"] for row in rows} == set(range(8))
    assert {row["incident"] for row in rows} == {incident["incident"]}
    assert actions[1]["moment_ns"] - actions[0]["moment_ns"] >= watching.SNAPSHOT_GAP_NS


def test_the_next_watch_goes_on_with_the_same_incident(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store")
    look_once(root)
    assert look_once(root) == ["watched", "silent", "hang"], "its own incident is no news"
    [incident] = kept(root)
    assert [one["action"] for one in json.loads(incident["actions"])].count("diagnosed") == 2
    assert len({(row["rank"], row["snapshot"], row["segment"]) for row in frozen(root)}) == len(frozen(root))


def test_nothing_is_kept_while_an_agent_has_the_claim_and_later_it_is(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store")
    claim = diagnosis_claim(root, "job", 0, "an agent")
    assert claim.take()
    watch = watching.Watch(root, NOBODY)
    watch.look()
    assert kept(root) == []
    claim.give_free()
    watch.look()
    watch.close()
    assert len(kept(root)) == 1


def test_of_two_watches_one_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = silent_store(tmp_path / "store")
    first = watching.Watch(root, NOBODY)
    first.look()
    monkeypatch.setattr(watched, "host_name", lambda: "elsewhere")
    second = watching.Watch(root, NOBODY)
    second.look()
    second.look()
    assert len(kept(root)) == 1
    second.close()
    first.close()


def test_one_that_another_watch_left_open_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = silent_store(tmp_path / "store")
    look_once(root)
    monkeypatch.setattr(watched, "host_name", lambda: "elsewhere")
    assert look_once(root) == ["watched", "silent", "hang"]
    assert len(kept(root)) == 1


@pytest.mark.parametrize("is_new", [False, True])
def test_it_is_closed_and_the_claim_free_once_agents_are_heard_again(tmp_path: Path, is_new: bool) -> None:
    """By the watch that opened it, or by the next one on the same host."""
    root = silent_store(tmp_path / "store")
    watch = watching.Watch(root, NOBODY)
    watch.look()
    if is_new:
        watch.close()
        watch = watching.Watch(root, NOBODY)
    with TableWriter(root, "agent") as writer:
        beat = {"rank": [5], "moment_ns": [time.time_ns()], "in_flight": [[]], "process_state": ["running"]}
        writer.write("heartbeats", "job", 0, beat)
        writer.commit()
    assert [one.what for one in watch.look()] == ["watched" if is_new else "heard"]
    [incident] = kept(root)
    assert incident["closed_ns"] is not None
    assert diagnosis_claim(root, "job", 0, "an agent").take()
    watch.close()


def test_a_crash_that_it_sees_is_kept_and_closed_at_once(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store")
    watch = watching.Watch(root, NOBODY)
    watch.look()
    with TableWriter(root, "test-0") as writer:
        writer.write("runs", "job", 0, {"world_size": [8], "exit_reason": ["crashed"], "end_ns": [time.time_ns()]})
        writer.commit()
    watch.look()
    watch.close()
    rows = kept(root)
    assert rows
    assert all(row["closed_ns"] is not None and row["verdict"] is not None for row in rows)


def test_a_store_that_cannot_be_written_is_said_once_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = silent_store(tmp_path / "store")

    def refuse(*_: object) -> TableWriter:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(watched, "TableWriter", refuse)
    watch = watching.Watch(root, NOBODY)
    assert [one.what for one in watch.look()] == ["watched", "silent", "hang"]
    [told] = watch.results()
    assert "not kept in the store" in told
    watch.look()
    assert watch.results() == []
    monkeypatch.undo()
    watch.look()
    watch.close()
    assert len(kept(root)) == 1


def test_it_may_be_told_to_keep_nothing(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store")
    look_once(root, keep=False)
    assert kept(root) == []


SLOW: dict[str, Any] = {
    "run": "job", "attempt": 0, "verdict": "findings",
    "culprits": [
        {"kind": "rank", "cause": "slow-compute", "segment": "forward", "ranks": [3], "hosts": ["node0"],
         "severity": "high", "lost_share": 0.124},
        {"kind": "job", "cause": "gc-drift", "segment": "gc", "ranks": [], "hosts": [], "severity": "low"},
    ],
}  # fmt: skip


class Asked:
    """A question that is answered at once."""

    count = 0

    def __init__(self, *_: object, **__: object) -> None:
        Asked.count += 1

    def poll(self) -> Answer:
        return Answer(SLOW, None, 0.1)

    def close(self) -> None:
        return


def test_stragglers_of_what_runs_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    write_scene(tmp_path / "store", looks(scene, age_s=1)).close()
    monkeypatch.setattr(straggling, "Question", Asked)
    out = tmp_path / "alarm"
    watch = watching.Watch(tmp_path / "store", AlarmSettings(f"cat >> {out}"), stragglers_s=0.01)
    found = []
    for _ in range(8):
        found += [one for one in watch.look() if one.what.startswith("straggler")]
        time.sleep(0.02)
    watch.close()
    assert [one.what for one in found] == ["straggler-slow-compute"]
    assert "ranks 3 on node0 (slow-compute, in forward), it costs 12.4% of the job's time" in found[0].sentence
    assert Asked.count > 1
    alarm = json.loads(out.read_text())
    assert (alarm["kind"], alarm["ranks"], alarm["severity"]) == ("straggler-slow-compute", [3], "high")


@pytest.mark.parametrize("verdict", ["healthy", "insufficient-evidence"])
def test_only_findings_are_alarms(verdict: str) -> None:
    assert alarms_of_stragglers({**SLOW, "verdict": verdict}, 1) == []
    assert len(alarms_of_stragglers(SLOW, 1)) == 1
