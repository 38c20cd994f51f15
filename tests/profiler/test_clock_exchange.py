"""Messages about clocks: they bound the offset, answer no stranger, and agree with the ends of collectives."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.clocks.update import ClockKeeper
from megascope.collectors.reading.clock_sql import OffsetSource
from megascope.collectors.reading.store import Store
from megascope.profiler import clock_exchange, opening, session
from megascope.profiler.clock_exchange import Exchange, Party, answer, ask, open_server, start_exchange
from megascope.profiler.identity import Identity
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.forkrun import run_ranks
from support.recording import Recorded

SECOND = 10**9
TOKEN = secrets.token_bytes(16)


@dataclass(slots=True)
class Rendezvous:
    """A store as the exchange needs it."""

    values: dict[str, bytes] = field(default_factory=dict)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, count: int) -> int:
        now = int(self.values.get(key, b"0")) + count
        self.values[key] = str(now).encode()
        return now

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Answers on this host until the test ends; gives the port."""
    servers: list[socket.socket] = []

    def start(clock: Callable[[], int] = time.monotonic_ns, token: bytes = TOKEN) -> int:
        server = open_server()
        thread = threading.Thread(target=answer, args=(server, token, clock, time.monotonic() + 15))
        thread.daemon = True
        thread.start()
        servers.append(server)
        return int(server.getsockname()[1])

    yield start
    for server in servers:
        server.close()


def shifted_clock(behind_ns: int) -> int:
    return time.monotonic_ns() - behind_ns


@pytest.mark.parametrize("offset_ns", [0, 3_200_000_000, -7_000_000_000])
def test_the_true_offset_is_within_the_uncertainty(serve: Callable[..., int], offset_ns: int) -> None:
    port = serve()
    found = ask(["localhost"], port, TOKEN, lambda: time.monotonic_ns() - offset_ns, "reference", round_trips=12)
    assert found is not None
    assert abs(found.offset_ns - offset_ns) <= found.uncertainty_ns < SECOND // 2
    assert found.round_trips == 12
    assert abs(found.moment_ns + offset_ns - time.monotonic_ns()) < 5 * SECOND


def test_one_slow_way_is_within_the_uncertainty(serve: Callable[..., int]) -> None:
    """Answers are stamped, and leave 20 ms later: the middle is off by half of that."""
    calls = itertools.count()

    def clock() -> int:
        now_ns = time.monotonic_ns()
        if next(calls) % 2:
            time.sleep(0.02)
        return now_ns

    found = ask(["127.0.0.1"], serve(clock), TOKEN, time.monotonic_ns, "reference", round_trips=5)
    assert found is not None
    assert found.offset_ns < -9_000_000
    assert abs(found.offset_ns) <= found.uncertainty_ns


def test_who_does_not_know_the_token_gets_no_answer(serve: Callable[..., int]) -> None:
    assert ask(["127.0.0.1"], serve(), secrets.token_bytes(16), time.monotonic_ns, "reference", 2) is None


def test_nobody_there_is_no_trouble() -> None:
    with open_server() as unused:
        port = int(unused.getsockname()[1])
    began = time.monotonic()
    assert ask(["127.0.0.1", "no-such-host.invalid"], port, TOKEN, time.monotonic_ns, "reference") is None
    assert time.monotonic() - began < 15


def test_an_answer_to_an_older_question_is_not_taken(serve: Callable[..., int]) -> None:
    """Each question carries its moment, which comes back with the answer."""
    port = serve()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(2.0)
        client.send(clock_exchange._ASK.pack(TOKEN, 12345))
        time.sleep(0.05)
        trip = clock_exchange._round_trip(client, TOKEN, time.monotonic_ns)
    assert trip is not None
    spent_ns, offset_ns, _ = trip
    assert abs(offset_ns) <= spent_ns // 2 + 1


def test_parties_find_each_other_through_the_rendezvous() -> None:
    store, found = Rendezvous(), dict[str, Exchange]()
    hosts = {"alpha": 0, "beta": 2 * SECOND, "alpha-too": 0}
    threads = []
    for rank, (name, offset_ns) in enumerate(hosts.items()):
        clock = functools.partial(shifted_clock, offset_ns)
        party = Party("job/0", rank, name.removesuffix("-too"), clock)
        threads.append(start_exchange(party, lambda: store, functools.partial(found.__setitem__, name), patience_s=4.0))
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert set(found) == {"alpha", "beta"}, "a process on the reference host has nothing to ask"
    assert (found["alpha"].offset_ns, found["alpha"].uncertainty_ns) == (0, 0)
    assert abs(found["beta"].offset_ns - 2 * SECOND) <= found["beta"].uncertainty_ns


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The servers that were opened."""
    found: list[socket.socket] = []

    def note() -> socket.socket:
        found.append(open_server())
        return found[-1]

    monkeypatch.setattr(clock_exchange, "open_server", note)
    return found


@pytest.mark.parametrize(("hosts", "is_asked"), [(["alpha"] * 3, False), (["alpha", "alpha", "beta", "beta"], True)])
def test_nobody_listens_on_a_job_of_one_host_and_one_process_of_a_host_asks(
    opened: list[socket.socket], hosts: list[str], is_asked: bool
) -> None:
    """As under srun or mpirun, where every rank takes part: none can tell which ranks its host has."""
    store, told = Rendezvous(), list[str]()
    threads = [
        start_exchange(
            Party("job/0", rank, host, time.monotonic_ns), lambda: store, lambda found: told.append("x"), patience_s=3.0
        )
        for rank, host in enumerate(hosts)
    ]
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert (len(opened), len(told)) == ((1, 2) if is_asked else (0, 0))


@pytest.mark.parametrize(
    ("local_world_size", "rank", "takes_part"),
    [(None, 0, True), (None, 3, True), ("4", 0, False), ("2", 0, True), ("2", 3, False), ("2", 2, True)],
)
def test_who_takes_part_follows_from_what_the_launcher_says(
    recorded: Recorded, local_world_size: str | None, rank: int, takes_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Party] = []
    monkeypatch.setattr(clock_exchange, "start_exchange", lambda party, *_: started.append(party))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local_world_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    local = int(local_world_size or 1)
    who = Identity("run", 0, rank, 4, rank % local if local_world_size else rank, local)
    clock_exchange.join_exchange(recorded.recorder, who)
    assert len(started) == takes_part


def test_a_full_disk_costs_the_exchange_alone(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    clock_exchange.join_exchange(recorded.recorder, Identity("run", 0, 0, 4, 0))
    assert not [thread for thread in threading.enumerate() if thread.name == "megascope-clock"]


def test_a_damaged_file_of_the_clock_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text('{"clock_base')
    bases = {opening.clock_base_ns(tmp_path) for _ in range(3)}
    assert len(bases) == 1


def test_without_a_rendezvous_the_exchange_ends_by_itself() -> None:
    found: list[Exchange] = []
    thread = start_exchange(Party("job/0", 1, "beta", time.monotonic_ns), lambda: None, found.append, patience_s=0.5)
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert found == []


SHIFTS = {"alpha": 0, "beta": 3_200_000_000, "gamma": -1_700_000_000}
"""How far the clocks of the hosts are ahead."""

STEPS = 40


def _rank_of_a_host(root: Path) -> bool:
    """One rank that is alone on its host, as far as it can tell; whether the exchange gave it a result."""
    rank = dist.get_rank()
    host = list(SHIFTS)[rank]
    true_base = opening.clock_base_ns

    def shifted(folder: Path) -> int:
        return true_base(folder) + SHIFTS[host]

    opening.clock_base_ns = shifted
    socket.gethostname = lambda: host
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    recorder = session.init(store=root / "store", spool=root / host, run="job", attempt=0, agent=False)
    assert isinstance(recorder, Recorder)
    group = recorder.group("dp", range(len(SHIFTS)))
    segment = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp")
    tensor = torch.zeros(4)
    for step in range(STEPS):
        recorder.step(step)
        for turn in range(4):
            span = recorder.begin_async(segment, group=group, sequence=4 * step + turn + 1)
            dist.all_reduce(tensor)
            recorder.end_async(span)
            recorder.abandon(span)
        time.sleep(0.002)
    metadata = root / host / "job" / "0" / f"rank-{rank:05d}.meta.jsonl"
    until = time.monotonic() + 20
    while time.monotonic() < until and '"kind":"clock"' not in metadata.read_text():
        time.sleep(0.05)
    told = '"kind":"clock"' in metadata.read_text()
    dist.barrier()
    session.shutdown()
    return told


@pytest.mark.alone
@pytest.mark.timeout(150)
def test_messages_and_the_ends_of_collectives_agree(tmp_path: Path) -> None:
    """Three hosts in name, each with its own clock, spool and agent, and one store."""
    assert run_ranks(len(SHIFTS), lambda: _rank_of_a_host(tmp_path), timeout_s=90) == [True] * len(SHIFTS)
    agents = [
        Agent(AgentSettings(spool=tmp_path / host, store=tmp_path / "store", heartbeat_s=60.0), threading.Event())
        for host in SHIFTS
    ]
    until = time.monotonic() + 40
    while any(agent.runs for agent in agents) or time.monotonic() < until - 39.5:
        assert time.monotonic() < until
        for agent in agents:
            agent.poll(flush=True)
        time.sleep(0.1)
    for agent in agents:
        agent.close()
    with Store(tmp_path / "store") as store:
        _check(store)


def _check(store: Store) -> None:
    rows = store.query("SELECT * FROM clock_offsets", attempt=store.attempt()).to_pylist()
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(row)
        assert abs(row["offset_ns"] + SHIFTS[row["host"]]) <= row["uncertainty_ns"]
        assert row["uncertainty_ns"] < SECOND // 10
    assert {row["host"] for row in by_source[OffsetSource.EXCHANGE]} == set(SHIFTS)
    assert {row["host"] for row in by_source[OffsetSource.ENDS]} == set(SHIFTS)
    keeper = ClockKeeper(store.attempt())
    keeper.new_rows(store, is_over=True)
    assert keeper.disagreements == ()
    spread = store.query(
        "SELECT median(s) AS typical FROM (SELECT max(start_ns + duration_ns) - min(start_ns + duration_ns) AS s "
        "FROM events_aligned GROUP BY sequence)",
        attempt=store.attempt(),
    ).to_pylist()[0]["typical"]
    assert spread < SECOND // 20
