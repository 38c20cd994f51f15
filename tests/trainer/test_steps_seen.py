"""What is kept of the steps of a job with many ranks: the median, and its slowest ranks."""

from __future__ import annotations

import pyarrow as pa

from megascope.collectors.reading.duck import connect
from megascope.trainer.supervisor.detectors import slow_ranks
from megascope.trainer.supervisor.steps_seen import SLOWEST_KEPT, StepsSeen

RANKS, SLOW = 5000, 4321


def test_of_more_ranks_than_are_kept_a_slow_one_is_told_against_the_median_of_all() -> None:
    rows = [(rank, step, 300 if rank == SLOW else 100 + rank % 7) for step in range(3) for rank in range(RANKS)]
    columns = {name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(("rank", "step"))}
    columns["start_ns"] = pa.array([row[1] * 1000 for row in rows], pa.int64())
    columns["duration_ns"] = pa.array([row[2] for row in rows], pa.int64())
    for name, kind in (("loss", pa.float64()), ("grad_norm", pa.float64()), ("tokens", pa.int64())):
        columns[name] = pa.nulls(len(rows), kind)
    columns["written_ns"] = pa.array([1] * len(rows), pa.int64())
    with connect() as connection:
        steps = [record for record, _ in StepsSeen(connection).add(pa.table(columns), RANKS)]
    assert [(one.duration_ns, len(one.by_rank_ns), one.by_rank_ns[SLOW]) for one in steps] == [
        (103, SLOWEST_KEPT, 300)
    ] * 3
    (sign,) = slow_ranks(steps)
    assert sign.ranks == (SLOW,)
