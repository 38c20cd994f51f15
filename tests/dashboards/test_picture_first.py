"""A picture that no verdict decides on is read before one is begun, and one that takes long is not waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from megascope.collectors.reading.store import Attempt
from megascope.dashboards import verdicts
from megascope.dashboards.heat.data import matrix_of
from megascope.dashboards.pages import heatmap
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Latest, Workbench


@pytest.mark.parametrize(("segment", "first"), [("backward", "matrix"), (None, "verdict")])
def test_a_chosen_segment_is_read_before_the_verdict(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, segment: str | None, first: str
) -> None:
    order: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **more: Any) -> Any:
            order.append(name)
            return function(*given, **more)

        return noted

    monkeypatch.setattr(heatmap, "matrix_of", noting("matrix", matrix_of))
    monkeypatch.setattr(heatmap, "verdict_banners", noting("verdict", verdicts.verdict_banners))
    heatmap.body(View(run=attempt.run, attempt=attempt.attempt, segment=segment), bench)
    assert order[0] == first


@pytest.mark.parametrize(("cost_s", "waits"), [(None, True), (0.2, True), (3.4, False)])
def test_a_verdict_of_some_steps_is_not_waited_for_where_that_of_all_took_long(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, cost_s: float | None, waits: bool
) -> None:
    asked: dict[object, float] = {}

    def latest(key: object, _compute: object, *, wait_s: float) -> Latest[None]:
        asked[key] = wait_s
        return Latest(None, None, None, True, "")

    known: Latest[None] = Latest(None, 1.0, None, False, "1", cost_s)
    monkeypatch.setattr(bench, "peek", lambda key: known if key == verdicts.straggler_key(attempt) else None)
    monkeypatch.setattr(bench, "latest", latest)
    verdicts.stragglers_of(bench, attempt, (3, 5))
    verdicts.stragglers_of(bench, attempt)
    some, every = asked[verdicts.straggler_key(attempt, (3, 5))], asked[verdicts.straggler_key(attempt)]
    assert (some, every) == (verdicts.FIRST_WAIT_S if waits else 0.0, verdicts.FIRST_WAIT_S)
