"""A machine is one however its hosts are called, and two machines are two though they share a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from megascope.collectors.hardware.machine import Machine
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.fleet.analysis import fleet_of
from megascope.heatmap.fleet.machines import load_machines, machines_of_rows
from megascope.heatmap.verdict import CulpritKind
from support.fleet_histories import WEEK_NS, culprit, history, hosts_of


def test_a_machine_that_was_renamed_is_one_offender() -> None:
    """Accused twice in 64 attempts by two names: each alone would be chance."""
    everyone = hosts_of(64)
    names = {0: "node0007", 1: "pod-a"}
    found = []
    for number, name in names.items():
        hosts = [name if host == "node0007" else host for host in everyone]
        one = history(number, hosts, culprit(name, 0.05))
        series = replace(one.series, start_ns=one.series.start_ns + number * WEEK_NS)
        found.append(replace(one, series=series, machine_names={name: "board-7"}))
    result = fleet_of(found)
    (host,) = result.hosts
    assert (host.host, host.also, host.machine, host.offender) == ("pod-a", ("node0007",), "board-7", True)
    assert (host.accused, host.present, result.host_count) == (2, 2, 64)
    assert result.sentence.startswith("Host pod-a, the same machine as node0007, was accused in 2 of 2")
    parted = fleet_of([replace(one, machine_names={}) for one in found])
    assert [(one.accused, one.machine, one.offender) for one in parted.hosts] == [(1, None, False)] * 2


def test_hosts_of_one_machine_in_one_attempt_are_accused_once() -> None:
    group = culprit("+".join(hosts_of(4)), 0.1, kind=CulpritKind.GROUP)
    one = replace(history(0, hosts_of(8), group), machine_names=dict.fromkeys(hosts_of(4), "gpus-1"))
    result = fleet_of([one])
    assert [(each.host, each.accused, each.present) for each in result.hosts] == [("node0000", 1, 1)]
    assert result.host_count == 5


def machine_row(run: str, host: str, *, board: str | None = None, gpus: str = "", system: str = "") -> dict[str, Any]:
    machine = Machine(board, tuple(gpus), system or None)
    return {"store": "store", "run": run, "attempt": 0, **machine.row(host)}


def test_machines_are_told_apart_by_what_is_sure() -> None:
    rows = [
        machine_row("a", "n0", gpus="abcd"), machine_row("b", "pod", gpus="abce"),
        machine_row("a", "n1", board="x"), machine_row("b", "n1", board="y"),
        machine_row("a", "n2", system="image"), machine_row("a", "n3", system="image"),
        machine_row("a", "n4", system="own"), machine_row("b", "n5", system="own"),
        machine_row("a", "n6"),
    ]  # fmt: skip
    found = machines_of_rows(rows)

    def of(run: str, host: str) -> str:
        return found.of(("store", run, 0, host))

    assert of("a", "n0") == of("b", "pod") == of("older", "n0"), "a GPU was replaced, and the host renamed"
    assert len({of("a", "n1"), of("b", "n1"), of("older", "n1")}) == 3, "another machine under an old name"
    assert (of("a", "n2"), of("a", "n3")) == ("n2", "n3"), "one image, two machines"
    assert of("a", "n4") == of("b", "n5")
    assert of("a", "n6") == "n6"


def test_machines_are_read_from_all_stores(tmp_path: Path) -> None:
    stores = []
    for name, host in (("one", "n0"), ("two", "pod")):
        with TableWriter(tmp_path / name, "w") as writer:
            writer.write("machines", "r", 0, {key: [value] for key, value in Machine(gpus=("G",)).row(host).items()})
            writer.commit()
        stores.append(Store(tmp_path / name))
    found = load_machines(stores)
    first, second = (
        found.of((str(store.root), "r", 0, host)) for store, host in zip(stores, ("n0", "pod"), strict=True)
    )
    assert first == second != "n0"
    for store in stores:
        store.close()
