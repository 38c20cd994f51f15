"""Rollups as spans arrive: one attempt's windows on this host, complete ones and those that still grow.

A window is complete once its rank has recorded spans two steps behind it; then its row is appended, for good. Windows
that still grow are rows of the store too: their file, in a block of its own (`open_block_name`), is replaced as a whole
at every commit that adds to them. So readers see them, and an agent that takes over reads them back. Files of spans and
both kinds of rollups become valid in the same commit: a kill at any point neither loses nor doubles anything. Spans
that come later than that, such as those whose device time was late, make a second row of their window: they add up.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...profiler.vocabulary import STATUS_CODES, Status
from ..spool.event_rows import SpanArrays
from ..tables.parquet import read_parquet
from ..tables.schemas import RANKS_PER_BLOCK, block_name, is_open_block, open_block_name
from ..writing.writer import TableWriter
from .rollup import from_arrow, split, to_arrow, with_spans
from .windows import Windows, concatenate, select, windows_of_spans

log = logging.getLogger(__name__)

LATE_STEPS = 2
"""Steps that must have begun behind a window before it counts as complete: device times come a little later."""

_OK = STATUS_CODES.index(Status.OK)
_COLUMNS = ("segment", "step", "duration_ns", "self_ns", "exposed_ns")


class RollupDrain:
    """Windows of one attempt. ``add`` the spans of each rank, ``write`` stages the rows, ``committed`` takes them over.

    What was added and not committed is forgotten by `begin`: a commit that failed is tried again from the start.
    Memory is bounded by ranks x segments x 2 windows x 3 lengths: older windows are complete.
    """

    def __init__(self, run: str, attempt: int) -> None:
        self.run, self.attempt = run, attempt
        self._open: Windows | None = None
        self._staged: Windows | None = None
        self._added: list[Windows] = []
        self._newest: dict[int, int] = {}

    def begin(self) -> None:
        """Before the pending spans are added, be it again."""
        self._added, self._staged = [], None

    def add(self, spans: SpanArrays) -> None:
        """Spans of one rank; those of status other than ok and those without a step belong to no window."""
        usable = (spans.columns["status"] == _OK) & (spans.columns["step"] >= 0)
        keep = slice(None) if usable.all() else usable
        segment, step, duration_ns, self_ns, exposed_ns = (spans.columns[name][keep] for name in _COLUMNS)
        if len(step):
            self._newest[spans.rank] = max(self._newest.get(spans.rank, 0), int(step.max()))
            # Rank by rank: its columns are still in the cache.
            self._added.append(windows_of_spans(spans.rank, segment, step, duration_ns, self_ns, exposed_ns))

    def write(self, writer: TableWriter, *, is_over: bool) -> None:
        """Stage the windows that are complete (all, once the attempt is over) and, in their place, those that grow."""
        if self._open is None:
            self._open = _left_open(writer, self.run, self.attempt)
        if not self._added and not (is_over and len(self._open)):
            return
        grown = self._open
        if self._added:
            grown = with_spans(grown, concatenate(self._added))
        complete, still_open = split(grown, self._is_complete(grown, is_over=is_over))
        for block in _blocks(complete):
            rows = to_arrow(select(complete, complete.rank // RANKS_PER_BLOCK == block))
            writer.write("rank_windows", self.run, self.attempt, rows, block=block_name(block * RANKS_PER_BLOCK))
        for block in _blocks(still_open, self._open):
            rows = to_arrow(select(still_open, still_open.rank // RANKS_PER_BLOCK == block))
            name = open_block_name(block * RANKS_PER_BLOCK)
            writer.write("rank_windows", self.run, self.attempt, rows, block=name, replace=True)
        self._staged = still_open

    def committed(self) -> None:
        """What was staged is in the store."""
        if self._staged is not None:
            self._open = self._staged
        self.begin()

    def _is_complete(self, windows: Windows, *, is_over: bool) -> npt.NDArray[np.bool_]:
        if is_over:
            return np.ones(len(windows), bool)
        ranks, place = np.unique(windows.rank, return_inverse=True)
        newest = np.array([self._newest.get(int(rank), -1) for rank in ranks], np.int64)[place]
        complete: npt.NDArray[np.bool_] = windows.first_step + windows.window_steps - 1 + LATE_STEPS <= newest
        return complete


def _blocks(*windows: Windows) -> list[int]:
    """Numbers of the blocks of ranks that occur."""
    ranks = np.unique(np.concatenate([one.rank for one in windows]) // RANKS_PER_BLOCK)
    return [int(block) for block in ranks]


def _left_open(writer: TableWriter, run: str, attempt: int) -> Windows:
    """The windows that still grew when the last commit of this writer was made, by whichever agent.

    OSError: a file cannot be read now. Whoever calls must try again, since its windows would be cut short for good.
    """
    parts = []
    for entry in writer.committed_files:
        is_ours = (entry.table, entry.run, entry.attempt) == ("rank_windows", run, attempt)
        if is_ours and is_open_block(entry.block):
            try:
                parts.append(from_arrow(read_parquet(writer.root / entry.path)))
            except (OSError, pa.ArrowException) as error:
                if not _is_damage(error):
                    raise
                log.warning("%s cannot be read (%s): windows that were not complete begin anew.", entry.path, error)
    return concatenate(parts)


def _is_damage(error: OSError | pa.ArrowException) -> bool:
    """Whether a file is damaged or gone for good. The operating system numbers its errors, which may pass; Parquet's
    on pages that cannot be decoded have no number."""
    return not isinstance(error, OSError) or error.errno is None or isinstance(error, FileNotFoundError)
