"""What torch's NCCL watchdog writes when an operation takes too long, in the wordings of several versions."""

from __future__ import annotations

import re

from .facts import Desync, DesyncReport, DumpSignal, GroupLabel, Place, Stuck, Timeout, Watermark

UNKNOWN_ELEMENTS = 2**64 - 1
"""What a count of elements reads like where there is none (coalesced operations)."""

_LABEL = re.compile(
    r"\[PG (?:ID )?(?P<number>\w+)(?: PG GUID (?P<guid>[^\s()]+))? ?(?:\((?P<description>[^)]*)\))? "
    r"?Rank (?P<rank>\d+)\]"
)
_GUID_ONLY = re.compile(r"\[PG GUID (?P<guid>[^\s()]+) ?(?:\((?P<description>[^)]*)\))? ?Rank (?P<rank>\d+)\]")
_RANK_ONLY = re.compile(r"\[Rank (\d+)\]")
_WORK = re.compile(r"WorkNCCL\(([^)]*?)Timeout\(ms\)=(\d+)\)(?: ran for (\d+) milliseconds)?")
_FIELD = re.compile(r"(\w+)=([\w.]+)")
_FAILED = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work): (\d+)(?: PG status)?[:,]? "
    r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_SIGNAL = re.compile(
    r"Received a (?:dump signal due to a collective timeout|timeout signal) from (this local rank|\s*rank (\d+))"
)
_ASKED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)")
_STUCK = re.compile(r"Heartbeat monitor timed out!|Watchdog got stuck for")
_DESYNC = (
    (re.compile(r"To our best knowledge, ranks \[([\d, ]+)\] are the lagging ranks"), Desync.NEVER_JOINED),
    (re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier"), Desync.NOT_AT_BARRIER),
    (re.compile(r"\[([\d, ]+)\] joined but didn't finish collective #(\d+)"), Desync.NOT_FINISHED),
    (re.compile(r"\[([\d, ]+)\] finished collective #\d+, but didn't join collective #(\d+)"), Desync.NOT_JOINED),
)

Fact = Timeout | Watermark | DumpSignal | DesyncReport | Stuck


def watchdog_facts(text: str, rank: int | None, moment_ns: int | None, place: Place) -> list[Fact]:
    """All that a line of a watchdog tells; ``rank`` is the global rank that wrote it, where that is known."""
    label, group_rank = group_label(text)
    if rank is None and label is not None and label.is_world:
        rank = group_rank
    facts: list[Fact] = []
    if "WorkNCCL(" in text and "timeout" in text:
        timeout = _timeout(text, rank, group_rank, label, moment_ns, place)
        facts += [] if timeout is None else [timeout]
    mark = _watermark(text, rank, group_rank, label, moment_ns, place)
    facts += [] if mark is None else [mark]
    if found := _SIGNAL.search(text):
        source = rank if found[2] is None else int(found[2])
        facts.append(DumpSignal(rank, source, moment_ns, place))
    if _STUCK.search(text):
        facts.append(Stuck(rank, moment_ns, place))
    for pattern, kind in _DESYNC:
        if found := pattern.search(text):
            ranks = tuple(sorted({int(one) for one in re.findall(r"\d{1,7}", found[1])}))
            sequence = int(found[2]) if kind in (Desync.NOT_FINISHED, Desync.NOT_JOINED) else None
            facts.append(DesyncReport(ranks, kind, sequence, place))
    return facts


def group_label(text: str) -> tuple[GroupLabel | None, int | None]:
    """The group that a line speaks of and the speaker's number in it; the bare `[Rank 3]` tells no group."""
    if found := _LABEL.search(text):
        label = GroupLabel(found["number"], found["guid"], found["description"])
        return label, int(found["rank"])
    if found := _GUID_ONLY.search(text):
        return GroupLabel(None, found["guid"], found["description"]), int(found["rank"])
    if found := _RANK_ONLY.search(text):
        return None, int(found[1])
    return None, None


def _timeout(
    text: str, rank: int | None, group_rank: int | None, label: GroupLabel | None, moment_ns: int | None, place: Place
) -> Timeout | None:
    found = _WORK.search(text)
    if found is None:
        return None
    told = dict(_FIELD.findall(found[1]))
    sequence = told.get("SeqNum")
    return Timeout(
        rank, group_rank, label,
        int(sequence) if sequence is not None and sequence.isdigit() else None,
        told.get("OpType", "UNKNOWN"),
        _elements(told.get("NumelIn")), _elements(told.get("NumelOut")),
        int(found[2]), None if found[3] is None else int(found[3]),
        moment_ns, place,
    )  # fmt: skip


def _watermark(
    text: str, rank: int | None, group_rank: int | None, label: GroupLabel | None, moment_ns: int | None, place: Place
) -> Watermark | None:
    if found := _FAILED.search(text):
        failed, enqueued, completed = (int(found[number]) for number in (1, 2, 3))
        return Watermark(rank, group_rank, label, failed, enqueued, max(completed, 0), moment_ns, place)
    if found := _ASKED.search(text):
        enqueued, completed = int(found[1]), int(found[2])
        if enqueued >= 0:
            return Watermark(rank, group_rank, label, None, enqueued, max(completed, 0), moment_ns, place)
    return None


def _elements(text: str | None) -> int | None:
    """A count of elements; None for none, and for the number that stands for none."""
    if text is None or not text.isdigit() or int(text) == UNKNOWN_ELEMENTS:
        return None
    return int(text)
