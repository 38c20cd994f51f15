"""A question's SQL in the dialect of an engine: sqlglot for the common ground, own words where engines differ.

Questions are written in DuckDB's dialect. sqlglot translates some functions without a word into what the other engine
does not have, so that questions use few of them; the words below stand for what each engine says in its own way, and
the tests ask every question of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import sqlglot
from sqlglot import expressions as exp

from ..profiler.errors import MegascopeError


class Dialect(StrEnum):
    """What an engine speaks."""

    DUCKDB = "duckdb"
    SPARK = "spark"


Arguments = Sequence[str]

WORDS: dict[str, dict[Dialect, Callable[[Arguments], str]]] = {
    "KEYS_IN_ORDER": {
        Dialect.DUCKDB: lambda a: f"coalesce(list({a[0]} ORDER BY {a[0]}) FILTER (WHERE {a[2]}), [])",
        Dialect.SPARK: lambda a: (
            f"transform(array_sort(collect_list(CASE WHEN {a[2]} THEN struct({a[0]} AS k, {a[1]} AS v) END)), x -> x.k)"
        ),
    },
    "VALUES_IN_ORDER": {
        Dialect.DUCKDB: lambda a: f"coalesce(list({a[1]} ORDER BY {a[0]}) FILTER (WHERE {a[2]}), [])",
        Dialect.SPARK: lambda a: (
            f"transform(array_sort(collect_list(CASE WHEN {a[2]} THEN struct({a[0]} AS k, {a[1]} AS v) END)), x -> x.v)"
        ),
    },
    "HOLDS_TEXT": {
        Dialect.DUCKDB: lambda a: f"contains({a[0]}, {a[1]})",
        Dialect.SPARK: lambda a: f"(instr({a[0]}, {a[1]}) > 0)",
    },
}
"""Words of the questions that each engine says differently.

``KEYS_IN_ORDER(key, value, condition)`` and ``VALUES_IN_ORDER``: of the rows of a group that meet the condition, the
keys in ascending order, and the values in the order of their keys; an empty list without any. ``HOLDS_TEXT(text,
part)``: whether a text holds another.
"""


def translate(question: str, dialect: Dialect) -> str:
    """A question in an engine's dialect. Raises MegascopeError for SQL outside of the common ground."""
    try:
        parsed = sqlglot.parse_one(question, read="duckdb")
        parsed = parsed.transform(lambda node: _in_own_words(node, dialect))
        return parsed.sql(dialect=dialect.value, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError as error:
        first = str(error).splitlines()[0]
        raise MegascopeError(f"The question cannot be said in the dialect of {dialect}: {first}.") from error


def _in_own_words(node: exp.Expr, dialect: Dialect) -> exp.Expr:
    if not isinstance(node, exp.Anonymous) or node.name.upper() not in WORDS:
        return node
    arguments = [one.sql(dialect=dialect.value) for one in node.expressions]
    return sqlglot.parse_one(WORDS[node.name.upper()][dialect](arguments), read=dialect.value)
