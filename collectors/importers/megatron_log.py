"""Imports logs of Megatron and DeepSpeed: iterations as steps, timers as spans of the rank that logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...profiler.errors import FormatError
from ...profiler.topology import Topology
from .columns import last_look, segment_rows
from .hostile import plain_name, whole
from .imported import Imported, Progress, Rows
from .layout_file import MOST_RANKS
from .log_lines import Log, read_log
from .log_rows import Span, event_rows, last_pass, rank_row, starts_of, step_rows, step_spans, taken_ns, timer_segment
from .log_text import read_text, run_of

_LONGEST = 1 << 31
"""Above any length of a sequence, and any size of a batch."""


class MegatronLog:
    """One log file, of one launch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.others: list[str] = []
        self.run = run_of(path)

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError for a log without an iteration."""
        log, is_cut = read_text(self._path, read_log)
        progress(1, 2)
        if not log.iterations:
            raise FormatError(f"{self._path} has no line of an iteration: it is no log of Megatron or DeepSpeed.")
        topology, world = find_layout(log)
        rank = max((world or 1) - 1, 0)
        begin = log.iterations[0].begin_ns or 0
        passes = list(zip(log.iterations, starts_of(log.iterations, begin), strict=True))
        kept = last_pass(passes)
        lost, is_dated = len(passes) - len(kept), any(one.begin_ns or one.end_ns for one in log.iterations)
        log.iterations, starts = [one for one, _ in kept], [start for _, start in kept]
        spans = [*_setup_spans(log, begin), *step_spans(log.iterations, starts)]
        rows.add("ranks", rank_row(rank, topology))
        rows.add("segments", segment_rows([one.info for one in spans]))
        length = whole(log.arguments.get("seq_length"), _LONGEST)
        usual = whole(log.arguments.get("global_batch_size"), _LONGEST)
        rows.add("steps", step_rows(log.iterations, starts, rank, samples=usual, length=length))
        rows.add("events", event_rows(spans, rank))
        last = max(start + taken_ns(one) for one, start in zip(log.iterations, starts, strict=True))
        rows.add("heartbeats", last_look(rank, last, log.iterations[-1].step, {}))
        progress(2, 2)
        notes = list(_notes(log, rank, world, lost, is_dated=is_dated))
        if is_cut:
            notes.append(f"{plain_name(self._path)} was cut: what could be unpacked was read")
        return Imported(
            layout={} if topology is None else dict(topology.axes),
            world_size=world,
            configuration=_configuration(log, plain_name(self._path)),
            start_ns=min([begin, *(one.start_ns for one in spans)]),
            end_ns=last,
            exit_reason=_exit_reason(log),
            notes=tuple(notes),
        )


_SIZES = (
    ("pp", ("pipeline_model_parallel_size", "pipe_parallel_size")),
    ("dp", ()),
    ("cp", ("context_parallel_size",)),
    ("tp", ("tensor_model_parallel_size", "model_parallel_size")),
)
"""Axes in Megatron's order, the outermost first, and the arguments that tell their sizes; dp is what remains."""


def find_layout(log: Log) -> tuple[Topology | None, int | None]:
    """The mesh from the dump of the arguments, and the number of ranks; None where the log does not tell."""

    def size_of(name: str) -> int | None:
        return whole(log.arguments.get(name), MOST_RANKS) or None

    world = log.world_size or size_of("world_size")
    sizes: dict[str, int] = {}
    for axis, names in _SIZES:
        sizes[axis] = next((size for name in names if (size := size_of(name)) is not None), 1)
    others = sizes["pp"] * sizes["cp"] * sizes["tp"]
    if world is None or world % others or not log.arguments:
        return None, world
    sizes["dp"] = world // others
    kept = {axis: size for axis, size in sizes.items() if size > 1 or axis in ("pp", "dp", "tp")}
    return Topology.from_mapping(kept), world


def _setup_spans(log: Log, begin_ns: int) -> Iterator[Span]:
    """Timers from before the first iteration, one behind the other up to it."""
    at = begin_ns - sum(took or 0 for took in log.before.values())
    at = max(at, 0)
    for name, took in log.before.items():
        yield Span(timer_segment(name), None, at, took, None, took)
        at += took or 0


def _configuration(log: Log, name: str) -> dict[str, Any]:
    skipped = [one.step for one in log.iterations if one.skipped]
    imported = {"format": "megatron-log", "file": name, "arguments": log.arguments}
    return {"imported": imported, **({"skipped_steps": skipped} if skipped else {})}


def _exit_reason(log: Log) -> str | None:
    """How the job ended, by its last iteration or what it said behind it; None for a log that merely stops."""
    last = log.iterations[-1]
    return "finished" if last.of is not None and last.step >= last.of else log.ended


def _notes(log: Log, rank: int, world: int | None, lost: int, *, is_dated: bool) -> Iterator[str]:
    if (world or 1) > 1:
        yield f"the log is of one rank of {world}: its lines are taken to be those of the last, rank {rank}"
    skipped = sum(one.skipped for one in log.iterations)
    if skipped:
        yield f"{skipped:,} iterations were skipped for their loss scale: they have no loss"
    nans = sum(one.nans for one in log.iterations)
    if nans:
        yield f"{nans:,} iterations had a loss that was not a number: it is left empty"
    if any(took is None for one in log.iterations for took in one.timers.values()):
        yield "timers of 0.00 ms were not measured: their spans have the status unmeasured"
    if any(one.timers for one in log.iterations):
        yield "timers tell how long, not when: in each step they stand one behind the other"
    if not is_dated:
        yield "the log tells no date: the first iteration begins at 1970-01-01 00:00 UTC"
    else:
        yield "the log tells no time zone: its dates are taken as UTC"
    if log.across_ranks:
        yield "timers that are printed as (min, max) across ranks are of no rank and are left out"
    if log.restarts:
        times = "once" if log.restarts == 1 else f"{log.restarts:,} times"
        yield f"the iterations go back {times}: {lost:,} of them, which were lost or ran again, are left out"
