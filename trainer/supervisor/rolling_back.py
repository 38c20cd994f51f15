"""Where to go back to from a loss that diverges: the checkpoint from before it rose, and the batches since."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence

from ..checkpoints.files import committed_steps
from ..skipping import batch_of
from .history import History, RollBack
from .job import Job
from .observing import Seen
from .signs import StepRecord
from .thresholds import THRESHOLDS, Thresholds


def last_good_step(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> int | None:
    """The last step of the stretch whose median loss is the lowest, which a divergence is held against.

    The latest of several that are alike; None where there are not enough steps with a loss.
    """
    known = [(step.step, step.loss) for step in steps if step.loss is not None]
    size = limits.loss_steps
    ends = range(size, len(known) - size + 1)
    if not ends:
        return None
    best = min(ends, key=lambda end: (statistics.median(loss for _, loss in known[end - size : end]), -end))
    return known[best - 1][0]


def way_back(job: Job, seen: Seen, history: History) -> RollBack | None:
    """The way back from where the job is; None where there is no checkpoint from before, or it is too far back."""
    good = last_good_step(seen.settled, job.thresholds)
    if good is None or seen.furthest is None or job.checkpoints is None:
        return None
    committed: list[int] = []
    with contextlib.suppress(OSError):
        committed = committed_steps(job.checkpoints)
    to = next((step for step in committed if step <= good + 1), None)  # the newest comes first
    if to is None or seen.furthest - to >= job.limits.most_steps_back:
        return None
    passed = {*job.skip, *history.passed_over}
    return RollBack(time.time(), to, batch_of(to, passed), batch_of(seen.furthest, passed))
