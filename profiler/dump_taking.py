"""What the Flight Recorders of this process hold, as one dump of format 2.x.

torch has two, and neither knows what the other one holds: groups of NCCL record into one of their own
(`_dump_nccl_trace_json`, only in builds with NCCL), gloo into a general one (`_dump_fr_trace_json`). Where both hold
operations they are brought together in the order in which they were enqueued.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

log = logging.getLogger(__name__)

MOST_OVER = 400
"""Operations that are over in a dump, the newest: about 200 KB. All that are in flight are in it beside them, and the
last of each group, by which its number is known."""

NCCL, GENERAL = "_dump_nccl_trace_json", "_dump_fr_trace_json"

IDS_APART = 2**20
"""Added to gloo's numbers of groups in a dump of both: each recorder counts them from 0."""

NOTHING = "no recorder of this process holds an operation: it recorded nothing, or was turned off"

_Dump = dict[str, Any]


def take_dump() -> _Dump | None:
    """A dump of this rank, bounded, with its groups' members; None where this torch has no Flight Recorder.

    gloo's dumps name no group (`pg_config`): it is filled in from what torch knows. A dump without an operation says so
    (``note``): that a rank answers is not to be mistaken for what it did. Stacks are left out, since they may need the
    interpreter's lock.
    """
    library = sys.modules.get("torch._C._distributed_c10d")
    takers = {name: taker for name in (NCCL, GENERAL) if (taker := getattr(library, name, None)) is not None}
    if not takers:
        return None
    held = {name: _asked(name, taker) for name, taker in takers.items()}
    known, shared = _groups()
    content = _together(held.get(NCCL, {}), held.get(GENERAL, {}), known, shared)
    content["entries"] = _bounded(content.get("entries") or [])
    if not content["entries"]:
        content["note"] = NOTHING
    return content


def is_over(entry: Mapping[str, Any]) -> bool:
    """Whether an operation is in flight no more. NCCL says which have completed, and retires others too: those timed
    out. gloo calls all scheduled, and retires what is over, completed or failed."""
    if entry.get("state") == "completed":
        return True
    return bool(entry.get("retired")) and not _is_nccl(entry)


def _is_nccl(entry: Mapping[str, Any]) -> bool:
    return str(entry["profiling_name"]).startswith("nccl")


def _asked(name: str, taker: Callable[[bool, bool], bytes]) -> _Dump:
    """What a recorder holds; nothing where it fails, so that the other one is still asked."""
    try:
        content = json.loads(taker(True, False))
    except Exception as error:  # whatever a library raises here, the rank is to go on
        log.warning("torch's %s does not give its dump (%s).", name, error)
        return {}
    return content if isinstance(content, dict) else {}


def _together(nccl: _Dump, general: _Dump, known: _Dump, shared: frozenset[str]) -> _Dump:
    """Both dumps as one. ``known``: torch's groups as `pg_config` has them; ``shared``: those of several libraries.

    Newer versions of torch give NCCL's operations from either: they are taken once.
    """
    has_own = bool(nccl.get("entries"))
    others = [_apart(one, shared) for one in general.get("entries") or [] if not (has_own and _is_nccl(one))]
    own, config = _named(nccl), {**known, **_named(general), **_named(nccl), **_configs_apart(others, known)}
    if not (has_own or nccl.get("pg_status") or own):
        return {**general, "pg_config": config, "entries": others}
    if not others:
        return {**nccl, "pg_config": own or known}
    moved = [{**one, "pg_id": int(one["pg_id"]) + IDS_APART} for one in others]
    ids = {one["pg_id"] for one in moved}
    counts = {int(number) + IDS_APART: one for number, one in general.get("pg_status", {}).items()}
    status = {str(number): one for number, one in counts.items() if number in ids}
    entries = sorted([*(nccl.get("entries") or []), *moved], key=lambda one: int(one.get("time_created_ns") or 0))
    entries = [{**one, "record_id": number} for number, one in enumerate(entries)]
    return {**nccl, "pg_config": config, "pg_status": {**nccl.get("pg_status", {}), **status}, "entries": entries}


def _named(content: _Dump) -> _Dump:
    """The groups that a recorder names with their members: gloo's names none, or one without a name."""
    config = content.get("pg_config") or {}
    return {name: one for name, one in config.items() if name and str(one.get("ranks", "[]")) != "[]"}


def _apart(entry: _Dump, shared: frozenset[str]) -> _Dump:
    """An operation of a group that NCCL carries too, under a name of its own: each library counts by itself."""
    name, description = entry["process_group"]
    if name not in shared or _is_nccl(entry):
        return entry
    return {**entry, "process_group": [_with_library(name, entry), _with_library(description, entry)]}


def _with_library(name: str, entry: _Dump) -> str:
    return f"{name} {str(entry['profiling_name']).partition(':')[0]}"


def _configs_apart(entries: Sequence[_Dump], known: _Dump) -> _Dump:
    """`pg_config` of the names that `_apart` gave."""
    found = {}
    for entry in entries:
        name, description = entry["process_group"]
        plain = name.rpartition(" ")[0]
        if name not in known and plain in known:
            found[name] = {"name": name, "desc": description, "ranks": known[plain]["ranks"]}
    return found


def _bounded(entries: Sequence[_Dump]) -> list[_Dump]:
    """The newest operations that are over, all that are in flight, and the last one of each group, in their order."""
    last = {int(one["pg_id"]): number for number, one in enumerate(entries)}
    kept = {*range(max(0, len(entries) - MOST_OVER), len(entries)), *last.values()}
    return [one for number, one in enumerate(entries) if number in kept or not is_over(one)]


def _groups() -> tuple[_Dump, frozenset[str]]:
    """This rank's process groups, as a dump's `pg_config` has them, and the names of those with several libraries."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return {}, frozenset()
    world, found, shared = distributed._world, {}, set()
    for group, name in list(world.pg_names.items()):
        ranks = sorted(world.pg_group_ranks.get(group, ()))
        if ranks:
            found[name] = {"name": name, "desc": str(group.group_desc), "ranks": str(ranks)}
        by_device = str(world.pg_backend_config.get(group, "")).split(",")  # such as cpu:gloo,cuda:nccl
        if len({one.rpartition(":")[2] for one in by_device}) > 1:
            shared.add(name)
    return found, frozenset(shared)
