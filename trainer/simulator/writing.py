"""Simulates a job into a store: rollups of all ranks, spans of chosen ones, steps, heartbeats and the small tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...collectors.manifests.manifest import manifest_folders
from ...collectors.reading.store import Store
from ...collectors.writing.writer import TableWriter
from ...profiler.errors import UsageError
from . import tables
from .background import Background
from .fault_effects import carriers, check_beside, check_fault, effect_of, fault_rows
from .faults import Fault, FaultKind
from .hangs.gaps import PLAIN, Hardness
from .hangs.hangs import hang_scene
from .hangs.spans import CompletedSpans
from .hangs.tables import SECOND, SILENT_AFTER_S, Evidence
from .job import SimulatedJob
from .session import Progress, Recording, Session, Simulated
from .spans import SEGMENTS

__all__ = ["Recording", "Simulated", "simulate", "with_faults"]

LEAST_HEARTBEAT_S = 0.01
"""More heartbeats than that would be more rows than spans."""


def with_faults(job: SimulatedJob, faults: Sequence[Fault]) -> tuple[SimulatedJob, Fault | None]:
    """The job with the faults' effects, ended before the step in which one of them hangs it; and that one.

    Raises UsageError for faults that the job has no place for, for several that hang it, and for one beside a hang
    that would not act before it.
    """
    for fault in faults:
        check_fault(fault, job)
    hangs = [fault for fault in faults if fault.is_hang]
    if len(hangs) > 1:
        raise UsageError(
            f"The faults {hangs[0].text!r} and {hangs[1].text!r} both make the job hang: give one of them."
        )
    for fault in faults:
        if hangs and not fault.is_hang:
            check_beside(fault, hangs[0])
    effects = tuple(effect_of(fault) for fault in faults if not fault.is_hang)
    return replace(job, effects=job.effects + effects), hangs[0] if hangs else None


def simulate(
    job: SimulatedJob,
    root: Path,
    recording: Recording | None = None,
    *,
    faults: Sequence[Fault] = (),
    hardness: Hardness = PLAIN,
    progress: Progress | None = None,
) -> Simulated:
    """Simulate a job and write its store; several jobs of different names may share one.

    A fault that makes the job hang ends it: the steps before are simulated, then who stands where is written, as the
    agents would have seen it, as hard to read as ``hardness`` says. Raises UsageError for a job, faults or a
    recording that do not fit each other.
    """
    job, hang = with_faults(job, faults)
    recording, late = recording or Recording(), 0
    _check_recording(job, recording, hang)
    _check_new(root, job)
    with TableWriter(root, f"simulator-{job.run}-{job.attempt}") as writer, Background(writer, job) as background:
        session = Session(job, recording, background, progress, hardness.lead)
        steps = job.steps if hang is None else hang.first_step - job.first_step
        session.simulate(steps)
        scene = None if hang is None else hang_scene(job, hang, lead=hardness.lead)
        if scene is None:
            session.write_heartbeats()
            _write_small(background, session, [fault.text for fault in faults], "finished")
            if faults:
                background.write("faults", _truth(faults, session))
        else:
            _write_small(background, session, [fault.text for fault in faults], None, scene.plan.absent)
        background.finish()
        if scene is not None:
            slow = [fault for fault in faults if not fault.is_hang]
            if slow:
                writer.write("faults", job.run, job.attempt, _truth(slow, session, is_heard_after=True))
            silent = [rank for one in slow if one.kind is FaultKind.LOST_HEARTBEATS for rank in carriers(one, job)]
            evidence = Evidence.of(scene, session.step_begin_ns, silent, hardness)
            evidence.write(writer)
            late = _write_completed(writer, evidence, recording)
        writer.commit()
    done = session.result()
    return replace(done, spans=done.spans + late, written_spans=done.written_spans + late)


def _write_completed(writer: TableWriter, evidence: Evidence, recording: Recording) -> int:
    """Spans of the step of the hang, where spans of it are wanted; how many."""
    steps, ranks = recording.span_steps, recording.span_ranks
    if ranks == () or (steps is not None and not steps[0] <= evidence.scene.step <= steps[1]):
        return 0
    spans = CompletedSpans(evidence.scene, evidence.channels, evidence.gaps, evidence.origin_ns)
    return spans.write(writer, ranks)


def _check_new(root: Path, job: SimulatedJob) -> None:
    """Raise UsageError where anybody has written the job's run and attempt before, and not this simulator alone."""
    if not root.is_dir() or next(manifest_folders(root), None) is None:
        return
    with Store(root) as store:
        if any((one.run, one.attempt) == (job.run, job.attempt) for one in store.attempts()):
            raise UsageError(f"The store {root} has a run {job.run!r} already: give another --run, or another folder.")


def _check_recording(job: SimulatedJob, recording: Recording, hang: Fault | None) -> None:
    every_s = recording.heartbeat_s
    if every_s is not None and every_s != 0 and not LEAST_HEARTBEAT_S <= every_s < math.inf:
        raise UsageError(
            f"Heartbeats every {every_s} seconds cannot be: give a number from {LEAST_HEARTBEAT_S}, or 0 for none."
        )
    for rank in recording.span_ranks or ():
        if not 0 <= rank < job.world_size:
            raise UsageError(
                f"Spans of rank {rank} are wanted, but the job has ranks 0 to {job.world_size - 1}: choose among them."
            )
    if unknown := recording.leaves_out - set(SEGMENTS):
        raise UsageError(
            f"Segments {', '.join(sorted(unknown))} are to be left out, but no job has them: choose among "
            f"{', '.join(SEGMENTS)}."
        )
    if recording.span_steps is not None and not (
        job.first_step <= recording.span_steps[0] <= min(recording.span_steps[1], job.last_step)
    ):
        first, last = recording.span_steps
        raise UsageError(
            f"Spans of steps {first} to {last} are wanted, but the job has steps {job.first_step} to {job.last_step}: "
            "choose among them."
        )
    if hang is not None and recording.span_steps is not None and recording.span_steps[0] >= hang.first_step:
        raise UsageError(
            f"Spans from step {recording.span_steps[0]} on are wanted, but the job hangs in step {hang.first_step}, "
            "and has spans before it alone: choose earlier steps."
        )


def _truth(faults: Sequence[Fault], session: Session, *, is_heard_after: bool = False) -> dict[str, list[Any]]:
    """Rows of ``faults``, with the moments at which they acted, by the true clock.

    ``is_heard_after``: the job hangs, and is heard of from then on: heartbeats are lost `SILENT_AFTER_S` later, for
    good.
    """
    job, moments = session.job, session.moments_ns
    done, rows = len(moments) - 1, fault_rows(faults, job)
    for row in rows:
        if is_heard_after and row["kind"] == FaultKind.LOST_HEARTBEATS:
            row["first_ns"] = int(moments[-1]) + SILENT_AFTER_S * SECOND
            continue
        first = max((row["first_step"] or job.first_step) - job.first_step, 0)
        last = done - 1 if row["last_step"] is None else min(row["last_step"] - job.first_step, done - 1)
        row["first_ns"], row["last_ns"] = int(moments[first]), int(moments[last + 1])
    return _columns(rows)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _write_small(
    background: Background,
    session: Session,
    faults: Sequence[str],
    exit_reason: str | None,
    absent: Sequence[int] = (),
) -> None:
    """The small tables; ranks that are ``absent`` never said where they are."""
    job = session.job
    background.write("runs", tables.run_rows(job, faults, int(session.moments_ns[-1]), exit_reason))
    background.write("ranks", tables.rank_rows(job, absent), axes=job.topology.names)
    background.write("segments", tables.segment_rows(session.recording.leaves_out))
    background.write("schedule", tables.schedule_rows(job))
    background.write("groups", pa.concat_tables(session.groups.rows()) if job.world_size > 1 else {})
    if session.recording.clock_offsets:
        background.write("clock_offsets", tables.offset_rows(job, job.start_ns))
