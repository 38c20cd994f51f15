"""Every page on imported runs: a production job of which one rank in four was recorded, one GPU, a log of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from megascope.collectors.importers.importing import import_run
from support.page_checks import check_all_pages

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("file", "cells"),
    [
        ("bytedance_whatif/trace-AR.parquet", 16 * 44),
        ("hta/distributed_info_unavailable", 1),
        ("superbench/megatron_deepspeed.log", 5),
    ],
)
def test_all_pages_open_on_an_imported_run(
    browser: Browser, tmp_path: Path, traces: Path, file: str, cells: int
) -> None:
    import_run([traces / file], tmp_path / "store")
    compared = check_all_pages(browser, tmp_path / "store")
    assert compared["cells"] == cells
    assert compared["spans"] > 0
