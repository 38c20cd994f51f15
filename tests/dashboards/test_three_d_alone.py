"""The 3D picture as one file, opened in a browser without a network: slider, stacks, find, and racks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.scene.history import Past
from megascope.dashboards.scene.page import page_html
from megascope.viz3d.doing import doing_of
from megascope.viz3d.focus import focus_on, neighbours, ways_to
from megascope.viz3d.hang import diagnose_with_graph
from megascope.viz3d.snapshot import take_snapshot
from support.synthetic_store import SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)

STUCK = SyntheticJob(steps=10, stuck=5, ranks_per_host=4)
LARGE = SyntheticJob(layout={"pp": 4, "dp": 8, "tp": 4}, steps=3, microbatches=4, stuck=37)
STACK = "read() at dataset.py:88\n__next__() at loader.py:12"


@pytest.fixture(scope="module")
def stuck_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 5 sits in data loading with its stack taken; heartbeats from before show all in their forward."""
    root = tmp_path_factory.mktemp("stuck") / "store"
    write_synthetic_store(root, STUCK)
    end = STUCK.first_ns + STUCK.steps * STUCK.step_ns
    seen = [(rank, end - back * 10**9) for back in (9, 6, 3) for rank in range(8)]
    forward = {"segment": "forward", "kind": "compute", "group": None, "sequence": None, "peer": None, "microbatch": 1}
    rows: dict[str, list[Any]] = {
        "rank": [rank for rank, _ in seen],
        "moment_ns": [moment for _, moment in seen],
        "step": [8] * len(seen),
        "in_flight": [[forward | {"begun_ns": moment - 10**7}] for _, moment in seen],
        "process_state": ["running"] * len(seen),
    }
    actions = json.dumps([{"action": "stack", "rank": 5, "stack": STACK, "moment_ns": end}])
    with TableWriter(root, "earlier") as writer:
        writer.write("heartbeats", STUCK.run, STUCK.attempt, rows)
        incident = {"incident": ["i"], "kind": ["stalled"], "opened_ns": [end], "actions": [actions]}
        writer.write("incidents", STUCK.run, STUCK.attempt, incident)
        writer.commit()
    return root


@pytest.fixture(scope="module")
def bundled(stuck_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as a bundle has it."""
    folder = tmp_path_factory.mktemp("bundle")
    racks = folder / "racks.csv"
    racks.write_text("host,rack\nnode0000,A-07\nnode0001,B-12\n")
    arguments = ["hang", str(stuck_store), "--bundle", str(folder / "b.zip"), "--racks", str(racks), "--json"]
    assert main(arguments) == 0
    with zipfile.ZipFile(folder / "b.zip") as archive:
        return Path(archive.extract("3d.html", folder))


@contextmanager
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    """The file in a page without a network; nothing may be asked for, and nothing complained of."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 720})
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    page.wait_for_function("() => window.megascope.alone?.ready()")
    yield page
    context.close()
    assert problems == []


_DOING = "() => window.megascope.alone.nodes.map((node) => [node.rank, node.doing])"


def test_the_slider_goes_back_over_heartbeats_without_a_server(
    browser: Browser, bundled: Path, stuck_store: Path
) -> None:
    with opened(browser, bundled) as page:
        moments = [int(one) for one in page.evaluate("() => window.megascope.alone.moments")]
        assert len(moments) > 2
        assert page.is_visible("#scene-moment")
        newest = dict(page.evaluate(_DOING))
        with Store(stuck_store) as store:
            looks = {moment: take_snapshot(store, store.attempt(), moment) for moment in moments[:-1]}
        for number, moment in enumerate(moments[:-1]):
            page.evaluate(f"() => window.megascope.alone.slide({number})")
            page.evaluate(f"() => {{ document.getElementById('scene-moment').value = {number}; }}")
            expected = {rank: str(doing_of(state)) for rank, state in looks[moment].states.items()}
            assert dict(page.evaluate(_DOING)) == expected
            if number == 0:
                assert set(expected.values()) == {"compute"} != set(newest.values()), "all were in their forward"
        page.keyboard.press("[")
        page.keyboard.press("]")
        page.keyboard.press("]")
        page.wait_for_function("() => window.megascope.alone.whenText().indexOf('before') < 0")
        assert dict(page.evaluate(_DOING)) == newest
        assert page.is_hidden("#scene-judge")


def test_stacks_are_in_the_file(browser: Browser, bundled: Path) -> None:
    with opened(browser, bundled) as page:
        page.click("text=Python stack of rank 5")
        assert page.inner_text("pre.stack") == STACK


def test_racks_are_those_of_the_users_file(browser: Browser, bundled: Path) -> None:
    with opened(browser, bundled) as page:
        for _ in range(2):
            page.keyboard.press("h")
        assert page.evaluate("() => [...window.megascope.alone.model.hull('racks').keys()]") == ["A-07", "B-12"]
        assert page.evaluate("() => [window.megascope.alone.hulls, window.megascope.alone.hullCount]") == ["racks", 2]
        assert page.inner_text("#scene-around option[value=racks]") == "racks"


def test_a_rank_outside_the_scene_is_found_and_drawn_with_its_neighbours(browser: Browser, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", LARGE)
    with Store(tmp_path / "store") as store:
        attempt = store.attempt()
        judged = diagnose_with_graph(store, attempt)
        file = tmp_path / "alone.html"
        # As of a job of which only those that matter are told in detail.
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr("megascope.dashboards.scene.page.MOST_TOLD", 64)
        file.write_text(page_html(judged, title="large", past=Past(store, attempt)))
        monkeypatch.undo()
    assert judged.snapshot is not None
    assert judged.graph is not None
    matter = focus_on(judged.snapshot, (37,), ways_to(judged.graph, {37}))
    outside = next(rank for rank in range(128) if rank not in matter)
    with opened(browser, file) as page:
        assert [rank for rank, _ in page.evaluate(_DOING)] == list(matter)
        page.keyboard.press("/")
        page.keyboard.type(str(outside))
        page.keyboard.press("Enter")
        drawn = {rank for rank, _ in page.evaluate(_DOING)}
        assert drawn == set(matter) | set(neighbours(judged.snapshot, (outside,)))
        assert page.inner_text("#scene-panel h2").startswith(f"Rank {outside}:")
        told = page.inner_text("#scene-panel").split("Rank 37 on")[0]
        assert "is not in this file" in told
        assert "no rank" not in told.lower(), "whom it waits for is not known"
        page.keyboard.press("Escape")
        assert [rank for rank, _ in page.evaluate(_DOING)] == list(matter)
