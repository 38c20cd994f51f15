"""`megascope watch`: what changes in a store, a line for each, and a verdict where no agent gives one."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from megascope import watching
from megascope.changes import Change
from megascope.cli import main
from megascope.collectors.alarms.alarms import Alarm, AlarmSettings
from megascope.collectors.alarms.memory import FOLDER, AlarmMemory
from megascope.collectors.reading.store import Attempt, Store
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology
from support.hang_now import looks
from support.hang_scenes import Scene, cascade
from support.hang_store import write_scene

SECOND = 10**9


@pytest.fixture
def stuck_scene() -> Scene:
    """Rank 5 stands in its loader, the others wait for it."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    return scene


def incident(opened_s_ago: float, verdict: dict[str, Any] | None = None) -> dict[str, object]:
    return {
        "incident": "job/0/node-7/stalled/0",
        "kind": "stalled",
        "opened_ns": time.time_ns() - int(opened_s_ago * SECOND),
        "closed_ns": None,
        "verdict": None if verdict is None else json.dumps(verdict),
        "actions": json.dumps([{"action": "stood-still", "moment_ns": 1, "quiet_s": 6.0}]),
    }


def whats(changes: list[Change]) -> list[str]:
    return [change.what for change in changes]


def test_a_stall_that_no_agent_judges_is_judged_here(tmp_path: Path, stuck_scene: Scene) -> None:
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=[incident(60)])
    out = tmp_path / "alarm"
    watch = watching.Watch(tmp_path / "store", AlarmSettings(f"cat > {out}"))
    changes = watch.look()
    assert whats(changes) == ["watched", "incident", "hang"]
    assert "on node-7 nothing moves, for 6 s so far" in changes[1].line()
    assert changes[2].verdict is not None
    assert changes[2].verdict["culprits"][0]["ranks"] == [5]
    assert watch.look() == []
    watch.close()
    assert json.loads(out.read_text())["ranks"] == [5]
    assert watch.results() == ["alarm hang of job/0: told"]


def test_what_a_supervisor_does_is_told_in_its_own_words(tmp_path: Path, stuck_scene: Scene) -> None:
    told = [{"action": "noticed", "moment_ns": 1, "sentence": "Rank 5 on node-7 went without a word."}]
    row = {**incident(3), "incident": "job/0/supervisor/recovery-death/0", "kind": "recovery-death"}
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=[{**row, "actions": json.dumps(told)}])
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    changes = watch.look()
    watch.close()
    assert changes[1].line().endswith("recovery-death: Rank 5 on node-7 went without a word.")
    assert not any("nothing moves" in change.line() for change in changes)


def test_the_agents_verdict_is_taken_as_it_is(tmp_path: Path, stuck_scene: Scene) -> None:
    verdict = {
        "run": "job", "attempt": 0, "verdict": "hang", "sentence": "Rank 5 is stuck.",
        "culprits": [{"kind": "host-stuck", "ranks": [5], "hosts": ["a"]}],
    }  # fmt: skip
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=[incident(3, verdict)])
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    changes = watch.look()
    watch.close()
    assert whats(changes) == ["watched", "incident", "hang"]
    assert changes[2].line().endswith("hang: Rank 5 is stuck.")


class Unsteady:
    """A store of which one call, counted over all, ends with an error."""

    def __init__(self, store: Any, failing: int, error: Exception) -> None:
        self._store, self._failing, self._error = store, failing, error
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name == "close":
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._failing:
                raise self._error
            return found(*given, **named)

        return call


class Canned:
    """A store of one attempt with one incident, from memory."""

    def __init__(self, attempt: Attempt, row: dict[str, object]) -> None:
        self._attempt, self._row = attempt, row
        self.root = Path()

    def refresh(self) -> None:
        return

    def attempts(self) -> list[Attempt]:
        return [self._attempt]

    def data_age_s(self, _: Attempt) -> float:
        return 1.0

    def query(self, sql: str, *_: Any, **__: Any) -> pa.Table:
        return pa.Table.from_pylist([self._row] if "FROM incidents" in sql else [])

    def close(self) -> None:
        return


ERRORS = (
    duckdb.IOException("IO Error: gone\nfar away"),
    OSError(5, "stale file handle"),
    MegascopeError("It is away."),
)


def test_a_look_that_fails_anywhere_drops_nothing_and_repeats_nothing(
    tmp_path: Path, stuck_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call fails, the next look tells what this one did not, and one alarm is given."""
    verdict = {"run": "job", "attempt": 0, "verdict": "hang", "sentence": "Rank 5 is stuck.", "culprits": []}
    write_scene(tmp_path / "store", looks(stuck_scene))
    with Store(tmp_path / "store") as real:
        canned = Canned(real.attempt(), incident(60, verdict))
    for failing in itertools.count(1):
        folder = tmp_path / str(failing)
        folder.mkdir()
        canned.root = folder
        store = Unsteady(canned, failing, ERRORS[failing % 3])
        monkeypatch.setattr(watching, "Store", lambda _, store=store: store)
        watch = watching.Watch(folder, AlarmSettings(f"echo told >> {folder / 'out'}"))
        found = [change for _ in range(2) for change in watch.look()]
        watch.close()
        assert whats([change for change in found if change.what != "not readable"]) == ["watched", "incident", "hang"]
        assert (folder / "out").read_text() == "told\n"
        problems = [change.sentence for change in found if change.what == "not readable"]
        if store.calls < failing:
            assert problems == []
            assert failing > 5, "all calls of both looks were made to fail"
            break
        if failing <= store.calls // 2:
            assert len(problems) == 1
        assert not any("\n" in problem for problem in problems)


def test_an_error_of_hardware_is_told_and_alarms(tmp_path: Path, stuck_scene: Scene) -> None:
    now = time.time_ns()
    events: dict[str, list[Any]] = {
        "host": ["node-7", "node-7", "node-8"],
        "device": ["GPU-1", "GPU-1", "ens1"],
        "moment_ns": [now - 9 * SECOND, now - 8 * SECOND, now - 7 * SECOND],
        "kind": ["xid", "xid", "link-up"],
        "severity": ["error", "error", "note"],
        "code": [79, 79, None],
        "text": ["Xid 79 (the GPU has fallen off the PCI bus)", "Xid 79 (the GPU has fallen off the PCI bus)", "up"],
    }
    write_scene(tmp_path / "store", looks(stuck_scene), more={"hardware_events": events})
    out = tmp_path / "alarm"
    watch = watching.Watch(tmp_path / "store", AlarmSettings(f"cat > {out}"))
    changes = watch.look()
    assert whats(changes) == ["watched", "hardware"]
    assert changes[1].line().endswith("hardware: node-7: Xid 79 (the GPU has fallen off the PCI bus), 2 times")
    assert watch.look() == []
    watch.close()
    told = json.loads(out.read_text())
    assert (told["kind"], told["severity"], told["hosts"]) == ("hardware-xid-79", "medium", ["node-7"])


def test_a_store_that_stays_away_is_told_of_once(tmp_path: Path, stuck_scene: Scene) -> None:
    write_scene(tmp_path / "store", looks(stuck_scene))
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    real = watch._store
    for _ in range(2):
        watch._store = Unsteady(real, 1, OSError("no such host"))  # type: ignore[assignment]
        first = watch.look()
        watch._store = Unsteady(real, 1, OSError("no such host"))  # type: ignore[assignment]
        assert (whats(first), watch.look()) == (["not readable"], [])
        watch._store = real
        watch.look()
    watch.close()


def test_rows_with_holes_are_told_without_them(tmp_path: Path, stuck_scene: Scene) -> None:
    actions = [{"action": "noticed-death", "rank": None}, {"action": "noticed-death"}, {"action": "stood-still"}]
    holes = {
        "run": "job",
        "attempt": 0,
        "verdict": "hang",
        "culprits": [{"kind": None, "ranks": [None], "hosts": None}],
    }
    rows = [
        {**incident(3), "incident": "job/0//stalled/0", "actions": None},
        {**incident(3, holes), "incident": "no name", "actions": json.dumps(actions)},
        {**incident(3), "incident": "job/0/node-3/rank-died/0", "kind": "rank-died", "actions": json.dumps(actions)},
    ]
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=rows)
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    changes = watch.look()
    watch.close()
    assert sorted(whats(changes)) == sorted(["watched", "incident", "incident", "hang", "incident"])
    sentences = "\n".join(change.line() for change in changes)
    assert "None" not in sentences
    assert "on a host nothing moves" in sentences
    assert "on node-3, ranks that are not named ended without a goodbye" in sentences


def test_what_one_host_judged_is_judged_for_all(tmp_path: Path, stuck_scene: Scene) -> None:
    verdict = {"run": "job", "attempt": 0, "verdict": "slow", "sentence": "It is slow.", "culprits": []}
    rows = [incident(60, verdict), {**incident(60), "incident": "job/0/node-8/stalled/0"}]
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=rows)
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    assert sorted(whats(watch.look())) == ["incident", "incident", "slow", "watched"]
    watch.close()


def test_it_tells_of_alarms_that_their_agent_left(
    tmp_path: Path, stuck_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.alarms.alarms.LEFT_AFTER_S", 0.0)
    store, out = tmp_path / "store", tmp_path / "out"
    write_scene(store, looks(stuck_scene))
    alarm = Alarm("rank-died", "high", "job", 0, (3,), ("a",), "Rank 3 is gone.", 1, fate="ended")
    AlarmMemory(store / FOLDER, 3600).keep(alarm)
    watch = watching.Watch(store, AlarmSettings(f"cat > {out}", gather_s=0.0))
    watch.look()
    watch.close()
    assert json.loads(out.read_text())["sentence"] == "Rank 3 is gone."
    assert watch.results() == ["alarm rank-died of job/0: told"]


def test_a_young_stall_is_left_to_the_agents(tmp_path: Path, stuck_scene: Scene) -> None:
    write_scene(tmp_path / "store", looks(stuck_scene), incidents=[incident(3)])
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    assert whats(watch.look()) == ["watched", "incident"]
    watch.close()


def test_an_attempt_that_falls_silent(tmp_path: Path, stuck_scene: Scene) -> None:
    write_scene(tmp_path / "store", looks(stuck_scene, age_s=60))
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    changes = whats(watch.look())
    assert changes[:2] == ["watched", "silent"]
    assert whats(watch.look()) == []
    watch.close()


def test_what_ended_long_ago_is_no_news(tmp_path: Path, stuck_scene: Scene) -> None:
    write_scene(tmp_path / "store", stuck_scene.looks(), exit_reason="crashed", incidents=[incident(60)])
    watch = watching.Watch(tmp_path / "store", AlarmSettings())
    assert watch.look() == []
    watch.close()


def test_the_verb_once(tmp_path: Path, stuck_scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    write_scene(Path(store), looks(stuck_scene), incidents=[incident(60)])
    assert main(["watch", store, "--once", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [one["what"] for one in value["changes"]] == ["watched", "incident", "hang"]
    assert main(["watch", store, "--once"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["watch", store, "--once", "--silence", "colour=red"]) == 2
    assert main(["watch", str(tmp_path / "none"), "--once"]) == 1
