"""A small store that the real recorder and the real agent wrote."""

from __future__ import annotations

import tempfile
from pathlib import Path

from megascope.collectors.agent.agent import AgentSettings, run_agent
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind


def small_store(folder: Path, ranks: int = 2, steps: int = 3) -> Path:
    """Record ``ranks`` ranks (on one dp axis) in this process, let an agent drain them, and return the store."""
    mesh = Topology.of(dp=ranks)
    with tempfile.TemporaryDirectory() as spool:
        for rank in range(ranks):
            settings = RecorderSettings(run="small", attempt=0, rank=rank, world_size=ranks, spool=Path(spool))
            recorder = open_recorder(settings)
            assert isinstance(recorder, Recorder)
            recorder.topology(mesh, rank)
            _record(recorder, ranks, steps)
        run_agent(AgentSettings(spool=Path(spool), store=folder, poll_s=0.05, idle_exit_s=0.1))
    return folder


def _record(recorder: Recorder, ranks: int, steps: int) -> None:
    forward = recorder.segment("forward")
    reduce = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp")
    group = recorder.group("dp", range(ranks))
    for step in range(steps):
        recorder.step(step)
        with recorder.span(forward, step):
            pass
        operation = recorder.begin_async(reduce, group=group, sequence=step + 1, size_bytes=64)
        recorder.end_async(operation)
        recorder.wait_begin(operation)
        recorder.wait_end(operation)
        recorder.step_metrics(step, loss=2.0)
    recorder.end_step()
    recorder.close("finished")
