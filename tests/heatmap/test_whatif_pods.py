"""What-if of replicas in pods: a reduction inside a pod and one across pods are the two phases of one action."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.matrix import load_placement
from megascope.heatmap.whatif.finding import find_whatif
from megascope.heatmap.whatif.result import Part, WhatIf
from megascope.profiler.topology import group_id

MS, STEPS, PERIOD_MS = 1_000_000, 8, 200.0
GROUPS = {"dp_pod": ((0, 1), (2, 3)), "dp_across": ((0, 2), (1, 3))}
LINE = (
    ("forward", 0, 5, 10), ("forward", 1, 15, 10), ("backward", 1, 25, 20), ("backward", 0, 45, 20),
    ("dp_pod_reduce_scatter", 1, 45, 4), ("dp_across_reduce_scatter", 1, 49, 6),
    ("dp_pod_reduce_scatter", 0, 65, 4), ("dp_across_reduce_scatter", 0, 69, 6), ("optimizer", None, 75, 5),
    ("dp_across_all_gather", 0, 80, 3), ("dp_pod_all_gather", 0, 83, 2),
    ("dp_across_all_gather", 1, 80, 3), ("dp_pod_all_gather", 1, 83, 2),
)  # fmt: skip
"""What each rank does in a step: segment, chunk, begin and duration in ms. Chunk 1 is reduced behind the backward of
chunk 0, and the gathered weights of both chunks are on their way at once."""

WHOLE_MS = 3 + 2 + 10 + 10 + 20 + 20 + 4 + 6 + 5

ACTIONS: tuple[tuple[str, int | None, tuple[int, ...]], ...] = (
    ("forward", 0, (7,)), ("forward", 1, (8,)), ("backward", 1, (1,)), ("reduce_scatter", 1, (2,)),
    ("backward", 0, (0,)), ("reduce_scatter", 0, (4,)), ("optimizer_step", None, (3, 5)),
    ("all_gather", 0, (6,)), ("all_gather", 1, (6,)),
)  # fmt: skip
"""Of the schedule: action, chunk, and the positions that it waits for."""

NAMES = tuple(dict.fromkeys(name for name, *_ in LINE))


def axis_of(name: str) -> str | None:
    return next((axis for axis in GROUPS if name.startswith(axis)), None)


def events(slow_ms: float) -> list[dict[str, Any]]:
    """Four replicas in two pods; the last reduction between ranks 1 and 3 takes ``slow_ms`` longer, and all that
    follows begins as much later on them; the others wait for them where they meet in a pod."""
    rows = []
    for step in range(STEPS):
        for rank in range(4):
            for order, (name, chunk, begin_ms, took_ms) in enumerate(LINE):
                axis, begin, took, is_slow = axis_of(name), float(begin_ms), float(took_ms), rank in (1, 3)
                if (name, chunk) == ("dp_across_reduce_scatter", 0):
                    took += slow_ms if is_slow else 0.0
                elif begin_ms >= 75:
                    begin += slow_ms if is_slow else 0.0
                    took += slow_ms if name == "dp_pod_all_gather" and not is_slow else 0.0
                group = next((ranks for ranks in GROUPS[axis] if rank in ranks), None) if axis else None
                rows.append(
                    {
                        "rank": rank, "step": step, "segment": 1 + NAMES.index(name), "chunk": chunk,
                        "microbatch": 0 if name in ("forward", "backward") else None,
                        "start_ns": round((step * PERIOD_MS + begin) * MS), "duration_ns": round(took * MS),
                        "self_ns": round(took * MS), "group": None if group is None else group_id(str(axis), group),
                        "sequence": None if group is None else step * 100 + order, "status": "ok", "clock": "host",
                    }
                )  # fmt: skip
    return rows


def whatif(root: Path, slow_ms: float = 0.0) -> WhatIf:
    rows = events(slow_ms)
    kinds = ["collective" if axis_of(name) else "optimizer" if name == "optimizer" else "compute" for name in NAMES]
    axes = ["dp" if axis_of(name) else None for name in NAMES]
    tables: dict[str, dict[str, Any]] = {
        "runs": {"layout": [json.dumps({"dp": 4})], "world_size": [4], "exit_reason": ["finished"]},
        "segments": {"segment": range(1, len(NAMES) + 1), "name": NAMES, "kind": kinds, "axis": axes},
        "events": {name: [one[name] for one in rows] for name in rows[0]},
        "groups": {
            "group": [group_id(axis, ranks) for axis, pairs in GROUPS.items() for ranks in pairs],
            "kind": [axis for axis, pairs in GROUPS.items() for _ in pairs],
            "ranks": [list(ranks) for pairs in GROUPS.values() for ranks in pairs],
        },
        "schedule": {
            "stage": [0] * len(ACTIONS), "position": range(len(ACTIONS)), "action": [one for one, *_ in ACTIONS],
            "chunk": [chunk for _, chunk, _ in ACTIONS],
            "microbatch": [0 if action in ("forward", "backward") else None for action, *_ in ACTIONS],
            "depends_on": [[{"stage": 0, "position": at} for at in after] for *_, after in ACTIONS],
        },
    }  # fmt: skip
    with TableWriter(root, "test") as writer:
        for table, columns in tables.items():
            writer.write(table, "job", 0, {name: list(values) for name, values in columns.items()})
        hosts = {"rank": [0, 1, 2, 3], "host": ["a", "a", "b", "b"], "dp": [0, 1, 2, 3]}
        writer.write("ranks", "job", 0, hosts, axes=("dp",))
        writer.commit()
    with Store(root) as store:
        attempt = store.attempt()
        return find_whatif(store, attempt, load_placement(store, attempt), np.arange(1, STEPS))


def test_both_phases_are_the_schedules_actions_and_overlap_as_they_did(tmp_path: Path) -> None:
    found = whatif(tmp_path)
    assert found.step_s == pytest.approx(WHOLE_MS / 1000)
    assert found.slowdown == pytest.approx(1)


def test_a_slow_link_across_pods_costs_what_it_adds_to_the_step(tmp_path: Path) -> None:
    found = whatif(tmp_path, slow_ms=12.0)
    assert found.step_s == pytest.approx((WHOLE_MS + 12) / 1000)
    assert found.slowdown == pytest.approx((WHOLE_MS + 12) / WHOLE_MS)
    assert found.of(Part.SEGMENT)[0].name == "dp_across_reduce_scatter"
