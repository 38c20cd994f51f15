"""`megascope watch`: what changes in a store, a line for each, and a verdict where no agent gives one."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from megascope import watching
from megascope.cli import main
from megascope.collectors.alarms import AlarmSettings
from megascope.profiler.topology import Topology
from megascope.viz3d.states import Snapshot
from support.hang_scenes import Scene, cascade
from support.hang_store import write_scene

SECOND = 10**9


@pytest.fixture
def stuck_scene() -> Scene:
    """Rank 5 stands in its loader, the others wait for it."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    return scene


def moved(look: Snapshot, by: int) -> Snapshot:
    """The look as if it had been taken so much later."""
    states = {
        rank: dataclasses.replace(
            state,
            moment_ns=state.moment_ns + by,
            flights=tuple(
                dataclasses.replace(one, begun_ns=None if one.begun_ns is None else one.begun_ns + by)
                for one in state.flights
            ),
        )
        for rank, state in look.states.items()
    }
    return dataclasses.replace(look, moment_ns=look.moment_ns + by, states=states)


def looks(scene: Scene, age_s: int = 0) -> list[Snapshot]:
    """The looks of a scene, the newest of them so old."""
    found = scene.looks()
    by = time.time_ns() - age_s * SECOND - found[-1].moment_ns
    return [moved(look, by) for look in found]


def incident(opened_s_ago: float, verdict: dict[str, Any] | None = None) -> dict[str, object]:
    return {
        "incident": "job/0/node-7/stalled/0",
        "kind": "stalled",
        "opened_ns": time.time_ns() - int(opened_s_ago * SECOND),
        "closed_ns": None,
        "verdict": None if verdict is None else json.dumps(verdict),
        "actions": json.dumps([{"action": "stood-still", "moment_ns": 1, "quiet_s": 6.0}]),
    }


def whats(changes: list[watching.Change]) -> list[str]:
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
