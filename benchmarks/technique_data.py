"""What reading data ahead and token files do, measured: waits for batches, and the start of a rank that reads."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.ranks import run_ranks
from benchmarks.technique_pairs import BASE, new_trainer, with_settings
from megascope.trainer.config import DataConfig, Tokenizer, TrainConfig

TIMEOUT_S = 240.0
DRAW_S = 0.03
"""How long a batch pretends to be prepared: asleep, as a thread that waits for a disk is."""


def prefetch(depths: tuple[int, ...] = (0, 2)) -> dict[str, Any]:
    """Wall ms of a step that wait for a batch which takes `DRAW_S` to prepare, by ``data.prefetch``: the median."""
    result = {}
    for depth in depths:
        config = with_settings(BASE, {"model.sequence": 256, "train.steps": 12, "data.prefetch": depth})
        result[str(depth)] = run_ranks(1, lambda c=config: _waits(c), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _waits(config: TrainConfig) -> dict[str, float]:
    from megascope.trainer.data.batches import Batches

    rows, took, between = Batches.rows, [], []

    def slow_rows(*arguments: Any) -> Any:
        time.sleep(DRAW_S)
        return rows(*arguments)

    Batches.rows = slow_rows  # type: ignore[method-assign, assignment]
    trainer = new_trainer(config)
    load = trainer._loader.load

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        batch = load(*arguments)
        took.append((time.perf_counter() - began) * 1e3)
        between.append(began)
        return batch

    trainer._loader.load = timed
    trainer.run()
    steps = [(later - before) * 1e3 for before, later in pairwise(between)]
    return {"wait_ms": round(statistics.median(took[2:]), 2), "step_ms": round(statistics.median(steps[2:]), 1)}


def tokens(size_bytes: int = 4_000_000, vocabulary: int = 1024) -> dict[str, Any]:
    """CPU ms of a reader's start and bytes of tokens in its own memory: a text that is encoded, a token file."""
    from megascope.trainer.data.corpus import read_text
    from megascope.trainer.data.tokenizing import tokenize

    with TemporaryDirectory() as folder:
        text, made = Path(folder, "text.txt"), Path(folder, "tokens.npy")
        text.write_bytes(bytes(read_text(DataConfig(limit_bytes=size_bytes))))
        began = time.process_time_ns()
        tokenize([text], made, tokenizer="bpe", vocabulary=vocabulary, sample_bytes=size_bytes)
        made_ms = (time.process_time_ns() - began) / 1e6
        model = replace(BASE.model, vocabulary=vocabulary)
        sides = {
            "text": DataConfig(text=text, tokenizer=Tokenizer.BPE),
            "token_file": DataConfig(tokens=made),
        }
        result: dict[str, Any] = {"text_bytes": size_bytes, "made_once_cpu_ms": round(made_ms)}
        for name, data in sides.items():
            config = replace(BASE, model=model, data=data)
            result[name] = run_ranks(1, lambda c=config: _opened(c), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _opened(config: TrainConfig) -> dict[str, Any]:
    import numpy as np

    from megascope.trainer.data.opening import open_batches

    trainer = new_trainer(replace(config, data=DataConfig(limit_bytes=100_000)))
    began = time.process_time_ns()
    batches = open_batches(config, trainer._mesh, trainer._probe)
    cpu_ms = (time.process_time_ns() - began) / 1e6
    assert batches is not None
    held = 0 if isinstance(batches._tokens, np.memmap) else batches._tokens.nbytes
    return {"cpu_ms": round(cpu_ms, 1), "token_bytes_in_memory": held}
