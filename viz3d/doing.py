"""What a rank is in at a moment, as a picture tells it: own work, a collective, a message, nothing, or gone."""

from __future__ import annotations

from enum import StrEnum

from .states import Flight, RankState


class Doing(StrEnum):
    """What a rank is in. The values are what pages and files show."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    P2P = "p2p"
    IDLE = "idle"
    STOPPED = "stopped"
    ENDED = "ended"
    DEAD = "dead"
    MISSING = "missing"


def innermost(state: RankState | None) -> Flight | None:
    """The open segment that began last, or the last told where not all have a time; None where nothing is open."""
    if state is None or not state.flights:
        return None
    begun = [flight.begun_ns for flight in state.flights if flight.begun_ns is not None]
    if len(begun) < len(state.flights):
        return state.flights[-1]
    return state.flights[begun.index(max(begun))]


def doing_of(state: RankState | None) -> Doing:
    """What a rank is in, by its innermost open segment; None is a rank without data."""
    if state is None:
        return Doing.MISSING
    if state.is_dead:
        return Doing.DEAD
    if state.has_ended:
        return Doing.ENDED
    if state.process_state == "stopped":
        return Doing.STOPPED
    flight = innermost(state)
    if flight is None:
        return Doing.IDLE
    return {"collective": Doing.COLLECTIVE, "p2p": Doing.P2P}.get(flight.kind, Doing.COMPUTE)
