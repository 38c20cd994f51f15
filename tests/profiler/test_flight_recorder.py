"""The Flight Recorder: turned on only where nobody has, dumped on request, with the members of its groups."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import megascope
from megascope.profiler.dump_taking import MOST_OVER, take_dump
from megascope.profiler.errors import FormatError
from megascope.profiler.flight_recorder import DUMPS, DumpOnRequest, request_dumps, turn_on
from megascope.profiler.topology import Topology
from megascope.profiler.topology_file import (
    NamedGroup,
    TopologyFile,
    describe,
    read_topology_file,
    write_topology_file,
)
from support.commands import wait_for
from support.forkrun import run_ranks


def test_it_is_turned_on_and_led_to_the_spool(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    turn_on(tmp_path, environment)
    assert environment == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / DUMPS / "_dump_"),
    }
    assert (tmp_path / DUMPS).is_dir()


@pytest.mark.parametrize("old", [True, False])
def test_what_the_user_has_set_stays(tmp_path: Path, old: bool) -> None:
    names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    new = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    given_values = dict.fromkeys(names if old else new, "0") | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    environment = dict(given_values)
    turn_on(tmp_path, environment)
    assert environment == given_values


def test_what_was_set_is_taken_back_and_what_others_set_stays(tmp_path: Path) -> None:
    environment = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "HOME": "/"}
    undo = turn_on(tmp_path, environment)
    environment["TORCH_FR_BUFFER_SIZE"] = "77"
    undo()
    assert environment == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "HOME": "/", "TORCH_FR_BUFFER_SIZE": "77"}


def test_shutdown_leaves_the_environment_as_init_found_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TORCH_FR", "TORCH_NCCL"))]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    for attempt in (0, 1):
        megascope.init(
            run="run", attempt=attempt, spool=tmp_path, store=tmp_path / "store", agent=False, automatic=False
        )
        place = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
        assert place == str(tmp_path / "run" / str(attempt) / DUMPS / "_dump_")
        megascope.shutdown()
        assert dict(os.environ) == before


@pytest.mark.timeout(60)
def test_a_rank_that_waits_in_gloo_answers_a_request(tmp_path: Path) -> None:
    """Rank 1 never comes to the last all-reduce; rank 0 waits there, and its dump still comes."""

    def work() -> Any:
        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        watch = DumpOnRequest(tmp_path, rank)
        group = dist.new_group([0, 1])
        for _ in range(MOST_OVER):
            dist.all_reduce(torch.ones(2), group=group)
        path = tmp_path / DUMPS / f"_dump_{rank}.json"
        if rank == 0:
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            request_dumps(tmp_path)
            wait_for(path.exists, 20, "the dump")
        else:
            wait_for((tmp_path / DUMPS / "_dump_0.json").exists, 20, "the dump of rank 0")
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        work.wait()
        watch.close()
        return json.loads((tmp_path / DUMPS / "_dump_0.json").read_text())

    dump, _ = run_ranks(2, work, timeout_s=40)
    assert len(dump["entries"]) == MOST_OVER
    last = dump["entries"][-1]
    assert (last["collective_seq_id"], last["input_sizes"], last["retired"]) == (MOST_OVER + 1, [[3]], False)
    assert dump["pg_config"][last["process_group"][0]]["ranks"] == "[0, 1]"


def test_there_is_no_dump_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch._C._distributed_c10d", None)
    assert take_dump() is None


def test_an_old_request_is_not_answered(tmp_path: Path) -> None:
    request_dumps(tmp_path)
    watch = DumpOnRequest(tmp_path, 0)
    watch.close()
    assert sorted(os.listdir(tmp_path / DUMPS)) == ["request"]  # noqa: PTH208


def test_the_topology_of_a_mesh_is_read_as_it_was_written(tmp_path: Path) -> None:
    edge = NamedGroup("pp_forward", (0, 4), "7")
    content = describe(Topology.of(pp=2, dp=2, tp=2), hosts={0: "node-1"}, more=[edge], run="a run", attempt=3)
    assert [one for one in content.groups if one.kind == "tp"] == [
        NamedGroup("tp", ranks) for ranks in ((0, 1), (2, 3), (4, 5), (6, 7))
    ]
    assert content.groups[0] == NamedGroup("world", tuple(range(8)))
    assert content.coordinates[5] == {"pp": 1, "dp": 0, "tp": 1}
    assert read_topology_file(write_topology_file(tmp_path, content)) == content


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no topology file"),
        ('{"version": 1, "groups": [{"kind": "tp"}]}', "is no topology file"),
        ('{"version": 9}', "has version 9"),
        ("[" * 100_000, "is no topology file"),
    ],
)
def test_a_damaged_topology_file_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "topology.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=sentence):
        read_topology_file(path)


@given(st.data())
def test_a_cut_topology_file_never_crashes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = write_topology_file(folder, describe(Topology.of(pp=2, dp=2)))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read = read_topology_file(path)
    except FormatError:
        return
    assert isinstance(read, TopologyFile)
