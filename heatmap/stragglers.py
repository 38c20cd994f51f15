"""`find_stragglers`: from a store to the straggler verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..collectors.reading.store import Attempt, Store
from ..profiler.vocabulary import SegmentKind
from .abstaining import data_missing, hidden_below, left_out, not_judged, visible_ratio
from .bursts import in_all_compute
from .causes import MAIN_SEGMENT_SHARE, main_compute, throttled_ranks
from .cells import total_work
from .compare import Comparison
from .cores import Cores, without_waiting
from .culprits import culprits_of
from .drift import JobDrift, find_drift, is_collecting, stands_apart
from .early import find_warnings
from .growth import GROWTH_SIGNAL, find_growth, find_longer
from .hardware import with_hardware
from .hosts import by_host
from .jobwide.even import even_out
from .jobwide.find import find_jobwide
from .judge import DEFAULT_THRESHOLDS, Finding, SegmentJudgement, judge_segment, measured_waiting, per_rank
from .majority import quick_ranks
from .merge import merge, outcome
from .network.find import find_network
from .network.hidden import find_hidden
from .network.inside import find_inside
from .network.waited_for import waited_for
from .observations import MAIN_KINDS, Observations, observe
from .own_change import WARNED, find_own_change
from .per_token import UnequalTokens, is_per_token, per_token
from .slowed import find_slowed, has_few_peers
from .source import Source
from .thresholds import Thresholds
from .together import costly_together
from .verdict import (
    Abstention,
    CulpritKind,
    EarlyWarning,
    Findings,
    Outcome,
    Pattern,
    StragglerVerdict,
)
from .whatif.finding import whatif_of
from .whatif.kept import KeptReplays
from .window_shape import WindowShapes

MAX_CULPRITS = 100
OF_ALL = frozenset({CulpritKind.JOB, CulpritKind.STAGE})
"""Kinds of findings that accuse no machine."""

ANALYSES: tuple[Callable[[Store, Attempt, Observations], Findings], ...] = (
    find_network,
    find_inside,
    find_hidden,
    find_jobwide,
)
"""Analyses beside the comparison of ranks: each adds culprits, and says what it explains and could not judge."""

STAGES = 4 + len(ANALYSES)
"""Parts of the analysis: reading, comparing, these, the what-if, and who was waited for."""

NORMALISERS: tuple[Callable[[Store, Attempt, Observations], Observations], ...] = (per_token, even_out)
"""What is done to the observations before ranks are compared, so that only the same work is; analyses see them raw."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the observations came to, before evidence is gathered: one finding a rank, and every (rank, segment) that
    is slow, also beside a rank's costliest.

    ``throttled`` are ranks all of whose compute is slow again and again; ``drifts`` are the job's own: they name no
    rank; ``blocking`` are those of ``abstained`` that forbid the word healthy; ``warnings`` are of ranks that are not
    accused.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    abstained: tuple[Abstention, ...]
    slow: frozenset[tuple[int, str]] = frozenset()
    drifts: tuple[JobDrift, ...] = ()
    throttled: frozenset[int] = frozenset()
    blocking: tuple[Abstention, ...] = ()
    warnings: tuple[EarlyWarning, ...] = ()
    visible_ratio: float | None = None


def find_stragglers(
    store: Store,
    attempt: Attempt,
    *,
    steps: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    replays: KeptReplays | None = None,
) -> StragglerVerdict:
    """Who is slower than its peers at the same work, in the given steps (first, last) and ranks; all if None.

    Only self time of work is compared, within a stage and chunk; the rules are in `judge` and `compare`. ``progress``
    is told (done, total) of the parts of the analysis, which take unequally long. ``replays`` are kept for the next
    verdict on all steps, which then reads only new ones for its what-if.
    """
    told = iter(range(1, STAGES + 1))

    def done() -> None:
        if progress is not None:
            progress(next(told), STAGES)

    seen = observe(store, attempt, steps=steps, ranks=None if ranks is None else list(ranks))
    done()
    compared = seen
    for normalise in NORMALISERS:
        compared = normalise(store, attempt, compared)
    inside = WindowShapes(store, attempt) if seen.source.source == Source.ROLLUPS else None
    cores = Cores(store, attempt, seen, per_token=is_per_token(compared))
    judgement = judge(compared, shapes=inside, cores=cores, tokens=UnequalTokens(seen, compared))
    joined = by_host(judgement.findings, judgement.slow, seen)
    culprits = culprits_of(store, attempt, joined[:MAX_CULPRITS], judgement.throttled, judgement.drifts, seen)
    done()
    extra = []
    for find in ANALYSES:
        extra.append(find(store, attempt, seen))
        done()
    merged = merge(culprits, extra)
    if all(one.kind in OF_ALL for one in merged):
        extra.append(find_slowed(store, attempt, seen, DEFAULT_THRESHOLDS.many_peers))
        merged = merge(culprits, extra)
    merged = with_hardware(store, attempt, merged)
    named = {rank for one in merged for rank in one.ranks}
    blocking = [*judgement.blocking, *(note for one in extra for note in one.blocking)]
    if any(one.kind not in OF_ALL or one.pattern == Pattern.DRIFTING for one in merged):  # they may explain it
        blocking = [note for note in blocking if note.signal != GROWTH_SIGNAL]
    own_notes = [note for note in judgement.abstained if note not in judgement.blocking]
    notes = [*blocking, *own_notes, *(note for one in extra for note in one.abstained)]
    if len(joined) > MAX_CULPRITS:
        more = len(joined) - MAX_CULPRITS
        notes.append(Abstention("culprits", f"{more} more findings cost less and are not listed"))
    kept = None if replays is None or steps is not None else replays.of(attempt)
    whatif, not_replayed = whatif_of(store, attempt, seen, of_all_ranks=ranks is None, kept=kept)
    done()
    arrivals = waited_for(store, attempt, seen, merged[0].steps if merged else None)
    done()
    return StragglerVerdict(
        run=attempt.run,
        attempt=attempt.attempt,
        data_age_s=store.data_age_s(attempt),
        verdict=outcome(merged, blocking),
        culprits=merged,
        abstained=tuple(_unique([*notes, *not_replayed])),
        slowdown=None if whatif is None else whatif.slowdown,
        m_w=None if whatif is None else whatif.m_w,
        m_s=None if whatif is None else whatif.m_s,
        whatif=whatif,
        warnings=tuple(one for one in judgement.warnings if one.rank not in named),
        visible_ratio=judgement.visible_ratio,
        arrivals=arrivals,
    )


def judge(
    seen: Observations,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    *,
    shapes: WindowShapes | None = None,
    cores: Cores | None = None,
    tokens: UnequalTokens | None = None,
) -> Judgement:
    """Judge observations: findings of all segments of work, and healthy only where a straggler would have shown.

    ``shapes`` reads the histograms of windows, where rollups were read; ``cores`` tells who only waited for a core, and
    ``tokens`` what a rank's number of them explains.
    """
    width = seen.source.step_width
    thresholds = thresholds.for_width(width)
    blocking = data_missing(seen, thresholds)
    if not seen.cells:
        return Judgement(Outcome.INSUFFICIENT, (), tuple(blocking), blocking=tuple(blocking))
    waiting = measured_waiting(seen)
    judgements = {(one.name, one.kind): judge_segment(one, seen, waiting, thresholds, shapes) for one in seen.cells}
    drifts = _drifts(seen, thresholds)
    apart = {(one.name, one.kind): stands_apart(one, seen) for one in seen.cells if is_collecting(one)}
    everything = [
        finding
        for key, one in judgements.items()
        for finding in one.findings
        if key not in apart or finding.rank in apart[key]
    ]
    light = [finding for (_, kind), one in judgements.items() if kind in MAIN_KINDS for finding in one.light]
    everything += costly_together(light, everything, thresholds)
    short = [finding for (_, kind), one in judgements.items() if kind == SegmentKind.COMPUTE for finding in one.brief]
    everything += in_all_compute(short, everything, main_compute(judgements), len(seen.ranks), thresholds)
    explained: list[Abstention] = []
    raised = {one.rank for one in everything}
    if tokens is not None and everything:
        everything, explained = tokens.sift(everything)
    if cores is not None and everything:
        everything, waiting_for_cores = without_waiting(everything, seen, cores)
        explained += waiting_for_cores
    findings = per_rank(everything)
    explained += [] if tokens is None else tokens.left_out()
    blocking += [*explained, *not_judged(judgements, seen), *_quick(judgements, seen, thresholds)]
    if not findings and not drifts:
        growth = find_growth(seen.step_ms, seen.steps)
        note = find_longer(seen.step_ms, seen.steps, width) if growth is None else growth.note
        blocking += [] if note is None else [note]
    notes = [note for one in judgements.values() for note in one.abstained]
    notes += [*hidden_below(judgements, thresholds), *left_out(seen, thresholds, list(drifts.values()))]
    notes += [] if tokens is None else tokens.notes()
    word = Outcome.FINDINGS if findings or drifts else Outcome.INSUFFICIENT if blocking else Outcome.HEALTHY
    slow = frozenset((finding.rank, finding.segment) for finding in everything)
    return Judgement(
        word,
        tuple(findings),
        tuple(_unique([*blocking, *notes])),
        slow,
        tuple(drifts.values()),
        throttled_ranks(everything, judgements),
        tuple(blocking),
        _warnings(judgements, seen, raised, thresholds, tokens),
        visible_ratio(judgements, thresholds),
    )


def _warnings(
    judgements: dict[tuple[str, str], SegmentJudgement],
    seen: Observations,
    accused: set[int],
    thresholds: Thresholds,
    tokens: UnequalTokens | None,
) -> tuple[EarlyWarning, ...]:
    """Ranks that have become slower than they were at a main segment of the device's work, and are not accused, or for
    want of cores not; nobody whose tokens explain it."""
    main, kinds = dict[str, Comparison](), dict[str, str]()
    for (name, kind), one in judgements.items():
        if kind in MAIN_KINDS and one.cost_share >= MAIN_SEGMENT_SHARE and one.comparison is not None:
            main[name], kinds[name] = one.comparison, kind

    def explained(name: str, row: int, before: slice, after: slice) -> float:
        return 1.0 if tokens is None else tokens.explained_change(row, [(name, kinds[name])], before, after)

    found = find_warnings(main, seen.ranks, seen.steps, seen.step_ms, accused, thresholds, explained)
    return found if found or accused else _own_change(judgements, seen, thresholds, tokens)


def _own_change(
    judgements: dict[tuple[str, str], SegmentJudgement],
    seen: Observations,
    thresholds: Thresholds,
    tokens: UnequalTokens | None,
) -> tuple[EarlyWarning, ...]:
    """A rank that became slower in all its main compute together, where it has too few peers to tell by how fast they
    are; nobody where waiting may be hidden in it, or whose tokens explain it."""
    main = main_compute(judgements)
    if seen.source.step_width > 1 or any(judgements[key].comparison is None for key in main):
        return ()
    cells = [one for one in seen.cells if (one.name, one.kind) in main]
    roles = seen.placement.roles(seen.ranks)
    change = find_own_change(total_work(cells, roles)) if cells else None
    if change is None or not has_few_peers(seen, change.row, thresholds.many_peers):
        return ()
    names = " and ".join(sorted(one.name for one in cells))
    ratio = round(math.exp(change.effect), 4)
    parts = slice(0, change.first), slice(change.first, None)
    if tokens is not None and ratio < WARNED.ratio * tokens.explained_change(change.row, main, *parts):
        return ()
    return (EarlyWarning(int(seen.ranks[change.row]), names, int(seen.steps[change.first]), ratio),)


def _quick(
    judgements: dict[tuple[str, str], SegmentJudgement], seen: Observations, thresholds: Thresholds
) -> list[Abstention]:
    """Main segments of the device's work at which a few ranks are quicker than all others: these may be slow."""
    notes = []
    for cells in seen.cells:
        one = judgements[cells.name, cells.kind]
        if one.comparison is not None and cells.kind in MAIN_KINDS and one.cost_share >= MAIN_SEGMENT_SHARE:
            notes.append(quick_ranks(one.comparison, cells, seen.placement.roles(cells.ranks), thresholds))
    return [note for note in notes if note is not None]


def _drifts(seen: Observations, thresholds: Thresholds) -> dict[tuple[str, str], JobDrift]:
    """What drifts on nearly all ranks, by name and kind of the segment."""
    found = (find_drift(one, seen, thresholds) for one in seen.cells if is_collecting(one))
    return {(one.segment, one.kind): one for one in found if one is not None}


def _unique(abstained: Iterable[Abstention]) -> list[Abstention]:
    return list(dict.fromkeys(abstained))
