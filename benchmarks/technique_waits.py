"""Exposed waits of a rank and step without each switch and with it, in turns, in the segments that it is about.

`python -m benchmarks.technique_waits [CASE ...]`: all where none is named.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import report
from benchmarks.ranks import run_ranks
from benchmarks.technique_pairs import BASE, with_settings
from benchmarks.trainer import STEPS, WARM_UP, ours
from megascope.trainer.config import TrainConfig

REPEATS = 5
TIMEOUT_S = 240.0
SLOW_READ_S = 0.02
"""How long a slow reader takes for a batch: asleep, as one that waits for a file server is."""
READ = "data_read"

TWO_BY_TWO = {"parallel.pp": 2, "parallel.dp": 2, "parallel.chunks": 2}
NEITHER = {"parallel.overlap_gather": False, "parallel.overlap_reduce": False}


@dataclass(frozen=True, slots=True)
class Case:
    """A switch: what both sides have, what each has of its own, the beginnings of the segments that it is about.

    ``read_s`` is added to the time that a batch takes to read.
    """

    both: Mapping[str, Any]
    off: Mapping[str, Any]
    on: Mapping[str, Any]
    segments: tuple[str, ...] = field(default=())
    read_s: float = 0.0

    def config(self, side: Mapping[str, Any]) -> TrainConfig:
        """The configuration of one side."""
        return with_settings(BASE, {**self.both, **side, "train.steps": STEPS})


MESSAGES, GATHER = ("recv_", "send_"), ("dp_all_gather",)
CASES = {
    "overlap": Case(TWO_BY_TWO, {"parallel.overlap": False}, {"parallel.overlap": True}, ("dp_",)),
    "overlap_gather": Case(TWO_BY_TWO, NEITHER, {**NEITHER, "parallel.overlap_gather": True}, GATHER),
    "overlap_gather, slow reading": Case(
        {**TWO_BY_TWO, "data.prefetch": 0}, NEITHER, {**NEITHER, "parallel.overlap_gather": True}, GATHER, SLOW_READ_S
    ),
    "overlap_reduce": Case(TWO_BY_TWO, NEITHER, {**NEITHER, "parallel.overlap_reduce": True}, ("dp_reduce_scatter",)),
    "recv_ahead": Case(TWO_BY_TWO, {"parallel.recv_ahead": 0}, {"parallel.recv_ahead": 2}, MESSAGES),
    "overlap_p2p": Case({"parallel.pp": 4}, {"parallel.overlap_p2p": False}, {"parallel.overlap_p2p": True}, MESSAGES),
    "ring": Case(
        {"parallel.tp": 4},
        {"parallel.ring": False},
        {"parallel.ring": True},
        ("tp_all_gather", "tp_reduce_scatter", "send_ring", "recv_ring"),
    ),
    "prefetch": Case({"parallel.dp": 2}, {"data.prefetch": 0}, {"data.prefetch": 2}, (READ,)),
    "prefetch, slow reading": Case(
        {"parallel.dp": 2}, {"data.prefetch": 0}, {"data.prefetch": 2}, (READ,), SLOW_READ_S
    ),
}


def overlap(names: Sequence[str] = (), repeats: int = REPEATS) -> dict[str, Any]:
    """By case, ms of a rank and step waited without the switch and with it, and with it less without in each repeat.

    All as [smallest, median, largest] of the repeats; which side comes first changes from one to the next.
    """
    return {name: _measured(CASES[name], repeats) for name in names or CASES}


def _measured(case: Case, repeats: int) -> dict[str, list[float]]:
    pairs = []
    for repeat in range(repeats):
        sides = dict.fromkeys((False, True) if repeat % 2 == 0 else (True, False), 0.0)
        for is_on in sides:
            sides[is_on] = _run(case, case.config(case.on if is_on else case.off))
        pairs.append((sides[False], sides[True]))
    return {
        "off": _spread([off for off, _ in pairs]),
        "on": _spread([on for _, on in pairs]),
        "change": _spread([on - off for off, on in pairs]),
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in (min(values), statistics.median(values), max(values))]


def _run(case: Case, config: TrainConfig) -> float:
    with TemporaryDirectory() as folder:
        ranks = config.topology().world_size
        run_ranks(ranks, lambda: _rank(config, Path(folder), case.read_s), timeout_s=TIMEOUT_S)
        return statistics.fmean(_waits(path, case.segments) for path in Path(folder).rglob("*.box"))


def _rank(config: TrainConfig, spool: Path, read_s: float) -> None:
    from megascope.trainer.data.batches import Batches

    read = Batches.rows

    def slowly(*arguments: Any) -> Any:
        time.sleep(read_s)
        return read(*arguments)

    Batches.rows = slowly  # type: ignore[method-assign, assignment]
    ours(config, spool)


def _waits(path: Path, segments: tuple[str, ...]) -> float:
    """Ms of a step after the warm-up that a rank waited in these segments; all of `READ` is a wait."""
    return sum(waited for step, waited in _spans(path, segments) if WARM_UP <= step < STEPS) / 1e6 / (STEPS - WARM_UP)


def _spans(path: Path, segments: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(step, ns waited) of each span in segments whose names begin so."""
    from megascope.profiler.box.box import ABSENT_I64, BoxReader
    from megascope.profiler.box.metadata import MetadataKind, read_metadata

    lines = [line for _, line in read_metadata(path.with_suffix(".meta.jsonl"))]
    names = {line["index"]: line["name"] for line in lines if line["kind"] == MetadataKind.SEGMENT}
    reader = BoxReader(path)
    for ring in range(reader.layout.rings):
        for record in reader.read_ring(ring, 0).records:
            name = names[int(record["segment"])]
            waited = record["duration_ns"] if name == READ else record["exposed_ns"]
            if name.startswith(segments) and waited != ABSENT_I64:
                yield int(record["step"]), int(waited)
    reader.close()


def main() -> None:
    """Measure the named cases and print the JSON object."""
    report("technique_waits", overlap(sys.argv[1:]))


if __name__ == "__main__":
    main()
