"""The spans of the step in which a simulated job hangs: what was completed before it stood still."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.hangs.ahead import IN_STEP, Lead
from megascope.trainer.simulator.hangs.gaps import Hardness
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate

COSTS = Costs(tp_pairs=1, tp_ns=1e5, p2p_network_ns=1e6, reduce_scatter_ns=4e6, all_gather_ns=2e6, norm_ns=1e5)
JOB = SimulatedJob(layout={"pp": 2, "dp": 2, "tp": 2}, costs=COSTS, steps=4, microbatches=4)
HUNG = 4
SPANS = Recording(windows=False, span_ranks=None, heartbeat_s=0)

Operation = tuple[str, int, int | None, int | None]
"""Name, group, micro-batch and chunk."""


def operations(store: Store, step: int) -> dict[int, list[tuple[Operation, int, int]]]:
    """By rank, in the order of issue: the operations of a step with their numbers and sizes."""
    rows = store.query(
        f"""SELECT rank, segment_name, "group", microbatch, chunk, sequence, size_bytes, start_ns, enqueue_ns,
            duration_ns FROM spans WHERE step = {step} AND sequence IS NOT NULL ORDER BY rank, enqueue_ns""",
        attempt=store.attempt(),
    ).to_pylist()
    found: dict[int, list[tuple[Operation, int, int]]] = {}
    for row in rows:
        assert row["enqueue_ns"] is None or row["enqueue_ns"] <= row["start_ns"]
        operation = (row["segment_name"], row["group"], row["microbatch"], row["chunk"])
        found.setdefault(row["rank"], []).append((operation, row["sequence"], row["size_bytes"]))
    return found


def in_flight(store: Store) -> set[tuple[int, int, int]]:
    """Rank, group and number of what is in flight at the last look."""
    rows = store.query(
        """SELECT rank, arg_max(in_flight, moment_ns) AS flights FROM heartbeats GROUP BY rank""",
        attempt=store.attempt(),
    ).to_pylist()
    return {(row["rank"], one["group"], one["sequence"]) for row in rows for one in row["flights"] if one["sequence"]}


@pytest.mark.parametrize("text", ["host-stuck:rank=5:segment=backward", "missing-call:rank=2:segment=tp_all_gather"])
def test_the_step_of_a_hang_began_as_the_one_before_it(tmp_path: Path, text: str) -> None:
    hardness = Hardness(lead=Lead(in_flight=20, reads_results=False))
    done = simulate(JOB, tmp_path, SPANS, faults=[parse_fault(f"{text}:step={HUNG}")], hardness=hardness)
    with Store(tmp_path) as store:
        usual, now = operations(store, HUNG - 1), operations(store, HUNG)
        flying = in_flight(store)
        [count] = store.query("SELECT count(*) FROM events", attempt=store.attempt()).column(0).to_pylist()
    assert done.written_spans == count
    assert set(now) == set(range(8))
    for rank, own in now.items():
        per_step = {operation[1]: sum(other[1] == operation[1] for other, *_ in usual[rank]) for operation, *_ in own}
        before = [(operation, number + per_step[operation[1]], size) for operation, number, size in usual[rank]
                  if operation[1] in per_step]  # fmt: skip
        if rank != 2:  # a message may be complete before what was issued ahead of it
            assert own == [one for one in before if one in own]
            collectives = [one for one in own if one[0][0][:2] in ("tp", "dp")]
            assert collectives == [one for one in before if one[0][0][:2] in ("tp", "dp")][: len(collectives)]
        assert not {(rank, operation[1], number) for operation, number, _ in own} & flying


def test_where_hosts_wait_for_each_operation_the_step_has_no_spans(tmp_path: Path) -> None:
    fault = parse_fault(f"host-stuck:rank=5:segment=backward:step={HUNG}")
    simulate(JOB, tmp_path, SPANS, faults=[fault], hardness=Hardness(lead=IN_STEP))
    with Store(tmp_path) as store:
        assert operations(store, HUNG) == {}
        assert operations(store, HUNG - 1)
