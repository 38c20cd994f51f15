"""Why a job cannot be replayed."""

from __future__ import annotations


class CannotReplayError(Exception):
    """The store lacks what a replay needs; the text says what, for the verdict's list of abstentions."""
