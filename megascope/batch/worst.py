"""`worst`: the ranks whose own work takes the longest beside their peers', over all raw spans of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..heatmap.peers import FloatArray, IntArray, peer_counts, peers_median
from .engines import Engine
from .medians import median_ns, medians_of
from .places import Places, load_places
from .scope import Scope

MIN_PEERS = 2
"""Beside fewer others nobody can tell which of them is the slow one."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of `medians` and what they are compared with, [R] each; NaN where there are too few peers.

    ``median_ns`` of a rank's spans, ``peers_ns`` the median of its peers' medians: the other ranks of one attempt with
    the same stage, segment and chunk. ``lost_s`` is what its spans took beyond theirs, ``ratio`` how many
    times as long.
    """

    rows: list[dict[str, Any]]
    places: Places
    median_ns: FloatArray
    peers_ns: FloatArray
    peers: IntArray

    @property
    def ratio(self) -> FloatArray:
        """Of a rank's median to its peers'."""
        ratios: FloatArray = self.median_ns / self.peers_ns
        return ratios

    @property
    def lost_s(self) -> FloatArray:
        """Time beyond the peers', in seconds."""
        lost: FloatArray = (self.median_ns - self.peers_ns) * np.array([row["spans"] for row in self.rows]) / 1e9
        return lost

    def named(self, at: int) -> dict[str, Any]:
        """Where a row's rank is and what it does."""
        row = self.rows[at]
        return {
            **asdict(self.places.known[row["place"]]),
            "segment": self.places.names.get(row["segment"], str(row["segment"])),
            "chunk": row["chunk"],
            "spans": row["spans"],
            "steps": [row["first_step"], row["last_step"]],
            "median_ns": float(self.median_ns[at]),
        }


def compare(rows: pa.Table, places: Places) -> Compared:
    """Hold every rank's median against its peers'; the rows in an order that no engine chooses."""
    rows = rows.sort_by([(name, "ascending") for name in ("place", "segment", "chunk", "side")])
    medians = median_ns(rows)
    where = rows["place"].to_numpy()
    attempts = np.array([-1 if one.attempt is None else one.attempt for one in places.known], np.int64)[where]
    keys = [rows[name].to_numpy() for name in ("side", "segment", "chunk")]
    _, numbers = np.unique(np.stack([attempts, *keys, places.stages(where)]), axis=1, return_inverse=True)
    roles = numbers.reshape(-1).astype(np.int64)
    peers = peer_counts(roles, np.ones(len(roles), bool))
    roles[peers < MIN_PEERS] = -1
    return Compared(rows.to_pylist(), places, medians, peers_median(medians[:, np.newaxis], roles)[:, 0], peers)


def find_worst(scope: Scope, engine: Engine, limit: int) -> list[dict[str, Any]]:
    """The ``limit`` rows that lost the most time: measures to look at, which accuse nobody.

    Whether a rank is slow by more than chance, and whose lateness it is, `stragglers` tells.
    """
    places = load_places(scope, together=False)
    compared = compare(engine.ask(medians_of(scope, places)), places)
    ratio, lost = compared.ratio, compared.lost_s
    order = np.argsort(-np.nan_to_num(lost, nan=-np.inf), kind="stable")
    return [
        compared.named(at)
        | {
            "peers_median_ns": float(compared.peers_ns[at]),
            "peers": int(compared.peers[at]),
            "ratio": float(ratio[at]),
            "lost_s": float(lost[at]),
        }
        for at in order[~np.isnan(lost[order])][:limit].tolist()
    ]
