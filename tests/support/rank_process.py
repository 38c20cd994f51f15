"""A real rank in a process of its own, for tests that kill: it records numbered spans and does as it is told.

Run as ``python -m support.rank_process SETTINGS`` with a JSON object (see `Behaviour`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from megascope.profiler.box.box import BoxLayout
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """``spans`` collectives, numbered from 1, in steps of ``spans_per_step``, then ``ending``.

    Endings: finish (close), kill (SIGKILL with work in flight), raise (exception noted, closed), hang (in flight until
    killed from outside), leave (no goodbye).
    """

    spool: str
    run: str = "run"
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    spans: int = 100
    spans_per_step: int = 10
    pause_s: float = 0.0
    ending: str = "finish"


def start(behaviour: Behaviour) -> subprocess.Popen[bytes]:
    """Start a rank."""
    command = [sys.executable, "-m", "support.rank_process", json.dumps(asdict(behaviour))]
    return subprocess.Popen(command, cwd=TESTS)


def _record(recorder: Recorder, behaviour: Behaviour) -> None:
    topology = Topology.of(dp=behaviour.world_size)
    recorder.topology(topology, behaviour.rank)
    recorder.configuration({"spans": behaviour.spans})
    forward = recorder.segment("forward")
    reduce = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp")
    group = recorder.group("dp", range(behaviour.world_size))
    for number in range(behaviour.spans):
        if number % behaviour.spans_per_step == 0:
            step = number // behaviour.spans_per_step
            recorder.step(step)
            recorder.step_metrics(step, loss=1.0 / (step + 1))
        span = recorder.begin_async(reduce, group=group, sequence=number + 1, size_bytes=8)
        if behaviour.pause_s:
            time.sleep(behaviour.pause_s)
        recorder.end_async(span)
        recorder.wait_begin(span)
        recorder.wait_end(span)
    _end(recorder, behaviour, forward, reduce, group)


def _end(recorder: Recorder, behaviour: Behaviour, forward: int, reduce: int, group: int) -> None:
    if behaviour.ending == "finish":
        recorder.close("finished")
        return
    if behaviour.ending == "leave":
        os._exit(0)
    if behaviour.ending == "raise":
        recorder.exception(RuntimeError("out of luck"))
        recorder.close("crashed")
        return
    done = recorder.begin_async(reduce, group=group, sequence=behaviour.spans + 1)
    recorder.end_async(done)  # complete, but nobody waits for it
    recorder.begin(forward, microbatch=3)
    recorder.begin_async(reduce, group=group, sequence=behaviour.spans + 2, peer=0, microbatch=3)
    if behaviour.ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(60)


def _main(text: str) -> None:
    behaviour = Behaviour(**json.loads(text))
    settings = RecorderSettings(
        run=behaviour.run,
        attempt=behaviour.attempt,
        rank=behaviour.rank,
        world_size=behaviour.world_size,
        spool=Path(behaviour.spool),
        layout=BoxLayout(slots=64, rings=2, ring_records=65536, groups=16),
    )
    recorder = open_recorder(settings)
    assert isinstance(recorder, Recorder)
    _record(recorder, behaviour)


if __name__ == "__main__":
    _main(sys.argv[1])
