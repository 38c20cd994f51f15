"""Having a job that still trains save at a chosen step and stop, so that a host is replaced without losing a step."""

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


def stop_step(job: Job, seen: Seen) -> int | None:
    """The number of updates after which all ranks could save and stop; None where that cannot be told.

    The store lags behind: steps that have been made since its last one, at the fastest pace, are counted in. Steps that
    are shorter than the time to give vary, and get two more; of longer ones it is the end of the next but one.
    """
    times = _times_s(seen)
    if not times or seen.last_step is None or seen.end_ns is None or statistics.median(times) > MOST_STEP_S:
        return None
    since = math.ceil(max(time.time_ns() - seen.end_ns, 0) / 1e9 / min(times))
    usual_s = statistics.median(times)
    more = math.ceil(job.patience.save_s / usual_s) + (2 if usual_s < job.patience.save_s else 0)
    return seen.last_step + 1 + since + more


def _times_s(seen: Seen) -> list[float]:
    """The newest step times, in seconds."""
    return [step.duration_ns / 1e9 for step in seen.steps[-20:] if step.duration_ns]


def save_and_stop(
    job: Job, state: AttemptState, hub: Hub, observer: Observer, turn: Callable[[float], None]
) -> int | None:
    """Ask all ranks to save after the same step and to stop; that number of updates, None where they did not.

    The step is far enough ahead that every rank can have read the request before it gets there. Where one has not,
    the ranks wait for each other in vain, and the checkpoint before is used: steps are lost then, and nothing else.
    """
    observer.look()
    seen = observer.seen
    target = stop_step(job, seen)
    if target is None or seen.last_step is None:
        return None
    for host in state.hosts:
        if host in hub.nodes:
            hub.nodes[host].tell({"do": "save-and-stop", "step": target})
    step_s = statistics.median(_times_s(seen))
    deadline = time.monotonic() + 3 * (target - seen.last_step) * step_s + job.patience.stop_s
    while time.monotonic() < deadline:
        turn(0.2)
        if state.has_ended_well:
            return target
        if state.lost or state.failed:
            return None
    return None
