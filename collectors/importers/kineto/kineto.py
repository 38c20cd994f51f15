"""Imports Kineto traces (torch.profiler, Chrome JSON) of one job: a file, many files, folders or a tar archive."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ....profiler.errors import FormatError, UsageError
from ....profiler.topology import Topology
from ..chrome_json import ChromeTrace, NoTraceError
from ..columns import GroupBook, SegmentInfo, last_look, segment_rows
from ..hostile import INT32, plain_name, whole
from ..imported import Imported, Progress, Rows
from ..layout_file import read_layout
from ..trace_files import OpenTrace, further, open_traces, trace_files
from .file import KinetoFile, read_kineto
from .groups import NO_GROUP, HeldBack, configured_groups, find_groups, sequences
from .rank import RankSpans, event_rows, rank_spans

DEFAULT_DEPTH = 1

PIECE = 500_000
"""Spans that become rows at once, which bounds memory."""

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)")


@dataclass(slots=True)
class _Job:
    """What is known of the job while its files are read."""

    rows: Rows
    book: GroupBook = field(default_factory=GroupBook)
    segments: dict[int, SegmentInfo] = field(default_factory=dict)
    held: list[HeldBack] = field(default_factory=list)
    files: dict[int, KinetoFile] = field(default_factory=dict)
    worlds: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    begin_ns: int | None = None
    end_ns: int | None = None
    rejected: int = 0
    dropped: int = 0
    unmarked: int = 0
    early: int = 0
    ends: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    progress: dict[int, dict[int, int]] = field(default_factory=dict)
    earliest_ns: int = 0


class KinetoTraces:
    """The traces of one job, one a rank.

    ``depth`` is how deep in each other the host's operators are kept, ``layout`` the file that tells the mesh, which no
    trace does.
    """

    def __init__(self, paths: Sequence[Path], depth: int = DEFAULT_DEPTH, layout: Path | None = None) -> None:
        self._files, self.others = trace_files(paths)
        self._depth = depth
        self._mesh = None if layout is None else read_layout(layout)
        name = plain_name(paths[0].name or paths[0].resolve())
        self.run = re.sub(r"(\.pt)?(\.trace)?(\.json|\.tar)?(\.gz|\.tgz)?$", "", name) or name

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError for damage, UsageError where the files are not one job's."""
        job = _Job(rows)
        done, total = 0, sum(file.size_bytes for file in self._files)
        for file in self._files:
            for trace in open_traces(file, self.others):
                self._read_trace(job, trace, partial(further, progress, done, total))
            done += file.size_bytes
            progress(done, total)
        if job.begin_ns is None:
            raise FormatError(f"There is no span in {', '.join(plain_name(one.path) for one in self._files[:3])}.")
        world = next(iter(job.worlds), None)
        if world is None and set(job.files) == set(range(len(job.files))):
            world = len(job.files)
            if world > 1:
                job.notes.append(f"no trace tells how many ranks there are: taken to be the {world} of its files")
        elif world is not None and max(job.files) >= world:
            raise UsageError(f"A trace is of rank {max(job.files)}, another says that there are {world} ranks.")
        mesh = self._mesh
        if mesh is not None:
            _check_mesh(job, mesh)
        rows.add("ranks", pa.concat_tables([_rank_row(file, rank, mesh) for rank, file in job.files.items()]))
        _write_communication(job, world)
        rows.add("segments", segment_rows(list(job.segments.values())))
        rows.add("groups", job.book.rows())
        return _imported(job, mesh, world, [file.name for file in job.files.values()])

    def _read_trace(self, job: _Job, source: OpenTrace, look: Callable[[IO[bytes]], None]) -> None:
        try:
            file = read_kineto(ChromeTrace(source.stream, source.name), source.name, partial(look, source.origin))
        except NoTraceError:
            if source.must_be:
                raise
            self.others.append(source.name)
            return
        rank = self._rank_of(job, file)
        spans = rank_spans(file, rank, self._depth)
        _shift(spans, _base(file.header.get("baseTimeNanoseconds")))
        job.files[rank] = file
        _remember(job, file, spans)
        job.rows.add("steps", _step_rows(spans))
        held = HeldBack(spans, configured_groups(file))
        others = np.setdiff1d(np.arange(len(spans)), held.rows)
        for begin in range(0, len(others), PIECE):
            piece = others[begin : begin + PIECE]
            none = np.zeros(len(piece), np.int64)
            job.rows.add("events", event_rows(spans, piece, none, none))
        if len(held.rows):
            job.held.append(HeldBack(_only(spans, held.rows), held.configured))
        file.forget_spans()

    def _rank_of(self, job: _Job, file: KinetoFile) -> int:
        info = file.header.get("distributedInfo")
        told = info if isinstance(info, dict) else {}
        rank, world = whole(told.get("rank"), INT32), whole(told.get("world_size"), INT32)
        if rank is None and _is_beyond(told.get("rank")):
            raise FormatError(f"{file.name} says that it is of rank {str(told['rank'])[:30]}: no job has that many.")
        if world:
            job.worlds[world] = file.name
        if len(job.worlds) > 1:
            one, other = job.worlds.items()
            raise UsageError(
                f"{one[1]} is of a job of {one[0]} ranks, {other[1]} of one of {other[0]}: import each job by itself."
            )
        if rank is None:
            named = _RANK_IN_NAME.findall(file.name)
            rank = int(named[-1][:6]) if named else 0
        if rank in job.files:
            raise UsageError(
                f"{job.files[rank].name} and {file.name} are both of rank {rank}: give the traces of one job and step."
            )
        return rank


def _is_beyond(value: Any) -> bool:
    """Whether a rank was told that is too large to be one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= INT32


def _check_mesh(job: _Job, mesh: Topology) -> None:
    """Hold a layout against the traces. Raises UsageError where they contradict it."""
    told = next(iter(job.worlds), None)
    if told is not None and told != mesh.world_size:
        raise UsageError(f"The layout has {mesh.world_size} ranks, the traces are of {told}: give the right --layout.")
    if max(job.files) >= mesh.world_size:
        raise UsageError(
            f"The layout has {mesh.world_size} ranks, and a trace is of rank {max(job.files)}: give the right --layout."
        )
    if told is None and len(job.files) != mesh.world_size:
        job.notes.append(
            f"the layout has {mesh.world_size} ranks, no trace tells how many there are: {len(job.files)} were given"
        )


def _base(value: Any) -> int:
    """The moment that times count from, ns."""
    return whole(value, 1 << 62) or 0


def _shift(spans: RankSpans, base_ns: int) -> None:
    """Make times that count from a base into times since 1970."""
    if base_ns:
        spans.start_ns += base_ns
        spans.enqueue_ns[spans.enqueue_ns >= 0] += base_ns
        spans.steps = [(step, start + base_ns, duration) for step, start, duration in spans.steps]


def _only(spans: RankSpans, rows: Any) -> RankSpans:
    """The chosen spans alone, which are all that is kept in memory of a file."""
    place = {int(at): index for index, at in enumerate(rows)}
    names = ("segment", "stream", "thread", "is_device", "start_ns", "duration_ns", "self_ns", "exposed_ns",
             "enqueue_ns", "step", "status")  # fmt: skip
    columns = {name: getattr(spans, name)[rows] for name in names}
    none = np.full(len(rows), -1, np.int64)
    communication = {place[at]: one for at, one in spans.communication.items()}
    return RankSpans(
        rank=spans.rank, segments=spans.segments, parent=none, streams=spans.streams, communication=communication,
        steps=[], early_ns=spans.early_ns[:0], **columns,
    )  # fmt: skip


def _remember(job: _Job, file: KinetoFile, spans: RankSpans) -> None:
    for info in spans.segments:
        job.segments[info.id] = info
    if len(spans):
        begin, end = int(spans.start_ns.min()), int((spans.start_ns + np.maximum(spans.duration_ns, 0)).max())
        job.begin_ns = begin if job.begin_ns is None else min(job.begin_ns, begin)
        job.end_ns = end if job.end_ns is None else max(job.end_ns, end)
        job.ends[spans.rank] = (end, spans.steps[-1][0] if spans.steps else None)
    job.rejected += len(file.rejected)
    job.dropped += file.unreadable
    job.unmarked += not file.steps
    job.early += len(spans.early_ns)
    job.earliest_ns = max(job.earliest_ns, int(spans.early_ns.max(initial=0)))
    if file.lost is not None:
        job.notes.append(file.lost)
    if file.left_out:
        job.notes.append(f"{file.name} has {file.left_out:,} more spans than fit: they are left out; cut the window")
    if file.has_other_names:
        job.notes.append(f"{file.name} has more distinct names than are told apart: the rest share one name")
    if file.aborted:
        job.notes.append(f"{file.name} has {len(file.aborted):,} spans that began and never ended (status aborted)")


def _rank_row(file: KinetoFile, rank: int, mesh: Topology | None) -> pa.Table:
    device = next(iter(file.devices)) if len(file.devices) == 1 else None
    pid = file.pid if file.pid is not None and file.pid < 1 << 31 else None
    return pa.table(
        {
            "rank": pa.array([rank], pa.int32()),
            "host": pa.array([f"host-of-rank-{rank}"]),
            "local_rank": pa.array([device if device is None or device < 1 << 31 else None], pa.int32()),
            "pid": pa.array([pid], pa.int32()),
            **{axis: pa.array([at], pa.int32()) for axis, at in (mesh.coordinates(rank) if mesh else {}).items()},
        }
    )


def _step_rows(spans: RankSpans) -> pa.Table:
    return pa.table(
        {
            "rank": pa.array([spans.rank] * len(spans.steps), pa.int32()),
            "step": pa.array([step for step, *_ in spans.steps], pa.int64()),
            "start_ns": pa.array([start for _, start, _ in spans.steps], pa.int64()),
            "duration_ns": pa.array([duration for *_, duration in spans.steps], pa.int64()),
        }
    )


def _write_communication(job: _Job, world: int | None) -> None:
    groups, notes = find_groups(job.held, world, job.book)
    job.notes += notes
    for held, group in zip(job.held, groups, strict=True):
        numbers = sequences(group)
        job.rows.add("events", event_rows(held.spans, held.rows, group, numbers))
        job.progress[held.spans.rank] = dict(
            zip(group[group != NO_GROUP].tolist(), numbers[numbers > 0].tolist(), strict=True)
        )
    for rank, (moment, step) in job.ends.items():
        job.rows.add("heartbeats", last_look(rank, moment, step, job.progress.get(rank, {})))


def _imported(job: _Job, mesh: Topology | None, world: int | None, names: list[str]) -> Imported:
    notes = list(job.notes)
    if job.unmarked:
        which = "the trace marks" if len(job.files) == 1 else f"{job.unmarked} of {len(job.files)} traces mark"
        notes.append(f"{which} no step (ProfilerStep#N): all that was recorded is taken as one implicit step 0")
    if job.early:
        notes.append(
            f"{job.early:,} kernels begin before their launch, by up to {job.earliest_ns / 1e3:,.1f} us: the clocks of "
            "host and device differ by that much"
        )
    if job.rejected:
        notes.append(f"{job.rejected:,} spans have a duration that cannot be true: they stay, with status rejected")
    if job.dropped:
        notes.append(f"{job.dropped:,} spans have no start, or one that cannot be true: they are left out")
    communicators = list(dict.fromkeys(text for file in job.files.values() for text in file.communicators))
    imported: dict[str, Any] = {"format": "kineto", "files": names[:100], "communicators": communicators[:1000]}
    configuration: dict[str, Any] = {"imported": imported}
    if mesh is None and len(job.files) > 1:
        notes.append("no trace tells the mesh: all ranks are taken to do the same work, unless --layout tells more")
    world = world if mesh is None else mesh.world_size
    if world is not None and len(job.files) < world:
        notes.append(f"traces of {len(job.files)} of {world} ranks were imported: nothing is known of the others")
    return Imported(
        layout=dict(mesh.axes) if mesh is not None else {},
        world_size=world,
        configuration=configuration,
        start_ns=job.begin_ns,
        end_ns=job.end_ns,
        notes=tuple(notes),
        rejected=job.rejected,
        dropped=job.dropped,
    )
