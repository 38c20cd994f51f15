"""The report as a note: when and where, how we know, what to do next, coverage, what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.advice import next_steps
from megascope.viz3d.bundle.bundle import report_text
from megascope.viz3d.hang import diagnose_with_graph
from megascope.viz3d.stack_evidence import load_stacks
from megascope.viz3d.verdict import CulpritKind, GroupName, HangCulprit
from support.hang_scenes import MOMENT_NS, Scene, cascade
from support.hang_store import write_scene


@pytest.fixture
def scene() -> Scene:
    """Rank 5 stands in its loader, the others wait for it; nothing is known of rank 2."""
    scene = cascade(Topology.of(pp=2, dp=2, tp=2), 5)
    scene.work(5, "data", kind="data")
    scene.lose(2)
    return scene


def stack(rank: int, text: str) -> dict[str, object]:
    return {"action": "stack", "moment_ns": MOMENT_NS, "rank": rank, "method": "faulthandler", "stack": text}


def test_the_note(scene: Scene, tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", scene.looks())
    text = report_text(diagnose_with_graph(store, store.attempt()))
    for part in (
        "HANG: Rank 5 on node0 is stuck in data", " UTC, 7 ranks on ", "How we know", "What to do next",
        "look at the Python stack of rank 5", "Coverage: explains 6 of 6 waiting ranks.",
        "Without data: 2", "Not judged",
    ):  # fmt: skip
        assert part in text, part
    assert text.index("Without data: 2") < text.index("At the root") < text.index("Not judged")


def test_a_stack_is_evidence_against_its_rank_only(scene: Scene, tmp_path: Path) -> None:
    actions = [
        stack(5, "read() at /a/data.py:88\nfetch() at /a/data.py:3\nmain() at /a/t.py:1\n<module>() at /a/t.py:9"),
        stack(1, "wait() at /a/dist.py:5"),
        stack(4, "(no stack: py-spy was refused)"),
    ]
    opened = {"incident": "i", "kind": "stalled", "opened_ns": MOMENT_NS, "actions": json.dumps(actions)}
    store = write_scene(tmp_path / "store", scene.looks(), incidents=[opened])
    attempt = store.attempt()
    assert sorted(load_stacks(store, attempt)) == [1, 5]
    culprits = {one.ranks: one for one in diagnose_with_graph(store, attempt).verdict.culprits}
    culprit = culprits.pop((5,))
    assert not any("is in wait()" in one.statement for other in culprits.values() for one in other.evidence)
    [told] = [one for one in culprit.evidence if one.table == "incidents"]
    wanted = "rank 5 is in read() at /a/data.py:88, called by fetch() at /a/data.py:3, called by main() at /a/t.py:1"
    assert told.statement == wanted
    assert store.query(told.sql)["stack"].to_pylist() == [actions[0]["stack"]]


@pytest.mark.parametrize("kind", CulpritKind)
def test_every_kind_has_steps_that_name_what_is_known(kind: CulpritKind) -> None:
    group = GroupName("dp", (3, 7))
    known = HangCulprit((3, 7), ("node-1",), 0.9, "high", kind, "dp_{all}_reduce", group, 6, ())
    unknown = HangCulprit((3,), (), 0.9, "high", kind, None, None, 0, ())
    for steps in (next_steps(known), next_steps(unknown)):
        assert steps
        assert all(step and not step.endswith(".") for step in steps)
        assert "None" not in " ".join(steps)
    assert any(word in " ".join(next_steps(known)) for word in ("node-1", "ranks 3, 7", "dp"))
