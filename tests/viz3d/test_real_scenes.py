"""What real trainings showed when they hung, as small as it gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.topology import Topology, segment_id
from megascope.viz3d.hang import HangVerdict, diagnose
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, STEP, Scene
from support.hang_store import write_scene

MICROBATCHES = 4


def exchanged(scene: Scene, in_last_step: Sequence[int]) -> dict[str, Mapping[str, Sequence[Any]]]:
    """Two stages over three whole steps, and what was sent forward in the one that hangs: a receive is posted before
    the send that comes before it in the program."""
    forward, backward = scene.group("pp_forward", (0, 1)), scene.group("pp_backward", (0, 1))
    groups = {"send_forward": forward, "recv_backward": backward, "recv_forward": forward, "send_backward": backward}
    rows: list[dict[str, Any]] = []
    count = dict.fromkeys(groups, 0)

    def add(rank: int, step: int, name: str, microbatch: int, at_ms: int, took_ms: int) -> None:
        count[name] += 1
        took_ns = took_ms * 10**6
        start = MOMENT_NS - (STEP + 1 - step) * 60 * SECOND + at_ms * 10**6
        place = {"rank": rank, "step": step, "microbatch": microbatch, "segment": segment_id(name, "p2p", "pp")}
        times = {"start_ns": start, "duration_ns": took_ns, "self_ns": took_ns, "exposed_ns": took_ns}
        edge = {"group": groups[name], "sequence": count[name], "peer": 1 - rank, "clock": "host", "status": "ok"}
        rows.append(place | times | edge)

    for step in range(STEP - 3, STEP + 1):
        for number, sent in enumerate(range(MICROBATCHES) if step < STEP else in_last_step):
            at = number * 50
            add(0, step, "recv_backward", number, at, 80)
            add(0, step, "send_forward", sent, at + 20, 1)
            add(1, step, "recv_forward", number, at, 21)
            add(1, step, "send_backward", number, at + 79, 1)
    ids: dict[str, list[Any]] = {"segment": [segment_id(name, "p2p", "pp") for name in groups], "name": list(groups)}
    done = [(rank, step) for step in range(STEP - 3, STEP) for rank in (0, 1)]
    steps = {
        "rank": [rank for rank, _ in done],
        "step": [step for _, step in done],
        "start_ns": [MOMENT_NS - (STEP + 1 - step) * 60 * SECOND for _, step in done],
        "duration_ns": [300 * 10**6] * len(done),
    }
    events = {key: [row[key] for row in rows] for key in rows[0]}
    return {"events": events, "segments": {**ids, "kind": ["p2p"] * 4, "axis": ["pp"] * 4}, "steps": steps}


def both_receive(scene: Scene, number: int, microbatch: int) -> None:
    """Rank 0 waits for the gradient, and rank 1 for the activation, with one number."""
    for rank, kind, segment in ((0, "pp_backward", "recv_backward"), (1, "pp_forward", "recv_forward")):
        scene.message(rank, "recv", 1 - rank, number, kind=kind)
        state = scene.states[rank]
        [own] = state.flights
        flight = replace(own, segment=segment, microbatch=microbatch, waiting=True)
        scene.states[rank] = replace(state, flights=(flight,))
        other = scene.group("pp_forward" if rank == 0 else "pp_backward", (0, 1))
        scene.progress(rank, other, number - 1, number - 1)


def judged(root: Path, looks: Sequence[Any], **more: Any) -> HangVerdict:
    store = write_scene(root, looks, **more)
    return diagnose(store, store.attempt())


def named(verdict: HangVerdict) -> list[tuple[CulpritKind, tuple[int, ...]]]:
    return [(one.kind, one.ranks) for one in verdict.culprits]


@pytest.mark.parametrize("sent", [(1, 2, 3), (0, 1, 3)])
def test_a_send_left_out_shows_in_the_micro_batches_that_follow(tmp_path: Path, sent: tuple[int, ...]) -> None:
    scene = Scene(Topology.of(pp=2))
    both_receive(scene, 16, 3)
    store = write_scene(tmp_path, scene.looks(), more=exchanged(scene, sent))
    verdict = diagnose(store, store.attempt(), now_ns=MOMENT_NS)
    assert named(verdict) == [(CulpritKind.MISSING_CALL, (0,))]
    assert verdict.culprits[0].segment == "send_forward"


def test_a_receive_before_the_send_is_a_circle(tmp_path: Path) -> None:
    """Nothing was sent in this step yet: the counts are those of a send left out."""
    scene = Scene(Topology.of(pp=2))
    both_receive(scene, 13, 0)
    store = write_scene(tmp_path, scene.looks(), more=exchanged(scene, ()))
    verdict = diagnose(store, store.attempt(), now_ns=MOMENT_NS)
    assert named(verdict) == [(CulpritKind.P2P_CYCLE, (0, 1))]


def lost_peers(ranks: Sequence[int]) -> dict[str, Any]:
    """What an agent notes of ranks whose library says that a peer is gone."""
    message = "[pair.cc:553] Connection closed by peer [127.0.0.1]:24769."
    died = {"action": "noticed-death", "moment_ns": MOMENT_NS, "state": "exception", "type": "RuntimeError"}
    told = [{**died, "rank": rank, "message": message} for rank in ranks]
    return {"incident": "i", "opened_ns": MOMENT_NS, "kind": "rank-died", "actions": json.dumps(told)}


@pytest.mark.parametrize("silent", [True, False])
def test_a_host_that_fell_silent_went_before_those_that_lost_their_peers(tmp_path: Path, *, silent: bool) -> None:
    """The agent of a host that was killed tells nothing. Where none fell silent, nobody is accused."""
    scene = Scene(Topology.of(pp=2, dp=8))
    for rank in range(16):
        scene.message(rank, "recv", (rank + 8) % 16, 5, since_s=2)
    alive, later = scene.snapshot(1.5), scene.snapshot(-10)
    still = range(8) if silent else range(16)
    ended = {rank: replace(later.states[rank], process_state="exited") for rank in still}
    verdict = judged(tmp_path, [alive, replace(later, states=ended)], incidents=[lost_peers(range(8))])
    assert verdict.verdict == State.CRASHED
    assert named(verdict) == ([(CulpritKind.DEAD, tuple(range(8, 16)))] if silent else [])
    if silent:
        assert "nothing was heard of node1" in verdict.culprits[0].evidence[0].statement
    else:
        assert any("lost a peer" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize(("stood_s", "state"), [(39, State.HANG), (3, State.FINISHED)])
def test_a_job_that_was_interrupted_while_it_hung_did_hang(tmp_path: Path, stood_s: float, state: State) -> None:
    """Its agent had not learned its pace yet and opened no incident; who interrupts a job that goes on ends it."""
    scene = Scene(Topology.of(tp=2))
    scene.work(1, "forward", since_s=40)
    scene.collective(0, "tp", 7, since_s=40)
    looks = [scene.snapshot(before) for before in (40, 30, 20, 10, 3, 1)]
    for at, before in enumerate((40, 30, 20, 10, 3, 1)):
        done = 1000 if before <= stood_s else 1000 - before
        looks[at] = replace(looks[at], states={r: replace(one, spans=done) for r, one in looks[at].states.items()})
    last = scene.snapshot(0.05)  # the interrupt itself ends a segment
    ended = replace(last.states[1], spans=1001)
    looks.append(replace(last, states={**last.states, 1: ended}))
    verdict = judged(tmp_path, looks, exit_reason="interrupted")
    assert verdict.verdict == state
    assert [one.ranks for one in verdict.culprits] == ([(1,)] if state == State.HANG else [])


@pytest.mark.parametrize(("stood_s", "state"), [(39, State.HANG), (3, State.FINISHED)])
def test_a_job_whose_launcher_was_ended_with_its_ranks(tmp_path: Path, stood_s: float, state: State) -> None:
    """All ranks have closed their black boxes, and nobody wrote how the attempt ended."""
    scene = Scene(Topology.of(tp=2))
    scene.work(1, "forward", since_s=40)
    scene.collective(0, "tp", 7, since_s=40)
    looks = []
    for before in (40, 30, 20, 10, 3, 1):
        done = 1000 if before <= stood_s else 1000 - before
        look = scene.snapshot(before)
        looks.append(replace(look, states={r: replace(one, spans=done) for r, one in look.states.items()}))
    last = scene.snapshot()
    looks.append(replace(last, states={r: replace(one, process_state="exited") for r, one in last.states.items()}))
    verdict = judged(tmp_path, looks)
    assert verdict.verdict == state
    assert [one.ranks for one in verdict.culprits] == ([(1,)] if state == State.HANG else [])


def own_exception(rank: int) -> dict[str, Any]:
    died = {"action": "noticed-death", "moment_ns": MOMENT_NS, "state": "exception", "type": "OutOfMemoryError"}
    told = [{**died, "rank": rank, "message": "CUDA out of memory. Tried to allocate 2.00 GiB."}]
    return {"incident": "i", "opened_ns": MOMENT_NS, "kind": "rank-died", "actions": json.dumps(told)}


def test_an_exception_after_a_long_pause_is_the_cause_and_not_the_pause(tmp_path: Path) -> None:
    """Nothing moved for 39 s, in a compilation; then rank 1 had no memory left."""
    scene = Scene(Topology.of(tp=2))
    scene.work(1, "compile_model", since_s=40, kind="compile")
    scene.collective(0, "tp", 7, since_s=40)
    looks = [scene.snapshot(before) for before in (39, 30, 20, 10, 0.5)]
    verdict = judged(tmp_path, looks, exit_reason="crashed", incidents=[own_exception(1)])
    assert (verdict.verdict, named(verdict)) == (State.CRASHED, [(CulpritKind.EXCEPTION, (1,))])


def test_a_pause_that_was_over_is_not_how_the_job_ended(tmp_path: Path) -> None:
    """It rested for 20 s and then ran another six steps, until somebody interrupted it."""
    scene = Scene(Topology.of(tp=2))
    scene.collective(0, "tp", 7, since_s=40)
    looks = [scene.snapshot(before) for before in (29, 20, 9, 8, 4, 1)]
    for at in (4, 5):
        later = {rank: replace(one, step=STEP + at, spans=2000 + at) for rank, one in looks[at].states.items()}
        looks[at] = replace(looks[at], states=later)
    assert judged(tmp_path, looks, exit_reason="interrupted").verdict == State.FINISHED


def test_hosts_that_were_heard_of_until_the_first_death_are_not_called_dead(tmp_path: Path) -> None:
    """Rank 0 lost a peer. Of both other hosts the last heartbeat is 0.2 s older, which tells nothing."""
    scene = Scene(Topology.of(pp=3, dp=8))
    for rank in range(24):
        scene.message(rank, "recv", (rank + 8) % 24, 5, since_s=2)
    alive, later = scene.snapshot(0.2), scene.snapshot(-10)
    ended = {rank: replace(later.states[rank], process_state="exited") for rank in range(8)}
    verdict = judged(tmp_path, [alive, replace(later, states=ended)], incidents=[lost_peers(range(8))])
    assert (verdict.verdict, named(verdict)) == (State.CRASHED, [])
