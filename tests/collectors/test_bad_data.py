"""Values that are not as they should be: they are left out and counted, and everything else goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.agent.agent import Agent
from megascope.collectors.drains import attempt as attempt_drain
from megascope.collectors.reading.store import Store
from megascope.profiler.box.box import RECORD, RECORD_BYTES, BoxReader
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from support.collecting import collective, drain_all, read_table

Open = Callable[..., Recorder]


def _add(spool: Path, name: str, lines: list[dict[str, Any]], rank: int = 0) -> None:
    """Append lines to one of a rank's metadata files, as a strange recorder might write them."""
    with (spool / "run" / "0" / f"rank-{rank:05d}.{name}.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_bad_lines_of_steps_are_left_out_and_counted(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path
) -> None:
    rank = recorder()
    for step in range(3):
        rank.step(step)
        rank.step_metrics(step, loss=1.5, tokens=64)
    _add(spool, "steps", [
        {"kind": "metrics", "step": 0, "loss": "tensor(2.5000)", "grad_norm": 2.0},
        {"kind": "metrics", "step": 1, "tokens": 2**70, "mfu": [1]},
        {"kind": "metrics", "step": 10**400, "loss": 1.0},
        {"kind": "metrics", "loss": 1.0},
        {"kind": "step", "step": 5, "start_ns": "soon"},
        {"kind": "step", "step": 6, "start_ns": 2**63},
    ])  # fmt: skip
    watcher = agent(heartbeat_s=0.0)
    watcher.poll(flush=True)
    rank.close("finished")
    drain_all(watcher)
    rows = read_table(store_root, "steps")
    assert [(row["step"], row["loss"], row["grad_norm"], row["tokens"]) for row in rows] == [
        (0, 1.5, 2.0, 64), (1, 1.5, None, 64), (2, 1.5, None, 64),
    ]  # fmt: skip
    assert read_table(store_root, "heartbeats")[-1]["lost_metadata"] == 7


@pytest.mark.parametrize(
    ("line", "table"),
    [
        ({"kind": "fault", "fault": "x", "fault_kind": "slow", "factor": "much"}, "faults"),
        ({"kind": "fault", "fault": "x", "fault_kind": "slow", "ranks": [2**40]}, "faults"),
        ({"kind": "fault", "fault": "x"}, "faults"),
        ({"kind": "schedule", "actions": [{"stage": 0, "position": 1}]}, "schedule"),
        ({"kind": "schedule", "actions": [{"stage": 0, "position": 1, "action": "a", "depends_on": [1]}]}, "schedule"),
        ({"kind": "schedule", "actions": 3}, "schedule"),
        ({"kind": "topology", "axes": {"host": 1}, "coordinates": {"host": 0}}, "runs"),
        ({"kind": "topology", "axes": ["dp"], "coordinates": {}}, "runs"),
        ({"kind": "topology", "axes": {"dp": 2}, "coordinates": {"dp": 2}}, "runs"),
        ({"kind": "segment", "index": 2**40, "name": "far", "segment_kind": "compute"}, "segments"),
        ({"kind": "segment", "index": -1, "name": "far", "segment_kind": "compute"}, "segments"),
        ({"kind": "segment", "index": 7, "name": "half \ud800", "segment_kind": "compute"}, "segments"),
        ({"kind": "group", "index": 3, "group_kind": "dp", "ranks": [2**40]}, "groups"),
        ({"kind": "group", "index": 3, "group_kind": "dp", "ranks": None}, "groups"),
        ({"kind": "exception", "type": "E", "message": "half \udc00", "moment_ns": 1}, "incidents"),
        ({"kind": "configuration", "value": 3}, "runs"),
    ],
)
def test_one_bad_line_costs_no_other(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, line: dict[str, Any], table: str
) -> None:
    rank, other = recorder(), recorder(run="other")
    _add(spool, "meta", [line])
    for each in (rank, other):
        each.topology(Topology.of(dp=1), 0)
        each.step(0)
        collective(each, 1)
        each.close("finished")
    drain_all(agent())
    with Store(store_root) as store:
        for run in ("run", "other"):
            attempt = store.attempt(run)
            assert attempt.end_ns is not None
            assert attempt.layout == {"dp": 1}
            assert store.read("spans", attempt)["sequence"].to_pylist() == [1]
            assert store.read("steps", attempt)["step"].to_pylist() == [0]
        rows = store.read(table, store.attempt("run")).to_pylist()
    assert "far" not in [row.get("name") for row in rows]
    assert not list(spool.rglob("*.box"))


def test_what_fits_no_table_is_said_once_and_the_rest_is_written(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = recorder()
    rank.fault({"fault": "good", "kind": "slow", "factor": 2.0})
    _add(spool, "meta", [{"kind": "fault", "fault": f"bad {i}", "fault_kind": "slow", "factor": "x"} for i in range(9)])
    watcher = agent()
    for number in range(3):
        collective(rank, number + 1)
        watcher.poll(flush=True)
        rank.fault({"fault": f"later {number}", "kind": "slow", "factor": 2.0})
    rank.close("finished")
    drain_all(watcher)
    assert {row["fault"] for row in read_table(store_root, "faults")} == {"good", "later 0", "later 1", "later 2"}
    assert caplog.text.count("do not fit the table faults") == 1


def _spoil(path: Path, field: str, value: int) -> None:
    """Change a field of the first record of the first ring."""
    reader = BoxReader(path)
    offset = reader.layout.rings_offset
    reader.close()
    with path.open("r+b") as file:
        file.seek(offset)
        record = bytearray(file.read(RECORD_BYTES))
        np.frombuffer(record, RECORD)[field] = value
        file.seek(offset)
        file.write(record)


@pytest.mark.parametrize(("field", "value", "kept"), [
    ("status", 77, [2]), ("clock", 77, [2]), ("segment", 2**32 - 2, [1, 2]), ("parent", 2**31, [1, 2]),
])  # fmt: skip
def test_a_record_that_is_damaged_costs_no_other(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, field: str, value: int, kept: list[int]
) -> None:
    rank = recorder()
    for number in range(2):
        collective(rank, number + 1)
    _spoil(spool / "run" / "0" / "rank-00000.box", field, value)
    watcher = agent(heartbeat_s=0.0)
    watcher.poll(flush=True)
    rank.close("finished")
    drain_all(watcher)
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == kept
    assert read_table(store_root, "heartbeats")[-1]["lost_spans"] == 2 - len(kept)


@pytest.mark.parametrize(
    ("module", "name"), [(attempt_drain, "event_rows"), (attempt_drain, "small_tables"), (attempt_drain, "run_row")]
)
def test_an_attempt_that_cannot_be_understood_stops_no_other(
    recorder: Open, agent: Callable[..., Agent], spool: Path, store_root: Path, monkeypatch: pytest.MonkeyPatch,
    module: Any, name: str,
) -> None:  # fmt: skip
    """Whatever goes wrong inside of one attempt: the other one is written, and the agent comes to its end."""
    bad, good = recorder(run="bad"), recorder(run="good")
    inner, seen = getattr(module, name), iter(range(10**6))

    def fails(*arguments: Any) -> Any:
        if next(seen) == 0:
            raise IndexError("nonsense")
        return inner(*arguments)

    for each in (bad, good):
        collective(each, 1)
        each.close("finished")
    monkeypatch.setattr(module, name, fails)
    watcher = agent()
    for _ in range(3):
        watcher.poll(flush=True)
    with Store(store_root) as store:
        assert store.read("events", store.attempt("good"))["sequence"].to_pylist() == [1]
    assert not any(run.is_active for run in watcher.runs.values())


def test_a_box_that_is_given_up_keeps_its_place(
    recorder: Open, agent: Callable[..., Agent], store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed of it is not read again by the next agent."""
    rank = recorder()
    first = agent()
    collective(rank, 1)
    first.poll(flush=True)
    with monkeypatch.context() as patch:
        patch.setattr(attempt_drain.AttemptDrain, "_look", _raises)
        collective(rank, 2)
        first.poll(flush=True)
    first.close()
    collective(rank, 3)
    rank.close("finished")
    drain_all(agent())
    assert sorted(row["sequence"] for row in read_table(store_root, "events")) == [1, 2, 3]


def _raises(*_: Any, **__: Any) -> None:
    raise ValueError("nonsense")
