"""Meaning read out of names, in the spellings of several libraries."""

from __future__ import annotations

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.graph import build_graph
from megascope.viz3d.operations import is_one_way, sends, synchronises
from support.hang_scenes import Scene, edges


@pytest.mark.parametrize(
    "name",
    [
        "dp_all_reduce",
        "allreduce",
        "AllGather",
        "c10d::_allgather_base_",
        "nccl:reduce_scatter",
        "all-to-all",
        "barrier",
    ],
)
def test_collectives_that_synchronise_are_known_in_all_spellings(name: str) -> None:
    assert synchronises("collective", name)
    assert not synchronises("compute", name)


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter", "grad_sync"])
def test_others_and_unknown_names_claim_nothing(name: str) -> None:
    assert not synchronises("collective", name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("send_forward", True), ("isend", True), ("recv_backward", False), ("irecv", False),
        ("receive_activation", False), ("Recv", False), ("send_recv", None), ("exchange", None),
    ],
)  # fmt: skip
def test_directions_of_messages(name: str, expected: bool | None) -> None:
    assert sends("p2p", name) is expected
    assert sends("collective", name) is None


def test_groups_of_one_direction() -> None:
    assert is_one_way("pp_forward")
    assert is_one_way("PP-Backward")
    assert is_one_way("pp_up")
    assert is_one_way("world_2_down")
    assert not is_one_way("group_up_2")
    assert not is_one_way("pp")


@pytest.mark.parametrize(
    ("one", "other", "met"),
    [
        ("isend", "receive_activation", True),
        ("send", "irecv", True),
        ("irecv", "recv", False),
        ("isend", "send", False),
        ("exchange", "exchange", True),
    ],
)
def test_two_ends_of_a_message_meet_whatever_they_are_called(one: str, other: str, met: bool) -> None:
    scene = Scene(Topology.of(pp=2))
    scene.message(0, one, 1, 3, kind="pp")
    scene.message(1, other, 0, 3, kind="pp")
    assert edges(build_graph(scene.snapshot())) == ({} if met else {0: {1}, 1: {0}})
