"""Which incidents of a run still last: what a host that went could not close has ended with its attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.goodput import run_goodput
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.incident_data import Told, incidents_of_run
from megascope.dashboards.pages import PAGES, incidents
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.synthetic_store import SyntheticJob, write_synthetic_store

S = 10**9


def test_all_that_many_culprits_have_is_told_or_counted() -> None:
    """Steps of each, those of the first unfolded; a verdict without any, as that of stragglers, shows none."""
    culprits = [{"ranks": [rank], "evidence": [{"statement": f"s{rank}"}], "next": [f"n{rank}"]} for rank in range(23)]
    verdict = {"run": "r", "attempt": 0, "verdict": "hang", "culprits": [*culprits[:2], {"ranks": [9], "next": None}]}
    few = Told("r/0/h/stalled/0", 0, "stalled", S, None, True, "", (), verdict, {})
    many = replace(few, verdict={**verdict, "culprits": culprits})
    shown = str(incidents._next(few))
    assert (shown.count("open=True"), shown.count("open=False")) == (1, 1)
    assert "about rank 0" in shown
    assert "And 3 more culprits" in str(incidents._evidence(many))
    assert "more culprits" not in str(incidents._evidence(few))
    assert incidents._next(replace(few, verdict={**verdict, "culprits": [{"ranks": [1]}]})) == []


@pytest.mark.parametrize(
    ("culprits", "actions", "expected"),
    [
        ([{"ranks": [5], "hosts": ["b"]}], [{"action": "noticed", "ranks": [0]}], {"b"}),
        ([{"ranks": [5], "hosts": None}], [], {"b"}),
        ([], [{"action": "sign", "ranks": [1, None], "host": {}}], {"a", "h"}),
        ([], [{"action": "noticed-death", "rank": 4}, {"action": "fenced", "host": "c"}], {"b", "c", "h"}),
        ([], [], {"h"}),
    ],
)
def test_an_incident_is_of_the_hosts_that_it_accuses_else_of_those_that_it_names(
    culprits: list[dict[str, Any]], actions: list[dict[str, Any]], expected: set[str]
) -> None:
    verdict = {"run": "r", "attempt": 0, "verdict": "hang", "culprits": culprits} if culprits else None
    one = Told("a run/0/h/stalled/0", 0, "stalled", S, None, True, "", tuple(actions), verdict, {})
    ranks = {"a": (0, 1), "b": (4, 5), "c": (7,), "h": (8,)}
    assert {host for host, own in ranks.items() if one.is_of(host, own)} == expected


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


def test_goodput_of_a_run_that_made_steps_again(tmp_path: Path) -> None:
    """Six steps, then the last two of them again and four more after a minute's pause: ten of twelve steps count."""
    first = SyntheticJob(steps=6)
    pause_ns = 60 * S
    restart_ns = first.first_ns + 6 * first.step_ns + pause_ns
    second = SyntheticJob(steps=10, first_step=4, attempt=1, first_ns=restart_ns - 4 * first.step_ns)
    store = tmp_path / "store"
    for job in (first, second):
        write_synthetic_store(store, job)
    step_s = first.step_ns / S
    with Store(store) as opened:
        good = run_goodput(opened, first.run)
        assert good is not None
        assert good.repeated_s == pytest.approx(2 * step_s)
        assert good.goodput == pytest.approx(10 * step_s / good.total_s)
        bench = Workbench(opened)
        shown = str(PAGES["/incidents"].body(View(), bench).children)
        bench.close()
    assert f"'{good.goodput:.1%}'" in shown
    assert f"goodput of {good.total_s:,.1f} s: {2 * step_s:,.1f} s of steps made again, {good.other_s:,.1f} s" in shown
    assert "no completed step" in str(incidents._goodput(None))
    assert incidents._span(7200.0) == "2.0 h"
    assert incidents._span(150.0) == "2.5 min"
