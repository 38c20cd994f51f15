"""Incidents of who follows a store from outside: what no agent judges is kept in the store too, and not twice."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...profiler.host import host_name
from ..spool.outbox import UNFIT
from ..storage.shared_claim import SharedClaim
from ..tables.schemas import block_name
from ..writing.writer import TableWriter
from .diagnosing import diagnosis_claim
from .incidents import SOURCE, Incident

KIND = "watched"
"""Of an incident that a watch opened, as no agent judged what it saw."""

Key = tuple[str, int]
"""Run and attempt."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a watch came to. ``why`` it judged is a sentence, ``text`` the verdict's JSON. ``looks`` are rows of
    ``in_flight`` without incident and snapshot, of the first and the second snapshot, ``moments`` those of the two, UTC
    ns. ``is_over``: the attempt has ended."""

    why: str
    state: str
    text: str
    moments: Sequence[int] = ()
    looks: Sequence[Sequence[Mapping[str, Any]]] = ()
    is_over: bool = False


class WatchedIncidents:
    """Keeps one incident at a time of each attempt, under the claim that agents diagnose under.

    While an agent or another watch has that claim nothing is written: it waits until the claim is free. ``problem``
    tells why the last try to write failed; None where it did not. A store that cannot be written harms nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writer: TableWriter | None = None
        self._holder = f"{host_name()}:{os.getpid()}:watch-{next(_numbers)}"
        self._claims: dict[Key, SharedClaim] = {}
        self._incidents: dict[Key, list[Incident]] = defaultdict(list)
        self._waiting: dict[Key, Judgement] = {}
        self.problem: str | None = None

    def judged(self, key: Key, judgement: Judgement) -> None:
        """Keep a verdict, now or once the claim is to be had; the newest verdict on what is open counts."""
        self._waiting[key] = judgement
        self.poll()

    def poll(self) -> None:
        """Try again what waits, and renew the claims on what is open."""
        for claim in self._claims.values():
            claim.keep()
        for key, judgement in list(self._waiting.items()):
            self._try(key, functools.partial(self._add, key, judgement))

    def over(self, key: Key, why: str, *, is_open: bool) -> None:
        """What was open of an attempt is over: ``why``, as a sentence. Agents may have the claim then.

        ``is_open``: the store has an open incident of a watch of this host, be it an earlier one.
        """
        self._waiting.pop(key, None)
        if is_open or any(one.closed_ns is None for one in self._incidents.get(key, ())):
            self._try(key, functools.partial(_close, why))
        claim = self._claims.pop(key, None)
        if claim is not None:
            claim.give_free()

    def close(self) -> None:
        """Give all free. What is open stays so, for the next watch of this host."""
        for claim in self._claims.values():
            claim.give_free()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _try(self, key: Key, change: Callable[[list[Incident]], None]) -> None:
        """Commit a change of an attempt's incidents, if this process has the claim; or leave all as it was."""
        try:
            if not self._has_claim(key):
                return
            if self._writer is None:
                self._writer = TableWriter(self._root, f"watch-{host_name()}")
                self._resume(self._writer.state.get("incidents", []))
            incidents = copy.deepcopy(self._incidents[key])
            change(incidents)
            if not incidents:
                return
            rows = [one.row() for one in incidents]
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._writer.write("incidents", *key, columns, replace=True)
            known = {**self._incidents, key: incidents}
            self._writer.commit({"incidents": [[*key, [asdict(one) for one in own]] for key, own in known.items()]})
        except (OSError, *UNFIT) as error:
            self.problem = str(error) or type(error).__name__
            if self._writer is not None:
                self._writer.rollback()
            return
        self.problem, self._incidents[key] = None, incidents
        self._waiting.pop(key, None)
        if all(one.closed_ns is not None for one in incidents):
            self._claims[key].give_free()

    def _has_claim(self, key: Key) -> bool:
        claim = self._claims.get(key) or diagnosis_claim(self._root, *key, self._holder)
        self._claims[key] = claim
        return claim.take()

    def _resume(self, state: Sequence[tuple[str, int, Sequence[Mapping[str, Any]]]]) -> None:
        """What an earlier watch of this host wrote."""
        for run, attempt, incidents in state:
            self._incidents.setdefault((run, attempt), [Incident(**values) for values in incidents])

    def _add(self, key: Key, judgement: Judgement, incidents: list[Incident]) -> None:
        now = time.time_ns()
        found = next((one for one in incidents if one.closed_ns is None), None)
        if found is None:
            run, attempt = key
            found = Incident(f"{run}/{attempt}/{host_name()}/{KIND}/{len(incidents)}", KIND, now)
            incidents.append(found)
        if found.snapshots == 0:
            self._snapshot(found, key, judgement)
        found.note("diagnosed", now, verdict=judgement.state, why=judgement.why)
        found.verdict = judgement.text
        found.closed_ns = now if judgement.is_over else None

    def _snapshot(self, incident: Incident, key: Key, judgement: Judgement) -> None:
        assert self._writer is not None
        blocks: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number, (moment_ns, rows) in enumerate(zip(judgement.moments, judgement.looks, strict=True), 1):
            incident.note("snapshot", moment_ns, snapshot=number)
            incident.snapshots, incident.snapshot_ns = number, moment_ns
            same = {"incident": incident.incident, "snapshot": number, "source": SOURCE}
            for row in rows:
                blocks[block_name(row["rank"])].append({**row, **same})
        for block, found in blocks.items():
            columns = {name: [row[name] for row in found] for name in found[0]}
            self._writer.write("in_flight", *key, columns, block=block)


def is_of_this_host(incident: str) -> bool:
    """Whether an incident, by its name, is one that a watch of this host wrote."""
    return incident.rpartition(f"/{KIND}/")[0].endswith(f"/{host_name()}")


def _close(why: str, incidents: Sequence[Incident]) -> None:
    now = time.time_ns()
    for one in incidents:
        if one.closed_ns is None:
            one.closed_ns = now
            one.note("over", now, why=why)
