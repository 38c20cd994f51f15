"""Trainings for `trainer_hangs`: forked from a parent that has imported torch once, each in a session of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .hang_trials import CHECKPOINT_EVERY, LAYOUTS, Trial

RUN = "trial"
GRACE_S = 15.0
STEPS = 100_000


def preload() -> None:
    """Import what every training needs; nothing that starts threads."""
    for name in ("torch", "torch.distributed.device_mesh", "torch.fx.experimental.symbolic_shapes"):
        importlib.import_module(name)


@dataclass(slots=True)
class Job:
    """One training and its agent, on one host; on two, each under torchrun with a host name of its own."""

    trial: Trial
    folder: Path
    pids: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """Folder of the store."""
        return self.folder / "store"

    def flags(self) -> list[str]:
        """Settings of the training: a small model in the trial's layout, evaluated and saved every few steps."""
        sizes = {f"parallel.{axis}": size for axis, size in LAYOUTS[self.trial.layout].items()}
        settings = {
            "model.layers": 4, "model.width": 32, "model.heads": 4, "model.sequence": 32,
            **sizes, "parallel.bucket-bytes": 32768, "parallel.timeout-s": 300,
            "train.steps": STEPS, "train.batch": 8, "train.microbatches": 4, "train.log-every": STEPS,
            "train.eval-every": self.trial.eval_every, "data.limit-bytes": 100_000,
            "checkpoint.folder": self.folder / "checkpoints", "checkpoint.every": CHECKPOINT_EVERY,
            "record.store": self.store, "record.run": RUN, "record.attempt": 0,
        }  # fmt: skip
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [*flags, *(["--fault", self.trial.fault] if self.trial.fault else [])]

    def start(self) -> None:
        """Start it."""
        if self.trial.hosts > 1:
            self._start_hosts()
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                code = self._train()
            finally:
                os._exit(code)
        self.pids.append(pid)

    def _train(self) -> int:
        from megascope.commands.train import run_job
        from megascope.trainer.config import load_config

        log = os.open(self.folder / "training.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from megascope.commands.train import with_place

        config = with_place(load_config(None, self.flags()), RUN)
        return run_job(config, None, {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})

    def _start_hosts(self) -> None:
        """Half of the ranks on each of two hosts, which differ in their name and spool (Linux, as root)."""
        (self.folder / "empty.toml").write_text("")
        per_host = 8 // self.trial.hosts
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        for number in range(self.trial.hosts):
            command = [
                "unshare", "--uts", "sh", "-c", f'hostname node-{number}; exec "$@"', "sh",
                sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.trial.hosts), "--node-rank",
                str(number), "--nproc-per-node", str(per_host), "--master-addr", "127.0.0.1", "--master-port", port,
                "-m", "megascope", "train", str(self.folder / "empty.toml"), *self.flags(),
            ]  # fmt: skip
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "MEGASCOPE_SPOOL": str(self.folder / f"spool-{number}"),
            }
            with (self.folder / f"training-{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            self.processes.append(process)

    def tell(self) -> None:
        """Tell it to end, without waiting."""
        for process in self.processes:
            _signal_group(process.pid, signal.SIGTERM)
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)  # a child that has ended is not reaped yet: its id is nobody else's

    def end(self) -> None:
        """End it and everything that it started; a job that stands still is killed after some seconds."""
        self.tell()
        for process in self.processes:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self.pids:
            if not _reaped(pid, GRACE_S):
                _signal_group(pid, signal.SIGKILL)
                _reaped(pid, GRACE_S)


def acted_ns(folder: Path) -> int | None:
    """When a fault acted of which the store has nothing, since the agent that would have told of it was killed too:
    UTC ns at which the rank last wrote to its spool, which is when it noted the fault. None before that."""
    notes = [path for path in folder.glob(f"spool-*/**/{RUN}/0/*.meta.jsonl") if '"kill-host"' in path.read_text()]
    return min((path.stat().st_mtime_ns for path in notes), default=None)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _reaped(pid: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.05)
    return False
