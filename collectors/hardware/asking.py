"""The agent's side of the probe: it asks, takes what has come, and gives up on what does not answer in time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .probe import NVML, PORTS
from .rdma import ROOT

ANSWER_S = 5.0
"""Whatever takes longer than this does not answer."""

START_S = 30.0
"""The same for the start: without persistence mode the driver wakes every GPU first."""

REST_S = 60.0
MOST_REST_S = 600.0
"""What did not answer is left alone for so long; twice as long each time, up to the second."""

_MODULE = "megascope.collectors.hardware.probe"


@dataclass(slots=True)
class Answer:
    """What has come of one request, and what of it did not answer: GPU indices, ``nvml`` or ``ports``.

    ``has_ended``: the child died of what it asked last.
    """

    gpus: list[dict[str, Any]] = field(default_factory=list)
    ports: list[dict[str, Any]] | None = None
    absent: str | None = None
    unreadable: str | None = None
    silent: list[int | str] = field(default_factory=list)
    has_ended: bool = False


class Asker:
    """Keeps one child. No call waits: `ask` writes a line, `take` reads what is there."""

    def __init__(
        self,
        *,
        has_ports: bool,
        has_gpus: bool = True,
        ports_root: Path = ROOT,
        answer_s: float = ANSWER_S,
        start_s: float = START_S,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_ports, self._has_gpus, self._root = has_ports, has_gpus, ports_root
        self._answer_s, self._start_s, self._first_rest_s, self._clock = answer_s, start_s, rest_s, clock
        self._is_new = True
        self.problem: str | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._answer: Answer | None = None
        self._begun: int | str = NVML
        self._moved_at = 0.0
        self._rest: dict[int | str, tuple[float, float]] = {}  # what -> (until, for how long)
        self._text = b""
        self._left: list[subprocess.Popen[bytes]] = []

    @property
    def resting(self) -> set[int | str]:
        """What did not answer lately and is left alone."""
        now = self._clock()
        return {what for what, (until, _) in self._rest.items() if now < until}

    @property
    def is_busy(self) -> bool:
        """Whether an answer is on its way."""
        return self._answer is not None

    def ask(self) -> bool:
        """Begin a sample; False where one is under way, or everything rests, or no child can be started."""
        resting = self.resting
        gpus, ports = self._has_gpus and NVML not in resting, self._has_ports and PORTS not in resting
        if self._answer is not None or not (gpus or ports):
            return False
        request = {"gpus": gpus, "ports": ports, "skip": sorted(one for one in resting if isinstance(one, int))}
        try:
            child = self._started()
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except OSError as error:
            self.problem = f"GPUs and RDMA ports are not sampled: no process can be started for that ({error})."
            self._drop()
            return False
        self._answer, self._text, self._begun, self._moved_at = Answer(), b"", NVML if gpus else PORTS, self._clock()
        return True

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._drop()
            command = [sys.executable, "-P", "-m", _MODULE, str(self._root)]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", "MEGASCOPE_OFF": "1"}, start_new_session=True,
            )  # fmt: skip
            self._is_new = True
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
        return self._child

    def take(self) -> Answer | None:
        """The answer once it is complete, or once something in it has taken too long; None until then."""
        self._left = [child for child in self._left if child.poll() is None]
        if self._answer is None:
            return None
        is_whole = self._read()
        if is_whole:
            return self._done()
        is_dead = self._child is None or self._child.poll() is not None
        patience_s = self._start_s if self._begun == NVML or self._is_new else self._answer_s
        if not is_dead and self._clock() - self._moved_at < patience_s:
            return None
        self._answer.silent.append(self._begun)
        self._answer.has_ended = is_dead
        _, lasted_s = self._rest.get(self._begun, (0.0, self._first_rest_s / 2))
        rest_s = min(2 * lasted_s, MOST_REST_S)
        self._rest[self._begun] = (self._clock() + rest_s, rest_s)
        self._drop()
        return self._done()

    def _done(self) -> Answer:
        answer, self._answer = self._answer, None
        assert answer is not None
        answered: set[int | str] = {int(one["gpu"]) for one in answer.gpus}
        answered |= {PORTS} if answer.ports is not None else set()
        answered |= {NVML} if answer.gpus else set()
        for what in answered:
            self._rest.pop(what, None)
        return answer

    def _read(self) -> bool:
        """Take over the lines that have come; whether the last one of the answer is among them."""
        if self._child is None or self._child.stdout is None or self._answer is None:
            return False
        with contextlib.suppress(BlockingIOError, OSError):
            while piece := os.read(self._child.stdout.fileno(), 65536):
                self._text += piece
        *lines, self._text = self._text.split(b"\n")
        if lines:
            self._moved_at, self._is_new = self._clock(), False
        is_whole = False
        for line in lines:
            is_whole |= self._line(line)
        return is_whole

    def _line(self, line: bytes) -> bool:
        answer = self._answer
        try:
            found = json.loads(line)
        except ValueError:
            return False
        assert answer is not None
        if "begin" in found:
            self._begun = found["begin"]
        elif "gpu" in found:
            answer.gpus.append(found)
        elif "ports" in found:
            answer.ports = found["ports"]
        answer.absent = found.get("absent", answer.absent)
        answer.unreadable = found.get("unreadable", answer.unreadable)
        return bool(found.get("end", False))

    def close(self) -> None:
        """End the child; one that hangs in the kernel is waited for no longer than a second."""
        self._drop()
        self._answer = None
        for child in self._left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(0.05)
        except subprocess.TimeoutExpired:
            self._left.append(child)  # the kernel ends it when the driver lets go
