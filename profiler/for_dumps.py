"""What a rank does for dumps as it begins: the mesh beside the boxes, and the Flight Recorder on and within call."""

from __future__ import annotations

import contextlib

from .flight_recorder import DumpOnRequest, turn_on
from .host import host_name
from .opening import RecorderSettings, attempt_folder
from .recorder import AnyRecorder, Recorder
from .topology import Topology
from .topology_file import describe, share_topology_file


def leave_topology(recorder: AnyRecorder, settings: RecorderSettings, topology: Topology) -> None:
    """Write the mesh beside the boxes, once a host: dumps of libraries name groups by numbers of their own.

    Where there is no room for it, it is left out. Another mesh that lies there already stays, with a warning.
    """
    if settings.local_rank != 0 or not isinstance(recorder, Recorder) or recorder.spool is None:
        return
    first = settings.rank
    hosts = dict.fromkeys(range(first, first + settings.local_world_size), host_name())
    folder = attempt_folder(recorder.spool, settings.run, settings.attempt)
    with contextlib.suppress(OSError):
        content = describe(topology, hosts=hosts, run=settings.run, attempt=settings.attempt)
        share_topology_file(folder, content)


def answer_requests(recorder: AnyRecorder, settings: RecorderSettings) -> DumpOnRequest | None:
    """Turn torch's Flight Recorder on, as far as nobody has, and begin to answer requests; None where nothing is
    recorded. Closing what is returned takes the settings back."""
    if not isinstance(recorder, Recorder) or recorder.spool is None:
        return None
    folder = attempt_folder(recorder.spool, settings.run, settings.attempt)
    return DumpOnRequest(folder, settings.rank, turn_on(folder))
