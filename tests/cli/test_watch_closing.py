"""What a watch kept does not stay open, is not written again and again, and what it cannot tell is said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from megascope import watching
from megascope.collectors.alarms.alarms import AlarmSettings
from megascope.collectors.incidents import straggling
from megascope.collectors.incidents.diagnosing import diagnosis_claim
from megascope.collectors.incidents.question import Answer
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology
from support.hang_now import looks
from support.hang_scenes import cascade
from support.hang_store import write_scene

NOBODY = AlarmSettings()


def silent_store(root: Path, age_s: int = 60, **more: Any) -> Path:
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "forward")
    write_scene(root, looks(scene, age_s=age_s), **more).close()
    return root


def end(root: Path, how: str) -> None:
    with TableWriter(root, "test-0") as writer:
        writer.write("runs", "job", 0, {"world_size": [8], "exit_reason": [how], "end_ns": [time.time_ns()]})
        writer.commit()


def kept(root: Path) -> list[dict[str, Any]]:
    with Store(root) as store:
        sql = "SELECT * FROM incidents WHERE kind = 'watched' ORDER BY opened_ns"
        return list(store.query(sql, attempt=store.attempt()).to_pylist())


def written(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["crashed", "finished"])
def test_after_the_end_it_is_closed_and_nothing_is_written_any_more(tmp_path: Path, how: str) -> None:
    root = silent_store(tmp_path / "store")
    watch = watching.Watch(root, NOBODY)
    watch.look()
    watch.look()
    end(root, how)
    watch.look()
    watch.look()
    before = written(root)
    watch.look()
    watch.look()
    assert written(root) == before
    watch.close()
    [incident] = kept(root)
    assert incident["closed_ns"] is not None


def test_a_crash_is_kept_once_the_claim_is_free(tmp_path: Path) -> None:
    root = silent_store(tmp_path / "store", age_s=1)
    claim = diagnosis_claim(root, "job", 0, "an agent")
    assert claim.take()
    watch = watching.Watch(root, NOBODY)
    watch.look()
    end(root, "crashed")
    watch.look()
    watch.look()
    assert kept(root) == []
    claim.give_free()
    watch.look()
    watch.close()
    [incident] = kept(root)
    assert incident["closed_ns"] is not None


@pytest.mark.parametrize("how", ["crashed", "finished"])
def test_what_was_left_open_is_closed_by_a_watch_that_began_after_the_end(tmp_path: Path, how: str) -> None:
    root = silent_store(tmp_path / "store")
    first = watching.Watch(root, NOBODY)
    first.look()
    first.close()
    end(root, how)
    assert [one["closed_ns"] for one in kept(root)] == [None]
    watch = watching.Watch(root, NOBODY)
    assert watch.look() == []
    watch.close()
    [incident] = kept(root)
    assert incident["closed_ns"] is not None


def test_one_of_long_ago_that_has_not_ended_stays_open_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = silent_store(tmp_path / "store")
    first = watching.Watch(root, NOBODY)
    first.look()
    first.close()
    monkeypatch.setattr(watching, "FORGET_S", 40.0)
    watch = watching.Watch(root, NOBODY)
    for _ in range(3):
        assert watch.look() == []
    assert [one["closed_ns"] for one in kept(root)] == [None]
    end(root, "finished")
    watch.look()
    watch.close()
    [incident] = kept(root)
    assert incident["closed_ns"] is not None


def test_a_stall_that_nobody_judged_does_not_stay_open_after_the_end(tmp_path: Path) -> None:
    stalled = {
        "incident": "job/0/node-7/stalled/0", "kind": "stalled", "opened_ns": time.time_ns() - 60 * 10**9,
        "closed_ns": None, "verdict": None, "actions": "[]",
    }  # fmt: skip
    root = silent_store(tmp_path / "store", age_s=1, incidents=[stalled])
    watch = watching.Watch(root, NOBODY)
    watch.look()
    assert [one["closed_ns"] for one in kept(root)] == [None]
    end(root, "finished")
    watch.look()
    watch.close()
    assert [one["closed_ns"] is None for one in kept(root)] == [False]


class Unanswered:
    """A question to which there is no answer."""

    count = 0

    def __init__(self, *_: object, **__: object) -> None:
        Unanswered.count += 1

    def poll(self) -> Answer:
        return Answer(None, "stragglers gave no verdict within 600 s", 0.1)

    def close(self) -> None:
        return


def test_stragglers_that_cannot_be_told_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = silent_store(tmp_path / "store", age_s=1)
    monkeypatch.setattr(straggling, "Question", Unanswered)
    watch = watching.Watch(root, NOBODY, stragglers_s=0.01)
    told = []
    for _ in range(8):
        watch.look()
        told += watch.results()
        time.sleep(0.02)
    watch.close()
    assert Unanswered.count > 1
    assert told == ["stragglers of job/0 are not known: stragglers gave no verdict within 600 s"]
