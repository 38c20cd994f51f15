"""Stragglers that were found without a sign: when to act on them, and which are only told of, each once an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .accusing import accused_by_stragglers, lost_shares, network_signs
from .policy import Accused
from .signs import Detector, Sign


@dataclass(slots=True)
class Chronic:
    """What has been found in one attempt. A host is acted on once two answers in a row, on different steps, name it.

    ``least_share``: of the time of the steps looked at (0 to 1) that has to be lost to it. ``against`` gives the reason
    for which the policy would do nothing about accused hosts, None where it would act.
    """

    least_share: float
    against: Callable[[tuple[Accused, ...]], str | None]
    _suspected: frozenset[str] = frozenset()
    _told: set[tuple[object, ...]] = field(default_factory=set)

    def judge(self, verdict: Mapping[str, Any]) -> tuple[tuple[Accused, ...], bool, list[Sign]]:
        """Whom to act on; whether another answer has to confirm it first; and what is told because nobody acts."""
        named = accused_by_stragglers(verdict)
        costly = tuple(one for one in accused_by_stragglers(verdict, self.least_share))
        against = self.against(named) if costly else ""  # of several hosts a common cause is likelier, cheap ones too
        if costly and against is None:
            against = self.against(costly)
        if costly and against is None:
            hosts = frozenset(one.host for one in costly)
            is_confirmed, self._suspected = hosts <= self._suspected, hosts
            return (costly, False, []) if is_confirmed else ((), True, self._new(network_signs(verdict)))
        self._suspected = frozenset()
        signs = self._signs(verdict, named, {one.host for one in costly}, against or "")
        return (), False, self._new([*network_signs(verdict), *signs])

    def sentence(self, verdict: Mapping[str, Any], accused: tuple[Accused, ...]) -> str:
        """What is found, for whoever acts on it."""
        shares = lost_shares(verdict)
        return "; ".join(_found(one, shares.get(one.host)) for one in accused)

    def _signs(
        self, verdict: Mapping[str, Any], named: tuple[Accused, ...], costly: set[str], against: str
    ) -> list[Sign]:
        shares, signs = lost_shares(verdict), []
        for one in named:
            share = shares.get(one.host)
            less = "so that it stays." if share is None else f"less than {self.least_share:.1%}, so that it stays."
            why = against if one.host in costly else less
            sentence = f"{_found(one, share)}{': ' if one.host in costly else ', '}{why}"
            value = 0.0 if share is None else share
            signs.append(Sign(Detector.STRAGGLER, sentence, value, self.least_share, hosts=(one.host,)))
        return signs

    def _new(self, signs: Sequence[Sign]) -> list[Sign]:
        """Those that were not told before; what is told again is that a host costs more than the bound by now."""
        found = []
        for sign in signs:
            mark = sign.detector, sign.hosts, sign.detector is Detector.STRAGGLER and sign.value >= self.least_share
            if mark not in self._told:
                self._told.add(mark)
                found.append(sign)
        return found


def _found(accused: Accused, share: float | None) -> str:
    lost = "an unknown share" if share is None else f"{share:.1%}"
    return f"{accused.host} is slow without a sign, {accused.reason}: {lost} of the step time is lost to it"
