"""Having a job that still trains save and stop, so that a host is replaced without losing a step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from .attempt import AttemptState
from .hub import Hub
from .job import Job
from .observing import Observer, Seen

MOST_STEP_S = 120.0
"""A host so slow that a step takes longer is not waited for."""

MORE_STEPS = 4
"""Steps that are made after all ranks can have read the request: the one under way, its sum, and a device's lag."""


def stopped_by(job: Job, seen: Seen) -> int | None:
    """The number of updates by which all ranks will have stopped if they are asked now; None where none can be told.

    It is only for what is worth asking, and for how long to wait: the step is agreed upon by the ranks.
    """
    times = _times_s(seen)
    if not times or seen.last_step is None or statistics.median(times) > MOST_STEP_S:
        return None
    return seen.last_step + 1 + math.ceil(job.patience.save_s / statistics.median(times)) + MORE_STEPS


def _times_s(seen: Seen) -> list[float]:
    """The newest step times, in seconds."""
    return [step.duration_ns / 1e9 for step in seen.steps[-20:] if step.duration_ns]


def save_and_stop(
    job: Job, state: AttemptState, hub: Hub, observer: Observer, turn: Callable[[float], None]
) -> int | None:
    """Ask all ranks to save and to stop; after how many updates they did, None where they did not.

    The first rank that reads the request makes all of them stop after the same step.
    """
    observer.look()
    seen = observer.seen
    last = stopped_by(job, seen)
    if last is None or seen.last_step is None:
        return None
    least = seen.last_step + 1
    for host in state.hosts:
        if host in hub.nodes:
            hub.nodes[host].tell({"do": "save-and-stop", "step": least})
    deadline = time.monotonic() + 3 * (last - seen.last_step) * statistics.median(_times_s(seen)) + job.patience.stop_s
    while time.monotonic() < deadline:
        turn(0.2)
        if state.has_ended_well:
            return job.resumed_step() or least
        if state.lost or state.failed:
            return None
    return None
