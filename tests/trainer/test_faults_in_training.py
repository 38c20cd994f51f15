"""Fault switches in real training: they act where they should, are recorded, and change no loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.metadata import MetadataKind, read_metadata
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.trainer.worker import run_worker
from support.forkrun import Outcome, fork_ranks
from support.training import run_config, small_config


def train_recorded(
    spool: Path, *, faults: tuple[str, ...], is_stuck: bool = False, **layout: Any
) -> list[Outcome[Any]]:
    """Outcomes of six steps whose ranks record into ``spool``; a job that gets stuck is ended once the fault acted."""
    config = small_config(steps=6, fault=faults, **layout)
    world = config.topology().world_size

    def work() -> Any:
        import torch.distributed as dist

        settings = RecorderSettings(run="run", attempt=0, rank=dist.get_rank(), world_size=world, spool=spool)
        return run_worker(config, open_recorder(settings))

    def has_acted() -> bool:
        ranks = range(world) if is_stuck else ()
        return any(metadata(spool, rank, MetadataKind.FAULT) for rank in ranks)

    return fork_ranks(world, work, timeout_s=40, settle_s=1, until=has_acted)


def metadata(spool: Path, rank: int, kind: MetadataKind) -> list[dict[str, Any]]:
    paths = sorted((spool / "run" / "0").glob(f"rank-{rank:05d}.*.jsonl"))
    return [value for path in paths for _, value in read_metadata(path) if value["kind"] == kind]


def self_times(spool: Path, rank: int, segment: str) -> dict[int, int]:
    """Nanoseconds of its own that a segment took, by step."""
    names = {line["index"]: line["name"] for line in metadata(spool, rank, MetadataKind.SEGMENT)}
    reader = BoxReader(spool / "run" / "0" / f"rank-{rank:05d}.box")
    total: dict[int, int] = {}
    for ring in range(reader.layout.rings):
        for record in reader.read_ring(ring, 0).records:
            if names[int(record["segment"])] == segment:
                step = int(record["step"])
                total[step] = total.get(step, 0) + int(record["self_ns"])
    reader.close()
    return total


def step_durations(spool: Path, rank: int) -> list[float]:
    return [line["duration_ns"] / 1e9 for line in metadata(spool, rank, MetadataKind.STEP)]


@pytest.mark.timeout(60)
def test_kill_ends_the_rank_at_the_step_and_is_recorded(tmp_path: Path) -> None:
    outcomes = train_recorded(tmp_path, faults=("kill rank=1 step=3",), dp=2)
    assert outcomes[1].code == -signal.SIGKILL
    assert outcomes[0].code != 0
    assert [line["step"] for line in metadata(tmp_path, 1, MetadataKind.STEP)] == [0, 1, 2]
    (fault,) = metadata(tmp_path, 1, MetadataKind.FAULT)
    assert (fault["fault_kind"], fault["ranks"], fault["first_step"]) == ("kill", [1], 3)
    assert metadata(tmp_path, 0, MetadataKind.FAULT) == []
    (error,) = metadata(tmp_path, 0, MetadataKind.EXCEPTION)
    assert error["type"] == "PeerLostError"
    assert "group of ranks 0, 1 broke after" in error["message"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fault", ["stop rank=1 segment=forward step=2", "skip-collective rank=1 segment=tp_all_gather step=2"]
)
def test_a_rank_that_stops_or_skips_brings_the_job_to_a_stand(tmp_path: Path, fault: str) -> None:
    outcomes = train_recorded(tmp_path, faults=(fault,), is_stuck=True, tp=2)
    assert all(outcome.code != 0 for outcome in outcomes)
    for rank in range(2):
        assert [line["step"] for line in metadata(tmp_path, rank, MetadataKind.STEP)] == [0, 1]
    assert len(metadata(tmp_path, 1, MetadataKind.FAULT)) == 1


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_a_slow_link_lengthens_every_step(tmp_path: Path) -> None:
    outcomes = train_recorded(tmp_path, faults=("slow-link link=0>1 delay_ms=60 from=3",), pp=2)
    assert [outcome.code for outcome in outcomes] == [0, 0]
    durations = step_durations(tmp_path, 0)
    held_back_s = 4 * 0.06  # four micro-batches, each on its way up
    assert min(durations[3:]) > held_back_s > min(durations[1:3])


def count_sleep_of_ranks(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Append the seconds of every sleep of a forked rank to a file."""
    real_sleep, parent = time.sleep, os.getpid()

    def sleep(seconds: float) -> None:
        began = time.monotonic()
        real_sleep(seconds)
        if os.getpid() != parent:
            with path.open("a") as file:
                file.write(f"{time.monotonic() - began}\n")

    monkeypatch.setattr("megascope.trainer.faults.switches.time.sleep", sleep)


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_slowness_acts_and_changes_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_sleep_of_ranks(monkeypatch, tmp_path / "slept")
    plain = run_config(small_config(tp=2, steps=6))
    assert not (tmp_path / "slept").exists()
    outcomes = train_recorded(tmp_path, faults=("slow rank=1 factor=4 segment=forward from=3 to=4",), tp=2)
    results = [outcome.value for outcome in outcomes]
    assert [result and result.losses for result in results] == [result.losses for result in plain]
    slept_s = sum(float(line) for line in (tmp_path / "slept").read_text().splitlines())
    own = [self_times(tmp_path, 1, segment) for segment in ("forward", "loss")]
    own_s = sum(times[step] for times in own for step in (3, 4)) / 1e9
    assert 0.6 < slept_s / own_s < 0.8  # three quarters, however busy the machine is
    first, second = metadata(tmp_path, 1, MetadataKind.FAULT)
    steps = {line["step"]: line["start_ns"] for line in metadata(tmp_path, 1, MetadataKind.STEP)}
    assert (first["first_step"], first["last_step"], first["last_ns"]) == (3, 4, None)
    assert second["fault"] == first["fault"]
    assert steps[3] < second["first_ns"] < steps[4] < steps[5] <= second["last_ns"]


@pytest.mark.timeout(60)
def test_a_slow_link_acts_and_changes_no_loss(tmp_path: Path) -> None:
    plain = run_config(small_config(tp=2, steps=6))
    outcomes = train_recorded(tmp_path, faults=("slow-link link=0>1 delay_ms=1",), tp=2)
    results = [outcome.value for outcome in outcomes]
    assert [result and result.losses for result in results] == [result.losses for result in plain]
    assert [line["fault_kind"] for line in metadata(tmp_path, 0, MetadataKind.FAULT)] == ["slow-link"] * 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_slow_card_in_a_pipeline_acts_and_changes_no_loss(tmp_path: Path, chunks: int) -> None:
    """Both ends of its links send late at once; they must be able to receive meanwhile."""
    plain = run_config(small_config(pp=2, chunks=chunks, steps=6))
    outcomes = train_recorded(tmp_path, faults=("slow-nic rank=1 delay_ms=2 from=2",), pp=2, chunks=chunks)
    results = [outcome.value for outcome in outcomes]
    assert [result and result.losses for result in results] == [result.losses for result in plain]
    assert [line["fault_kind"] for line in metadata(tmp_path, 1, MetadataKind.FAULT)] == ["slow-nic"] * 2
    assert not metadata(tmp_path, 0, MetadataKind.FAULT)


@pytest.mark.timeout(60)
def test_a_training_diverges_with_losses_that_stay_finite(tmp_path: Path) -> None:
    plain = run_config(small_config(tp=2, steps=6))
    outcomes = train_recorded(tmp_path, faults=("diverge factor=1000 from=2 to=4",), tp=2)
    losses, others = (outcome.value.losses for outcome in outcomes if outcome.value is not None)
    assert losses == others
    assert losses[:3] == plain[0].losses[:3]  # the loss of a step is that of the weights before its update
    assert all(2 * usual < loss < 1e6 for loss, usual in zip(losses[4:], plain[0].losses[4:], strict=True))
    for rank in range(2):
        first, last = metadata(tmp_path, rank, MetadataKind.FAULT)
        assert (first["fault_kind"], first["ranks"], first["last_ns"]) == ("diverge", [], None)
        assert last["last_ns"] > first["first_ns"]
