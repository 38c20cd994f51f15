"""What a rank is in, also where operations have no times."""

from __future__ import annotations

import pytest

from megascope.viz3d.doing import Doing, doing_of
from megascope.viz3d.states import Flight, RankState


@pytest.mark.parametrize(("outer_ns", "inner_ns"), [(None, None), (5, None), (1, 2)])
def test_the_innermost_operation_counts(outer_ns: int | None, inner_ns: int | None) -> None:
    flights = (
        Flight("forward", "compute", None, None, begun_ns=outer_ns),
        Flight("all_reduce", "collective", 1, 3, begun_ns=inner_ns),
    )
    assert doing_of(RankState(0, 10, flights=flights)) == Doing.COLLECTIVE
