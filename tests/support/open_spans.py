"""A model of what a recorder should show: spans on one thread, begun and ended in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from megascope.profiler.box.box import ABSENT_INDEX
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind


@dataclass(frozen=True, slots=True)
class Action:
    """Something that happens; ``choice`` picks the open span that it happens to."""

    KINDS: ClassVar[tuple[str, ...]] = ("begin", "end", "end", "end again", "operation", "finish", "failing")
    kind: str
    choice: int


@dataclass
class _Known:
    number: int
    segment: int
    parent: int
    token: Any
    is_operation: bool


@dataclass
class Model:
    """Applies actions to a recorder, and says what must be open and what must have been written."""

    recorder: Recorder
    open: list[_Known] = field(default_factory=list)
    ended: list[_Known] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._segments = [self.recorder.segment(f"segment {number}") for number in range(5)]
        self._operation = self.recorder.segment("operation", SegmentKind.COLLECTIVE)
        self._count = 0

    @property
    def open_numbers(self) -> list[int]:
        """Micro-batches of what is in flight, the earliest begun first."""
        return [known.number for known in self.open]

    @property
    def ended_numbers(self) -> list[int]:
        """Micro-batches of what was written, in the order of the ends."""
        return [known.number for known in self.ended]

    @property
    def parents_of_ended(self) -> list[int]:
        """Segment of the span around each of them when it began."""
        return [known.parent for known in self.ended]

    def apply(self, action: Action) -> None:
        """Let it happen."""
        nesting = [known for known in self.open if not known.is_operation]
        operations = [known for known in self.open if known.is_operation]
        if action.kind in {"begin", "operation"} and len(self.open) < 25:
            self._begin(nesting, action)
        elif action.kind in {"end", "failing"} and nesting:
            self._end(nesting[-1 - (action.choice % len(nesting) if action.choice > 15 else 0)], action.kind)
        elif action.kind == "end again" and self.ended:
            known = self.ended[action.choice % len(self.ended)]
            if known.is_operation:
                self.recorder.abandon(known.token)
            else:
                self.recorder.end(known.token)
        elif action.kind == "finish" and operations:
            self._finish(operations[action.choice % len(operations)])

    def _begin(self, nesting: list[_Known], action: Action) -> None:
        number, self._count = self._count, self._count + 1
        parent = nesting[-1].segment if nesting else ABSENT_INDEX
        is_operation = action.kind == "operation"
        segment = self._operation if is_operation else self._segments[action.choice % 5]
        token: Any
        if is_operation:
            token = self.recorder.begin_async(segment, microbatch=number)
        else:
            token = self.recorder.begin(segment, number)
        self.open.append(_Known(number, segment, parent, token, is_operation))

    def _end(self, known: _Known, kind: str) -> None:
        self.recorder.end(known.token, 3 if kind == "failing" else 0)
        self._move(known)

    def _finish(self, known: _Known) -> None:
        self.recorder.wait_begin(known.token)
        self.recorder.end_async(known.token)
        self.recorder.wait_end(known.token)
        self._move(known)

    def _move(self, known: _Known) -> None:
        self.open.remove(known)
        self.ended.append(known)
