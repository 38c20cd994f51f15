"""The agent in a process of its own, for tests that kill it.

Run as ``python -m support.agent_process SETTINGS`` with a JSON object of `AgentSettings`. ``die_at_write`` N makes the
process end like a kill would, without any clean-up, in the middle of its N-th durable write (from 1): after the
temporary file was filled and before it is renamed, or with ``after_rename`` right behind the rename. Lines of steps are
freed in pieces of ``free_above_bytes``.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megascope.collectors.agent.agent import AgentSettings, run_agent
from megascope.collectors.manifests import manifest
from megascope.collectors.spool import rank_metadata
from megascope.collectors.storage.durable import write_durably
from megascope.collectors.writing import writer

TESTS = Path(__file__).parents[1]


def start(spool: Path, store: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start an agent that polls and flushes fast unless told otherwise."""
    fast = {"poll_s": 0.02, "flush_s": 0.1, "idle_exit_s": 1.0, "lock_patience_s": 1.0}
    values = {"spool": str(spool), "store": str(store), **fast, **settings}
    return subprocess.Popen([sys.executable, "-m", "support.agent_process", json.dumps(values)], cwd=TESTS)


def _dying_at(number: int, *, after_rename: bool) -> Callable[[Path, Callable[[Path], None]], int]:
    count = 0

    def write(path: Path, fill: Callable[[Path], None]) -> int:
        nonlocal count
        count += 1
        if count < number:
            return write_durably(path, fill)
        if after_rename:
            write_durably(path, fill)
        else:
            fill(path.with_name(path.name + ".tmp"))
        os._exit(9)

    return write


def _main(text: str) -> int:
    logging.basicConfig(level=logging.WARNING)
    values = json.loads(text)
    die_at, after_rename = values.pop("die_at_write", None), values.pop("after_rename", False)
    rank_metadata.FREE_ABOVE_BYTES = values.pop("free_above_bytes", rank_metadata.FREE_ABOVE_BYTES)
    if die_at is not None:
        dying = _dying_at(die_at, after_rename=after_rename)
        for module in (manifest, writer):
            module.write_durably = dying  # type: ignore[attr-defined]
    values |= {"spool": Path(values["spool"]), "store": Path(values["store"])}
    return run_agent(AgentSettings(**values))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
