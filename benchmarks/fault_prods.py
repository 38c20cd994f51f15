"""What is done to a training from outside: storage, hosts and agents that fail without the program's doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from megascope.trainer.supervisor.attempt import AttemptState

from .fault_draws import AT
from .fault_trials import EVERY, FILL, KILL_AS_IT_STARTS

SMALL_DISK_BYTES = 16 * 2**20
FALLEN_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
HOLD_S = 20.0
"""So long storage stays broken."""


@dataclass(slots=True)
class Prod:
    """Acts once, as soon as it is time: where the training has reached step ``at``, or begins for the second time.

    ``victim``, ``host``: the rank and the host that it comes to. ``nodes``: process id of each host's agent;
    ``kernel_logs``: the file that each host's collector reads as its kernel's log.
    """

    name: str
    checkpoints: Path
    nodes: dict[str, int]
    kernel_logs: dict[str, Path]
    at: int = AT
    victim: int = 3
    host: str = "node-1"
    acted_ns: int | None = None
    _mend: Callable[[], None] | None = None
    _mend_at: float = 0.0
    _acts: dict[str, Callable[[AttemptState], None]] = field(init=False)

    def __post_init__(self) -> None:
        """Fill the table of what can be done."""
        self._acts = {
            FILL: self._fill_storage,
            "break-storage": self._break_storage,
            "freeze-host": self._freeze_host,
            "kill-node-agent": lambda _: os.kill(self.nodes[self.host], signal.SIGKILL),
            "kill-collector": self._kill_collector,
            "damage-and-kill": self._damage_and_kill,
            KILL_AS_IT_STARTS: lambda state: os.kill(state.pids[self.victim], signal.SIGKILL),
            "gpu-falls-off": self._gpu_falls_off,
        }

    def poll(self, state: AttemptState | None, step: int | None) -> None:
        """Act, if it is time; mend what is to be mended."""
        if self._mend is not None and time.monotonic() >= self._mend_at:
            self.mend()
        if self.name and self.acted_ns is None and state is not None and self._is_time(state, step):
            self.acted_ns = time.time_ns()
            self._acts[self.name](state)

    def _is_time(self, state: AttemptState, step: int | None) -> bool:
        if self.name == KILL_AS_IT_STARTS:
            return state.number == 1 and step is None and self.victim in state.pids
        return step is not None and step >= self.at

    def mend(self) -> None:
        """Let storage work again."""
        mend, self._mend = self._mend, None
        if mend is not None:
            mend()

    def _fill_storage(self, _: AttemptState) -> None:
        if not self.checkpoints.is_mount():
            raise RuntimeError(f"{self.checkpoints} is no file system of its own: a real disk would be filled")
        filler = self.checkpoints / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(65536))
                file.flush()
        self._mend, self._mend_at = lambda: filler.unlink(missing_ok=True), time.monotonic() + HOLD_S

    def _break_storage(self, _: AttemptState) -> None:
        """Files stand where the folders of the next checkpoints have to be."""
        newest = max(int(path.name.removeprefix("step-")) for path in self.checkpoints.glob("step-*"))
        blocks = [self.checkpoints / f"step-{newest + EVERY * more:08d}" for more in range(1, 9)]
        made = []
        for block in blocks:
            with contextlib.suppress(OSError):
                block.touch(exist_ok=False)
                made.append(block)

        def remove() -> None:
            for block in made:
                block.unlink(missing_ok=True)

        self._mend, self._mend_at = remove, time.monotonic() + HOLD_S

    def _freeze_host(self, _: AttemptState) -> None:
        """Stop every process of a host; they go on when the trial ends, so that none is left over."""
        node = psutil.Process(self.nodes[self.host])
        processes = [node, *node.children(recursive=True)]

        def send(number: int) -> None:
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

        send(signal.SIGSTOP)
        self._mend, self._mend_at = lambda: send(signal.SIGCONT), float("inf")

    def _kill_collector(self, _: AttemptState) -> None:
        for child in psutil.Process(self.nodes[self.host]).children():
            if "collect" in child.cmdline():
                child.kill()

    def _gpu_falls_off(self, _: AttemptState) -> None:
        with self.kernel_logs[self.host].open("a") as file:
            file.write(f"[{time.monotonic():.6f}] {FALLEN_OFF}\n")

    def _damage_and_kill(self, state: AttemptState) -> None:
        """Flip a byte of a shard of the newest checkpoint, and kill a rank."""
        newest = max(self.checkpoints.glob("step-*/commit.json"), key=lambda path: path.parent.name).parent
        shard = max(newest.glob("*.shard"), key=lambda path: path.stat().st_size, default=None)
        if shard is not None:
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 0xFF
            shard.write_bytes(content)
        os.kill(state.pids[self.victim], signal.SIGKILL)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 16 MiB at the folder, True where one may be mounted (Linux, root); else the folder as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
