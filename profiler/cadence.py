"""Which steps are timed: a function of the run and the step's number alone, so that all ranks agree without talking."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import UsageError
from .topology import stable_id

DEFAULT_SHADOW_EVERY = 20
"""`megascope.init` leaves the timings out in one step of so many, to measure what they cost."""

SAMPLE_VARIABLE, SHADOW_VARIABLE = "MEGASCOPE_SAMPLE", "MEGASCOPE_SHADOW"


@dataclass(frozen=True, slots=True)
class Cadence:
    """Timings of every ``sample``-th step only, and of none in one step of each ``shadow_every`` (0: in all).

    The shadow step stands at a place of its block of steps that looks random, so that nothing periodic in the training
    hides behind it. The first block has none: it warms up, and a short run is recorded as a whole.
    Raises UsageError for counts that make no sense.
    """

    run: str = ""
    sample: int = 1
    shadow_every: int = 0

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UsageError(f"One step in {self.sample} cannot be sampled: give 1 for all steps, or more.")
        if self.shadow_every < 0 or self.shadow_every == 1:
            raise UsageError(f"One step in {self.shadow_every} cannot be a shadow: give 0 for none, or 2 or more.")

    def is_timed(self, step: int) -> bool:
        """Whether spans of this step are timed."""
        return step % self.sample == 0 and not self.is_shadow(step)

    def is_shadow(self, step: int) -> bool:
        """Whether this is the shadow step of its block; of the steps that are sampled at all."""
        if not self.shadow_every:
            return False
        block, place = divmod(step // self.sample, self.shadow_every)
        return block > 0 and place == stable_id("shadow", self.run, str(block)) % self.shadow_every


def chosen(run: str, sample: int | None = None, shadow_every: int | None = None) -> Cadence:
    """The cadence that was asked for: by argument, else by ``$MEGASCOPE_SAMPLE`` and ``$MEGASCOPE_SHADOW``.

    Raises UsageError for what is no count.
    """
    return Cadence(
        run,
        _count(SAMPLE_VARIABLE, 1) if sample is None else sample,
        _count(SHADOW_VARIABLE, DEFAULT_SHADOW_EVERY) if shadow_every is None else shadow_every,
    )


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise UsageError(f"${variable} is {text[:40]!r}: give a number of steps.")
    return int(text)
