"""Checks of megascope's own variables: names that nobody reads, values that cannot be meant, and who is told."""

from __future__ import annotations

import difflib
import shlex
import socket

from ..profiler.automatic.automatic import VARIABLE as AUTOMATIC
from ..profiler.automatic.automatic import choose
from ..profiler.cadence import SAMPLE_VARIABLE, SHADOW_VARIABLE
from ..profiler.errors import UsageError
from ..profiler.host import HOST_VARIABLE
from ..profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE, is_run_name
from ..profiler.session import OFF_VARIABLE
from .finding import Answer, advice, ok, problem
from .machine import Machine

PREFIX = "MEGASCOPE_"
KNOWN = frozenset(
    PREFIX + name
    for name in (
        "ALARM_ATTEMPT", "ALARM_COMMAND", "ALARM_HOSTS", "ALARM_KIND", "ALARM_RANKS", "ALARM_RUN", "ALARM_SENTENCE",
        "ALARM_SEVERITY", "ALARM_SILENCE", "ALARM_WEBHOOK", "ALARM_WINDOW_S", "ATTEMPT", "AUTOMATIC", "CONTROL", "HOST",
        "KERNEL_LOG", "METRICS", "METRICS_TOKEN", "NODE", "OFF", "PORT", "RUN", "SAMPLE", "SHADOW", "SPOOL", "STACKS",
        "STALL_S", "STORE", "TOKEN",
    )
)  # fmt: skip
"""All variables that are read, or set for what is started; a test holds them against the sources."""

_STEPS = {SAMPLE_VARIABLE: 1, SHADOW_VARIABLE: 2}
_SWITCHES = frozenset({"", "0", "off", "no", "none", "false", "1", "on", "yes", "true"})
_OF_THE_SHELL = frozenset(
    {".", "case", "cd", "command", "eval", "exec", "export", "for", "if", "set", "source", "while"}
)
_NAMELESS = frozenset({"localhost", "localhost.localdomain"})


def variables(machine: Machine) -> Answer:
    """Whether each variable is one that is read, with a value that can be meant."""
    found = sorted(name for name in machine.env if name.startswith(PREFIX))
    looked_at = f"{PREFIX}* in the environment"
    unknown = [name for name in found if name not in KNOWN]
    for name in unknown:
        known = [one.removeprefix(PREFIX) for one in sorted(KNOWN)]
        if close := difflib.get_close_matches(name.removeprefix(PREFIX), known, 1, cutoff=0.7):
            return problem(looked_at, f"{name} is read by nobody", f"write {PREFIX}{close[0]}, or unset {name}")
    wrong = [text for name in found if (text := _wrong(name, machine.env[name]))]
    if wrong:
        return problem(looked_at, "; ".join(wrong), "correct it, or unset it: until then the default is taken")
    if unknown:
        return advice(looked_at, f"read by nobody: {', '.join(unknown)}", "unset them, if they are meant for megascope")
    return ok(looked_at, ", ".join(found) or "none is set")


def recording(machine: Machine) -> Answer:
    """Whether recording is on."""
    text = machine.env.get(OFF_VARIABLE, "0")
    if text in {"", "0"}:
        return ok(OFF_VARIABLE, "recording is on")
    return problem(OFF_VARIABLE, f"{OFF_VARIABLE}={text}: nothing is recorded", f"unset {OFF_VARIABLE}")


def alarms(machine: Machine) -> Answer:
    """Whether somebody is told of a hang, and whether the settings can be read. Nothing is sent."""
    from ..collectors.alarms.rules import AlarmSettings  # noqa: PLC0415

    looked_at = "MEGASCOPE_ALARM_COMMAND, _WEBHOOK, _SILENCE, _WINDOW_S"
    try:
        told = AlarmSettings.from_environment(machine.env)
    except UsageError as error:
        return problem(looked_at, "cannot be read", str(error))
    if not told.tells_anybody:
        return ok(looked_at, "not set: verdicts stand in the store, and nobody is told")
    value = " and ".join(what for what, given in (("a command", told.command), ("a webhook", told.webhook)) if given)
    if told.command and (program := _program(told.command)) and machine.find_program(program) is None:
        return problem(looked_at, f"{value}; {program} is not found", "name a command that can be run on every host")
    return ok(looked_at, f"{value} (nothing was sent)")


def host_name(machine: Machine) -> Answer:
    """Whether hosts can be told apart by their names."""
    given = machine.env.get(HOST_VARIABLE, "")
    name = given or machine.text("proc/sys/kernel/hostname") or socket.gethostname()
    looked_at = HOST_VARIABLE if given else "the system's host name"
    if name.lower() not in _NAMELESS:
        return ok(looked_at, name)
    to_do = f"name each host, or set {HOST_VARIABLE}: hosts are told apart by their names"
    return (problem if (machine.nodes() or 1) > 1 else advice)(looked_at, name, to_do)


def _program(command: str) -> str | None:
    """The program that a shell command begins with; None where it begins with something of the shell's own."""
    try:
        first = (shlex.split(command) or [""])[0]
    except ValueError:
        return None
    is_plain = bool(first) and all(sign.isalnum() or sign in "/._-+" for sign in first)
    return first if is_plain and first not in _OF_THE_SHELL else None


def _wrong(name: str, text: str) -> str | None:
    """What is wrong with a value; None where nothing is."""
    least = _STEPS.get(name)
    if least is not None:
        lowered = text.strip().lower()
        is_count = lowered.isdecimal() and len(lowered) < 10 and int(lowered) >= least
        return None if lowered in _SWITCHES or is_count else f"{name}={text[:40]} is no number of steps"
    if name == AUTOMATIC:
        try:
            choose(text or True)
        except UsageError as error:
            return str(error).rstrip(".")
    if name in {RUN_VARIABLE, HOST_VARIABLE} and text and not is_run_name(text):
        return f"{name}={text[:40]} cannot be a name: it has '/', '=' or a line break, or is too long"
    if name == ATTEMPT_VARIABLE and not text.strip().isdecimal():
        return f"{name}={text[:40]} is no number"
    if name == "MEGASCOPE_STALL_S" and text and not _is_positive(text):
        return f"{name}={text[:40]} is no number of seconds"
    return None


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
