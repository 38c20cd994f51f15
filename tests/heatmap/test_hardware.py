"""A slow rank whose GPU is hot says so; one whose GPU is sound says nothing of hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.verdicts import Evidence
from megascope.heatmap.stragglers import find_stragglers
from support.hardware_store import Trouble, add_hardware
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store

JOB = SyntheticJob(steps=30, slow=Slow(5, 1.5, 8))


def _evidence(root: Path, trouble: Trouble) -> list[Evidence]:
    write_synthetic_store(root, JOB)
    add_hardware(root, JOB, trouble)
    with Store(root) as store:
        (culprit,) = find_stragglers(store, store.attempt()).culprits
        assert culprit.ranks == (5,)
        told = [one for one in culprit.evidence if one.table in ("health", "hardware_events")]
        for one in told:
            assert store.query(one.sql).column(0).to_pylist() == pytest.approx([one.value])
    return told


def test_a_slow_rank_that_is_hot_and_throttled_says_so(tmp_path: Path) -> None:
    statements = [one.statement for one in _evidence(tmp_path / "store", Trouble(hot_rank=5, ecc_rank=2))]
    assert any("GPU of rank 5 on node0000 is held back (thermal slowdown by hardware)" in text for text in statements)
    assert not any("Xid" in text for text in statements)


def test_hardware_of_others_is_no_evidence(tmp_path: Path) -> None:
    assert _evidence(tmp_path / "store", Trouble(hot_rank=4, ecc_rank=4, errors_host="node0001")) == []
