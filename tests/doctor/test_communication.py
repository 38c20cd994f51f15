"""Checks of torch's, NCCL's and megascope's own variables: each in order, and each way in which it is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.agent.agent import AgentSettings
from megascope.doctor import communication, debugging, settings
from megascope.doctor.asking import Room, Writing
from megascope.doctor.finding import Answer, State
from megascope.doctor.machine import Machine
from megascope.doctor.torch_variables import BUFFER, Variable, chosen
from support.fake_machine import fake_machine

OK, ADVICE, PROBLEM = State.OK, State.ADVICE, State.PROBLEM
ROOT = Path(__file__).resolve().parents[2]

CASES: list[tuple[Callable[[Machine], Answer], dict[str, str], State, str]] = [
    (communication.flight_recorder, {}, OK, ""),
    (communication.flight_recorder, {"TORCH_FR_BUFFER_SIZE": "20000"}, OK, ""),
    (communication.flight_recorder, {"TORCH_FR_BUFFER_SIZE": "0"}, PROBLEM, "unset TORCH_FR_BUFFER_SIZE"),
    (communication.flight_recorder, {"TORCH_FR_BUFFER_SIZE": "many"}, PROBLEM, "raises"),
    (communication.flight_recorder, {"TORCH_FR_BUFFER_SIZE": "100"}, ADVICE, "2000"),
    (
        communication.flight_recorder, {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, PROBLEM,
        "unset TORCH_NCCL_TRACE_BUFFER_SIZE",
    ),
    (communication.dump_on_timeout, {}, OK, ""),
    (communication.dump_on_timeout, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "True"}, OK, ""),
    (communication.dump_on_timeout, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, ADVICE, "unset TORCH_NCCL_DUMP_ON_TIMEOUT"),
    (communication.dump_on_timeout, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "on"}, PROBLEM, "raises on anything else"),
    (communication.dump_on_timeout, {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "10"}, ADVICE, "cut off"),
    (communication.dump_on_timeout, {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "long"}, PROBLEM, "milliseconds"),
    (communication.watchdog, {}, OK, ""),
    (communication.watchdog, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, OK, ""),
    (communication.watchdog, {"NCCL_ASYNC_ERROR_HANDLING": "0"}, PROBLEM, "for ever"),
    (communication.watchdog, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, ADVICE, "mode 2"),
    (communication.watchdog, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "7"}, PROBLEM, "0 to 3"),
    (communication.watchdog, {"NCCL_BLOCKING_WAIT": "1"}, ADVICE, "no watchdog"),
    (communication.watchdog, {"NCCL_BLOCKING_WAIT": "on"}, PROBLEM, "raises"),
    (communication.heartbeat, {}, OK, ""),
    (communication.heartbeat, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800"}, OK, ""),
    (communication.heartbeat, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "20"}, PROBLEM, "at least 60"),
    (communication.heartbeat, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "10m"}, PROBLEM, "it reads 10"),
    (communication.heartbeat, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "long"}, PROBLEM, "it raises"),
    (communication.heartbeat, {"TORCH_NCCL_ENABLE_MONITORING": "0"}, ADVICE, "never end"),
    (communication.heartbeat, {"TORCH_NCCL_ENABLE_MONITORING": "-"}, PROBLEM, "0 or 1"),
    (
        communication.heartbeat, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120", "MEGASCOPE_STALL_S": "60"}, PROBLEM,
        "at least 330",
    ),
    (communication.stall_limit, {}, OK, ""),
    (communication.stall_limit, {"MEGASCOPE_STALL_S": "nonsense"}, OK, ""),
    (communication.stall_limit, {"MEGASCOPE_STALL_S": "300"}, ADVICE, "lower MEGASCOPE_STALL_S"),
    (debugging.nccl_messages, {}, OK, ""),
    (debugging.nccl_messages, {"NCCL_DEBUG": "WARN"}, OK, ""),
    (debugging.nccl_messages, {"NCCL_DEBUG": "INFO"}, ADVICE, "WARN"),
    (debugging.nccl_messages, {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/absent/nccl.%h"}, PROBLEM, "/absent"),
    (debugging.slow_settings, {"NCCL_P2P_DISABLE": "0"}, OK, ""),
    (debugging.slow_settings, {"CUDA_LAUNCH_BLOCKING": "1"}, ADVICE, "unset CUDA_LAUNCH_BLOCKING"),
    (debugging.slow_settings, {"TORCH_DISTRIBUTED_DEBUG": "detail"}, ADVICE, "unset TORCH_DISTRIBUTED_DEBUG"),
    (settings.variables, {"MEGASCOPE_SHADOW": "off", "MEGASCOPE_AUTOMATIC": "-gc"}, OK, ""),
    (settings.variables, {"MEGASCOPE_SPOLL": "/x"}, PROBLEM, "write MEGASCOPE_SPOOL"),
    (settings.variables, {"MEGASCOPE_FOO": "1"}, ADVICE, "unset"),
    (settings.variables, {"MEGASCOPE_SAMPLE": "often"}, PROBLEM, "default"),
    (settings.variables, {"MEGASCOPE_AUTOMATIC": "gc,everything"}, PROBLEM, "default"),
    (settings.variables, {"MEGASCOPE_RUN": "a/b"}, PROBLEM, "default"),
    (settings.variables, {"MEGASCOPE_ATTEMPT": "first"}, PROBLEM, "default"),
    (settings.variables, {"MEGASCOPE_STALL_S": "0"}, PROBLEM, "default"),
    (settings.recording, {"MEGASCOPE_OFF": "0"}, OK, ""),
    (settings.recording, {"MEGASCOPE_OFF": "1"}, PROBLEM, "unset MEGASCOPE_OFF"),
    (settings.alarms, {}, OK, ""),
    (settings.alarms, {"MEGASCOPE_ALARM_COMMAND": "notify --now"}, OK, ""),
    (settings.alarms, {"MEGASCOPE_ALARM_WEBHOOK": "hooks.example.org/x"}, PROBLEM, "https://"),
    (settings.alarms, {"MEGASCOPE_ALARM_SILENCE": "nonsense=1"}, PROBLEM, "run="),
    (settings.host_name, {"MEGASCOPE_HOST": "node-7"}, OK, ""),
    (settings.host_name, {"MEGASCOPE_HOST": "localhost"}, ADVICE, "MEGASCOPE_HOST"),
    (settings.host_name, {"MEGASCOPE_HOST": "localhost", "SLURM_NNODES": "2"}, PROBLEM, "MEGASCOPE_HOST"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "env", "state", "words"), CASES, ids=lambda one: getattr(one, "__name__", None) or str(one)[:60]
)
def test_a_setting(
    tmp_path: Path, check: Callable[[Machine], Answer], env: dict[str, str], state: State, words: str
) -> None:
    answer = check(fake_machine(tmp_path, env))
    assert answer.state is state, answer
    assert words in (answer.to_do or "")
    assert (answer.to_do is None) == (state is OK)


def test_nccl_says_nothing_beside_a_gpu(tmp_path: Path) -> None:
    gpu = {"sys/bus/pci/devices/1/vendor": "0x10de\n", "sys/bus/pci/devices/1/class": "0x030200\n"}
    answer = debugging.nccl_messages(fake_machine(tmp_path, files=gpu))
    assert (answer.state, "NCCL_DEBUG=WARN" in (answer.to_do or "")) == (ADVICE, True)


def test_the_place_of_dumps(tmp_path: Path) -> None:
    def state(place: Path | None, **changes: Any) -> State:
        env = {} if place is None else {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(place)}
        return communication.dump_place(fake_machine(tmp_path, env, **changes)).state

    assert state(None) is OK
    assert state(tmp_path / "trace_") is ADVICE  # agents do not look there
    assert state(tmp_path / "absent" / "trace_") is PROBLEM
    assert state(tmp_path / "trace_", write=lambda folder: Writing("Permission denied", True)) is PROBLEM
    assert state(tmp_path / "trace_", room=lambda folder: Room(10**9, 10**6)) is PROBLEM
    assert not (tmp_path / "absent").exists()


def test_an_alarms_command_that_is_not_there(tmp_path: Path) -> None:
    def told(command: str) -> State:
        env = {"MEGASCOPE_ALARM_COMMAND": command}
        return settings.alarms(fake_machine(tmp_path, env, find_program=lambda name: None)).state

    assert told("notify --now") is PROBLEM
    assert told("cd /tmp && notify") is OK  # what a shell makes of it is not known
    assert told("$NOTIFY 'now") is OK


def test_an_alarms_address_is_told_to_nobody(tmp_path: Path) -> None:
    env = {"MEGASCOPE_ALARM_WEBHOOK": "https://hooks.example.org/secret", "MEGASCOPE_METRICS_TOKEN": "secret" * 4}
    machine = fake_machine(tmp_path, env)
    assert "secret" not in str([settings.alarms(machine), settings.variables(machine)])


@given(number=st.integers(-(2**31), 2**31 - 1), tail=st.sampled_from(["", "m", " s", ".5", "e3"]))
def test_torch_reads_the_number_that_a_text_begins_with(number: int, tail: str) -> None:
    assert Variable("X", f" {number}{tail}").integer == number


@pytest.mark.parametrize("text", ["", "x1", "- 1", str(2**31)])
def test_torch_raises_on_other_numbers(text: str) -> None:
    assert Variable("X", text).integer is None


def test_of_two_names_the_newer_wins() -> None:
    found = chosen({BUFFER[1]: "1", BUFFER[0]: "2"}, BUFFER)
    assert found is not None
    assert str(found) == "TORCH_FR_BUFFER_SIZE=2"


def test_every_variable_of_the_sources_is_known() -> None:
    folders = ("profiler", "collectors", "heatmap", "viz3d", "dashboards", "trainer", "megascope")
    texts = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    found = {name for text in texts for name in re.findall(r"\"(MEGASCOPE_[A-Z_]*[A-Z])\"", text)}
    assert {"MEGASCOPE_STORE", "MEGASCOPE_SPOOL"} <= found
    assert found - settings.KNOWN == set()


def test_the_stall_limit_is_the_agents() -> None:
    assert AgentSettings(spool=Path(), store=Path()).stall_s == communication.USUAL_STALL_S
