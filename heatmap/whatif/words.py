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
    text = _whole(found)
    repairs = []
    if found.m_w is not None:
        repairs.append(
            f"the slowest {found.slowest} of {found.workers} workers (a worker is one stage of one replica) recovers "
            f"{share_words(found.m_w)} of the difference"
        )
    if found.m_s is not None:
        repairs.append(f"the last stage {share_words(found.m_s)}")
    text = f"{text} Fixing {', '.join(repairs)}." if repairs else text
    if found.recorded_s and (delays := 1 - found.step_s / found.recorded_s) >= LEAST_DELAYS:
        text += f" Beyond that, {delays:.1%} of the recorded steps are launch delays and work that was not recorded."
    return text


def short(found: WhatIf) -> str:
    """The same in a line, where nobody is accused."""
    return f"{_whole(found)} Part of the difference is how the stages share the work."


def _whole(found: WhatIf) -> str:
    return (
        f"With every operation at its ideal the job would run x{found.slowdown:.2f} as fast: a step of "
        f"{_seconds(found.step_s)} would take {_seconds(found.ideal_s)}."
    )


def share_words(share: float) -> str:
    """A share of the excess in words: parts overlap, so that one may recover more than all, or less than nothing."""
    if share > 1.005:
        return "all of it and more"
    return "nothing" if share < 0.005 else f"{share:.0%}"


def costliest(found: WhatIf) -> list[Contribution]:
    """The parts whose repair would recover the most, a few of each kind."""
    kinds = (found.of(part) for part in Part)
    return [one for kind in kinds for one in kind[:MOST_ROWS] if one.recovered >= LEAST_RECOVERED]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
