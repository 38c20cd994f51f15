"""The alarms on the page Health: told and untold ones, from the hook's memory and from what incidents note."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from megascope.collectors.alarms.memory import FOLDER, AlarmMemory
from megascope.collectors.alarms.record import Recorded, told_text
from megascope.collectors.alarms.rules import Alarm
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.alarm_data import TOGETHER_NS, AlarmRow, State, alarms_of
from megascope.dashboards.alarm_list import MOST_ROWS, NONE, alarm_list
from megascope.dashboards.incident_data import incidents_of_run
from megascope.dashboards.pages import PAGES, health
from megascope.dashboards.server import background_server
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.incident_store import add_incidents
from support.page_checks import visit
from support.synthetic_store import SyntheticJob, write_synthetic_store

S = 10**9
JOB = SyntheticJob(steps=4, ranks_per_host=2)
FIRST = JOB.first_ns
HANG = Alarm("hang", "high", JOB.run, 0, (5,), ("node0002",), "Rank 5 is stuck.", FIRST + 4 * S)


def death(host: str, *ranks: int) -> Alarm:
    fate = "ended without a goodbye"
    return Alarm("rank-died", "high", JOB.run, 0, ranks, (host,), f"Ranks on {host} {fate}.", FIRST + S, fate=fate)


def note(
    root: Path,
    host: str,
    *actions: dict[str, Any],
    kind: str = "stalled",
    attempt: int = 0,
    after_s: int = 0,
    ranks: Sequence[int] | None = None,
) -> None:
    """An incident that a host noticed, so long after the first ones, with what became of its alarms; ``ranks`` are
    those its verdict accuses, None without one."""
    number = 7 + after_s
    verdict = {"run": JOB.run, "attempt": attempt, "verdict": kind, "culprits": [{"ranks": ranks, "hosts": [host]}]}
    with TableWriter(root, f"{host}-{kind}-{attempt}-{number}") as writer:
        noted = [{"action": "alarm", "moment_ns": FIRST + (9 + after_s) * S, **one} for one in actions]
        rows = {
            "incident": [f"{JOB.run}/{attempt}/{host}/{kind}/{number}"],
            "kind": [kind],
            "opened_ns": [FIRST + number * S],
            "actions": [json.dumps([{"action": "noticed", "sentence": "It stands still."}, *noted])],
            "verdict": [None if ranks is None else json.dumps(verdict)],
        }
        writer.write("incidents", JOB.run, attempt, rows)
        writer.commit()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_synthetic_store(tmp_path / "store", JOB)
    return tmp_path / "store"


@pytest.fixture
def memory(root: Path) -> AlarmMemory:
    return AlarmMemory(root / FOLDER, 3600.0)


@pytest.fixture
def bench(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    monkeypatch.setattr(health, "FIRST_WAIT_S", 60.0)
    store = Store(root)
    bench = Workbench(store)
    yield bench
    bench.close()
    store.close()


def rows_of(root: Path) -> list[AlarmRow]:
    with Store(root) as store:
        return alarms_of(root, JOB.run, 0, incidents_of_run(store, JOB.run))


def test_told_and_waiting_ones_lead_to_the_incident_that_notes_them(root: Path, memory: AlarmMemory) -> None:
    add_incidents(root, JOB)
    stall = {"outcome": "retrying", "kind": "slow", "problem": "the webhook answered 503"}
    note(root, "node0002", {"outcome": "told", "kind": "hang"}, stall)
    memory.note_told(HANG, {"webhook"})
    memory.keep(replace(HANG, kind="slow", moment_ns=FIRST + 5 * S))
    waiting, told = rows_of(root)
    assert (waiting.kind, waiting.state, waiting.told_ns) == ("slow", State.WAITING, None)
    assert waiting.problem == "the webhook answered 503"
    assert (told.kind, told.state, told.targets, told.problem) == ("hang", State.TOLD, ("webhook",), None)
    assert told.incident == waiting.incident == f"{JOB.run}/0/node0002/stalled/7"


def test_what_only_incidents_know_is_listed_too(root: Path) -> None:
    note(root, "node0001", {"outcome": "silenced", "kind": "hang"})
    note(
        root, "node0003", {"outcome": "retrying", "kind": "hang"}, {"outcome": "failed", "kind": "hang", "problem": "p"}
    )
    note(root, "node0000", {"outcome": "told", "kind": "hang"}, {"outcome": "duplicate", "kind": "slow"})
    note(root, "node0002", {"outcome": "failed", "kind": "hang"}, attempt=1)
    found = {row.hosts: row for row in rows_of(root)}
    assert {hosts: row.state for hosts, row in found.items()} == {
        ("node0001",): State.SILENCED,
        ("node0003",): State.FAILED,
        ("node0000",): State.TOLD,
    }
    assert found["node0003",].problem == "p"
    assert found["node0000",].told_ns == FIRST + 9 * S
    assert {row.sentence for row in found.values()} == {"It stands still."}


def test_what_one_host_gave_up_and_another_one_told_was_told(root: Path, memory: AlarmMemory) -> None:
    note(root, "node0002", {"outcome": "failed", "kind": "hang", "problem": "p"})
    memory.note_told(HANG, {"command"})
    (row,) = rows_of(root)
    assert (row.state, row.targets, row.problem) == (State.TOLD, ("command",), None)


def test_a_later_alarm_of_the_same_host_is_one_of_its_own(root: Path, memory: AlarmMemory) -> None:
    hours = {"told": 0, "silenced": 5, "failed": 7}
    for outcome, hour in hours.items():
        note(root, "node0002", {"outcome": outcome, "kind": "hang"}, after_s=hour * 3600)
    memory.note_told(HANG, {"webhook"})
    failed, silenced, told = rows_of(root)
    assert [row.state for row in (failed, silenced, told)] == [State.FAILED, State.SILENCED, State.TOLD]
    assert told.targets == ("webhook",)
    numbers = [int(str(row.incident).rsplit("/", 1)[1]) - 7 for row in (told, silenced, failed)]
    assert numbers == [3600 * hour for hour in hours.values()]


def test_an_alarm_that_a_later_one_of_the_same_key_replaced_is_still_listed(root: Path, memory: AlarmMemory) -> None:
    for after_s in (0, 5 * 3600):
        note(root, "node0002", {"outcome": "told", "kind": "hang"}, after_s=after_s)
        memory.note_told(replace(HANG, moment_ns=HANG.moment_ns + after_s * S), {"webhook"})
    later, first = rows_of(root)
    assert (later.targets, later.incident) == (("webhook",), f"{JOB.run}/0/node0002/stalled/{7 + 5 * 3600}")
    assert (first.state, first.targets, first.told_ns) == (State.TOLD, (), FIRST + 9 * S)


def test_of_two_incidents_within_an_hour_the_nearest_is_the_alarms(root: Path, memory: AlarmMemory) -> None:
    note(root, "node0002", {"outcome": "told", "kind": "hang"})
    note(root, "node0002", {"outcome": "duplicate", "kind": "hang"}, after_s=1200)
    memory.note_told(HANG, {"webhook"})
    (row,) = rows_of(root)
    assert row.incident == f"{JOB.run}/0/node0002/stalled/7"


@pytest.mark.parametrize("outcomes", [("told",), ("failed", "told"), ("told", "failed")])
def test_an_alarm_that_names_no_host_is_listed_once(root: Path, memory: AlarmMemory, outcomes: tuple[str, ...]) -> None:
    for number, outcome in enumerate(outcomes):
        note(root, f"node000{number}", {"outcome": outcome, "kind": "inconclusive"})
    memory.note_told(replace(HANG, kind="inconclusive", ranks=(), hosts=()), {"webhook"})
    (row,) = rows_of(root)
    assert (row.kind, row.state, row.targets) == ("inconclusive", State.TOLD, ("webhook",))
    assert row.incident is not None


def test_an_alarm_that_names_ranks_alone_hides_none_of_other_ranks(root: Path, memory: AlarmMemory) -> None:
    note(root, "node0002", {"outcome": "failed", "kind": "hang"}, ranks=[5])
    memory.note_told(replace(HANG, ranks=(7,), hosts=()), {"webhook"})
    assert sorted(row.state for row in rows_of(root)) == [State.FAILED, State.TOLD]
    memory.note_told(replace(HANG, hosts=()), {"webhook"})
    assert sorted(row.state for row in rows_of(root)) == [State.TOLD, State.TOLD]


def test_deaths_that_were_told_as_one_are_one(root: Path, memory: AlarmMemory) -> None:
    for alarm in (death("node0000", 0, 1), death("node0001", 2)):
        memory.note_told(alarm, {"command"})
    memory.keep(death("node0003", 6))
    together, waiting = sorted(rows_of(root), key=lambda row: len(row.hosts), reverse=True)
    assert together.sentence.startswith("3 ranks on 2 hosts ended without a goodbye")
    assert (together.state, waiting.state) == (State.TOLD, State.WAITING)
    assert waiting.hosts == ("node0003",)


def test_deaths_that_were_told_hours_apart_are_two(root: Path, memory: AlarmMemory) -> None:
    for number, alarm in enumerate((death("node0000", 0, 1), death("node0001", 2))):
        memory.note_told(alarm, {"command"})
        newest = max((root / FOLDER).rglob("*.told"), key=lambda path: path.stat().st_mtime_ns)
        newest.write_text(told_text(Recorded(alarm, FIRST + (1 + 2 * number) * TOGETHER_NS, ("command",), "h")))
    assert sorted(row.hosts for row in rows_of(root)) == [("node0000",), ("node0001",)]


def test_the_page_shows_them_and_says_where_nobody_is_told(bench: Workbench, root: Path, memory: AlarmMemory) -> None:
    assert NONE in str(PAGES["/health"].body(View(), bench).children)
    assert "cannot be read" in str(alarm_list("The alarms cannot be read: x", View()))
    row = AlarmRow(FIRST, "hang", ("a",), "s", State.FAILED, problem="the webhook answered 500")
    shown = str(alarm_list([row] * (MOST_ROWS + 2), View()))
    assert "2 earlier alarms are not shown" in shown
    assert "the webhook answered 500" in shown
    assert "32 given up" in shown


@pytest.mark.timeout(120)
def test_a_person_finds_alarms_and_the_hosts_incidents(browser: Browser, root: Path, memory: AlarmMemory) -> None:
    add_incidents(root, JOB)
    note(root, "node0002", {"outcome": "told", "kind": "hang"})
    memory.note_told(HANG, {"webhook", "command"})
    memory.keep(death("node0001", 2))
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = seen.go("/health?host=node0002")
        page.wait_for_selector("#alarms")
        assert page.inner_text("#fact-alarms") == "2"
        assert page.inner_text("#alarms-title") == "Alarms (1 told, 1 not told yet)"
        told, waiting = page.locator("#alarms tbody tr").all()
        assert "command and webhook" in told.inner_text()
        assert "Rank 5 is stuck." in told.inner_text()
        assert "not told yet" in waiting.inner_text()
        rows = page.locator("#host-incidents tbody tr")
        assert [row.locator("td").nth(1).inner_text() for row in rows.all()] == [
            "recovery-hang", "sign-slow-rank", "stalled", "stalled",
        ]  # fmt: skip
        page.click("#alarms a:has-text('hang')")
        page.wait_for_url("**/incidents?*incident=*stalled*")
        page.wait_for_selector("#opened:has-text('stalled')")
        seen.check_clean()
