"""torchrun's elastic agents with a spare: how long they take to replace a host, and what they do without the first.

Three agents on this machine stand for three hosts; two train and the third waits at the rendezvous. What the workers do
is recorded, so that the spare's one has to join the recording too. In one trial the second agent is killed with its
worker, in the other the first, which holds the rendezvous.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.machine import report
from megascope.trainer.worker import SHARED_STORE_VARIABLE

START_S, AFTER_S = 300.0, 240.0
PROGRESS = re.compile(r"(?<!resumed at )step (\d+)/")
JOB = """
parallel.dp = 2
model = { layers = 2, width = 32, heads = 4, sequence = 32 }
train = { steps = 1_000_000, batch = 4, microbatches = 2, log_every = 5 }
data.limit_bytes = 50_000
checkpoint.every = 20
"""


class Agents:
    """torchrun's agents of one job, and the steps that its rank 0 has told, with the moments."""

    def __init__(self, folder: Path) -> None:
        (folder / "job.toml").write_text(JOB)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._folder, self.agents = folder, list[subprocess.Popen[str]]()
        self.steps: list[tuple[float, int]] = []
        self.lines: list[str] = []

    def start(self) -> None:
        """Start one more agent; the first holds the rendezvous."""
        holds = "false" if self.agents else "true"
        command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=2:2", "--nproc-per-node=1"]
        command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"]
        command += ["--rdzv-id=trial", f"--rdzv-conf=is_host={holds}", "-m", "megascope", "train", "job.toml"]
        command += ["--checkpoint.folder", str(self._folder / "checkpoints")]
        command += ["--record.store", str(self._folder / "store")]
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
        agent = subprocess.Popen(
            command, cwd=self._folder, env={**os.environ, **own, SHARED_STORE_VARIABLE: "1", "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.agents.append(agent)
        threading.Thread(target=self._read, args=(agent,), daemon=True).start()

    def _read(self, agent: subprocess.Popen[str]) -> None:
        assert agent.stdout is not None
        for line in agent.stdout:
            self.lines.append(line)
            if found := PROGRESS.search(line):
                self.steps.append((time.monotonic(), int(found[1])))

    def steps_since(self, moment: float) -> list[tuple[float, int]]:
        """What was told since a moment."""
        return [one for one in self.steps if one[0] > moment]

    def kill(self, number: int) -> None:
        """SIGKILL to an agent and all that it has started."""
        agent = psutil.Process(self.agents[number].pid)
        for process in [agent, *agent.children(recursive=True)]:
            process.kill()
        self.agents[number].wait(10)

    def close(self) -> None:
        """End what is left."""
        for number, agent in enumerate(self.agents):
            if agent.poll() is None:
                self.kill(number)


@contextmanager
def _training() -> Iterator[Agents]:
    """Two agents that train, and have saved, and a third that waits."""
    with TemporaryDirectory() as folder:
        agents = Agents(Path(folder))
        try:
            agents.start()
            agents.start()
            if not _until(lambda: any(step > 40 for _, step in agents.steps), START_S):
                raise RuntimeError(f"the two agents did not train:\n{''.join(agents.lines[-30:])}")
            agents.start()
            time.sleep(10)  # for the spare to come to the rendezvous
            yield agents
        finally:
            agents.close()


def trial(victim: int) -> dict[str, Any]:
    """Kill an agent: after how many seconds a step was done, and which one; or that the others ended, with what."""
    with _training() as agents:
        survivors = [agent for number, agent in enumerate(agents.agents) if number != victim]
        agents.kill(victim)
        killed = time.monotonic()
        before = agents.steps[-1][1]

        def is_over() -> bool:
            has_ended = all(agent.poll() is not None for agent in survivors)
            return has_ended or bool(agents.steps_since(killed + 1))

        _until(is_over, AFTER_S)
        after = agents.steps_since(killed + 1)
        return {
            "last_step_before": before,
            "seconds_to_a_step": round(after[0][0] - killed, 1) if after else None,
            "first_step_after": after[0][1] if after else None,
            "exit_codes_of_the_others": [agent.poll() for agent in survivors],
        }


def _until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def main() -> None:
    """Run the trials and print the JSON object."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="of each trial")
    repeats = parser.parse_args().repeats
    trials = {"second agent killed": 1, "first agent killed": 0}
    values = {name: [trial(victim) for _ in range(repeats)] for name, victim in trials.items()}
    report("torchrun_spares", {"torch": str(torch.__version__), **values})


if __name__ == "__main__":
    main()
