"""Writes what agents would have seen of a hang: heartbeats, incidents with their two looks, and the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ....collectors.tables.schemas import RANKS_PER_BLOCK, block_name
from ....collectors.writing.writer import TableWriter
from ..effects import IntArray
from ..faults import as_row
from ..job import SimulatedJob
from .flights import Channels, Flights, flights_of, progress_of, steps_of
from .gaps import PLAIN, Gaps, Hardness
from .hangs import HangScene, Look

SECOND = 10**9
SEEN_S = (1, 2, 3, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90)
"""Moments of the heartbeats that are kept, seconds after the stall; agents sample each second."""

WATCHED_STEPS = 4
"""A job is watched for so many of its steps at least: what takes long by nature is not soon called stuck."""

STALLED_AFTER_S = 10
"""An agent opens an incident once nothing has moved for so long."""

SILENT_AFTER_S = 20
NOTICED_AFTER_S = 0.5
SECOND_LOOK_S = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is written of a scene. ``origin_ns`` [world]: when its step begins, on the clock of each rank's host.

    ``silent`` are ranks whose heartbeats are lost `SILENT_AFTER_S` after that moment; ``gaps`` is what is lost else.
    """

    scene: HangScene
    origin_ns: IntArray
    channels: Channels
    gaps: Gaps
    silent: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, scene: HangScene, origin_ns: int | IntArray, silent: Sequence[int] = (), hardness: Hardness = PLAIN
    ) -> Evidence:
        """Evidence of a scene whose step begins at a moment, UTC or [world] by the ranks' own clocks."""
        origin = np.broadcast_to(np.asarray(origin_ns, np.int64), (scene.job.world_size,))
        return cls(scene, origin, Channels.of(scene.job), Gaps.of(scene.job, hardness), frozenset(silent))

    @property
    def job(self) -> SimulatedJob:
        """The job."""
        return self.scene.job

    def write(self, writer: TableWriter) -> None:
        """Stage heartbeats, in_flight, incidents and faults; the caller commits."""
        job = self.job
        tables = [self._heard(since_ns) for since_ns in seen_ns(self.scene)]
        for block, ranks in _blocks(job.world_size):
            inside = [(one["rank"].to_numpy(), one) for one in tables]
            parts = [one.filter(pa.array((rank >= ranks.start) & (rank < ranks.stop))) for rank, one in inside]
            writer.write("heartbeats", job.run, job.attempt, pa.concat_tables(parts), block=block)
        if self.scene.fault is not None:
            if self.scene.plan.truth:
                self._write_incidents(writer)
            writer.write("faults", job.run, job.attempt, _columns([self._truth()]))

    def _heard(self, since_ns: int) -> pa.Table:
        """The heartbeats of a moment, without those that are lost and those of ranks that never came."""
        world = np.arange(self.job.world_size)
        moment_ns = since_ns + self.gaps.phase_ns[self.job.grid.host]
        missed = list(self.scene.plan.absent) + (list(self.silent) if since_ns >= SILENT_AFTER_S * SECOND else [])
        kept = ~(np.isin(world, missed) | self.gaps.unheard | self.gaps.lost("heartbeat", world, since_ns))
        dark = list(self.scene.plan.dark)
        kept[dark] &= moment_ns[dark] < _by_rank(self.scene, self.scene.stands_at_ns)[dark]
        return self._heartbeats(moment_ns).filter(pa.array(kept))

    # -- heartbeats ---------------------------------------------------------------------------------------------

    def _heartbeats(self, since_ns: IntArray) -> pa.Table:
        """One row a rank, [world] in order, at moments [world] of their own; also of ranks that are left out later."""
        scene = self.scene
        look = scene.look(since_ns[self.job.grid.rank])
        world = np.arange(self.job.world_size)
        states, busy_ns = self._processes(look, since_ns)
        step = _by_rank(scene, steps_of(scene, look))
        none = np.full(len(world), scene.is_starting)
        done = look.at + look.steps * scene.programs.op.shape[1]
        return pa.table(
            {
                "rank": pa.array(world, pa.int32()),
                "moment_ns": pa.array(self.origin_ns + since_ns, pa.int64()),
                "step": pa.array(step, pa.int64(), mask=none),
                "in_flight": flights_of(scene, self.channels, look, self.gaps).lists(self.origin_ns),
                "progress": progress_of(scene, self.channels, look, self.gaps),
                "process_state": pa.array(states),
                "cpu_ns": pa.array(busy_ns, pa.int64()),
                "spans": pa.array(_by_rank(scene, done), pa.int64()),
            }
        )

    def _processes(self, look: Look, since_ns: IntArray) -> tuple[list[str], IntArray]:
        """States of processes and their CPU time: it grows where a rank works, and not where it waits."""
        scene = self.scene
        reached = _by_rank(scene, scene.stands_at_ns)
        stands = _by_rank(scene, (look.at == scene.at) & (look.host == scene.host) & (not scene.moves))
        states = ["sleeping" if one else "running" for one in stands]
        worked_ns = np.where(stands, np.minimum(reached, since_ns), since_ns)
        for rank in scene.plan.busy:
            worked_ns[rank] = since_ns[rank]
        for rank, state in scene.plan.states.items():
            if stands[rank]:
                states[rank] = state
        return states, worked_ns + 60 * SECOND

    # -- incidents ----------------------------------------------------------------------------------------------

    def _write_incidents(self, writer: TableWriter) -> None:
        job, scene = self.job, self.scene
        stalled_ns = scene.stall_ns + STALLED_AFTER_S * SECOND
        dark = set(job.grid.host[list(scene.plan.dark)].tolist())
        hosts = [host for host in range(job.grid.hosts) if host not in dark]
        rows = [self._incident(host, "stalled", stalled_ns, []) for host in hosts]
        names = pa.array([self._name(host, "stalled") for host in range(job.grid.hosts)])
        flights = flights_of(scene, self.channels, scene.final(), self.gaps)
        self._write_frozen(writer, flights, names, steps_of(scene, scene.final()), hosts)
        if scene.plan.death is not None:
            self._write_deaths(writer, rows)
        writer.write("incidents", job.run, job.attempt, _columns(rows))

    def _name(self, host: int, kind: str) -> str:
        return f"{self.job.run}/{self.job.attempt}/{self.job.host_name(host)}/{kind}/0"

    def _incident(self, host: int, kind: str, opened_ns: int, actions: list[dict[str, Any]]) -> dict[str, Any]:
        """Row of an incident; its moments, given after the begin of the step, are turned to the host's clock."""
        origin = int(self.origin_ns[self.job.ranks_of_host(host)[0]] + self.gaps.phase_ns[host])
        looks = [
            {"action": "snapshot", "moment_ns": origin + opened_ns + after_s * SECOND, "snapshot": number}
            for number, after_s in ((1, 0), (2, SECOND_LOOK_S))
        ]
        return {
            "incident": self._name(host, kind),
            "opened_ns": origin + opened_ns,
            "kind": kind,
            "actions": json.dumps(actions + looks),
        }

    def _write_deaths(self, writer: TableWriter, rows: list[dict[str, Any]]) -> None:
        """What the agents of the dead ranks' hosts noted, and froze of their hosts."""
        scene, grid = self.scene, self.job.grid
        assert scene.plan.death is not None
        state, name, message = scene.plan.death
        by_host: dict[int, list[int]] = {}
        for rank in scene.plan.limits:
            by_host.setdefault(int(grid.host[rank]), []).append(rank)
        for host, ranks in by_host.items():
            died_ns = max(int(scene.stands_at_ns[_place(scene, rank)]) for rank in ranks)
            noticed_ns = died_ns + round(NOTICED_AFTER_S * SECOND)
            actions: list[dict[str, Any]] = []
            for rank in ranks:
                origin, noted = int(self.origin_ns[rank]), {"action": "noticed-death", "rank": rank}
                if state == "exception":
                    said = {"state": state, "type": name, "message": message, "moment_ns": origin + died_ns}
                    actions.append({**noted, **said})
                actions.append({**noted, "state": "gone", "moment_ns": origin + noticed_ns})
            rows.append(self._incident(host, "rank-died", noticed_ns, actions))
            look = scene.look(noticed_ns)
            flights = flights_of(scene, self.channels, look, self.gaps)
            incident = pa.array([rows[-1]["incident"]] * grid.hosts)
            self._write_frozen(writer, flights, incident, steps_of(scene, look), [host])

    def _write_frozen(
        self, writer: TableWriter, flights: Flights, incidents: pa.Array, steps: IntArray, hosts: Sequence[int]
    ) -> None:
        """Both snapshots of what is in flight on some ``hosts``; ``incidents`` by host."""
        job, scene = self.job, self.scene
        step = _by_rank(scene, steps)[flights.rank]
        columns = {
            "rank": pa.array(flights.rank, pa.int32()),
            "incident": incidents.take(pa.array(job.grid.host[flights.rank])),
            "step": pa.array(step, pa.int64(), mask=np.full(len(step), scene.is_starting)),
            "source": pa.array(["own"] * len(step)),
            **flights.arrow(self.origin_ns),
        }
        kept = np.isin(job.grid.host[flights.rank], hosts)
        kept &= ~(np.isin(flights.rank, list(scene.plan.absent)) | self.gaps.unheard[flights.rank])
        table = pa.table(columns)
        for block, ranks in _blocks(job.world_size):
            inside = kept & (flights.rank >= ranks.start) & (flights.rank < ranks.stop)
            rows = table.filter(pa.array(inside))
            both = [rows.append_column("snapshot", pa.array([number] * len(rows), pa.int16())) for number in (1, 2)]
            writer.write("in_flight", job.run, job.attempt, pa.concat_tables(both), block=block)

    def _truth(self) -> dict[str, Any]:
        scene = self.scene
        assert scene.fault is not None
        ranks = scene.plan.truth or scene.fault.ranks
        hosts = {int(self.job.grid.host[rank]) for rank in ranks}
        began = [0 if scene.moves else int(scene.stands_at_ns[_place(scene, rank)]) for rank in ranks]
        return as_row(
            scene.fault,
            ranks=ranks,
            host=self.job.host_name(hosts.pop()) if len(hosts) == 1 else None,
            segment=scene.plan.segment,
            first_ns=int(self.origin_ns[ranks[0]]) + min(began),
        )


def seen_ns(scene: HangScene) -> tuple[int, ...]:
    """Moments of the heartbeats that are kept, nanoseconds after the begin of the scene's step."""
    stall_ns = 0 if scene.moves else scene.stall_ns
    unit_ns = max(SECOND, WATCHED_STEPS * scene.step_ns // SEEN_S[-1])
    watched_s = scene.plan.watched_s
    after_ns = [seconds * unit_ns for seconds in SEEN_S]
    if watched_s is not None:
        last_ns = round(watched_s * SECOND)
        after_ns = [*(seconds * SECOND for seconds in SEEN_S if seconds * SECOND < last_ns), last_ns]
    return (*_seen_before(scene), 0, *((stall_ns // 2,) if stall_ns else ()), *(stall_ns + one for one in after_ns))


def _seen_before(scene: HangScene) -> tuple[int, ...]:
    """A moment before the step of the hang, if there was a step before it: what dies in it was heard of by then."""
    earlier_ns = (scene.step - scene.job.first_step) * scene.step_ns
    return () if scene.moves or earlier_ns <= 0 else (-min(SECOND, earlier_ns),)


def _blocks(world: int) -> Iterator[tuple[str, range]]:
    for first in range(0, world, RANKS_PER_BLOCK):
        yield block_name(first), range(first, min(first + RANKS_PER_BLOCK, world))


def _by_rank(scene: HangScene, values: Any) -> Any:
    """[P, T, G] to [world]."""
    result = np.empty(scene.job.world_size, values.dtype)
    result[scene.job.grid.rank] = values
    return result


def _place(scene: HangScene, rank: int) -> tuple[int, int, int]:
    grid = scene.job.grid
    return int(grid.stage[rank]), int(grid.tp[rank]), int(grid.replica[rank])


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}
