"""Losses, gradient norms and states that are infinite or not a number, and whether they have reached the weights."""

from __future__ import annotations

from ..profiler.errors import MegascopeError

_WHAT_TO_DO = "go back to an earlier checkpoint, and lower train.learning_rate or look at the data of that step."


class NotFiniteError(MegascopeError):
    """A number of the training is infinite or not a number. ``is_applied``: the weights were updated with it."""

    def __init__(self, sentence: str, *, is_applied: bool = False) -> None:
        super().__init__(sentence)
        self.is_applied = is_applied


def not_finite(
    step: int | None = None, microbatch: int | None = None, what: str = "loss", *, is_applied: bool = False
) -> NotFiniteError:
    """The error of such a number: weights that are updated with it are lost."""
    where = f"of step {step}" if step is not None else f"of micro-batch {microbatch} on this rank"
    sentence = f"The {what} {where} is not finite (NaN or infinite): {_WHAT_TO_DO}"
    return NotFiniteError(sentence, is_applied=is_applied)


def state_not_finite(rank: int, updates: int) -> NotFiniteError:
    """The error of weights or moments that are such numbers themselves: they are in no checkpoint."""
    sentence = f"The state of rank {rank} after step {updates} is not finite (NaN or infinite), and is not saved"
    return NotFiniteError(f"{sentence}: {_WHAT_TO_DO}", is_applied=True)
