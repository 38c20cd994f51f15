"""Ranks that make no progress, each for a reason of its own, for tests that tell them apart from outside.

Run as ``python -m support.stuck_rank SPOOL RANK WORLD REASON``; prints "ready" once it is about to get stuck. Reasons:
gil-sleep (C code that waits and holds the interpreter's lock), gil-spin (C code that computes and holds it),
collective (an operation that never ends), idle (waits to be stopped or killed from outside).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import time
from pathlib import Path

from megascope.profiler.box.box import BoxLayout
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind

TESTS = Path(__file__).parents[1]
FOREVER_S = 300


def start(spool: Path, rank: int, world_size: int, reason: str) -> subprocess.Popen[str]:
    """Start a rank, which is stuck from its word "ready" on."""
    command = [sys.executable, "-m", "support.stuck_rank", str(spool), str(rank), str(world_size), reason]
    return subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True)


def _main(spool: str, rank: int, world_size: int, reason: str) -> None:
    layout = BoxLayout(slots=16, rings=2, ring_records=512, groups=4)
    settings = RecorderSettings(
        run="run", attempt=0, rank=rank, world_size=world_size, spool=Path(spool), layout=layout
    )
    recorder = open_recorder(settings)
    assert isinstance(recorder, Recorder)
    recorder.step(3)
    recorder.begin(recorder.segment(reason))
    if reason == "collective":
        segment = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp")
        recorder.begin_async(segment, group=recorder.group("dp", range(world_size)), sequence=1)
    print("ready", flush=True)
    if reason == "gil-sleep":
        ctypes.PyDLL(None).sleep(FOREVER_S)
    elif reason == "gil-spin":
        re.fullmatch(r"(a+)+", "a" * 64 + "b")
    time.sleep(FOREVER_S)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
