"""The page Scaling: points beside published ones, techniques, and the assumptions in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from megascope.cli import main
from megascope.dashboards.pages.scaling import departures
from megascope.dashboards.server import background_server
from support.page_checks import visit
from support.synthetic_store import SyntheticJob, write_synthetic_store


def test_where_a_curve_is_not_as_published_is_said() -> None:
    point: dict[str, Any] = {"gpus": 12288, "difference": {"Megatron-LM": 0.049, "MegaScale": 0.094, "near": 0.004}}
    rungs = [("efficient-operators", 0.066, 0.017), ("data", 0.011, 0.011), ("more", 0.1, None)]
    ladder = [{"techniques": [name], "gain": gain, "published": published} for name, gain, published in rungs]
    curve = {"points": [point], "ladder": ladder, "ladder_gpus": 256}
    (sentence,) = departures(curve)
    assert (
        "MFU is 4.9 points above that of Megatron-LM at 12,288 GPUs, 9.4 points above that of MegaScale at" in sentence
    )
    assert "gains at 256 GPUs are efficient-operators +6.6 where +1.7 were published. Differences" in sentence
    assert departures({**curve, "points": [], "ladder": []}) == []


@pytest.mark.timeout(180)
def test_a_curve_is_kept_and_shown(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "store"
    write_synthetic_store(root, SyntheticJob(steps=2))
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = seen.go("/scaling")
        page.wait_for_function("() => document.body.innerText.includes('No curve was simulated yet')")
        seen.check_clean()
    assert main(["simulate", str(root), "--mfu-curve", "175b", "--gpus", "12288", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert captured.err == ""
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = seen.go("/scaling")
        page.wait_for_selector("#points")
        row = page.inner_text("#points tbody tr")
        point = said["points"][0]
        assert f"{point['mfu_none']:.1%}" in row
        assert f"{point['mfu_all']:.1%}" in row
        assert "MegaScale 55.2%" in row
        assert f"({100 * point['difference']['MegaScale']:+.1f})" in row
        assert page.locator(".mark-published").count() == 2
        assert page.locator("#techniques tbody tr").count() == len(said["techniques"]) == 8
        assert page.locator("#ladder tbody tr").count() == 5
        shown = page.locator("#assumptions li").all_inner_texts()
        assert shown == said["assumptions"]
        seen.check_clean()


def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", "--mfu-curve", "175b", "--gpus", "100"]) == 2
    assert "no whole replicas" in capsys.readouterr().err
    assert main(["simulate", "--mfu-curve", "175b", "--gpus", "many"]) == 2
    assert "no list of numbers" in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "store"), "--gpus", "100"]) == 2
    assert "--gpus is of --mfu-curve" in capsys.readouterr().err
