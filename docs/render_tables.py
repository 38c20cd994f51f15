"""Writes docs/tables.md from the schemas: `python docs/render_tables.py`."""

from __future__ import annotations

from pathlib import Path

from megascope.collectors.tables.schemas import SCHEMA_VERSION, TABLES

PAGE = Path(__file__).with_name("tables.md")

HEAD = f"""# Tables of the store

Schema version {SCHEMA_VERSION}. This page is written by `docs/render_tables.py` from `collectors/tables/schemas.py`.

Key of everything: (run, attempt, rank). Times ending in `_ns` are int64 ns; moments are UTC, made from the recording
host's monotonic clock and one base taken at the start. Missing is NULL. The view `spans` joins `events` with the names
of segments and the place of ranks, for questions by hand:

    megascope sql STORE "select rank, avg(self_ns) / 1e6 as ms from spans where segment_name = 'forward' group by rank"

The view `windows` has one row a rank, segment and window, with names: rows of `rank_windows` with one key, added up,
without their histograms. Over several attempts of a run, `spans` leaves out the steps that a newer attempt repeated,
and `windows` leaves out a window of which newer attempts repeated every step. A window that was repeated in part stays
whole, since sums cannot be taken apart: its repeated steps count twice. There are at most two of each length for a
restart: the one in which it took up and, until it has caught up, the one in which it is.

Percentiles of any rows of `rank_windows` together, within about 1 %, here the 95th by rank:

    with entries as (
        select rank, unnest(duration_bins) as bin, unnest(duration_bin_counts) as n
        from rank_windows where window_steps = 1000),
    reached as (
        select rank, bin, sum(n) over (partition by rank order by bin) as up_to,
            sum(n) over (partition by rank) as total
        from entries)
    select rank, case when min(bin) < 0 then 0 else exp((min(bin) + 0.5) / 50) end as p95_ns
    from reached where up_to >= ceil(total * 0.95) group by rank
"""


def render() -> str:
    """The page."""
    parts = [HEAD]
    for table in TABLES.values():
        axes = " One int32 column for each axis of the mesh follows." if table.has_axes else ""
        parts.append(f"## {table.name}\n\n{table.doc}{axes}\n\n| column | type | meaning |\n|---|---|---|")
        for column in table.columns:
            kind = str(column.type).replace("dictionary<values=string, indices=int32, ordered=0>", "string")
            parts[-1] += f"\n| `{column.name}` | {kind}{'' if column.nullable else ', not NULL'} | {column.doc} |"
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
