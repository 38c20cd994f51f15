"""The schedule of a store against what was recorded: which node each action is, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ...collectors.reading.store import Attempt
from ...profiler.vocabulary import ActionKind
from .program import Node
from .reasons import CannotReplayError
from .tables import Tables

NAMES: Mapping[str, tuple[str, ...]] = {
    ActionKind.REDUCE_SCATTER: ("dp_reduce_scatter",),
    ActionKind.ALL_GATHER: ("dp_all_gather",),
    ActionKind.OPTIMIZER_STEP: ("optimizer",),
}
"""Segments that run an action, besides one of the action's own name."""

PHASES: Mapping[str, tuple[str, str]] = {
    ActionKind.REDUCE_SCATTER: ("dp_pod_reduce_scatter", "dp_across_reduce_scatter"),
    ActionKind.ALL_GATHER: ("dp_across_all_gather", "dp_pod_all_gather"),
}
"""Segments that run an action one after the other, where replicas stand in pods."""

COMPUTE = (ActionKind.FORWARD, ActionKind.BACKWARD)
RECEIVES = (ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD)
SENDS = (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD)

Place = tuple[int, int]
"""Stage and position."""


@dataclass(frozen=True, slots=True)
class Action:
    """A row of the table ``schedule``."""

    stage: int
    position: int
    kind: str
    chunk: int | None
    microbatch: int | None
    depends_on: tuple[Place, ...]


@dataclass(slots=True)
class Matched:
    """Nodes with the actions that they are: ``nodes`` are the recorded ones, then one for each action without spans.

    ``of_place``: node of an action. ``after``: nodes that a node waits for. ``pairs``: (send, receive).
    ``handed_on``: nodes that end a step and that only the next one waits for. ``first_phase``: of actions that run in
    two phases, the node of the first by that of the second, which is the action's.
    """

    nodes: list[Node]
    of_place: dict[Place, int]
    actions: dict[int, Action]
    after: dict[int, set[int]] = field(default_factory=dict)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    handed_on: set[int] = field(default_factory=set)
    first_phase: dict[int, int] = field(default_factory=dict)

    def of_stage(self, stage: int) -> Iterator[tuple[int, Action]]:
        """Actions of a stage in their order."""
        for node, action in self.actions.items():
            if action.stage == stage:
                yield node, action


def load_schedule(store: Tables, attempt: Attempt) -> list[Action]:
    """The actions of all stages by stage and position. Raises CannotReplayError where the store has none."""
    sql = "SELECT stage, position, action, chunk, microbatch, depends_on FROM schedule ORDER BY stage, position"
    rows = store.query(sql, attempt=attempt).to_pylist()
    if not rows:
        raise CannotReplayError("no schedule was recorded, so that it is not known what waits for what")
    return [
        Action(
            row["stage"],
            row["position"],
            str(row["action"]),
            row["chunk"],
            row["microbatch"],
            tuple((one["stage"], one["position"]) for one in row["depends_on"] or ()),
        )
        for row in rows
    ]


def scheduled_names(actions: Collection[Action]) -> frozenset[str]:
    """Names of segments that run an action."""
    return frozenset(name for action in actions for name in _names_of(action.kind))


def _names_of(kind: str) -> tuple[str, ...]:
    return (kind, *NAMES.get(kind, ()), *PHASES.get(kind, ()))


def match(actions: Collection[Action], nodes: Collection[Node]) -> Matched:
    """Find the node of every action, and link the nodes as the schedule says.

    Compute runs in the schedule's order on its stage. What is the other end of a transfer is met, not waited for.
    Raises CannotReplayError where a forward or backward was not recorded.
    """
    known = {(node.stage, node.name, node.chunk, node.microbatch): number for number, node in enumerate(nodes)}
    matched = Matched(list(nodes), {}, {})
    for action in actions:
        of_name = {
            name: known[key]
            for name in _names_of(action.kind)
            if (key := (action.stage, name, action.chunk, action.microbatch)) in known
        }
        phases = [of_name[name] for name in PHASES.get(action.kind, ()) if name in of_name]
        node = phases[-1] if len(phases) == 2 else next(iter(of_name.values()), None)
        if node is not None and len(phases) == 2:
            matched.first_phase[node] = phases[0]
        if node is None:
            if action.kind in COMPUTE:
                raise CannotReplayError(
                    f"the schedule has a {action.kind} of stage {action.stage} that was not recorded"
                )
            node = len(matched.nodes)
            matched.nodes.append(Node(action.stage, "", action.chunk, action.microbatch, is_transfer=False))
        matched.of_place[action.stage, action.position] = node
        matched.actions[node] = action
    _link(matched)
    return matched


def _link(matched: Matched) -> None:
    last: dict[int, int] = {}
    for node, action in matched.actions.items():
        after = matched.after.setdefault(node, set())
        for place in action.depends_on:
            other = matched.of_place.get(place)
            if other is None:
                continue
            is_pair = action.kind in RECEIVES and matched.actions[other].kind in SENDS
            if is_pair and matched.nodes[node].is_transfer and matched.nodes[other].is_transfer:
                matched.pairs.append((other, node))
            else:
                after.add(other)
        if node in matched.first_phase:
            matched.after[matched.first_phase[node]] = after
            matched.after[node] = {matched.first_phase[node]}
        if action.kind in COMPUTE:
            if action.stage in last:
                after.add(last[action.stage])
            last[action.stage] = node
