"""What is said once beside the spans: names, groups, topology, metrics, and how the files of it are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.profiler.box import annotations as registry
from megascope.profiler.box.annotations import MAX_SEGMENTS, OTHER_SEGMENTS
from megascope.profiler.box.box import ABSENT_INDEX, BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind
from support.recording import Recorded


def test_names_are_data(recorded: Recorded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SEGMENTS", 9 + len(SegmentKind))
    recorder = recorded.recorder
    odd = ["x" * 100_000, '"quotes"', "line\nbreak", "emoji 🙂", "../../etc", ""]
    indexes = [recorder.segment(name) for name in odd]
    assert len(set(indexes)) == len(odd)
    assert recorder.segment(odd[0]) == indexes[0]
    late = {recorder.segment(f"name {number}") for number in range(100)}
    assert len(late) == 4
    assert caplog.text.count("further ones count as") == 1
    stored = [line["name"] for line in recorded.metadata() if line["kind"] == "segment"]
    assert stored[1:6] == odd[1:]
    assert len(stored[0]) < 1100
    assert len(stored) == 10


def test_steps_metrics_topology_and_exit_are_metadata(recorded: Recorded) -> None:
    recorder = recorded.recorder
    recorder.topology(Topology.of(pp=2, tp=2), 3)
    recorder.step(0)
    recorder.step_metrics(0, loss=5.5, mfu=None)
    recorder.step(1)
    recorder.end_step()
    recorder.close("finished")
    lines = {line["kind"]: line for line in recorded.metadata()}
    assert lines["topology"]["coordinates"] == {"pp": 1, "tp": 1}
    assert lines["metrics"] == {"kind": "metrics", "step": 0, "loss": 5.5}
    assert [line["step"] for line in recorded.metadata() if line["kind"] == "step"] == [0, 1]
    assert lines["step"]["duration_ns"] > 0
    assert lines["exit"]["reason"] == "finished"
    assert BoxReader(recorded.box).closed


def test_a_cut_metadata_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_bytes(b'{"kind":"a"}\nnot json\n{"kind":"b"')
    (only,) = list(read_metadata(path))
    assert only == (13, {"kind": "a"})
    with path.open("ab") as file:
        file.write(b"}\n")
    assert [value["kind"] for _, value in read_metadata(path, 13)] == ["b"]


def test_fifty_thousand_names_are_grouped_and_warned_of_once(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = recorded.recorder
    indices = [recorder.segment(f"layer {number}") for number in range(50_000)]
    own = MAX_SEGMENTS - len(SegmentKind)
    assert len(set(indices)) == own + 1
    assert len(set(indices[own:])) == 1
    recorder.end(recorder.begin(indices[-1], 5))
    late = {
        kind: {recorder.segment(f"late {n}", kind, axis) for n in range(3) for axis in (None, "tp")}
        for kind in SegmentKind
    }
    assert [len(found) for found in late.values()] == [1] * len(SegmentKind)
    assert caplog.text.count("segment names: further ones count as") == 1
    lines = {line["index"]: line for line in recorded.metadata() if line["kind"] == "segment"}
    assert lines[int(recorded.spans()["segment"][0])]["name"] == OTHER_SEGMENTS
    assert len(lines) == MAX_SEGMENTS
    for kind, (index,) in late.items():
        assert (lines[index]["name"], lines[index]["segment_kind"]) == (OTHER_SEGMENTS, kind)


def test_groups_beyond_the_room_are_warned_of_once(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorded.recorder
    indices = [recorder.group("pair", [0, number]) for number in range(1, 40)]
    room = recorder.layout.groups
    assert indices == [*range(room), *[ABSENT_INDEX] * (39 - room)]
    assert caplog.text.count("process groups") == 1
