"""Flight Recorder dumps: asked for once a stall, copied to the store once they stand still, and cleared away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megascope.collectors.dumps import DumpGathering, dumps_folder
from megascope.profiler.flight_recorder import DUMPS, REQUEST
from megascope.profiler.topology import Topology
from megascope.profiler.topology_file import describe, read_topology_file, write_topology_file


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool" / "run" / "0"
    (folder / DUMPS).mkdir(parents=True)
    write_topology_file(folder, describe(Topology.of(dp=4), hosts={0: "node-1"}, run="run", attempt=0))
    return folder


def gathering(spool: Path, tmp_path: Path) -> tuple[DumpGathering, Path]:
    return DumpGathering(spool, tmp_path / "store", "run", 0), dumps_folder(tmp_path / "store", "run", 0)


def test_each_stall_is_asked_for_once(spool: Path, tmp_path: Path) -> None:
    gather, _ = gathering(spool, tmp_path)
    request = spool / DUMPS / REQUEST
    gather.poll(0, {})
    assert not request.exists()
    gather.poll(1, {})
    os.utime(request, ns=(1, 1))
    gather.poll(1, {})
    assert request.stat().st_mtime_ns == 1
    gather.poll(2, {})
    assert request.stat().st_mtime_ns > 1


def test_a_dump_is_copied_once_it_stands_still(spool: Path, tmp_path: Path) -> None:
    gather, target = gathering(spool, tmp_path)
    dump = spool / DUMPS / "_dump_2"
    dump.write_bytes(b"half")
    (spool / DUMPS / "_dump_1.tmp").write_bytes(b"being written")
    gather.poll(0, {2: "node-1"})
    assert not target.exists()
    dump.write_bytes(b"a whole dump")
    gather.poll(0, {2: "node-1"})
    gather.poll(0, {2: "node-1"})
    assert sorted(path.name for path in target.iterdir()) == ["_dump_2", "topology.json"]
    assert (target / "_dump_2").read_bytes() == b"a whole dump"
    assert read_topology_file(target / "topology.json").hosts == {0: "node-1", 2: "node-1"}


def test_hosts_of_several_agents_come_together(spool: Path, tmp_path: Path) -> None:
    for rank, host in ((1, "node-1"), (3, "node-2")):
        gather, target = gathering(spool, tmp_path)
        (spool / DUMPS / f"_dump_{rank}.json").write_text("{}")
        gather.poll(0, {rank: host}, is_last=True)
    assert read_topology_file(target / "topology.json").hosts == {0: "node-1", 1: "node-1", 3: "node-2"}


def test_a_store_that_cannot_be_written_is_tried_again(spool: Path, tmp_path: Path) -> None:
    gather, target = gathering(spool, tmp_path)
    (tmp_path / "store").write_text("a file where the store should be")
    (spool / DUMPS / "_dump_0").write_bytes(b"dump")
    gather.poll(0, {}, is_last=True)
    (tmp_path / "store").unlink()
    gather.poll(0, {}, is_last=True)
    assert (target / "_dump_0").read_bytes() == b"dump"
    gather.remove()
    assert list(spool.iterdir()) == []


def test_what_was_not_copied_stays_in_the_spool(spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.collectors.dumps.MOST_BYTES", 8)
    gather, target = gathering(spool, tmp_path)
    (spool / DUMPS / "_dump_1").write_bytes(b"small")
    (spool / DUMPS / "_dump_2").write_bytes(b"too large to copy")
    gather.poll(0, {}, is_last=True)
    gather.remove()
    assert sorted(path.name for path in target.iterdir()) == ["_dump_1", "topology.json"]
    assert [path.name for path in (spool / DUMPS).iterdir()] == ["_dump_2"]
