"""Which steps are timed: a function of the run and the step's number alone, so that all ranks agree without talking."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from .errors import UsageError
from .topology import stable_id

log = logging.getLogger(__name__)

DEFAULT_SHADOW_EVERY = 20
"""`megascope.init` leaves the timings out in one step of so many, to measure what they cost."""

SAMPLE_VARIABLE, SHADOW_VARIABLE = "MEGASCOPE_SAMPLE", "MEGASCOPE_SHADOW"

_OFF, _ON = frozenset({"0", "off", "no", "none", "false"}), frozenset({"1", "on", "yes", "true"})
_MAX_DIGITS = 10


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

    Raises UsageError for an argument that is no count. The environment stops no training: what cannot be meant there
    is warned of, and the default taken.
    """
    return Cadence(
        run,
        _from_environment(SAMPLE_VARIABLE, off=1, on=1, least=1) if sample is None else sample,
        _from_environment(SHADOW_VARIABLE, off=0, on=DEFAULT_SHADOW_EVERY, least=2)
        if shadow_every is None
        else shadow_every,
    )


def _from_environment(variable: str, *, off: int, on: int, least: int) -> int:
    """A variable's number of steps: ``off`` for 0, off, no, none, false; ``on`` for 1, on, yes, true, or nothing."""
    text = os.environ.get(variable, "").strip().lower()
    if text in _OFF:
        return off
    if not text or text in _ON:
        return on
    count = int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else 0
    if count < least:
        log.warning("$%s is %r, which is no number of steps: %d is taken.", variable, text[:40], on)
        return on
    return count
