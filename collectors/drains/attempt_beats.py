"""The heartbeats of an attempt's ranks on this host: when one is due, and the last one of a rank that has ended."""

from __future__ import annotations

from pathlib import Path

from ..health import RECORDER_SPAN, judged
from ..spool.heartbeat_rows import heartbeat
from ..spool.outbox import Outbox
from ..spool.processes import ProcessSample
from ..spool.rank_drain import RankDrain


class Beats:
    """Adds rows of ``heartbeats``, and of ``health`` what recording costs a rank, once."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._said_goodbye: set[Path] = set()
        self._calibrated: set[Path] = set()

    def look(self, rank: RankDrain, sample: ProcessSample | None, moment_ns: int, *, is_due: bool) -> None:
        """Add what is due of one rank; ``sample`` None: it could not be read. ``moment_ns``: UTC, for ``health``."""
        if not rank.is_ended:
            self._said_goodbye.discard(rank.path)
        has_reason = (is_due or rank.is_ended) and rank.path not in self._said_goodbye
        if rank.header is None or sample is None or not has_reason:
            return
        if rank.is_ended:
            self._said_goodbye.add(rank.path)
        if rank.path not in self._calibrated and not rank.is_resumed and rank.header.recorder_span_ns is not None:
            self._calibrated.add(rank.path)
            cost = judged(RECORDER_SPAN, rank.header.recorder_span_ns)
            where = {"host": rank.header.host, "device": rank.header.device}
            self._outbox.append("health", [{**where, **cost, "moment_ns": moment_ns}])
        self._outbox.append("heartbeats", [heartbeat(rank, sample)])
