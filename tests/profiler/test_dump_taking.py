"""Which of torch's two Flight Recorders a dump is taken from, and how both become one. NCCL's is a stand-in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megascope.profiler import dump_taking
from megascope.profiler.dump_taking import MOST_OVER, NOTHING, take_dump
from megascope.profiler.flight_recorder import DUMPS, DumpOnRequest, request_dumps
from megascope.viz3d.dumps.facts import Dump
from megascope.viz3d.dumps.reading import read_folder
from support.commands import wait_for

Recorders = Callable[..., None]


class FakeGroup:
    """A process group, as far as a dump asks it."""

    def __init__(self, name: str) -> None:
        self.group_desc = f"group {name}"


def entry(number: int, group: int = 0, library: str = "nccl", name: str = "0", **more: Any) -> dict[str, Any]:
    """An operation of a group, completed unless ``more`` says otherwise; enqueued at ``number`` microseconds."""
    is_nccl = library == "nccl"
    plain = {
        "record_id": number, "pg_id": group, "process_group": [name, f"group {name}"], "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"{library}:all_reduce", "time_created_ns": number * 1000,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": "completed" if is_nccl else "scheduled", "retired": True, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return {**plain, **more}


IN_FLIGHT: dict[str, Any] = {"state": "scheduled", "retired": False}


def dump(entries: list[dict[str, Any]], groups: dict[str, str] | None = None) -> dict[str, Any]:
    """A dump as torch gives it; ``groups``: members by name, as NCCL tells them."""
    config = {name: {"name": name, "desc": f"group {name}", "ranks": ranks} for name, ranks in (groups or {}).items()}
    last: dict[str, Any] = {}
    for one in entries:
        number = str(one["collective_seq_id"])
        last[str(one["pg_id"])] = {
            "last_enqueued_collective": number, "last_started_collective": "-1", "last_completed_collective": number,
        }  # fmt: skip
    told = {"version": "2.10", "comm_lib_version": "2.27.3" if groups else "", "pg_config": config, "pg_status": last}
    return {**told, "entries": entries} if entries else told


def empty() -> dict[str, Any]:
    """What a recorder gives that nobody records into."""
    return {**dump([]), "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    """Sets what torch's two recorders hold (None: this torch has none such), and torch's own groups."""

    def _set(*, nccl: Any, general: Any, groups: Any = (), shared: tuple[str, ...] = ()) -> None:
        def giving(content: Any) -> Callable[[bool, bool], bytes]:
            def take(include_collectives: bool, only_active: bool) -> bytes:
                if isinstance(content, Exception):
                    raise content
                assert include_collectives
                assert not only_active
                return json.dumps(content).encode()

            return take

        both = {"_dump_nccl_trace_json": nccl, "_dump_fr_trace_json": general}
        stand_in = SimpleNamespace(**{name: giving(one) for name, one in both.items() if one is not None})
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", stand_in)
        config = {name: {"name": name, "desc": f"group {name}", "ranks": "[0, 1]"} for name in groups}
        monkeypatch.setattr(dump_taking, "_groups", lambda: (config, frozenset(shared)))

    return _set


def read(content: dict[str, Any], folder: Path) -> Dump:
    path = folder / "_dump_0.json"
    path.write_text(json.dumps(content))
    return read_folder(folder).dumps[0]


def test_a_rank_of_nccl_gives_what_nccl_recorded(recorders: Recorders, tmp_path: Path) -> None:
    own = dump([entry(1), entry(2, **IN_FLIGHT)], {"0": "[0, 1]"})
    recorders(nccl=own, general=empty(), groups=("0", "7"))
    content = take_dump()
    assert content == own
    assert content is not None
    told = read(content, tmp_path)
    assert (told.library, told.entries) == ("nccl", 2)
    assert [(one.sequence, one.group.ranks if one.group else ()) for one in told.operations] == [(2, (0, 1))]


def test_on_request_the_file_of_a_rank_of_nccl_has_its_operations(recorders: Recorders, tmp_path: Path) -> None:
    recorders(nccl=dump([entry(1), entry(2, **IN_FLIGHT)], {"0": "[0, 1]"}), general=empty())
    watch = DumpOnRequest(tmp_path, 3)
    request_dumps(tmp_path)
    path = tmp_path / DUMPS / "_dump_3.json"
    wait_for(path.exists, 20, "the dump")
    watch.close()
    assert [one["profiling_name"] for one in json.loads(path.read_text())["entries"]] == ["nccl:all_reduce"] * 2


@pytest.mark.parametrize("nccl", [None, empty(), RuntimeError("no device")])
def test_gloo_is_asked_where_nccl_holds_nothing(recorders: Recorders, nccl: Any) -> None:
    recorders(nccl=nccl, general=dump([entry(1, library="gloo")]), groups=("0", "1"))
    content = take_dump()
    assert content is not None
    assert [one["profiling_name"] for one in content["entries"]] == ["gloo:all_reduce"]
    assert content["pg_config"]["1"]["ranks"] == "[0, 1]"


def test_nccl_is_read_where_gloos_recorder_fails(recorders: Recorders) -> None:
    own = dump([entry(1)], {"0": "[0, 1]"})
    recorders(nccl=own, general=RuntimeError("broken"))
    assert take_dump() == own


@pytest.mark.parametrize("held", [None, dump([entry(1)], {"0": "[0, 1]"})])
def test_operations_that_either_recorder_gives_are_taken_once(recorders: Recorders, held: Any) -> None:
    """Newer versions of torch, which answer for NCCL in both, or in the general one alone."""
    recorders(nccl=held, general=dump([entry(1)], {"0": "[0, 1]"}))
    content = take_dump()
    assert content is not None
    assert [one["collective_seq_id"] for one in content["entries"]] == [1]


def test_operations_of_both_are_in_the_order_in_which_they_were_enqueued(recorders: Recorders, tmp_path: Path) -> None:
    """Both count their groups from 0: number 0 is a group of NCCL in one, and one of gloo in the other."""
    nccl = dump([entry(1), entry(4, **IN_FLIGHT)], {"0": "[0, 1]"})
    gloo = dump([entry(2, library="gloo", name="5"), entry(3, library="gloo", name="5", **IN_FLIGHT)])
    recorders(nccl=nccl, general=gloo, groups=("0", "5"))
    content = take_dump()
    assert content is not None
    told = read(content, tmp_path)
    assert (told.library, told.unplaced) == ("nccl", 0)
    assert [(one.library, one.sequence) for one in told.operations] == [("gloo", 3), ("nccl", 4)]
    groups = [one.group.kind for one in told.operations if one.group is not None]
    assert groups == ["group 5", "group 0"]
    assert {group.kind: number for group, number in told.enqueued.items()} == {"group 0": 4, "group 5": 3}


@pytest.mark.parametrize("has_nccl", [False, True])
def test_a_group_that_both_carry_is_two_each_with_its_own_numbers(
    recorders: Recorders, tmp_path: Path, has_nccl: bool
) -> None:
    """cpu:gloo,cuda:nccl: the names do not hang on whether this rank has used NCCL yet."""
    nccl = dump([entry(9, **IN_FLIGHT)], {"0": "[0, 1]"}) if has_nccl else empty()
    gloo = dump([entry(1, library="gloo", **IN_FLIGHT)])
    recorders(nccl=nccl, general=gloo, groups=("0",), shared=("0",))
    content = take_dump()
    assert content is not None
    told = read(content, tmp_path)
    found = {one.group.kind: one.sequence for one in told.operations if one.group is not None}
    assert found == ({"group 0 gloo": 1, "group 0": 9} if has_nccl else {"group 0 gloo": 1})
    assert {one.ranks for one in told.groups} == {(0, 1)}


def test_a_dump_is_bounded_by_what_is_over_and_never_by_what_is_in_flight(recorders: Recorders) -> None:
    old = [entry(1, group=1, name="1"), entry(2, **IN_FLIGHT), entry(3)]
    new = [entry(number) for number in range(4, 4 + MOST_OVER)]
    recorders(nccl=dump([*old, *new], {"0": "[0, 1]", "1": "[0, 1]"}), general=None)
    content = take_dump()
    assert content is not None
    assert [one["record_id"] for one in content["entries"]] == [1, 2, *range(4, 4 + MOST_OVER)]


@pytest.mark.parametrize("nccl", [None, empty()])
def test_a_dump_of_nothing_says_so(recorders: Recorders, nccl: Any) -> None:
    recorders(nccl=nccl, general=empty(), groups=("0",))
    content = take_dump()
    assert content is not None
    assert (content["entries"], content["note"]) == ([], NOTHING)


def test_the_libraries_of_a_group_are_those_of_its_devices(
    recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what NCCL carries beside gloo is told apart."""
    look = dump_taking._groups
    recorders(nccl=None, general=dump([entry(1, library="gloo", name=name) for name in ("a", "b", "c")]))
    config = {"a": "cpu:gloo,cuda:nccl", "b": "cuda:nccl", "c": "cpu:gloo,cuda:gloo"}
    groups = {FakeGroup(name): name for name in config}
    world = SimpleNamespace(
        pg_names=groups,
        pg_group_ranks={one: {0: 0, 3: 1} for one in groups},
        pg_backend_config={one: config[name] for one, name in groups.items()},
    )
    torch_groups = SimpleNamespace(is_initialized=lambda: True, _world=world)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", torch_groups)
    monkeypatch.setattr(dump_taking, "_groups", look)
    content = take_dump()
    assert content is not None
    assert [one["process_group"][0] for one in content["entries"]] == ["a gloo", "b", "c"]
    assert content["pg_config"]["a gloo"] == {"name": "a gloo", "desc": "group a gloo", "ranks": "[0, 3]"}
    assert sorted(content["pg_config"]) == ["a", "a gloo", "b", "c"]


def test_a_torch_without_a_recorder_gives_none(recorders: Recorders) -> None:
    recorders(nccl=None, general=None)
    assert take_dump() is None
