"""One rank of a supervised job: its environment, its log, and the request to save and stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch._C._distributed_c10d import TCPStore

from ...collectors.manifests.manifest import quote_name
from ...profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE
from ...profiler.opening import default_spool
from ..config import load_config
from ..launch import guarded, say
from ..stopping import CONTROL_VARIABLE
from ..worker import run_worker

NODE_VARIABLE = "MEGASCOPE_NODE"
"""Process id of the host's agent: what is killed where a whole host is to be lost on purpose."""

TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One attempt on one host, as the supervisor orders it."""

    run: str
    attempt: int
    config: Path
    overrides: tuple[str, ...]
    first_rank: int
    local_ranks: int
    world_size: int
    master: tuple[str, int]
    log: Path
    store: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """From the supervisor's message."""
        return cls(
            run=str(message["run"]),
            attempt=int(message["attempt"]),
            config=Path(message["config"]),
            overrides=tuple(map(str, message["overrides"])),
            first_rank=int(message["first_rank"]),
            local_ranks=int(message["local_ranks"]),
            world_size=int(message["world_size"]),
            master=(str(message["master"][0]), int(message["master"][1])),
            log=Path(message["log"]),
            store=Path(message["store"]),
            environment=dict(message["environment"]),
        )

    @property
    def control(self) -> Path:
        """The file in which the ranks of this host look for a request: on the host's own disk or memory."""
        return default_spool(self.store) / f"{quote_name(self.run)}-{self.attempt}.control"


def run_rank(start: Start, local: int) -> int:
    """Train as one rank of this host; the exit code. What it says goes to the log of the attempt."""
    start.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(start.environment)
    os.environ.update(
        RANK=str(start.first_rank + local),
        LOCAL_RANK=str(local),
        WORLD_SIZE=str(start.world_size),
        LOCAL_WORLD_SIZE=str(start.local_ranks),
        MASTER_ADDR=start.master[0],
        MASTER_PORT=str(start.master[1]),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the rendezvous is there already: no rank is to open it
        TORCHELASTIC_RESTART_COUNT="0",
        **{RUN_VARIABLE: start.run, ATTEMPT_VARIABLE: str(start.attempt)},
        **{NODE_VARIABLE: str(os.getppid()), CONTROL_VARIABLE: str(start.control)},
    )
    return guarded(lambda: _train(start))


def _train(start: Start) -> None:
    config = load_config(start.config, start.overrides)
    record = config.record
    spool = record.spool or default_spool(record.store)
    config = replace(config, record=replace(record, run=start.run, attempt=start.attempt, spool=spool))
    run_worker(config, progress=say)


def hold_rendezvous(server: socket.socket) -> int:
    """Serve the ranks' rendezvous on a listening socket until the process is ended."""
    host, port = server.getsockname()[:2]
    store = TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=server.detach())
    while store.num_keys() >= 0:
        signal.pause()
    return 0


def write_control(path: Path, step: int) -> None:
    """Ask the ranks of this host to save and to stop, after ``step`` updates at the earliest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(step))
    temporary.replace(path)


def remove_control(path: Path) -> None:
    """Take a request back, for whoever has not seen it yet."""
    path.unlink(missing_ok=True)


def tail_of(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
