"""The address at which the data of a heatmap are: all that is shown, spelled out."""

from __future__ import annotations

from ...collectors.reading.store import Attempt
from ..view import View
from ..workbench import Workbench
from .data import HeatChoice


def shown_view(attempt: Attempt, choice: HeatChoice) -> View:
    """The view of the widget's data and of the export: all that is shown, spelled out."""
    return View(
        run=attempt.run,
        attempt=attempt.attempt,
        segment=choice.segment,
        metric=choice.metric,
        show=choice.show,
        order=choice.order,
        steps=choice.steps,
        ranks=choice.ranks,
        shape=choice.shape,
        group=choice.group or None,
        over=choice.over,
        above=choice.above,
    )


def source_of(bench: Workbench, attempt: Attempt, choice: HeatChoice) -> str:
    """The address of a choice's payload, with the version of the data."""
    return f"{shown_view(attempt, choice).url('/data/heatmap')}&v={bench.stamp()}"
