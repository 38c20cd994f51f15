"""From a drift of the whole job to its culprit in the verdict, with the numbers behind it."""

from __future__ import annotations

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from ..collectors.verdicts import Evidence
from .asking import ask
from .drift import JobDrift
from .launches import launch_spread
from .verdict import Cause, Culprit, CulpritKind, Pattern, severity


def drift_culprit(store: Store, attempt: Attempt, drift: JobDrift) -> Culprit:
    """The culprit of a drift: the job, and no rank."""
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=round(0.5 + 0.45 * drift.share, 3),
        severity=severity(drift.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.GC_DRIFT,
        segment=drift.segment,
        ratio=round(drift.ratio, 4),
        steps=drift.steps,
        pattern=Pattern.DRIFTING,
        lost_share=drift.lost_share,
        evidence=_evidence(store, attempt, drift),
    )


def _evidence(store: Store, attempt: Attempt, drift: JobDrift) -> tuple[Evidence, ...]:
    """Mean time of a collection in the last third of the steps, beside that of all steps before; and the launches."""
    late = _mean_sql(attempt, drift, drift.last_third, drift.steps[1])
    own = ask(store, late)
    before = ask(store, _mean_sql(attempt, drift, drift.steps[0], drift.last_third - 1))
    if own is None or before is None:
        return ()
    statement = (
        f"one {drift.segment} takes {own:.2f} ms on average from step {drift.last_third} on, {before:.2f} ms before; "
        f"per step it grew on {drift.share:.0%} of {drift.ranks} ranks"
    )
    table = "events" if drift.step_width == 1 else "rank_windows"
    return (Evidence(statement, own, before, table, late), *_launches(store, attempt, drift))


def _launches(store: Store, attempt: Attempt, drift: JobDrift) -> tuple[Evidence, ...]:
    """How far apart the reduce-scatters are launched, where spans tell and it grew."""
    if drift.step_width != 1:
        return ()
    first, last = drift.steps
    third = last - drift.last_third
    found = launch_spread(store, attempt, (first, first + third), (drift.last_third, last))
    if found is None or not found.grows:
        return ()
    statement = (
        f"launches of {found.segment} lie {found.late_ms:.2f} ms apart in the median group from step "
        f"{drift.last_third} on, {found.early_ms:.2f} ms up to step {first + third}, and no rank is the last in more "
        f"than {found.most_often_last:.0%} of them: the ranks pause by turns"
    )
    return (Evidence(statement, found.late_ms, found.early_ms, "events_aligned", found.sql),)


def _mean_sql(attempt: Attempt, drift: JobDrift, first: int, last: int) -> str:
    chosen = f"x.run = {literal(attempt.run)} AND x.attempt = {attempt.attempt} AND s.name = {literal(drift.segment)}"
    if drift.step_width == 1:
        return (
            f"SELECT avg(self_ns) / 1e6 FROM events x JOIN segments s USING (run, attempt, segment) "
            f"WHERE {chosen} AND x.status = 'ok' AND step BETWEEN {first} AND {last}"
        )
    return (
        f"SELECT sum(self_sum_ns) / sum(self_count) / 1e6 FROM rank_windows x "
        f"JOIN segments s USING (run, attempt, segment) WHERE {chosen} AND window_steps = {drift.step_width} "
        f"AND first_step BETWEEN {first} AND {last}"
    )
