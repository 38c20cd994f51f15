"""From card to card of a host: which cards there are, and what a stand-in for ib_write_bw says of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megascope.profiler.topology import Topology
from megascope.trainer.preflight.check import Effort, Here
from megascope.trainer.preflight.measurements import Member
from megascope.trainer.preflight.nics import TOOL, Nics, active_cards, write_bandwidth
from megascope.trainer.preflight.plan import Cluster
from megascope.trainer.preflight.ports import read_counters

STAND_IN = """#!{python}
import sys, time
card = sys.argv[sys.argv.index("-d") + 1]
if sys.argv[-1] != "127.0.0.1":
    time.sleep(100)
if card == "mlx5_9":
    sys.exit("Couldn't connect to 127.0.0.1")
speed = {{"mlx5_0": 195.5, "mlx5_1": 21.0}}[card]
print("---------------------------------------------------------------------------------------")
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
print(f" 1048576    1000             197.10             {{speed}}               0.023305")
"""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two active cards and one whose port is down."""
    for card, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        port = tmp_path / "infiniband" / card / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "counters" / "symbol_error").write_text("0\n")
        (port / "counters" / "port_rcv_errors").write_text("not a number\n")
    return tmp_path


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of perftest's, which says that mlx5_1 sends slowly."""
    path = tmp_path / TOOL
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def here() -> Here:
    member = Member(rank=0, host="a", local_rank=0)
    return Here(
        rank=0, team=(0,), device="cpu", local_rank=0, cluster=Cluster({0: member}, Topology.of(dp=1)),
        effort=Effort(), note=lambda _: None, exchange=lambda key, value: "",
    )  # fmt: skip


def test_the_slowest_way_of_a_host_is_its_value(sysfs: Path, tool: None) -> None:
    assert active_cards(sysfs) == ["mlx5_0", "mlx5_1"]
    answer = Nics(sysfs).measure(here())
    assert answer.values == {"bandwidth": 21.0 / 8}
    assert answer.kind == "hosts with 2 RDMA cards"
    assert answer.facts["mlx5_0 > mlx5_1"] == pytest.approx(195.5 / 8)
    assert len(answer.facts) == 4


def test_a_way_that_fails_is_told_with_the_tools_words(sysfs: Path, tool: None) -> None:
    with pytest.raises(RuntimeError, match=r"from mlx5_9 to mlx5_0 failed .*Couldn't connect"):
        write_bandwidth("mlx5_9", "mlx5_0", 20)


def test_without_cards_or_the_tool_the_check_says_so(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, effort = here().cluster, here().effort
    assert "no active RDMA card" in (Nics(tmp_path / "nothing").why_not(cluster, effort) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert "install perftest" in (Nics(sysfs).why_not(cluster, effort) or "")


def test_counters_that_cannot_be_read_are_left_out(sysfs: Path) -> None:
    assert read_counters(sysfs) == {
        "mlx5_0/1 symbol_error": 0, "mlx5_1/1 symbol_error": 0, "mlx5_2/1 symbol_error": 0,
    }  # fmt: skip
