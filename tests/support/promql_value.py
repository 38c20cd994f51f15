"""The value of an expression of PromQL over a history of samples: the part of the language that our alerts are made of.

Without subqueries, `rate` and extrapolation: `increase` is the difference of the last and the first sample.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, Call, MatchOp, NumberLiteral, ParenExpr, VectorSelector

Labels = frozenset[tuple[str, str]]
Series = Mapping[str, Mapping[Labels, float]]
Vector = dict[Labels, float]
History = Sequence[tuple[float, Series]]
"""Scrapes, the oldest first: moment (s), and name to labels to value."""

LOOKBACK_S = 300.0

_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "!=": operator.ne,
}  # fmt: skip
_COMPUTED: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul, "+": operator.add, "-": operator.sub, "/": operator.truediv,
}  # fmt: skip
_OVER_TIME: dict[str, Callable[[list[float]], float | None]] = {
    "max_over_time": max,
    "avg_over_time": lambda values: sum(values) / len(values),
    "increase": lambda values: values[-1] - values[0] if len(values) > 1 else None,
}
_AGGREGATED: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "sum": sum}


def value(expression: str, history: History, at_s: float) -> Vector:
    """Labels to value at a moment. NotImplementedError for what is not of that part."""
    found = _value(promql_parser.parse(expression), history, at_s)
    assert isinstance(found, dict)
    return found


def _value(expr: Any, history: History, at_s: float) -> Vector | float:
    if isinstance(expr, NumberLiteral):
        return float(expr.val)
    if isinstance(expr, ParenExpr):
        return _value(expr.expr, history, at_s)
    if isinstance(expr, VectorSelector):
        return {labels: values[-1] for labels, values in _samples(expr, history, at_s, LOOKBACK_S).items()}
    if isinstance(expr, Call) and expr.func.name in _OVER_TIME:
        (matrix,) = expr.args
        samples = _samples(matrix.vector_selector, history, at_s, matrix.range.total_seconds())
        over = {labels: _OVER_TIME[expr.func.name](values) for labels, values in samples.items()}
        return {labels: one for labels, one in over.items() if one is not None}
    if isinstance(expr, AggregateExpr) and str(expr.op) in _AGGREGATED and expr.modifier is not None:
        inner = _value(expr.expr, history, at_s)
        groups: dict[Labels, list[float]] = {}
        assert isinstance(inner, dict)
        for labels, one in inner.items():
            groups.setdefault(_of(labels, expr.modifier.labels), []).append(one)
        return {labels: _AGGREGATED[str(expr.op)](values) for labels, values in groups.items()}
    if isinstance(expr, BinaryExpr):
        return _binary(expr, _value(expr.lhs, history, at_s), _value(expr.rhs, history, at_s))
    raise NotImplementedError(str(expr))


def _samples(selector: Any, history: History, at_s: float, reach_s: float) -> dict[Labels, list[float]]:
    offset = selector.offset or timedelta()
    end_s = at_s - offset.total_seconds()
    found: dict[Labels, list[float]] = {}
    for moment_s, series in history:
        if end_s - reach_s < moment_s <= end_s:
            for labels, one in series.get(selector.name, {}).items():
                if all(_fits(matcher, dict(labels)) for matcher in selector.matchers.matchers):
                    found.setdefault(labels, []).append(one)
    return found


def _fits(matcher: Any, labels: Mapping[str, str]) -> bool:
    told = labels.get(matcher.name, "")
    if matcher.op in (MatchOp.Re, MatchOp.NotRe):
        return bool(re.fullmatch(matcher.value, told)) is bool(matcher.op == MatchOp.Re)
    return matcher.name == "__name__" or (told == matcher.value) is bool(matcher.op == MatchOp.Equal)


def _of(labels: Labels, names: Sequence[str] | None) -> Labels:
    return labels if names is None else frozenset(one for one in labels if one[0] in names)


def _binary(expr: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    symbol, on = str(expr.op), None
    if expr.modifier is not None and expr.modifier.matching is not None:
        on = list(expr.modifier.matching.labels)
    if isinstance(left, float):
        if not isinstance(right, dict) or symbol not in _COMPUTED:
            raise NotImplementedError(str(expr))
        return {labels: _COMPUTED[symbol](left, one) for labels, one in right.items()}
    if isinstance(right, float):
        pairs = {labels: (one, right) for labels, one in left.items()}
    else:
        others = {_of(labels, on): one for labels, one in right.items()}
        if symbol in ("and", "unless"):
            return {labels: one for labels, one in left.items() if (_of(labels, on) in others) is (symbol == "and")}
        if symbol == "or":
            return {**{labels: one for labels, one in right.items() if labels not in left}, **left}
        pairs = {labels: (one, others[key]) for labels, one in left.items() if (key := _of(labels, on)) in others}
    if symbol in _COMPARED:
        return {labels: one for labels, (one, other) in pairs.items() if _COMPARED[symbol](one, other)}
    return {labels: _COMPUTED[symbol](one, other) for labels, (one, other) in pairs.items()}
