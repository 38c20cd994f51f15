"""Lanes of the Timeline: a rank's work first, then communication beside it, then what is in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .segment import IN_FLIGHT, Segment

HOST, COMMUNICATION = "host", "comm"
"""Communication from the host gets a lane for each axis: it overlaps the work that it runs beside."""
NO_DATA = "no data"
WORK = {HOST, "compute", "default"}
"""Lanes of work: the first of a rank."""


def lanes_of(
    ranks: Sequence[int],
    segments: Sequence[Segment],
    streams: Sequence[str],
    columns: Mapping[str, npt.NDArray[Any]],
) -> tuple[list[tuple[int, str]], npt.NDArray[np.int32]]:
    """Lanes as (rank, label), by rank in the given order, then by stream and thread; and the lane of each span [N].

    A rank without spans has one lane, `NO_DATA`. ``columns`` has rank, segment, stream (index of ``streams``) and
    thread, each [N].
    """
    names: dict[str, int] = {}
    table = np.array(
        [[names.setdefault(_lane_name(stream, each), len(names)) for each in segments] for stream in streams], np.int64
    )
    name = table[columns["stream"], columns["segment"]]
    threads = int(columns["thread"].max(initial=0)) + 1
    keys, codes = np.unique(
        (columns["rank"].astype(np.int64) * len(names) + name) * threads + columns["thread"], return_inverse=True
    )
    words, place = list(names), {rank: at for at, rank in enumerate(ranks)}
    heads, thread = np.divmod(keys, threads)
    pairs = zip(heads.tolist(), thread.tolist(), strict=True)
    found = [(head // len(words), words[head % len(words)], each) for head, each in pairs]
    several = {word for word in words if len({thread for _, each, thread in found if each == word}) > 1}
    have = {rank for rank, _, _ in found}
    found += [(rank, NO_DATA, 0) for rank in ranks if rank not in have]
    order = sorted(range(len(found)), key=lambda at: _rank_of_lane(found[at], place))
    number = np.empty(len(found), np.int32)
    number[order] = np.arange(len(found))
    labels = [found[at] for at in order]
    lanes = [(rank, f"{word} {thread}" if word in several else word) for rank, word, thread in labels]
    return lanes, number[codes.reshape(-1)]


def _rank_of_lane(lane: tuple[int, str, int], place: Mapping[int, int]) -> tuple[Any, ...]:
    rank, word, thread = lane
    return place[rank], word == IN_FLIGHT, word not in WORK, thread, word


def _lane_name(stream: str, segment: Segment) -> str:
    stream = stream or HOST
    return (segment.axis or COMMUNICATION) if stream == HOST and segment.waits else stream
