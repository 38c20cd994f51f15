"""Checks of spool and store: in order, out of room, in the wrong place, and not to be written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.manifests import marker
from megascope.collectors.storage import quota
from megascope.doctor import spool, store
from megascope.doctor.asking import Room, Writing
from megascope.doctor.checks import run_checks
from megascope.doctor.finding import Answer, State
from megascope.doctor.machine import Machine
from support.fake_machine import fake_machine

OK, ADVICE, PROBLEM, NOT_CHECKED = State.OK, State.ADVICE, State.PROBLEM, State.NOT_CHECKED
GIB, MIB = 2**30, 2**20
TWO_HOSTS = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}


def room(total_bytes: int, free_bytes: int, files: int | None = None) -> Callable[[Path], Room]:
    return lambda folder: Room(total_bytes, free_bytes, files)


def mounted(kind: str) -> dict[str, str]:
    return {"proc/self/mountinfo": f"1 0 8:1 / / rw - {kind} /dev/x rw\n"}


def refused(reason: str, *, read_only: bool = False) -> Callable[[Path], Writing]:
    return lambda folder: Writing(reason, True, read_only)


CASES: list[tuple[Callable[[Machine], Answer], dict[str, Any], State, str]] = [
    (spool.place, {"files": mounted("tmpfs")}, OK, "(tmpfs)"),
    (spool.place, {"write": lambda folder: Writing(None, False)}, OK, "not tried"),
    (spool.place, {"write": refused("Permission denied")}, PROBLEM, "Permission denied"),
    (spool.place, {"files": mounted("nfs4")}, PROBLEM, "(nfs4)"),
    (spool.room, {}, OK, "8 ranks (assumed)"),
    (spool.room, {"room": room(64 * MIB, 64 * MIB)}, ADVICE, "64 MiB of 64 MiB free"),
    (spool.room, {"room": room(200 * MIB, 200 * MIB)}, ADVICE, "of 16 MiB each"),  # half of it is for all boxes
    (spool.room, {"room": room(64 * MIB, 64 * MIB), "env": {"LOCAL_WORLD_SIZE": "1"}}, OK, "1 ranks (the launcher's"),
    (spool.room, {"room": room(64 * GIB, MIB)}, PROBLEM, "1 MiB of 65,536 MiB free"),
    (spool.agent, {}, OK, "no spool yet"),
    (store.place, {}, OK, "no store yet"),
    (store.place, {"write": refused("No space left on device")}, PROBLEM, "No space left"),
    (store.place, {"given": Path("ftp://host/store")}, PROBLEM, ""),
    (store.room, {}, OK, "50.0 GiB of 100.0 GiB"),
    (store.room, {"room": room(100 * GIB, GIB)}, ADVICE, "1.0 GiB"),
    (store.room, {"room": room(100 * GIB, 1)}, PROBLEM, "0.0 GiB"),
    (store.room, {"room": room(100 * GIB, 50 * GIB, 12)}, PROBLEM, "12 files"),
    (store.room, {"env": {"MEGASCOPE_STORE": "s3://bucket/store"}}, OK, "no end"),
    (store.size, {}, OK, "no store yet"),
    (store.size, {"env": {"MEGASCOPE_STORE": "s3://bucket/store"}}, NOT_CHECKED, "no quota"),
    (store.shared, {"files": mounted("ext4")}, OK, "this machine alone"),
    (store.shared, {"files": mounted("ext4"), "env": {"SLURM_JOB_NUM_NODES": "4"}}, PROBLEM, "4 hosts"),
    (
        store.shared,
        {"files": mounted("ext4"), "env": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}},
        PROBLEM,
        "2 hosts",
    ),
    (store.shared, {"files": mounted("lustre"), "env": {"SLURM_JOB_NUM_NODES": "4"}}, OK, "lustre"),
    (store.shared, {"env": {"MEGASCOPE_STORE": "s3://bucket/store"}}, OK, "object store"),
]


@pytest.mark.parametrize(("check", "changes", "state", "words"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_a_place(
    tmp_path: Path, check: Callable[[Machine], Answer], changes: dict[str, Any], state: State, words: str
) -> None:
    before = sorted(tmp_path.iterdir())
    machine = fake_machine(tmp_path, **changes)
    (finding,) = run_checks(machine, {"area": {"check": check}}, patience_s=60)
    assert finding.state is state, finding
    assert words in finding.value
    assert (finding.to_do is None) == (state in (OK, NOT_CHECKED))
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "root"]


def test_a_spool_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "spools").symlink_to("mine")
    assert spool.place(fake_machine(tmp_path)).state is PROBLEM


def test_what_waits_in_a_spool(tmp_path: Path) -> None:
    folder = tmp_path / "spools" / "spool"
    (folder / "run" / "0").mkdir(parents=True)
    lock = folder / "agent.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        taken = Path("/proc/locks").read_text()
        inode = lock.stat().st_ino
    if not any(line.split()[5].endswith(f":{inode}") for line in taken.splitlines()):
        taken = f"1: FLOCK  ADVISORY  WRITE 77 00:2f:{inode} 0 EOF\n"
    box = folder / "run" / "0" / "rank-00000.box"

    def answer(locks: str) -> Answer:
        return spool.agent(fake_machine(tmp_path, files={"proc/locks": locks}))

    assert answer("").state is OK
    box.touch()
    (folder / "agent.log").write_text("first\nthe store is full\n\n")
    left = answer(f"1: POSIX  ADVISORY  WRITE 77 00:2f:{inode} 0 EOF\n")
    assert left.state is ADVICE
    assert "1 boxes, and no agent is seen; its log ends: the store is full" in left.value
    assert f"megascope collect --store {tmp_path / 'store'}" in (left.to_do or "")
    served = answer(taken)
    assert (served.state, "an agent serves it" in served.value) == (OK, True)
    (tmp_path / "root" / "proc" / "locks").unlink()
    assert spool.agent(fake_machine(tmp_path)).state is NOT_CHECKED


def test_what_is_at_a_stores_place(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()

    def answer(**changes: Any) -> Answer:
        return store.place(fake_machine(tmp_path, **changes))

    assert (answer().state, "no store yet" in answer().value) == (OK, True)
    (root / "other.txt").touch()
    assert (answer().state, "no store of megascope" in (answer().to_do or "")) == (PROBLEM, True)
    (root / "_megascope.json").write_text(json.dumps({"schema": 10**6}))
    assert "upgrade megascope" in (answer().to_do or "")
    (root / "_megascope.json").write_text(json.dumps({"schema": 1}))
    assert (answer().state, "it is one" in answer().value) == (OK, True)
    assert answer(write=refused("Read-only file system", read_only=True)).state is ADVICE
    assert answer(write=refused("Disk quota exceeded")).state is PROBLEM
    assert answer(given=root / "other.txt").state is PROBLEM
    assert answer(given=root / "absent").value.startswith("no store yet")


@pytest.mark.skipif(os.getuid() == 0, reason="root may look into every folder")
def test_a_store_in_a_folder_that_nobody_may_enter(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    assert (
        store.place(fake_machine(tmp_path, given=locked / "store", write=refused("Permission denied"))).state is PROBLEM
    )


def test_a_store_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.parquet").write_bytes(b"x" * 950)
    monkeypatch.setattr(quota, "default_quota", lambda root: 1000)
    assert store.size(fake_machine(tmp_path)).state is ADVICE
    monkeypatch.setattr(quota, "default_quota", lambda root: 2000)
    assert store.size(fake_machine(tmp_path)).state is OK


def test_an_object_store_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = fake_machine(tmp_path, {"MEGASCOPE_STORE": "memory://doctor/store"})
    answer = store.place(machine)
    assert (answer.state, "holds none yet" in answer.value) == (OK, True)

    def unreachable(root: Path) -> bool:
        raise OSError("connection refused")

    monkeypatch.setattr(marker, "check_marker", unreachable)
    assert (store.place(machine).state, "connection refused" in store.place(machine).value) == (PROBLEM, True)
