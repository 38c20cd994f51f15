"""A trace of ByteDance's what-if analysis as arrays: operations with exact times, one real place a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....profiler.errors import FormatError
from ..columns import ABSENT, IntArray

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id")

NS_PER_S = 1e9

TICK_NS = 125_000
"""Starts in published traces are multiples of this, and float32 seconds on top of it: ends do not meet exactly."""

LONGEST_S = 86_400.0
"""No operation takes longer than a day."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Rows [N] of the trace. ``step_index`` numbers the ``steps`` [S] recorded, ``code`` is an index in ``names``.

    ``start_ns`` counts from the beginning of the first step: the trace starts its clock anew in every step, so each one
    begins where the one before it ended (what lay between recorded steps is not known). ``is_sound`` tells which times
    can be true. `ABSENT` stands for what does not apply.
    """

    names: tuple[str, ...]
    code: IntArray
    rank: IntArray
    dp: IntArray
    stage: IntArray
    steps: IntArray
    step_index: IntArray
    start_ns: IntArray
    duration_ns: IntArray
    sequence: IntArray
    chunk: IntArray
    microbatch: IntArray
    is_sound: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.code)

    @property
    def step(self) -> IntArray:
        """Step number of each row."""
        return self.steps[self.step_index]

    def of(self, *names: str) -> npt.NDArray[np.bool_]:
        """Which rows are of these kinds of operation."""
        codes = [index for index, name in enumerate(self.names) if name in names]
        return np.isin(self.code, codes)


def read_operations(path: Path) -> Operations:
    """Read a trace. Raises FormatError where columns are missing, or nothing has a rank and a step."""
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise FormatError(f"{path} has no column {', '.join(missing)}: it is no trace of the what-if analysis.")
            table = file.read(columns=list(COLUMNS))
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read ({_first_line(error)}): {_advice(path)}.") from error
    table = table.filter(pc.and_(pc.is_valid(table["rank"]), pc.is_valid(table["step"]))).combine_chunks()
    if not table.num_rows:
        raise FormatError(f"{path} has no rows with a rank and a step: there is nothing to import.")
    encoded = table["optype"].combine_chunks().cast(pa.string()).fill_null("unknown").dictionary_encode()
    steps, step_index = np.unique(_integers(table, "step"), return_inverse=True)
    start_s, duration_s = (_seconds(table, name) for name in ("start_ts", "duration"))
    sound = (start_s >= 0) & (start_s < LONGEST_S) & (duration_s >= 0) & (duration_s < LONGEST_S)
    start_ns, duration_ns = _placed(start_s, duration_s, sound, step_index, len(steps))
    return Operations(
        tuple(encoded.dictionary.to_pylist()),
        encoded.indices.to_numpy().astype(np.int64),
        _integers(table, "rank"),
        _integers(table, "dp_rank"),
        _integers(table, "stage"),
        steps,
        step_index,
        start_ns,
        duration_ns,
        _integers(table, "seq_id"),
        _integers(table, "mc"),
        _integers(table, "mb_id"),
        sound,
    )


def one_by_one(operations: Operations, stream_of: Callable[[str], str]) -> Operations:
    """The same without overlaps on one stream, which runs one thing at a time: they come from coarse clocks.

    The earlier of two operations ends where the next one begins, if they overlap by no more than a tick of `TICK_NS`
    and a tenth of it.
    """
    streams = [stream_of(name) for name in operations.names]
    lane = np.array([streams.index(one) for one in streams], np.int64)[operations.code]
    by = np.lexsort((operations.start_ns, lane, operations.step_index, operations.rank))
    first, second = by[:-1], by[1:]
    end = operations.start_ns[first] + operations.duration_ns[first]
    over = end - operations.start_ns[second]
    same = lane[first] == lane[second]
    for column in (operations.rank, operations.step_index):
        same &= column[first] == column[second]
    cut = same & (over > 0) & (over <= TICK_NS) & (over <= operations.duration_ns[first] // 10)
    duration = operations.duration_ns.copy()
    duration[first[cut]] -= over[cut]
    return replace(operations, duration_ns=duration)


def _placed(
    start_s: npt.NDArray[np.float64],
    duration_s: npt.NDArray[np.float64],
    sound: npt.NDArray[np.bool_],
    step_index: IntArray,
    steps: int,
) -> tuple[IntArray, IntArray]:
    """Start and duration in ns, every step behind the one before it.

    The end is rounded, so that ends that were equal stay so.
    """
    start = np.round(np.where(sound, start_s, 0.0) * NS_PER_S).astype(np.int64)
    end = np.round((np.where(sound, start_s, 0.0) + np.where(sound, duration_s, 0.0)) * NS_PER_S).astype(np.int64)
    length = np.zeros(steps, np.int64)
    np.maximum.at(length, step_index, end)
    base = np.r_[0, np.cumsum(length)[:-1]]
    return start + base[step_index], end - start


def _seconds(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """Seconds as float64; NaN where missing."""
    return np.asarray(table[name].cast(pa.float64()).fill_null(float("nan")).to_numpy(), np.float64)


def _integers(table: pa.Table, name: str) -> IntArray:
    """Integers; anything below 0 is the trace's way to say that there is none."""
    values = np.asarray(table[name].cast(pa.int64()).fill_null(ABSENT).to_numpy(), np.int64)
    return np.where(values < 0, ABSENT, values)


def _advice(path: Path) -> str:
    """What to do about a file that is not read: Parquet begins and ends with the same four bytes."""
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            file.seek(max(path.stat().st_size - 4, 0))
            end = file.read(4)
    except OSError:
        return "check the path and its permissions"
    if begin != b"PAR1":
        return "it is no Parquet file, so give the --format that it has"
    return "it is damaged, so get another copy" if end == b"PAR1" else "it was cut, so get a whole copy"


def _first_line(error: Any) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
