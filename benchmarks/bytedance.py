"""Reads the sends and receives of a trace of ByteDance's straggler analysis, for the benchmark of clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from megascope.collectors.clocks.alignment import Alignment
from megascope.collectors.clocks.pairs import Ends, FloatArray, IntArray, Side

_PAIRS = """
    WITH operations AS (
        SELECT dp_rank AS dp, stage, step, optype, seq_id AS sequence, start_ts::DOUBLE AS start_s,
            duration::DOUBLE AS duration_s
        FROM read_parquet(?) WHERE duration > 0
    )
    SELECT send.step AS step, send.dp AS dp, send.stage AS sender, receive.stage AS receiver,
        send.sequence AS sequence,
        round((send.start_s + send.duration_s) * 1e9)::BIGINT AS send_end_ns,
        round((receive.start_s + receive.duration_s) * 1e9)::BIGINT AS receive_end_ns,
        round(send.duration_s * 1e9)::BIGINT AS send_ns, round(receive.duration_s * 1e9)::BIGINT AS receive_ns
    FROM operations send JOIN operations receive USING (dp, step, sequence)
    WHERE (send.optype = 'forward-send' AND receive.optype = 'forward-recv' AND receive.stage = send.stage + 1)
        OR (send.optype = 'backward-send' AND receive.optype = 'backward-recv' AND receive.stage = send.stage - 1)
    ORDER BY step, dp, sender, receiver, sequence
"""
"""A transfer is known by its direction and its number in the step; the clock starts anew in every step."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Sends with their receives in one step of one pipeline, [N] each; moments on the two workers' own clocks."""

    sender: IntArray
    receiver: IntArray
    sequence: IntArray
    send_end_ns: IntArray
    receive_end_ns: IntArray
    send_ns: IntArray
    receive_ns: IntArray

    def of_parity(self, odd: int) -> Transfers:
        """Every other transfer: one half to align by, the other to judge the alignment by."""
        kept = self.sequence % 2 == odd
        return Transfers(*(getattr(self, name)[kept] for name in Transfers.__slots__))

    @property
    def pair(self) -> IntArray:
        """The lower of the two stages."""
        return np.minimum(self.sender, self.receiver)

    def ends(self) -> Ends:
        """As operations of two hosts, one host a stage."""
        operation = np.arange(len(self.sender))
        sides = (np.full(len(operation), side, np.int64) for side in (Side.SEND, Side.RECEIVE))
        columns = (
            (operation, operation),
            (self.sender, self.receiver),
            (self.send_end_ns, self.receive_end_ns),
            tuple(sides),
            (self.send_ns, self.receive_ns),
        )
        return Ends(*(np.concatenate(column) for column in columns))

    def mismatch_ns(self, alignment: Alignment | None = None) -> FloatArray:
        """Receive end minus send end, each on its worker's clock, or both on the reference's."""
        raw = (self.receive_end_ns - self.send_end_ns).astype(np.float64)
        if alignment is None:
            return raw

        def shift_ns(stage: IntArray, moment_ns: IntArray) -> FloatArray:
            shift: FloatArray = alignment.offset_ns[stage] + alignment.drift[stage] * (moment_ns - alignment.begin_ns)
            return shift

        return raw + shift_ns(self.receiver, self.receive_end_ns) - shift_ns(self.sender, self.send_end_ns)


def read_transfers(path: Path) -> Iterator[Transfers]:
    """The transfers of each step and pipeline."""
    with duckdb.connect() as connection:
        rows = connection.execute(_PAIRS, [str(path)]).fetchnumpy()
    columns = {name: np.asarray(values, np.int64) for name, values in rows.items()}
    key = columns["step"] * 1000 + columns["dp"]
    for begin, end in zip(*_runs(key), strict=True):
        yield Transfers(*(columns[name][begin:end] for name in Transfers.__slots__))


def _runs(key: IntArray) -> tuple[IntArray, IntArray]:
    begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    return begins, np.r_[begins[1:], len(key)]
