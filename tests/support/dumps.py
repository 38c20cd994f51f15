"""Writes Flight Recorder dumps of format 2.10, of any layout, as NCCL's recorder would."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_NS = 1_790_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of a group. ``done``: whether it completed on this rank."""

    group: str
    sequence: int
    done: bool = True
    name: str = "all_reduce"
    elements: int = 1024
    dtype: str = "Float"


@dataclass(frozen=True, slots=True)
class Message:
    """A send or a receive (``verb``) of a group in flight; ``peer`` is a rank of the job."""

    group: str
    verb: str
    peer: int


@dataclass(slots=True)
class Job:
    """Groups by name (kind, members) and the calls of each rank in their order."""

    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    calls: dict[int, list[Call | Message]] = field(default_factory=dict)
    version: str = "2.10"

    def value(self, rank: int) -> dict[str, Any]:
        """The plain values of one rank's dump."""
        own = {name: told for name, told in self.groups.items() if rank in told[1]}
        ids = {name: number for number, name in enumerate(own)}
        calls = self.calls.get(rank, [])
        collectives = [one for one in calls if isinstance(one, Call)]
        status = {ids[name]: _status([one for one in collectives if one.group == name]) for name in own}
        entries = [
            _entry(number, one, ids[one.group], own[one.group][0])
            if isinstance(one, Call)
            else _message(number, one, ids[one.group], own[one.group], rank)
            for number, one in enumerate(calls)
        ]
        return {
            "version": self.version,
            "nccl_version": "2.27.5",
            "pg_config": {
                name: {"name": name, "desc": kind, "ranks": json.dumps(list(ranks))}
                for name, (kind, ranks) in own.items()
            },
            "pg_status": status,
            "entries": entries,
        }

    def write(self, folder: Path, ranks: Sequence[int] | None = None, *, as_json: bool = False) -> Path:
        """Write the dumps of all ranks (or of those given) into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        everyone = sorted({rank for _, members in self.groups.values() for rank in members})
        for rank in everyone if ranks is None else ranks:
            value = self.value(rank)
            content = json.dumps(value).encode() if as_json else pickle.dumps(value, protocol=2)
            (folder / f"_dump_{rank}{'.json' if as_json else ''}").write_bytes(content)
        return folder


class GlooJob(Job):
    """The same as gloo's recorder: all is scheduled for ever, and retired once it is over, completed or failed."""

    def value(self, rank: int) -> dict[str, Any]:
        """The plain values of one rank's dump."""
        value = super().value(rank)
        for entry in value["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
            entry["state"], entry["time_discovered_completed_ns"] = "scheduled", None
        return value


def _status(calls: Sequence[Call]) -> dict[str, int]:
    return {
        "last_enqueued_collective": max((one.sequence for one in calls), default=-1),
        "last_started_collective": -1,
        "last_completed_collective": max((one.sequence for one in calls if one.done), default=-1),
    }


def _entry(number: int, call: Call, group: int, kind: str) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": group,
        "process_group": (call.group, kind),
        "collective_seq_id": call.sequence,
        "p2p_seq_id": 0,
        "op_id": call.sequence,
        "profiling_name": f"nccl:{call.name}",
        "time_created_ns": START_NS + number * 10**6,
        "input_sizes": [[call.elements]],
        "input_dtypes": [call.dtype],
        "output_sizes": [[call.elements]],
        "output_dtypes": [call.dtype],
        "state": "completed" if call.done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START_NS + number * 10**6 + 1 if call.done else None,
        "retired": call.done,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [],
    }


def _message(number: int, one: Message, group: int, told: tuple[str, tuple[int, ...]], rank: int) -> dict[str, Any]:
    """An entry of a message: it names both ends by their places in the group, and counts no collective."""
    kind, members = told
    arrow = "->" if one.verb == "send" else "<-"
    called = f"nccl:{one.verb} {members.index(rank)}{arrow}{members.index(one.peer)}"
    plain = _entry(number, Call(one.group, 0, done=False), group, kind)
    return {**plain, "profiling_name": called, "p2p_seq_id": number, "is_p2p": True}


def absent_member(members: Sequence[int], absent: int, *, name: str = "0", kind: str = "default_pg") -> Job:
    """One group that all but one rank have entered with number 8; all completed 7."""
    job = Job({name: (kind, tuple(members))})
    for rank in members:
        job.calls[rank] = [Call(name, number) for number in range(1, 8)]
        if rank != absent:
            job.calls[rank].append(Call(name, 8, done=False))
    return job
