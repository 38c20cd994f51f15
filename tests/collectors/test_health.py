"""Health metrics: what is blank or absurd is NULL with its reason; and the life of a process as it is sampled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megascope.collectors.hardware.metrics import ALL
from megascope.collectors.health import judged
from megascope.collectors.spool.processes import ProcessState, ProcessWatch
from megascope.profiler.box.box import BoxLayout, create_box


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (61.5, (61.5, None)),
        (None, (None, "blank")),
        (float("nan"), (None, "blank")),
        (0, (None, "out-of-range")),
        (2**31 / 1000, (None, "out-of-range")),
        (-1, (None, "out-of-range")),
    ],
)
def test_only_what_can_be_true_is_a_value(value: float | None, expected: tuple[float | None, str | None]) -> None:
    row = judged(ALL["power_watts"], value)
    assert (row["metric"], row["value"], row["flag"]) == ("power_watts", *expected)


def _until(watch: ProcessWatch, state: ProcessState) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if watch.sample().state == state:
            return True
        time.sleep(0.01)
    return False


_HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    box = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(60)
def test_the_life_of_a_process(tmp_path: Path) -> None:
    box = tmp_path / "rank-00000.box"
    create_box(box, BoxLayout(4, 1, 8, 4), rank=0, pid=0).close()
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(box)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch = ProcessWatch(child.pid, box)
        assert _until(watch, ProcessState.SLEEPING)
        assert watch.sample().cpu_ns is not None
        os.kill(child.pid, signal.SIGSTOP)
        assert _until(watch, ProcessState.STOPPED)
        os.kill(child.pid, signal.SIGKILL)
        assert _until(watch, ProcessState.ZOMBIE)
        child.wait()
        assert watch.sample().state == ProcessState.GONE
        assert ProcessWatch(child.pid, box).sample().state == ProcessState.GONE


def test_a_reused_process_id_is_not_the_rank(tmp_path: Path) -> None:
    """This very process lives, but it does not have the box mapped: the rank that had its number is gone."""
    box = tmp_path / "rank-00000.box"
    create_box(box, BoxLayout(4, 1, 8, 4), rank=0, pid=0).close()
    assert ProcessWatch(os.getpid(), box).sample().state == ProcessState.GONE
