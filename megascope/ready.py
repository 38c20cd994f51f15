"""``python -m megascope.ready VERB ...``: a verb that has imported all it needs and waits for a line to begin.

Who will ask for a verdict in a moment starts it now, and writes a line to its standard input then; without a line, as
where that process has ended, nothing is run.
"""

from __future__ import annotations

import importlib
import sys

from .cli import main

NEEDED = (
    "duckdb",
    "pyarrow.compute",
    "megascope.viz3d.bundle.reading",
    "megascope.viz3d.paths",
    "megascope.viz3d.report",
)


def warm() -> None:
    """Import what the analysers need, and what is imported at the first use only."""
    for name in NEEDED:
        importlib.import_module(name)
    import pyarrow  # noqa: PLC0415

    pyarrow.scalar(0)  # it looks for pandas here, and imports it where it is installed


if __name__ == "__main__":
    warm()
    raise SystemExit(main() if sys.stdin.readline() else 0)
