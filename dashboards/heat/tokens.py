"""Where ranks had unequally many tokens: how many beside their peers', as the Heatmap's times are not per token."""

from __future__ import annotations

from ...collectors.reading.store import Attempt
from ...heatmap.matrix import Matrix
from ...heatmap.token_spread import TokenSpread, load_spread
from ...profiler.vocabulary import SegmentKind
from ..workbench import Latest, Workbench
from .data import HeatChoice, placement_of
from .transfers import TRANSFER


def goes_with_tokens(choice: HeatChoice, matrix: Matrix) -> bool:
    """Whether a choice shows times that are longer with more tokens, by steps."""
    by_steps = choice.parts is None and len(matrix.steps) > 0
    return by_steps and choice.kind == SegmentKind.COMPUTE and choice.metric not in ("count", TRANSFER)


def spread_of(bench: Workbench, attempt: Attempt, choice: HeatChoice, matrix: Matrix) -> TokenSpread | None:
    """Tokens beside the peers' in the cells of a choice; None where they do not matter or do not differ.

    Worked out once for all segments that have the same columns.
    """
    if not goes_with_tokens(choice, matrix):
        return None
    columns = (matrix.steps.tobytes(), matrix.ranks.tobytes(), matrix.step_width)

    def load() -> TokenSpread | None:
        roles = placement_of(bench, attempt).roles(matrix.ranks)
        return load_spread(bench.store, attempt, matrix, roles)

    return bench.cached(("tokens", attempt.run, attempt.attempt, *columns), load)


def tokens_note(
    bench: Workbench, attempt: Attempt, choice: HeatChoice, matrix: Matrix, *, wait_s: float
) -> Latest[str]:
    """The newest sentence that is ready, empty where nothing is to be said: no picture waits for it."""
    if not goes_with_tokens(choice, matrix):
        return Latest("", None, None, stale=False, stamp="none")

    def said() -> str:
        spread = spread_of(bench, attempt, choice, matrix)
        return "" if spread is None else spread.said()

    key = ("tokens", attempt.run, attempt.attempt, choice.segment, matrix.step_width, *(choice.steps or ()))
    return bench.latest(key, said, wait_s=wait_s)
