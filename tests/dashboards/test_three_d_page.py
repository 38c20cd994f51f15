"""The 3D page in a real browser: what is drawn is what the store says, and what a hand on it does."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards import verdicts
from megascope.dashboards.scene.page import page_html
from megascope.dashboards.server import RunningServer, background_server
from megascope.viz3d.doing import doing_of
from megascope.viz3d.focus import focus_on, ways_to
from megascope.viz3d.graph import build_graph
from megascope.viz3d.hang import Judged, diagnose_with_graph
from megascope.viz3d.placement import place_ranks
from megascope.viz3d.snapshot import take_snapshot
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import CulpritKind, GroupName, HangCulprit, HangVerdict, State
from support.page_checks import Visit, drawn_spans, visit, wait_judged, wait_painted
from support.scene_checks import check_scene
from support.synthetic_store import SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)

STUCK = SyntheticJob(steps=10, stuck=5, ranks_per_host=4)
LARGE = SyntheticJob(layout={"pp": 4, "dp": 8, "tp": 4}, steps=3, microbatches=4, stuck=37)

_CAMERA = "() => { const s = window.megascope.widget('scene'); return [s.yaw, s.pitch, s.zoomed, s.panX, s.panY]; }"
_PLACE = """rank => {
    const scene = window.megascope.widget("scene"), box = scene.canvas.getBoundingClientRect();
    const [x, y] = scene.places[scene.nodeOf(rank)];
    return [box.left + x, box.top + y];
}"""
_DRAWN = "() => window.megascope.widget('scene').nodes.map(n => [n.rank, n.doing, n.waits, n.culprit])"


@pytest.fixture(scope="module")
def stuck_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 5 sits in data loading, all others wait; some heartbeats from before show all in their forward."""
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
    with TableWriter(root, "earlier") as writer:
        writer.write("heartbeats", STUCK.run, STUCK.attempt, rows)
        writer.commit()
    return root


@pytest.fixture(scope="module")
def stuck_server(stuck_store: Path) -> Iterator[RunningServer]:
    with background_server(stuck_store) as server:
        yield server


@pytest.fixture
def stuck_visit(browser: Browser, stuck_server: RunningServer) -> Iterator[Visit]:
    with visit(browser, stuck_server.url) as seen:
        yield seen


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large") / "store"
    write_synthetic_store(root, LARGE)
    return root


@pytest.fixture(scope="module")
def large_server(large_store: Path) -> Iterator[RunningServer]:
    with background_server(large_store) as server:
        yield server


def judged_of(root: Path) -> Judged:
    with Store(root) as store:
        return diagnose_with_graph(store, store.attempt())


def open_scene(seen: Visit, query: str = "") -> Page:
    page = seen.go(f"/3d{query}")
    wait_judged(page)
    page.wait_for_function("() => window.megascope.widget('scene')?.model?.verdict")
    wait_painted(page, "scene")
    return page


def test_what_is_drawn_is_what_the_store_says(stuck_visit: Visit, stuck_store: Path) -> None:
    page = open_scene(stuck_visit)
    judged = judged_of(stuck_store)
    assert judged.graph is not None
    assert check_scene(page, judged) == 8
    assert [culprit for *_, culprit in page.evaluate(_DRAWN)] == [rank == 5 for rank in range(8)]
    toward = page.evaluate("() => Object.fromEntries(window.megascope.widget('scene').model.toward)")
    assert toward == {str(rank): step for rank, step in ways_to(judged.graph, {5}).items()}
    assert "Rank 5" in page.locator(".banner").first.inner_text()
    assert page.inner_text("#scene-panel h2.root").endswith("Rank 5 on node0001 is stuck in data, 7 ranks wait for it")
    labels = page.evaluate("() => window.megascope.widget('scene').labels.map(label => label.text)")
    assert labels[0] == "rank 5 on node0001: stuck in data"
    stuck_visit.check_clean()


def test_the_table_lists_what_is_in_flight_and_follows_the_choice(stuck_visit: Visit, stuck_store: Path) -> None:
    page = open_scene(stuck_visit)
    snapshot = judged_of(stuck_store).snapshot
    assert snapshot is not None
    stored = sorted(
        (rank, flight.segment, flight.sequence) for rank, state in snapshot.states.items() for flight in state.flights
    )
    assert sorted(_rows(page), key=str) == sorted(stored, key=str)
    page.click("#in-flight th[data-key=rank]")
    assert [row[0] for row in _rows(page)][1:] == sorted(rank for rank, *_ in stored if rank != 5), "the root is first"
    page.fill("#flight-filter", "all_gather")
    assert {row[1] for row in _rows(page)} == {segment for _, segment, _ in stored if "all_gather" in segment}
    page.fill("#flight-filter", "")
    page.click("#in-flight tbody tr[data-rank='6']")
    page.wait_for_url("**rank=6**")
    assert _rows(page)[0][0] == 6
    stuck_visit.check_clean()


def _rows(page: Page) -> list[tuple[int, str, int | None]]:
    rows = page.evaluate(
        """() => [...document.querySelectorAll('#in-flight tbody tr')].map((row) =>
            [row.cells[0], row.cells[2], row.cells[4]].map((cell) => cell.textContent))"""
    )
    return [(int(rank), segment, None if number == "–" else int(number)) for rank, segment, number in rows]


def test_hover_and_click_tell_who_waits_and_lead_to_the_timeline_and_back(stuck_visit: Visit) -> None:
    page = open_scene(stuck_visit)
    page.mouse.move(*page.evaluate(_PLACE, 4))
    page.wait_for_selector(".tooltip:not([hidden])")
    told = page.inner_text(".tooltip")
    assert "in tp_all_gather" in told
    assert "no. " in told
    assert "waits for\nrank 5" in told
    assert page.evaluate("() => window.megascope.widget('scene').hovered") == 4
    page.mouse.click(*page.evaluate(_PLACE, 4))
    page.wait_for_url("**rank=4**")
    assert "tp_all_gather" in page.inner_text("#chosen-flight")
    assert "It waits for rank 5." in page.inner_text(".side")
    page.click("text=rank 4 in the timeline")
    page.wait_for_url("**/timeline?*rank=4*")
    assert "ranks=4,5" in page.url
    assert "steps=9:10" in page.url
    wait_painted(page, "timeline")
    open_spans = [span["segment"] for span in drawn_spans(page) if span["status"] == "in flight" and span["rank"] == 4]
    assert open_spans == ["forward", "tp_all_gather"]
    page.go_back()
    page.wait_for_url("**/3d?*rank=4*")
    wait_painted(page, "scene")
    assert page.inner_text(".side h2").startswith("Rank 4:")
    stuck_visit.check_clean()


def test_camera_axes_groups_and_hulls_stand_in_the_address(stuck_visit: Visit) -> None:
    page = open_scene(stuck_visit)
    home = page.evaluate(_CAMERA)
    box = page.locator("[data-widget=scene] canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 330, steps=5)
    page.mouse.up()
    page.mouse.wheel(0, -300)
    page.wait_for_function("() => location.search.includes('camera=')")
    turned = page.evaluate(_CAMERA)
    assert all(one != other for one, other in zip(turned[:3], home[:3], strict=True))
    page.select_option("#scene-groups", "pp")
    page.select_option("#scene-around", "hosts")
    page.select_option("#scene-x", "pp")
    page.wait_for_function("() => ['axis=pp', 'hulls=hosts', 'along='].every(one => location.search.includes(one))")
    copied = page.url
    page.goto("about:blank")
    page.goto(copied)
    wait_painted(page, "scene")
    assert page.evaluate(_CAMERA) == pytest.approx(turned, abs=0.001)
    scene: list[Any] = page.evaluate(
        "() => { const s = window.megascope.widget('scene'); return [s.edges, s.hulls, s.hullCount, s.along]; }"
    )
    assert scene == ["pp", "hosts", 2, ["pp", "dp", "tp"]]
    stuck_visit.check_clean()


def test_any_axes_can_lie_along_x_y_and_z(stuck_visit: Visit, stuck_store: Path) -> None:
    page = open_scene(stuck_visit, "?along=dp:pp:tp")
    snapshot = judged_of(stuck_store).snapshot
    assert snapshot is not None
    expected = place_ranks(("tp", "pp", "dp"), snapshot.coordinates)
    drawn = page.evaluate("() => window.megascope.widget('scene').nodes.map(node => [node.rank, node.at])")
    assert {rank: tuple(at) for rank, at in drawn} == expected
    stuck_visit.go("/3d?along=dp:zz")
    page.wait_for_selector("text=The mesh has no axis 'zz'")


def test_the_slider_shows_the_ranks_as_they_were(stuck_visit: Visit, stuck_store: Path) -> None:
    page = open_scene(stuck_visit)
    moments = [int(one) for one in page.evaluate("() => window.megascope.widget('scene').moments")]
    assert len(moments) > 2
    with Store(stuck_store) as store:
        before = take_snapshot(store, store.attempt(), moments[0])
    page.keyboard.press("[")
    page.evaluate(
        "() => { const s = document.getElementById('scene-moment'); s.value = 0; s.dispatchEvent(new Event('input')); }"
    )
    page.wait_for_function(f"() => document.getElementById('widget-scene').dataset.look === '{moments[0]}'")
    doing = {rank: str(doing_of(state)) for rank, state in before.states.items()}
    assert {rank: one for rank, one, *_ in page.evaluate(_DRAWN)} == doing
    flights = sorted((rank, flight.segment) for rank, state in before.states.items() for flight in state.flights)
    assert sorted((rank, segment) for rank, segment, _ in _rows(page)) == flights
    assert "before the judged look" in page.inner_text("#scene-when")
    page.wait_for_function("() => location.search.includes('look=')")
    page.click("#scene-judge")
    page.wait_for_url(f"**moment={moments[0]}**")
    assert "look=" not in page.url
    stuck_visit.check_clean()


def test_find_and_keys(stuck_visit: Visit) -> None:
    page = open_scene(stuck_visit)
    page.keyboard.press("/")
    page.keyboard.type("node0001")
    page.keyboard.press("Enter")
    page.wait_for_url("**rank=4**")
    assert page.inner_text("#scene-found") == "node0001: 4 ranks"
    page.keyboard.press("n")
    page.wait_for_url("**rank=5**")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search.includes('rank=')")
    home = page.evaluate(_CAMERA)
    for key, changed in (("ArrowLeft", 0), ("ArrowUp", 1), ("+", 2), ("a", 3), ("w", 4)):
        before = page.evaluate(_CAMERA)
        page.keyboard.press(key)
        assert page.evaluate(_CAMERA)[changed] != before[changed], key
    page.keyboard.press("0")
    assert page.evaluate(_CAMERA) == home
    page.keyboard.press("?")
    assert page.is_visible("#keys ul")
    stuck_visit.check_clean()


@pytest.mark.parametrize("dark", [False, True])
def test_verdict_and_culprit_stand_above_the_fold(browser: Browser, stuck_server: RunningServer, dark: bool) -> None:
    with visit(browser, stuck_server.url, dark=dark) as seen:
        page = open_scene(seen)
        for place in (page.evaluate(_PLACE, 5)[1], *(_bottom(page, one) for one in (".banner", "h2.root"))):
            assert 0 < place < 720
        pixel = page.evaluate(
            """() => {
                const scene = window.megascope.widget("scene"), [x, y] = scene.places[scene.nodeOf(5)];
                const pixel = scene.canvas.getContext("2d").getImageData(Math.round(x), Math.round(y), 1, 1).data;
                const hex = "#" + [...pixel].slice(0, 3).map((value) => value.toString(16).padStart(2, "0")).join("");
                return [hex, window.megascope.colour("fault")];
            }"""
        )
        assert pixel[0] == pixel[1]
        seen.check_clean()


def _bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def test_png_and_the_page_as_a_file(stuck_visit: Visit, browser: Browser, tmp_path: Path) -> None:
    page = open_scene(stuck_visit)
    with page.expect_download() as waited:
        page.click("#scene-png")
    picture = tmp_path / "hang.png"
    waited.value.save_as(picture)
    colours = page.evaluate(
        """async (data) => {
            const image = new Image();
            image.src = "data:image/png;base64," + data;
            await image.decode();
            const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
            [canvas.width, canvas.height] = [image.width, image.height];
            context.drawImage(image, 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer)).size;
        }""",
        base64.b64encode(picture.read_bytes()).decode(),
    )
    assert colours > 20
    with page.expect_download() as waited:
        page.click("#scene-html")
    file = tmp_path / "hang.html"
    waited.value.save_as(file)
    context = browser.new_context(offline=True)
    alone = context.new_page()
    problems: list[str] = []
    alone.on("console", lambda message: problems.append(message.text))
    alone.on("pageerror", lambda error: problems.append(str(error)))
    alone.on("request", lambda request: problems.append(request.url) if request.url != file.as_uri() else None)
    alone.goto(file.as_uri())
    assert "Rank 5 on node0001 is stuck in data" in alone.inner_text(".banner")
    alone.keyboard.press("n")
    assert alone.evaluate("() => window.megascope.alone.chosen") == 5
    alone.click("#scene-png", trial=True)
    drawn = alone.evaluate("() => window.megascope.alone.nodes.map(n => [n.rank, n.doing, n.waits, n.culprit])")
    assert drawn == page.evaluate(_DRAWN)
    context.close()
    assert [one for one in problems if one.startswith(("http", "Error", "Uncaught", "Refused"))] == problems == []
    stuck_visit.check_clean()


def test_a_job_without_a_known_mesh_stands_in_rows_by_host(browser: Browser, tmp_path: Path) -> None:
    """As dumps tell it: groups and hosts, and no axes."""
    waiting = Flight("allreduce", "collective", 1, 7, begun_ns=1)
    states = {rank: RankState(rank, 10**10, flights=() if rank == 2 else (waiting,)) for rank in range(8)}
    hosts = {rank: f"rack{rank // 4}-node{rank // 2}" for rank in range(8)}
    look = Snapshot(10**10, states, {1: GroupName("default_pg", tuple(range(8)))}, hosts, {})
    root = HangCulprit((2,), ("rack0-node1",), 0.9, "high", CulpritKind.MISSING_CALL, "allreduce", None, 7, ())
    verdict = HangVerdict("dumps", 0, None, State.HANG, 7, 7, culprits=(root,))
    file = tmp_path / "alone.html"
    file.write_text(page_html(Judged(verdict, look, build_graph(look)), title="dumps"))
    page = browser.new_page()
    page.goto(file.as_uri())
    at = dict(page.evaluate("() => window.megascope.alone.nodes.map(node => [node.rank, node.at.slice(0, 2)])"))
    assert at == {rank: [rank % 2, rank // 2] for rank in range(8)}
    assert page.evaluate("() => window.megascope.alone.labels[0].text") == (
        "rank 2 on rack0-node1: call left out: allreduce"
    )
    for _ in range(2):
        page.keyboard.press("h")
    assert page.evaluate("() => [window.megascope.alone.hulls, window.megascope.alone.hullCount]") == ["racks", 2]
    assert page.evaluate("() => window.megascope.alone.model.waitersOf(2)") == [0, 1, 3, 4, 5, 6, 7]
    page.close()


def test_racks_that_the_server_was_told_are_drawn(browser: Browser, stuck_store: Path) -> None:
    racks = {"node0000": "hall 1, A", "node0001": "hall 1, B", "node9999": "hall 2"}
    with background_server(stuck_store, racks=racks) as server, visit(browser, server.url) as seen:
        page = open_scene(seen, "?hulls=racks")
        hulls = page.evaluate("() => [...window.megascope.widget('scene').model.hull('racks').keys()]")
        assert hulls == ["hall 1, A", "hall 1, B"]
        assert page.evaluate("() => window.megascope.widget('scene').hullCount") == 2
        assert page.evaluate("() => Object.keys(window.megascope.widget('scene').data.racks).length") == 2
        seen.check_clean()


def test_a_job_that_does_not_hang_shows_its_mesh_and_says_so(slow_visit: Visit) -> None:
    page = open_scene(slow_visit)
    assert "does not hang" in page.inner_text("#no-root")
    assert [culprit for *_, culprit in page.evaluate(_DRAWN)] == [False] * 8
    page.wait_for_function("() => document.querySelectorAll('.banner')[1]?.innerText.includes('SLOW')")
    slow_visit.check_clean()


def test_before_the_verdict_all_ranks_are_drawn_and_the_page_says_that_it_is_worked_out(
    browser: Browser, large_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def held_up(*arguments: Any, **others: Any) -> Judged:
        assert go_on.wait(60)
        return diagnose_with_graph(*arguments, **others)

    monkeypatch.setattr(verdicts, "diagnose_with_graph", held_up)
    with background_server(large_store) as server, visit(browser, server.url) as seen:
        try:
            page = seen.go("/3d")
            page.wait_for_selector("#judging")
            assert "ANALYSING" in page.inner_text(".banner")
            drawn = page.evaluate(_DRAWN)
            assert [rank for rank, *_ in drawn] == list(range(128))
            assert not any(culprit for *_, culprit in drawn)
            assert next(doing for rank, doing, *_ in drawn if rank == 37) == "compute"
            assert page.evaluate("() => window.megascope.widget('scene').overview.cells.length") == 32
            assert "click one" in page.inner_text("#flight-count")
            page.fill("#scene-find", "5")
            page.press("#scene-find", "Enter")
            page.wait_for_function("() => window.megascope.widget('scene').model.told.has(5)")
            assert page.inner_text(".side h2").startswith("Rank 5: waits in")
        finally:
            go_on.set()
        page.wait_for_function("() => window.megascope.widget('scene').model.culprits.has(37)")
        assert "Rank 37" in page.inner_text(".banner")
        assert not page.locator("#judging").count()
        assert len(page.evaluate(_DRAWN)) < 128
        seen.check_clean()


def test_of_a_large_job_those_that_matter_are_drawn_beside_the_whole_fleet(
    browser: Browser, large_server: RunningServer, large_store: Path
) -> None:
    judged = judged_of(large_store)
    assert judged.snapshot is not None
    assert judged.graph is not None
    matter = focus_on(judged.snapshot, (37,), ways_to(judged.graph, {37}))
    with visit(browser, large_server.url) as seen:
        page = open_scene(seen)
        assert [rank for rank, *_ in page.evaluate(_DRAWN)] == list(matter)
        assert len(matter) < 128
        cells = page.evaluate(
            "() => window.megascope.widget('scene').overview.cells.map(c => [c.ranks, c.culprits, c.doing])"
        )
        assert sorted(rank for ranks, *_ in cells for rank in ranks) == list(range(128))
        assert len(cells) == 32
        assert [ranks for ranks, culprits, _ in cells if culprits] == [[36, 37, 38, 39]]
        outside = next(rank for rank in range(128) if rank not in matter)
        page.fill("#scene-find", str(outside))
        page.press("#scene-find", "Enter")
        page.wait_for_function(f"() => window.megascope.widget('scene').model.isTold({outside})")
        assert page.inner_text(".side h2").startswith(f"Rank {outside}: waits in")
        page.keyboard.press("f")
        page.wait_for_function("() => window.megascope.widget('scene').nodes.length === 128")
        assert "around=all" in page.url
        seen.check_clean()
