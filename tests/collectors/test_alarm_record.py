"""What a store keeps of its alarms: what waits, and what was told, when, by whom and to which targets."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.alarms.alarms import Alarm, AlarmHook, AlarmSettings
from megascope.collectors.alarms.memory import FOLDER, AlarmMemory
from megascope.collectors.alarms.record import Recorded, alarm_folder, recorded_alarms
from megascope.profiler.host import host_name

NOON_NS = 1_767_268_800 * 10**9
ALARM = Alarm("hang", "high", "a job/ü", 0, (5,), ("node-1",), "Rank 5 is stuck.", NOON_NS, {"verdict": "hang"})
WAITS = replace(ALARM, kind="slow", moment_ns=NOON_NS + 10**9)


def test_what_was_told_says_when_by_whom_and_to_which_targets(tmp_path: Path) -> None:
    began = time.time_ns()
    hook = AlarmHook(AlarmSettings("true"), tmp_path / FOLDER)
    hook.raise_alarm(ALARM)
    hook.finish()
    AlarmMemory(tmp_path / FOLDER, 3600.0).keep(WAITS)
    waiting, told = recorded_alarms(tmp_path, ALARM.run, 0)
    assert waiting == Recorded(WAITS)
    assert told.alarm == replace(ALARM, verdict=None), "its incident has the verdict"
    assert told.told_ns is not None
    assert began <= told.told_ns <= time.time_ns()
    assert (told.targets, told.teller) == (("command",), host_name())
    assert recorded_alarms(tmp_path, ALARM.run, 1) == recorded_alarms(tmp_path, "other", 0) == []


def test_what_was_told_while_its_note_of_waiting_is_still_there_counts_once(tmp_path: Path) -> None:
    memory = AlarmMemory(tmp_path / FOLDER, 3600.0)
    memory.note_told(ALARM, {"webhook", "command"})
    memory.keep(ALARM)
    (found,) = recorded_alarms(tmp_path, ALARM.run, 0)
    assert found.targets == ("command", "webhook")


def test_one_that_waits_again_after_it_was_told_once_waits(tmp_path: Path) -> None:
    memory = AlarmMemory(tmp_path / FOLDER, 3600.0)
    memory.note_told(ALARM, {"webhook"})
    again = replace(ALARM, moment_ns=time.time_ns() + 2 * 3600 * 10**9)
    memory.keep(again)
    waiting, told = recorded_alarms(tmp_path, ALARM.run, 0)
    assert waiting == Recorded(again)
    assert (told.alarm.moment_ns, told.targets) == (NOON_NS, ("webhook",))


@pytest.mark.parametrize("text", ["", "a job/0/hang/5\n", "[]", "null", '{"alarm": {}, "told_ns": 1}', "\udcff"])
def test_files_of_other_versions_and_damaged_ones_are_left_out(tmp_path: Path, text: str) -> None:
    folder = alarm_folder(tmp_path / FOLDER, "job", 0)
    folder.mkdir(parents=True)
    for name in ("a.told", "b.alarm"):
        (folder / name).write_text(text, errors="surrogateescape")
    (folder / "claims").mkdir()
    assert recorded_alarms(tmp_path, "job", 0) == []


def test_a_store_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with pytest.raises(OSError, match="directory"):
        recorded_alarms(tmp_path, "job", 0)
