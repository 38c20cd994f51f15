"""What was found on a machine: as an object, as a sentence and a table, and as an exit code."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..profiler.host import host_name
from .checks import run_checks
from .finding import Finding, State
from .machine import Machine

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1
_STYLES = {State.OK: "green", State.ADVICE: "yellow", State.PROBLEM: "bold red", State.NOT_CHECKED: "dim"}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings of one look. ``moment_ns``: UTC, when it began; ``seconds``: how long it took."""

    host: str
    moment_ns: int
    seconds: float
    findings: Sequence[Finding]

    @property
    def verdict(self) -> State:
        """The worst that was found: problem, advice or ok. What was not checked is none of them."""
        states = {one.state for one in self.findings}
        return next((state for state in (State.PROBLEM, State.ADVICE) if state in states), State.OK)

    @property
    def exit_code(self) -> int:
        """1 where there is a problem, else 0."""
        return int(self.verdict is State.PROBLEM)

    @property
    def counts(self) -> dict[str, int]:
        """Findings of each state."""
        counted = Counter(one.state for one in self.findings)
        return {str(state): counted[state] for state in State}

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "host": self.host,
            "moment_ns": self.moment_ns,
            "seconds": round(self.seconds, 3),
            "counts": self.counts,
            "findings": [one.as_json() for one in self.findings],
        }

    def sentence(self) -> str:
        """How many findings of each state there are."""
        counts = self.counts
        problems, hints = counts[State.PROBLEM], counts[State.ADVICE]
        parts = [
            "no problem" if not problems else f"{problems} problem{'' if problems == 1 else 's'}",
            f"{hints} piece{'' if hints == 1 else 's'} of advice",
            f"{counts[State.OK]} checks in order",
        ]
        if counts[State.NOT_CHECKED]:
            parts.append(f"{counts[State.NOT_CHECKED]} not made")
        return f"{self.host}: {', '.join(parts)}."


def examine(machine: Machine) -> DoctorReport:
    """Make all checks of a machine."""
    moment_ns, began = time.time_ns(), time.monotonic()
    findings = run_checks(machine)
    return DoctorReport(host_name(), moment_ns, time.monotonic() - began, findings)


def render(report: DoctorReport) -> RenderableType:
    """The sentence, what is to be done (the worst first), and a row for each check."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = [Text(report.sentence(), _STYLES[report.verdict]), Text()]
    for state in (State.PROBLEM, State.ADVICE):
        for one in report.findings:
            if one.state is state and one.to_do:
                head = Text(f"{state} {one.area}/{one.check}: ", _STYLES[state])
                parts.append(head.append(f"{one.value}.", "default").append(f" To do: {one.to_do}.", "default"))
    if len(parts) > 2:
        parts.append(Text())
    table = Table(box=None, pad_edge=False)
    for heading in ("area", "check", "state", "seen", "looked at"):
        table.add_column(heading, overflow="fold")
    for one in report.findings:
        seen = "see above" if one.to_do and one.state in (State.PROBLEM, State.ADVICE) else one.value
        table.add_row(one.area, one.check, Text(one.state, _STYLES[one.state]), Text(seen), Text(one.looked_at, "dim"))
    parts.append(table)
    return Group(*parts)
