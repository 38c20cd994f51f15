"""Incidents of who follows a store from outside: what no agent judges is kept in the store too, and not twice."""

from __future__ import annotations

import copy
import functools
import hashlib
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

    While an agent or another watch has that claim nothing is written: it waits until the claim is free. Who has it goes
    on with what any watch before wrote of the attempt, whose writer is open for one commit only. ``problem`` tells why
    the last try to write failed; None where it did not. A store that cannot be written harms nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._holder = f"{host_name()}:{os.getpid()}:watch-{next(_numbers)}"
        self._claims: dict[Key, SharedClaim] = {}
        self._open: set[Key] = set()
        self._waiting: dict[Key, Judgement] = {}
        self.problem: str | None = None

    def judged(self, key: Key, judgement: Judgement) -> None:
        """Keep a verdict, now or once the claim is to be had; the newest verdict on what is open counts."""
        self._waiting[key] = judgement
        self._try(key, functools.partial(_add, key, judgement))

    def poll(self) -> None:
        """Try again what waits, and renew the claims on what is open."""
        for claim in self._claims.values():
            claim.keep()
        for key, judgement in list(self._waiting.items()):
            self._try(key, functools.partial(_add, key, judgement))

    def over(self, key: Key, why: str, *, is_open: bool) -> bool:
        """What was open of an attempt is over: ``why``, as a sentence. Agents may have the claim then.

        ``is_open``: the store has an open incident of a watch, be it another one. False where that cannot be closed
        now, or where a verdict on the attempt's end waits, which closes it: to be called again.
        """
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.is_over:
            return False
        self._waiting.pop(key, None)
        if (is_open or key in self._open) and not self._try(key, functools.partial(_close, why)):
            return False
        self._let_go(key)
        return True

    def close(self) -> None:
        """Give all free. What is open stays so, for the next watch."""
        for claim in self._claims.values():
            claim.give_free()

    def _try(self, key: Key, change: Callable[[TableWriter, list[Incident]], None]) -> bool:
        """Commit a change of an attempt's incidents, if this process has the claim; or leave all as it was."""
        try:
            if not self._has_claim(key):
                return False
            with TableWriter(self._root, _writer_of(*key)) as writer:
                before = [Incident(**values) for values in writer.state.get("incidents", [])]
                incidents = copy.deepcopy(before)
                change(writer, incidents)
                if incidents != before:
                    rows = [one.row() for one in incidents]
                    columns = {name: [row[name] for row in rows] for name in rows[0]}
                    writer.write("incidents", *key, columns, replace=True)
                    writer.commit({"incidents": [asdict(one) for one in incidents]})
        except (OSError, *UNFIT) as error:
            self.problem = str(error) or type(error).__name__
            return False
        self.problem = None
        self._waiting.pop(key, None)
        if any(one.closed_ns is None for one in incidents):
            self._open.add(key)
        else:
            self._let_go(key)
        return True

    def _has_claim(self, key: Key) -> bool:
        """The claim object stays until there is nothing to write any more: it counts how old another's claim is."""
        claim = self._claims.get(key) or diagnosis_claim(self._root, *key, self._holder)
        self._claims[key] = claim
        return claim.take()

    def _let_go(self, key: Key) -> None:
        self._open.discard(key)
        claim = self._claims.pop(key, None)
        if claim is not None:
            claim.give_free()


def _writer_of(run: str, attempt: int) -> str:
    """Writer's name of all watches for an attempt; a run's name may be as long as a file's."""
    return f"watch-{hashlib.sha256(run.encode()).hexdigest()[:16]}-{attempt}"


def _add(key: Key, judgement: Judgement, writer: TableWriter, incidents: list[Incident]) -> None:
    now = time.time_ns()
    found = next((one for one in incidents if one.closed_ns is None), None)
    if found is None:
        if judgement.is_over and any(_has_noted(one, judgement) for one in incidents):
            return  # another watch has seen the same end
        run, attempt = key
        found = Incident(f"{run}/{attempt}/{host_name()}/{KIND}/{len(incidents)}", KIND, now)
        incidents.append(found)
    if found.snapshots == 0:
        _snapshot(found, key, judgement, writer)
    found.note("diagnosed", now, verdict=judgement.state, why=judgement.why)
    found.verdict = judgement.text
    found.closed_ns = now if judgement.is_over else None


def _has_noted(incident: Incident, judgement: Judgement) -> bool:
    return any(one["action"] == "diagnosed" and one["why"] == judgement.why for one in incident.actions)


def _snapshot(incident: Incident, key: Key, judgement: Judgement, writer: TableWriter) -> None:
    blocks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, (moment_ns, rows) in enumerate(zip(judgement.moments, judgement.looks, strict=True), 1):
        incident.note("snapshot", moment_ns, snapshot=number)
        incident.snapshots, incident.snapshot_ns = number, moment_ns
        same = {"incident": incident.incident, "snapshot": number, "source": SOURCE}
        for row in rows:
            blocks[block_name(row["rank"])].append({**row, **same})
    for block, found in blocks.items():
        columns = {name: [row[name] for row in found] for name in found[0]}
        writer.write("in_flight", *key, columns, block=block)


def _close(why: str, _: TableWriter, incidents: Sequence[Incident]) -> None:
    now = time.time_ns()
    for one in incidents:
        if one.closed_ns is None:
            one.closed_ns = now
            one.note("over", now, why=why)
