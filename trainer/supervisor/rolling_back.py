"""Where to go back to from a loss that diverges: the checkpoint from before it rose, and the batches since."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from ..checkpoints.files import committed_steps
from ..skipping import batch_of
from .history import History, RollBack
from .job import Job
from .observing import Seen
from .signs import StepRecord
from .thresholds import THRESHOLDS, Thresholds


def last_good_step(steps: Sequence[StepRecord], limits: Thresholds = THRESHOLDS) -> int | None:
    """The last step with an ordinary loss in the stretch whose median loss is the lowest, which a divergence is held
    against.

    Ordinary is a loss that is not above that median: the stretch may end in steps whose loss has risen already. The
    latest of several stretches that are alike; None where there are not enough steps with a loss.
    """
    known = [(step.step, step.loss) for step in steps if step.loss is not None and math.isfinite(step.loss)]
    size = limits.loss_steps
    ends = range(size, len(known) - size + 1)
    if not ends:
        return None
    medians = {end: statistics.median(loss for _, loss in known[end - size : end]) for end in ends}
    best = min(ends, key=lambda end: (medians[end], -end))
    return next(step for step, loss in reversed(known[:best]) if loss <= medians[best])


def way_still_there(found: RollBack, job: Job, seen: Seen, history: History) -> RollBack | None:
    """The same way once the ranks have ended: they went on until then, and may have pruned the checkpoint it leads to.

    An older one takes its place, within the limit; None where there is none. OSError where they cannot be read.
    """
    committed = [] if job.checkpoints is None else committed_steps(job.checkpoints)
    to = next((step for step in committed if step <= found.to), None)
    if to is None or (to < found.to and (seen.furthest or 0) - to >= job.limits.most_steps_back):
        return None
    passed = {*job.skip, *history.passed_over}
    last = found.last if seen.furthest is None else max(found.last, batch_of(seen.furthest, passed))
    return replace(found, to=to, first=batch_of(to, passed), last=last)


def way_back(job: Job, seen: Seen, history: History) -> RollBack | None:
    """The way back from where the job is; None where there is no checkpoint from before, or it is too far back."""
    good = last_good_step(seen.settled, job.thresholds)
    if good is None or seen.furthest is None or job.checkpoints is None:
        return None
    committed: list[int] = []
    with contextlib.suppress(OSError):
        committed = committed_steps(job.checkpoints)
    # The newest comes first. Of what a step's own update has made, no loss of a good step has shown that it is good.
    to = next((step for step in committed if step <= good), None)
    if to is None or seen.furthest - to >= job.limits.most_steps_back:
        return None
    passed = {*job.skip, *history.passed_over}
    return RollBack(time.time(), to, batch_of(to, passed), batch_of(seen.furthest, passed))
