"""Every page on runs imported from every kind of file there is: production jobs, one GPU, a gap of a mesh, logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.imports import REAL_FILES, ImportedFile
from support.page_checks import check_all_pages

pytestmark = pytest.mark.timeout(120)

CELLS = {"AR": 16 * 44, "ST": 8 * 32, "distributed_info_unavailable": 1, "megatron_deepspeed": 5, "trace_filter": 2 * 2}
"""Ranks x steps of some runs."""

BOTH = ("AR", "distributed_info_unavailable", "megatron_deepspeed")
"""Runs that are looked at in light and dark."""


@pytest.mark.parametrize("file", REAL_FILES, ids=str)
def test_all_pages_open_on_an_imported_run(
    browser: Browser, imported_store: Callable[[str], Path], file: ImportedFile
) -> None:
    dark = (False, True) if file.run in BOTH else (False,)
    compared = check_all_pages(browser, imported_store(file.path), dark=dark)
    assert compared["cells"] == CELLS.get(file.run, compared["cells"]) > 0
    assert compared["spans"] > 0
