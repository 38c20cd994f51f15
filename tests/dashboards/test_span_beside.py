"""What the Timeline shows a second time, as it stands in the address."""

from __future__ import annotations

import pytest

from megascope.dashboards.spans.beside import beside_of
from megascope.dashboards.view import View, parse_view
from megascope.profiler.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", ("now", 2, (7, 7))),
        ("1:7", ("now", 1, (7, 7))),
        ("0:7:other: run/ü", ("other: run/ü", 0, (7, 7))),
    ],
)
def test_a_step_an_attempt_and_a_run(text: str, expected: tuple[str, int, tuple[int, int]]) -> None:
    view = parse_view(View(run="now", attempt=2, ranks=(0, 5), steps=(3, 3), beside=text).search())
    assert view.beside == text
    other = beside_of(view)
    assert other is not None
    assert (other.run, other.attempt, other.steps) == expected
    assert other.ranks == (0, 5)
    assert other.beside is None


def test_nothing_beside() -> None:
    assert beside_of(View(steps=(3, 3))) is None


@pytest.mark.parametrize(
    "search", ["?beside=x", "?beside=1:x", "?beside=-1", "?beside=1:", "?hide=all", "?hide=path,", "?rows=2"]
)
def test_what_cannot_be_read_is_refused(search: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        parse_view(search)


def test_marks_and_rows_are_kept_in_the_address() -> None:
    search = View(hide="path,waiting", rows="fit").search()
    assert search == "?rows=fit&hide=path,waiting"
    assert parse_view(search) == View(hide="path,waiting", rows="fit")
