"""The address holds the whole view: written and read back without loss, and refused with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.dashboards.view import METRICS, OVER, SHAPES, SHOWN, View, parse_view, ranks_text
from megascope.profiler.errors import UsageError

numbers = st.integers(0, 2**40)
texts = st.text(min_size=1, max_size=40)
ranges = st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))
moments = st.integers(0, 4 * 10**15).map(lambda microseconds: microseconds * 1000)

views = st.builds(
    View,
    run=st.none() | texts,
    attempt=st.none() | numbers,
    segment=st.none() | texts,
    metric=st.none() | st.sampled_from(sorted(METRICS)),
    show=st.none() | st.sampled_from(sorted(SHOWN)),
    order=st.none() | texts,
    steps=st.none() | ranges,
    rank=st.none() | numbers,
    axis=st.none() | texts,
    ranks=st.lists(numbers, unique=True, max_size=5).map(tuple),
    find=st.none() | texts,
    moment=st.none() | numbers,
    around=st.none() | texts,
    q=st.none() | texts,
    scroll=st.none() | numbers,
    camera=st.none() | st.tuples(*[st.integers(-9999, 9999).map(lambda value: value / 1000)] * 5),
    zoom=st.none() | st.tuples(ranges, ranges).map(lambda pair: (*pair[0], *pair[1])),
    since=st.none() | moments,
    until=st.none() | moments,
    shape=st.none() | st.sampled_from(sorted(SHAPES)),
    group=st.none() | texts,
    over=st.none() | st.sampled_from(sorted(OVER)),
    above=st.none() | st.integers(1000, 9999).map(lambda value: value / 1000),
)


@given(views)
def test_a_view_survives_the_address(view: View) -> None:
    assert parse_view(view.search()) == view


def test_ranks_may_be_given_as_ranges() -> None:
    assert parse_view("?ranks=0,5,8-10,5").ranks == (0, 5, 8, 9, 10)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_view("?since=2026-01-31T14:05").since == 1_769_868_300 * 10**9
    assert parse_view("?since=2026-01-31 14:05:00 UTC").since == parse_view("?since=2026-01-31T15:05%2B01:00").since


def test_many_ranks_are_written_as_ranges() -> None:
    view = View(ranks=(9, *range(1000, 2000), 3, 2))
    assert view.search() == "?ranks=9,1000-1999,3,2"
    assert parse_view(view.search()) == view
    assert ranks_text([0, 1, 2, 8, 10, 12], 3) == "0-2, 8, 10, ..."


def test_a_single_step_is_a_range() -> None:
    assert parse_view("?steps=7").steps == (7, 7)


def test_an_empty_parameter_is_as_good_as_none() -> None:
    assert parse_view("?steps=&rank=") == View()


def test_a_link_to_another_page_carries_the_job_only() -> None:
    view = parse_view("?run=a&attempt=1&segment=forward&steps=3")
    assert view.same_job().url("/3d", rank=5) == "/3d?run=a&attempt=1&rank=5"


@pytest.mark.parametrize(
    ("search", "part"),
    [
        ("?rank=x", "rank='x'"),
        ("?rank=-1", "a rank, such as 5"),
        ("?steps=9:3", "steps='9:3'"),
        ("?zoom=1:2", "four whole numbers"),
        ("?zoom=5:2:0:3", "first and last row"),
        ("?zoom=2:5:3:0", "first and last row"),
        ("?t=2:1", "two numbers of seconds"),
        ("?t=nan:1", "two numbers of seconds"),
        ("?camera=1:2:3", "five numbers"),
        ("?camera=1:2:3:4:nan", "five numbers"),
        ("?ranks=0-99999999", "a list of ranks"),
        ("?ranks=0-3000,4000-7000", "4,096 at most"),
        ("?metric=speed", "one of self, duration, exposed, count"),
        ("?attempt=99999999999999999999", "attempt"),
        ("?since=yesterday", "a time in UTC, such as 2026-01-31 14:05"),
        ("?above=0.5", "a ratio from 1 on"),
        ("?above=nan", "a ratio from 1 on"),
        ("?shape=round", "one of steps, hosts"),
        ("?stepz=3", "'stepz' that no page knows"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_accepted(search: str, part: str) -> None:
    with pytest.raises(UsageError, match=r"The address has") as caught:
        parse_view(search)
    assert part in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_long_wrong_value_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        parse_view("?rank=" + "z" * 10_000)
    assert len(str(caught.value)) < 200
