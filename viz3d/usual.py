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

    def is_like(self, other: Issued, *, sized: bool = True) -> bool:
        """Whether it is the same operation in another step, by its size too if ``sized``; one not known is any."""
        sizes = {self.size_bytes, other.size_bytes} - {None}
        return (self.group, self.segment) == (other.group, other.segment) and (len(sizes) < 2 or not sized)


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

    def begins_as_usual(
        self, place: Place, issued: Issued, before: Sequence[Issued], but: int | None = None
    ) -> bool | None:
        """Whether a step has begun as usual up to an operation at a place: what is recorded of it, and the ones
        ``before`` it that are not complete, are by their numbers and one by one what comes before it in a usual step;
        those of group ``but`` left out.

        Else a number tells nothing of a place: one operation more than usual moves all that come after it. What is not
        recorded contradicts nothing: an operation may have ended without anybody having waited for it yet. None where
        nothing of the step is recorded.
        """
        recorded = self.begun if place.step == self.now else self.steps.get(place.step, ())
        bases: dict[int, int | None] = {}
        known: dict[tuple[int, int], Issued] = {}
        for one in sorted((*before, *recorded), key=lambda one: one.issued_ns):
            if one.group == but or one.issued_ns >= issued.issued_ns:
                continue
            if one.group not in bases:
                bases[one.group] = self._last_before(one.group, place.step)
            base = bases[one.group]
            if base is not None and (one.sequence > base or one in recorded):
                known[one.group, one.sequence - base - 1] = one
        if not known:
            return None
        counts = {group: self._per_step(group) for group in (place.group, *(group for group, _ in known))}
        usual = [
            self._order(step)
            for step in self.steps
            if step != place.step and all(self._count(step, group) == number for group, number in counts.items())
        ]
        return _is_begun_like_any(known, (place.group, place.index), usual)

    def _last_before(self, group: int, step: int) -> int | None:
        """The last number of a group before a step, if all is as usual; None where it has no usual number of
        operations: then its numbers tell nothing."""
        per_step, whole = self._per_step(group), self._whole(group, before=step)
        return None if per_step is None or whole is None else whole[1] + (step - whole[0] - 1) * per_step

    def _order(self, step: int) -> dict[tuple[int, int], Issued]:
        """The operations of a step in the order of their issue, by group and index in it."""
        counts: dict[int, int] = {}
        order = {}
        for one in sorted(self.steps[step], key=lambda one: one.issued_ns):
            order[one.group, counts.get(one.group, 0)] = one
            counts[one.group] = counts.get(one.group, 0) + 1
        return order

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

    def _whole(self, group: int, before: int | None = None) -> tuple[int, int] | None:
        """The newest step (``before`` one) that has a group's usual operations, or more, and the last of their
        numbers."""
        usual = self._per_step(group)
        steps = [step for step in self.steps if before is None or step < before]
        whole = [step for step in steps if usual is not None and self._count(step, group) >= usual]
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


Order = Mapping[tuple[int, int], Issued]
"""Operations by group and index in it, in the order of their issue."""


def _is_begun_like_any(known: Order, until: tuple[int, int], usual: Sequence[Order]) -> bool:
    """Whether operations come in the order that they have in any of the usual steps, all before the one ``until``, and
    are like those. Where sizes differ from step to step they tell nothing."""
    sizes = [{order[key].size_bytes for order in usual if key in order} - {None} for key in known]
    return any(
        [key for key in _until(order, until) if key in known] == list(known)
        and all(
            one.is_like(order[key], sized=len(own) < 2) for (key, one), own in zip(known.items(), sizes, strict=True)
        )
        for order in usual
    )


def _until(order: Order, key: tuple[int, int]) -> list[tuple[int, int]]:
    keys = list(order)
    return keys[: keys.index(key)] if key in order else []
