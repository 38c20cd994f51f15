"""The clocks of the ranks' hosts for the pages, read once for each version of the store."""

from __future__ import annotations

from ..collectors.clocks.clocks import HostClock, load_clocks
from ..collectors.reading.store import Attempt
from .workbench import Workbench

SAME_CLOCK = HostClock.at(0, 0, 0.0, 0)
"""For hosts whose clock is not known: what they did is shown by their own clock."""


def clocks_of(bench: Workbench, attempt: Attempt) -> dict[int, HostClock]:
    """The clock of each rank's host; a rank whose host's clock is not known is left out."""

    def load() -> dict[int, HostClock]:
        known = load_clocks(bench.store, attempt).known
        places = bench.store.query("SELECT rank, host FROM ranks", attempt=attempt).to_pylist()
        return {row["rank"]: known[row["host"]] for row in places if row["host"] in known}

    return bench.cached(("clocks", attempt.run, attempt.attempt), load)
