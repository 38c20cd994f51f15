"""Which hosts a job trains on and which wait as spares; those that stay keep their ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose_hosts(
    needed: int, before: Sequence[str], present: Sequence[str], barred: Collection[str]
) -> tuple[str, ...] | None:
    """``needed`` hosts in the order of their ranks; None where there are not enough.

    Hosts of the attempt before stay where they were; one that is gone or barred is replaced by the spare that joined
    first. ``present``: hosts that are there, in the order in which they joined.
    """
    usable = [host for host in present if host not in barred]
    spares = [host for host in usable if host not in before]
    chosen: list[str] = []
    for place in range(needed):
        host = before[place] if place < len(before) else None
        if host is None or host not in usable:
            if not spares:
                return None
            host = spares.pop(0)
        chosen.append(host)
    return tuple(chosen)


def spares_of(active: Collection[str], present: Sequence[str], barred: Collection[str]) -> list[str]:
    """Hosts that could step in."""
    return [host for host in present if host not in active and host not in barred]
