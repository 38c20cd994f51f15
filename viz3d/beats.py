"""Rows of `heartbeats` to the states of ranks: read in columns, and what rows have in common is made once.

The rows of a fleet hold hundreds of thousands of segments in flight, and between two looks at a job that stands still
hardly any of them changes. So lists that are equal are found by the bytes of their numbers, and objects are made for
the first of them only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .states import Flight, RankState

Ints = npt.NDArray[np.int64]

COLUMNS = ("rank", "moment_ns", "step", "in_flight", "progress", "process_state", "spans")
"""What a state is made of, by the names that `heartbeats` has for it."""

_FLIGHT = (
    "segment", "kind", "group", "sequence", "peer", "microbatch", "begun_ns", "size_bytes", "waiting",
)  # fmt: skip
_PROGRESS = ("group", "issued", "completed")


def states_of(beats: pa.Table) -> list[RankState]:
    """The state of each row, in their order. Rows with equal lists share one tuple of flights, or one progress."""
    in_flight = _Lists.of(beats.column("in_flight"), _FLIGHT)
    progress = _Lists.of(beats.column("progress"), _PROGRESS)
    flights, done = _flights(in_flight), _progress(progress)
    plain = (beats.column(name).to_pylist() for name in ("rank", "moment_ns", "step", "process_state", "spans"))
    return [
        RankState(rank, moment_ns, step, flights[flying], done[known], process_state, spans)
        for rank, moment_ns, step, process_state, spans, flying, known in zip(
            *plain, in_flight.first, progress.first, strict=True
        )
    ]


def _flights(lists: _Lists) -> dict[int, tuple[Flight, ...]]:
    """The segments in flight of each distinct list, by its number."""
    segments, kinds, *others = lists.values()
    made = list(map(Flight, _or_empty(segments), _or_empty(kinds), *others))
    return {number: tuple(made[begin:end]) for number, begin, end in lists.distinct()}


def _or_empty(names: Sequence[str | None]) -> Iterator[str]:
    return (name or "" for name in names)


def _progress(lists: _Lists) -> dict[int, dict[int, tuple[int, int]]]:
    """Group -> last sequence numbers (issued, completed; 0: none yet) of each distinct list, by its number."""
    groups, issued, completed = lists.values()
    pairs = [(one or 0, other or 0) for one, other in zip(issued, completed, strict=True)]
    return {
        number: dict(zip(groups[begin:end], pairs[begin:end], strict=True))
        for number, begin, end in lists.distinct()
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lists:
    """A column of lists of structs, flat. The elements of list i are those from ``starts[i]`` to ``starts[i + 1]``.

    ``numbers`` (int64, elements x fields + 1) holds the values, 0 where they are NULL; of a text its place in ``texts``
    (by field), of a boolean 0 or 1 (the fields in ``booleans``). The last column has a bit a field: whether it is not
    NULL. ``first`` is, for each list, the number of the first list that equals it.
    """

    starts: Ints
    numbers: Ints
    texts: dict[int, list[str]]
    booleans: frozenset[int]
    first: list[int]

    @classmethod
    def of(cls, column: pa.ChunkedArray, fields: Sequence[str]) -> _Lists:
        """The named fields of each struct, in this order; one that the structs lack is NULL throughout."""
        lists = column.combine_chunks()
        structs = lists.flatten()
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        names = [structs.type.field(at).name for at in range(structs.type.num_fields)]
        found = dict(zip(names, structs.flatten(), strict=True))
        numbers = np.zeros((len(structs), len(fields) + 1), np.int64)
        texts: dict[int, list[str]] = {}
        booleans = set()
        for at, name in enumerate(fields):
            values = found.get(name, pa.nulls(len(structs), pa.int64()))
            if pa.types.is_string(values.type):
                encoded = values.dictionary_encode()
                texts[at], values = encoded.dictionary.to_pylist(), encoded.indices
            elif pa.types.is_boolean(values.type):
                booleans.add(at)
            numbers[:, at] = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
            numbers[:, -1] |= pc.is_valid(values).to_numpy(zero_copy_only=False).astype(np.int64) << at
        return cls(starts, numbers, texts, frozenset(booleans), _first_alike(starts, numbers))

    def distinct(self) -> Iterator[tuple[int, int, int]]:
        """The number of each distinct list, and where its elements begin and end in `values`."""
        end = 0
        for number in _distinct(self.first):
            begin, end = end, end + int(self.starts[number + 1] - self.starts[number])
            yield number, begin, end

    def values(self) -> list[list[Any]]:
        """One Python list a field: the values of the elements of all distinct lists; None for NULL."""
        lengths = np.diff(self.starts)
        is_distinct = np.zeros(len(lengths), bool)
        is_distinct[_distinct(self.first)] = True
        rows = self.numbers[np.repeat(is_distinct, lengths)]
        columns = []
        for at in range(rows.shape[1] - 1):
            numbers = rows[:, at]
            if at in self.texts:
                values = np.array([*self.texts[at], None], object)[numbers]
            else:
                values = (numbers != 0 if at in self.booleans else numbers).astype(object)
            values[(rows[:, -1] >> at & 1) == 0] = None
            columns.append(values.tolist())
        return columns


def _first_alike(starts: Ints, numbers: Ints) -> list[int]:
    known: dict[bytes, int] = {}
    bounds = pairwise(starts.tolist())
    return [known.setdefault(numbers[begin:end].tobytes(), number) for number, (begin, end) in enumerate(bounds)]


def _distinct(first: Sequence[int]) -> list[int]:
    return [number for number, known in enumerate(first) if known == number]
