"""Which incidents of a run still last: what a host that went could not close has ended with its attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.incident_data import incidents_of_run
from megascope.dashboards.pages import PAGES
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench

S = 10**9


def write(root: Path, attempt: int, *kinds: str, exit_reason: str | None = None) -> None:
    """An attempt with incidents of these kinds, which nobody has closed."""
    start_ns = 1_700_000_000 * S + attempt * 1000 * S
    with TableWriter(root, f"agent-{attempt}") as writer:
        writer.write("runs", "run", attempt, {"world_size": [2], "start_ns": [start_ns], "exit_reason": [exit_reason]})
        columns = {
            "incident": [f"run/{attempt}/host/{kind}/0" for kind in kinds],
            "kind": list(kinds),
            "opened_ns": [start_ns + number * S for number in range(len(kinds))],
            "closed_ns": [None] * len(kinds),
            "actions": ["[]"] * len(kinds),
        }
        writer.write("incidents", "run", attempt, columns)
        writer.commit()


def lasting(root: Path) -> set[str]:
    with Store(root) as store:
        return {f"{one.kind} {one.attempt}" for one in incidents_of_run(store, "run") if one.is_open}


def test_what_a_lost_host_left_open_is_over_once_the_run_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank-died", "recovery-host-lost")
    assert lasting(tmp_path) == {"rank-died 0", "recovery-host-lost 0"}
    write(tmp_path, 1)
    assert lasting(tmp_path) == {"recovery-host-lost 0"}, "the new attempt has yet to catch up"
    write(tmp_path, 2, "stalled")
    assert lasting(tmp_path) == {"stalled 2"}
    write(tmp_path, 3, "stalled", exit_reason="finished")
    assert lasting(tmp_path) == set()


@pytest.mark.parametrize(("newer", "banner", "state"), [(False, "OPEN", "open"), (True, "CLOSED", "never closed")])
def test_the_page_calls_only_what_lasts_open(tmp_path: Path, newer: bool, banner: str, state: str) -> None:
    write(tmp_path, 0, "rank-died")
    if newer:
        write(tmp_path, 1)
    store = Store(tmp_path)
    bench = Workbench(store)
    shown = PAGES["/incidents"].body(View(), bench)
    assert banner in str(shown.banner)
    assert f"'{state}'" in str(shown.children)
    bench.close()
    store.close()
