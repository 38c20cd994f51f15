"""Losses and gradient norms that are infinite or not a number, and whether they have reached the weights."""

from __future__ import annotations

from ..profiler.errors import MegascopeError


class NotFiniteError(MegascopeError):
    """A loss or a gradient norm is infinite or not a number. ``is_applied``: the weights were updated with it."""

    is_applied = False


def not_finite(step: int | None = None, microbatch: int | None = None, what: str = "loss") -> NotFiniteError:
    """The error of such a number: weights that are updated with it are lost."""
    where = f"of step {step}" if step is not None else f"of micro-batch {microbatch} on this rank"
    return NotFiniteError(
        f"The {what} {where} is not finite (NaN or infinite): go back to an earlier checkpoint, and lower "
        "train.learning_rate or look at the data of that step."
    )
