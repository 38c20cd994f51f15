"""What one rank did, from its Kineto trace: spans in steps, nested, with launches and exposed communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....profiler.vocabulary import Clock, SegmentKind, Status
from ..columns import ABSENT, IntArray, SegmentInfo, named, nullable
from ..intervals import covered_between, enclosing
from .file import LONGEST_NS, Collective, KinetoFile, Where
from .segments import HOST_STREAM, communication_segment, segment_of


@dataclass(slots=True)
class RankSpans:
    """Spans [N] of one rank that are kept, in the order of their start. ``segment`` is an index in ``segments``.

    ``communication`` maps the index of a span that communicates to what its arguments tell.
    """

    rank: int
    segments: list[SegmentInfo]
    segment: IntArray
    parent: IntArray
    streams: list[str]
    stream: IntArray
    thread: IntArray
    is_device: npt.NDArray[np.bool_]
    start_ns: IntArray
    duration_ns: IntArray
    self_ns: IntArray
    exposed_ns: IntArray
    enqueue_ns: IntArray
    step: IntArray
    status: IntArray
    communication: dict[int, Collective]
    steps: list[tuple[int, int, int]]
    early_ns: IntArray

    def __len__(self) -> int:
        return len(self.segment)


STATUSES = (Status.OK, Status.ABORTED, Status.REJECTED)
"""What the codes in `RankSpans.status` mean."""


def rank_spans(file: KinetoFile, rank: int, depth: int) -> RankSpans:
    """Spans of a file. Of the host's operators those are kept that stand less than ``depth`` deep in each other."""
    columns = file.spans
    start, duration = np.array(columns.start, np.int64), np.array(columns.duration, np.int64)
    where, lane = np.array(columns.where, np.int64), np.array(columns.lane, np.int64)
    is_device = (where == Where.KERNEL) | (where == Where.COPY)
    end = start + np.maximum(duration, 0)
    parent = _parents(lane, start, end, ~is_device & (duration != ABSENT))
    far = _is_far(start)
    file.unreadable += int(far.sum())
    kept = np.flatnonzero(_is_kept(where, parent, depth) & ~far)
    kept = kept[np.argsort(start[kept], kind="stable")]
    new = np.full(len(start) + 1, ABSENT, np.int64)
    new[kept] = np.arange(len(kept))
    communication = {int(new[index]): one for index, one in file.collectives.items() if not far[index]}
    segments, segment = _segments(file, kept, where, np.array(columns.name, np.int64), communication)
    steps, launch = _steps(file, start[~far], end[~far]), file.launches()[kept]
    begin = np.where(is_device[kept] & (launch != ABSENT), launch, start[kept])
    status = _status(file, new)[: len(kept)]
    lanes = _Lanes.of(file)
    result = RankSpans(
        rank=rank,
        segments=segments,
        segment=segment,
        parent=new[_kept_parents(parent, kept)[kept]],
        streams=lanes.streams,
        stream=lanes.stream[lane[kept]],
        thread=lanes.thread[lane[kept]],
        is_device=is_device[kept],
        start_ns=start[kept],
        duration_ns=np.where(status == 0, duration[kept], ABSENT),
        self_ns=np.zeros(len(kept), np.int64),
        exposed_ns=np.full(len(kept), ABSENT, np.int64),
        enqueue_ns=launch,
        step=_step_of(begin, steps, is_marked=bool(file.steps)),
        status=status,
        communication=communication,
        steps=steps,
        early_ns=(launch - start[kept])[(launch != ABSENT) & (launch > start[kept])],
    )
    result.self_ns = _self(result)
    _expose(result)
    return result


def _is_far(start: IntArray) -> npt.NDArray[np.bool_]:
    """Which spans begin more than a day from the middle one, as no window that a profiler records does. [N] -> [N]."""
    if not len(start):
        return np.zeros(0, np.bool_)
    far: npt.NDArray[np.bool_] = np.abs(start - int(np.median(start))) > LONGEST_NS
    return far


def _parents(lane: IntArray, start: IntArray, end: IntArray, nests: npt.NDArray[np.bool_]) -> IntArray:
    """The enclosing span of each that ``nests`` [N]; `ABSENT` for all others."""
    rows = np.flatnonzero(nests)
    inner = enclosing(lane[rows], start[rows], end[rows])
    parent = np.full(len(lane), ABSENT, np.int64)
    parent[rows] = np.where(inner == ABSENT, ABSENT, rows[inner]) if len(rows) else parent[rows]
    return parent


def _status(file: KinetoFile, new: IntArray) -> IntArray:
    """Index in `STATUSES` of each kept span; ``new`` tells its place, `ABSENT` for what is not kept."""
    status = np.zeros(len(new), np.int64)
    for code, indices in ((1, file.aborted), (2, file.rejected)):
        places = new[np.fromiter(indices, np.int64, len(indices))]
        status[places[places != ABSENT]] = code
    return status


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Stream (index in ``streams``) and thread of each lane of a file, [L]."""

    streams: list[str]
    stream: IntArray
    thread: IntArray

    @classmethod
    def of(cls, file: KinetoFile) -> _Lanes:
        """What ran on a device has its stream, and no thread of its own."""
        lanes = [key for key, _ in sorted(file.lanes.items(), key=lambda item: item[1])]
        several = len({pid for is_device, pid, _ in lanes if is_device}) > 1
        names = [_stream(pid, tid, several=several) if is_device else HOST_STREAM for is_device, pid, tid in lanes]
        streams = list(dict.fromkeys(names))
        hosted = np.cumsum([not is_device for is_device, *_ in lanes]) - 1
        thread = np.where([is_device for is_device, *_ in lanes], 0, np.minimum(hosted, np.iinfo(np.int16).max))
        return cls(streams, np.array([streams.index(one) for one in names], np.int64), thread.astype(np.int64))


def _stream(device: str, stream: str, *, several: bool) -> str:
    """What a stream of a device is called: streams of several devices have the same numbers."""
    return f"device {device} stream {stream}" if several else f"stream {stream}"


def _is_kept(where: IntArray, parent: IntArray, depth: int) -> npt.NDArray[np.bool_]:
    """All but operators that stand ``depth`` or more deep in other operators."""
    is_operator = where == Where.OPERATOR
    level, at = np.zeros(len(where), np.int64), parent
    while (at != ABSENT).any():  # one turn for each level of nesting
        level += (at != ABSENT) & is_operator[np.maximum(at, 0)]
        at = np.where(at != ABSENT, parent[np.maximum(at, 0)], ABSENT)
    kept: npt.NDArray[np.bool_] = ~is_operator | (level < depth)
    return kept


def _kept_parents(parent: IntArray, kept: IntArray) -> IntArray:
    """The next enclosing span that is kept, of every span; the last index stands for none."""
    is_kept = np.zeros(len(parent) + 1, np.bool_)
    is_kept[kept] = True
    at = np.where(parent == ABSENT, len(parent), parent)
    following = np.r_[at, len(parent)]
    while True:
        lost = ~is_kept[at] & (at != len(parent))
        if not lost.any():
            return at
        at = np.where(lost, following[at], at)


def _segments(
    file: KinetoFile, kept: IntArray, where: IntArray, name: IntArray, communication: dict[int, Collective]
) -> tuple[list[SegmentInfo], IntArray]:
    """What each kept span is an execution of."""
    names = list(file.names)
    has_device = file.has_device
    key = name[kept] * len(Where) + where[kept]
    distinct, place = np.unique(key, return_inverse=True)
    kinds = len(Where)
    infos = [segment_of(names[code // kinds], Where(code % kinds), has_device=has_device) for code in distinct.tolist()]
    known: dict[SegmentInfo, int] = {}
    index = np.array([known.setdefault(info, len(known)) for info in infos], np.int64)
    segment = index[place] if len(index) else np.zeros(0, np.int64)
    for span, one in communication.items():
        info = communication_segment(names[int(name[kept[span]])], one)
        segment[span] = known.setdefault(info, len(known))
    for span in np.flatnonzero([info.kind == SegmentKind.COLLECTIVE for info in known]).tolist():
        for at in np.flatnonzero(segment == span).tolist():
            communication.setdefault(at, Collective(None, None, None, (), None))
    return list(known), segment


def _steps(file: KinetoFile, start: IntArray, end: IntArray) -> list[tuple[int, int, int]]:
    """Step, start and duration, by their start; one implicit step 0 where none was marked."""
    if file.steps:
        steps = np.array([begin for _, begin, _ in file.steps], np.int64)
        near = ~_is_far(np.r_[steps, start])[: len(steps)] if len(start) else np.ones(len(steps), np.bool_)
        newest = {one[0]: one for one, is_near in zip(file.steps, near.tolist(), strict=True) if is_near}
        return sorted(newest.values(), key=lambda one: one[1])
    if not len(start):
        return []
    return [(0, int(start.min()), int(end.max() - start.min()))]


def _step_of(moment: IntArray, steps: list[tuple[int, int, int]], *, is_marked: bool) -> IntArray:
    """Step that each moment belongs to: up to the next one's start, the last up to its end."""
    if not steps:
        return np.full(len(moment), ABSENT, np.int64)
    number, begin, duration = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    at = np.searchsorted(begin, moment, side="right") - 1
    inside = at >= 0
    if is_marked:
        inside &= moment < np.r_[begin[1:], begin[-1] + duration[-1]][np.maximum(at, 0)]
    return np.where(inside | (not is_marked), number[np.maximum(at, 0)], ABSENT)


def _self(spans: RankSpans) -> IntArray:
    """Duration without that of the children; `ABSENT` where it was not measured."""
    inside = np.zeros(len(spans) + 1, np.int64)
    has = (spans.parent != ABSENT) & (spans.duration_ns != ABSENT)
    np.add.at(inside, spans.parent[has], spans.duration_ns[has])
    own = np.maximum(spans.duration_ns - inside[:-1], 0)
    return np.where(spans.duration_ns == ABSENT, ABSENT, own)


def _expose(spans: RankSpans) -> None:
    """Fill in how long each communication ran on the device without a kernel of work beside it."""
    rows = np.array([at for at in spans.communication if spans.is_device[at]], np.int64)
    rows = rows[spans.duration_ns[rows] != ABSENT]
    work = spans.is_device & (spans.duration_ns != ABSENT)
    work[list(spans.communication)] = False
    start, end = spans.start_ns, spans.start_ns + spans.duration_ns
    covered = covered_between(start[work], end[work], start[rows], end[rows])
    spans.exposed_ns[rows] = spans.duration_ns[rows] - covered


def event_rows(spans: RankSpans, rows: IntArray, group: IntArray, sequence: IntArray) -> pa.Table:
    """Rows of ``events`` for chosen spans [K]; ``group`` and ``sequence`` [K] are 0 where there is none."""
    ids = np.array([info.id for info in spans.segments], np.int64)
    size = [spans.communication[at].size_bytes if at in spans.communication else None for at in rows.tolist()]
    parent = spans.parent[rows]
    parents = ids[spans.segment[np.maximum(parent, 0)]] if len(spans) else parent
    return pa.table(
        {
            "rank": pa.array(np.full(len(rows), spans.rank, np.int32)),
            "step": nullable(spans.step[rows], pa.int64()),
            "segment": pa.array(ids[spans.segment[rows]]),
            "stream": named(spans.stream[rows], spans.streams),
            "thread": pa.array(spans.thread[rows].astype(np.int16)),
            "parent": pa.array(parents, mask=parent == ABSENT),
            "start_ns": pa.array(spans.start_ns[rows]),
            "duration_ns": nullable(spans.duration_ns[rows], pa.int64()),
            "self_ns": nullable(spans.self_ns[rows], pa.int64()),
            "exposed_ns": nullable(spans.exposed_ns[rows], pa.int64()),
            "enqueue_ns": nullable(spans.enqueue_ns[rows], pa.int64()),
            "clock": named(spans.is_device[rows].astype(np.int64), [str(Clock.HOST), str(Clock.DEVICE)]),
            "group": nullable(group, pa.int64(), 0),
            "sequence": nullable(sequence, pa.int64(), 0),
            "size_bytes": pa.array(size, pa.int64()),
            "status": named(spans.status[rows], [str(one) for one in STATUSES]),
        }
    )
