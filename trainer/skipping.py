"""Which batch a step trains on, where batches are passed over."""

from __future__ import annotations

from collections.abc import Iterable


def batch_of(step: int, skipped: Iterable[int]) -> int:
    """The batch of a step: batches in ``skipped`` are passed over, and all after them move up."""
    number = step
    for batch in sorted(set(skipped)):
        if batch <= number:
            number += 1
    return number


def batch_after(batch: int, skipped: Iterable[int]) -> int:
    """The batch of the step after the one that trains on ``batch``."""
    number = batch + 1
    while number in set(skipped):
        number += 1
    return number
