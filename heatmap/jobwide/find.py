"""What is wrong with the job and no machine: one call for all analyses of this folder."""

from __future__ import annotations

from ...collectors.reading.store import Attempt, Store
from ..observations import Observations
from ..verdict import Findings
from .barrier import find_barrier
from .checkpoints import find_checkpoints
from .data_stalls import find_data_stalls
from .launch_drift import find_launch_drift
from .sequences import find_uneven_input
from .stages import find_uneven_stages
from .warm_up import find_warm_up

_ANALYSES = (
    find_uneven_stages,
    find_uneven_input,
    find_checkpoints,
    find_data_stalls,
    find_launch_drift,
    find_barrier,
    find_warm_up,
)


def find_jobwide(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """All that is wrong with the job as a whole or a stage; of machines only a host whose storage stalls is named."""
    found = [find(store, attempt, seen) for find in _ANALYSES]
    return Findings(
        culprits=tuple(culprit for one in found for culprit in one.culprits),
        abstained=tuple(note for one in found for note in one.abstained),
        blocking=tuple(note for one in found for note in one.blocking),
        explains=tuple(part for one in found for part in one.explains),
    )
