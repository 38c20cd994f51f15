"""What operations took without waiting: work of its own, and the transfers of communication."""

from __future__ import annotations

import numpy as np

from ..peers import FloatArray
from .measured import Measured
from .program import Meeting, Program
from .recording import Recording
from .replay import gathered
from .schedule import COMPUTE, Matched


def measure(recording: Recording, program: Program, matched: Matched, *, one_clock: bool) -> Measured:
    """Durations of the program's operations.

    A transfer is the operation's end minus the latest begin of all who meet in it. Where the ranks' clocks are not one
    (``one_clock`` False), it is the least duration among them instead: who comes last does not wait, and all end
    together. An operation begins no earlier than what it depends on has ended on its rank.
    """
    shape = (len(program.nodes), *recording.start.shape[1:])
    own = np.zeros(shape)
    inner = shape[1] > 1
    shared = np.zeros((shape[0], 1, *shape[2:])) if inner else None
    for meeting in program.meetings:
        nodes = [node for node in meeting.nodes if program.nodes[node].name]  # others have no spans
        if not nodes:
            continue
        if program.nodes[nodes[0]].is_transfer:
            for node, took in zip(nodes, _transfers(recording, matched, meeting, nodes, one_clock), strict=True):
                own[node] = took
            continue
        for node in nodes:
            is_compute = node in matched.actions and matched.actions[node].kind in COMPUTE
            own[node] = np.nan_to_num(recording.own[node])
            if is_compute and not inner:
                own[node] = recording.end[node] - recording.start[node]
            elif is_compute and shared is not None:
                whole = recording.end[node].max(axis=0) - recording.start[node].max(axis=0)
                shared[node, 0] = np.maximum(whole - own[node].max(axis=0), 0)
    recorded = _recorded(recording, matched)
    return Measured(program, own, shared, recording.places.ranks, recording.steps, recorded)


def _recorded(recording: Recording, matched: Matched) -> FloatArray:
    """Length of each step from a rank's first begin to its last end, of the rank on which it is longest, [S].

    Collectives that the step hands on to the next one are waited for there, and do not count here.
    """
    result = np.zeros(len(recording.steps))
    for stage in range(len(recording.places.ranks)):
        mine = [number for number, node in enumerate(recording.nodes) if node.stage == stage]
        mine = [number for number in mine if number not in matched.handed_on]
        begin, end = np.fmin.reduce(recording.start[mine], axis=0), np.fmax.reduce(recording.last_end[mine], axis=0)
        result = np.maximum(result, (end - begin).max(axis=(0, 1)))
    return result


def _transfers(
    recording: Recording, matched: Matched, meeting: Meeting, nodes: list[int], one_clock: bool
) -> list[FloatArray]:
    begins = {node: _ready(recording, matched, node) for node in nodes}
    ends = {node: np.maximum(_end(recording, node), begins[node]) for node in nodes}
    if one_clock:
        latest = gathered(np.stack([begins[node] for node in nodes]).max(axis=0), meeting, np.maximum)
        return [np.maximum(ends[node] - latest, 0) for node in nodes]
    least = gathered(np.stack([ends[node] - begins[node] for node in nodes]).min(axis=0), meeting, np.minimum)
    return [np.broadcast_to(least, begins[node].shape) for node in nodes]


def _end(recording: Recording, node: int) -> FloatArray:
    """End of the last part of what travels in several, else of the first span of the name."""
    in_parts = recording.nodes[node].microbatch is None
    end: FloatArray = (recording.last_end if in_parts else recording.end)[node]
    return end


def _ready(recording: Recording, matched: Matched, node: int) -> FloatArray:
    """When an operation could begin: at its start, and not before what it depends on had ended on its rank."""
    begin: FloatArray = recording.start[node]
    if node in matched.first_phase:  # some parts are in their second phase already: the replay has one after the other
        begin = np.fmax(begin, _end(recording, matched.first_phase[node]))
    action = matched.actions.get(node)
    for place in action.depends_on if action is not None else ():
        other = matched.of_place.get(place)
        if other is not None and other < len(recording.nodes) and place[0] == recording.nodes[node].stage:
            begin = np.fmax(begin, recording.end[other])
    return begin
