"""`health_report`: the machines of an attempt, the worst first, and what is wrong with each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..clocks.clocks import load_clocks
from ..reading.store import Attempt, Store
from .events import AGAIN
from .kernel_lines import EventKind, Severity
from .rules import COMPARED, Remark, of_gpu, of_host, of_port, port_errors
from .samples import Device, Samples, newest_by_host, read_samples
from .silence import Now
from .throttling import reasons

WINDOW_S = 600.0
"""How far back newest values and shares are looked for; counters and events are those of the whole attempt."""

SCHEMA = 1
_WEIGHT = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_ENDS: Mapping[str, str] = {
    EventKind.LINK_DOWN: EventKind.LINK_UP,
    EventKind.NO_ANSWER: EventKind.ANSWERS,
    EventKind.GPU_LOST: EventKind.ANSWERS,
}
"""Kinds of events, and what ends them on the same device."""

_HOST_VALUES = ("cpu_percent", "load_1min", "memory_percent", "spool_disk_percent", "recording_overhead_percent")


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU: its ranks, newest values (None: not told), why its clocks were held back, and what counters counted."""

    device: str
    ranks: tuple[int, ...]
    values: Mapping[str, float | None]
    throttled: tuple[str, ...]
    throttled_share: float | None
    counted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PortHealth:
    """One port of an RDMA adapter: whether it is up, its traffic, and its errors in the attempt."""

    device: str
    values: Mapping[str, float | None]
    counted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of hardware, the newest of its kind, severity, device and number, and how often it came."""

    moment_ns: int
    kind: str
    severity: str
    device: str | None
    code: int | None
    text: str
    times: int


@dataclass(frozen=True, slots=True)
class HostHealth:
    """One machine. ``heartbeat_age_s`` is None where it gave no heartbeat in the window, or has no ranks."""

    host: str
    ranks: tuple[int, ...]
    heartbeat_age_s: float | None
    values: Mapping[str, float | None]
    lost_spans: int
    gpus: tuple[GpuHealth, ...]
    ports: tuple[PortHealth, ...]
    events: tuple[Happened, ...]
    remarks: tuple[Remark, ...]

    @property
    def severity(self) -> Severity | None:
        """Of its worst remark."""
        return min((one.severity for one in self.remarks), key=_WEIGHT.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All machines of an attempt, the worst first.

    ``moment_ns`` is that of the newest sample (UTC); ``not_sampled`` maps what is not sampled, in a sentence, to hosts.
    """

    run: str
    attempt: int
    data_age_s: float | None
    moment_ns: int | None
    window_s: float
    hosts: tuple[HostHealth, ...]
    not_sampled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schema: int = SCHEMA


def health_report(store: Store, attempt: Attempt, *, moment_ns: int | None = None) -> HealthReport:
    """The machines as they are now, or as they were at a moment (UTC ns)."""
    age_s = store.data_age_s(attempt)
    if moment_ns is not None:
        now = Now.at(moment_ns, int(WINDOW_S * 1e9))
    else:
        newest = newest_by_host(store, attempt)
        if not newest:
            return HealthReport(attempt.run, attempt.attempt, age_s, None, WINDOW_S, ())
        now = Now.newest(newest, load_clocks(store, attempt), int(WINDOW_S * 1e9))
    samples = read_samples(store, attempt, now.window_ns)
    usual = _usual(samples)
    hosts = [_host(one, samples, now, usual, is_running=attempt.exit_reason is None) for one in _by_host(samples)]
    hosts.sort(key=lambda one: (_WEIGHT.get(one.severity, 3) if one.severity else 3, -len(one.remarks), one.host))
    not_sampled: dict[str, set[str]] = defaultdict(set)
    for row in samples.not_sampled:
        not_sampled[row["text"]].add(row["host"])
    told = {text: tuple(sorted(names)) for text, names in sorted(not_sampled.items())}
    return HealthReport(attempt.run, attempt.attempt, age_s, now.window_ns[1], WINDOW_S, tuple(hosts), told)


def _usual(samples: Samples) -> dict[str, float]:
    """Medians over all GPUs of what is compared, and over all ports of their errors (0 without ports)."""
    errors = [port_errors(one.grown) for one in samples.devices.values() if "rdma_link_up" in one.last]
    found = {"port_errors": median(errors or [0.0])}
    for metric in COMPARED:
        values = [value for one in samples.devices.values() if (value := one.last.get(metric)) is not None]
        if values:
            found[metric] = median(values)
    return found


@dataclass(slots=True)
class _Host:
    """What the samples have of one host."""

    name: str
    ranks: list[dict[str, Any]] = field(default_factory=list)
    devices: dict[str | None, Device] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)


def _by_host(samples: Samples) -> list[_Host]:
    hosts: dict[str, _Host] = {}

    def of(name: str) -> _Host:
        return hosts.setdefault(name, _Host(name))

    for row in samples.ranks:
        of(str(row["host"])).ranks.append(row)
    for (name, device), one in samples.devices.items():
        of(name).devices[device] = one
    for event in samples.events:
        of(str(event["host"])).events.append(event)
    return list(hosts.values())


def _host(found: _Host, samples: Samples, now: Now, usual: Mapping[str, float], *, is_running: bool) -> HostHealth:
    beats = [samples.beats[row["rank"]] for row in found.ranks if row["rank"] in samples.beats]
    age_s = now.age_s(found.name, max(beat["moment_ns"] for beat in beats)) if beats else None
    whole = found.devices.get(None, Device())
    devices = {device: one for device, one in sorted(found.devices.items(), key=str) if device is not None}
    gpus = [_gpu(device, one, found.ranks) for device, one in devices.items() if "temperature_celsius" in one.last]
    ports = [_port(device, one) for device, one in devices.items() if "rdma_link_up" in one.last]
    lost = sum(int(beat["lost_spans"] or 0) for beat in beats)
    events = _events(found.events)
    silent_s = age_s if is_running else None
    if is_running and found.ranks and not beats:
        silent_s = WINDOW_S
    remarks = list(of_host(whole.last, silent_s, lost))
    remarks += [_remark(one, events) for one in events if one.severity != Severity.NOTE]
    for place, gpu in enumerate(gpus):
        one = devices[gpu.device]
        remarks += of_gpu(_gpu_name(gpu, place), one.last, one.grown, one.held, one.mask, usual)
    for port in ports:
        one = devices[port.device]
        remarks += of_port(port.device, one.last, one.grown, one.most, usual["port_errors"])
    return HostHealth(
        host=found.name,
        ranks=tuple(sorted(int(row["rank"]) for row in found.ranks)),
        heartbeat_age_s=None if age_s is None else max(0.0, age_s),
        values={metric: whole.last.get(metric) for metric in _HOST_VALUES},
        lost_spans=lost,
        gpus=tuple(gpus),
        ports=tuple(ports),
        events=tuple(events),
        remarks=tuple(sorted(remarks, key=lambda one: _WEIGHT[one.severity])),
    )


def _gpu(device: str, one: Device, ranks: Sequence[Mapping[str, Any]]) -> GpuHealth:
    return GpuHealth(
        device,
        tuple(sorted(int(row["rank"]) for row in ranks if row["device"] == device)),
        dict(sorted(one.last.items())),
        reasons(one.mask),
        one.held,
        _positive(one.grown),
    )


def _port(device: str, one: Device) -> PortHealth:
    return PortHealth(device, dict(sorted(one.last.items())), _positive(one.grown))


def _positive(grown: Mapping[str, float | None]) -> dict[str, float]:
    return {metric: count for metric, count in sorted(grown.items()) if count}


def _gpu_name(gpu: GpuHealth, place: int) -> str:
    """A GPU as people call it: by its rank where it has one."""
    if len(gpu.ranks) == 1:
        return f"the GPU of rank {gpu.ranks[0]}"
    return f"GPU {place} ({gpu.device[:12]})"


def _events(events: Iterable[Mapping[str, Any]]) -> list[Happened]:
    """Events of one host, the newest first, as they come."""
    return [
        Happened(
            int(row["moment_ns"]),
            str(row["kind"]),
            str(row["severity"]),
            row["device"],
            row["code"],
            str(row["text"]),
            int(row["times"]),
        )
        for row in events
    ]


def _remark(one: Happened, events: Sequence[Happened]) -> Remark:
    """An event as a remark; what is over since is only worth a look."""
    text = one.text if one.times == 1 else f"{one.text} ({one.times} times)"
    if max((other.moment_ns for other in events if _ends(one, other)), default=0) > one.moment_ns:
        return Remark(Severity.WARNING, f"{text}; it is over")
    return Remark(Severity(one.severity), text)


def _ends(one: Happened, other: Happened) -> bool:
    """Whether the other event says that this one is over: of the same device, or of the same thing beside them."""
    if other.device != one.device or other.kind != _ENDS.get(one.kind):
        return False
    return one.device is not None or one.text.startswith(other.text.removesuffix(AGAIN))


def sentence(report: HealthReport) -> str:
    """The report in a sentence; it never says that machines are well of which nothing is known."""
    bad = [one for one in report.hosts if one.severity == Severity.ERROR]
    worth = [one for one in report.hosts if one.severity == Severity.WARNING]
    unknown = [one for one in report.hosts if not one.gpus]
    count = len(report.hosts)
    machines = "machine" if count == 1 else "machines"
    if report.moment_ns is None or not count:
        return "Nothing is known of the machines yet."
    if bad:
        first = next(one for one in bad[0].remarks if one.severity == Severity.ERROR)
        return f"{len(bad)} of {count} {machines} in trouble; {bad[0].host}: {first.text.rstrip('.')}."
    if worth:
        text = worth[0].remarks[0].text.rstrip(".")
        return f"{len(worth)} of {count} {machines} worth a look; {worth[0].host}: {text}."
    if unknown:
        return f"Nothing wrong is known of {count} {machines}; the GPUs of {len(unknown)} are not sampled."
    return f"Nothing wrong was seen on {count} {machines}."
