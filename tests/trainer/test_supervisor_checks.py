"""Self-checks of a host: what their output and exit codes say of it, and that none outlives its agent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from megascope.trainer.supervisor.checks import Check, CheckResult


def finished(check: Check) -> CheckResult:
    deadline = time.monotonic() + 20
    while (result := check.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


@pytest.mark.parametrize(("code", "passed"), [(0, True), (1, False), (2, None), (77, None)])
def test_the_exit_code_of_a_check_is_its_result(code: int, passed: bool | None) -> None:
    result = finished(Check(["sh", "-c", f"echo as it is; exit {code}"], 20))
    assert result.passed is passed
    assert "as it is" in result.report


@pytest.mark.parametrize(
    ("verdict", "passed"), [("healthy", True), ("findings", False), ("insufficient-evidence", None)]
)
def test_a_verdict_that_a_check_prints_is_its_result(verdict: str, passed: bool | None) -> None:
    told = json.dumps({"schema": 1, "verdict": verdict})
    assert finished(Check(["sh", "-c", f"echo aside >&2; echo '{told}'"], 20)).passed is passed


def test_a_check_that_hangs_or_is_not_there_says_nothing_about_the_host() -> None:
    assert finished(Check(["sleep", "60"], 0.1)) == CheckResult(None, "the self-check did not end within 0.1 s")
    missing = finished(Check(["/no/such/program"], 5))
    assert missing.passed is None
    assert "cannot be started" in missing.report


def test_a_self_check_that_breaks_down_says_nothing_of_the_host() -> None:
    """It ends with code 1, as one that found the host unsound does; an import that fails is no broken host."""
    broken = finished(Check([sys.executable, "-c", "import nothing_of_this_name"], 20))
    assert broken.passed is None
    assert "ModuleNotFoundError" in broken.report


def test_this_interpreter_runs_a_check_that_asks_for_it() -> None:
    assert finished(Check(["{python}", "-c", "raise SystemExit(1)"], 20)).passed is False


def test_a_self_check_dies_with_the_agent_that_began_it() -> None:
    script = (
        "import os, signal, time; from megascope.trainer.supervisor.checks import Check\n"
        "print(Check(['sleep', '300'], 300)._child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = subprocess.run([sys.executable, "-c", script], check=False, timeout=60, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while _runs(int(child.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
