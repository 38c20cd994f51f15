"""The Timeline's payloads: the spans of the shown ranks and steps as arrays, and what leads from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ...profiler.errors import MegascopeError
from ..absence import why_no_spans
from ..alignment import clocks_of
from ..binary import pack
from ..heat.data import place_texts, placement_of
from ..view import View, ranks_text
from ..workbench import Workbench
from .choice import SpanChoice, choose_spans
from .links import messages_of
from .outline import has_outline
from .stamp import spans_stamp
from .steps import StepStarts, step_starts
from .table import FLOATS, SpanTable, load_spans
from .whole import whole_links


def spans_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """What the timeline's canvas needs first; times are ns from the base (the first start), NaN for what is missing.

    Spans come sorted by lane, start and longest first. Without any, ``meta.absent`` says why, as long as there is a
    coarser level to show. Raises UsageError where the choice holds too many.
    """
    return _payload(bench, attempt, choose_spans(view, bench, attempt))


def links_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """What `spans_payload` leaves out because it takes longer, by indices of the same spans.

    ``waiting`` (ns from a span's start), ``awaited`` (the rank that came last, NaN: none) and ``cause`` (its span, -1:
    not shown); the critical path as ``path_span``, ``path_begin`` and ``path_end``.
    """
    choice = choose_spans(view, bench, attempt)
    key = ("links payload", attempt.run, attempt.attempt, choice)
    return bench.cached(key, lambda: _links(bench, attempt, choice))


def _key(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> str:
    return f"{attempt.run}|{attempt.attempt}|{choice.ranks}|{choice.steps}|{spans_stamp(bench, attempt, choice)}"


def _payload(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> bytes:
    spans = load_spans(bench, attempt, choice)
    starts = step_starts(bench, attempt, choice)
    if spans is None:
        absent = why_no_spans(bench, attempt, choice.steps)
        if starts is None or not has_outline(bench, attempt):
            raise MegascopeError(absent)
        return pack({**_about(bench, attempt, choice, starts, starts.first_ns()), **_NOTHING, "absent": absent}, _EMPTY)
    sends, receives = messages_of(spans)
    arrays: dict[str, npt.NDArray[Any]] = {name: spans.columns[name] for name in ("lane", "segment", "start", *FLOATS)}
    arrays |= {name: spans.columns[name].astype(np.uint8) for name in ("status", "clock")}
    arrays |= {"arrow_from": sends.astype(np.int32), "arrow_to": receives.astype(np.int32)}
    meta = {
        "lanes": [list(lane) for lane in spans.lanes],
        "segments": [{"name": each.name, "kind": each.kind, "axis": each.axis} for each in spans.segments],
        "statuses": list(spans.words["status"]),
        "clocks": list(spans.words["clock"]),
        "missing": _missing(choice, spans),
    }
    return pack(_about(bench, attempt, choice, starts, spans.base_ns) | meta, arrays)


_NOTHING: Mapping[str, Any] = {"lanes": [], "segments": [], "statuses": [], "clocks": []}
_EMPTY: Mapping[str, npt.NDArray[Any]] = {
    **{name: np.zeros(0, np.int32) for name in ("lane", "segment", "arrow_from", "arrow_to")},
    "start": np.zeros(0),
    **{name: np.zeros(0, kind) for name, (_, kind) in FLOATS.items()},
    **{name: np.zeros(0, np.uint8) for name in ("status", "clock")},
}


def _missing(choice: SpanChoice, spans: SpanTable) -> str:
    """Which of the shown ranks have no spans, as a sentence; empty where all have."""
    have = set(np.unique(spans.columns["rank"]).tolist())
    without = [rank for rank in choice.ranks if rank not in have]
    if not without:
        return ""
    steps = f"step {choice.steps[0]}" if choice.steps[0] == choice.steps[1] else "these steps"
    return f"No raw spans of rank{'s' if len(without) > 1 else ''} {ranks_text(without, 12)} in {steps}."


def _about(
    bench: Workbench, attempt: Attempt, choice: SpanChoice, starts: StepStarts | None, base_ns: int
) -> dict[str, Any]:
    placement = placement_of(bench, attempt)
    return {
        "key": _key(bench, attempt, choice),
        "base_ns": str(base_ns),
        "origin": starts.first_ns() - base_ns if starts is not None else 0,
        "rank": choice.rank,
        "axis": choice.axis,
        "ranks": list(choice.ranks),
        "range": f"{choice.steps[0]}:{choice.steps[1]}",
        "hosts": _host_texts(bench, attempt, {rank: placement.host_of(rank) for rank in choice.ranks}),
        "places": dict(zip(choice.ranks, place_texts(placement, choice.ranks), strict=True)),
        "steps": starts.rows(base_ns) if starts is not None else [],
        "uncertainty": _uncertainty(bench, attempt, choice, base_ns),
    }


def _host_texts(bench: Workbench, attempt: Attempt, hosts: Mapping[int, str | None]) -> dict[int, str | None]:
    """The ranks' hosts, and of several hosts those that cannot be aligned with the others."""
    clocks = clocks_of(bench, attempt)
    if len(set(hosts.values())) <= 1:
        return dict(hosts)
    return {
        rank: host if host is None or rank in clocks else f"{host} (by its own clock)" for rank, host in hosts.items()
    }


def _uncertainty(bench: Workbench, attempt: Attempt, choice: SpanChoice, moment_ns: int) -> dict[int, int | None]:
    """How far each rank's times may be off the reference clock, in ns; None where that is not known.

    0 in a job of one host, whose times need no alignment.
    """
    placement, clocks = placement_of(bench, attempt), clocks_of(bench, attempt)
    if len(set(placement.hosts)) <= 1:
        return dict.fromkeys(choice.ranks, 0)
    return {rank: clocks[rank].uncertainty_ns(moment_ns) if rank in clocks else None for rank in choice.ranks}


def _links(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> bytes:
    spans = load_spans(bench, attempt, choice)
    if spans is None:
        raise MegascopeError(why_no_spans(bench, attempt, choice.steps))
    whole = whole_links(bench, attempt, choice, spans)
    links, path = whole.links, whole.path
    awaited = links.awaited.astype(np.float32)
    awaited[links.awaited < 0] = np.nan
    arrays: dict[str, npt.NDArray[Any]] = {
        "waiting": links.waiting,
        "awaited": awaited,
        "cause": links.cause.astype(np.int32),
        "path_span": path.spans,
        "path_begin": path.begins,
        "path_end": path.ends,
    }
    meta = {"leaves": path.leaves, "whole": whole.is_whole, "shares": whole.shares}
    return pack({"key": _key(bench, attempt, choice), **meta}, arrays)
