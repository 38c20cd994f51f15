"""What interrupted a published run of 16,384 GPUs, by cause, and which trials of `faults` stand for each cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DAYS, GPUS = 54, 16384
"""How long that run was looked at, and how large it was (The Llama 3 Herd of Models, arXiv:2407.21783, table 5)."""

HANG = ("sigstop",)
"""What stands for a cause that was not tried: of the two ends that `effective_time` shows, the slower one."""

DEVICE = ("xid", "host-loss", "kill")
HOST = ("host-loss", "host-silent")
NETWORK = ("slow-nic", *HANG)
STORAGE = ("data-loader-stall", "checkpoint-stall")
PROGRAM = ("exception",)
SAVED = ("slow-rank",)


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of that table: ``count`` interruptions, and the trials that stand for them, the slowest of which counts.

    ``is_saved``: all ranks save and stop before the host is replaced, so that no step is lost. ``is_tried``: there is
    a trial that resembles it; otherwise it counts as a hang.
    """

    component: str
    count: int
    trials: tuple[str, ...]
    is_saved: bool = False
    is_tried: bool = True


CAUSES = (
    Cause("Faulty GPU", 148, DEVICE),
    Cause("GPU HBM3 Memory", 72, DEVICE),
    Cause("Software Bug", 54, PROGRAM),
    Cause("Network Switch/Cable", 35, NETWORK),
    Cause("Host Maintenance", 32, SAVED, is_saved=True),
    Cause("GPU SRAM Memory", 19, DEVICE),
    Cause("GPU System Processor", 17, DEVICE),
    Cause("NIC", 7, NETWORK),
    Cause("NCCL Watchdog Timeouts", 7, HANG),
    Cause("Silent Data Corruption", 6, HANG, is_tried=False),
    Cause("GPU Thermal Interface + Sensor", 6, HANG, is_tried=False),
    Cause("SSD", 3, STORAGE),
    Cause("Power Supply", 3, HOST),
    Cause("Server Chassis", 2, HOST),
    Cause("IO Expansion Board", 2, HOST),
    Cause("Dependency", 2, HANG, is_tried=False),
    Cause("CPU", 2, HOST),
    Cause("System Memory", 2, HOST),
)

INTERRUPTIONS = sum(cause.count for cause in CAUSES)
"""Unexpected interruptions in those days."""

NEEDED = frozenset(trial for cause in CAUSES for trial in cause.trials)
"""The trials that have to be measured."""


def saved_share() -> float:
    """How many of all interruptions lose no step."""
    return sum(cause.count for cause in CAUSES if cause.is_saved) / INTERRUPTIONS


def mean_recovery_s(measured: Mapping[str, float]) -> float:
    """Mean over all interruptions of what the trial that stands for each took."""
    return sum(cause.count * measured[slowest(cause, measured)] for cause in CAUSES) / INTERRUPTIONS


def slowest(cause: Cause, measured: Mapping[str, float]) -> str:
    """Of the trials that stand for a cause, the one that took longest."""
    return max(cause.trials, key=lambda trial: measured[trial])


def by_cause(measured: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """One row a cause, the most frequent first: how often, which trial counts, and its recovery in seconds."""
    for cause in sorted(CAUSES, key=lambda cause: -cause.count):
        trial = slowest(cause, measured)
        yield {
            "cause": cause.component,
            "count": cause.count,
            "trials": list(cause.trials),
            "counts_as": trial,
            "tried": cause.is_tried,
            "steps_lost": not cause.is_saved,
            "recovery_s": measured[trial],
        }
