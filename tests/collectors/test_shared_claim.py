"""One process of the fleet at a time has a claim; who falls silent loses it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.storage.shared_claim import SharedClaim

LEASE_S = 30.0


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def claims(folder: Path, clock: Watch, count: int = 2) -> list[SharedClaim]:
    return [SharedClaim(folder, "x", f"host-{number}:1", LEASE_S, clock) for number in range(count)]


def test_who_renews_keeps_it_beyond_the_lease(tmp_path: Path) -> None:
    clock = Watch()
    first, second = claims(tmp_path, clock)
    assert first.take()
    for _ in range(20):
        clock.now += 8.0
        first.keep()
        assert not second.take()
    assert first.is_own


def test_who_falls_silent_loses_it_and_takes_nothing_back(tmp_path: Path) -> None:
    clock = Watch()
    first, second, third = claims(tmp_path, clock, 3)
    assert first.take()
    assert not second.take()
    clock.now += LEASE_S - 1
    assert not second.take()
    clock.now += 1
    assert second.take()
    assert not first.take()
    assert not first.is_own
    first.give_free()
    assert not third.take(), "it is not the first one's to give"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_given_free_is_free_at_once(tmp_path: Path) -> None:
    first, second = claims(tmp_path, Watch())
    assert first.take()
    first.give_free()
    assert second.take()
    assert not first.take()


def test_names_and_folders_keep_claims_apart(tmp_path: Path) -> None:
    assert all(SharedClaim(tmp_path / folder, name, "h").take() for folder in "ab" for name in "xy")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        SharedClaim(tmp_path / "file" / "folder", "x", "h").take()


def test_a_listing_that_shows_nothing_loses_nobody_s_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Watch()
    for _ in range(3):
        (before,) = claims(tmp_path, clock, 1)
        assert before.take()
        before.give_free()
    first, second = claims(tmp_path, clock)
    assert first.take()
    (path,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda _: iter(()))
        assert first.take()
    assert (first.path, list(tmp_path.iterdir())) == (path, [path])
    content = path.read_text()
    path.unlink()
    with pytest.raises(FileNotFoundError, match="does not show"):
        first.take()
    assert first.is_own
    path.write_text(content)
    assert first.take()
    assert not second.take()
    path.unlink()
    clock.now += LEASE_S
    assert first.take()
    assert first.path != path


def test_a_folder_that_may_not_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (first,) = claims(tmp_path, Watch(), 1)
    assert first.take()
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionError):
            first.take()
    assert first.take()


def test_a_renewal_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Watch()
    (first,) = claims(tmp_path, clock, 1)
    assert first.take()
    clock.now += LEASE_S / 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                first.take()
            clock.now += 0.1
    assert first.take()


def test_of_many_that_find_it_too_old_at_once_one_gets_it(tmp_path: Path) -> None:
    clock = Watch()
    gone, *others = claims(tmp_path, clock, 17)
    assert gone.take()
    assert not any(other.take() for other in others)
    clock.now += LEASE_S
    start = threading.Barrier(len(others))
    got: list[bool] = []

    def take(claim: SharedClaim) -> None:
        start.wait()
        got.append(claim.take())

    threads = [threading.Thread(target=take, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 1


ACTIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["take", "keep", "free", "die"]), st.floats(0, 2 * LEASE_S)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_never_two_and_always_somebody_in_the_end(actions: list[tuple[int, str, float]]) -> None:
    """Of those that know to have it and kept it alive, there is at most one; whatever happened, it is had again."""
    with TemporaryDirectory() as folder:
        clock = Watch()
        parties = claims(Path(folder), clock, 3)
        confirmed: dict[int, float] = {}
        for number, action, pause in actions:
            if action == "take":
                had = parties[number].take()
                if had:
                    others = [one for one, at in confirmed.items() if one != number and clock.now - at < LEASE_S * 0.8]
                    assert not others
                    confirmed[number] = clock.now
                else:
                    confirmed.pop(number, None)
            elif action == "keep":
                parties[number].keep()
                if parties[number].is_own:
                    confirmed[number] = clock.now
            elif action == "free":
                parties[number].give_free()
                confirmed.pop(number, None)
            else:
                parties[number] = SharedClaim(Path(folder), "x", f"host-{number}:{clock.now}", LEASE_S, clock)
                confirmed.pop(number, None)
            clock.now += pause
        late = SharedClaim(Path(folder), "x", "late", LEASE_S, clock)
        late.take()
        clock.now += LEASE_S * 1.01  # a sum of floats may fall short of the lease by its last bit
        assert late.take()
