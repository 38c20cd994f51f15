"""One supervisor at a time has a run: a second is refused, one that died is replaced, one that was replaced ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.collectors.storage.shared_claim import SharedClaim
from megascope.profiler.errors import MegascopeError
from megascope.trainer.supervisor import lease as lease_module
from megascope.trainer.supervisor.history import run_folder
from megascope.trainer.supervisor.hub import SILENT_S
from megascope.trainer.supervisor.lease import FRESH_S, LEASE_S, NAME, Lease, _identity


def silent(line: str) -> None:
    """Nobody hears it."""


def test_a_second_supervisor_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with Lease(tmp_path, "r").held(silent), pytest.raises(MegascopeError, match=r"^Run 'r' is supervised already, on"):
        Lease(tmp_path, "r")._take(silent)
    with Lease(tmp_path, "r").held(silent):
        """It was given free."""


def test_the_lease_of_one_that_died_on_this_machine_is_taken_over_at_once(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from megascope.trainer.supervisor.lease import Lease\n"
        "with Lease(Path(sys.argv[1]), 'r').held(print): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    (left,) = tmp_path.glob(f"{NAME}.claim-*")
    assert json.loads(left.read_text())["pid"] > 0
    began = time.monotonic()
    with Lease(tmp_path, "r").held(silent):
        assert time.monotonic() - began < LEASE_S / 2


def elsewhere(folder: Path) -> SharedClaim:
    """The claim of a supervisor on another machine."""
    return SharedClaim(folder, NAME, json.dumps({**_identity(), "machine": "other", "host": "far", "pid": 7}), 0.5)


def test_one_on_another_machine_is_waited_for_and_refuses_once_it_shows_that_it_lives(tmp_path: Path) -> None:
    other, said = elsewhere(tmp_path), list[str]()
    assert other.take()
    (path,) = tmp_path.iterdir()

    def say(line: str) -> None:
        said.append(line)
        path.touch()

    with pytest.raises(MegascopeError, match=r"supervised already, on far \(process 7\)"):
        Lease(tmp_path, "r", 2.0)._take(say)
    assert len(said) == 1


def test_one_on_another_machine_that_is_silent_is_replaced_and_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.05)
    mine = Lease(tmp_path, "r", 0.5)
    with mine.held(silent):
        states = [(mine.is_fresh, mine.is_lost)]
        (path,) = tmp_path.iterdir()
        SharedClaim.set_free(path)  # as if this one had been silent for its time
        assert elsewhere(tmp_path).take()
        deadline = time.monotonic() + 20
        while mine.is_fresh:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        states.append((mine.is_fresh, mine.is_lost))
    assert states == [(True, False), (False, True)]
    said: list[str] = []
    with Lease(tmp_path, "r", 0.5).held(said.append):
        assert "run r was supervised on far" in said[0]


def test_a_lease_that_cannot_be_renewed_is_not_sure_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lease_module, "RENEW_S", 0.02)
    monkeypatch.setattr(lease_module, "FRESH_S", 0.2)
    lease = Lease(tmp_path, "r", 0.5)
    with lease.held(silent):
        deadline = time.monotonic() + 20
        with monkeypatch.context() as patch:
            patch.setattr(os, "utime", fail)
            while lease.is_fresh:
                assert time.monotonic() < deadline, "nobody has renewed it"
                time.sleep(0.02)
        assert not lease.is_lost
        while not lease.is_fresh:
            assert time.monotonic() < deadline, "it is renewed again"
            time.sleep(0.02)


def test_a_lease_is_not_taken_back_from_whoever_had_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has ended in order before this one looks again; the history that this one knows is an old one."""
    lease, other = Lease(tmp_path, "r", 5.0), elsewhere(tmp_path)
    lease._take(silent)
    (path,) = tmp_path.iterdir()
    take, is_over, looks = SharedClaim.take, threading.Event(), list[int]()

    def late(claim: SharedClaim) -> bool:
        if not looks:
            SharedClaim.set_free(path)
            assert take(other)
            other.give_free()
        elif len(looks) > 5:
            is_over.set()
        looks.append(len(looks))
        return take(claim)

    monkeypatch.setattr(SharedClaim, "take", late)
    monkeypatch.setattr(lease_module, "RENEW_S", 0.01)
    lease._keep(is_over)
    assert lease.is_lost
    assert take(elsewhere(tmp_path)), "it was given free"


def test_a_process_that_nobody_has_reaped_yet_has_no_lease(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert lease_module._started(child.pid) is None
    finally:
        child.wait()
    assert lease_module._started(os.getpid()) is not None


def test_nodes_have_ended_before_another_supervisor_can_begin() -> None:
    renewed_at_least_s = LEASE_S / 5
    assert FRESH_S + renewed_at_least_s + SILENT_S < LEASE_S


def test_the_verb_refuses_a_run_that_is_supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "job.toml"
    config.write_text('[checkpoint]\nfolder = "c"\nevery = 5\n[record]\nrun = "r"\nstore = "store"\n')
    with Lease(run_folder(tmp_path / "store", "r"), "r").held(silent):
        assert main(["supervise", str(config), "--local"]) == 1
    assert "Run 'r' is supervised already" in capsys.readouterr().err
