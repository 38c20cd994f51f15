"""Why a GPU does not run as fast as it could: the bits of NVML's clocks event reasons, in words."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
"""``nvmlClocksEventReason...`` of nvml.h."""

THERMAL = 0x20 | 0x40
HARD = 0x8 | 0x40 | 0x80
"""Held back by the hardware itself: heat, a power supply, a brake signal."""
THROTTLED = 0x4 | THERMAL | HARD
"""Held back against its will. A power cap is common at full load, and tells something only beside the others."""


def reasons(mask: float | None, among: int = THROTTLED) -> tuple[str, ...]:
    """The reasons of a mask in words, as far as they are ``among`` those asked for; none for no mask."""
    bits = 0 if mask is None else int(mask) & among
    return tuple(text for bit, text in REASONS.items() if bits & bit)
