"""Writes the lists and sums in docs/metrics.md from the families in the code: `python docs/render_metrics.py`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from megascope.collectors.incidents.incidents import IncidentKind
from megascope.collectors.metrics.agent_families import MOST_RANKS, MOST_RUNS, OF_AGENT, OF_RANK, OF_RUN
from megascope.collectors.metrics.family import Family
from megascope.collectors.metrics.hardware_gauges import HARDWARE, MOST_DEVICES, SOURCES
from megascope.dashboards.metrics_families import ANALYSERS, INCIDENTS, MOST_CULPRITS, SERVER_FAMILIES

PAGE = Path(__file__).parent / "metrics.md"

RANKS, PER_HOST = 12_288, 8

_ERRORS = len({source.extra for source in SOURCES.values() if source.extra})
_VALUES = {"reason": 2, "kind": len(IncidentKind), "counter": _ERRORS}
"""How many values the labels of an agent have, beside those of what they count."""


def _series(families: Iterable[Family]) -> int:
    """Series of one rank, run, device, port or agent."""
    total = 0
    for family in families:
        count = len(family.series_names)
        for label in family.labels:
            count *= _VALUES.get(label, 1)
        total += count
    return total


def _of_server() -> int:
    """Series of the newest run, without culprits and routes."""
    total = 0
    for family in SERVER_FAMILIES.values():
        if family.name == "megascope_verdict":
            total += sum(map(len, ANALYSERS.values()))
        elif "route" not in family.labels and "ranks" not in family.labels:
            many = len(INCIDENTS) if "kind" in family.labels else 1
            total += many * (len(ANALYSERS) if "analyser" in family.labels else 1)
    return total


def _sums() -> str:
    of = {label: [one for one in HARDWARE if label in one.labels] for label in ("device", "port")}
    rank, run, gpu, port = map(_series, (OF_RANK, OF_RUN, of["device"], of["port"]))
    agent = _series([*OF_AGENT, *(one for one in HARDWARE if not one.labels)])
    host = rank * PER_HOST + run + (gpu + port) * PER_HOST + agent
    hosts, culprits = RANKS // PER_HOST, len(ANALYSERS) * MOST_CULPRITS
    text = (
        f"R goes up to {MOST_RANKS}, G and P up to {MOST_DEVICES}, and an agent shows up to {MOST_RUNS} runs; what has "
        f"no value has no series. A host of {PER_HOST} ranks, {PER_HOST} GPUs and {PER_HOST} ports has up to {host} "
        f"series. {RANKS:,} ranks on {hosts:,} such hosts have up to {host * hosts:,}, of which {rank * RANKS:,} are "
        "the ranks' own."
    )
    return f"""\
With R ranks, G GPUs and P RDMA ports on a host, and one run:

    series of an agent  = {rank} R + {run} + {gpu} G + {port} P + {agent}
    series of a server  = {_of_server()} + up to {culprits} culprits + 2 for each route of data that was asked for

{textwrap.fill(text, 119)}"""


def _table(families: Iterable[Family]) -> str:
    rows = [f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.doc} |" for one in families]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def render(page: str) -> str:
    """The page with everything between its markers written anew."""
    parts = {
        "sums": _sums(),
        "agent": _table([*OF_RANK, *OF_RUN, *OF_AGENT, *HARDWARE]),
        "server": _table(SERVER_FAMILIES.values()),
    }
    for name, text in parts.items():
        begin, end = f"<!-- rendered: {name} -->\n", f"\n<!-- end: {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        page, count = pattern.subn(lambda _, new=begin + text + end: new, page)
        assert count == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
