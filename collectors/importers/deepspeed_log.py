"""Imports DeepSpeed's own logs: steps, and timers as spans, of the ranks that log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...profiler.errors import FormatError
from ...profiler.topology import Topology
from .columns import last_look, segment_rows
from .deepspeed_lines import DeepSpeedLines, read_deepspeed
from .deepspeed_steps import Steps, steps_of
from .hostile import plain_name
from .imported import Imported, Progress, Rows
from .log_lines import Iteration
from .log_rows import Span, event_rows, last_pass, rank_row, starts_of, step_rows, step_spans, taken_ns
from .log_text import read_text, run_of


@dataclass(frozen=True, slots=True)
class _Rank:
    """The steps of a rank whose last pass is kept; ``lost`` counts the others."""

    steps: Steps
    ones: list[Iteration]
    starts: list[int]
    spans: list[Span]
    lost: int

    @property
    def end_ns(self) -> int:
        return max(start + taken_ns(one) for one, start in zip(self.ones, self.starts, strict=True))


class DeepSpeedLog:
    """One log file, of one job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.others: list[str] = []
        self.run = run_of(path)

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError for a log without a step."""
        told, is_cut = read_text(self._path, read_deepspeed)
        progress(1, 2)
        batch = next(iter(told.batches)) if len(told.batches) == 1 else None
        found = {rank: steps_of(events, batch) for rank, events in sorted(told.events.items())}
        ranks = {rank: _rank_of(steps) for rank, steps in found.items() if steps.iterations}
        if not ranks:
            raise FormatError(f"{self._path} has no step of DeepSpeed: set steps_per_print or wall_clock_breakdown.")
        topology, world = _layout(told, max(ranks))
        for rank, one in ranks.items():
            rows.add("ranks", rank_row(rank, topology))
            rows.add("steps", step_rows(one.ones, one.starts, rank, samples=None, length=None))
            rows.add("events", event_rows(one.spans, rank))
            rows.add("heartbeats", last_look(rank, one.end_ns, one.ones[-1].step, {}))
        rows.add("segments", segment_rows([span.info for one in ranks.values() for span in one.spans]))
        progress(2, 2)
        notes = list(_notes(told, ranks, world))
        if is_cut:
            notes.append(f"{plain_name(self._path)} was cut: what could be unpacked was read")
        skipped = sorted({one.step for rank in ranks.values() for one in rank.ones if one.skipped})
        settings = {} if batch is None else {"train_batch_size": batch[0], "gradient_accumulation_steps": batch[1]}
        return Imported(
            layout={} if topology is None else dict(topology.axes),
            world_size=world,
            configuration={
                "imported": {"format": "deepspeed-log", "file": plain_name(self._path), "arguments": settings},
                **({"skipped_steps": skipped} if skipped else {}),
            },
            versions={} if told.version is None else {"deepspeed": told.version},
            start_ns=min(min(one.starts) for one in ranks.values()),
            end_ns=max(one.end_ns for one in ranks.values()),
            exit_reason=told.ended,
            notes=tuple(notes),
        )


def _rank_of(steps: Steps) -> _Rank:
    passes = list(zip(steps.iterations, starts_of(steps.iterations, 0), strict=True))
    kept = last_pass(passes)
    ones, starts = [one for one, _ in kept], [start for _, start in kept]
    return _Rank(steps, ones, starts, list(step_spans(ones, starts)), len(passes) - len(kept))


def _layout(told: DeepSpeedLines, last_rank: int) -> tuple[Topology | None, int | None]:
    """The mesh and the number of ranks: the mesh is told only where all of them are data-parallel replicas."""
    world = told.world_size
    if world is None or world <= last_rank:
        return None, None
    return (Topology.from_mapping({"dp": world}) if told.replicas == {world} else None), world


def _notes(told: DeepSpeedLines, ranks: dict[int, _Rank], world: int | None) -> Iterator[str]:
    ones = [one for rank in ranks.values() for one in rank.ones]
    steps = [rank.steps for rank in ranks.values()]
    if (world or 1) > len(ranks):
        yield f"the log is of {len(ranks):,} of {world:,} ranks"
    if any(one.is_counted for one in steps):
        yield "the log has no number of a step: its steps are counted, and the first of the log is 1"
    if any(one.has_engines for one in steps):
        yield "several engines write into the log: the steps are those of one of them, without timers"
    counts = (
        (sum(one.by_dates for one in steps), "steps took the mean of the time between two lines, with all in between"),
        (sum(one.duration_ns is None for one in ones), "steps have no duration: nothing tells it"),
        (max(one.skipped for one in steps), "steps of the job were skipped for their loss scale"),
        (sum(one.lost_timers for one in steps), "lines of timers do not tell which step they are of and are left out"),
        (sum(one.lost_speeds for one in steps), "lines of throughput count otherwise than the steps and are left out"),
        (told.micro_lines, "lines of micro-steps are parts of the timers of their steps and are left out"),
        (sum(rank.lost for rank in ranks.values()), "steps were lost or ran again, for the job went back: left out"),
    )
    yield from (f"{number:,} {what}" for number, what in counts if number)
    if any(took is None for one in ones for took in one.timers.values()):
        yield "timers of 0.00 ms were not measured: their spans have the status unmeasured"
    if any(one.timers for one in ones):
        yield "timers tell how long, not when: in each step they stand one behind the other"
    if any(one.end_ns is not None for one in ones):
        yield "the log tells no time zone: its dates are taken as UTC"
    else:
        yield "the log tells no date: the first step begins at 1970-01-01 00:00 UTC"
