"""Operations that are issued late: in order, not before their time, and what fails in them comes out of the wait."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from megascope.trainer.faults.late import LateIssuer


class Waited:
    """Stands for torch's Work."""

    def __init__(self) -> None:
        self.is_over = False

    def wait(self) -> None:
        self.is_over = True


def test_operations_are_issued_in_order_each_after_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr("megascope.trainer.faults.late.time.sleep", done.append)
    issuer = LateIssuer("late")
    works = [issuer.submit(partial(done.append, name), delay_s) for name, delay_s in (("a", 0.5), ("b", 0.0))]
    for work in works:
        work.wait()
    issuer.close()
    assert done == [0.5, "a", 0.0, "b"]


def test_an_operation_is_not_waited_for_before_the_next_is_issued() -> None:
    """Two ranks that both send late would else wait for each other."""
    is_second_issued = threading.Event()

    class Stuck:
        def wait(self) -> None:
            assert is_second_issued.wait(10)

    issuer = LateIssuer("late")
    first = issuer.submit(Stuck, 0.0)
    second = issuer.submit(is_second_issued.set, 0.0)
    first.wait()
    second.wait()
    issuer.close()


def test_waiting_waits_for_the_operation_itself() -> None:
    issuer, work = LateIssuer("late"), Waited()
    issuer.submit(lambda: work, 0.0).wait()
    issuer.close()
    assert work.is_over


def test_what_cannot_be_issued_fails_where_it_is_waited_for() -> None:
    def broken() -> None:
        raise RuntimeError("connection reset by peer")

    issuer = LateIssuer("late")
    failed, next_one = issuer.submit(broken, 0.0), issuer.submit(lambda: None, 0.0)
    with pytest.raises(RuntimeError, match="reset"):
        failed.wait()
    next_one.wait()
    issuer.close()


def test_an_issuer_that_was_never_used_has_nothing_to_close() -> None:
    LateIssuer("late").close()
