"""Flight Recorder dumps: asked for once a stall, copied to the store once they stand still, and cleared away."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.incidents.dumps import DumpGathering, dumps_folder
from megascope.profiler.flight_recorder import DUMPS, REQUEST
from megascope.profiler.topology import Topology
from megascope.profiler.topology_file import (
    describe,
    file_of_host,
    read_topology,
    read_topology_file,
    write_topology_file,
)


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
    assert sorted(path.name for path in target.iterdir()) == ["_dump_2", "hosts.node-1.csv", "topology.json"]
    assert (target / "_dump_2").read_bytes() == b"a whole dump"
    told = read_topology(target)
    assert told is not None
    assert told.hosts == {0: "node-1", 2: "node-1"}
    assert told.axes == {"dp": 4}


def test_hosts_of_several_agents_come_together(spool: Path, tmp_path: Path) -> None:
    for rank, host in ((1, "node-1"), (3, "node-2")):
        gather, target = gathering(spool, tmp_path)
        (spool / DUMPS / f"_dump_{rank}.json").write_text("{}")
        gather.poll(0, {rank: host}, is_last=True)
    told = read_topology(target)
    assert told is not None
    assert told.hosts == {0: "node-1", 1: "node-1", 3: "node-2"}


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
    monkeypatch.setattr("megascope.collectors.incidents.dumps.MOST_BYTES", 8)
    gather, target = gathering(spool, tmp_path)
    (spool / DUMPS / "_dump_1").write_bytes(b"small")
    (spool / DUMPS / "_dump_2").write_bytes(b"too large to copy")
    gather.poll(0, {}, is_last=True)
    gather.remove()
    assert [path.name for path in target.glob("_dump_*")] == ["_dump_1"]
    assert [path.name for path in (spool / DUMPS).iterdir()] == ["_dump_2"]


def test_a_file_that_cannot_be_copied_stops_no_other(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the first files one is a pipe, one is too large, one a link, and one has no place in the store."""
    monkeypatch.setattr("megascope.collectors.incidents.dumps.MOST_BYTES", 8)
    gather, target = gathering(spool, tmp_path)
    os.mkfifo(spool / DUMPS / "_dump_0")
    (spool / DUMPS / "_dump_1").write_bytes(b"too large to copy")
    (spool / DUMPS / "_dump_2").symlink_to("/dev/zero")
    (spool / DUMPS / "_dump_3").write_bytes(b"no place")
    (target / "_dump_3" / "in the way").mkdir(parents=True)
    (spool / DUMPS / "_dump_4").write_bytes(b"good")
    gather.poll(0, {}, is_last=True)
    gather.poll(0, {}, is_last=True)
    assert (target / "_dump_4").read_bytes() == b"good"
    assert sorted(gather.left_out) == [f"_dump_{number}" for number in range(4)]
    assert [len([one for one in caplog.messages if f"_dump_{number} " in one]) for number in range(5)] == [
        1,
        1,
        1,
        1,
        0,
    ]
    listed = next(target.glob("left-out.*.txt")).read_text()
    assert f"{spool / DUMPS / '_dump_1'}: its 17 bytes are more than the 8 that are copied\n" in listed
    gather.remove()
    assert sorted(path.name for path in (spool / DUMPS).iterdir()) == [f"_dump_{number}" for number in range(4)]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_a_file_that_may_not_be_read_stops_no_other(spool: Path, tmp_path: Path) -> None:
    gather, target = gathering(spool, tmp_path)
    for number in (0, 1):
        (spool / DUMPS / f"_dump_{number}").write_bytes(b"dump")
    (spool / DUMPS / "_dump_0").chmod(0)
    gather.poll(0, {}, is_last=True)
    assert gather.left_out == {"_dump_0": "Permission denied"}
    assert (target / "_dump_1").exists()


def test_a_file_that_fails_as_it_is_read_stops_no_other(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, target = gathering(spool, tmp_path)
    for number in (0, 1):
        (spool / DUMPS / f"_dump_{number}").write_bytes(b"dump")
    original = Path.open

    def opened(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == spool / DUMPS / "_dump_0":
            raise OSError(errno.EIO, "Input/output error")
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", opened)
    gather.poll(0, {}, is_last=True)
    assert gather.left_out == {"_dump_0": "Input/output error"}
    assert (target / "_dump_1").read_bytes() == b"dump"
    monkeypatch.undo()
    gather.poll(0, {}, is_last=True)
    assert gather.left_out == {}
    assert not list(target.glob("left-out.*"))


def test_an_agent_that_takes_over_asks_for_no_dump_again(spool: Path, tmp_path: Path) -> None:
    gather, target = gathering(spool, tmp_path)
    gather.poll(2, {})
    (spool / DUMPS / "_dump_0").write_bytes(b"dump")
    gather.poll(2, {}, is_last=True)
    request = spool / DUMPS / REQUEST
    os.utime(request, ns=(1, 1))
    written_ns = (target / "_dump_0").stat().st_ctime_ns
    other, _ = gathering(spool, tmp_path)
    other.poll(2, {}, is_last=True)
    assert request.stat().st_mtime_ns == 1
    assert (target / "_dump_0").stat().st_ctime_ns == written_ns
    other.poll(3, {})
    assert request.stat().st_mtime_ns > 1
    other.remove()
    assert list(spool.iterdir()) == []


def test_a_dump_that_is_written_anew_is_copied_again(spool: Path, tmp_path: Path) -> None:
    gather, target = gathering(spool, tmp_path)
    (spool / DUMPS / "_dump_0").write_bytes(b"first")
    gather.poll(0, {}, is_last=True)
    (spool / DUMPS / "_dump_0").write_bytes(b"second one")
    gather.remove()
    assert (spool / DUMPS / "_dump_0").exists()
    gather.poll(0, {}, is_last=True)
    assert (target / "_dump_0").read_bytes() == b"second one"


def test_another_mesh_is_told_of_and_not_overwritten(
    spool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gather, target = gathering(spool, tmp_path)
    target.mkdir(parents=True)
    write_topology_file(target, describe(Topology.of(tp=2, dp=2)))
    (spool / DUMPS / "_dump_0").write_bytes(b"dump")
    for _ in range(2):
        gather.poll(0, {0: "node-1"}, is_last=True)
    assert read_topology_file(target / "topology.json").axes == {"tp": 2, "dp": 2}
    assert len([one for one in caplog.messages if "tells another mesh" in one]) == 1


def test_many_agents_that_write_at_once_lose_no_host(tmp_path: Path) -> None:
    """Each host has its own spool; what all of them leave is the mesh once, and every host."""

    def gather(number: int) -> None:
        folder = tmp_path / f"spool-{number}" / "run" / "0"
        (folder / DUMPS).mkdir(parents=True)
        write_topology_file(folder, describe(Topology.of(dp=16), hosts={number: f"node-{number}"}))
        (folder / DUMPS / f"_dump_{number}").write_bytes(b"dump")
        DumpGathering(folder, tmp_path / "store", "run", 0).poll(0, {number: f"node-{number}"}, is_last=True)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(gather, range(16)))
    target = dumps_folder(tmp_path / "store", "run", 0)
    told = read_topology(target)
    assert told is not None
    assert told.hosts == {number: f"node-{number}" for number in range(16)}
    assert read_topology_file(target / "topology.json").hosts == {}
    assert not list(target.glob("*.tmp"))


@given(host=st.text(min_size=1).filter(lambda text: "\x00" not in text))
def test_any_name_of_a_host_makes_a_file(host: str) -> None:
    name = file_of_host(host.encode("utf-8", "replace").decode())
    assert "/" not in name
    assert name.startswith("hosts.")
    assert name.endswith(".csv")
