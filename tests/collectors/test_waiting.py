"""What a rank waits for, from the black box to the heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megascope.collectors.agent.agent import Agent
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.collecting import read_table


def test_heartbeats_tell_what_is_waited_for_and_how_large_it_is(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    rank = recorder()
    forward = rank.segment("forward")
    gather = rank.segment("tp_all_gather", SegmentKind.COLLECTIVE, "tp")
    watcher = agent(heartbeat_s=0.0)
    with rank.span(forward):
        operation = rank.begin_async(gather, group=rank.group("tp", [0, 1]), sequence=1, size_bytes=4096)
        watcher.poll(flush=True)
        rank.wait_begin(operation)
        watcher.poll(flush=True)
        rank.end_async(operation)
        rank.wait_end(operation)
        watcher.poll(flush=True)
    beats = [beat["in_flight"] for beat in read_table(store_root, "heartbeats")]
    shown = [[(one["segment"], one["waiting"], one["size_bytes"]) for one in beat] for beat in beats]
    outer = ("forward", False, None)
    assert shown[0] == [outer, ("tp_all_gather", False, 4096)]
    assert shown[1] == [outer, ("tp_all_gather", True, 4096)]
    assert shown[-1] == [outer]
