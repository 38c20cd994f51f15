"""``megascope train``: the reference trainer, with the agent beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..profiler.agent_process import HostAgent
from ..profiler.errors import MegascopeError
from ..profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE, mint_run, next_attempt_in
from ..profiler.opening import default_spool
from ..profiler.session import OFF_VARIABLE
from ..profiler.store_address import store_address, store_url

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
    if settings:
        from ..trainer.config import print_settings  # noqa: PLC0415

        print_settings()
        return 0
    chosen = load_training(config, overrides)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _as_rank(chosen, config.stem)
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
    """Fill in what a run is called, the next attempt of that run, and its spool; the environment may say, too."""
    record, env = config.record, os.environ
    run = record.run or env.get(RUN_VARIABLE) or mint_run(name)
    spool = record.spool or default_spool(record.store)
    attempt = record.attempt
    if attempt is None:
        given = env.get(ATTEMPT_VARIABLE)
        attempt = int(given) if given else next_attempt_in(record.store, spool)(run)
    enabled = record.enabled and env.get(OFF_VARIABLE, "0") in {"", "0"}
    return dataclasses.replace(
        config, record=dataclasses.replace(record, run=run, spool=spool, attempt=attempt, enabled=enabled)
    )


def run_job(config: TrainConfig, nproc: int | None, environment: Mapping[str, str] | None = None) -> int:
    """Start the agent and all ranks on this host; come back when both have ended."""
    from ..trainer.inputs import check_inputs  # noqa: PLC0415
    from ..trainer.launch import launch  # noqa: PLC0415

    processes = config.topology().world_size if nproc is None else nproc
    config.validate(processes)
    check_inputs(config)
    with contextlib.ExitStack() as stack:
        if config.record.enabled:
            record = config.record
            if store_url(record.store) is None:
                # A path that cannot be used is said before training.
                store_address(record.store).mkdir(parents=True, exist_ok=True)
            sys.stdout.write(
                f"run {record.run}, attempt {record.attempt}: store {store_url(record.store) or record.store}\n"
            )
            sys.stdout.flush()
            stack.enter_context(agent_of(config))
        return launch(config, processes, environment=environment or {})


@contextlib.contextmanager
def agent_of(config: TrainConfig) -> Iterator[None]:
    """An agent beside a job of this host, looked after by a thread; at the end it writes what is left."""
    assert config.record.spool is not None
    agent = HostAgent(config.record.spool, store_address(config.record.store))
    ended = threading.Event()

    def look_after() -> None:
        while not ended.wait(1.0):
            agent.ensure()

    agent.start()
    watch = threading.Thread(target=look_after, name="megascope-agent-watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()
        if not agent.end():
            sys.stderr.write("megascope: the agent still writes; it ends by itself.\n")
            agent.leave()


def _as_rank(config: TrainConfig, name: str) -> int:
    from ..trainer.launch import train as train_rank  # noqa: PLC0415

    record = config.record
    if not record.enabled or os.environ.get("LOCAL_RANK", os.environ["RANK"]) != "0":
        return train_rank(config, name=name)
    spool = record.spool or default_spool(record.store)
    agent = HostAgent(spool, store_address(record.store))
    agent.start()
    try:
        return train_rank(config, name=name)
    finally:
        agent.leave()
