"""What the page benchmarks share: a server in a process of its own, and a page measured alone over a kept store."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from .machine import report

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.page_checks import chromium

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


def whole_store(root: Path, write: Callable[[Path], None]) -> Path:
    """The store at ``root``, written now if it is not there: beside it, and given its name when it is whole.

    What a writing that was ended before left there is thrown away.
    """
    if not root.exists():
        unfinished = root.with_name(f"{root.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write(unfinished)
        unfinished.rename(root)
    return root


def measure_alone(
    name: str,
    key: str,
    write: Callable[[Path], None],
    measure: Callable[[Browser, str, Path, int], dict[str, Any]],
    arguments: list[str] | None,
    description: str | None,
) -> None:
    """The `main` of a benchmark of one page: report what ``measure`` (browser, address, store, visits) found.

    Options: ``--visits``, and ``--store`` for a folder to keep the store in.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--visits", type=int, default=5, help="warm visits")
    parser.add_argument("--store", type=Path, help="a folder to keep the store in; one that is there is used again")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        store = whole_store(given.store or Path(folder) / "store", write)
        with chromium() as browser, server_process(store) as url:
            report(name, {"visits": given.visits, key: measure(browser, url, store, given.visits)})
