"""Hosts that only pretend to train, and a supervisor over them: what it decides becomes what is done."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.incidents.question import Answer
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.trainer.supervisor import diagnosis, supervisor
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.job import Job, Patience
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.supervisor import Outcome, Supervisor
from megascope.trainer.supervisor.wire import Message, Wire, join

Script = Callable[["Host", int, Sequence[int]], None]
"""What a host does in an attempt with its ranks; what it says is sent at once."""


@dataclass
class Host:
    """Stands for a node agent. ``check``: what its self-check finds; ``holds``: its ranks cannot be ended;
    ``is_dumb``: it opens no rendezvous.
    """

    name: str
    port: int
    script: Script
    check: bool | None = True
    holds: bool = False
    is_dumb: bool = False
    started: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    overrides: list[list[str]] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)
    wire: Wire | None = None
    attempt: int = -1
    running: set[int] = field(default_factory=set)

    def serve(self) -> None:
        self.wire = join(("127.0.0.1", self.port), "secret", {"host": self.name, "slots": 2})
        while not self.wire.closed:
            self.wire.wait(0.05)
            for message in self.wire.receive():
                self.obey(message)
        self.wire.close()

    def obey(self, message: Message) -> None:
        assert self.wire is not None
        what = message["do"]
        if what == "ping":
            self.pings.append(time.monotonic())
            return
        self.heard.append(what)
        if what == "port" and not self.is_dumb:
            self.wire.send({"say": "port", "attempt": message["attempt"], "port": 1})
        elif what == "start":
            self.attempt = message["attempt"]
            ranks = tuple(range(message["first_rank"], message["first_rank"] + message["local_ranks"]))
            self.running = set(ranks)
            self.started.append((self.attempt, ranks))
            self.overrides.append(message["overrides"])
            self.script(self, self.attempt, ranks)
        elif what == "stop" and not self.holds:
            self.end(dict.fromkeys(self.running, 143))
            self.wire.send({"say": "stopped", "attempt": self.attempt})
        elif what == "check":
            self.wire.send({"say": "checked", "passed": self.check, "report": "as it is"})
        elif what == "end":
            self.wire.close()

    def end(self, codes: Mapping[int, int], said: str = "") -> None:
        assert self.wire is not None
        self.running -= set(codes)
        told = {str(rank): code for rank, code in codes.items()}
        self.wire.send({"say": "ended", "attempt": self.attempt, "codes": told, "left": 0, "said": said})

    def leave(self) -> None:
        assert self.wire is not None
        self.wire.close()


def finish(host: Host, attempt: int, ranks: Sequence[int]) -> None:
    host.end(dict.fromkeys(ranks, 0))


def once(failure: Callable[[Host, Sequence[int]], None], name: str) -> Script:
    """One host fails in the first attempt; the other waits, as it would, until it is told to stop."""

    def script(host: Host, attempt: int, ranks: Sequence[int]) -> None:
        if attempt > 0:
            finish(host, attempt, ranks)
        elif host.name == name:
            failure(host, ranks)

    return script


def write_steps(root: Path, attempt: int, count: int) -> None:
    """Steps of all ranks of the two hosts, long ago."""
    with TableWriter(root, f"steps-{attempt}") as writer:
        places = [(rank, step) for rank in range(4) for step in range(count)]
        columns = {
            "rank": [rank for rank, _ in places],
            "step": [step for _, step in places],
            "start_ns": [10**18 + step * 10**8 for _, step in places],
            "duration_ns": [10**8 for _ in places],
            "loss": [3.0 for _ in places],
        }
        writer.write("steps", "run", attempt, columns)
        writer.write("runs", "run", attempt, {"world_size": [4], "start_ns": [10**18]}, replace=True)
        writer.commit()


class World:
    """Two hosts and a spare, and the answer that the analysers give."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.answer: Mapping[str, Any] | None = None
        self.lines: list[str] = []
        self.end_at = ""
        self.supervisor: Supervisor
        self.hosts: dict[str, Host] = {}
        world = self

        class Asked:
            def __init__(self, *_: object, **__: object) -> None:
                """Nothing is started."""

            def poll(self) -> Answer:
                return Answer(world.answer, None if world.answer else "no verdict", 0.0)

            def close(self) -> None:
                """Nothing runs."""

        monkeypatch.setattr(diagnosis, "Question", Asked)
        monkeypatch.setattr(supervisor, "REST_S", 0.1)  # the hosts write no steps that could still come

    def run(
        self,
        script: Script,
        *,
        hosts: int = 3,
        check: bool | None = True,
        holds: str = "",
        dumb: str = "",
        patience: Mapping[str, float] | None = None,
        checkpoints: Path | None = None,
        **limits: Any,
    ) -> Outcome:
        """Supervise the hosts to the end."""
        hub = Hub(open_listener("127.0.0.1", 0), "secret")
        self.hosts = {name: Host(name, hub.port, script, check) for name in (f"node-{n}" for n in range(hosts))}
        if holds:
            self.hosts[holds].holds = True
        if dumb:
            self.hosts[dumb].is_dumb = True
        threads = [threading.Thread(target=host.serve) for host in self.hosts.values()]
        for thread in threads:
            thread.start()
        times = {"join_s": 2.0, "settle_s": 0.05, "verdict_s": 0.2, "stop_s": 5.0, "check_s": 5.0, "look_s": 0.05}
        job = Job(
            config=self.root / "config.toml", run="run", store=self.root, hosts=2, world_size=4, steps=100,
            spares=hosts - 2, self_check=("check",), checkpoints=checkpoints,
            limits=Limits(**{"backoff_s": 0.0, **limits}),
            patience=Patience(**{**times, **(patience or {})}),
        )  # fmt: skip
        self.supervisor = Supervisor(job, hub, self.say)
        if self.end_at == "at once":
            threading.Timer(0.2, self.supervisor.ask_to_end).start()
        try:
            return self.supervisor.run()
        finally:
            hub.close()
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)

    def say(self, line: str) -> None:
        """Take over what the supervisor says; where a word of it was waited for, ask it to end."""
        self.lines.append(line)
        if self.end_at and self.end_at in line:
            threading.Timer(0.1, self.supervisor.ask_to_end).start()

    def actions(self) -> Iterator[str]:
        with Store(self.root) as store:
            for row in store.query("SELECT actions FROM incidents ORDER BY attempt, opened_ns").to_pylist():
                yield from (one["action"] for one in json.loads(row["actions"]))
