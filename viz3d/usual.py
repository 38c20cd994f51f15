"""The usual step of a rank, from what it recorded: its operations in order, and which end before others begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

REACH_STEPS = 4
"""An operation is looked for in so many steps after the last recorded one, at most."""

TOLERANCE_NS = 20_000
"""Device times are single precision: an operation that begins so little before another ends begins after it."""


@dataclass(frozen=True, slots=True)
class Issued:
    """An operation that a rank issued in an earlier step: when its host did, and when it ran."""

    group: int
    sequence: int
    segment: str
    issued_ns: int
    start_ns: int
    end_ns: int | None
    size_bytes: int | None

    def is_like(self, other: Issued) -> bool:
        """Whether it is the same operation in another step; a size that is not known is any."""
        sizes = {self.size_bytes, other.size_bytes} - {None}
        return (self.group, self.segment) == (other.group, other.segment) and len(sizes) < 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation is in a rank's program: ``index`` (from 0) among those of its group in ``step``."""

    group: int
    index: int
    step: int


@dataclass(frozen=True, slots=True)
class UsualSteps:
    """What a rank did in its last steps before ``now``: step -> what it issued; steps are alike where two in a row are.

    A step that has more (an evaluation) or less than usual moves the numbers of the steps after it, not their order.
    """

    steps: Mapping[int, Sequence[Issued]]
    now: int
    begun: Sequence[Issued] = ()
    """What is recorded of step ``now`` itself."""

    def begins_as_usual(self, place: Place, issued: Issued, before: Sequence[Issued]) -> bool | None:
        """Whether a step has begun as usual up to an operation at a place: operation by operation what is recorded of
        it, and the ones ``before`` it that are not complete, are the first of a usual step, and none is lost.

        Else a number tells nothing of a place: one operation more than usual moves all that come after it. None where
        nothing of the step is recorded.
        """
        recorded = self.begun if place.step == self.now else self.steps.get(place.step, ())
        known = {(one.group, one.sequence): one for one in (*before, *recorded) if one.issued_ns < issued.issued_ns}
        if not known:
            return None
        own = sorted(known.values(), key=lambda one: one.issued_ns)
        numbers: dict[int, list[int]] = {}
        for one in (*own, issued):
            numbers.setdefault(one.group, []).append(one.sequence)
        if any(of_group != list(range(of_group[0], of_group[0] + len(of_group))) for of_group in numbers.values()):
            return False
        if len(numbers[place.group]) != place.index + 1:
            return False
        usual = (step for step in self.steps if step != place.step and all(
            self._count(step, group) == self._per_step(group) for group in numbers))  # fmt: skip
        return any(self._is_first_of(step, own) for step in usual)

    def _is_first_of(self, step: int, own: Sequence[Issued]) -> bool:
        theirs = sorted(self.steps[step], key=lambda one: one.issued_ns)[: len(own)]
        return len(theirs) == len(own) and all(one.is_like(other) for one, other in zip(own, theirs, strict=True))

    def place(self, group: int, sequence: int) -> Place | None:
        """The place of an operation that is not recorded yet; None where no two steps in a row tell, and for one that
        would belong to a later step than the rank is in: more was issued in this step than is usual."""
        per_step, whole = self._per_step(group), self._whole(group)
        if per_step is None or whole is None:
            return None
        step, last = whole
        if sequence <= max(one.sequence for own in self.steps.values() for one in own if one.group == group):
            return None
        ahead, index = divmod(sequence - last - 1, per_step)
        step += 1 + ahead
        return Place(group, index, step) if step <= min(self.now, max(self.steps) + REACH_STEPS) else None

    def twin(self, place: Place) -> Issued | None:
        """The operation at the same place of the newest usual step; without a size if that differs from step to
        step."""
        step = self._usual_step(place.group)
        twin = None if step is None else self._at(step, place)
        others = (self._at(one, place) for one in self._usual_steps(place.group)) if twin is not None else ()
        is_alike = twin is not None and all(one is None or one.size_bytes == twin.size_bytes for one in others)
        return twin if twin is None or is_alike else replace(twin, size_bytes=None)

    def issued_before(self, place: Place, other: int) -> int | None:
        """The last number that is issued in group ``other`` before the operation at a place, if all is as usual: the
        least that it was, where the order of the two differs from step to step.

        A step that has fewer of them than usual counts as whole: the rank went past it, and is short.
        """
        per_step, whole = self._per_step(other), self._whole(other)
        step = self._usual_step(place.group, other)
        twin = None if step is None else self._at(step, place)
        if step is None or twin is None or per_step is None or whole is None:
            return None
        before = [self._issued_by(other, step, twin)]
        for one in self._usual_steps(place.group):
            own = self._at(one, place)
            if own is not None and self._count(one, other) == per_step:
                before.append(self._issued_by(other, one, own))
        return whole[1] + (place.step - whole[0] - 1) * per_step + min(before)

    def _issued_by(self, group: int, step: int, twin: Issued) -> int:
        """How many operations of a group are issued in a step before one of it."""
        return sum(one.group == group and one.issued_ns < twin.issued_ns for one in self.steps[step])

    def ends_before(self, first: Place, second: Place) -> bool | None:
        """Whether the one operation always ends before the other begins; None where fewer than two steps tell."""
        apart = second.step - first.step
        told = []
        for step in self._usual_steps(second.group):
            one, other = self._at(step - apart, first), self._at(step, second)
            if one is not None and other is not None and one.end_ns is not None:
                told.append(one.end_ns <= other.start_ns + TOLERANCE_NS)
        return all(told) if len(told) >= 2 else None

    def _at(self, step: int, place: Place) -> Issued | None:
        own = sorted(
            (one for one in self.steps.get(step, ()) if one.group == place.group), key=lambda one: one.sequence
        )
        return own[place.index] if place.index < len(own) and len(own) == self._per_step(place.group) else None

    def _whole(self, group: int) -> tuple[int, int] | None:
        """The newest step that has a group's usual operations, or more, and the last of their numbers."""
        usual = self._per_step(group)
        whole = [step for step in self.steps if usual is not None and self._count(step, group) >= usual]
        if not whole:
            return None
        return max(whole), max(one.sequence for one in self.steps[max(whole)] if one.group == group)

    def _per_step(self, group: int) -> int | None:
        step = self._usual_step(group)
        return None if step is None else self._count(step, group)

    def _count(self, step: int, group: int) -> int:
        return sum(one.group == group for one in self.steps.get(step, ()))

    def _usual_step(self, *groups: int) -> int | None:
        """The newest step that has as many operations of these groups as the one before it, and any."""
        for step in sorted(self.steps, reverse=True):
            counts = [(self._count(step, group), self._count(step - 1, group)) for group in groups]
            if all(own and own == before for own, before in counts):
                return step
        return None

    def _usual_steps(self, group: int) -> list[int]:
        """All steps that have as many operations of a group as is usual."""
        usual = self._per_step(group)
        return [step for step in self.steps if self._count(step, group) == usual]
