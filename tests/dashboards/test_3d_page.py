"""The 3D page in a real browser: who is at the root, what a click tells, how it is turned."""

from __future__ import annotations

import pytest

from support.page_checks import Visit, drawn_spans, wait_judged, wait_painted

pytestmark = pytest.mark.timeout(120)


def test_the_camera_stands_in_the_address(stuck_visit: Visit) -> None:
    page = stuck_visit.go("/3d")
    wait_painted(page, "scene")
    camera = "() => { const s = window.megascope.widget('scene'); return [s.yaw, s.pitch, s.zoomed, s.panX, s.panY]; }"
    home = page.evaluate(camera)
    box = page.locator("[data-widget=scene] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 360, box["y"] + 230, steps=5)
    page.mouse.up()
    page.mouse.wheel(0, -300)
    page.wait_for_function("() => location.search.includes('camera=')")
    turned = page.evaluate(camera)
    assert all(one != other for one, other in zip(turned[:3], home[:3], strict=True))
    copied = page.url
    page.goto("about:blank")
    page.goto(copied)
    wait_painted(page, "scene")
    assert page.evaluate(camera) == pytest.approx(turned, abs=0.001)
    page.select_option("#select-axis", "pp")
    page.wait_for_function("() => location.search.includes('axis=pp')")
    wait_painted(page, "scene")
    assert page.evaluate(camera) == pytest.approx(turned, abs=0.001), "another choice keeps the camera"
    stuck_visit.check_clean()


def test_the_3d_page_names_the_root_and_a_click_tells_about_a_rank(stuck_visit: Visit) -> None:
    page = stuck_visit.go("/3d")
    wait_judged(page)
    wait_painted(page, "scene")
    assert "Rank 5" in page.locator(".banner").first.inner_text()
    page.wait_for_function("() => window.megascope.widget('scene').nodes.some(node => node.state === 'culprit')")
    states = page.evaluate(
        "() => Object.fromEntries(window.megascope.widget('scene').nodes.map(n => [n.rank, n.state]))"
    )
    assert states == {str(rank): "culprit" if rank == 5 else "waiting" for rank in range(8)}
    place = page.evaluate(
        """() => {
            const widget = window.megascope.widget("scene"), box = widget.canvas.getBoundingClientRect();
            const [x, y] = widget.places[widget.index.get(4)];
            return [box.left + x, box.top + y];
        }"""
    )
    page.mouse.click(*place)
    page.wait_for_url("**rank=4**")
    page.wait_for_selector("#chosen-flight")
    assert "tp_all_gather" in page.inner_text("#chosen-flight")
    assert "It waits for rank 5." in page.inner_text(".side")
    page.click("text=rank 4 in the timeline")
    page.wait_for_url("**/timeline?*rank=4*")
    wait_painted(page, "timeline")
    open_spans = [span["segment"] for span in drawn_spans(page) if span["status"] == "in flight" and span["rank"] == 4]
    assert open_spans == ["forward", "tp_all_gather"]
    stuck_visit.check_clean()


def test_a_slow_rank_is_told_here_too_and_the_axes_stand_close_to_the_ranks(slow_visit: Visit) -> None:
    page = slow_visit.go("/3d")
    wait_painted(page, "scene")
    page.wait_for_function("() => document.querySelectorAll('.banner')[1]?.innerText.includes('SLOW')")
    gaps = page.evaluate(
        """() => {
            const widget = window.megascope.widget("scene");
            const nodes = Array.from({ length: 12288 }, (_, rank) =>
                ({ ...widget.nodes[0], rank, at: [rank % 8, (rank >> 3) % 192, Math.floor(rank / 1536)] }));
            const far = [-23, -23, -23];
            widget.show({ ...widget.data, nodes, axes: [{ name: "x", from: far, to: [214, -23, -23] }] });
            return widget.axes[0].from.map((value, axis) => -value * widget.spread[axis]);
        }"""
    )
    assert gaps == pytest.approx([0.2, 0.2, 0.2]), "equally far as drawn, however long the sides are"
    slow_visit.check_clean()
