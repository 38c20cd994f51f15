"""An agent's look for alarms: what came of its own is taken, also where nobody is to be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.alarms.pickup import AlarmPickUp
from megascope.collectors.alarms.rules import Alarm


def test_without_a_target_no_result_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGASCOPE_ALARM_COMMAND", raising=False)
    monkeypatch.delenv("MEGASCOPE_ALARM_WEBHOOK", raising=False)
    pick_up = AlarmPickUp(tmp_path)
    for number in range(3):
        pick_up.raise_alarm(Alarm("hardware-xid-79", "high", "job", 0, (number,), ("a",), "It fell off the bus.", 1))
    pick_up.poll()
    assert pick_up._hook.take_results() == []
    pick_up.close()
