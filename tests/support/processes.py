"""The child processes of one test: ranks and agents."""

from __future__ import annotations

from pathlib import Path
from subprocess import Popen
from typing import Any

from support import agent_process, rank_process


class Processes:
    """The child processes of one test."""

    def __init__(self, spool: Path, store: Path) -> None:
        self._spool, self._store = spool, store
        self._children: list[Popen[bytes]] = []

    def rank(self, **behaviour: Any) -> Popen[bytes]:
        """Start a rank: see `support.rank_process.Behaviour`."""
        child = rank_process.start(rank_process.Behaviour(spool=str(self._spool), **behaviour))
        self._children.append(child)
        return child

    def agent(self, **settings: Any) -> Popen[bytes]:
        """Start an agent: see `support.agent_process`."""
        child = agent_process.start(self._spool, self._store, **settings)
        self._children.append(child)
        return child

    def end(self) -> None:
        """Kill and reap what is left."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait(timeout=10)
