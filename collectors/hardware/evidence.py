"""What hardware says of machines that are accused: evidence that can be asked for again, nothing where nothing was had.

Nobody is accused here: this is read only for ranks and hosts that a verdict names already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..reading.store import Attempt, Store
from ..reading.views import literal
from ..verdicts import Evidence
from .kernel_lines import EventKind
from .rules import LIMITS, SERIOUS_PORT_ERRORS
from .thinning import AGAIN_S
from .throttling import HARD, THERMAL, reasons

MAX_HOSTS = 4
"""Accusations of more hosts than this are of none of them in particular."""

MAX_TOLD = 6
BEFORE_NS = 600 * 10**9
"""Events so long before the time that is looked at may still be its cause."""

STATED_NS = int(2 * AGAIN_S * 1e9)
"""What a counter stood at is written within this time, also where it does not change."""

TOLD = (
    EventKind.XID, EventKind.SXID, EventKind.MEMORY_ERROR, EventKind.OOM_KILL, EventKind.LINK_DOWN,
    EventKind.TASK_BLOCKED, EventKind.STORAGE, EventKind.NO_ANSWER, EventKind.GPU_LOST, EventKind.CPU_THROTTLED,
)  # fmt: skip


def hardware_evidence(
    store: Store,
    attempt: Attempt,
    ranks: Sequence[int],
    hosts: Sequence[str],
    between_ns: tuple[int, int],
    *,
    with_ports: bool = True,
) -> tuple[Evidence, ...]:
    """What GPUs, network ports and the kernel's log of the accused say in a time (UTC ns by each host's own clock).

    ``hosts`` may be empty: then they are those of ``ranks``. Events of a GPU that belongs to another rank of the host
    are left out, and errors of ports without ``with_ports``. The worst comes first; a store without samples of hardware
    gives nothing.
    """
    if not (store.entries("hardware_events", attempt) or store.entries("health", attempt)):
        return ()
    found = _Accused.of(store, attempt, ranks, hosts)
    if not found.hosts or len(found.hosts) > MAX_HOSTS:
        return ()
    asking = _Asking(store, attempt, found, between_ns)
    parts: list[Callable[[], list[Evidence]]] = [
        asking.events, asking.memory_errors, asking.throttling, asking.heat, asking.clocks, asking.links,
    ]  # fmt: skip
    parts += [asking.port_errors] if with_ports else []
    return tuple([one for part in parts for one in part()][:MAX_TOLD])


@dataclass(frozen=True, slots=True)
class _Accused:
    """Hosts, and the GPUs of the accused ranks on them; no GPUs where the ranks' are not known."""

    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    others: tuple[str, ...]
    gpus: str
    """How the GPUs are called in a sentence."""

    @classmethod
    def of(cls, store: Store, attempt: Attempt, ranks: Sequence[int], hosts: Sequence[str]) -> _Accused:
        sql = (
            "SELECT rank, host, device FROM ranks WHERE list_contains(?, host) "
            "OR host IN (SELECT host FROM ranks WHERE list_contains(?, rank))"
        )
        rows = store.query(sql, [list(hosts), list(ranks)], attempt).to_pylist()
        mine = [row for row in rows if not ranks or row["rank"] in set(ranks)]
        named = tuple(dict.fromkeys([*hosts, *(str(row["host"]) for row in mine)]))
        devices = {str(row["device"]) for row in mine if row["device"] is not None}
        others = {str(row["device"]) for row in rows if row["device"] is not None} - devices
        where = ", ".join(named)
        whose = f"rank {ranks[0]} on {where}" if len(ranks) == 1 and devices else where
        return cls(named, tuple(sorted(devices)), tuple(sorted(others)), f"the GPU of {whose}")


class _Asking:
    """Asks the store; every statement carries the SQL of its own number."""

    def __init__(self, store: Store, attempt: Attempt, accused: _Accused, between_ns: tuple[int, int]) -> None:
        self._store, self._attempt, self._accused = store, attempt, accused
        self._low, self._high = between_ns
        self._key = f"run = {literal(attempt.run)} AND attempt = {attempt.attempt}"
        self._hosts = f"host IN ({_listed(accused.hosts)})"
        self._where = ", ".join(accused.hosts)

    def _number(self, sql: str) -> float | None:
        (value,) = self._store.query(sql, attempt=self._attempt).column(0).to_pylist() or [None]
        return None if value is None else float(value)

    def events(self) -> list[Evidence]:
        """Events that are likely to stop or slow a job, of the accused's GPUs or of their hosts."""
        others = f"AND coalesce(device, '') NOT IN ({_listed(self._accused.others)})" if self._accused.others else ""
        condition = (
            f"{self._key} AND {self._hosts} AND severity = 'error' AND kind IN ({_listed(TOLD)}) {others} "
            f"AND moment_ns BETWEEN {self._low - BEFORE_NS} AND {self._high}"
        )
        sql = (
            f"SELECT kind, code, device, host, count(*) AS times, arg_min(text, moment_ns) AS text, "
            f"min(moment_ns) AS moment_ns FROM hardware_events WHERE {condition} "
            f"GROUP BY kind, code, device, host ORDER BY moment_ns LIMIT 3"
        )
        found = []
        for row in self._store.query(sql, attempt=self._attempt).to_pylist():
            where = f"{row['host']}, {row['device']}" if row["device"] is not None else str(row["host"])
            times = f", {row['times']} times" if row["times"] > 1 else ""
            code = "code IS NULL" if row["code"] is None else f"code = {row['code']}"
            own = f"SELECT count(*) FROM hardware_events WHERE {condition} AND kind = {literal(row['kind'])} AND {code}"
            own += f" AND host = {literal(row['host'])} AND device IS NOT DISTINCT FROM {_text(row['device'])}"
            found.append(Evidence(f"{row['text']} ({where}{times})", float(row["times"]), None, "hardware_events", own))
        return found

    def _of_devices(self, select: str, metric: str, *, mine: bool) -> str:
        """SQL over the samples of the accused's GPUs, or of the others'."""
        return (
            f"SELECT {select} FROM (SELECT host, device, avg(value) AS value, "
            f"avg(((TRY_CAST(value AS BIGINT) & {THERMAL | HARD}) != 0)::INT) AS held, "
            f"bit_or(TRY_CAST(value AS BIGINT)) AS mask FROM {self._samples(metric, self._whose(mine), self._low)})"
        )

    def _grown(self, select: str, metric: str, *, mine: bool) -> str:
        """The same over what a counter has counted in the time, from what it stood at just before it."""
        return (
            f"SELECT {select} FROM (SELECT coalesce(arg_max(value, moment_ns) FILTER (moment_ns < {self._low}), "
            f"arg_min(value, moment_ns)) AS first, "
            f"arg_max(value, moment_ns) FILTER (moment_ns >= {self._low}) AS last, "
            f"CASE WHEN last >= first THEN last - first ELSE last END AS grown "
            f"FROM {self._samples(metric, self._whose(mine), self._low - STATED_NS)})"
        )

    def _samples(self, metric: str, whose: str, low_ns: int) -> str:
        return (
            f"health WHERE {self._key} AND metric = {literal(metric)} AND {whose} AND device IS NOT NULL "
            f"AND value IS NOT NULL AND moment_ns BETWEEN {low_ns} AND {self._high} GROUP BY host, device"
        )

    def _whose(self, mine: bool) -> str:
        """Which samples are those of the accused's GPUs (where the ranks' are not known: their hosts'), or others'."""
        column, names = ("device", self._accused.devices) if self._accused.devices else ("host", self._accused.hosts)
        return f"{column} {'' if mine else 'NOT '}IN ({_listed(names)})"

    def _compared(self, select: str, what: str, metric: str) -> tuple[float | None, float | None, str]:
        """The accused's number, the median of the others', and the SQL of the first."""
        own = self._of_devices(f"{select}({what})", metric, mine=True)
        return self._number(own), self._number(self._of_devices(f"median({what})", metric, mine=False)), own

    def throttling(self) -> list[Evidence]:
        """Clocks held back by heat or by the hardware's own protection, in a share of the samples."""
        share, peers, sql = self._compared("max", "held", "clocks_event_reasons")
        if share is None or share < LIMITS.throttled_share or share <= 2 * (peers or 0.0):
            return []
        mask = self._number(self._of_devices("bit_or(mask)", "clocks_event_reasons", mine=True))
        why = " and ".join(reasons(mask, THERMAL | HARD))
        told = f"{self._accused.gpus} is held back ({why}) in {share:.0%} of its samples"
        return [Evidence(f"{told}{_beside(peers, '.0%')}", share, peers, "health", sql)]

    def heat(self) -> list[Evidence]:
        """Temperature that stands out against that of the others."""
        value, peers, sql = self._compared("max", "value", "temperature_celsius")
        usual = LIMITS.warm_celsius - LIMITS.hotter_celsius if peers is None else peers
        if value is None or value < max(LIMITS.warm_celsius, usual + LIMITS.hotter_celsius):
            return []
        told = f"{self._accused.gpus} has {value:.0f} °C on average"
        return [Evidence(f"{told}{_beside(peers, '.0f', ' °C')}", value, peers, "health", sql)]

    def clocks(self) -> list[Evidence]:
        """A clock that is clearly lower than that of the others."""
        value, peers, sql = self._compared("min", "value", "sm_clock_mhz")
        if value is None or peers is None or value >= LIMITS.slower_clock * peers:
            return []
        told = f"the SM clock of {self._accused.gpus} is {value:,.0f} MHz on average"
        return [Evidence(f"{told}{_beside(peers, ',.0f', ' MHz')}", value, peers, "health", sql)]

    def memory_errors(self) -> list[Evidence]:
        """Memory errors that ECC could not correct and that came while it was looked at."""
        select = "sum(grown)"
        sql = self._grown(select, "ecc_uncorrected_errors", mine=True)
        value = self._number(sql)
        if not value:
            return []
        peers = self._number(self._grown("median(grown)", "ecc_uncorrected_errors", mine=False))
        told = f"{value:g} memory errors that ECC cannot correct came on {self._accused.gpus}"
        return [Evidence(f"{told}{_beside(peers, 'g')}", value, peers, "health", sql)]

    def links(self) -> list[Evidence]:
        """Ports of RDMA adapters that were down; one that was never up in the attempt has no cable."""
        sql = (
            f"SELECT count(*) FROM (SELECT host, device FROM health WHERE {self._key} AND metric = 'rdma_link_up' "
            f"AND {self._hosts} AND moment_ns <= {self._high} GROUP BY host, device "
            f"HAVING max(value) = 1 AND min(value) FILTER (moment_ns >= {self._low}) = 0)"
        )
        value = self._number(sql)
        if not value:
            return []
        ports_sql = sql.replace("count(*)", "DISTINCT device", 1)
        named = self._store.query(ports_sql, attempt=self._attempt)
        ports = ", ".join(sorted(str(one) for one in named.column(0).to_pylist())[:4])
        return [Evidence(f"the RDMA link {ports} of {self._where} was down", value, None, "health", sql)]

    def port_errors(self) -> list[Evidence]:
        """Errors that the ports of RDMA adapters counted, against the median of the other hosts."""
        select = (
            f"SELECT {{}} FROM (SELECT host, sum(value) AS value FROM health WHERE {self._key} "
            f"AND metric IN ({_listed(SERIOUS_PORT_ERRORS)}) AND {{}} AND value IS NOT NULL "
            f"AND moment_ns BETWEEN {self._low} AND {self._high} GROUP BY host)"
        )
        sql = select.format("max(value)", self._hosts)
        value = self._number(sql)
        peers = self._number(select.format("median(value)", f"NOT {self._hosts}"))
        if not value or value <= 2 * (peers or 0.0):
            return []
        told = f"RDMA ports of {self._where} counted {value:g} errors"
        return [Evidence(f"{told}{_beside(peers, 'g')}", value, peers, "health", sql)]


def _beside(peers: float | None, form: str, unit: str = "") -> str:
    """The others' number behind a statement."""
    return "; nothing is known of the others" if peers is None else f", against {peers:{form}}{unit} of the others"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(literal(str(name)) for name in names) or "NULL"


def _text(value: str | None) -> str:
    return "NULL" if value is None else literal(value)
