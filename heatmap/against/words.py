"""A comparison in words: each finding, and all of it in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from ...collectors.verdicts import Abstention
from .result import Change, Place, Slower, Verdict


def statement_of(one: Slower) -> str:
    """A finding with its numbers and units."""
    change = one.change
    if one.place == Place.WAITING:
        return (
            f"waiting over {one.segment} takes {change.now_ms:,.2f} ms a step that no slower work explains, "
            f"{change.then_ms:,.2f} ms then: {_origin(one)}"
        )
    interval = f"x{change.ratio:.3f} ({change.low:.3f} to {change.high:.3f})"
    times = f"{change.now_ms:,.2f} ms a span now, {change.then_ms:,.2f} ms then"
    cost = f"{one.own_ms:+,.1f} ms a step"
    if 0 < one.lost_ms < 0.9 * one.own_ms:
        cost += f", of which the job loses at most {one.lost_ms:,.1f} ms"
    if one.place in (Place.RANK, Place.HOST):
        return f"{_who(one)} changed {interval} more than its stage in {one.segment}: {times}, {cost}{_moved(one)}"
    where = f"{one.segment} on stage {one.stage}" if one.place == Place.STAGE else f"{one.segment} everywhere"
    return f"{where} takes {interval} of what it took: {times}, {cost}"


MOST = 2 / 3
"""Share of the growth of waiting from which on it is called one thing."""


def _origin(one: Slower) -> str:
    """Whether waiting got longer for slow transfers or for somebody late, as far as it is known."""
    if one.waited is None:
        return "whose origin this is it does not tell (slow transfers, or somebody late)"
    now, then = one.waited
    moved, late = now.transfer_ms - then.transfer_ms, now.lateness_ms - then.lateness_ms
    grown = max(moved, 0.0) + max(late, 0.0)
    mostly = "transfers and lateness"
    if grown > 0 and max(moved, late) >= MOST * grown:
        mostly = "transfers got slower" if moved > late else "somebody comes later"
    return (
        f"{mostly} (of all waiting over it, transfers {now.transfer_ms:,.2f} ms now, {then.transfer_ms:,.2f} ms then; "
        f"lateness {now.lateness_ms:,.2f} ms now, {then.lateness_ms:,.2f} ms then)"
    )


def _who(one: Slower) -> str:
    ranks = ", ".join(str(rank) for rank in one.ranks[:8]) + (", ..." if len(one.ranks) > 8 else "")
    hosts = ", ".join(one.hosts)
    if one.place == Place.HOST:
        return f"host {hosts} (ranks {ranks})"
    return f"rank {ranks} on {hosts}" if hosts else f"rank {ranks}"


def _moved(one: Slower) -> str:
    if not one.hosts_then or set(one.hosts) == set(one.hosts_then):
        return ""
    return f"; it ran on {', '.join(one.hosts_then)} then"


def step_words(step: Change) -> str:
    """The change of the step's time."""
    return (
        f"a step takes {step.now_ms:,.1f} ms, {step.then_ms:,.1f} ms then: x{step.ratio:.3f} "
        f"({step.low:.3f} to {step.high:.3f})"
    )


def sentence_of(
    verdict: Verdict,
    told: Sequence[Slower],
    found: int,
    step: Change | None,
    blocking: Sequence[Abstention],
    left_out: int = 0,
) -> str:
    """The verdict in one sentence: the first of the findings that are ``told``, and how many more were ``found``.

    ``left_out`` ranks could not be compared, as they had other tokens.
    """
    if verdict == Verdict.INSUFFICIENT:
        reason = blocking[0].reason if blocking else "the steps' times could not be compared"
        return f"Not enough evidence to say whether anything got slower: {reason}."
    if verdict == Verdict.NOT_SLOWER:
        return f"Nothing got slower: {step_words(step)}." if step is not None else "Nothing got slower."
    if not told:
        longer = step_words(step) if step is not None else "steps got slower"
        apart = f" ({left_out} ranks with other tokens were not compared)" if left_out else ""
        return f"{longer[0].upper()}{longer[1:]}, and no segment of work that was recorded explains it{apart}."
    worst = statement_of(told[0])
    more = f" {found - 1} more below." if found > 1 else ""
    return f"{worst[0].upper()}{worst[1:]}.{more}"
