"""From the JSON of a verdict to accused hosts: which kinds blame a host, and which blame the program."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .policy import Accused
from .signs import Detector, Sign

HOST_KINDS = frozenset({"dead", "host-stuck", "device-stuck", "network", "library"})
"""Kinds of culprits of the hang verdict for which the host may be at fault. The others are the program's doing."""

HARDWARE_KINDS = frozenset({"rank", "host", "link", "group"})
"""Kinds of the straggler verdict that accuse hardware; stage and job name nobody."""

HOST_CAUSES = frozenset({"slow-compute", "throttling", "network", "data-stall", "gc-drift", "checkpoint"})

_HARDWARE_ERROR = re.compile(
    r"uncorrectable ECC|ECC error|fallen off the bus|no CUDA-capable device|CUDA driver initialization failed"
    r"|NVLink|Xid \d+|hardware error|Input/output error",
    re.IGNORECASE,
)
"""Exceptions whose text says that hardware failed; any other is the program's."""

_STORAGE = re.compile(r"Cannot write a checkpoint|No space left on device|Disk quota exceeded|Stale file handle")

FIRM = frozenset({"hang", "crashed"})


def accused_by_hang(verdict: Mapping[str, Any]) -> tuple[Accused, ...]:
    """The hosts of a hang verdict's culprits; none where it abstains."""
    if verdict.get("verdict") not in FIRM:
        return ()
    return tuple(_from_hang(one, host) for one in _culprits(verdict) for host in one["hosts"])


def _from_hang(culprit: Mapping[str, Any], host: str) -> Accused:
    kind = str(culprit["kind"])
    reason = f"{kind} on rank{_ranks(culprit['ranks'])}"
    if culprit.get("segment"):
        reason += f" in {culprit['segment']}"
    blames = kind in HOST_KINDS
    if kind == "exception":
        told = [str(one.get("statement", "")) for one in culprit.get("evidence", ())]
        failed = next((match for text in told if (match := _HARDWARE_ERROR.search(text))), None)
        if failed is not None:
            blames, reason = True, f"{reason} ({failed.group(0)})"
    return Accused(host, float(culprit["confidence"]), blames, reason)


def accused_by_stragglers(verdict: Mapping[str, Any], least_share: float | None = None) -> tuple[Accused, ...]:
    """The hosts of a straggler verdict's accusations of hardware; a link that joins two hosts accuses neither alone.

    With ``least_share`` only those to which so much of the step time (0 to 1) is known to be lost.
    """
    found: dict[str, Accused] = {}
    for host, one in _of_single_hosts(verdict):
        if least_share is not None and (one.get("lost_share") is None or one["lost_share"] < least_share):
            continue
        ratio = f" ({one['ratio']:.2f} times its peers)" if one.get("ratio") else ""
        reason = f"{one['cause']} on rank{_ranks(one['ranks'])}{ratio}"
        accused = Accused(host, float(one["confidence"]), True, reason)
        if host not in found or found[host].confidence < accused.confidence:
            found[host] = accused
    return tuple(found.values())


def lost_shares(verdict: Mapping[str, Any]) -> dict[str, float]:
    """The largest share of the step time (0 to 1) that is lost to each host it accuses, as far as it is known."""
    found: dict[str, float] = {}
    for host, one in _of_single_hosts(verdict):
        if one.get("lost_share") is not None:
            found[host] = max(found.get(host, 0.0), float(one["lost_share"]))
    return found


def _of_single_hosts(verdict: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The culprits that accuse hardware of one host, with the host."""
    for one in _culprits(verdict) if verdict.get("verdict") == "findings" else ():
        hosts = list(dict.fromkeys(one["hosts"]))
        if one["kind"] in HARDWARE_KINDS and one["cause"] in HOST_CAUSES and len(hosts) == 1:
            yield hosts[0], one


def network_signs(verdict: Mapping[str, Any]) -> list[Sign]:
    """A sign for each finding of a straggler verdict that the network is slow and that accuses no single host.

    Of a link between hosts either may be at fault, or what lies between; a finding on the whole job names nobody.
    """
    found = []
    for one in _culprits(verdict) if verdict.get("verdict") == "findings" else ():
        hosts = tuple(sorted(set(one["hosts"])))
        if one["cause"] != "network" or len(hosts) == 1:
            continue
        where = f"between {' and '.join(hosts)}, on rank{_ranks(one['ranks'])}," if hosts else "of the job"
        segment = f" in {one['segment']}" if one.get("segment") else ""
        ratio = float(one["ratio"]) if one.get("ratio") else math.nan
        how = f" ({ratio:.2f} times as long)" if math.isfinite(ratio) else ""
        sentence = f"the network {where} is slow{segment}{how}, which accuses no host"
        found.append(Sign(Detector.NETWORK, sentence, ratio, 1.0, None, tuple(sorted(map(int, one["ranks"]))), hosts))
    return found


def says_not_finite(verdict: Mapping[str, Any]) -> bool:
    """Whether the culprit's own exception was that its loss is not finite."""
    told = [str(one.get("statement", "")) for culprit in _culprits(verdict) for one in culprit.get("evidence", ())]
    return any(culprit["kind"] == "exception" for culprit in _culprits(verdict)) and any(
        "not finite" in text for text in told
    )


def says_storage(verdict: Mapping[str, Any]) -> bool:
    """Whether the culprits' own exceptions were that something cannot be written or read."""
    told = [str(one.get("statement", "")) for culprit in _culprits(verdict) for one in culprit.get("evidence", ())]
    return all(culprit["kind"] == "exception" for culprit in _culprits(verdict)) and any(map(_STORAGE.search, told))


def _culprits(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in verdict.get("culprits", ()) if isinstance(one, dict) and one.get("hosts") is not None]


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(int(rank) for rank in ranks)
    return f"{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}"
