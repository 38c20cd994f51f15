"""Hosts beside each other in the report: clocks that differ, and one host that says more than all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.clocks.clocks import NO_CLOCKS, Clocks, HostClock
from megascope.collectors.hardware.report import WINDOW_S, HealthReport, health_report
from megascope.collectors.hardware.samples import MOST_LEFT_OUT
from megascope.collectors.hardware.silence import Now
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter

SECOND = 10**9
BEGIN = 1_800_000_000 * SECOND
HOSTS = ("a", "b", "c", "d")


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _report(
    root: Path,
    *,
    ahead_s: Mapping[str, int] | None = None,
    silent_from_s: Mapping[str, int] | None = None,
    aligned: Sequence[str] = (),
    events: Sequence[Mapping[str, Any]] = (),
    last_s: int = 900,
) -> HealthReport:
    """Hosts that beat every ten seconds, some by a clock that is ahead, some until they fall silent."""
    ahead, until = ahead_s or {}, silent_from_s or {}
    beats = [
        {"rank": rank, "moment_ns": BEGIN + (at_s + ahead.get(host, 0)) * SECOND, "lost_spans": 0}
        for rank, host in enumerate(HOSTS)
        for at_s in range(0, until.get(host, last_s), 10)
    ]
    clocks = [
        {"host": host, "moment_ns": BEGIN, "offset_ns": -ahead.get(host, 0) * SECOND, "drift_ppb": 0.0,
         "uncertainty_ns": 1000}
        for host in aligned
    ]  # fmt: skip
    with TableWriter(root, "w") as writer:
        writer.write("runs", "r", 0, {"world_size": [len(HOSTS)], "start_ns": [BEGIN]})
        writer.write("ranks", "r", 0, {"rank": list(range(len(HOSTS))), "host": list(HOSTS)})
        writer.write("heartbeats", "r", 0, _columns(beats))
        for table, rows in (("clock_offsets", clocks), ("hardware_events", events)):
            if rows:
                writer.write(table, "r", 0, _columns(rows))
        writer.commit()
    with Store(root) as store:
        return health_report(store, store.attempt())


def _told(found: HealthReport) -> dict[str, list[str]]:
    return {one.host: [remark.text for remark in one.remarks] for one in found.hosts if one.remarks}


AHEAD = "its heartbeats are {} s ahead of most hosts': its clock is ahead, or the others are silent"


@pytest.mark.parametrize("ahead_s", [20, 1200])
def test_a_clock_that_is_ahead_silences_nobody_else(tmp_path: Path, ahead_s: int) -> None:
    found = _report(tmp_path, ahead_s={"d": ahead_s})
    assert _told(found) == {"d": [AHEAD.format(f"{ahead_s:,}")]}
    assert [one.heartbeat_age_s for one in found.hosts] == [0, 0, 0, 0]


@pytest.mark.parametrize("ahead_s", [20, -20, 1200, -1200])
def test_a_clock_that_is_aligned_is_no_trouble_and_its_host_is_seen_to_fall_silent(
    tmp_path: Path, ahead_s: int
) -> None:
    assert _told(_report(tmp_path / "sound", ahead_s={"d": ahead_s}, aligned=HOSTS)) == {}
    silent = _report(tmp_path / "silent", ahead_s={"d": ahead_s}, silent_from_s={"d": 500}, aligned=HOSTS)
    assert _told(silent) == {"d": ["no heartbeat for 400 s"]}
    most = _report(tmp_path / "most", ahead_s={"d": ahead_s}, silent_from_s=dict.fromkeys("abc", 500), aligned=HOSTS)
    assert _told(most) == {host: ["no heartbeat for 400 s"] for host in "abc"}


def test_hosts_that_fall_silent_are_told(tmp_path: Path) -> None:
    told = _told(_report(tmp_path / "one", silent_from_s={"b": 800}))
    assert told == {"b": ["no heartbeat for 100 s"]}
    most = _told(_report(tmp_path / "most", silent_from_s=dict.fromkeys("abc", 800)))
    assert most == {"d": [AHEAD.format(100)]}


def test_one_of_two_hosts_that_falls_silent_is_told() -> None:
    now = Now.newest({"a": 100 * SECOND, "b": 40 * SECOND}, NO_CLOCKS, int(WINDOW_S * 1e9))
    assert (now.age_s("a", 100 * SECOND), now.age_s("b", 40 * SECOND)) == (0, 60)
    clocks = Clocks({host: HostClock.at(0, 0, 0.0, 10) for host in "ab"})
    three = Now.newest({"a": 100 * SECOND, "b": 40 * SECOND, "c": 40 * SECOND}, clocks, int(WINDOW_S * 1e9))
    assert three.age_s("b", 40 * SECOND) == 60


def _event(host: str, at_s: int, kind: str, severity: str, text: str, code: int | None = None) -> dict[str, Any]:
    return {"host": host, "device": None, "moment_ns": BEGIN + at_s * SECOND, "kind": kind, "severity": severity,
            "code": code, "text": text}  # fmt: skip


def test_a_host_that_repeats_itself_hides_no_event_of_another(tmp_path: Path) -> None:
    events = [
        _event("a", 100, "xid", "error", "Xid 79", 79),
        _event("d", 150, "memory-error", "error", "an error that ECC cannot correct"),
        *(_event("d", 200 + index % 600, "memory-error", "warning", "corrected") for index in range(3000)),
    ]
    found = _report(tmp_path, events=events)
    assert _told(found) == {"a": ["Xid 79"], "d": ["an error that ECC cannot correct", "corrected (3000 times)"]}


def test_what_is_not_sampled_stays_short(tmp_path: Path) -> None:
    events = [
        *(_event("d", at_s, "not-sampled", "warning", f"{at_s} more events") for at_s in range(500)),
        *(_event("d", at_s, "not-sampled", "note", f"no sensor {at_s}") for at_s in range(100)),
        _event("a", 1, "not-sampled", "note", "no driver"),
    ]
    found = _report(tmp_path, events=events).not_sampled
    assert found["no driver"] == ("a",)
    assert [text for text in found if text.endswith("more events")] == ["499 more events"]
    assert sum(names == ("d",) for names in found.values()) == MOST_LEFT_OUT
