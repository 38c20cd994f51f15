"""Checks of settings that are made for debugging: what NCCL says, and what makes every step slow where it was left."""

from __future__ import annotations

from pathlib import Path

from .devices import gpus_on_the_bus
from .finding import Answer, advice, ok, problem
from .machine import Machine

_LOUD = frozenset({"INFO", "TRACE", "ABORT"})
_OFF = frozenset({"", "0"})

SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "NCCL_P2P_DISABLE": "GPUs of a host exchange through its memory",
    "NCCL_IB_DISABLE": "hosts exchange through TCP",
    "NCCL_SHM_DISABLE": "processes of a host exchange through the network",
}
"""Switches and what they do while they are on (NCCL's and CUDA's documentation)."""


def nccl_messages(machine: Machine) -> Answer:
    """Whether NCCL says why it fails, and does not say too much; and whether its file can be written."""
    looked_at = "NCCL_DEBUG, NCCL_DEBUG_FILE"
    level, file = machine.env.get("NCCL_DEBUG", ""), machine.env.get("NCCL_DEBUG_FILE", "")
    value = ", ".join(text for text in (f"NCCL_DEBUG={level}" if level else "NCCL_DEBUG is not set",
                                        f"NCCL_DEBUG_FILE={file}" if file else "") if text)  # fmt: skip
    if file and level:
        folder = Path(file).parent
        reason = machine.write(folder).reason if folder.is_dir() else "no such folder"
        if reason:
            return problem(looked_at, f"{value}: {folder}: {reason}", f"make {folder} a folder that can be written")
    if level.upper() in _LOUD:
        return advice(looked_at, value, "set NCCL_DEBUG=WARN for long runs: at this level ranks log pages")
    if not level and gpus_on_the_bus(machine):
        return advice(looked_at, value, "set NCCL_DEBUG=WARN: NCCL then says why it fails, which megascope hang reads")
    return ok(looked_at, value)


def slow_settings(machine: Machine) -> Answer:
    """Whether something is on that makes a run slow, or its times those of another run."""
    looked_at = ", ".join(("TORCH_DISTRIBUTED_DEBUG", *SLOW))
    found = {name: why for name, why in SLOW.items() if machine.env.get(name, "").strip() not in _OFF}
    if machine.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        found["TORCH_DISTRIBUTED_DEBUG"] = "every collective is checked against all ranks first"
    if not found:
        return ok(looked_at, "none of them is on")
    value = "; ".join(f"{name}={machine.env[name]}: {why}" for name, why in found.items())
    return advice(looked_at, value, f"unset {', '.join(found)} unless you are looking for a fault")
