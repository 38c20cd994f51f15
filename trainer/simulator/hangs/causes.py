"""How each kind of hang comes about: whose program is cut short, changed or frozen, and who is to blame for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ....profiler.vocabulary import SegmentKind
from ..fault_effects import carriers
from ..faults import SIZE, Fault, FaultKind
from ..job import SimulatedJob
from .case import Case, Plan, Program
from .closure import Frozen
from .program import Call, Op, find_call, renamed, resized, without


def plan_of(job: SimulatedJob, fault: Fault, base: Sequence[Program]) -> Plan:
    """The plan of a hang; ``base`` are the programs of all stages. UsageError where the job has no such place."""
    return _PLANS[fault.kind](Case(job, fault, base))


def _stopped(case: Case, *defaults: str) -> tuple[dict[int, int], str]:
    """Every named rank stops in a segment of its own work."""
    limits, name = {}, ""
    for rank in carriers(case.fault, case.job):
        stage = int(case.job.grid.stage[rank])
        limits[rank] = case.call(*defaults, communicates=False, stage=stage)
        name = case.base[stage][limits[rank]].name
    return limits, name


def _dead(case: Case) -> Plan:
    """Processes are gone; with their whole host so is the agent, and nobody notes anything."""
    limits, name = _stopped(case, "backward")
    ranks, stops = tuple(limits), dict(limits)
    if case.fault.host is not None:
        return Plan(truth=ranks, segment=name, limits=limits, stops=stops, dark=ranks)
    gone = dict.fromkeys(limits, "gone")
    return Plan(truth=ranks, segment=name, limits=limits, stops=stops, states=gone, death=("gone", None, None))


def _exception(case: Case) -> Plan:
    limits, name = _stopped(case, "forward")
    death = ("exception", "OutOfMemoryError", f"out of memory in {name}")
    gone = dict.fromkeys(limits, "gone")
    return Plan(truth=case.fault.ranks, segment=name, limits=limits, stops=dict(limits), states=gone, death=death)


def _host_stuck(case: Case) -> Plan:
    """The rank's process does not get on in its own work; one that holds the GIL keeps its CPU busy."""
    limits, name = _stopped(case, "data", "forward")
    usual = {"data": "disk-sleep", "checkpoint": "disk-sleep"}.get(name, "sleeping")
    state = case.fault.state or usual
    return Plan(
        truth=case.fault.ranks,
        segment=name,
        limits=limits,
        stops=dict(limits),
        states=dict.fromkeys(limits, state),
        busy=tuple(limits) if state == "running" else (),
    )


def _long_phase(case: Case) -> Plan:
    """The rank is in work that takes long by nature, and the others wait: nobody is to blame."""
    limits, name = _stopped(case)
    assert case.fault.delay_ms is not None
    return Plan(
        truth=(),
        segment=name,
        limits=limits,
        stops=dict(limits),
        states=dict.fromkeys(limits, "running"),
        busy=tuple(limits),
        watched_s=case.fault.delay_ms / 1e3,
    )


def _device_stuck(case: Case) -> Plan:
    """The rank has joined an operation that all others complete; it never does."""
    at = case.call("tp_all_gather", "dp_reduce_scatter", "world_all_reduce", communicates=True)
    return Plan(truth=(case.rank,), segment=case.base[case.stage][at].name, limits={case.rank: at}, busy=(case.rank,))


def _mismatch(case: Case) -> Plan:
    """The rank calls an all-reduce where its peers call something else, or moves half the bytes: none completes it."""
    if case.fault.differs != SIZE:
        return _another_call(case, "all_reduce", None, "dp_reduce_scatter", "tp_all_gather")
    at = case.call("dp_reduce_scatter", "tp_all_gather", communicates=True)
    return _in_place(case, at, resized(case.base[case.stage], at, 0.5))


def _diverged(case: Case) -> Plan:
    """The rank has taken another branch: it evaluates while its peers train."""
    return _another_call(case, "broadcast", "eval_forward", "tp_all_gather")


def _another_call(case: Case, verb: str, parent: str | None, *defaults: str) -> Plan:
    at = case.call(*defaults, communicates=True)
    program = case.base[case.stage]
    name = f"{program[at].name.partition('_')[0]}_{verb}"
    if name == program[at].name or (parent is not None and program[at].parent is None):
        raise case.refuse(f"cannot act in {program[at].name}: name another collective of the rank")
    return _in_place(case, at, renamed(program, at, name, parent))


def _in_place(case: Case, at: int, changed: Program) -> Plan:
    """The rank's program has another operation at a place, which its group never completes."""
    op = changed[at].op
    return Plan(
        truth=(case.rank,),
        segment=changed[at].name,
        programs=(changed,),
        stages=(case.stage,),
        runs=(case.only(case.rank),),
        frozen=(Frozen(op, case.group(op, case.rank), case.number(at)),),
    )


def _missing_call(case: Case) -> Plan:
    """The rank leaves out a collective. Its next one there meets the others' last: they hang where the kinds differ.

    Or it leaves out a send: its partner gets the messages that follow, and waits for one more than there are.
    """
    if (case.fault.segment or "").startswith("send_"):
        return _lost_send(case)
    at = case.call("dp_reduce_scatter", "tp_all_gather", communicates=True)
    program, rank, skipped = case.base[case.stage], case.rank, case.base[case.stage][at]
    left = without(program, at)
    own = [one.name for one in left if one.op == skipped.op]
    others = [one.name for one in program if one.op == skipped.op]
    first = next((n for n in range(case.number(at), len(own)) if own[n] != others[n]), None)
    frozen = () if first is None else (Frozen(skipped.op, case.group(skipped.op, rank), first),)
    return Plan(
        truth=(rank,),
        segment=skipped.name,
        programs=(left,),
        stages=(case.stage,),
        runs=(case.only(rank),),
        frozen=frozen,
    )


def _lost_send(case: Case) -> Plan:
    program, name = case.base[case.stage], case.fault.segment or ""
    at = find_call(program, name, case.fault.microbatch)
    if at is None:
        sends = dict.fromkeys(one.name for one in program if one.name.startswith("send_"))
        raise case.refuse(f"leaves out no send of its rank: use one of {', '.join(sends) or 'several stages'}")
    left = (without(program, at),)
    return Plan(truth=(case.rank,), segment=name, programs=left, stages=(case.stage,), runs=(case.only(case.rank),))


def _iteration_desync(case: Case) -> Plan:
    """A whole replica counts one step more: it is in its last checkpoint, the others begin their last step."""
    grid = case.job.grid
    if grid.dp_size < 2:
        raise case.refuse("needs several data-parallel ranks: set dp above 1")
    marked = np.zeros(grid.rank.shape, bool)
    marked[:, :, grid.replica[case.rank]] = True
    last = [
        Call("checkpoint", SegmentKind.CHECKPOINT, Op.WORK, 0),
        Call("world_all_reduce", SegmentKind.COLLECTIVE, Op.WORLD, 0, "checkpoint"),
    ]
    return Plan(
        truth=tuple(sorted(grid.rank[marked].tolist())),
        segment="world_all_reduce",
        programs=(last,) * grid.stages,
        stages=tuple(range(grid.stages)),
        runs=tuple(marked & (grid.stage[grid.rank] == stage) for stage in range(grid.stages)),
        ahead=marked,
    )


def _order_inversion(case: Case) -> Plan:
    """Two ranks across a square of tp and dp reduce gradients before their last tensor-parallel collective."""
    grid, stage = case.job.grid, case.stage
    if grid.width < 2 or grid.dp_size < 2:
        raise case.refuse("needs tensor- and data-parallel groups: set tp and dp above 1")
    tp, replica = int(grid.tp[case.rank]), int(grid.replica[case.rank])
    other_tp = (tp + 1) % grid.width
    first = replica // grid.dp_size * grid.dp_size
    other = first + (replica - first + 1) % grid.dp_size
    program = case.base[stage]
    reduces = next(i for i, one in enumerate(program) if one.name == "dp_reduce_scatter")
    before = max((i for i in range(reduces) if program[i].op == Op.TP), default=None)
    if before is None:
        raise case.refuse("needs tensor-parallel collectives in the compute: give the job some")
    rest = without(program, reduces)
    rest.insert(before, program[reduces])
    opposite = int(grid.rank[stage, other_tp, other])
    number = case.number(reduces)
    return Plan(
        truth=tuple(sorted((case.rank, opposite))),
        segment="dp_reduce_scatter",
        programs=(rest,),
        stages=(stage,),
        runs=(case.only(case.rank) | case.only(opposite),),
        frozen=tuple(Frozen(Op.DP, case.group(Op.DP, rank), number) for rank in (case.rank, opposite)),
    )


def _p2p_cycle(case: Case) -> Plan:
    """A stage waits for a micro-batch's gradient before it has sent its activation: it warmed up with too few."""
    grid, job, stage = case.job.grid, case.job, case.stage
    if stage == grid.stages - 1 or job.chunks > 1:
        raise case.refuse(
            "needs a rank before the last stage, in a pipeline without interleaving: change rank or chunks"
        )
    chosen = job.microbatches // 2 if case.fault.microbatch is None else case.fault.microbatch
    program = case.base[stage]
    sends = find_call(program, "send_forward", chosen)
    if sends is None:
        raise case.refuse(f"names micro-batch {chosen}: there are 0 to {job.microbatches - 1}")

    def is_early(one: Call) -> bool:
        of_backward = one.name in ("recv_backward", "backward", "send_backward") or one.parent == "backward"
        return of_backward and one.step == 0 and one.microbatch is not None and one.microbatch <= chosen

    after = program[sends:]
    changed = [*program[:sends], *filter(is_early, after), *(one for one in after if not is_early(one))]
    replica = int(grid.replica[case.rank])
    marked = np.zeros(grid.rank.shape, bool)
    marked[stage, :, replica] = True
    waits = max(
        i for i, one in enumerate(changed[: sends + len(after)]) if one.name == "recv_backward" and is_early(one)
    )
    return Plan(
        limits=dict.fromkeys(grid.rank[marked].tolist(), waits),
        truth=tuple(sorted(grid.rank[marked].tolist())),
        segment="recv_backward",
        programs=(changed,),
        stages=(stage,),
        runs=(marked,),
    )


def _network(case: Case) -> Plan:
    """All members of the rank's group have joined an operation, and none completes it."""
    at = case.call("dp_reduce_scatter", "world_all_reduce", communicates=True)
    call = case.base[case.stage][at]
    members = case.group(call.op, case.rank)
    truth = tuple(sorted(case.job.grid.rank[members].tolist()))
    return Plan(truth=truth, segment=call.name, frozen=(Frozen(call.op, members, case.number(at)),))


def _library(case: Case) -> Plan:
    """As a network that fails, but the cause is one rank, which spins inside the library's call."""
    at = case.call("dp_all_gather", "tp_all_gather", communicates=True)
    call = case.base[case.stage][at]
    frozen = Frozen(call.op, case.group(call.op, case.rank), case.number(at))
    return Plan(
        truth=(case.rank,),
        segment=call.name,
        stops={case.rank: at},
        frozen=(frozen,),
        states={case.rank: "running"},
        busy=(case.rank,),
    )


def _init(case: Case) -> Plan:
    """The job has not begun: the others wait for ranks that never came (or, for the segment setup, are stuck in it)."""
    if case.fault.segment not in (None, "setup"):
        raise case.refuse("acts before the first step: leave the segment out, or name setup")
    ranks = case.fault.ranks
    absent, stops = () if case.fault.segment else ranks, dict.fromkeys(ranks, 0)
    return Plan(truth=ranks, segment="setup", limits=stops, stops=stops, absent=absent)


_PLANS: Mapping[FaultKind, Callable[[Case], Plan]] = {
    FaultKind.DEAD: _dead,
    FaultKind.EXCEPTION: _exception,
    FaultKind.HOST_STUCK: _host_stuck,
    FaultKind.DEVICE_STUCK: _device_stuck,
    FaultKind.MISMATCH: _mismatch,
    FaultKind.MISSING_CALL: _missing_call,
    FaultKind.ITERATION_DESYNC: _iteration_desync,
    FaultKind.DIVERGED: _diverged,
    FaultKind.ORDER_INVERSION: _order_inversion,
    FaultKind.P2P_CYCLE: _p2p_cycle,
    FaultKind.NETWORK: _network,
    FaultKind.LIBRARY: _library,
    FaultKind.INIT: _init,
    FaultKind.LONG_PHASE: _long_phase,
}
