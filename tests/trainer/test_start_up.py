"""The start of a training: its phases are spans, no rank waits for what it does not need, a hang names its phase."""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from benchmarks.hang_jobs import Job, preload
from benchmarks.hang_looks import ask, summary
from benchmarks.hang_trials import Trial
from megascope.collectors.reading.store import Store
from megascope.commands.train import run_job
from megascope.profiler.null import NullRecorder
from megascope.trainer.config import DataConfig, RecordConfig, Tokenizer
from megascope.trainer.data.token_files import write_tokens
from megascope.trainer.loop import TrainResult
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import small_config, text_file

STUCK, LIMIT_S = 3, 60.0
opening: Any = importlib.import_module("megascope.trainer.data.opening")

PHASES = """
    SELECT rank, segment_name, kind, step, start_ns AS begun, start_ns + duration_ns AS ended
    FROM spans WHERE starts_with(segment_name, 'setup') ORDER BY begun"""


def trained(folder: Path, data: DataConfig, vocabulary: int = 256) -> dict[int, dict[str, dict[str, Any]]]:
    """Train for a step on two stages of one rank, and a middle one that reads nothing; the start of each rank."""
    config = small_config(pp=3, steps=1, model={"layers": 3, "vocabulary": vocabulary})
    record = RecordConfig(run="run", attempt=0, store=folder / "store", spool=folder / "spool")
    assert run_job(replace(config, data=data, record=record), 3, {"CUDA_VISIBLE_DEVICES": ""}) == 0
    rows = Store(folder / "store").query(PHASES).to_pylist()
    assert len({(row["rank"], row["segment_name"]) for row in rows}) == len(rows)
    return {rank: {row["segment_name"]: row for row in rows if row["rank"] == rank} for rank in range(3)}


ALWAYS = {"setup", "setup_groups", "setup_weights"}


@pytest.mark.timeout(120)
def test_the_store_has_the_phases_of_the_start(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    data = DataConfig(text=text_file(tmp_path), tokenizer=Tokenizer.BPE)
    found = trained(tmp_path, data, vocabulary=258)
    for rank, phases in found.items():
        reads = {"setup_text", "setup_tokenizer", "setup_tokens"} if rank != 1 else set()
        assert set(phases) == ALWAYS | reads
        whole = phases["setup"]
        for name, phase in phases.items():
            assert (phase["kind"], phase["step"]) == ("init", None), name
            assert whole["begun"] <= phase["begun"] <= phase["ended"] <= whole["ended"]


@pytest.mark.timeout(120)
def test_a_token_file_needs_no_text(tmp_path: Path) -> None:
    import numpy as np

    tokens = tmp_path / "tokens.npy"
    write_tokens(tokens, [np.arange(20_000, dtype=np.uint16) % 256], 256, "bytes")
    assert set(trained(tmp_path, DataConfig(tokens=tokens))[0]) == ALWAYS | {"setup_tokens"}


@pytest.mark.timeout(60)
def test_no_rank_waits_for_the_text_of_another(tmp_path: Path) -> None:
    """Rank 1 has its text only once rank 0 has passed its own set-up: with a barrier there, neither would go on."""
    is_through = tmp_path / "through"

    def work() -> TrainResult:
        read_text, is_first = opening.read_text, dist.get_rank() == 0

        def late(config: DataConfig) -> Any:
            while not (is_first or is_through.exists()):
                time.sleep(0.01)
            return read_text(config)

        opening.read_text = late

        class Noting(NullRecorder):
            def step(self, *_: Any, **__: Any) -> None:
                if is_first:
                    is_through.touch()

        return run_worker(small_config(dp=2, steps=2), Noting())

    first, second = run_ranks(2, work, timeout_s=40)
    assert first.losses == second.losses


class StuckJob(Job):
    """A job of which one rank never gets its text."""

    def _train(self) -> int:
        read_text = opening.read_text

        def never(config: DataConfig) -> Any:
            while os.environ["RANK"] == str(STUCK):
                time.sleep(1)
            return read_text(config)

        opening.read_text = never
        return super()._train()


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_a_hang_in_the_start_names_its_phase(tmp_path: Path) -> None:
    preload()
    job = StuckJob(Trial("pp2 dp2", "stuck", "", ("init",), (frozenset({STUCK}),)), tmp_path)
    job.start()
    try:
        told: dict[str, Any] = {}
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and told.get("verdict") != "hang":
            look = ask(job.store)
            told = summary(look.verdict) if look.verdict is not None else {}
            time.sleep(0.5)
    finally:
        job.end()
    assert told == {"verdict": "hang", "culprits": [["init", [STUCK], "setup_text"]]}
