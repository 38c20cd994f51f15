"""Axes and pods beside the hosts that ranks are on: what follows from them, and what is warned of."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.profiler.host import HOST_VARIABLE
from megascope.profiler.null import NullRecorder
from megascope.profiler.topology import Topology
from megascope.trainer.config import load_config
from megascope.trainer.inputs import check_inputs
from megascope.trainer.loop import TrainResult
from megascope.trainer.topology import groups_across_hosts, pod_of_places, pods, pods_that_split_places
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import run_config, small_config


def by(*counts: int) -> list[str]:
    """Hosts of so many consecutive ranks each."""
    return [f"host-{number}" for number, count in enumerate(counts) for _ in range(count)]


def test_tensor_parallel_groups_across_hosts_are_found() -> None:
    assert groups_across_hosts(Topology.of(pp=2, dp=2, tp=2), "tp", by(4, 4)) == []
    assert groups_across_hosts(Topology.of(dp=1, tp=4), "tp", by(2, 2)) == [(0, 1, 2, 3)]
    assert groups_across_hosts(Topology.of(tp=2, dp=2), "tp", by(2, 2)) == [(0, 2), (1, 3)]
    cyclic = ["a", "b", "a", "b"]  # as a launcher may lay ranks over hosts in turns
    assert groups_across_hosts(Topology.of(dp=2, tp=2), "tp", cyclic) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("topology", "hosts", "pod"),
    [
        (Topology.of(dp=4), by(2, 2), 2),
        (Topology.of(dp=4), by(4), 4),
        (Topology.of(dp=4), by(1, 1, 1, 1), 1),
        (Topology.of(pp=2, dp=4, tp=2), by(4, 4, 4, 4), 2),
        (Topology.of(dp=4, pp=2), by(4, 4), 2),
        (Topology.of(dp=6), by(4, 2), 2),
        (Topology.of(dp=6), by(3, 2, 1), 1),
        (Topology.of(pp=2, dp=4), by(4, 2, 2), 2),
        (Topology.of(dp=4), ["a", "b", "a", "b"], 1),
    ],
)
def test_pods_follow_from_hosts(topology: Topology, hosts: list[str], pod: int) -> None:
    assert pod_of_places(topology, hosts) == pod


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2, 4, 6, 8]), st.permutations(["pp", "dp", "tp"]))
def test_pods_that_follow_from_hosts_lie_in_hosts(data: st.DataObject, pp: int, dp: int, order: list[str]) -> None:
    sizes = {"pp": pp, "dp": dp, "tp": 2}
    topology = Topology.of(**{name: sizes[name] for name in order})
    count = topology.world_size
    hosts = data.draw(st.lists(st.sampled_from("abcd"), min_size=count, max_size=count).map(sorted))
    size = pod_of_places(topology, hosts)
    assert dp % size == 0
    assert all(
        len({hosts[rank] for rank in ranks}) == 1 for line in topology.groups("dp") for ranks in pods(line, size)[0]
    )
    assert pods_that_split_places(topology, size, hosts) == []


@pytest.mark.parametrize(
    ("pod", "hosts", "split"),
    [
        (2, by(2, 2), []),
        (2, by(4), []),
        (2, by(1, 1, 1, 1), []),  # two racks of two hosts, where no file says otherwise
        (2, by(1, 2, 1), [(0, 1), (2, 3)]),
        (2, by(3, 1), [(2, 3)]),
        (2, ["a", "b", "a", "b"], [(0, 1), (2, 3)]),
    ],
)
def test_pods_whose_borders_cross_those_of_hosts_are_found(
    pod: int, hosts: list[str], split: list[tuple[int, ...]]
) -> None:
    assert pods_that_split_places(Topology.of(dp=4), pod, hosts) == split


def test_pods_by_host_are_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[parallel]\ndp = 4\npod = "host"\n')
    fault = "skip-collective rank=0 step=1 segment="
    for config in (load_config(path), load_config(None, ["--parallel.dp", "4", "--parallel.pod", "host"])):
        assert config.parallel.pod == "host"
        for segment in ("dp_all_gather", "dp_pod_all_gather"):  # which of them there is, the hosts decide
            replace(config, fault=(fault + segment,)).validate(4)
    assert load_config(None, ["--parallel.pod", "2"]).parallel.pod == 2
    with pytest.raises(UsageError, match="'hall' is not a whole number"):
        load_config(None, ["--parallel.pod", "hall"])
    one_level = replace(config, parallel=replace(config.parallel, pod=4), fault=(fault + "dp_pod_all_gather",))
    with pytest.raises(UsageError, match="names the segment dp_pod_all_gather"):
        one_level.validate(4)


def test_pods_by_rack_need_a_file_that_can_be_read(tmp_path: Path) -> None:
    racks, path = tmp_path / "racks.csv", tmp_path / "run.toml"
    racks.write_text("host,rack\na,east\nb,west\n")
    path.write_text(f'[parallel]\ndp = 4\npod = "rack"\nracks = "{racks}"\n')
    config = load_config(path)
    assert (config.parallel.pod, config.parallel.racks) == ("rack", racks)
    config.validate(4)
    check_inputs(config)
    with pytest.raises(UsageError, match=r"parallel\.pod is rack, but nothing says which host is in which"):
        load_config(None, ["--parallel.dp", "4", "--parallel.pod", "rack"]).validate(4)
    racks.write_text("a\n")
    with pytest.raises(UsageError, match=f"Line 1 of {racks} is not host,rack"):
        check_inputs(config)


def trained(hosts: Sequence[str], **settings: Any) -> list[tuple[TrainResult, str]]:
    """Train for a step on ranks of these hosts; the result and the warnings of each rank."""
    config = small_config(steps=1, **settings)

    def work() -> tuple[TrainResult, str]:
        os.environ[HOST_VARIABLE] = hosts[dist.get_rank()]
        messages: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("megascope.trainer").addHandler(handler)
        return run_worker(config, NullRecorder()), " ".join(messages)

    return run_ranks(len(hosts), work)


@pytest.mark.timeout(60)
def test_tensor_parallelism_across_hosts_is_warned_of() -> None:
    (_, first), (_, second) = trained(["a", "b"], tp=2)
    assert "Tensor-parallel ranks [0, 1] lie on several hosts (a, b)" in first
    assert second == ""


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("hosts", "levels", "warning"),
    [
        (["a", "a", "b", "b"], {"pod", "across"}, ""),
        (["a", "b", "c", "d"], set(), "no neighbouring replicas share a host evenly"),
        (["a", "a", "a", "a"], set(), ""),
    ],
)
def test_gradients_are_reduced_as_hosts_lie(hosts: Sequence[str], levels: set[str], warning: str) -> None:
    layout: Mapping[str, Any] = {"dp": 4, "train": {"microbatches": 2}}
    results = trained(hosts, **layout, parallel={"pod": "host"})
    wanted = 2 if levels else 0
    expected = run_config(small_config(steps=1, **layout, parallel={"pod": wanted}))
    for (result, _), alike in zip(results, expected, strict=True):
        assert result.losses == alike.losses
        assert result.grad_norms == alike.grad_norms
        assert {name: one.count for name, one in result.traffic.items()} == {
            name: one.count for name, one in alike.traffic.items()
        }
        assert {name.split("_")[1] for name in result.traffic if name.startswith("dp_")} & {"pod", "across"} == levels
    assert (warning in results[0][1]) if warning else results[0][1] == ""
    assert not any(said for _, said in results[1:])


@pytest.mark.timeout(60)
def test_pods_that_do_not_suit_the_hosts_are_warned_of() -> None:
    layout: Mapping[str, Any] = {"dp": 4, "train": {"microbatches": 2}, "parallel": {"pod": 2}}
    told = trained(["a", "b", "b", "c"], **layout)[0][1]
    assert "The pod of replicas on ranks [0, 1] lies on parts of several hosts (a, b)" in told


RACKS = "a,east\nb,east\nc,west\nd,west\n"


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("racks", "levels", "warning"),
    [
        (RACKS, {"pod", "across"}, ""),
        (RACKS.replace("west", "east"), set(), ""),
        ("a,east\nb,west\nc,east\nd,west\n", set(), "no neighbouring replicas share a rack evenly"),
        ("a,east\nb,east\nc,west\n", set(), "has no rack for d"),
    ],
)
def test_gradients_are_reduced_as_racks_lie(racks: str, levels: set[str], warning: str, tmp_path: Path) -> None:
    path = tmp_path / "racks.csv"
    path.write_text(racks)
    results = trained("abcd", dp=4, train={"microbatches": 2}, parallel={"pod": "rack", "racks": path})
    for result, _ in results:
        assert {name.split("_")[1] for name in result.traffic if name.startswith("dp_")} & {"pod", "across"} == levels
    assert (warning in results[0][1]) if warning else results[0][1] == ""
    assert not any(said for _, said in results[1:])


@pytest.mark.timeout(60)
def test_pods_whose_borders_cross_those_of_racks_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "racks.csv"
    path.write_text("a,1\nb,2\nc,2\nd,3\n")
    layout: Mapping[str, Any] = {"dp": 4, "train": {"microbatches": 2}}
    told = trained("abcd", **layout, parallel={"pod": 2, "racks": path})[0][1]
    assert "The pod of replicas on ranks [0, 1] lies on parts of several racks (1, 2)" in told
