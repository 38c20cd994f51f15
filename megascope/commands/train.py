"""``megascope train``: the reference trainer, with the agent beside it."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..profiler.agent_process import start_agent
from ..profiler.errors import MegascopeError
from ..profiler.identity import mint_run
from ..profiler.opening import default_spool

if TYPE_CHECKING:
    from ..trainer.config import TrainConfig


def train(
    config: Annotated[Path, Parameter(help="Configuration in TOML.")],
    /,
    *overrides: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Settings that win over the file, such as --model.layers 8.")
    ],
    nproc: Annotated[
        int | None, Parameter(help="Processes to start on this host; the layout's size if absent.")
    ] = None,
    settings: Annotated[bool, Parameter(negative="", help="List all settings and their meaning.")] = False,
) -> int:
    """Train from a configuration file, recording every segment into a store.

    On one host it starts the processes itself. On several, start it under torchrun:
    torchrun --nnodes 2 --nproc-per-node 8 ... -m megascope train CONFIG.toml

    Example: megascope train my.toml --nproc 8 --train.steps 200 --parallel.tp 2
    """
    chosen = load_training(config, ["--help"] if settings else overrides)
    if settings:
        return 0
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _as_rank(chosen)
    return run_job(with_place(chosen, config.stem), nproc)


def load_training(path: Path, overrides: Sequence[str]) -> TrainConfig:
    """The configuration in a file, changed by flags; a sentence where torch is not installed."""
    from ..trainer.config import load_config  # noqa: PLC0415

    config = load_config(path, overrides)
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise MegascopeError(
            f"Training needs {error.name}, which is not installed: pip install 'megascope[trainer]'."
        ) from None
    return config


def with_place(config: TrainConfig, name: str) -> TrainConfig:
    """Fill in what a run is called, the next attempt of that run, and its spool."""
    record = config.record
    run = record.run or mint_run(name)
    attempt = record.attempt if record.attempt is not None else _next_attempt(record.store, run)
    spool = record.spool or default_spool(record.store)
    return dataclasses.replace(config, record=dataclasses.replace(record, run=run, spool=spool, attempt=attempt))


def _next_attempt(store: Path, run: str) -> int:
    from ..collectors.store import Store  # noqa: PLC0415

    try:
        known = [attempt.attempt for attempt in Store(store).attempts() if attempt.run == run]
    except MegascopeError:
        return 0
    return max(known, default=-1) + 1


def run_job(config: TrainConfig, nproc: int | None) -> int:
    """Start the agent and all ranks on this host; come back when both have ended."""
    from ..trainer.launch import launch  # noqa: PLC0415

    processes = nproc or config.topology().world_size
    config.validate(processes)
    agent = None
    if config.record.enabled:
        assert config.record.spool is not None
        config.record.store.mkdir(parents=True, exist_ok=True)  # a path that cannot be used is said before training
        agent = start_agent(config.record.spool, str(config.record.store.absolute()))
        sys.stdout.write(f"run {config.record.run}, attempt {config.record.attempt}: store {config.record.store}\n")
        sys.stdout.flush()
    try:
        return launch(config, processes, environment={})
    finally:
        if agent is not None:
            end_agent(agent)


def end_agent(agent: subprocess.Popen[bytes], patience_s: float = 60.0) -> None:
    """Let the agent write what is left and end."""
    agent.terminate()
    try:
        agent.wait(patience_s)
    except subprocess.TimeoutExpired:
        sys.stderr.write("megascope: the agent still writes; it ends by itself.\n")


def _as_rank(config: TrainConfig) -> int:
    from ..trainer.launch import train as train_rank  # noqa: PLC0415

    record = config.record
    if record.enabled and os.environ.get("LOCAL_RANK", os.environ["RANK"]) == "0":
        start_agent(record.spool or default_spool(record.store), str(record.store.absolute()))
    return train_rank(config)
