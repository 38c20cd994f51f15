"""What is shown while a verdict is worked out: the 3D picture's plain look, taken once, and no wait behind a wait."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards import verdicts
from megascope.dashboards.components import Awaited
from megascope.dashboards.looks import JudgedLooks, Looks
from megascope.dashboards.pages import three_d
from megascope.dashboards.scene import data as scene_data
from megascope.dashboards.scene.data import MOST_TOLD, scene_payload
from megascope.dashboards.scene.model import draw, model_of
from megascope.dashboards.verdicts import ShownVerdict, hang_of, verdict_banners
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Latest, Workbench
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology
from megascope.viz3d.graph import build_graph
from megascope.viz3d.hang import Judged, diagnose_with_graph, looks_at
from megascope.viz3d.snapshot import take_snapshot
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName, HangVerdict, State
from support.synthetic_store import SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(60)

LARGE = SyntheticJob(layout={"pp": 4, "dp": 8, "tp": 4}, steps=3, microbatches=4, stuck=37)


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 ranks of which number 37 sits in data loading; all others wait."""
    root = tmp_path_factory.mktemp("large") / "store"
    write_synthetic_store(root, LARGE)
    return root


@dataclass
class Held:
    """An analysis that has taken its looks and goes on when it is let; a look is counted."""

    bench: Workbench
    attempt: Attempt
    looked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    looks: int = 0


@pytest.fixture
def held(large_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    with Store(large_store) as store:
        found = Held(Workbench(store), store.attempt())

        def counted(*arguments: Any) -> Looks:
            found.looks += 1
            return looks_at(*arguments)

        def held_up(*arguments: Any, looks: Any, **others: Any) -> Judged:
            taken = looks(others["now_ns"])
            found.looked.set()
            assert found.go_on.wait(30)
            return diagnose_with_graph(*arguments, looks=lambda _: taken, **others)

        monkeypatch.setattr(verdicts, "looks_at", counted)
        monkeypatch.setattr(verdicts, "diagnose_with_graph", held_up)
        yield found
        found.go_on.set()
        found.bench.close()


def asked(held: Held, view: View | None = None) -> dict[str, Any]:
    return dict(json.loads(scene_payload(held.bench, held.attempt, view or View())))


def test_the_picture_shows_what_is_being_judged_and_then_the_verdict(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Snapshot:
        raise AssertionError("a second look was taken")

    monkeypatch.setattr(scene_data, "take_snapshot", never)
    hang_of(held.bench, held.attempt, wait_s=0)
    assert held.looked.wait(30)
    plain = asked(held)
    assert plain["judging"] is True
    assert plain["verdict"] is None
    assert plain["around"] == "all"
    assert len(plain["doing"]) == 128
    assert (plain["doing"][37], plain["doing"].count("O") + plain["doing"].count("P")) == ("c", 127)
    assert (plain["shown"], plain["flights"]) == ([], []), "details come with the verdict"
    assert plain["moments"]
    held.go_on.set()
    assert hang_of(held.bench, held.attempt, wait_s=30).value is not None
    judged = asked(held)
    assert judged["judging"] is False
    assert judged["verdict"]["culprits"][0]["ranks"] == [37]
    assert judged["around"] == "involved"
    assert judged["doing"] == plain["doing"]
    assert 37 in judged["shown"]
    assert held.looks == 1


def test_the_page_opens_before_the_verdict_and_says_so(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_data, "JUDGED_WITHIN_S", 0.0)
    hang_of(held.bench, held.attempt, wait_s=0)
    assert held.looked.wait(30)
    first = three_d.body(View(), held.bench)
    three_d.frame(View(), held.bench)
    assert first.awaited == Awaited.FIRST
    assert "ANALYSING" in str(first.banner)
    assert "&verdict='" in str(first.children)
    assert held.looks == 1
    held.go_on.set()
    assert hang_of(held.bench, held.attempt, wait_s=30).value is not None
    second = three_d.body(View(), held.bench)
    assert "Rank 37" in str(second.banner)
    assert "&verdict='" not in str(second.children), "the picture is asked for again"


@pytest.mark.parametrize(("ranks", "wait_s"), [(8, 1.0), (1024, 1.0), (1025, 0.0), (12_288, 0.0), (None, 1.0)])
def test_only_the_page_of_a_job_that_is_judged_soon_waits_for_it(ranks: int | None, wait_s: float) -> None:
    assert scene_data.wait_for_verdict_s(Attempt("run", 0, world_size=ranks)) == wait_s


def test_a_chosen_rank_is_told_before_the_verdict(held: Held) -> None:
    hang_of(held.bench, held.attempt, wait_s=0)
    assert held.looked.wait(30)
    told = asked(held, View(rank=5))
    assert {5, 4, 6, 7} <= set(told["shown"])
    assert any(flight[0] == 5 for flight in told["flights"])


def test_where_judging_fails_the_picture_has_its_details_and_is_not_awaited(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Judged:
        raise MegascopeError("The judge is ill.")

    monkeypatch.setattr(verdicts, "diagnose_with_graph", failing)
    assert hang_of(held.bench, held.attempt, wait_s=30).error == "The judge is ill."
    told = asked(held)
    assert (told["judging"], told["verdict"], told["shown"]) == (False, None, None)
    assert len({flight[0] for flight in told["flights"]}) == 128


# -- the looks that are being judged --------------------------------------------------------------------------------


def looks_of(moment: int | None) -> Looks:
    look = Snapshot(moment or 0, {}, {}, {}, {})
    return look, look


def test_looks_are_known_while_they_are_judged_only() -> None:
    looks = JudgedLooks()
    assert looks.of("job", None) is None
    with looks.judging("job", looks_of) as take:
        assert looks.of("job", None) is None, "none was taken yet"
        taken = take(7)
        assert looks.of("job", 7) is taken
        assert looks.of("job", None) is None
        assert looks.of("another", 7) is None
    assert looks.of("job", 7) is None


def test_who_asks_waits_for_looks_that_are_being_taken() -> None:
    looks, may_end, answers = JudgedLooks(), threading.Event(), []
    begun = threading.Event()

    def slow(moment: int | None) -> Looks:
        begun.set()
        assert may_end.wait(30)
        return looks_of(moment)

    def judge() -> None:
        with looks.judging("job", slow) as take:
            take(None)
            assert answered.wait(30)

    answered = threading.Event()
    judging = threading.Thread(target=judge)
    judging.start()
    assert begun.wait(30)

    def ask() -> None:
        answers.append(looks.of("job", None))
        answered.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert not answered.wait(0.05)
    may_end.set()
    asking.join(30)
    judging.join(30)
    assert answers[0] is not None


def test_looks_that_cannot_be_taken_are_nobodys() -> None:
    looks = JudgedLooks()

    def failing(_: int | None) -> Looks:
        raise MegascopeError("The heartbeats cannot be read.")

    with looks.judging("job", failing) as take:
        with pytest.raises(MegascopeError):
            take(None)
        with pytest.raises(MegascopeError, match="heartbeats"):
            looks.of("job", None)
    assert looks.of("job", None) is None


def test_an_older_analysis_does_not_take_the_looks_of_a_newer_one_away() -> None:
    looks = JudgedLooks()
    older = looks.judging("job", looks_of)
    older.__enter__()(None)
    with looks.judging("job", looks_of) as take:
        newest = take(None)
        older.__exit__(None, None, None)
        assert looks.of("job", None) is newest


def test_looks_given_are_the_ones_judged(large_store: Path) -> None:
    with Store(large_store) as store:
        attempt, asked = store.attempt(), []

        def looks(moment: int | None) -> Looks:
            asked.append(moment)
            return looks_at(store, attempt, moment)

        given = diagnose_with_graph(store, attempt, looks=looks)
        own = diagnose_with_graph(store, attempt)
        assert asked == [None]
        assert given.verdict.culprits == own.verdict.culprits
        assert given.snapshot == own.snapshot == take_snapshot(store, attempt)


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_the_largest_job_of_which_all_is_told_stays_under_100_kb() -> None:
    """Three segments in flight a rank, in groups of five kinds, and no root: all ranks are shown, and told."""
    mesh = Topology.of(pp=8, dp=MOST_TOLD // 64, tp=8)
    kinds = [(kind, group) for kind in ("tp", "dp", "pp", "tp", "dp") for group in mesh.groups(kind)]
    groups = {2**40 + 977 * number: GroupName(kind, group) for number, (kind, group) in enumerate(kinds)}
    of = {(name.kind, rank): number for number, name in groups.items() for rank in name.ranks}
    second = 10**9
    states = {
        rank: RankState(
            rank,
            100 * second,
            500 + rank % 3,
            (
                Flight("step", "other", begun_ns=90 * second),
                Flight("forward", "compute", microbatch=rank % 8, begun_ns=(95 + rank % 5) * second),
                Flight("tp_all_gather", "collective", of["tp", rank], 9000 + rank, begun_ns=98 * second + rank * 10**7),
            ),
        )
        for rank in range(mesh.world_size)
    }
    hosts = {rank: f"rack{rank // 64:02}-node{rank // 8:03}" for rank in states}
    places = {rank: dict(mesh.coordinates(rank)) for rank in states}
    look = Snapshot(100 * second, states, groups, hosts, places, mesh.names)
    judged = Judged(HangVerdict("run", 0, None, State.RUNNING), look, build_graph(look))
    model = model_of(draw(judged, everyone=True))
    assert len(states) == MOST_TOLD
    assert len(model["flights"]) == 3 * MOST_TOLD
    assert len(gzip.compress(json.dumps(model, separators=(",", ":")).encode(), 1)) < 95_000


# -- one wait a page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stamp", "second"), [("", 0.0), ("1", verdicts.FIRST_WAIT_S)])
def test_behind_a_first_analysis_a_second_one_is_not_waited_for(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, stamp: str, second: float
) -> None:
    waits: dict[str, float] = {}

    def latest(name: str) -> Any:
        def ask(*_: Any, wait_s: float = verdicts.FIRST_WAIT_S) -> Latest[Any]:
            waits[name] = wait_s
            return Latest(None, None, None, True, stamp)

        return ask

    monkeypatch.setattr(verdicts, "stragglers_of", latest("slow"))
    monkeypatch.setattr(verdicts, "hang_of", latest("stuck"))
    verdict_banners(bench, attempt, View())
    assert waits == {"slow": verdicts.FIRST_WAIT_S, "stuck": second}


def test_what_is_awaited_says_how_long_to_wait_behind_it() -> None:
    waits = [verdicts.wait_behind(ShownVerdict("", "bad", awaited)) for awaited in Awaited]  # type: ignore[arg-type]
    assert waits == [verdicts.FIRST_WAIT_S, verdicts.FIRST_WAIT_S, 0.0]
