"""Hangs in a simulated store: what agents would have written, and what `megascope hang` reads out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import HANG_KINDS, FaultKind, parse_fault
from megascope.trainer.simulator.hangs.hangs import hang_scene
from megascope.trainer.simulator.hangs.tables import SEEN_S, SILENT_AFTER_S, Evidence, seen_ns
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate
from megascope.viz3d.hang import diagnose
from megascope.viz3d.verdict import State

COSTS = Costs(tp_pairs=1, tp_ns=1e5, p2p_network_ns=1e6, reduce_scatter_ns=4e6, all_gather_ns=2e6, norm_ns=1e5)
FIRST_STEP = 12
RECORDING = Recording(windows=False, span_ranks=None, heartbeat_s=0, clock_offsets=True)


def job_of(**layout: int) -> SimulatedJob:
    return SimulatedJob(layout=layout, costs=COSTS, steps=5, first_step=FIRST_STEP, microbatches=4)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str], Store]:
    """Simulates a job of 32 ranks on 4 hosts up to the step of a hang."""

    def store_of(text: str) -> Store:
        simulate(job_of(pp=2, dp=4, tp=4), tmp_path / "store", RECORDING, faults=[parse_fault(text)])
        return Store(tmp_path / "store")

    return store_of


NAMED: Mapping[FaultKind, set[tuple[int, ...]]] = {
    FaultKind.DEAD: {(9,)},
    FaultKind.EXCEPTION: {(9,)},
    FaultKind.HOST_STUCK: {(9,)},
    FaultKind.MISMATCH: {(9,)},
    FaultKind.MISSING_CALL: {(9,)},
    FaultKind.P2P_CYCLE: {(rank, rank + 16) for rank in (8, 9, 10, 11)},
}
"""Kinds whose culprits are named exactly; the others are only known to be read."""


@pytest.mark.parametrize("kind", HANG_KINDS)
def test_every_hang_is_read_and_the_truth_is_in_the_store(stored: Callable[[str], Store], kind: FaultKind) -> None:
    step = 12 if kind is FaultKind.INIT else 17
    store = stored(f"{kind}:rank=9:step={step}")
    [truth] = store.query("SELECT * FROM faults").to_pylist()
    assert (truth["kind"], truth["first_step"]) == (kind, step)
    assert 9 in truth["ranks"]
    assert truth["first_ns"] is not None
    verdict = diagnose(store, store.attempt())
    assert verdict.verdict in {State.HANG, State.CRASHED, State.INCONCLUSIVE}
    if kind in NAMED:
        assert {(str(one.kind), one.ranks) for one in verdict.culprits} == {(kind, ranks) for ranks in NAMED[kind]}
        assert (verdict.verdict == State.CRASHED) == (kind in {FaultKind.DEAD, FaultKind.EXCEPTION})
        assert verdict.explained == verdict.victims > 0


def test_a_rank_stuck_in_the_optimizer_is_named(stored: Callable[[str], Store]) -> None:
    store = stored("host-stuck:rank=9:step=17:segment=optimizer")
    [culprit] = diagnose(store, store.attempt()).culprits
    assert (culprit.ranks, str(culprit.kind), culprit.segment) == ((9,), "host-stuck", "optimizer")


def test_sequence_numbers_go_on_from_the_spans_of_the_steps_before(stored: Callable[[str], Store]) -> None:
    store = stored("host-stuck:rank=9:step=17:segment=forward:microbatch=0")
    spans = store.query(
        """SELECT "group", max(sequence) AS last FROM events WHERE sequence IS NOT NULL GROUP BY ALL"""
    ).to_pylist()
    last = {row["group"]: row["last"] for row in spans}
    beats = store.query("SELECT progress FROM heartbeats WHERE rank = 9 ORDER BY moment_ns DESC LIMIT 1")
    progress = {one["group"]: one["completed"] for one in beats["progress"][0].as_py()}
    own = {group_id("tp", (8, 9, 10, 11)), group_id("dp", (1, 5, 9, 13)), group_id("world", range(32))}
    assert {group: progress[group] for group in own} == {group: last[group] for group in own}


def test_agents_look_twice_and_note_a_death(stored: Callable[[str], Store]) -> None:
    store = stored("exception:rank=9:step=17")
    rows = store.query("SELECT * FROM incidents ORDER BY opened_ns").to_pylist()
    assert [row["kind"] for row in rows] == ["rank-died", *["stalled"] * 4]
    actions = json.loads(rows[0]["actions"])
    assert [(one["action"], one.get("state")) for one in actions[:2]] == [
        ("noticed-death", "exception"), ("noticed-death", "gone"),
    ]  # fmt: skip
    frozen = store.query(
        "SELECT incident, snapshot, count(DISTINCT rank) AS ranks FROM in_flight GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert {(row["incident"].split("/")[-2], row["snapshot"], row["ranks"]) for row in frozen} == {
        (kind, number, 8) for kind in ("rank-died", "stalled") for number in (1, 2)
    }
    states = store.query("SELECT DISTINCT process_state FROM heartbeats WHERE rank = 9").column(0).to_pylist()
    assert set(states) == {"running", "gone"}


def test_waiting_takes_no_cpu_time_and_spinning_does(stored: Callable[[str], Store]) -> None:
    store = stored("library:rank=9:step=17")
    rows = store.query(
        "SELECT rank, (max(cpu_ns) - min(cpu_ns)) / 1e9 AS grown FROM heartbeats GROUP BY rank ORDER BY rank"
    ).to_pylist()
    assert rows[9]["grown"] == pytest.approx(SEEN_S[-1], abs=1)
    assert max(row["grown"] for row in rows if row["rank"] != 9) < 2


def test_a_job_that_runs_on_is_running_though_a_host_fell_silent(tmp_path: Path) -> None:
    job = job_of(pp=2, dp=4, tp=4)
    done = simulate(job, tmp_path / "store", RECORDING)
    origin_ns, scene = int(done.moments_ns[-1]), hang_scene(job, None, FIRST_STEP + 5)
    with TableWriter(tmp_path / "store", "agents") as writer:
        Evidence.of(scene, origin_ns, range(8, 16)).write(writer)
        writer.commit()
    with Store(tmp_path / "store") as store:
        now_ns = origin_ns + seen_ns(scene)[-1]
        verdict = diagnose(store, store.attempt(), now_ns=now_ns)
        assert (verdict.verdict, verdict.culprits, verdict.missing) == (State.RUNNING, (), tuple(range(8, 16)))
        last = store.query("SELECT max(moment_ns) AS last FROM heartbeats WHERE rank = 8")["last"][0].as_py()
        assert last < origin_ns + SILENT_AFTER_S * 10**9
        steps = np.array(store.query("SELECT step FROM heartbeats WHERE rank = 0 ORDER BY moment_ns")["step"])
        assert (np.diff(steps) > 0).all()


def test_a_job_with_long_steps_is_watched_for_longer(tmp_path: Path) -> None:
    """Three steps must pass before what takes long by nature is called stuck."""
    costs = replace(COSTS, forward_ns=(2e9,), backward_ns=(4e9,))
    job = SimulatedJob(layout={"pp": 2, "dp": 2, "tp": 2}, costs=costs, steps=5, microbatches=4)
    simulate(job, tmp_path / "store", RECORDING, faults=[parse_fault("host-stuck:rank=0:step=5:segment=data")])
    with Store(tmp_path / "store") as store:
        verdict = diagnose(store, store.attempt())
        assert [(one.ranks, str(one.kind), one.segment) for one in verdict.culprits] == [((0,), "host-stuck", "data")]
        assert verdict.verdict == State.HANG
