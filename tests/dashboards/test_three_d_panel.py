"""Beside the 3D picture: stacks and how to have them, what to do next, and culprits beyond those that are listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.scene.page import page_html
from megascope.dashboards.scene.verdict import MOST_CULPRITS
from megascope.dashboards.server import RunningServer, background_server
from megascope.viz3d.advice import next_steps
from megascope.viz3d.graph import build_graph
from megascope.viz3d.hang import Judged, diagnose
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import CulpritKind, GroupName, HangCulprit, HangVerdict, State
from support.page_checks import Visit, visit, wait_judged, wait_painted
from support.synthetic_store import SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)

STUCK = SyntheticJob(steps=10, stuck=5, ranks_per_host=4)
STACK = "read() at dataset.py:88\n__next__() at loader.py:12"


def stuck(root: Path, *stacks: int) -> Path:
    """Rank 5 sits in data loading; of these ranks an agent took the stack, twice of the first."""
    write_synthetic_store(root, STUCK)
    end = STUCK.first_ns + STUCK.steps * STUCK.step_ns
    older = [{"action": "stack", "rank": rank, "stack": "older() at old.py:1"} for rank in stacks[:1]]
    newer = [{"action": "stack", "rank": rank, "stack": f"{STACK}\nrank {rank}"} for rank in stacks]
    with TableWriter(root, "agent") as writer:
        incident = {"incident": ["r/0/h/stalled/0"], "kind": ["stalled"], "opened_ns": [end]}
        writer.write("incidents", STUCK.run, 0, incident | {"actions": [json.dumps([*older, *newer])]})
        writer.commit()
    return root


@pytest.fixture(scope="module")
def with_stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with background_server(stuck(tmp_path_factory.mktemp("stacks") / "store", 5, 4)) as server:
        yield server


@pytest.fixture(scope="module")
def without_stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with background_server(stuck(tmp_path_factory.mktemp("none") / "store")) as server:
        yield server


def opened(seen: Visit, query: str = "") -> Page:
    page = seen.go(f"/3d{query}")
    wait_judged(page)
    page.wait_for_function("() => window.megascope.widget('scene')?.model?.verdict")
    wait_painted(page, "scene")
    return page


def test_the_newest_stacks_of_the_culprit_and_of_a_chosen_rank(browser: Browser, with_stacks: RunningServer) -> None:
    with visit(browser, with_stacks.url) as seen:
        page = opened(seen)
        assert page.locator(".no-stack").count() == 0
        page.click("text=Python stack of rank 5")
        assert page.inner_text(".stack-of[open] pre") == f"{STACK}\nrank 5"
        page.fill("#scene-find", "4")
        page.press("#scene-find", "Enter")
        page.wait_for_url("**rank=4**")
        chosen = page.locator("#scene-panel .stack-of").first
        chosen.locator("summary").click()
        assert chosen.locator("pre").inner_text() == f"{STACK}\nrank 4"
        page.fill("#scene-find", "2")
        page.press("#scene-find", "Enter")
        page.wait_for_url("**rank=2**")
        told = page.inner_text("#scene-panel .no-stack")
        assert told.startswith("No Python stack of rank 2 was taken")
        seen.check_clean()


def test_where_none_was_taken_it_says_how_to_have_them(browser: Browser, without_stacks: RunningServer) -> None:
    with visit(browser, without_stacks.url) as seen:
        page = opened(seen)
        told = page.inner_text("#scene-panel .no-stack")
        assert "No Python stack of rank 5 was taken" in told
        assert "MEGASCOPE_STACKS=1" in told
        assert "py-spy" in told
        seen.check_clean()


def test_what_to_do_next_is_the_verdicts_own(browser: Browser, without_stacks: RunningServer, tmp_path: Path) -> None:
    with Store(stuck(tmp_path / "store")) as store:
        (culprit,) = diagnose(store, store.attempt()).culprits
    with visit(browser, without_stacks.url) as seen:
        page = opened(seen)
        assert page.locator("#scene-panel .next[open] li").all_inner_texts() == list(next_steps(culprit))
        seen.check_clean()


def test_culprits_beyond_the_list_are_counted_and_the_dead_have_no_stack(browser: Browser, tmp_path: Path) -> None:
    waiting = Flight("allreduce", "collective", 1, 7, begun_ns=1)
    ranks = range(MOST_CULPRITS + 4)
    states = {rank: RankState(rank, 10**10, flights=() if rank < len(ranks) - 1 else (waiting,)) for rank in ranks}
    hosts = {rank: f"node{rank // 8}" for rank in ranks}
    look = Snapshot(10**10, states, {1: GroupName("default_pg", tuple(ranks))}, hosts, {})
    roots = tuple(
        HangCulprit((rank,), (hosts[rank],), 0.9, "high", CulpritKind.DEAD, "allreduce", None, 1, ())
        for rank in ranks[:-1]
    )
    verdict = HangVerdict("dumps", 0, None, State.HANG, 1, 1, culprits=roots)
    file = tmp_path / "alone.html"
    file.write_text(page_html(Judged(verdict, look, build_graph(look)), title="dumps"))
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_function("() => window.megascope.alone?.ready()")
    assert page.locator("#scene-panel h2.root").count() == MOST_CULPRITS
    assert page.inner_text("#more-roots") == "And 3 more culprits: megascope hang --json lists them."
    assert page.locator("#scene-panel .next").count() == MOST_CULPRITS
    assert page.locator("#scene-panel .next[open]").count() == 1, "those of the first"
    assert page.locator(".no-stack").count() == 0
    page.fill("#scene-find", "3")
    page.press("#scene-find", "Enter")
    assert page.inner_text(".no-stack") == "No Python stack of rank 3 is in this file."
    page.close()
