"""What an expression of PromQL asks for, held against a scrape: its series, their labels, and the values it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, MatchOp, VectorSelector

from .scraping import Scrape

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to every series."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An expression: the labels that its result has, and what is wrong with it."""

    labels: frozenset[str]
    problems: tuple[str, ...]


def resolve(expression: str, scrape: Scrape, variables: Mapping[str, str]) -> Asked:
    """Parse an expression, with variables of Grafana as given, and look for all that it names."""
    for name, value in variables.items():
        expression = expression.replace(name, value)
    problems: list[str] = []
    labels = _labels(promql_parser.parse(expression), scrape, problems)
    return Asked(labels, tuple(problems))


def _labels(expr: Any, scrape: Scrape, problems: list[str]) -> frozenset[str]:
    """Labels that the result of an expression has."""
    if isinstance(expr, VectorSelector):
        return _of_selector(expr, scrape, problems)
    if isinstance(expr, AggregateExpr):
        inner = _labels(expr.expr, scrape, problems)
        if expr.modifier is None:  # topk and bottomk keep what they choose; others leave no label
            return inner if str(expr.op) in ("topk", "bottomk") else frozenset()
        by = frozenset(expr.modifier.labels)
        if by - inner:
            problems.append(f"by ({', '.join(sorted(by - inner))}) of {expr}")
        return by
    if isinstance(expr, BinaryExpr):
        sides = [_labels(side, scrape, problems) for side in (expr.lhs, expr.rhs)]
        matching = expr.modifier.matching if expr.modifier is not None else None
        for name in matching.labels if matching is not None else ():
            problems.extend(f"on ({name}) of {expr}" for side in sides if side and name not in side)
        return sides[0] | sides[1] if str(expr.op) == "or" else sides[0]
    children = [getattr(expr, "expr", None), getattr(expr, "vector_selector", None), *getattr(expr, "args", ())]
    none: frozenset[str] = frozenset()
    return none.union(*(_labels(child, scrape, problems) for child in children if child is not None))


def _of_selector(selector: VectorSelector, scrape: Scrape, problems: list[str]) -> frozenset[str]:
    series = scrape.labels(selector.name or "")
    if not series:
        problems.append(f"no series {selector.name}")
        return frozenset()
    names = OF_PROMETHEUS.union(*series)
    matchers = [one for one in selector.matchers.matchers if one.name != "__name__"]
    problems += [f"{selector.name} has no label {one.name}" for one in matchers if one.name not in names]
    if not any(all(_fits(one, labels) for one in matchers) for labels in series):
        problems.append(f"no series fits {selector}")
    return names


def _fits(matcher: Any, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op in (MatchOp.Re, MatchOp.NotRe):
        return bool(re.fullmatch(matcher.value, value)) is bool(matcher.op == MatchOp.Re)
    return bool(value == matcher.value) is bool(matcher.op == MatchOp.Equal)
