"""Jobs of which it is known how processes ended: by which signal or code, or because their launcher said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.profiler.topology import Topology
from megascope.viz3d.hang import diagnose
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State, to_json
from support.hang_scenes import MOMENT_NS, SECOND, Scene
from support.hang_store import write_scene

PID = 4242


def died(rank: int, **more: Any) -> dict[str, Any]:
    return {"action": "noticed-death", "rank": rank, "state": "gone", "moment_ns": MOMENT_NS, "pid": PID + rank, **more}


def crash(root: Path, *deaths: dict[str, Any], ooms: tuple[int, ...] = ()) -> tuple[HangVerdict, Any]:
    """Rank 3 was at work, all others waited for it; the verdict, and the store. ``ooms``: pids the kernel killed."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        if rank != 3:
            scene.collective(rank, "dp", 5, since_s=9)
    scene.work(3, "backward")
    incident = {
        "incident": "job/0/node0/rank-died/0",
        "kind": "rank-died",
        "opened_ns": MOMENT_NS,
        "closed_ns": None,
        "actions": json.dumps(deaths),
    }
    events: dict[str, list[Any]] = {
        "host": ["node0"] * len(ooms),
        "moment_ns": [MOMENT_NS - SECOND] * len(ooms),
        "kind": ["oom-kill"] * len(ooms),
        "severity": ["error"] * len(ooms),
        "pid": list(ooms),
        "text": [f"Out of memory: Killed process {pid} (python)" for pid in ooms],
    }
    store = write_scene(
        root,
        scene.looks(),
        exit_reason="crashed",
        incidents=[incident],
        frozen=scene.snapshot(),
        more={"hardware_events": events} if ooms else None,
    )
    return diagnose(store, store.attempt()), store


@pytest.mark.parametrize(
    ("code", "words", "step"),
    [
        (-9, "was killed by signal 9 (SIGKILL)", "OOM killer"),
        (-11, "was killed by signal 11 (SIGSEGV)", "core file"),
        (-15, "was killed by signal 15 (SIGTERM)", "who sent the signal"),
        (1, "ended with exit code 1", "its own code ended it with 1"),
    ],
)
def test_the_verdict_says_how_the_process_ended(tmp_path: Path, code: int, words: str, step: str) -> None:
    verdict, store = crash(tmp_path / "store", died(3, exit_code=code))
    [culprit] = verdict.culprits
    assert (verdict.verdict, culprit.ranks, culprit.kind) == (State.CRASHED, (3,), CulpritKind.DEAD)
    assert culprit.exit_code == to_json(verdict)["culprits"][0]["exit_code"] == code
    assert words in verdict.sentence()
    [evidence] = culprit.evidence
    assert words in evidence.statement
    assert evidence.value == run_sql(store, evidence.sql).table.column(0)[0].as_py() == code
    assert step in to_json(verdict)["culprits"][0]["next"][0]


def test_without_a_code_it_is_dead_and_no_more_is_said(tmp_path: Path) -> None:
    verdict, _ = crash(tmp_path / "store", died(3))
    [culprit] = verdict.culprits
    assert culprit.exit_code is None
    assert "is dead" in verdict.sentence()
    assert "was found gone" in culprit.evidence[0].statement


@pytest.mark.parametrize(
    ("code", "killed", "is_told"), [(-9, PID + 3, True), (-9, PID + 5, False), (-11, PID + 3, False)]
)
def test_memory_ran_out_if_the_kernels_log_says_so_of_that_process(
    tmp_path: Path, code: int, killed: int, is_told: bool
) -> None:
    verdict, store = crash(tmp_path / "store", died(3, exit_code=code), ooms=(killed,))
    told = [one for one in verdict.culprits[0].evidence if "memory had run out" in one.statement]
    assert len(told) == is_told
    for one in told:
        assert run_sql(store, one.sql).table.column(0)[0].as_py() == one.value == 1


def test_who_was_ended_by_the_launcher_is_no_root(tmp_path: Path) -> None:
    """All were found gone in the same look; without their launcher's word, rank 3 and nobody else would be named."""
    told = [died(rank, exit_code=-9, asked_signal=9) for rank in range(8) if rank != 6]
    verdict, _ = crash(tmp_path / "a", *told, died(6, exit_code=-11))
    assert [(one.ranks, one.exit_code) for one in verdict.culprits] == [((6,), -11)]
    verdict, _ = crash(tmp_path / "b", *[died(rank, exit_code=-9) for rank in range(8)])
    assert [one.ranks for one in verdict.culprits] == [(3,)]


def test_where_all_were_told_to_end_nobody_is_accused(tmp_path: Path) -> None:
    verdict, _ = crash(tmp_path / "store", *(died(rank, exit_code=130, asked_signal=15) for rank in range(8)))
    assert (verdict.verdict, verdict.culprits) == (State.CRASHED, ())
    assert "told to by their launcher" in verdict.abstained[0].reason


@pytest.mark.parametrize(
    ("more", "is_told", "is_lost"),
    [
        ({"type": "RuntimeError", "message": "release unlocked lock", "asked_ns": MOMENT_NS - SECOND}, True, False),
        ({"type": "PeerLostError", "message": "the group broke", "asked_ns": MOMENT_NS + SECOND}, True, True),
    ],
    ids=["told, then raised", "lost a peer, then told"],
)
def test_where_nobody_is_accused_the_reason_names_what_deaths_followed_from(
    tmp_path: Path, more: dict[str, Any], is_told: bool, is_lost: bool
) -> None:
    """Seven ranks went for their launcher's signal, and one with an exception."""
    ended = [died(rank, exit_code=130, asked_signal=15) for rank in range(7)]
    raised = died(7, exit_code=1, asked_signal=15, **{"state": "exception", **more})
    verdict, _ = crash(tmp_path / "store", *ended, raised)
    assert (verdict.verdict, verdict.culprits) == (State.CRASHED, ())
    reason = verdict.abstained[0].reason
    assert ("told to by their launcher" in reason, "lost a peer" in reason) == (is_told, is_lost)


def test_who_lost_a_peer_and_was_ended_later_is_not_said_to_have_been_told_to_end(tmp_path: Path) -> None:
    lost = {"state": "exception", "type": "PeerLostError", "message": "the group broke"}
    told = {"exit_code": -15, "asked_signal": 15, "asked_ns": MOMENT_NS + SECOND}
    verdict, _ = crash(tmp_path / "store", *(died(rank, **{**lost, **told}) for rank in range(8)))
    assert verdict.culprits == ()
    assert verdict.abstained[0].reason.startswith("all ranks that ended say that they lost a peer")


@pytest.mark.parametrize(("told_s", "blamed"), [(-1, 6), (1, 0)], ids=["told before", "told afterwards"])
def test_an_exception_of_who_had_been_told_to_end_is_a_consequence(tmp_path: Path, told_s: int, blamed: int) -> None:
    """As where the launcher's signal meets a lock; an exception before it is the first trouble as ever."""
    raised = {"state": "exception", "type": "RuntimeError", "message": "release unlocked lock", "exit_code": 1}
    told = {"asked_signal": 15, "asked_ns": MOMENT_NS + told_s * SECOND}
    later = {"moment_ns": MOMENT_NS + SECOND, "exit_code": -9}
    verdict, _ = crash(tmp_path / "store", died(0, **raised, **told), died(6, **later))
    assert [one.ranks for one in verdict.culprits] == [(blamed,)]
