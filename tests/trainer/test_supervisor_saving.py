"""A job that still trains is saved and stopped, and one whose loss is not finite saves its last good state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch.distributed
from torch._C._distributed_c10d import HashStore

from megascope.profiler.errors import MegascopeError
from megascope.trainer.finite import NotFiniteError
from megascope.trainer.rescue import Rescue
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.saving import MORE_STEPS, save_and_stop, stopped_by
from support.watching import ended, job, trained


@dataclass
class FakeObserver:
    seen: Seen = field(default_factory=lambda: Seen(0))
    problem: str | None = None

    def look(self) -> bool:
        return True


@dataclass
class FakeNode:
    told: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, message: dict[str, Any]) -> None:
        self.told.append(message)


@dataclass
class FakeHub:
    nodes: dict[str, FakeNode] = field(default_factory=lambda: {name: FakeNode() for name in ("node-0", "node-1")})


def test_all_ranks_are_asked_to_save_as_soon_as_they_can() -> None:
    state, hub = ended(), FakeHub()
    observer: Any = FakeObserver(trained(100.0, 40))

    def turn(_: float) -> None:
        state.codes = dict.fromkeys(range(4), 0)

    fake: Any = hub
    assert save_and_stop(job(save_s=5.0), state, fake, observer, turn) == 40
    assert [node.told for node in hub.nodes.values()] == [[{"do": "save-and-stop", "step": 40}]] * 2


@pytest.mark.parametrize("off_s", [-86400.0, 0.0, 86400.0])
@pytest.mark.parametrize(("step_s", "more"), [(1.0, 10), (60.0, 1)])
def test_what_is_worth_asking_depends_on_no_clock_of_another_host(step_s: float, more: int, off_s: float) -> None:
    seen = trained(step_s * 1e3, age_s=off_s)
    assert seen.last_step is not None
    assert stopped_by(job(save_s=10.0), seen) == seen.last_step + 1 + more + MORE_STEPS


def test_ranks_that_fail_instead_have_not_saved() -> None:
    state = ended()
    observer: Any = FakeObserver(trained())
    hub: Any = FakeHub()

    def turn(_: float) -> None:
        state.codes = {3: -9}

    assert save_and_stop(job(), state, hub, observer, turn) is None
    empty: Any = FakeObserver()
    assert save_and_stop(job(), state, hub, empty, turn) is None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    return store


def test_all_ranks_save_once_one_has_a_loss_that_is_not_finite(store: HashStore) -> None:
    saved: list[tuple[str, int]] = []
    first, second = (Rescue("3", lambda updates, name=name: saved.append((name, updates))) for name in "ab")  # type: ignore[misc]
    with pytest.raises(NotFiniteError), first.guard(lambda: 7):
        raise NotFiniteError("The loss is not finite")
    with pytest.raises(RuntimeError, match="peer"), second.guard(lambda: 7):
        raise RuntimeError("Connection closed by peer")
    assert saved == [("a", 7), ("b", 7)]


def test_what_the_weights_were_updated_with_is_not_saved(store: HashStore) -> None:
    saved: list[int] = []
    error = NotFiniteError("The gradient norm of step 6 is not finite")
    error.is_applied = True
    with pytest.raises(NotFiniteError), Rescue("0", saved.append).guard(lambda: 7):
        raise error
    with pytest.raises(RuntimeError), Rescue("0", saved.append).guard(lambda: 7):
        raise RuntimeError("Connection closed by peer")
    assert saved == []


def test_another_failure_and_another_step_save_nothing(store: HashStore) -> None:
    saved: list[int] = []
    rescue = Rescue("3", saved.append)
    rescue.after(RuntimeError("Connection closed by peer"), 7)
    store.set("megascope/not-finite/3", "8")
    rescue.after(MegascopeError("The dp group broke"), 7)
    Rescue("4", saved.append).after(RuntimeError("Connection closed by peer"), 8)
    assert saved == []


def test_a_rescue_that_fails_hides_no_error(store: HashStore, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: int) -> None:
        raise MegascopeError("Cannot write a checkpoint")

    with pytest.raises(NotFiniteError), Rescue("0", fail).guard(lambda: 7):
        raise NotFiniteError("The loss is not finite")
    assert "The last good state is not saved (Cannot write a checkpoint)" in caplog.text
