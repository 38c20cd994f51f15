"""The steps of an attempt as arrays: when each began, how long it took, its MFU and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.reading.attempts import UNDATED_NS
from ...collectors.reading.store import Attempt, Store
from ..cells import NS_PER_MS
from ..peers import FloatArray, IntArray

_RANKS_SAMPLED = 512
"""Ranks whose steps are read, in one block: a step of a job that meets in every step is nearly as long for all."""

_SPAN_EXTENTS = """
    SELECT step, median(last - first) / 1e6 AS ms, min(first) AS start_ns, false AS shadow FROM (
        SELECT rank, step, min(start_ns) AS first, max(start_ns + coalesce(duration_ns, 0)) AS last
        FROM events WHERE step IS NOT NULL AND status = 'ok' GROUP BY rank, step)
    GROUP BY step ORDER BY step"""


@dataclass(frozen=True, slots=True)
class StepSeries:
    """All arrays [S] over ascending ``steps``; NaN where a value is not known.

    ``ms`` is the median rank's step time, ``start_ns`` (UTC as the recording host had it, see `moment`) the lowest's,
    ``mfu`` 0 to 1, ``tokens`` those of the whole job. ``timed``: its spans were timed (it is no shadow step).
    """

    steps: IntArray
    start_ns: IntArray
    ms: FloatArray
    mfu: FloatArray
    tokens: FloatArray
    timed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, keep: npt.NDArray[np.bool_]) -> StepSeries:
        """The steps that are kept, [S] bool."""
        return StepSeries(
            self.steps[keep],
            self.start_ns[keep],
            self.ms[keep],
            self.mfu[keep],
            self.tokens[keep],
            self.timed[keep],
        )

    def end_ns(self) -> int:
        """End of the last step."""
        last_ms = self.ms[-1] if np.isfinite(self.ms[-1]) else 0.0
        return int(self.start_ns[-1]) + int(last_ms * NS_PER_MS)

    def mean_mfu(self) -> float | None:
        """FLOPs of the steps over what the peak allows in their time; None where it is not known."""
        return _weighted(self.mfu, self.ms)

    def tokens_per_second(self) -> float | None:
        """Tokens of the steps over their time; None where they are not known."""
        known = np.isfinite(self.tokens) & (self.ms > 0)
        return float(self.tokens[known].sum() / self.ms[known].sum() * 1e3) if known.any() else None


def moment(start_ns: int) -> int | None:
    """A moment in UTC; None for one that counts from a beginning that nobody tells."""
    return int(start_ns) if start_ns >= UNDATED_NS else None


def _weighted(values: FloatArray, weights: FloatArray) -> float | None:
    known = np.isfinite(values) & (weights > 0)
    return float((values[known] * weights[known]).sum() / weights[known].sum()) if known.any() else None


def load_series(store: Store, attempt: Attempt) -> StepSeries:
    """Steps of an attempt, from ``steps``, else from the extent of its spans; empty where it has neither."""
    first = _first_rank(store, attempt)
    rows = store.query(
        f"""SELECT step, median(duration_ns) / 1e6 AS ms, arg_min(start_ns, rank) AS start_ns,
                   bool_or(coalesce(shadow, false)) AS shadow, max(mfu) AS mfu, max(tokens) AS tokens
            FROM steps WHERE rank BETWEEN {first} AND {first + _RANKS_SAMPLED - 1} GROUP BY step ORDER BY step""",
        attempt=attempt,
    )
    if not rows.num_rows or rows["ms"].null_count == rows.num_rows:
        rows = store.query(_SPAN_EXTENTS, attempt=attempt)
    number = rows["step"].to_numpy().astype(np.int64)
    mfu, tokens = (_floats(rows, name) if name in rows.column_names else None for name in ("mfu", "tokens"))
    if mfu is None or tokens is None or not (np.isfinite(mfu) | np.isfinite(tokens)).any():
        mfu, tokens = _of_the_job(store, attempt, number)
    return StepSeries(
        number,
        rows["start_ns"].to_numpy().astype(np.int64),
        _floats(rows, "ms"),
        mfu,
        tokens,
        ~np.asarray(rows["shadow"].to_numpy(zero_copy_only=False), bool),
    )


def _first_rank(store: Store, attempt: Attempt) -> int:
    """The lowest rank: as a number in a query it lets DuckDB leave out the files of all other ranks."""
    for table in ("ranks", "steps"):
        found = store.query(f"SELECT min(rank) AS first FROM {table}", attempt=attempt)["first"][0].as_py()
        if found is not None:
            return int(found)
    return 0


def _floats(rows: pa.Table, name: str) -> FloatArray:
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), np.float64)


def _of_the_job(store: Store, attempt: Attempt, steps: IntArray) -> tuple[FloatArray, FloatArray]:
    """MFU and tokens of each step, whichever rank wrote them."""
    rows = store.query(
        "SELECT step, max(mfu) AS mfu, max(tokens) AS tokens FROM steps "
        "WHERE mfu IS NOT NULL OR tokens IS NOT NULL GROUP BY step",
        attempt=attempt,
    )
    mfu, tokens = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    if rows.num_rows and len(steps):
        number = rows["step"].to_numpy()
        place = np.minimum(np.searchsorted(steps, number), len(steps) - 1)
        known = steps[place] == number
        mfu[place[known]] = _floats(rows, "mfu")[known]
        tokens[place[known]] = _floats(rows, "tokens")[known]
    return mfu, tokens
