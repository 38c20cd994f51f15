"""A rank's usual step, read from its last ones: where an operation belongs, and what comes before it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from megascope.viz3d.usual import REACH_STEPS, Issued, Place, UsualSteps

GROUPS = (11, 12, 13)
PROGRAMS = st.lists(st.sampled_from(GROUPS), min_size=2, max_size=8)


def recorded(program: list[int], steps: int, evaluation_in: int | None = None) -> list[list[Issued]]:
    """What a rank issues step by step: its program, and in one step two more operations of the first group."""
    counts = dict.fromkeys(GROUPS, 0)
    every = []
    for step in range(steps):
        own = [*program, *([program[0]] * 2 if step == evaluation_in else [])]
        issued = []
        for place, group in enumerate(own):
            counts[group] += 1
            start = 1_000_000_000 * step + 1_000_000 * place
            issued.append(Issued(group, counts[group], f"op{place}", start, start, start + 900_000, None))
        every.append(issued)
    return every


@given(PROGRAMS, st.integers(0, REACH_STEPS - 1), st.sampled_from([None, 2, 3, 4]), st.data())
def test_an_operation_to_come_is_known_by_its_twin(
    program: list[int], ahead: int, evaluation_in: int | None, data: st.DataObject
) -> None:
    """Also with an evaluation among the steps that are read, the last one included."""
    every = recorded(program, 5 + REACH_STEPS, evaluation_in)
    usual = UsualSteps(dict(enumerate(every[:5])), 5 + ahead)
    coming = every[5 + ahead]
    at = data.draw(st.integers(0, len(program) - 1))
    place = usual.place(coming[at].group, coming[at].sequence)
    assert place is not None
    twin = usual.twin(place)
    assert twin is not None
    assert (place.step, twin.segment) == (5 + ahead, coming[at].segment)
    for other in set(program) - {coming[at].group}:
        before = [one.sequence for step in every[: 5 + ahead] for one in step if one.group == other]
        inside = [one.sequence for one in coming[:at] if one.group == other]
        assert usual.issued_before(place, other) == max(before + inside)


def test_what_two_steps_in_a_row_do_not_tell_is_not_known() -> None:
    one, two, three = recorded([11, 12], 3)
    assert UsualSteps({0: one}, 1).place(11, 2) is None
    assert UsualSteps({0: one, 2: three}, 3).place(11, 4) is None
    usual = UsualSteps({0: one, 1: two}, 9)
    assert usual.place(11, 2) is None  # it is recorded
    assert usual.place(11, 3) == Place(11, 0, 2)
    assert usual.place(11, 3 + REACH_STEPS) is None
    assert usual.place(99, 1) is None
    now = UsualSteps({0: one, 1: two}, 2)
    assert now.place(11, 3) == Place(11, 0, 2)
    assert now.place(11, 4) is None  # more than a step has: an evaluation moved the numbers


def test_a_step_that_lacks_an_operation_counts_as_whole() -> None:
    """The rank left out its call over 12 in the last step, and is past it: one more is expected than it has issued."""
    every = recorded([11, 12, 11], 6, evaluation_in=3)
    short = [one for one in every[4] if one.group != 12]
    usual = UsualSteps({**dict(enumerate(every[:4])), 4: short}, 5)
    place = usual.place(11, every[5][0].sequence)
    assert place == Place(11, 0, 5)
    assert usual.issued_before(place, 12) == 5


def test_an_operation_of_a_step_that_is_not_recorded_whole_belongs_to_it() -> None:
    """Its last operation is still under way, and the rank already counts the next step."""
    every = recorded([11, 12, 11], 5)
    under_way = every[4][2]
    usual = UsualSteps({**dict(enumerate(every[:4])), 4: every[4][:2]}, 5)
    assert usual.place(11, under_way.sequence) == Place(11, 1, 4)
    assert usual.issued_before(Place(11, 1, 4), 12) == every[4][1].sequence


def test_what_always_ends_before_another_begins_is_told_from_what_may_run_beside_it() -> None:
    every = recorded([11, 12], 3)
    first, second = Place(11, 0, 3), Place(12, 0, 3)
    assert UsualSteps(dict(enumerate(every)), 3).ends_before(first, second) is True
    assert UsualSteps(dict(enumerate(every)), 3).ends_before(second, first) is False
    late = [[replace(step[0], end_ns=step[1].start_ns + 500_000), step[1]] if at == 1 else step
            for at, step in enumerate(every)]  # fmt: skip
    assert UsualSteps(dict(enumerate(late)), 3).ends_before(first, second) is False
    untimed = [[replace(step[0], end_ns=None), step[1]] for step in every]
    assert UsualSteps(dict(enumerate(untimed)), 3).ends_before(first, second) is None


def test_of_an_order_that_differs_from_step_to_step_the_least_number_is_usual() -> None:
    """Group 12 comes once before and once after the operation of group 11 in each pair of steps."""
    steps = {}
    for step in range(4):
        begun = 1_000_000_000 * step
        first, second = ((11, 12), (12, 11))[step % 2]
        steps[step] = [
            Issued(first, step + 1, "one", begun, begun, begun + 10, None),
            Issued(second, step + 1, "other", begun + 100, begun + 100, begun + 110, None),
        ]
    usual = UsualSteps(steps, 4)
    place = usual.place(11, 5)
    assert place is not None
    assert usual.issued_before(place, 12) == 4  # not 5, as in steps 1 and 3


def test_a_size_that_differs_from_step_to_step_is_not_usual() -> None:
    def twin(sizes: list[int]) -> int | None:
        every = recorded([11, 12], len(sizes))
        steps = {
            step: [replace(one, size_bytes=size) for one in own]
            for step, (own, size) in enumerate(zip(every, sizes, strict=True))
        }
        usual = UsualSteps(steps, len(sizes))
        place = usual.place(11, len(sizes) + 1)
        found = None if place is None else usual.twin(place)
        assert found is not None
        return found.size_bytes

    assert twin([8, 8, 8]) == 8
    assert twin([8, 16, 8]) is None


PLACES = st.integers(0, 5)


@given(PLACES, PLACES, st.sampled_from(["tp", "dp"]))
def test_a_step_begins_as_usual_or_not(at: int, extra: int, group: str) -> None:
    """The operation at a place, and what is recorded before it: as ever, with one more somewhere, with one lost."""
    program = [11, 12, 11, 11, 12, 11]
    number = {"tp": 11, "dp": 12}[group]
    every = recorded(program, 5)
    past, coming = dict(enumerate(every[:4])), every[4]
    place = Place(coming[at].group, sum(one.group == coming[at].group for one in coming[:at]), 4)
    usual = UsualSteps(past, 4, coming[:at])
    assert usual.begins_as_usual(place, coming[at], []) is (True if at else None)
    assert usual.begins_as_usual(place, coming[at], coming[:at]) is (True if at else None)
    left = [one for where, one in enumerate(coming[:at]) if where != extra]  # one that nobody has waited for yet
    assert UsualSteps(past, 4, left).begins_as_usual(place, coming[at], []) is (True if left else None)
    moved = [*program[:extra], number, *program[extra:]]
    counts = {own: max(one.sequence for one in every[3] if one.group == own) for own in (11, 12)}
    more = []
    for where, own in enumerate(moved):
        counts[own] += 1
        start = 4_000_000_000 + 1_000_000 * where
        more.append(Issued(own, counts[own], f"op{where}", start, start, start + 900_000, 16))
    taken = usual.place(more[at].group, more[at].sequence)
    begins = None if taken is None else UsualSteps(past, 4, more[:at]).begins_as_usual(taken, more[at], [])
    is_the_same = moved[:at] == program[:at]
    assert begins in (None, is_the_same)


@given(st.permutations(range(4)), st.booleans())
def test_sizes_that_differ_from_step_to_step_make_no_beginning_unusual(sizes: list[int], is_fixed: bool) -> None:
    """Packed sequences: every step moves as much as its longest one needs. A size that is always the same tells."""
    every = recorded([11, 12, 11], 5)
    steps = {
        step: [replace(one, size_bytes=64 if is_fixed else 64 + sizes[step]) for one in own]
        for step, own in enumerate(every[:4])
    }
    other = [replace(one, size_bytes=99) for one in every[4]]
    usual = UsualSteps(steps, 4, other[:2])
    assert usual.begins_as_usual(Place(11, 1, 4), other[2], []) is not is_fixed
