"""How much a supervisor may do by itself, in one table of settings."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...profiler.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets and thresholds of the policy; times in seconds."""

    max_restarts: int = 20
    "Restarts within `window_s`, of whatever cause; then the run stops."
    window_s: float = 86_400.0
    "Length of the window in which restarts and fences are counted."
    max_fences: int = 4
    "Hosts fenced within `window_s`; then the run stops."
    fences_at_once: int = 1
    "Hosts fenced for one incident; a verdict that accuses more is taken for a common cause, and fences none."
    min_confidence: float = 0.8
    "Least confidence (0 to 1) of a verdict that fences a host."
    min_lost_share: float = 0.05
    "Share of the step time (0 to 1) that has to be lost to a host found slow without a sign for it to be replaced."
    same_step_failures: int = 3
    "Failures in a row in the same step after which the run stops, or skips that step's data where that is allowed."
    backoff_s: float = 5.0
    "Wait before the second restart in a row without progress; it doubles with each further one."
    max_backoff_s: float = 300.0
    "Longest such wait."
    skip_data: bool = False
    "Pass over a batch at which the job failed again and again, or whose loss was not finite, instead of stopping."

    max_skips: int = 3
    "Batches passed over in the whole run; then the run stops."

    roll_back: bool = False
    "Go back to the checkpoint from before the loss began to diverge, and pass over the batches since."
    max_roll_backs: int = 2
    "Times that is done in the whole run; later divergences are told only."
    most_steps_back: int = 1000
    "Steps that are gone back at most; where the checkpoint lies further back, the divergence is told only."

    def __post_init__(self) -> None:
        """Raise UsageError for a limit that makes no sense."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0:
                raise UsageError(f"The limit {field.name} is {value}: give 0 or more.")
        if not 0 < self.min_confidence <= 1:
            raise UsageError(f"min_confidence is {self.min_confidence}: give more than 0, at most 1.")
        if not 0 <= self.min_lost_share <= 1:
            raise UsageError(f"min_lost_share is {self.min_lost_share}: give a share of the step time, 0 to 1.")
        if self.same_step_failures < 1:
            raise UsageError("same_step_failures is 0: give 1 or more.")
