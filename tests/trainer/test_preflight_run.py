"""Whole checks on real processes: what is planted is named, and nobody else; what hangs is bounded and named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from megascope.collectors.result_files import PREFLIGHT, list_results, read_result, write_result
from megascope.collectors.verdicts import to_json
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.topology import Topology
from megascope.trainer.preflight.check import Answer, Check, Here
from megascope.trainer.preflight.compute import Matmul
from megascope.trainer.preflight.links import AllReduce, Pairs
from megascope.trainer.preflight.measurements import Kind, Metric, Outcome, Reason, Report
from megascope.trainer.preflight.plan import Cluster, Round
from megascope.trainer.preflight.ports import Ports
from megascope.trainer.preflight.starting import Settings, run_preflight
from megascope.trainer.preflight.storage import Checkpoints

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]

EIGHT = Topology.of(pp=2, dp=2, tp=2)
LONG_S, SHORT_S = 0.3, 0.03
"""Work that sleeps takes as long as it says, nearly whatever else the machine does."""


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def check(*checks: Check, topology: Topology = EIGHT, timeout_s: float = 20.0, folder: Path | None = None) -> Report:
    settings = Settings(topology=topology, quick=True, device="cpu", timeout_s=timeout_s, folder=folder)
    report = run_preflight(settings, checks)
    assert report is not None
    return report


def accused(report: Report) -> list[tuple[str, Kind, Reason, tuple[int, ...]]]:
    return [(one.check, one.kind, one.reason, one.ranks) for one in report.culprits]


class SleepingMatmul(Matmul):
    """A multiplication that takes 30 ms; on the ranks that are ``slow``, 300 ms."""

    def __init__(self, *slow: int) -> None:
        self.slow = slow

    def multiply(self, here: Here, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        super().multiply(here, left, right, product)
        time.sleep(LONG_S if here.rank in self.slow else SHORT_S)


class SleepingPairs(Pairs):
    """A round trip that takes 30 ms; of the pair that is ``slow``, 300 ms."""

    def __init__(self, *slow: tuple[int, int]) -> None:
        self.slow = slow

    def round_trip(self, here: Here, message: torch.Tensor) -> None:
        super().round_trip(here, message)
        time.sleep(LONG_S if here.team in self.slow else SHORT_S)


def test_a_slow_process_is_named_and_nobody_else() -> None:
    report = check(SleepingMatmul(5))
    assert accused(report) == [("matmul", Kind.RANK, Reason.OUTLIER, (5,))]
    assert report.verdict is Outcome.FINDINGS
    (culprit,) = report.culprits
    assert culprit.value is not None
    assert culprit.peers is not None
    assert culprit.value < 0.2 * culprit.peers
    assert "Rank 5 on" in culprit.statement


def test_equal_processes_are_healthy() -> None:
    report = check(SleepingMatmul(), SleepingPairs())
    assert report.culprits == ()
    assert report.verdict is Outcome.HEALTHY
    assert report.abstained == ()
    assert len([one for one in report.measurements if one.check == "pairs"]) == 2 * 12


def test_a_slow_pair_is_named_and_nobody_else() -> None:
    report = check(SleepingPairs((1, 5)))
    assert {(kind, ranks) for _, kind, _, ranks in accused(report)} == {(Kind.LINK, (1, 5))}
    assert {one.metric for one in report.culprits} <= {"bandwidth", "latency"}
    assert "bandwidth" in {one.metric for one in report.culprits}


class HangingReduce(AllReduce):
    """Rank 2 never comes to the all-reduce."""

    def measure(self, here: Here) -> Answer:
        if here.rank == 2:
            time.sleep(100)
        return super().measure(here)


def test_who_hangs_a_collective_is_named_and_the_rest_still_runs() -> None:
    report = check(HangingReduce(), SleepingMatmul(), timeout_s=3)
    assert accused(report) == [("all_reduce", Kind.RANK, Reason.HUNG, (2,))]
    assert "7 other ranks waited" in report.culprits[0].statement
    assert len(report.measurements) == 8  # the matmul of all ranks


class FailingReduce(AllReduce):
    """Rank 3 fails in the middle."""

    def measure(self, here: Here) -> Answer:
        if here.rank == 3:
            raise OSError("the card fell off the bus")
        return super().measure(here)


def test_who_fails_is_named_with_its_error_and_the_rest_still_runs() -> None:
    report = check(FailingReduce(), SleepingMatmul(), timeout_s=5)
    assert accused(report) == [("all_reduce", Kind.RANK, Reason.FAILED, (3,))]
    assert "the card fell off the bus" in report.culprits[0].statement
    assert len(report.measurements) == 8


class StoppingMatmul(SleepingMatmul):
    """Rank 1 stops as a whole: the process that waits for the measurement, too."""

    def multiply(self, here: Here, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        if here.rank == 1:
            os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        super().multiply(here, left, right, product)


def test_a_rank_that_answers_no_more_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.trainer.preflight.coordinator.GRACE_S", 1.0)
    report = check(StoppingMatmul(), SleepingPairs(), timeout_s=3)
    assert accused(report) == [("matmul", Kind.RANK, Reason.MISSING, (1,))]
    pairs = {one.ranks for one in report.measurements if one.check == "pairs"}
    assert len(pairs) == 12 - 3
    assert all(1 not in ranks for ranks in pairs)


class Miscalculating(Matmul):
    """A device whose product has a wrong number."""

    def multiply(self, here: Here, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        super().multiply(here, left, right, product)
        if here.rank == 6:
            product[3, 4] += 1


def test_a_wrong_product_fails_its_rank() -> None:
    report = check(Miscalculating())
    assert ("matmul", Kind.RANK, Reason.FAILED, (6,)) in accused(report)
    assert any("miscalculates" in one.statement for one in report.culprits)


# -- single checks --------------------------------------------------------------------------------------------------


class RottingCheckpoints(Checkpoints):
    """A disk that gives back something else to rank 0."""

    def read(self, here: Here, path: Path) -> bytes:
        back = super().read(here, path)
        return back[:-1] + bytes([back[-1] ^ 1]) if here.rank == 0 else back


def test_checkpoints_are_written_and_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    report = check(RottingCheckpoints(), topology=Topology.of(dp=2), folder=folder)
    assert accused(report) == [("checkpoint", Kind.RANK, Reason.FAILED, (0,))]
    assert "not what was written" in report.culprits[0].statement
    assert {(one.metric, one.ranks) for one in report.measurements} == {("write", (1,)), ("read", (1,))}
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = check(Checkpoints(), topology=Topology.of(dp=1), folder=tmp_path / "file")
    (culprit,) = report.culprits
    assert culprit.reason is Reason.FAILED
    assert "file" in culprit.statement


def counters_in(root: Path, **values: int) -> None:
    for folder in (root / "infiniband/mlx5_0/ports/1/counters", root / "net/eth0/statistics", root / "net/eth0/device"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "net/lo/statistics").mkdir(parents=True, exist_ok=True)
    (root / "net/lo/statistics/rx_errors").write_text("7\n")
    names = {
        "symbol_error": "infiniband/mlx5_0/ports/1/counters",
        "port_xmit_data": "infiniband/mlx5_0/ports/1/counters",
    }
    for name, value in values.items():
        (root / names.get(name, "net/eth0/statistics") / name).write_text(f"{value}\n")


class Flapping(SleepingMatmul):
    """While this runs, counters of the host's ports grow."""

    def __init__(self, root: Path, **values: int) -> None:
        super().__init__()
        self.root, self.values = root, values

    def multiply(self, here: Here, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        super().multiply(here, left, right, product)
        counters_in(self.root, **self.values)


def test_a_port_whose_errors_grow_is_named_and_drops_are_a_note(tmp_path: Path) -> None:
    counters_in(tmp_path, symbol_error=3, port_xmit_data=100, rx_errors=0, rx_dropped=5)
    flapping = Flapping(tmp_path, symbol_error=10, port_xmit_data=10**9, rx_errors=0, rx_dropped=9)
    report = check(Ports(tmp_path), flapping, topology=Topology.of(dp=4))
    assert accused(report) == [("ports", Kind.HOST, Reason.ERRORS, (0, 1, 2, 3))]
    assert "symbol_error of port mlx5_0/1 grew by 7 (to 10)" in report.culprits[0].statement
    assert len(report.notes) == 1
    assert "rx_dropped of port eth0 grew by 4" in report.notes[0]


class Constant(Check):
    """Gives 1 on each rank."""

    name = "constant"
    metrics = (Metric(name="one", unit="1"),)

    def rounds(self, cluster: Cluster) -> list[Round]:
        return [[(rank,) for rank in cluster.members]]

    def measure(self, here: Here) -> Answer:
        return Answer({"one": 1.0})


def test_few_ranks_are_not_called_healthy() -> None:
    report = check(Constant(), Pairs(), topology=Topology.of(dp=1))
    assert report.verdict is Outcome.INSUFFICIENT
    assert [one.signal for one in report.abstained] == ["constant.one"]
    assert [one.signal for one in report.skipped] == ["pairs"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="has 8 ranks, but 3 run"):
        run_preflight(Settings(topology=EIGHT, nproc=3), [Constant()])
    with pytest.raises(UsageError, match=r"no metric 'matmul'.*constant\.one"):
        run_preflight(Settings(nproc=1, floors={"matmul": 1.0}), [Constant()])
    with pytest.raises(UsageError, match="no GPU is visible"):
        run_preflight(Settings(nproc=1, device="cuda"), [Constant()])


def test_a_result_is_kept_and_read_again(tmp_path: Path) -> None:
    result = to_json(check(Constant(), topology=Topology.of(dp=4)))
    path = write_result(tmp_path, PREFLIGHT, result)
    assert list_results(tmp_path, PREFLIGHT) == [path]
    assert read_result(path, PREFLIGHT) == result
    path.write_text(path.read_text()[:100])
    with pytest.raises(MegascopeError, match="cannot be read"):
        read_result(path, PREFLIGHT)
    path.write_text('{"schema": 1}')
    with pytest.raises(MegascopeError, match="no result of megascope preflight"):
        read_result(path, PREFLIGHT)
