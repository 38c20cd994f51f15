"""Noise tables from a recorded trace: how durations scatter around their peers', on three levels, as quantiles.

Input are rows of a trace in the form of ByteDance's published what-if traces: dp_rank, stage, step, optype, start_ts,
duration, seq_id, mb_id. Peers are the operations of one kind, stage and step. Of an operation's ratio to its peers'
median, the part that its worker keeps in all steps (median of its steps), what it keeps in one step (median of the
step, over the former), and the rest are told apart: that is the serial correlation of durations within a step. What is
left within a step is drawn independently: its lag-1 correlation was +0.17 in one trace and -0.2 in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...profiler.errors import MegascopeError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEVELS = (
    0.0, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75,
    0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 1.0,
)  # fmt: skip
"""Probabilities of the quantiles in a table: denser at both ends, where the tails are."""

FEW_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Those of the level of workers, of which a trace has few."""

COMPUTE = {"forward": "forward-compute", "backward": "backward-compute", "optimizer": "optimizer"}
COLLECTIVES = ("grads-reduce-scatter", "params-all-gather")
P2P = (("forward-send", "forward-recv", 1), ("backward-send", "backward-recv", -1))
COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
COMPLETION = "completion_us"
"""Not a ratio: microseconds from the first member's end of a collective to that of each other one."""

FAULTY_RATIO = 1.15
"""A worker that is slower than its peers by this is a fault, not noise, and left out."""


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """Quantiles of one kind's ratios on the three levels; an empty level is exactly 1."""

    rank: tuple[float, ...] = ()
    rank_step: tuple[float, ...] = ()
    span: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ratios:
    rank: FloatArray
    rank_step: FloatArray
    span: FloatArray


def fit_noise(traces: Sequence[pa.Table]) -> dict[str, NoiseTable]:
    """Tables by kind (forward, backward, optimizer, p2p, collective), each trace with the same weight.

    `COMPLETION` is that of the trace whose ends agree best: in others the hosts' clocks disagree too.
    Raises MegascopeError for a table that is no such trace.
    """
    parts: dict[str, list[_Ratios]] = {}
    for trace in traces:
        with np.errstate(divide="ignore", invalid="ignore"):  # what has no ratio is found below
            found_ratios = _ratios_of(_columns(trace))
        for kind, ratios in found_ratios.items():
            parts.setdefault(kind, []).append(_checked(kind, ratios))
    if COMPLETION in parts:
        parts[COMPLETION] = [min(parts[COMPLETION], key=lambda one: float(np.median(one.span)))]
    return {
        kind: NoiseTable(
            _quantiles([one.rank for one in found], FEW_LEVELS),
            _quantiles([one.rank_step for one in found], LEVELS),
            _quantiles([one.span for one in found], LEVELS),
        )
        for kind, found in parts.items()
    }


def _checked(kind: str, ratios: _Ratios) -> _Ratios:
    """The ratios; MegascopeError where peers took no time at all, or less, so that there are none."""
    if not all(np.isfinite(one).all() and (one >= 0).all() for one in (ratios.rank, ratios.rank_step, ratios.span)):
        raise MegascopeError(
            f"The noise file's {kind} operations have peers that took no time: give a what-if trace as it was recorded."
        )
    return ratios


def _columns(trace: pa.Table) -> dict[str, npt.NDArray[np.generic]]:
    missing = [name for name in COLUMNS if name not in trace.column_names]
    if missing:
        raise MegascopeError(
            f"The noise file lacks the column {missing[0]}: give a what-if trace with {', '.join(COLUMNS)}."
        )
    if not trace.num_rows:
        raise MegascopeError("The noise file has no rows: give a what-if trace of a job that ran.")
    columns = {name: _numbers(trace, name) for name in COLUMNS if name != "optype"}
    columns["optype"] = np.asarray(trace["optype"].to_pylist(), dtype=object)
    known = {*COMPUTE.values(), *COLLECTIVES, *(name for send, receive, _ in P2P for name in (send, receive))}
    if known.isdisjoint(columns["optype"].tolist()):
        raise MegascopeError(f"The noise file has no operation that noise is known of: use {', '.join(sorted(known))}.")
    return columns


def _numbers(trace: pa.Table, name: str) -> npt.NDArray[np.generic]:
    """A column; MegascopeError where it is not all finite numbers."""
    column = trace[name]
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise MegascopeError(
            f"The noise file's column {name} is not all numbers ({column.type}, {column.null_count} of "
            f"{len(column)} missing): give a what-if trace without gaps."
        )
    values: npt.NDArray[np.generic] = column.to_numpy()
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise MegascopeError(
            f"The noise file's column {name} has values that cannot be: give a recorded what-if trace."
        )
    return values


def _ratios_of(trace: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, _Ratios]:
    result = {}
    for kind, optype in COMPUTE.items():
        here = trace["optype"] == optype
        if here.any():
            keys = {name: trace[name][here].astype(np.int64) for name in ("stage", "step", "dp_rank")}
            result[kind] = _three_levels(keys, trace["duration"][here].astype(np.float64))
    ratios, completions = _collective_ratios(trace)
    single = {"p2p": _p2p_ratios(trace), "collective": ratios, COMPLETION: completions}
    none = np.zeros(0)
    return result | {kind: _Ratios(none, none, ratios) for kind, ratios in single.items() if len(ratios)}


def _three_levels(keys: Mapping[str, IntArray], duration: FloatArray) -> _Ratios:
    peers = _medians(_numbered(keys["stage"], keys["step"]), duration)
    if not (peers > 0).all():
        raise MegascopeError(
            "The noise file has a step in which work took no time: give a what-if trace as it was recorded."
        )
    ratio = duration / peers
    worker = _numbered(keys["stage"], keys["dp_rank"])
    sound = _medians(worker, ratio) < FAULTY_RATIO
    keys = {name: values[sound] for name, values in keys.items()}
    duration, worker = duration[sound], worker[sound]
    ratio = duration / _medians(_numbered(keys["stage"], keys["step"]), duration)
    in_step = _medians(_numbered(worker, keys["step"]), ratio)
    chronic = _medians(worker, in_step)
    _, first = np.unique(worker, return_index=True)
    _, first_of_step = np.unique(_numbered(worker, keys["step"]), return_index=True)
    rest = ratio / in_step
    spans = rest if np.ptp(rest) > 1e-9 else np.zeros(0)  # one a step: nothing is left within it
    return _Ratios(chronic[first], (in_step / chronic)[first_of_step], spans)


def _p2p_ratios(trace: Mapping[str, npt.NDArray[np.generic]]) -> FloatArray:
    """Transfer times (end of the receive - start of the later end) over the median of their stage pair and way."""
    parts = []
    for send, receive, offset in P2P:
        sides = []
        for optype, shift in ((send, offset), (receive, 0)):
            here = np.flatnonzero(trace["optype"] == optype)
            stage = trace["stage"][here].astype(np.int64) + shift
            key = _encoded(trace["dp_rank"][here], trace["step"][here], trace["seq_id"][here], stage + 1)
            sides.append((key, here, stage))
        (sent, sender, stage), (received, receiver, _) = sides
        _, left, right = np.intersect1d(sent, received, return_indices=True)
        begin = trace["start_ts"].astype(np.float64)
        start = np.maximum(begin[sender[left]], begin[receiver[right]])
        transfer = begin[receiver[right]] + trace["duration"][receiver[right]].astype(np.float64) - start
        known = transfer > 0
        parts.append(transfer[known] / _medians(stage[left][known], transfer[known]))
    return np.concatenate(parts)


def _collective_ratios(trace: Mapping[str, npt.NDArray[np.generic]]) -> tuple[FloatArray, FloatArray]:
    """Transfer times (latest end - latest start of the group) over the median of their stage and kind.

    And by how many microseconds members end later than the first of their group.
    """
    parts, completions = [], []
    for optype in COLLECTIVES:
        here = trace["optype"] == optype
        start = trace["start_ts"][here].astype(np.float64)
        end = start + trace["duration"][here].astype(np.float64)
        stage = trace["stage"][here].astype(np.int64)
        group = _numbered(stage, trace["step"][here].astype(np.int64))
        count = int(group.max()) + 1 if len(group) else 0
        latest = [np.full(count, -np.inf), np.full(count, -np.inf)]
        earliest = np.full(count, np.inf)
        np.minimum.at(earliest, group, end)
        later = (end - earliest[group]) * 1e6
        completions.append(later[later > 0])
        np.maximum.at(latest[0], group, start)
        np.maximum.at(latest[1], group, end)
        of_group = np.zeros(count, np.int64)
        of_group[group] = stage
        transfer = latest[1] - latest[0]
        known = transfer > 0
        parts.append(transfer[known] / _medians(of_group[known], transfer[known]))
    return np.concatenate(parts), np.concatenate(completions)


def _encoded(*keys: npt.NDArray[np.generic]) -> IntArray:
    """Several small whole numbers as one."""
    result = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        result = result * 100_003 + key.astype(np.int64)
    return result


def _numbered(*keys: IntArray) -> IntArray:
    _, number = np.unique(_encoded(*keys), return_inverse=True)
    return number.astype(np.int64)


def _medians(group: IntArray, values: FloatArray) -> FloatArray:
    """The median of each value's group."""
    _, number = np.unique(group, return_inverse=True)
    order = np.lexsort((values, number))
    counts = np.bincount(number)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    ordered = values[order]
    median: FloatArray = 0.5 * (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2])
    return median[number]


def _quantiles(parts: Sequence[FloatArray], levels: Sequence[float]) -> tuple[float, ...]:
    """Quantiles of all parts together, each with the same weight however long it is; none for no values."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return ()
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in parts])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) - 0.5 * weights[order]
    found = np.interp(np.asarray(levels) * weights.sum(), reached, values[order])
    return tuple(float(value) for value in np.round(found, 4))
