"""What a supervisor remembers of its run, read as it was saved, and which hosts and numbers an attempt gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError
from megascope.trainer.supervisor.fencing import choose_hosts, spares_of
from megascope.trainer.supervisor.history import (
    Fence,
    History,
    Restart,
    Suspicion,
    first_attempt,
    load_history,
    run_folder,
    save_history,
)

HOSTS = [f"h{number}" for number in range(8)]


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.one_of(st.none(), st.integers(0, 100)), st.booleans()), max_size=5),
    st.lists(st.sampled_from(HOSTS), max_size=3, unique=True),
    st.lists(st.integers(0, 50), max_size=3),
)
@settings(deadline=None, max_examples=30)
def test_a_history_is_read_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    restarts: list[tuple[float, int | None, bool]],
    fences: list[str],
    skipped: list[int],
) -> None:
    path = tmp_path_factory.mktemp("history") / "run=r" / "history.json"
    history = History(
        tuple(Restart(*one) for one in restarts),
        tuple(Fence(host, 1.0, "why") for host in fences),
        tuple(skipped),
        tuple(Suspicion(host, 1.0, 0.5, 7) for host in fences),
        len(restarts),
        1e9 if restarts else None,
    )
    save_history(path, history)
    assert load_history(path) == history


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "restarts": 3}'])
def test_a_damaged_history_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(content)
    with pytest.raises(MegascopeError, match=r"history .* cannot be read .*: repair it, or remove it"):
        load_history(path)


def test_a_history_of_before_suspicions_had_steps_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    suspicion = {"host": "h0", "moment_s": 1.0, "confidence": 0.5}
    path.write_text(json.dumps({"version": 1, "restarts": [], "fences": [], "skipped": [], "suspicions": [suspicion]}))
    assert load_history(path) == History(suspicions=(Suspicion("h0", 1.0, 0.5),))


@pytest.mark.parametrize(("left", "unused", "known", "first"), [("", 0, 0, 0), ("attempt=3", 2, 0, 4), ("", 2, 5, 5)])
def test_the_number_of_an_attempt_is_used_once(tmp_path: Path, left: str, unused: int, known: int, first: int) -> None:
    """Ranks that refuse their configuration record nothing, but their logs and the history tell of them."""
    (run_folder(tmp_path, "a/b") / left).mkdir(parents=True)
    assert first_attempt(tmp_path, "a/b", History(next_attempt=known), unused) == first


def test_no_history_is_an_empty_one(tmp_path: Path) -> None:
    assert load_history(tmp_path / "none.json") == History()


def test_hosts_that_stay_keep_their_ranks() -> None:
    present = ["h0", "h1", "h2", "h3"]
    assert choose_hosts(2, (), present, ()) == ("h0", "h1")
    assert choose_hosts(2, ("h0", "h1"), present, {"h0"}) == ("h2", "h1")
    assert choose_hosts(2, ("h2", "h1"), ["h0", "h2", "h3"], {"h0"}) == ("h2", "h3")
    assert choose_hosts(2, ("h2", "h1"), ["h2"], ()) is None
    assert spares_of(("h2", "h1"), present, {"h0"}) == ["h3"]


@given(st.lists(st.sampled_from(HOSTS), unique=True), st.sets(st.sampled_from(HOSTS)), st.integers(1, 4))
def test_chosen_hosts_are_there_and_free(present: list[str], barred: set[str], needed: int) -> None:
    before = tuple(HOSTS[:needed])
    chosen = choose_hosts(needed, before, present, barred)
    usable = set(present) - barred
    assert (chosen is None) == (len(usable) < needed)
    if chosen is not None:
        assert len(set(chosen)) == needed
        assert set(chosen) <= usable
        assert all(chosen[place] == host for place, host in enumerate(before) if host in usable)
