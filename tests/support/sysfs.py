"""Ports of RDMA adapters as the kernel shows them, written by a test."""

from __future__ import annotations

from pathlib import Path

HARDWARE = frozenset({"out_of_sequence", "local_ack_timeout_err", "out_of_buffer"})


def write_port(root: Path, device: str, *, state: str, rate: str, **counters: int) -> Path:
    """Write one port's files; ``state`` is as in ``4: ACTIVE``. Returns its folder."""
    folder = root / device / "ports" / "1"
    for place in ("counters", "hw_counters"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(state + "\n")
    (folder / "phys_state").write_text("5: LinkUp\n" if state.startswith("4") else "3: Disabled\n")
    (folder / "rate").write_text(rate + "\n")
    for name, value in counters.items():
        (folder / ("hw_counters" if name in HARDWARE else "counters") / name).write_text(f"{value}\n")
    return folder
