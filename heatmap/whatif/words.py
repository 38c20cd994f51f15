"""The what-if result in words: the sentence of the report, and what the costliest parts would give back."""

from __future__ import annotations

from .result import Contribution, Part, WhatIf

LEAST_RECOVERED = 0.02
"""Share of the excess below which a part is not worth a line."""

LEAST_DELAYS = 0.01
"""Share of the recorded steps from which on launch delays are told."""

MOST_ROWS = 3
"""Rows of each kind of part."""


def sentence(found: WhatIf) -> str:
    """What the job would gain with every operation at its ideal, and how much of that two repairs would bring."""
    text = (
        f"With every operation at its ideal the job would run x{found.slowdown:.2f} as fast: a step of "
        f"{_seconds(found.step_s)} would take {_seconds(found.ideal_s)}."
    )
    repairs = []
    if found.m_w is not None:
        repairs.append(f"the slowest 3 % of workers recovers {found.m_w:.0%} of the difference")
    if found.m_s is not None:
        repairs.append(f"the last stage {found.m_s:.0%}")
    text = f"{text} Fixing {', '.join(repairs)}." if repairs else text
    if found.recorded_s and (delays := 1 - found.step_s / found.recorded_s) >= LEAST_DELAYS:
        text += f" Beyond that, {delays:.1%} of the recorded steps are launch delays and work that was not recorded."
    return text


def costliest(found: WhatIf) -> list[Contribution]:
    """The parts whose repair would recover the most, a few of each kind."""
    kinds = (found.of(part) for part in Part)
    return [one for kind in kinds for one in kind[:MOST_ROWS] if one.recovered >= LEAST_RECOVERED]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
