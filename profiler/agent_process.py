"""Starting the host's agent as a process of its own, so that it outlives the rank that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_agent(spool: Path, store: str, *, idle_exit_s: float = 30.0) -> subprocess.Popen[bytes]:
    """Start ``megascope collect`` for this host; a second agent on the same spool ends by itself.

    It gets a session of its own: Ctrl-C in the terminal ends the ranks first, and the agent drains what they left.
    Its messages go to ``agent.log`` in the spool.
    """
    spool.mkdir(parents=True, exist_ok=True)
    # -P: what lies in the job's working folder must not be imported in place of a library.
    command = [sys.executable, "-P", "-m", "megascope", "collect", str(spool), "--store", store]
    with (spool / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--idle-exit", str(idle_exit_s)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
