"""Who waits for another host's checkpoint is not stuck: agents tell each other, through the store, what takes long."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..manifests.manifest import quote_name
from ..spool.rank_drain import RankDrain
from ..storage.durable import make_folders, replace_text

FOLDER = "_phases"
"""Folder of the store; in it are folders of run and attempt, with a file for each host that is in such a phase."""

TOLD_KINDS = frozenset({SegmentKind.INIT, SegmentKind.COMPILE, SegmentKind.CHECKPOINT, SegmentKind.EVAL})
"""Work that may well take long while ranks of other hosts wait. Not loading data: that is a finding."""

LOOK_S = 1.0
RENEW_S = 5.0
LEASE_S = 15.0
"""What a host told counts for so long after it was last renewed, by the clock of who reads it."""

_MOST_NAMES = 16
_numbers = itertools.count()


class PhaseBoard:
    """What the ranks of this host do that takes long, told to other hosts; and what those told."""

    def __init__(self, store: Path, run: str, attempt: int, host: str, tell_after_s: float) -> None:
        self._folder = store / FOLDER / f"run={quote_name(run)}" / f"attempt={attempt}"
        self._path = self._folder / f"{quote_name(host)}.json"
        self._tell_after_ns = int(tell_after_s * 1e9)
        self._told: tuple[str, ...] = ()
        self._told_at = self._looked_at = self._asked_at = float("-inf")
        self._elsewhere: frozenset[str] = frozenset()
        self._seen: dict[str, tuple[str, float]] = {}

    def watch(self, ranks: Sequence[RankDrain], now_ns: int) -> None:
        """Look once, and tell what has changed; ``now_ns``: UTC, of the attempt's clock on this host."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        phases = tuple(sorted(self._phases(ranks, now_ns)))[:_MOST_NAMES]
        if phases != self._told or (phases and now - self._told_at >= RENEW_S):
            self._tell(phases, now)

    def _phases(self, ranks: Sequence[RankDrain], now_ns: int) -> set[str]:
        """Segments that take long and that a rank is in itself: what is written beside training holds nobody up."""
        found = set()
        for rank in ranks:
            if rank.is_ended:
                continue
            flights = rank.flights()
            waits = any(one["kind"] in WAITING_KINDS for one in flights)
            for one in flights:
                is_beside = waits and one["kind"] == SegmentKind.CHECKPOINT
                if one["kind"] in TOLD_KINDS and not is_beside and now_ns - one["begun_ns"] >= self._tell_after_ns:
                    found.add(str(one["segment"]))
        return found

    def _tell(self, phases: tuple[str, ...], now: float) -> None:
        """Write or remove this host's file; a store that cannot be written is tried again with the next look."""
        with contextlib.suppress(OSError):
            if phases:
                make_folders(self._folder)
                replace_text(self._path, json.dumps({"segments": phases, "number": next(_numbers)}))
            else:
                self._path.unlink(missing_ok=True)
            self._told, self._told_at = phases, now

    def elsewhere(self) -> frozenset[str]:
        """What ranks of other hosts are in, by what those hosts told of late."""
        now = time.monotonic()
        if now - self._asked_at >= LOOK_S:
            self._asked_at = now
            with contextlib.suppress(OSError):
                self._elsewhere = frozenset(
                    name for path in self._folder.glob("*.json") for name in self._of(path, now)
                )
        return self._elsewhere

    def _of(self, path: Path, now: float) -> Sequence[str]:
        if path == self._path:
            return ()
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            text = path.read_text(encoding="utf-8")
            before, since = self._seen.get(path.name, ("", now))
            if text != before:
                self._seen[path.name] = text, now
            elif now - since > LEASE_S:
                return ()
            return [str(name) for name in json.loads(text)["segments"]]
        return ()

    def clear(self) -> None:
        """Tell nothing any more."""
        self._tell((), time.monotonic())
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            self._folder.parent.rmdir()


def only_waits(ranks: Sequence[RankDrain]) -> bool:
    """Whether all ranks that have anything in flight are in operations with others, and there are such ranks."""
    flights = [rank.flights() for rank in ranks if not rank.is_ended]
    busy = [own for own in flights if own]
    return bool(busy) and all(any(one["kind"] in WAITING_KINDS for one in own) for own in busy)
