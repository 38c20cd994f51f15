"""Looks at an imagined job as if they had been taken just now: for what follows a store that is being written."""

from __future__ import annotations

import dataclasses
import time

from megascope.viz3d.states import Snapshot

from .hang_scenes import SECOND, Scene


def moved(look: Snapshot, by: int) -> Snapshot:
    """The look as if it had been taken so much later."""
    states = {
        rank: dataclasses.replace(
            state,
            moment_ns=state.moment_ns + by,
            flights=tuple(
                dataclasses.replace(one, begun_ns=None if one.begun_ns is None else one.begun_ns + by)
                for one in state.flights
            ),
        )
        for rank, state in look.states.items()
    }
    return dataclasses.replace(look, moment_ns=look.moment_ns + by, states=states)


def looks(scene: Scene, age_s: int = 0) -> list[Snapshot]:
    """The looks of a scene, the newest of them so old."""
    found = scene.looks()
    by = time.time_ns() - age_s * SECOND - found[-1].moment_ns
    return [moved(look, by) for look in found]
