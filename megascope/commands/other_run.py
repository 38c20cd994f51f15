"""What ``--against`` names: another run or attempt of the store, or another store with or without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..profiler.errors import UsageError

if TYPE_CHECKING:
    from ..collectors.reading.store import Attempt, Store


def find_other(text: str, store: Store) -> tuple[Store, Attempt]:
    """``RUN``, ``RUN/ATTEMPT``, ``STORE`` or ``STORE:RUN[/ATTEMPT]`` to a store and an attempt; runs go before paths.

    Raises UsageError for what is neither.
    """
    from ..collectors.reading.store import Store as Opened  # noqa: PLC0415
    from ..collectors.storage.address import store_path  # noqa: PLC0415

    attempts = _of_run(text, store)
    if attempts is not None:
        return store, attempts
    if store_path(text).is_dir():
        other = Opened(text)
        return other, other.attempt()
    path, colon, run = text.rpartition(":")
    if colon and store_path(path).is_dir():
        other = Opened(path)
        found = _of_run(run, other)
        return other, found if found is not None else other.attempt(run)
    runs = ", ".join(dict.fromkeys(one.run for one in store.attempts()))
    raise UsageError(
        f"--against {text} is no run of {store.root} and no folder: give one of its runs ({runs}), RUN/ATTEMPT, or "
        "the path of another store."
    )


def _of_run(text: str, store: Store) -> Attempt | None:
    """The attempt that ``RUN`` or ``RUN/ATTEMPT`` names; None where the store has no such run."""
    runs = {one.run for one in store.attempts()}
    if text in runs:
        return store.attempt(text)
    run, slash, number = text.rpartition("/")
    if slash and run in runs and number.isdecimal():
        return store.attempt(run, int(number))
    return None
