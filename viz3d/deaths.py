"""Who died first: processes that went without a word, exceptions, and the deaths that only followed from those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..collectors.clocks.clocks import NO_CLOCKS, Clocks, load_clocks
from ..collectors.reading.store import Attempt, Store
from ..profiler.exits import Exit
from .actions import parse_actions

SAME_LOOK_NS = 1_500_000_000
"""Deaths noticed within this time cannot be ordered by when they were noticed: the agent looks twice a second, and
one rank's death makes the launcher end the others."""

SAME_RAISE_NS = 100_000_000
"""Exceptions raised within this time are taken for the same trouble on several ranks."""

SILENT_S = 5.0
"""A host that is heard of twice a second, and of which nothing came for so long, is gone, or cut off."""

NOT_TOLD = Exit()

BEATS_NS = 10**9
"""Two heartbeats: of several silent hosts those count that were not heard of for so long before the first death."""

AFTERMATH_TYPES = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "PeerLostError",
    }
)
"""Exceptions that a rank raises because another one is gone."""

AFTERMATH_PHRASES = (
    "broken pipe",
    "closed by peer",
    "connection closed",
    "connection refused",
    "connection reset",
    "peer closed connection",
    "socket timeout",
    "timed out after",
    "timed out waiting",
    "unhandled system error",
)
"""What messages of exceptions of other types say then."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process that was not meant. ``state``: gone, zombie or exception; ``active_ns`` is the last
    moment at which the rank is known to have done something. Both moments are on the reference clock where the clock
    of its ``host`` is known, else on the host's own. ``exit`` is how it ended, as its launcher or the kernel told,
    ``pid`` its process id on that host, and ``was_told`` whether it had been told to end before."""

    rank: int
    state: str
    moment_ns: int
    type: str | None = None
    message: str | None = None
    active_ns: int | None = None
    host: str | None = None
    exit: Exit = NOT_TOLD
    pid: int | None = None
    was_told: bool = False

    @property
    def is_exception(self) -> bool:
        """Whether the rank said why it ended."""
        return self.state == "exception"

    @property
    def is_on_request(self) -> bool:
        """Whether its launcher's signal led to it: its exception came after that, or it went without a word for it."""
        return self.was_told if self.is_exception else self.exit.was_on_request

    @property
    def is_aftermath(self) -> bool:
        """Whether it came of something elsewhere: its launcher had told it to end, or its exception speaks of others
        (a connection that broke, a peer that is gone)."""
        if self.is_on_request or not self.is_exception:
            return self.is_on_request
        message = (self.message or "").lower()
        name = (self.type or "").rpartition(".")[2]
        return name in AFTERMATH_TYPES or any(phrase in message for phrase in AFTERMATH_PHRASES)


@dataclass(frozen=True, slots=True)
class Deaths:
    """Deaths by moment, the clocks that order them, and whether agents noted them as they came."""

    all: tuple[Death, ...]
    clocks: Clocks = NO_CLOCKS
    noted: bool = True


def load_deaths(store: Store, attempt: Attempt) -> Deaths:
    """All deaths that agents noticed, one a rank: an exception explains the death that follows it."""
    rows = store.query("SELECT actions FROM incidents WHERE actions IS NOT NULL", attempt=attempt).to_pylist()
    deaths = parse_deaths(action for row in rows for action in parse_actions(row["actions"]))
    return _placed(store, attempt, deaths, noted=True)


def gone_processes(store: Store, attempt: Attempt) -> Deaths:
    """Deaths that nobody noted: ranks whose last heartbeat says that the process is gone, since the first that does."""
    rows = store.query(
        """SELECT rank, arg_max(process_state, moment_ns) AS last,
               min(moment_ns) FILTER (process_state IN ('gone', 'zombie')) AS since_ns
           FROM heartbeats GROUP BY rank HAVING last IN ('gone', 'zombie')""",
        attempt=attempt,
    ).to_pylist()
    found = [Death(int(row["rank"]), str(row["last"]), int(row["since_ns"])) for row in rows]
    return _placed(store, attempt, found, noted=False)


@dataclass(frozen=True, slots=True)
class SilentHost:
    """A host that fell silent before the first death elsewhere; ``last_ns`` is when it was last heard of."""

    name: str
    ranks: tuple[int, ...]
    last_ns: int


def silent_hosts(store: Store, attempt: Attempt, deaths: Deaths) -> tuple[SilentHost, ...]:
    """Hosts of which nothing is heard since before the first death, for `SILENT_S` and more.

    With a host its agent is gone, so that nobody notes the deaths of its ranks.
    """
    rows = store.query(
        """SELECT host, list_sort(list(DISTINCT rank)) AS ranks, max(moment_ns) AS last_ns,
               bool_or(process_state IN ('exited', 'gone', 'zombie')) AS has_ended
           FROM heartbeats JOIN ranks USING (rank) GROUP BY host""",
        attempt=attempt,
    ).to_pylist()
    age_s = store.data_age_s(attempt)
    if not rows or age_s is None or not deaths.all:
        return ()
    last = {str(row["host"]): deaths.clocks.aligned_ns(str(row["host"]), int(row["last_ns"])) for row in rows}
    now_ns = max(last.values()) + round(age_s * 1e9)
    died = {death.host for death in deaths.all}
    first = deaths.all[0]
    found = []
    for row in rows:
        host = str(row["host"])
        gap = deaths.clocks.uncertainty_ns(host, first.host, first.moment_ns)
        if host in died or row["has_ended"] or (gap is not None and last[host] > first.moment_ns + gap):
            continue
        if now_ns - last[host] >= SILENT_S * 1e9:
            found.append(SilentHost(host, tuple(int(rank) for rank in row["ranks"]), last[host]))
    before = [one for one in found if first.moment_ns - one.last_ns >= BEATS_NS]
    return tuple(before if len(found) > 1 else found)


def _placed(store: Store, attempt: Attempt, deaths: Sequence[Death], *, noted: bool) -> Deaths:
    """With hosts and last activity, on the reference clock, by moment."""
    if not deaths:
        return Deaths((), noted=noted)
    table = store.query(
        "SELECT rank, max(start_ns + coalesce(duration_ns, 0)) AS active_ns FROM events GROUP BY rank", attempt=attempt
    )
    active = dict(zip(table["rank"].to_pylist(), table["active_ns"].to_pylist(), strict=True))
    places = store.query("SELECT rank, host FROM ranks", attempt=attempt)
    hosts = dict(zip(places["rank"].to_pylist(), places["host"].to_pylist(), strict=True))
    clocks = load_clocks(store, attempt)
    found = []
    for one in deaths:
        host, last = hosts.get(one.rank), active.get(one.rank)
        aligned = None if last is None else clocks.aligned_ns(host, last)
        moment = clocks.aligned_ns(host, one.moment_ns)
        found.append(replace(one, moment_ns=moment, active_ns=aligned, host=host))
    return Deaths(tuple(sorted(found, key=lambda one: (one.moment_ns, one.rank))), clocks, noted)


def parse_deaths(actions: Iterable[Mapping[str, Any]]) -> list[Death]:
    """Actions of incidents to deaths, one a rank, by moment."""
    by_rank: dict[int, Death] = {}
    for action in actions:
        if action.get("action") != "noticed-death" or "rank" not in action:
            continue
        moment_ns = int(action.get("moment_ns") or 0)
        asked, asked_ns = _number(action.get("asked_signal")), _number(action.get("asked_ns"))
        ending = Exit(_number(action.get("exit_code")), asked, asked_ns)
        death = Death(
            int(action["rank"]),
            str(action.get("state")),
            moment_ns,
            action.get("type"),
            action.get("message"),
            exit=ending,
            pid=_number(action.get("pid")),
            was_told=ending.was_told_by(moment_ns),
        )
        known = by_rank.get(death.rank)
        if known is None or (death.is_exception and not known.is_exception):
            by_rank[death.rank] = death
    return sorted(by_rank.values(), key=lambda one: (one.moment_ns, one.rank))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def first_deaths(deaths: Sequence[Death], waiting: set[int], clocks: Clocks = NO_CLOCKS) -> list[Death]:
    """The deaths that the others followed from; ``waiting``: ranks last seen waiting.

    A rank that says that its peer is gone, or that was waiting for one, is a victim if anyone else died. A rank's own
    exception counts from its own moment. Of ranks that went without a word in the same look, the one that was
    active least recently stopped first. Deaths on hosts whose clocks cannot be compared are not ordered by time.
    """
    own = [death for death in deaths if not death.is_aftermath]
    if not own:
        return list(deaths[:1])
    raised = _earliest([death for death in own if death.is_exception], SAME_RAISE_NS, clocks)
    silent = [death for death in own if not death.is_exception]
    silent = _least_active([death for death in silent if death.rank not in waiting] or silent, clocks)
    if not silent or not raised:
        return silent or raised
    # A silent death is noticed after it happened: an exception shortly before may still have followed from it.
    # Where the clocks do not tell, the rank that said why it ended is believed.
    gap = clocks.uncertainty_ns(silent[0].host, raised[0].host, raised[0].moment_ns)
    if gap is None or raised[0].moment_ns <= silent[0].moment_ns + gap:
        return raised
    return silent


def _earliest(deaths: Sequence[Death], together_ns: int, clocks: Clocks) -> list[Death]:
    """Deaths that no other surely came before; those of one look are not ordered among themselves."""
    first: dict[str | None, Death] = {}
    for death in deaths:
        known = first.setdefault(death.host, death)
        if death.moment_ns < known.moment_ns:
            first[death.host] = death

    def is_later(death: Death) -> bool:
        gaps = ((other, clocks.uncertainty_ns(other.host, death.host, death.moment_ns)) for other in first.values())
        return any(gap is not None and other.moment_ns + together_ns + gap < death.moment_ns for other, gap in gaps)

    return sorted((one for one in deaths if not is_later(one)), key=lambda one: (one.moment_ns, one.rank))


def _least_active(silent: Sequence[Death], clocks: Clocks) -> list[Death]:
    """Of the silent deaths that came first, the one that was active least recently, as far as clocks tell."""
    together = _earliest(silent, SAME_LOOK_NS, clocks)
    if any(death.active_ns is None for death in together):
        return together
    quiet: dict[str | None, Death] = {}
    for death in sorted(together, key=lambda one: (one.active_ns or 0, one.rank)):
        quiet.setdefault(death.host, death)
    left = []
    for death in quiet.values():
        gaps = [
            (other, clocks.uncertainty_ns(other.host, death.host, death.moment_ns))
            for other in quiet.values()
            if other != death
        ]
        if not any(gap is not None and (other.active_ns or 0) + gap < (death.active_ns or 0) for other, gap in gaps):
            left.append(death)
    return left


__all__ = [
    "Death",
    "Deaths",
    "SilentHost",
    "first_deaths",
    "gone_processes",
    "load_deaths",
    "parse_actions",
    "parse_deaths",
    "silent_hosts",
]
