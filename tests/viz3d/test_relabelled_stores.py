"""The whole judge on jobs with a past: other ranks, hosts, axes and kinds of groups give the same verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from megascope.viz3d.hang import diagnose
from megascope.viz3d.verdict import HangVerdict
from support.relabelling import Labels, labels, relabelled_store
from support.simulated_hangs import FAULTS, HOSTS, LAYOUT, WORLD, hung_store

Told = tuple[object, ...]


def told(verdict: HangVerdict, new: Labels | None = None) -> Told:
    """What a verdict says, or would say under other labels. Of a root of several ranks any one's operation is told."""
    labels = new or Labels({rank: rank for rank in range(WORLD)})

    def ranks(own: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(labels.ranks[rank] for rank in own))

    culprits = {
        (
            ranks(one.ranks), one.kind, one.confidence, one.severity, one.waiters, one.exit_code,
            tuple(sorted(labels.hosts.get(host, host) for host in one.hosts)),
            one.segment if len(one.ranks) == 1 else None,
            labels.group(one.group) if one.group is not None and len(one.ranks) == 1 else None,
        )
        for one in verdict.culprits
    }  # fmt: skip
    return (
        verdict.verdict,
        culprits,
        verdict.victims,
        verdict.explained,
        ranks(verdict.unexplained),
        ranks(verdict.missing),
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("fault", FAULTS)
def test_other_labels_of_a_whole_store_give_the_same_verdict(folder: Path, fault: str) -> None:
    number = FAULTS.index(fault)
    with hung_store(folder / f"{number}", fault, in_flight=1 + 7 * (number % 2)) as store:
        plain = diagnose(store, store.attempt())
        assert plain.culprits

        @settings(deadline=None, max_examples=2)
        @given(labels(WORLD, HOSTS, list(LAYOUT)))
        def judge(new: Labels) -> None:
            with tempfile.TemporaryDirectory(dir=folder) as other, relabelled_store(store, new, Path(other)) as changed:
                verdict = diagnose(changed, changed.attempt())
            assert told(verdict) == told(plain, new)

        judge()
