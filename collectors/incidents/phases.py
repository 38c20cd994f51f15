"""Who waits for another host's checkpoint is not stuck: agents tell each other, through the store, what takes long."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..manifests.manifest import quote_name
from ..patience import PHASES
from ..spool.rank_drain import RankDrain
from ..storage.durable import make_folders, replace_text

FOLDER = "_phases"
"""Folder of the store; in it are folders of run and attempt, with a file for each host that is in such a phase."""

TOLD_KINDS = PHASES
"""Work that may well take long while ranks of other hosts wait. Not loading data: that is a finding."""

SLOW_KINDS = PHASES | {SegmentKind.DATA}
"""Work that takes long once in a while and makes all others wait; so does everything before the first step is done."""

ALL_WORK = frozenset(SegmentKind) - WAITING_KINDS
"""Before a job's first steps are done all of it is told: nobody knows how long that takes."""

LOOK_S = 1.0
RENEW_S = 5.0
LEASE_S = 15.0
"""What a host told counts for so long after it was last renewed, by the clock of who reads it."""

MOST_READ = 64
"""Of more files than this so many are read, and their counts stand for all: a fleet does not read N x N files."""

READ_A_SECOND = 8
"""Files that a host reads at most, on average, while its ranks rest."""

_MOST_NAMES = 16
_numbers = itertools.count()


class PhaseBoard:
    """What the ranks of this host do that takes long, told to other hosts; and what those told.

    ``is_starting``: whether the job's first steps are not done yet.
    """

    def __init__(self, store: Path, run: str, attempt: int, host: str, tell_after_s: float) -> None:
        self._folder = store / FOLDER / f"run={quote_name(run)}" / f"attempt={attempt}"
        self._path = self._folder / f"{quote_name(host)}.json"
        self._tell_after_ns = int(tell_after_s * 1e9)
        self.is_starting = True
        self._told: Mapping[str, int] = {}
        self._told_at = self._looked_at = self._ask_at = float("-inf")
        self._elsewhere: Counter[str] = Counter()
        self._seen: dict[str, tuple[str, float]] = {}

    def watch(self, ranks: Sequence[RankDrain], now_ns: int) -> None:
        """Look once, and tell what has changed; ``now_ns``: UTC, of the attempt's clock on this host."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        phases = dict(sorted(self._phases(ranks, now_ns).items())[:_MOST_NAMES])
        if phases != self._told or (phases and now - self._told_at >= RENEW_S):
            self._tell(phases, now)

    def _phases(self, ranks: Sequence[RankDrain], now_ns: int) -> Counter[str]:
        """Segments that take long, each with how many ranks are in it themselves and wait for nobody in it; what is
        written beside training holds nobody up, and is none."""
        found: Counter[str] = Counter()
        kinds = ALL_WORK if self.is_starting else TOLD_KINDS
        for rank in ranks:
            if rank.is_ended:
                continue
            flights = rank.flights()
            waits = any(one["kind"] in WAITING_KINDS for one in flights)
            for one in held_in(flights):
                is_beside = waits and one["kind"] == SegmentKind.CHECKPOINT
                if one["kind"] in kinds and not is_beside and now_ns - one["begun_ns"] >= self._tell_after_ns:
                    found[str(one["segment"])] += one is own_work(flights)
        return found

    def _tell(self, phases: Mapping[str, int], now: float) -> None:
        """Write or remove this host's file; a store that cannot be written is tried again with the next look."""
        with contextlib.suppress(OSError):
            if phases:
                make_folders(self._folder)
                replace_text(self._path, json.dumps({"segments": phases, "number": next(_numbers)}))
            else:
                self._path.unlink(missing_ok=True)
            self._told, self._told_at = phases, now

    def elsewhere(self) -> Counter[str]:
        """What ranks of other hosts are in, by what those hosts told of late, and how many are in it themselves."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + LOOK_S
            with contextlib.suppress(OSError):
                self._elsewhere = self._ask(now)
        return self._elsewhere

    def _ask(self, now: float) -> Counter[str]:
        paths = [path for path in self._folder.glob("*.json") if path != self._path]
        chosen = paths if len(paths) <= MOST_READ else random.sample(paths, MOST_READ)
        self._ask_at = now + LOOK_S * max(1.0, len(chosen) / READ_A_SECOND)
        found: Counter[str] = Counter()
        for path in chosen:
            found.update(self._of(path, now))
        return Counter({name: round(count * len(paths) / len(chosen)) for name, count in found.items()})

    def _of(self, path: Path, now: float) -> Mapping[str, int]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            text = path.read_text(encoding="utf-8")
            before, since = self._seen.get(path.name, ("", now))
            if text != before:
                self._seen[path.name] = text, now
            elif now - since > LEASE_S:
                return {}
            return {str(name): int(count) for name, count in json.loads(text)["segments"].items()}
        return {}

    def clear(self) -> None:
        """Tell nothing any more."""
        self._tell({}, time.monotonic())
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            self._folder.parent.rmdir()


def held_in(flights: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a rank may rest in, of all that it has open: who waits for others inside an evaluation is not evaluating,
    whichever of the two began first. A checkpoint that began last of all may be written by a thread beside that."""
    waits = [one["begun_ns"] for one in flights if one["kind"] in WAITING_KINDS and one.get("waiting")]
    if not waits:
        return list(flights)
    last = max(waits)
    return [
        one
        for one in flights
        if one["kind"] not in SLOW_KINDS or (one["kind"] == SegmentKind.CHECKPOINT and one["begun_ns"] > last)
    ]


def own_work(flights: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The innermost work that a rank does; None where it does none, or waits for others."""
    if any(one["kind"] in WAITING_KINDS and one.get("waiting") for one in flights):
        return None
    work = [one for one in flights if one["kind"] not in WAITING_KINDS]
    return max(work, key=lambda one: int(one["begun_ns"]), default=None)


def only_waits(ranks: Sequence[RankDrain]) -> bool:
    """Whether all ranks that have anything in flight are in operations with others, and there are such ranks."""
    flights = [rank.flights() for rank in ranks if not rank.is_ended]
    busy = [own for own in flights if own]
    return bool(busy) and all(any(one["kind"] in WAITING_KINDS for one in own) for own in busy)
