"""Incidents of a synthetic job: a stall that an agent judged, a supervisor's recovery, and a sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megascope.collectors.writing.writer import TableWriter

from .synthetic_job import SyntheticJob

S = 10**9
DEATH = "CUDA error: device-side assert\ntriggered"


def add_incidents(root: Path, job: SyntheticJob) -> None:
    """Write them; the newest is the recovery, which is still open, and the stall is the oldest."""
    first = job.first_ns
    verdict: dict[str, Any] = {
        "schema": 1, "run": job.run, "attempt": job.attempt, "verdict": "hang", "culprits": [
            {"ranks": [5], "hosts": ["node0002"], "confidence": 0.9, "severity": "high", "kind": "device-stuck",
             "segment": "forward", "evidence": [{"statement": "rank 5 has been in forward for 41 s", "value": 41.0,
                                                 "peers": 0.1, "table": "heartbeats", "sql": "SELECT 41"}],
             "next": ["look for Xid errors on node0002", "fence node0002"]}
        ],
        "abstained": [],
    }  # fmt: skip
    stall = _row(f"{job.run}/0/node0002/stalled/0", "stalled", first + S, first + 61 * S, verdict, [
        {"action": "stood-still", "moment_ns": first + S, "quiet_s": 12.5, "patience_s": 10.0},
        {"action": "snapshot", "moment_ns": first + 2 * S, "snapshot": 1},
        {"action": "stack", "moment_ns": first + 3 * S, "rank": 5, "method": "py-spy",
         "stack": "forward (model.py:10)\nstep (loop.py:20)\nmain (train.py:3)\nrun (x.py:1)"},
        {"action": "diagnosed", "moment_ns": first + 4 * S, "verdict": "hang", "took_s": 0.8},
    ])  # fmt: skip
    sign = _row(f"{job.run}/0/supervisor/sign-slow-rank/0", "sign-slow-rank", first + 20 * S, first + 20 * S, None, [
        {"action": "sign", "moment_ns": first + 20 * S, "sentence": "rank 5 takes 1.6 times the median step",
         "threshold": 1.5, "ranks": [5]},
    ])  # fmt: skip
    death = _row(f"{job.run}/0/node0001/rank-died/0", "rank-died", first + 30 * S, first + 31 * S, None, [
        {"action": "noticed-death", "moment_ns": first + 30 * S, "rank": 2, "state": "exception",
         "type": "RuntimeError", "message": DEATH},
        {"action": "noticed-death", "moment_ns": first + 30 * S, "rank": 3, "state": "gone"},
    ])  # fmt: skip
    recovery = _row(f"{job.run}/0/supervisor/recovery-hang/0", "recovery-hang", first + 62 * S, None, verdict, [
        {"action": "noticed", "moment_ns": first + 63 * S, "sentence": "nothing moves", "ranks": [5], "hosts": []},
        {"action": "decided", "moment_ns": first + 66 * S, "decision": "restart", "why": "a device is stuck"},
        {"action": "fenced", "moment_ns": first + 67 * S, "host": "node0002"},
        {"action": "restarting", "moment_ns": first + 68 * S, "attempt": 1},
        {"action": "times", "moment_ns": first + 90 * S, "detection_s": 1.0, "diagnosis_s": 2.5, "check_s": 0.5,
         "restart_s": 9.0},
    ])  # fmt: skip
    rows = [stall, sign, death, recovery]
    with TableWriter(root, f"incidents-{job.run}-{job.attempt}") as writer:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        writer.write("incidents", job.run, job.attempt, columns)
        writer.commit()


def _row(
    incident: str, kind: str, opened: int, closed: int | None, verdict: dict[str, Any] | None, actions: list[Any]
) -> dict[str, Any]:
    return {
        "incident": incident, "kind": kind, "opened_ns": opened, "closed_ns": closed,
        "verdict": None if verdict is None else json.dumps(verdict), "actions": json.dumps(actions),
    }  # fmt: skip
