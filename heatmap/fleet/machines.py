"""Which machine each host of a fleet was, over several attempts and stores: hosts are renamed, machines stay."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...collectors.hardware.machine import Basis, same_machines
from ...collectors.reading.store import Store

Place = tuple[str, str, int, str]
"""Store, run, attempt and host."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Names of machines. ``told`` is what the hosts' own agents said; ``by_host`` where a name had one machine only."""

    told: dict[Place, str] = field(default_factory=dict)
    by_host: dict[str, str] = field(default_factory=dict)

    def of(self, place: Place) -> str:
        """The machine; the host's own name where none is known.

        A host that did not tell is the one of its name, if there is only one of that name.
        """
        host = place[-1]
        return self.told.get(place) or self.by_host.get(host) or host


def load_machines(stores: Sequence[Store]) -> Machines:
    """What the hosts of all attempts told of their machines, by boards and GPUs first.

    The system's machine id is believed only of machines that no attempt has twice: images are copied with it.
    """
    return machines_of_rows(
        {"store": str(store.root), **row}
        for store in stores
        for row in store.query("SELECT * FROM machines ORDER BY run, attempt, host").to_pylist()
    )


def machines_of_rows(rows: Iterable[dict[str, Any]]) -> Machines:
    """The same from rows of ``machines``, each with its ``store``."""
    found = list(same_machines(list(rows)))
    by_system = {name for row, name in found if row["basis"] == Basis.SYSTEM}
    twice = Counter((name, row["store"], row["run"], row["attempt"]) for row, name in found)
    copied = by_system & {key[0] for key, times in twice.items() if times > 1}
    told = {
        (str(row["store"]), str(row["run"]), int(row["attempt"]), str(row["host"])): name
        for row, name in found
        if name not in copied
    }
    names = defaultdict[str, set[str]](set)
    for (*_, host), name in told.items():
        names[host].add(name)
    return Machines(told, {host: next(iter(each)) for host, each in names.items() if len(each) == 1})
