"""What a check says: what it looked at, how that is, what was seen there, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How something is. Problem: something of megascope's, or a diagnosis, does not work as it is. Advice: it works,
    with less than there could be. Not checked: nothing is known."""

    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Answer:
    """A check's own words. ``to_do`` is one sentence, None where nothing is to be done."""

    looked_at: str
    state: State
    value: str
    to_do: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer with the check that gave it."""

    area: str
    check: str
    looked_at: str
    state: State
    value: str
    to_do: str | None

    @classmethod
    def of(cls, area: str, check: str, answer: Answer) -> Finding:
        """The answer under the names of its check. What variables and files hold may be no text: it is made one."""
        to_do = None if answer.to_do is None else _printable(answer.to_do)
        return cls(area, check, _printable(answer.looked_at), answer.state, _printable(answer.value), to_do)

    def as_json(self) -> dict[str, Any]:
        """The fields, as texts."""
        return asdict(self)


def ok(looked_at: str, value: str) -> Answer:
    """All is well."""
    return Answer(looked_at, State.OK, value)


def advice(looked_at: str, value: str, to_do: str) -> Answer:
    """It works, and could do better."""
    return Answer(looked_at, State.ADVICE, value, to_do.rstrip("."))


def problem(looked_at: str, value: str, to_do: str) -> Answer:
    """It does not work."""
    return Answer(looked_at, State.PROBLEM, value, to_do.rstrip("."))


def not_checked(looked_at: str, reason: str) -> Answer:
    """It cannot be told."""
    return Answer(looked_at, State.NOT_CHECKED, reason)


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)
