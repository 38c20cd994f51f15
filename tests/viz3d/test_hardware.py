"""A rank that holds a job up and whose GPU had an Xid says so; the verdict itself is the same without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megascope.collectors.reading.store import Store
from megascope.viz3d.hang import diagnose
from support.hardware_store import Trouble, add_hardware
from support.synthetic_store import SyntheticJob, write_synthetic_store

JOB = SyntheticJob(steps=10, ranks_per_host=2, stuck=5)


def test_an_xid_on_the_culprits_gpu_is_evidence(tmp_path: Path) -> None:
    for run, rank in (("own", 5), ("other", 4)):
        job = replace(JOB, run=run)
        write_synthetic_store(tmp_path / "store", job)
        add_hardware(tmp_path / "store", job, Trouble(ecc_rank=rank))
    with Store(tmp_path / "store") as store:
        own, other = (diagnose(store, store.attempt(run)) for run in ("own", "other"))
    (culprit,), (same,) = own.culprits, other.culprits
    assert (culprit.ranks, culprit.kind, culprit.confidence) == (same.ranks, same.kind, same.confidence)
    assert any(one.statement.startswith("Xid 94") for one in culprit.evidence)
    assert not any(one.table == "hardware_events" for one in same.evidence)
