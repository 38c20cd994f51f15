"""A server of the pages in a process of its own, for the page benchmarks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_SERVER = """
import sys
from megascope.dashboards.server import serve
serve(sys.argv[1], port=0, on_open=lambda url: print(url, flush=True))
"""


@contextlib.contextmanager
def server_process(store: Path) -> Iterator[str]:
    """The address of a server in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", _SERVER, str(store)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
